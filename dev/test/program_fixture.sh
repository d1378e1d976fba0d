# Shared by the tests of the CPU program and of scripts: the program's path, a temporary folder, and TAP lines. Source it
# in the repository's root. The test ends with `exit $failures`.
program=$(realpath "${PROGRAM:-${BIN:-.}/train_gpt2_fp8_cpu}") device=${DEVICE:-cpu}
build=${BUILD:-build}
folder=$(mktemp -d)
trap 'chmod -R u+rwx "$folder"; rm -rf "$folder"' EXIT
failures=0

ok() { echo "ok - $1"; }
bad() { # NAME OUTPUT...
    echo "not ok - $1"
    shift
    printf '    %s\n' "$@"
    failures=1
}

# check NAME STATUS [OUTPUT...]: prints the TAP line. If STATUS is $?, NAME must not contain $(...), which changes $?.
check() {
    if [ "$2" -eq 0 ]; then ok "$1"; else bad "$1" "$(printf '%s\n' "${@:3}" | head -n 60)"; fi
}
# has NAME TEXT PATTERN: checks that a line of the text matches
has() {
    local status=0
    grep -qE -- "$3" <<<"$2" || status=1
    check "$1" $status "no line '$3' in:" "$2"
}
# is NAME ACTUAL EXPECTED: checks that two texts are equal, and not empty, because a program that fails prints nothing
is() {
    [ -n "$2" ] && [ "$2" = "$3" ]
    check "$1" $? "actual: $2" "expected: $3"
}
empty() { [ -z "$2" ]; check "$1" $? "$2"; } # NAME TEXT: checks that a text is empty
# succeeds NAME COMMAND...: checks that the command succeeds
succeeds() {
    local name=$1 said
    shift
    said=$("$@" 2>&1)
    check "$name" $? "$said"
}
# refuses NAME PATTERN COMMAND...: expects exit code 1, one error line that matches, and no files
refuses() {
    local said status=0
    said=$("${@:3}" 2>&1)
    [ $? -eq 1 ] && [ "$(wc -l <<<"$said")" -eq 1 ] && grep -qE -- "^error: .*$2" <<<"$said" && [ ! -e "$folder/refused" ] || status=1
    check "$1" $status "$said"
}

# fails NAME CODE PATTERN COMMAND...: expects this exit code and one line of output, which matches. Lines that match
# $ignored do not count.
fails() {
    local said status=0
    said=$("${@:4}" 2>&1 </dev/null) || status=$?
    said=$(grep -vE "${ignored:-^$}" <<<"$said")
    [ $status -eq "$2" ] && [ "$(wc -l <<<"$said")" -eq 1 ] && grep -qE -- "$3" <<<"$said"
    check "$1" $? "exit code $status, expected $2 and one line that matches /$3/:" "$said"
}

# needs_python NAME: ends the suite with a skip line if python3 is missing
needs_python() {
    command -v python3 >/dev/null || { echo "skip - $1: python3 is missing"; exit 77; }
}

# data_python ARGUMENT...: runs the Python program on stdin, which can import the modules of data/
data_python() { PYTHONPATH=data${PYTHONPATH:+:$PYTHONPATH} python3 -B - "$@"; }

# pytorch_tests NAME...: true if these tests run: in `make test-long` if Python has transformers and PyTorch, which is too
# large for `make test` to install. Prints a skip line per name if a package is missing.
pytorch_tests() {
    [ "${TEST_LONG:-}" ] || return
    python3 -c 'import torch, safetensors, transformers as t; exit([*map(int, t.__version__.split(".")[:2])] < [4, 56])' 2>/dev/null && return
    printf 'skip - %s: Python has no torch, or no transformers from 4.56 on\n' "$@"
    return 1
}

# Hides the machine's GPUs. $path is the original PATH.
without_gpu() {
    mkdir -p "$folder/none"
    printf '#!/bin/sh\nexit 9\n' >"$folder/none/nvidia-smi"
    chmod +x "$folder/none/nvidia-smi"
    path=$PATH
    export PATH="$folder/none:$path"
}

# field KEY [LOG]: prints the value of KEY in every line that has it, except the settings
field() { sed -n "/\"settings\":/d; s/.*\"$1\":\([^,}]*\).*/\1/p" "${@:2}"; }

# exists PATTERN: true if a file matches
exists() { compgen -G "$1" >/dev/null; }

# wait_for PID COMMAND...: waits until the command succeeds or the process has ended, at most five minutes
wait_for() {
    local end=$((SECONDS + 300))
    until "${@:2}" 2>/dev/null || ! kill -0 "$1" 2>/dev/null || [ $SECONDS -gt $end ]; do sleep 0.01; done
}

# lab_tests GPUS SETTING...: prepares a test of scripts/lab.py. Unsets the settings and hides the machine's GPUs. Writes
# an nvidia-smi to $folder/gpus that shows this number of GPUs. Makes $folder/pretend for a program that pretends to train.
lab_tests() {
    needs_python "scripts/lab.py"
    export BIN=${BIN:-.} BUILD=${BUILD:-build}
    unset CUDA_VISIBLE_DEVICES "${@:2}"
    without_gpu
    mkdir "$folder/gpus" "$folder/pretend"
    cat >"$folder/gpus/nvidia-smi" <<END
#!/bin/sh
case "\$*" in *compute_cap*) echo 9.0 ;; *=index*) seq 0 $(($1 - 1)) ;; *) for gpu in $(seq -s ' ' "$1"); do echo "Pretended GPU" && sleep 0.05; done ;; esac
END
    chmod +x "$folder/gpus/nvidia-smi"
}

# Prints a log without times and settings, which differ between equal runs.
strip() { sed 's/"ms":[^,}]*//; s/"tokens_per_s":[^,}]*//; /"settings":/d' "$1"; }

# text FOLDER [FILES]: writes files of 10 KB of words, the same on every machine and independent of the sources
text() {
    mkdir -p "$1"
    awk -v folder="$1" -v files="${2:-32}" 'BEGIN {
        count = split("the of and to in is it a that for on are with as his they be at one have this from or had by hot " \
            "word but what some we can out other were all there when up use your how said an each she which do their " \
            "time if will way about many then them write would like so these her long make thing see him two has look", word, " ")
        x = 1
        for (file = 1; file <= files; file++) {
            name = sprintf("%s/%03d.txt", folder, file)
            for (bytes = 0; bytes < 10000; bytes += length(next_word) + 1) {
                x = x * 16807 % 2147483647 # exact in the numbers of every awk
                share = x / 2147483647
                next_word = word[1 + int(count * share * share)] # the first words are the most frequent
                printf "%s%s", next_word, x % 12 ? " " : ".\n" >name
            }
            close(name)
        }
    }'
}

# byte_data [FILES]: writes such files to $folder/texts, and their bytes as token files of training and validation data
byte_data() {
    data=$folder/src_train.bin val=$folder/src_val.bin
    text "$folder/texts" "$@" && "$build"/prepare_bytes --out "$folder/src" "$folder/texts" >/dev/null || exit 1
}

# poke FILE AT BYTES: overwrites a file's bytes from this place on; BYTES may contain \xHH
poke() { printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
# flip FILE AT MASK: flips bits of the byte at this place
flip() { poke "$1" "$2" "$(printf '\\x%02x' $(($(od -An -tu1 -j "$2" -N 1 "$1") ^ $3)))"; }
# Removes the checksum from a token file's header, so that a changed file is not refused as damaged.
without_checksum() { poke "$1" 32 '\0\0\0\0\0\0\0\0'; }

# vocabulary FOLDER TOKENS: writes a vocabulary in the form of GPT-2's, without merges
vocabulary() {
    mkdir "$1" && echo '#version: 0.2' >"$1/merges.txt"
    awk -v last=$(($2 - 1)) 'BEGIN {
        for (i = 0; i < last; i++) printf "%s\"t%d\": %d", i ? "," : "{", i, i
        printf ",\"<|endoftext|>\": %d}\n", last
    }' >"$1/vocab.json"
}
