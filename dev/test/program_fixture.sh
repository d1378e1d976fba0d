# Sourced, in the repository's root, by the tests of the CPU program and of scripts: defines the program's path, a
# temporary folder, and functions that print TAP lines. The test ends with `exit $failures`.
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
# refuses NAME PATTERN COMMAND...: checks that the command ends with exit code 1, prints one error line, which matches,
# and does not create $folder/refused
refuses() {
    local said status=0
    said=$("${@:3}" 2>&1)
    [ $? -eq 1 ] && [ "$(wc -l <<<"$said")" -eq 1 ] && grep -qE -- "^error: .*$2" <<<"$said" && [ ! -e "$folder/refused" ] || status=1
    check "$1" $status "$said"
}

# fails NAME CODE PATTERN COMMAND...: checks that the command ends with this exit code and prints one line, which
# matches. Lines that match $ignored do not count.
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

# data_python ARGUMENT...: runs the Python program that is given on stdin. The program can import the modules of data/.
data_python() { PYTHONPATH=data${PYTHONPATH:+:$PYTHONPATH} python3 -B - "$@"; }

# pytorch_tests NAME...: true if the caller shall run these tests: if TEST_LONG is set (`make test-long`), and Python
# has PyTorch, safetensors and transformers. If only a package is missing, prints a skip line per name. `make test` never
# runs these tests, because PyTorch is too large to install.
pytorch_tests() {
    [ "${TEST_LONG:-}" ] || return
    python3 -c 'import torch, safetensors, transformers as t; exit([*map(int, t.__version__.split(".")[:2])] < [4, 56])' 2>/dev/null && return
    printf 'skip - %s: Python has no torch, no safetensors, or no transformers of version 4.56 or later\n' "$@"
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

# field KEY [LOG]: prints the value of KEY in every line of LOG (default: stdin) that has it, except the line of
# settings
field() { sed -n "/\"settings\":/d; s/.*\"$1\":\([^,}]*\).*/\1/p" "${@:2}"; }

# exists PATTERN: true if the path of a file or folder matches
exists() { compgen -G "$1" >/dev/null; }

# wait_for PID COMMAND...: waits until the command succeeds or the process has ended, at most five minutes
wait_for() {
    local end=$((SECONDS + 300))
    until "${@:2}" 2>/dev/null || ! kill -0 "$1" 2>/dev/null || [ $SECONDS -gt $end ]; do sleep 0.01; done
}

# lab_tests GPUS SETTING...: prepares a test of scripts/lab.py. Unsets the environment variables SETTING... and hides
# the machine's GPUs. Writes an nvidia-smi to $folder/gpus that shows this number of GPUs. Creates the empty folder
# $folder/pretend, to which the test writes a program that pretends to train.
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

# strip LOG: prints a log without times and settings, in which runs with equal results differ.
strip() { sed 's/"ms":[^,}]*//; s/"tokens_per_s":[^,}]*//; /"settings":/d' "$1"; }

# text FOLDER [FILES]: writes FILES (default: 32) files of 10 KB of English words. The words are the same on every
# machine and do not depend on this repository's files.
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

# byte_data [FILES]: writes FILES files of words to $folder/texts, and their bytes as tokens to two token files. Sets
# $data to the training file and $val to the validation file.
byte_data() {
    data=$folder/src_train.bin val=$folder/src_val.bin
    text "$folder/texts" "$@" && "$build"/prepare_bytes --out "$folder/src" "$folder/texts" >/dev/null || exit 1
}

# poke FILE AT BYTES: overwrites a file's bytes from offset AT on; BYTES may contain \xHH
poke() { printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
# flip FILE AT MASK: flips the bits in MASK of the byte at offset AT
flip() { poke "$1" "$2" "$(printf '\\x%02x' $(($(od -An -tu1 -j "$2" -N 1 "$1") ^ $3)))"; }
# without_checksum FILE: removes the checksum from a token file's header, so that a changed file is not refused as
# damaged
without_checksum() { poke "$1" 32 '\0\0\0\0\0\0\0\0'; }

# vocabulary FOLDER TOKENS: creates FOLDER with a vocabulary of this number of tokens, as GPT-2's two files, without
# merges
vocabulary() {
    mkdir "$1" && echo '#version: 0.2' >"$1/merges.txt"
    awk -v last=$(($2 - 1)) 'BEGIN {
        for (i = 0; i < last; i++) printf "%s\"t%d\": %d", i ? "," : "{", i, i
        printf ",\"<|endoftext|>\": %d}\n", last
    }' >"$1/vocab.json"
}
