#!/usr/bin/env bash
# Tests of `make install` and `make uninstall`: the installed files, that the installed programs run, the man page, bash
# completion, and that no other files are removed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
unset MAKEFLAGS MFLAGS MAKELEVEL DESTDIR PREFIX
flags=(--no-print-directory)
[[ $build != *asan* ]] || flags+=(SANITIZE=1)

# refused NAME PATTERN TARGET SETTING...: checks that make fails and, apart from its own lines, prints one line, which
# matches
refused() {
    local said
    said=$(make "${flags[@]}" "${@:3}" 2>&1 >/dev/null)
    [ $? -ne 0 ] && [ "$(grep -vc '^make: ' <<<"$said")" -eq 1 ] && grep -qE -- "$2" <<<"$said"
    check "$1" $? "$said"
}

# --- install twice, into a folder that has other files
root="$folder/a root" usr=$folder/'a root'/opt/coat
mkdir -p "$root/opt/coat/bin"
echo mine | tee "$root/opt/coat/bin/mine" >"$root/opt/mine"
before=$(cd "$root" && find . | sort)
install=("${flags[@]}" PREFIX=/opt/coat DESTDIR="$root")
said=$(make "${install[@]}" install 2>&1)
check "make install succeeds" $? "$said"
first=$(cd "$root" && find . | sort)
said=$(make "${install[@]}" install 2>&1) && [ "$first" = "$(cd "$root" && find . | sort)" ] && [ -z "$(sort "$usr/lib/coat/installed" | uniq -d)" ]
check "a second make install installs the same files and records every file once" $? "$said"
is "make install prints the paths of all installed files" "$(sed -n 's/^  //p' <<<"$said" | sort)" \
    "$(cd "$root" && find "$root" -type f ! -name mine ! -name installed | sort)"
empty "only the owner can write installed files" "$(find "$root" -type f -perm /022)"

# --- programs for GPUs are installed if they are built
mkdir "$folder/both"
for name in train_gpt2_fp8_cpu train_gpt2_fp8 gradient_stats gradient_stats_gpu; do cp "$program" "$folder/both/$name"; done
BIN=$folder/both BUILD=$folder/both DESTDIR=$folder/staged scripts/install.sh install >/dev/null
is "make install installs the programs for GPUs" "$(cd "$folder/staged/usr/local" && find . -name '*gpu' -o -name 'train_gpt2_fp8*' ! -name '*_cpu*' | sort | paste -sd ' ')" \
    "./bin/coat-gradient-stats-gpu ./bin/train_gpt2_fp8 ./share/bash-completion/completions/train_gpt2_fp8 ./share/man/man1/train_gpt2_fp8.1"
BIN=$folder BUILD=$folder DESTDIR=$folder/staged scripts/install.sh uninstall >/dev/null # the built programs no longer exist
is "make uninstall removes the programs for GPUs" "$(find "$folder/staged")" "$folder/staged"

# --- if a program is older than its sources or does not run, nothing is installed
# stale NAME PATTERN [TREE]: checks that installing from TREE fails with one matching line about a program in
# $folder/both, and installs nothing
stale() {
    local said
    said=$(BIN=$folder/both BUILD=$folder/both DESTDIR=$folder/stale "${3:-.}/scripts/install.sh" install 2>&1)
    [ $? -eq 1 ] && [ "$(wc -l <<<"$said")" -eq 1 ] && grep -q "^error: $folder/both/$2.*run make, or remove it$" <<<"$said" && [ ! -e "$folder/stale" ]
    check "$1" $? "$said"
}
touch -d 2000-01-01 "$folder/both/train_gpt2_fp8"
stale "a program that is older than its source is not installed" "train_gpt2_fp8 .* train_gpt2_fp8.cu"
printf '#!/bin/sh\necho "error: no libcudart" >&2\nexit 127\n' >"$folder/both/train_gpt2_fp8"
stale "a program that does not start is not installed" "train_gpt2_fp8 .*no libcudart"

# A header is a source, too. A header in coat/cuda is a source of train_gpt2_fp8 only, a C file there of both programs.
mkdir "$folder/tree" && cp -r scripts coat data train_gpt2_fp8.cu "$folder/tree"
for name in train_gpt2_fp8 train_gpt2_fp8_cpu; do cp "$program" "$folder/both/$name"; done
newer() { # SOURCE PROGRAM: makes SOURCE newer than PROGRAM, which then must not be installed
    touch -d '+1 hour' "$folder/tree/$1"
    stale "nothing is installed if $1 is newer than $2" "$2 .* $1" "$folder/tree"
}
newer coat/cuda/common/cuda_internal.h train_gpt2_fp8
newer coat/cuda/matmul/matmul_algos.c train_gpt2_fp8_cpu
newer coat/run/run.h train_gpt2_fp8_cpu

# --- the installed programs run in another folder
cd "$folder" || exit
PATH=$usr/bin:$PATH
"$usr/bin/coat-prepare-bytes" --out t "$OLDPWD/coat" >said 2>&1 &&
    "$usr/bin/train_gpt2_fp8_cpu" --tokenizer bytes --layers 1 --heads 2 --channels 32 --seq-len 32 --train t_train.bin --steps 3 \
        --recipe coat --moments fp32 --sample-tokens 0 --out run >said 2>&1 && coat-plot-loss run/log.jsonl loss.svg >said 2>&1 && [ -s loss.svg ] &&
    coat-quant-error run/step-00000003 >said 2>&1 && coat-gradient-stats run/step-00000003 --train t_train.bin --micro-batch 1 --seq-len 32 >said 2>&1
check "the installed programs run" $? "$(cat said)"
if command -v python3 >/dev/null; then
    coat-prepare --bytes --out p "$OLDPWD/coat" >said 2>&1 && [ -s p_train_000000.bin ]
    check "the installed coat-prepare runs, with its modules" $? "$(cat said)"
fi
for name in prepare-bytes plot-loss quant-error gradient-stats; do
    is "coat-$name --help prints the installed name" "$(coat-$name --help | head -n 1 | grep -o "^usage: [a-z-]*")" "usage: coat-$name"
done
is "coat-prepare-bytes --nonsense prints the installed name" "$(coat-prepare-bytes --nonsense 2>&1 | grep -o '^coat-prepare-bytes: .*--nonsense\|coat-prepare-bytes --help$' | wc -l)" 2
is "train_gpt2_fp8_cpu --help prints the installed names" "$(train_gpt2_fp8_cpu --help | grep -c '^coat-prepare-bytes --out .* --headers$\|^  train_gpt2_fp8_cpu --') $(train_gpt2_fp8_cpu --help | grep -c 'build/\|\./')" "4 0"
has "errors print the installed names" "$(train_gpt2_fp8_cpu --train 'none*' 2>&1)" '^error: .* none\*; .* coat-prepare or coat-prepare-bytes'
if command -v python3 >/dev/null; then
    is "coat-prepare --help prints the installed name" "$(coat-prepare --help | grep -o '^usage: [a-z.-]*\|^ *coat-prepare --out .* tinyshakespeare\|prepare\.py')" "usage: coat-prepare"$'\n'"    coat-prepare --out data/tokens/shakespeare tinyshakespeare"
    is "coat-prepare --nonsense prints the installed name" "$(coat-prepare --nonsense 2>&1 | grep -o '^coat-prepare: ')" "coat-prepare: "
fi
cd "$OLDPWD" || exit

# --- man page and completion
man=$usr/share/man/man1/train_gpt2_fp8_cpu.1 bash=$usr/share/bash-completion/completions/train_gpt2_fp8_cpu
"$program" --help=markdown | grep -oE '^\| `--[a-z0-9-]+' | sed 's/.*`//' | sort >"$folder/flags"
empty "the man page names every flag" "$(sed 's/\\-/-/g' "$man" | grep -oE '^\\&  --[a-z0-9-]+' | sed 's/.* //' | sort | diff "$folder/flags" -)"
formatters=()
command -v groff >/dev/null && formatters+=("groff -man -ww -Tascii")
command -v mandoc >/dev/null && formatters+=("mandoc -W warning -T ascii")
for formatter in "${formatters[@]}"; do
    $formatter "$man" 2>"$folder/warnings" | sed 's/.\x08//g; s/\x1b\[[0-9]*m//g' | grep -E '^ +--memory-limit SIZE' >/dev/null && [ ! -s "$folder/warnings" ]
    check "the man page has no warnings in $formatter" $? "$(head -5 "$folder/warnings")"
done
[ ${#formatters[@]} -gt 0 ] || echo "skip - formatting the man page: no groff or mandoc"
completed() { (. "$bash" && eval "$(complete -p train_gpt2_fp8_cpu | sed "s/.* -W \('[^']*'\).*/compgen -W \1 -- $1/")") | sort | paste -sd ' '; }
is "completion completes the beginning of a flag" "$(completed --sh) $(completed --no-res)" "--shuffle --no-resume"
empty "completion of -- offers every flag" "$(completed -- | tr ' ' '\n' | sort | comm -23 "$folder/flags" -)"

# --- uninstall
touch "$usr/share/man/man1/others.1"
said=$(make "${install[@]}" uninstall 2>&1)
check "make uninstall succeeds" $? "$said"
is "make uninstall keeps files that it did not install" "$(cd "$usr" && find share -type f)" share/man/man1/others.1
rm -r "$usr/share"
is "make uninstall removes all that make install has created" "$(cd "$root" && find . | sort)" "$before"
refused "a second make uninstall has nothing to uninstall" "^error: nothing is installed in $root/opt/coat: .*DESTDIR of make install" uninstall "${install[@]}"

# --- refused installations
echo theirs >"$usr/bin/coat-plot-loss"
refused "make install does not overwrite a file that it did not create" "^error: .*/bin/coat-plot-loss exists, but make install did not create it" install "${install[@]}"
make "${install[@]}" uninstall >/dev/null 2>&1
is "a file that make install did not create is unchanged" "$(cat "$usr/bin/coat-plot-loss"; find "$root" -type f ! -name mine)" "theirs"$'\n'"$usr/bin/coat-plot-loss"
refused "a PREFIX that does not begin with / is refused" "^error: PREFIX=opt: must begin with /" install PREFIX=opt DESTDIR="$root"
said=$(BIN=$folder BUILD=$build DESTDIR=$root scripts/install.sh install 2>&1)
[ $? -eq 1 ] && grep -qxE "error: .*$folder/train_gpt2_fp8_cpu.*run make.*" <<<"$said"
check "make install is refused if a program is not built" $? "$said"
refused "a PREFIX that cannot be written is refused" "^error: /proc/coat cannot be written: try sudo make install, or make install PREFIX=" install "${flags[@]}" PREFIX=/proc/coat

exit $failures
