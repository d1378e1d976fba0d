#!/usr/bin/env bash
# Tests that GPU code compiles for the architectures of GPU=all other than 9.0. Compiles the kernels whose code depends
# on the architecture, each form of the code once. With TEST_LONG, compiles these kernels for all the architectures, all
# kernels for one architecture (another one every day), and all GPU code with the headers of CUDA 12.4 and 12.8.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
unset MAKEFLAGS MFLAGS MAKELEVEL GPU
failures=0

case " ${MAKE_FLAGS:-} CUDA=${CUDA:-} " in *" CUDA=0 "*) echo "skip - other architectures: CUDA=0"; exit ;; esac
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
known=$("$nvcc" --list-gpu-code 2>/dev/null) || { echo "skip - other architectures: no nvcc"; exit; }
available() { # CODE...: prints, in one line, those of the architectures CODE... that nvcc knows
    local code found=()
    for code in "$@"; do ! grep -qx "sm_$code" <<<"$known" || found+=("$code"); done
    echo "${found[*]}"
}
all=$(available 80 89 100 120)

# compiles NAME FOLDER FLAG... GOAL...: checks that make builds these goals, which are paths below FOLDER/gpu
compiles() {
    local output
    if output=$(make WERROR=1 BUILD="$2" "${@:3}" 2>&1); then echo "ok - $1"; else
        echo "not ok - $1"
        grep -E 'error|warning' <<<"$output" | head -n 20 | sed 's/^/    /'
        failures=1
    fi
}

# These files contain or include all code that depends on the architecture. The code has three forms: one for 8.0, one
# for 8.9, in which only FP8 casts differ, and one for 10.0 and 12.0.
build=build/architectures
kernels() { # FOLDER ARCHITECTURES FILE...: checks that these files compile for these architectures
    local files=("${@:3}")
    files=("${files[@]/#/$1/gpu/coat/cuda/}")
    compiles "kernels compile for $2: ${*:3}" "$1" GPU="$2" "${files[@]/%/.o}"
}
if [ -z "${TEST_LONG:-}" ]; then
    kernels $build "$(available 80 120)" attention/attention_forward attention/attention_backward plain/cuda_loss
    kernels $build/fp8 "$(available 80 89 120)" fp8/fp8_quantize
    exit $failures
fi
kernels $build/all "$all" attention/attention_forward attention/attention_backward fp8/fp8_quantize plain/cuda_loss
read -r -a architectures <<<"$all"
one=${architectures[$(($(date +%s) / 86400 % ${#architectures[@]}))]}
kernels=(coat/cuda/*.cu coat/cuda/*/*.cu)
compiles "all kernels compile for $one" $build/$one -j"$(nproc)" GPU="$one" KERNELS="${kernels[*]}" $build/$one/gpu/kernels.a

# with_headers CUDA PACKAGE...: compiles all GPU code to PTX with headers of Python packages. CUDNN_HOME puts them before
# those of the installed CUDA.
with_headers() {
    local folder=$build/$1 name="GPU code compiles with the headers of CUDA $1"
    if [ ! -d "$folder/include" ]; then
        if ! python3 -m pip install --quiet --no-deps --no-compile --target "$folder.new" "${@:2}" >"$folder.log" 2>&1; then
            echo "skip - $name: $(tail -n 1 "$folder.log")"
            return
        fi
        mkdir -p "$folder/new"
        cp -r "$folder".new/nvidia/*/include/. "$folder/new"
        mv "$folder/new" "$folder/include"
        rm -rf "$folder.new"
    fi
    compiles "$name" "$folder" -j"$(nproc)" CUDNN_HOME="$folder" GENCODE='-gencode arch=compute_90a,code=compute_90a' "$folder/gpu/kernels.a"
}
with_headers 12.4 nvidia-{cuda-runtime,nvtx,cuda-nvrtc}-cu12==12.4.127 nvidia-cublas-cu12==12.4.5.8 nvidia-cuda-cccl-cu12==12.8.90
with_headers 12.8 nvidia-{cuda-runtime,nvtx,cuda-cccl}-cu12==12.8.90 nvidia-cublas-cu12==12.8.4.1 nvidia-cuda-nvrtc-cu12==12.8.93
exit $failures
