#!/usr/bin/env bash
# Tests of `make install` and `make uninstall`: which files are installed, that the installed programs run, that only these
# files are removed; the man page and bash completion. Installs the programs that are built.
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

# --- the man page and the completion name every flag, and formatters do not warn
man=$usr/share/man/man1/train_gpt2_fp8_cpu.1 bash=$usr/share/bash-completion/completions/train_gpt2_fp8_cpu
"$program" --help=markdown | grep -oE '^\| `--[a-z0-9-]+' | sed 's/.*`//' | sort >"$folder/flags"
is "the man page names every flag" "$(sed 's/\\-/-/g' "$man" | grep -oE '^\\&  --[a-z0-9-]+' | sed 's/.* //' | sort | diff "$folder/flags" -)" ""
formatters=()
command -v groff >/dev/null && formatters+=("groff -man -ww -Tascii")
command -v mandoc >/dev/null && formatters+=("mandoc -W warning -T ascii")
for formatter in "${formatters[@]}"; do
    $formatter "$man" 2>"$folder/warnings" | sed 's/.\x08//g; s/\x1b\[[0-9]*m//g' | grep -E '^ +--memory-limit SIZE' >/dev/null && [ ! -s "$folder/warnings" ]
    check "$formatter" $? "$(head -5 "$folder/warnings")"
done
[ ${#formatters[@]} -gt 0 ] || echo "skip - formatting the man page: no groff or mandoc"
completed() { (. "$bash" && eval "$(complete -p train_gpt2_fp8_cpu | sed "s/.* -W \('[^']*'\).*/compgen -W \1 -- $1/")") | sort | paste -sd ' '; }
is "completion of a flag" "$(completed --sh) $(completed --no-res)" "--shuffle --no-resume"
is "completion of every flag" "$(completed -- | tr ' ' '\n' | sort | comm -23 "$folder/flags" -)" ""

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
refused "a file of somebody else's" "^error: .*/bin/coat-plot-loss exists, but make install did not create it" install "${install[@]}"
make "${install[@]}" uninstall >/dev/null 2>&1
is "which stays" "$(cat "$usr/bin/coat-plot-loss"; find "$root" -type f ! -name mine)" "theirs"$'\n'"$usr/bin/coat-plot-loss"
refused "a PREFIX that is no path" "^error: PREFIX=opt: must begin with /" install PREFIX=opt DESTDIR="$root"
said=$(BIN=$folder BUILD=$build DESTDIR=$root scripts/install.sh install 2>&1)
is "nothing that is built" "$? $said" "1 error: there is no $folder/train_gpt2_fp8_cpu: run make first"
refused "a place that cannot be written" "^error: /proc/coat cannot be written: try sudo make install, or make install PREFIX=" install "${flags[@]}" PREFIX=/proc/coat

exit $failures
