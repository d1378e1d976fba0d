#!/usr/bin/env bash
# Installs what the build needs and this machine lacks; says nothing when there is
# nothing to do.
#
#   scripts/setup.sh           what `make` and `make run` need
#   scripts/setup.sh --tests   also what `make test` needs
#   scripts/setup.sh --all     also what is optional: MPI, clang-format, the SVG
#                              renderer, what --python installs
#   scripts/setup.sh --python  what data/prepare.py reads tokenizers and chat
#                              templates with, to third_party/python: tokenizers,
#                              sentencepiece, protobuf, tiktoken, jinja2
#
# On Debian and Ubuntu as root it installs packages; elsewhere it prints the
# commands and ends with 1. Where nvcc is, it also fetches the headers of the
# cuDNN frontend (a Python package, of which only the headers are kept).
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."

level=${1:-}
case $level in
'' | --tests | --all | --python) ;;
*)
    echo "setup.sh: unknown argument $level; see the head of scripts/setup.sh" >&2
    exit 1
    ;;
esac

has() { command -v "$1" >/dev/null 2>&1; }
# has_header NAME...: whether the C compiler finds them, included in this order.
has_header() { has gcc && printf '#include <%s>\n' "$@" | gcc -E -x c - >/dev/null 2>&1; }
has_libc() { has gcc && echo 'int main(void) { return 0; }' | gcc -x c - -o /dev/null >/dev/null 2>&1; }

missing=()
need() { missing+=("$@"); }

has gcc || need gcc
has_libc || need libc6-dev
has g++ || need g++
has make || need make
has_header cblas.h openblas_config.h || need libopenblas-dev
has_header jansson.h || need libjansson-dev
has_header xxhash.h || need libxxhash-dev
if [ "$level" = --tests ] || [ "$level" = --all ]; then
    has_header stdarg.h stddef.h stdint.h setjmp.h cmocka.h || need libcmocka-dev
    has python3 || need python3
fi
if [ "$level" = --all ]; then
    has mpicc || need libopenmpi-dev
    has mpirun || need openmpi-bin
    has pkill || need procps
    has clang-format || need clang-format
    has rsvg-convert || need librsvg2-bin
fi

# Python's packages go where data/prepare.py looks after those that are installed.
packages=() python=third_party/python
if [ "$level" = --python ] || [ "$level" = --all ]; then
    has python3 || need python3
    for package in tokenizers sentencepiece protobuf:google.protobuf tiktoken jinja2; do
        PYTHONPATH=$python python3 -c "import ${package#*:}" 2>/dev/null || packages+=("${package%:*}")
    done
    [ ${#packages[@]} -eq 0 ] || python3 -m pip --version >/dev/null 2>&1 || need python3-pip
fi

# The frontend's headers: third_party/ is where the Makefile looks after CUDNN_FRONTEND and before the system.
frontend=third_party/cudnn-frontend
need_frontend=
if [ -z "${CUDNN_FRONTEND:-}" ] && { has nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } &&
    [ ! -f $frontend/include/cudnn_frontend.h ] && ! has_header cudnn_frontend_version.h; then
    need_frontend=yes
    python3 -m pip --version >/dev/null 2>&1 || need python3-pip
fi

if [ ${#missing[@]} -gt 0 ]; then
    install="apt-get install -y --no-install-recommends ${missing[*]}"
    if ! has apt-get; then
        echo "This machine has no apt-get. Install what these Debian packages contain: ${missing[*]}" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        printf 'Missing: %s. As root, run:\n  apt-get update\n  %s\n' "${missing[*]}" "$install" >&2
        exit 1
    fi
    echo "setup: apt-get update && $install"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    if ! { apt-get update && $install; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        echo "setup: the installation failed" >&2
        exit 1
    fi
    rm -f "$log"
fi

# Not fatal: without it everything but the GPU's program is built.
if [ -n "$need_frontend" ]; then
    fetch="python3 -m pip download --quiet --no-deps --only-binary=:all: nvidia-cudnn-frontend>=1.12"
    echo "setup: $fetch, its include/ to $frontend"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    if $fetch --dest "$folder" && python3 -m zipfile -e "$folder"/*.whl "$folder/wheel"; then
        mkdir -p $frontend
        rm -rf $frontend/include
        mv "$folder/wheel/include" $frontend/include
    else
        echo "setup: could not fetch the cuDNN frontend; the GPU's program will not be built" >&2
    fi
fi

if [ ${#packages[@]} -gt 0 ]; then
    # regex is what tiktoken imports, markupsafe what jinja2 does; tokenizers needs nothing else to read files
    case " ${packages[*]} " in *" tiktoken "*) packages+=(regex) ;; esac
    case " ${packages[*]} " in *" jinja2 "*) packages+=(markupsafe) ;; esac
    fetch="python3 -m pip install --quiet --root-user-action=ignore --no-deps --only-binary=:all:"
    fetch+=" --target $python ${packages[*]}"
    echo "setup: $fetch"
    if ! $fetch; then
        echo "setup: could not fetch ${packages[*]}; data/prepare.py works with what is installed, and with bytes" >&2
        [ "$level" != --python ] || exit 1
    fi
fi
