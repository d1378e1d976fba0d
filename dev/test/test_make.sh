#!/usr/bin/env bash
# Tests which modules `make` puts into its archives, and for which GPUs it builds. A program that replaces nvidia-smi
# reports the machine's GPUs.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL GPU
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

sources() { # NAME...: prints the paths of these modules
    local name
    for name in "$@"; do find coat -name "$name.c"; done | paste -sd ' '
}

# holds ...: checks that an archive contains exactly the listed modules after the list grows and shrinks.
holds() { # NAME ARCHIVE VARIABLE GOAL...
    local name=$1 archive=$2 variable=$3 list found
    shift 3
    for list in error json "error json lock" "error lock"; do
        make BUILD="$folder/build" FUZZ_BUILD="$folder/fuzz" FUZZ_NAMES= CUDA=0 MPI=0 OPENBLAS=0 \
            "$variable=$(sources $list)" "$@" >"$folder/said" 2>&1
        found=$(ar t "$archive" 2>&1 | sed 's/\.o$//' | paste -sd ' ')
        if [ "$found" = "$list" ]; then echo "ok - $name: $list"; else
            echo "not ok - $name: $list"
            echo "    holds '$found'; make said: $(cat "$folder/said")"
            failures=1
        fi
    done
}
holds "make rebuilds lib.a when the list of modules changes" "$folder/build/cpu/lib.a" MODULES "$folder/build/cpu/lib.a"
# goals that build nothing must not change the recorded flags
make BUILD="$folder/build" MODULES="$(sources error lock)" help >/dev/null
make -n WERROR=1 BUILD="$folder/build" CUDA=0 MPI=0 OPENBLAS=0 MODULES="$(sources error lock)" tests >/dev/null 2>&1
again=$(make -q BUILD="$folder/build" CUDA=0 MPI=0 OPENBLAS=0 MODULES="$(sources error lock)" "$folder/build/cpu/lib.a" 2>&1)
if [ $? -eq 0 ]; then echo "ok - make help and make -n do not make objects outdated"; else
    echo "not ok - make help and make -n do not make objects outdated"
    echo "    $again"
    failures=1
fi
# make must not remove intermediate objects that the next make needs
removed=$(make -n BUILD="$folder/none" CUDA=0 MPI=0 OPENBLAS=0 tools tests 2>&1 | grep '^rm [^-]')
if [ -z "$removed" ]; then echo "ok - make keeps intermediate objects"; else
    echo "not ok - make keeps intermediate objects"
    echo "    ${removed:0:200}"
    failures=1
fi
holds "make rebuilds the fuzz targets' archive when the list changes" "$folder/fuzz/lib.a" FUZZ_MODULES fuzz-targets "$folder/fuzz/lib.a"

object=$folder/build/gpu/coat/cuda/plain/plain_norm.o
all='80 89 90a compute_90'

# kinds FLAG...: prints the GPU architectures that a kernel is compiled for
kinds() {
    PATH="$folder:$PATH" make -n -B V=1 BUILD="$folder/build" "$@" "$object" 2>&1 |
        grep -o 'code=[a-z]*_[0-9a-z]*' | sed 's/^code=//; s/^sm_//' | tr '\n' ' ' | sed 's/ $//'
}
# builds NAME EXPECTED DRIVER_OUTPUT [FLAG...]
builds() {
    local found
    printf '#!/bin/sh\ncat <<END\n%s\nEND\n' "$3" >"$folder/nvidia-smi"
    chmod +x "$folder/nvidia-smi"
    found=$(kinds "${@:4}")
    if [ "$found" = "$2" ]; then echo "ok - $1"; else
        echo "not ok - $1"
        echo "    wanted '$2', found '$found'"
        failures=1
    fi
}

if [ -z "$(kinds GPU=90a)" ]; then
    echo "skip - kinds of GPUs: no nvcc, or nothing to build for them"
    exit
fi
builds "make builds for this machine's GPU" 90a 9.0
builds "make builds once for each kind of GPU" '80 90a' $'9.0\n8.0\n9.0'
builds "GPU=native builds for this machine's GPU" 90a 9.0 GPU=native
builds "GPU=all builds for all GPUs" "$all" 9.0 GPU=all
builds "GPU=89 builds for another GPU" 89 9.0 GPU=89
builds "GPU=90 builds for 90a" 90a 8.0 GPU=90
builds "without a GPU, make builds for all GPUs" "$all" 'No devices were found'
builds "without a GPU, GPU=native builds for all GPUs" "$all" '[N/A]' GPU=native
builds "with a GPU that is too old, make builds for all GPUs" "$all" 7.5
builds "with a GPU unknown to nvcc, make builds for all GPUs" "$all" 99.0
exit $failures
