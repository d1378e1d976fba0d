#!/usr/bin/env bash
# What `make install` puts where, that it works from there, and that `make uninstall` leaves nothing of it and all of the
# rest; the man page and bash's completion. On what is built here.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR PREFIX
flags=(--no-print-directory)
[[ $build != *asan* ]] || flags+=(SANITIZE=1)

is() { # NAME GOT WANTED
    [ "$2" = "$3" ]
    check "$1" $? "got: $2" "wanted: $3"
}
# refused NAME PATTERN TARGET SETTING...: make ends with one line that matches, beside its own, and not with 0
refused() {
    local said
    said=$(make "${flags[@]}" "${@:3}" 2>&1 >/dev/null)
    [ $? -ne 0 ] && [ "$(grep -vc '^make: ' <<<"$said")" -eq 1 ] && grep -qE -- "$2" <<<"$said"
    check "$1" $? "$said"
}

# --- install, twice, into a folder where somebody has something already
root="$folder/a root" usr=$folder/'a root'/opt/coat
mkdir -p "$root/opt/coat/bin"
echo mine | tee "$root/opt/coat/bin/mine" >"$root/opt/mine"
before=$(cd "$root" && find . | sort)
install=("${flags[@]}" PREFIX=/opt/coat DESTDIR="$root")
said=$(make "${install[@]}" install 2>&1)
check "make install" $? "$said"
first=$(cd "$root" && find . | sort)
said=$(make "${install[@]}" install 2>&1) && [ "$first" = "$(cd "$root" && find . | sort)" ] && [ -z "$(sort "$usr/lib/coat/installed" | uniq -d)" ]
check "and again" $? "$said"
is "what is said is what is there" "$(sed -n 's/^  //p' <<<"$said" | sort)" \
    "$(cd "$root" && find "$root" -type f ! -name mine ! -name installed | sort)"
is "nobody but the owner can write it" "$(find "$root" -type f -perm /022)" ""

# --- where the GPU's programs have been built, they are installed too
mkdir "$folder/both"
for name in train_gpt2_fp8_cpu train_gpt2_fp8 gradient_stats gradient_stats_gpu; do cp "$program" "$folder/both/$name"; done
BIN=$folder/both BUILD=$folder/both DESTDIR=$folder/staged scripts/install.sh install >/dev/null
is "the GPU's programs" "$(cd "$folder/staged/usr/local" && find . -name '*gpu' -o -name 'train_gpt2_fp8*' ! -name '*_cpu*' | sort | paste -sd ' ')" \
    "./bin/coat-gradient-stats-gpu ./bin/train_gpt2_fp8 ./share/bash-completion/completions/train_gpt2_fp8 ./share/man/man1/train_gpt2_fp8.1"
BIN=$folder BUILD=$folder DESTDIR=$folder/staged scripts/install.sh uninstall >/dev/null # though they are gone
is "and uninstalled" "$(find "$folder/staged")" "$folder/staged"

# --- but not those that are older than their sources, or of others: then nothing is installed at all
# stale NAME MESSAGE: what is said of $folder/both/train_gpt2_fp8
stale() {
    local said
    said=$(BIN=$folder/both BUILD=$folder/both DESTDIR=$folder/stale scripts/install.sh install 2>&1)
    is "$1" "$? $said" "1 error: $folder/both/train_gpt2_fp8 $2; run make, or remove it"
    [ ! -e "$folder/stale" ]
    check "and nothing is there" $?
}
version=$("$program" --version) && version=${version##* }
touch -d 2000-01-01 "$folder/both/train_gpt2_fp8"
said=$(BIN=$folder/both BUILD=$folder/both DESTDIR=$folder/stale scripts/install.sh install 2>&1)
is "a program that is older than its sources" "$? $said" "1 error: $folder/both/train_gpt2_fp8 is older than train_gpt2_fp8.cu: run make, or remove it"
printf '#!/bin/sh\necho train_gpt2_fp8 0.0.9\n' >"$folder/both/train_gpt2_fp8"
stale "a program of another version" "is of another version than its sources, $version: it says 'train_gpt2_fp8 0.0.9'"
printf '#!/bin/sh\necho "error: no libcudart" >&2\nexit 127\n' >"$folder/both/train_gpt2_fp8"
stale "a program that does not start" "does not start: no libcudart"

# headers are sources, too; those of CUDA of the GPU's program alone
mkdir "$folder/tree" && cp -r scripts coat data train_gpt2_fp8.cu "$folder/tree"
for name in train_gpt2_fp8 train_gpt2_fp8_cpu; do cp "$program" "$folder/both/$name"; done
newer() { # HEADER WANTED
    touch -d '+1 hour' "$folder/tree/$1"
    is "$1 is newer" "$(BIN=$folder/both BUILD=$folder/both DESTDIR=$folder/stale "$folder/tree/scripts/install.sh" install 2>&1)" "error: $folder/both/$2 is older than $1: run make, or remove it"
}
newer coat/cuda/common/cuda_internal.h train_gpt2_fp8
newer coat/run/run.h train_gpt2_fp8_cpu

# --- what is installed runs, from elsewhere
cd "$folder" || exit
PATH=$usr/bin:$PATH
"$usr/bin/coat-prepare-bytes" --out t "$OLDPWD/coat" >said 2>&1 &&
    "$usr/bin/train_gpt2_fp8_cpu" --tokenizer bytes --layers 1 --heads 2 --channels 32 --seq-len 32 --train t_train.bin --steps 3 \
        --recipe coat --moments fp32 --sample-tokens 0 --out run >said 2>&1 && coat-plot-loss run/log.jsonl loss.svg >said 2>&1 && [ -s loss.svg ] &&
    coat-quant-error run/step-00000003 >said 2>&1 && coat-gradient-stats run/step-00000003 --train t_train.bin --micro-batch 1 --seq-len 32 >said 2>&1
check "the programs run" $? "$(cat said)"
if command -v python3 >/dev/null; then
    coat-prepare --bytes --out p "$OLDPWD/coat" >said 2>&1 && [ -s p_train_000000.bin ]
    check "so does prepare.py, with its modules" $? "$(cat said)"
fi
# and they say their names
for name in prepare-bytes plot-loss quant-error gradient-stats; do
    is "coat-$name --help" "$(coat-$name --help | head -n 1 | grep -o "^usage: [a-z-]*")" "usage: coat-$name"
done
is "coat-prepare-bytes --nonsense" "$(coat-prepare-bytes --nonsense 2>&1)" "coat-prepare-bytes: unknown flag --nonsense: see coat-prepare-bytes --help"
is "the help names them" "$(train_gpt2_fp8_cpu --help | grep -c '^coat-prepare-bytes --out .* --headers$\|^  train_gpt2_fp8_cpu --') $(train_gpt2_fp8_cpu --help | grep -c 'build/\|\./')" "4 0"
is "so do messages" "$(train_gpt2_fp8_cpu --train 'none*' 2>&1)" "error: no file matches none*; make token files with coat-prepare or coat-prepare-bytes, or correct the pattern"
if command -v python3 >/dev/null; then
    is "coat-prepare --help" "$(coat-prepare --help | grep -o '^usage: [a-z.-]*\|^ *coat-prepare --out .* tinyshakespeare\|prepare\.py')" "usage: coat-prepare"$'\n'"    coat-prepare --out data/tokens/shakespeare tinyshakespeare"
    is "coat-prepare --nonsense" "$(coat-prepare --nonsense 2>&1 | grep -o '^coat-prepare: ')" "coat-prepare: "
fi
cd "$OLDPWD" || exit

# --- uninstall
touch "$usr/share/man/man1/others.1"
said=$(make "${install[@]}" uninstall 2>&1)
check "make uninstall" $? "$said"
is "leaves what others have put beside it" "$(cd "$usr" && find share -type f)" share/man/man1/others.1
rm -r "$usr/share"
is "and nothing else" "$(cd "$root" && find . | sort)" "$before"
refused "there is nothing to uninstall then" "^error: nothing is installed in $root/opt/coat: .*DESTDIR that it was" uninstall "${install[@]}"

# --- what somebody else has is not overwritten, and without a program nothing is done
echo theirs >"$usr/bin/coat-plot-loss"
refused "a file of somebody else's" "^error: .*/bin/coat-plot-loss is there, and make install has not put it" install "${install[@]}"
make "${install[@]}" uninstall >/dev/null 2>&1
is "which stays" "$(cat "$usr/bin/coat-plot-loss"; find "$root" -type f ! -name mine)" "theirs"$'\n'"$usr/bin/coat-plot-loss"
refused "a PREFIX that is no path" "^error: PREFIX=opt: must begin with /" install PREFIX=opt DESTDIR="$root"
said=$(BIN=$folder BUILD=$build DESTDIR=$root scripts/install.sh install 2>&1)
is "nothing that is built" "$? $said" "1 error: there is no $folder/train_gpt2_fp8_cpu: run make first"
refused "a place that cannot be written" "^error: /proc/coat cannot be written: try sudo make install, or make install PREFIX=" install "${flags[@]}" PREFIX=/proc/coat

# --- the man page has every flag, and formatters say nothing about it
"$program" --help=man >"$folder/page.1"
wanted=$("$program" --help=markdown | grep -c '^| `--')
is "the man page has every flag" "$(grep -A 1 '^\.TP' "$folder/page.1" | grep -c '^\.B \\-\\-')" "$wanted"
formatters=()
command -v groff >/dev/null && formatters+=("groff -man -ww -Tascii")
command -v mandoc >/dev/null && formatters+=("mandoc -W warning -T ascii")
man --version 2>/dev/null | grep -q '^man ' && formatters+=("man --warnings -l")
for formatter in "${formatters[@]}"; do
    MANWIDTH=80 $formatter "$folder/page.1" >"$folder/formatted" 2>"$folder/warnings"
    # (grep -q would end before sed has written all)
    [ $? -eq 0 ] && [ ! -s "$folder/warnings" ] && sed 's/.\x08//g; s/\x1b\[[0-9]*m//g' "$folder/formatted" | grep -E '^ +--memory-limit SIZE$' >/dev/null
    check "$formatter" $? "$(head -5 "$folder/warnings")"
done
[ ${#formatters[@]} -gt 0 ] || echo "skip - formatting the man page: no groff, man or mandoc"

# --- completion
"$program" --help=bash >"$folder/completion"
# completed WORD...: what bash offers for the last of them, one a line
completed() {
    (
        cd "$folder/words" && . "$folder/completion"
        COMP_WORDS=(train_gpt2_fp8_cpu "$@") COMP_CWORD=$#
        _complete_train_gpt2_fp8_cpu 2>&1
        printf '%s\n' "${COMPREPLY[@]}" | sort | paste -sd ' '
    )
}
mkdir -p "$folder/words/a folder"
touch "$folder/words/a file" "$folder/words/b"
is "completion of a flag" "$(completed --sh)" "--shuffle"
is "of several" "$(completed --steps 3 --val)" "--val --val-batches --val-every"
is "of what is off" "$(completed --no-res)" "--no-resume"
is "of its choices" "$(completed --recipe '')" "bf16 coat coat-paper fp8-linear"
is "of one that has begun" "$(completed --recipe f)" "fp8-linear"
is "behind =" "$(completed --recipe = c)" "coat coat-paper"
is "right behind =" "$(completed --moments =)" "bf16 coat fp32 fp8"
is "of numbers that are choices" "$(completed --zero '')" "0 1 2 3"
is "of a value that may be left away" "$(completed --plan = j)" "json"
is "which is not taken for the next word" "$(completed --plan --memory-l)" "--memory-limit"
is "of files" "$(completed --train '')" "a file a folder b"
is "of files by llm.c's flag" "$(completed -i b)" "b"
is "of another file of a list" "$(completed --train 'a file' '')" "a file a folder b"
is "of one behind =" "$(completed --steps 3 --val = 'a file' b)" "b"
is "of one by llm.c's flag" "$(completed -i 'a file' b '')" "a file a folder b"
is "of a flag behind the list" "$(completed --train 'a file' b --shuf)" "--shuffle"
is "of what is behind a value" "$(completed --train b --recipe coat --shuf)" "--shuffle"
is "which is no list" "$(completed --train b --lr 1 b)" ""
is "of folders" "$(completed --out '')" "a folder"
is "of groups of the help" "$(completed --help '')" "bash batch data evaluation files man markdown model optimizer processes recipe run"
is "behind =, too" "$(completed --help = o)" "optimizer"
is "of choices and files" "$(completed --tokenizer b)" "b bytes"
is "of what is the user's to say" "$(completed --steps '')" ""
missing=$(comm -23 <("$program" --help=markdown | grep -oE '^\| `--[a-z0-9-]+' | sed 's/.*`//' | sort) <(completed -- | tr ' ' '\n' | sort))
is "of every flag" "$missing" ""
is "it is that program's" "$(tail -n 1 "$folder/completion")" "complete -F _complete_train_gpt2_fp8_cpu train_gpt2_fp8_cpu"
exit $failures
