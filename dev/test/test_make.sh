#!/usr/bin/env bash
# What `make` puts into its archives, and for which GPUs it builds: those of the machine, which a program in the place of
# nvidia-smi makes up here.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL GPU
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

sources() { # NAME...: the modules of these names
    local name
    for name in "$@"; do find coat -name "$name.c"; done | paste -sd ' '
}

# An archive holds what is listed: also a module that was there before it and is listed now, and none that is not any more.
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
holds "the modules' archive" "$folder/build/cpu/lib.a" MODULES "$folder/build/cpu/lib.a"
# what builds nothing leaves nothing to be made again
make BUILD="$folder/build" MODULES="$(sources error lock)" help >/dev/null
make -n WERROR=1 BUILD="$folder/build" CUDA=0 MPI=0 OPENBLAS=0 MODULES="$(sources error lock)" tests >/dev/null 2>&1
again=$(make -q BUILD="$folder/build" CUDA=0 MPI=0 OPENBLAS=0 MODULES="$(sources error lock)" "$folder/build/cpu/lib.a" 2>&1)
if [ $? -eq 0 ]; then echo "ok - make help and make -n leave the objects as they are"; else
    echo "not ok - make help and make -n leave the objects as they are"
    echo "    $again"
    failures=1
fi
# nor does it remove objects that the next make would need
removed=$(make -n BUILD="$folder/none" CUDA=0 MPI=0 OPENBLAS=0 tools tests 2>&1 | grep '^rm [^-]')
if [ -z "$removed" ]; then echo "ok - objects are kept"; else
    echo "not ok - objects are kept"
    echo "    ${removed:0:200}"
    failures=1
fi
holds "the fuzzers' archive" "$folder/fuzz/lib.a" FUZZ_MODULES fuzz-targets "$folder/fuzz/lib.a"

object=$folder/build/gpu/coat/cuda/plain/plain_norm.o
all='80 89 90a compute_90'

# kinds FLAG...: those that a kernel is compiled for
kinds() {
    PATH="$folder:$PATH" make -n -B V=1 BUILD="$folder/build" "$@" "$object" 2>&1 |
        grep -o 'code=[a-z]*_[0-9a-z]*' | sed 's/^code=//; s/^sm_//' | tr '\n' ' ' | sed 's/ $//'
}
# builds NAME WANTED WHAT_THE_DRIVER_SAYS [FLAG...]
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
builds "this machine's kind" 90a 9.0
builds "each of its kinds once" '80 90a' $'9.0\n8.0\n9.0'
builds "GPU=native is the same" 90a 9.0 GPU=native
builds "GPU=all is for all" "$all" 9.0 GPU=all
builds "another kind by name" 89 9.0 GPU=89
builds "Hopper by either name" 90a 8.0 GPU=90
builds "no GPU: for all" "$all" 'No devices were found'
builds "and GPU=native there" "$all" '[N/A]' GPU=native
builds "one that is too old" "$all" 7.5
builds "one that nvcc does not know" "$all" 99.0
exit $failures
