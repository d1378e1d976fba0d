#!/usr/bin/env bash
# Installs missing libraries and tools. Prints nothing if nothing is missing.
#
#   scripts/setup.sh           installs what `make` and `make run` need
#   scripts/setup.sh --python  also installs Python packages to third_party/python;
#                              data/prepare.py needs them for tokenizers and chat
#                              templates (data/requirements.txt)
#   scripts/setup.sh --all     also installs what mpirun, `make test` and `make
#                              check-format` need: Open MPI, cmocka, Python, Python
#                              packages (dev/test/requirements.txt), and others
#
# On Debian and Ubuntu, installs system packages if root runs the script; otherwise
# prints the command. If nvcc is installed, also downloads the headers of the cuDNN
# frontend to third_party/cudnn-frontend. Prints a line for everything that cannot be
# installed. The exit code is 1 if the build lacks a library or tool, or if --python
# could not install the Python packages.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/.."

level=${1:-}
case $level in
'' | --all | --python) ;;
*)
    echo "setup.sh: unknown argument $level; see scripts/setup.sh --help" >&2
    exit 1
    ;;
esac

has() { command -v "$1" >/dev/null 2>&1; }
# has_header NAME...: true if the C compiler finds these headers, included in this order.
has_header() { has gcc && printf '#include <%s>\n' "$@" | gcc -E -x c - >/dev/null 2>&1; }
has_libc() { has gcc && echo 'int main(void) { return 0; }' | gcc -x c - -o /dev/null >/dev/null 2>&1; }
has_pip() { python3 -m pip --version >/dev/null 2>&1; }

# Missing Debian packages. needed: nothing can be built without these packages; optional: all others.
needed=() optional=()
has gcc || needed+=(gcc)
has_libc || needed+=(libc6-dev)
has g++ || needed+=(g++)
has make || needed+=(make)
has_header jansson.h || needed+=(libjansson-dev)
has_header xxhash.h || needed+=(libxxhash-dev)
has_header cblas.h openblas_config.h || optional+=(libopenblas-dev)
if [ "$level" = --all ]; then
    has_header stdarg.h stddef.h stdint.h setjmp.h cmocka.h || optional+=(libcmocka-dev)
    has mpicc || optional+=(libopenmpi-dev)
    has mpirun || optional+=(openmpi-bin)
    has pkill || optional+=(procps)
    has man || has mandoc || has groff || optional+=(groff-base)
fi

# Folder of Python packages. data/prepare.py searches it after the installed packages, scripts/test.sh before them.
python=third_party/python requirements='' modules='tokenizers, sentencepiece, google.protobuf, tiktoken, jinja2'
case $level in
--python) requirements=data/requirements.txt ;;
--all)
    requirements=dev/test/requirements.txt
    modules+=', pyarrow, zstandard, matplotlib, tensorboard, transformers, clang_format'
    ;;
esac
if [ -n "$requirements" ]; then
    has python3 || optional+=(python3)
    ! PYTHONPATH=$python python3 -c "import $modules" >/dev/null 2>&1 || requirements=''
fi

# The Makefile searches CUDNN_FRONTEND, then third_party/, then the system's folders for the frontend's headers.
frontend=third_party/cudnn-frontend
need_frontend=
if [ -z "${CUDNN_FRONTEND:-}" ] && { has nvcc || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; } &&
    [ ! -f $frontend/include/cudnn_frontend.h ] && ! has_header cudnn_frontend_version.h; then
    need_frontend=yes
fi
[ -z "$requirements$need_frontend" ] || has_pip || optional+=(python3-pip)

log=$(mktemp) folder=
trap 'rm -rf "$log" "$folder"' EXIT
failed() { # WHAT CONSEQUENCE: prints one line, with the first error in the log
    local why='no connection'
    grep -q 'WARNING: Retrying' "$log" || why=$(grep -m 1 -E '^(W: Failed|E:|ERROR:)' "$log" || tail -n 1 "$log")
    echo "setup: $1 could not be installed ($why); $2" >&2
}

missing=("${needed[@]}" "${optional[@]}")
if [ ${#missing[@]} -gt 0 ]; then
    install="apt-get install -y --no-install-recommends ${missing[*]}"
    if ! has apt-get; then
        echo "setup: missing: ${missing[*]} (Debian's names); there is no apt-get, so install them with this system's" \
            "package manager" >&2
    elif [ "$(id -u)" != 0 ]; then
        echo "setup: missing: ${missing[*]}; as root, run: apt-get update && $install" >&2
    else
        echo "setup: apt-get update && $install"
        export DEBIAN_FRONTEND=noninteractive
        if { apt-get update; $install; } >"$log" 2>&1; then
            needed=()
        else
            failed "${missing[*]}" "check the network"
        fi
    fi
    [ ${#needed[@]} -eq 0 ] || exit 1
fi

# fetch COMMAND FLAG...: runs pip COMMAND, which accepts only wheels whose checksums are listed.
fetch() {
    PIP_ROOT_USER_ACTION=ignore \
        python3 -m pip "$@" --retries 2 --no-deps --only-binary=:all: --require-hashes >"$log" 2>&1
}

if [ -n "$requirements$need_frontend" ]; then
    mkdir -p third_party
    folder=$(mktemp -d third_party/.setup-XXXXXX)
fi
if [ -n "$need_frontend" ]; then
    # The headers are the same in the wheels of all Pythons and processors, so one wheel serves every machine.
    wheel="nvidia-cudnn-frontend==1.32.0 --hash=sha256:8b354a8e550c083eb247f1eb39a7d69a4a269075f5a01e4fcbd2531680b17239"
    echo "setup: pip download ${wheel%% *}, moving its include/ to $frontend"
    if fetch download --platform manylinux_2_28_x86_64 --python-version 3.12 --dest "$folder" -r /dev/stdin \
        <<<"$wheel" && python3 -m zipfile -e "$folder"/*.whl "$folder/wheel"; then
        mkdir -p $frontend
        rm -rf $frontend/include
        mv "$folder/wheel/include" $frontend/include
    else
        failed "the cuDNN frontend" "train_gpt2_fp8 will not be built"
    fi
fi

if [ -n "$requirements" ]; then
    echo "setup: pip install -r $requirements, into $python"
    if fetch install --no-compile --target "$folder/python" -r $requirements; then
        rm -rf $python
        mv "$folder/python" $python
    else
        failed "the packages of $requirements" "$python is unchanged"
        [ "$level" != --python ] || exit 1
    fi
fi
