#!/usr/bin/env bash
# `make install` copies the built programs, data/prepare.py, man pages and bash
# completion to $DESTDIR$PREFIX, and adds their paths to the list
# $DESTDIR$PREFIX/lib/coat/installed. `make uninstall` removes exactly the listed files, and
# the folders that are then empty.
#
#   scripts/install.sh install|uninstall
#
# Settings come from the environment:
#   PREFIX=/usr/local DESTDIR= BUILD=build BIN=.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."

build=${BUILD:-build} bin=${BIN:-.} prefix=${PREFIX:-/usr/local} root=${DESTDIR:-}
fail() {
    echo "error: $*" >&2
    exit 1
}
case $prefix in /*) ;; *) fail "PREFIX=$prefix: must begin with /" ;; esac
prefix=${prefix%/} own=${prefix%/}/lib/coat
list=$own/installed # $root precedes this path and the paths in the list

listed() { grep -qxF -- "$1" "$root$list" 2>/dev/null; }

# put MODE FILE PATH: copies FILE and adds PATH to the list; fails if PATH exists and is not on the list
put() {
    if ! listed "$3"; then
        [ ! -e "$root$3" ] ||
            fail "$root$3 exists, but make install did not create it; remove it, or use another PREFIX"
        echo "$3" >>"$root$list"
    fi
    install -D -m "$1" "$2" "$root$3"
    echo "  $root$3"
}

# check_current PROGRAM SOURCE...: fails if PROGRAM does not start, or is older than one of its sources
check_current() {
    local said newer
    said=$("$1" --version 2>&1) || fail "$1 does not start: ${said#error: }; run make, or remove it"
    newer=$(find "${@:2}" -newer "$1" -print -quit)
    [ -z "$newer" ] || fail "$1 is older than $newer: run make, or remove it"
}

# man_page NAME: prints --help of the installed program as a manual page
man_page() {
    printf '.TH %s 1 %s\n.SH NAME\n%s \\- train language models in FP8\n.SH DESCRIPTION\n.in 0\n.nf\n' \
        "$1" "$(date -r "$bin/$1" +%F)" "$1"
    "$root$prefix/bin/$1" --help | sed 's/\\/\\e/g; s/-/\\-/g; s/^/\\\&/'
}

# completion NAME: prints the bash completion of a program; completes flags and, as values of flags, file names
completion() {
    local flags
    flags=$("$root$prefix/bin/$1" --help=markdown | sed -n 's/^| `\(--[^`]*\)`.*/\1/p' |
        grep -oE -- '--[a-z0-9-]+' | paste -sd ' ')
    echo "complete -o default -W '$flags' $1"
}

install_all() {
    local name program generated sources
    [ -x "$bin/train_gpt2_fp8_cpu" ] || fail "there is no $bin/train_gpt2_fp8_cpu: run make first"
    sources=(train_gpt2_fp8.cu coat/*.[ch] coat/*/*.[ch] coat/*/*/*.c)
    check_current "$bin/train_gpt2_fp8_cpu" "${sources[@]}"
    [ ! -x "$bin/train_gpt2_fp8" ] || check_current "$bin/train_gpt2_fp8" "${sources[@]}" coat/cuda/*.cu coat/cuda/*/*
    if ! { mkdir -p "$root$own" && touch "$root$list"; } 2>/dev/null; then
        fail "$root$prefix cannot be written: try sudo make install, or make install PREFIX=\$HOME/.local"
    fi
    for name in prepare_bytes plot_loss quant_error gradient_stats gradient_stats_gpu; do
        [ ! -x "$build/$name" ] || put 755 "$build/$name" "$prefix/bin/coat-${name//_/-}"
    done
    generated=$(mktemp)
    trap 'rm -f "$generated"' RETURN
    for name in train_gpt2_fp8_cpu train_gpt2_fp8; do
        program=$bin/$name
        [ -x "$program" ] || continue
        put 755 "$program" "$prefix/bin/$name"
        man_page "$name" >"$generated"
        put 644 "$generated" "$prefix/share/man/man1/$name.1"
        completion "$name" >"$generated"
        put 644 "$generated" "$prefix/share/bash-completion/completions/$name"
    done
    for name in data/prepare*.py; do put 644 "$name" "$own/${name##*/}"; done
    cat >"$generated" <<'END'
#!/bin/sh
COAT_PROGRAM=${0##*/} exec python3 -B "$(dirname "$(readlink -f "$0")")/../lib/coat/prepare.py" "$@"
END
    put 755 "$generated" "$prefix/bin/coat-prepare"
}

uninstall_all() {
    local path paths
    [ -f "$root$list" ] || fail "nothing is installed in $root$prefix: $root$list is missing; use the PREFIX and" \
        "DESTDIR of make install"
    mapfile -t paths <"$root$list"
    for path in "${paths[@]}"; do
        case $path in "$prefix"/*[!/]) ;; *) continue ;; esac
        rm -f "$root$path" || fail "$root$path: cannot be removed; try sudo make uninstall"
        echo "  $root$path"
    done
    rm "$root$list"
    cd "$root/"
    for path in "${paths[@]}" "$list"; do
        path=${path%/*}
        rmdir -p --ignore-fail-on-non-empty "${path#/}" 2>/dev/null || true
    done
}

case ${1:-} in
install) install_all ;;
uninstall) uninstall_all ;;
*) fail "scripts/install.sh: the argument must be install or uninstall (is '${1:-}')" ;;
esac
