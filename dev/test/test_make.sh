#!/usr/bin/env bash
# Tests which modules `make` puts into its archives, for which GPUs it builds, and which libraries it finds. A program
# that replaces nvidia-smi reports the machine's GPUs.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL CUDA GPU
. dev/test/program_fixture.sh

sources() { # NAME...: prints the paths of these modules
    local name
    for name in "$@"; do find coat -name "$name.c"; done | paste -sd ' '
}

# holds NAME ARCHIVE VARIABLE GOAL...: sets make's VARIABLE to a list of modules that grows and shrinks, and builds GOAL.
# Checks that ARCHIVE then contains exactly these modules.
holds() {
    local name=$1 archive=$2 variable=$3 list found
    shift 3
    for list in error json "error json lock" "error lock"; do
        make BUILD="$folder/build" FUZZ_BUILD="$folder/fuzz" FUZZ_NAMES= CUDA=0 MPI=0 OPENBLAS=0 \
            "$variable=$(sources $list)" "$@" >"$folder/said" 2>&1
        found=$(ar t "$archive" 2>&1 | sed 's/\.o$//' | paste -sd ' ')
        [ "$found" = "$list" ]; check "$name: $list" $? "contains '$found'" "$(cat "$folder/said")"
    done
}
holds "make rebuilds lib.a when the list of modules changes" "$folder/build/cpu/lib.a" MODULES "$folder/build/cpu/lib.a"
# goals that build nothing must not change the recorded flags
make BUILD="$folder/build" MODULES="$(sources error lock)" help >/dev/null
make -n WERROR=1 BUILD="$folder/build" CUDA=0 MPI=0 OPENBLAS=0 MODULES="$(sources error lock)" tests >/dev/null 2>&1
again=$(make -q BUILD="$folder/build" CUDA=0 MPI=0 OPENBLAS=0 MODULES="$(sources error lock)" "$folder/build/cpu/lib.a" 2>&1)
check "make help and make -n do not make objects outdated" $? "$again"
# make must not remove intermediate objects that the next make needs
removed=$(make -n BUILD="$folder/none" CUDA=0 MPI=0 OPENBLAS=0 tools tests 2>&1 | grep '^rm [^-]')
empty "make keeps intermediate objects" "${removed:0:200}"
if echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null; then
    holds "make rebuilds the fuzz targets' archive when the list changes" "$folder/fuzz/lib.a" FUZZ_MODULES fuzz-targets "$folder/fuzz/lib.a"
else
    echo "skip - the fuzz targets' archive: no clang with libFuzzer"
fi

# The remaining tests use a fake nvcc and fake libraries, so they need no CUDA.
fake() { # FILE TEXT: writes a file below $folder
    mkdir -p "$(dirname "$folder/$1")"
    printf '%s\n' "$2" >"$folder/$1"
}
# toolkit FOLDER RELEASE GXX CODE...: creates a CUDA toolkit that accepts g++ up to GXX and knows these architectures
toolkit() {
    fake "$1/bin/nvcc" "#!/bin/sh
case \$* in *--version*) echo 'release $2, V$2.0' ;; *--dryrun*) echo '#\$ TOP=$folder/$1/bin/..' >&2 ;;
*--list-gpu-code*) printf 'sm_%s\n' ${*:4} ;; esac"
    chmod +x "$folder/$1/bin/nvcc"
    fake "$1/${INCLUDE:-include}/crt/host_config.h" "#if __GNUC__ > $3"
    mkdir -p "$folder/$1/${LIB:-lib64}"
}
toolkit cuda 13.0 15 75 80 86 89 90 100 110 120

object=$folder/build/gpu/coat/cuda/plain/plain_norm.o
all='80 89 90a 100 120 compute_90'

# kinds FLAG...: prints the GPU architectures that a kernel is compiled for
kinds() {
    PATH="$folder:$PATH" make -n -B V=1 BUILD="$folder/build" MPI=0 OPENBLAS=0 NVCC="$folder/cuda/bin/nvcc" "$@" "$object" 2>&1 |
        grep -o 'code=[a-z]*_[0-9a-z]*' | sed 's/^code=//; s/^sm_//' | tr '\n' ' ' | sed 's/ $//'
}
# builds NAME EXPECTED OUTPUT [FLAG...]: checks that make builds for the architectures EXPECTED if nvidia-smi prints
# OUTPUT
builds() {
    printf '#!/bin/sh\ncat <<END\n%s\nEND\n' "$3" >"$folder/nvidia-smi"
    chmod +x "$folder/nvidia-smi"
    is "$1" "$(kinds "${@:4}")" "$2"
}

builds "make builds for this machine's GPU" 90a 9.0
builds "make builds once for each kind of GPU" '80 90a 120' $'9.0\n8.0\n12.0\n9.0'
builds "GPU=native builds for this machine's GPU" 90a 9.0 GPU=native
builds "GPU=all builds for all GPUs" "$all" 9.0 GPU=all
builds "GPU=89 builds for another GPU" 89 9.0 GPU=89
builds "GPU=90 builds for 90a" 90a 8.0 GPU=90
builds "GPU=ptx89 builds only PTX" compute_89 9.0 GPU=ptx89
builds "GPU may list code and PTX" '90a compute_80' 9.0 GPU='90 ptx80'
builds "without a GPU, make builds for all GPUs" "$all" 'No devices were found'
builds "without a GPU, GPU=native builds for all GPUs" "$all" '[N/A]' GPU=native
builds "with a GPU that is too old, make builds for all GPUs" "$all" 7.5
builds "with a GPU unknown to nvcc, make builds for all GPUs" "$all" 12.1
toolkit cuda12.4 12.4 13 75 80 86 89 90
builds "GPU=all builds for the GPUs that an older nvcc knows" '80 89 90a compute_90' 9.0 GPU=all NVCC="$folder/cuda12.4/bin/nvcc"
builds "with a Blackwell unknown to nvcc, make builds PTX" '80 89 90a compute_90' 12.0 NVCC="$folder/cuda12.4/bin/nvcc"

# found VALUE FLAG...: prints the report of scripts/find.mk and VALUE, without the temporary folder's path
found() {
    printf 'CC = gcc\nCXX = g++\nGOALS = all\ninclude scripts/find.mk\n$(info value $(strip %s))\nall:\n' "$1" |
        make -f - OPENBLAS=0 MPI=0 "${@:2}" 2>&1 | sed "s|$folder/||g"
}
finds() { is "$1" "$(found "${@:3}" | grep '^value ')" "value $2"; } # NAME EXPECTED VALUE FLAG...: checks VALUE
misses() { has "$1" "$(found '' "${@:3}")" "^missing *nvcc: .*$2"; } # NAME PATTERN FLAG...: checks the reason why nvcc is missing
header() { fake "$1" "$(printf '#define %s_MAJOR %s\n#define %s_MINOR %s' "$2" "$3" "$2" "$4")"; } # FILE PREFIX MAJOR MINOR

has "a compiler other than gcc is named as missing gcc" "$(found '' CC=false)" 'without gcc \(CC=false\);'
toolkit cuda11.8 11.8 11 80 86
toolkit cuda12.10 12.10 14 80
toolkit strict 12.8 3 80 # accepts no current g++
misses "an nvcc that is too old is named" 'CUDA 11.8, but 12.4 or later' CUDA_HOME="$folder/cuda11.8"
misses "a g++ that is too new for nvcc is named" 'CXX=g\+\+-3' CUDA_HOME="$folder/strict"
finds "CUDA 12.4 is accepted" 12.4 '$(FOUND_NVCC)' CUDA_HOME="$folder/cuda12.4"
finds "CUDA 12.10 is later than 12.4" 12.10 '$(FOUND_NVCC)' CUDA_HOME="$folder/cuda12.10"
finds "the g++ that CUDA names is accepted" 12.4 '$(FOUND_NVCC)' CUDA_HOME="$folder/cuda12.4" FOUND_CXX=13.3.0

header cuda/include/cudnn_version.h CUDNN 9 1
header cuda/include/nccl.h NCCL 2 1
header cudnn/include/cudnn_version.h CUDNN 9 14
header nccl/include/nccl.h NCCL 2 28
header cudnn8/include/cudnn_version.h CUDNN 8 9
mkdir -p "$folder/cudnn/lib64" "$folder/nccl/lib"
homes=(CUDA_HOME="$folder/cuda" CUDNN_HOME="$folder/cudnn" NCCL_HOME="$folder/nccl")
finds "CUDNN_HOME and NCCL_HOME precede CUDA's own folders" '9.14 2.28 -Icudnn/include -Inccl/include -isystem cuda/include' \
    '$(FOUND_CUDNN) $(FOUND_NCCL) $(filter-out third_party%,$(CUDA_INCLUDES))' "${homes[@]}" CUDNN_FRONTEND=
finds "without CUDNN_HOME and NCCL_HOME, CUDA's own folders are searched" '9.1 2.1' '$(FOUND_CUDNN) $(FOUND_NCCL)' CUDA_HOME="$folder/cuda"
finds "cuDNN and NCCL are not linked, because the program loads them" '' '$(filter %cudnn.so.9 %nccl.so.2 -lcudnn -lnccl,$(CUDA_LIBS))' "${homes[@]}"
finds "cuDNN 8 is not accepted" '' '$(FOUND_CUDNN)' CUDA_HOME="$folder/cuda" CUDNN_HOME="$folder/cudnn8"
finds "CUDNN_HOME=/usr adds no include folder" '-isystem cuda/include' '$(CUDA_INCLUDES)' CUDA_HOME="$folder/cuda" CUDNN_HOME=/usr CUDNN_FRONTEND=
INCLUDE=targets/x86_64-linux/include LIB=targets/x86_64-linux/lib toolkit conda 12.9 14 80
mkdir -p "$folder/conda/include" "$folder/conda/lib"
finds "conda's folders are found" '12.9 -isystem conda/include -isystem conda/targets/x86_64-linux/include -Lconda/lib -Lconda/targets/x86_64-linux/lib' \
    '$(FOUND_NVCC) $(CUDA_INCLUDES) $(filter -L%,$(CUDA_LIBS))' CUDA_HOME="$folder/conda" CUDNN_FRONTEND=

header frontend/cudnn_frontend_version.h CUDNN_FRONTEND 1 32
sed -i 's/M[AI][JN]OR/&_VERSION/' "$folder/frontend/cudnn_frontend_version.h"
is "programs search the folders of cuDNN, NCCL and CUDA for libraries" \
    "$(make -n V=1 BUILD="$folder/build" MPI=0 OPENBLAS=0 "${homes[@]}" CUDNN_FRONTEND="$folder/frontend" train_gpt2_fp8 2>&1 |
        grep -o 'rpath=[^ ]*' | sed "s|$folder/||g" | sort -u)" 'rpath=cudnn/lib64:nccl/lib:cuda/lib64'
exit $failures
