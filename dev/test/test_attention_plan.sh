#!/usr/bin/env bash
# Tests that cuDNN finds attention plans for kinds of GPUs that this machine lacks (test_attention_plan.cu). cuDNN loads
# a plan's kernels into the CUDA driver, which refuses code of missing GPUs. Therefore, this script replaces the driver
# by a library that accepts every call. With TEST_LONG, plans more shapes, and also with the oldest cuDNN for CUDA 13.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
program=$PWD/${BUILD:-build}/test_attention_plan_gpu
name="attention plans"
[ -x "$program" ] || { echo "skip - $name: not built: no nvcc, cuDNN or cuDNN frontend"; exit; }
linked=$(ldd "$program" | grep -oE 'lib(cudnn|nccl|nvrtc)\S*' | head -n 1)
linking="GPU programs are not linked with cuDNN, NCCL and NVRTC"
if [ -z "$linked" ]; then echo "ok - $linking"; else echo "not ok - $linking: $linked is linked"; fi
toolkit=$(dirname "$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")")/..
stub=$(compgen -G "$toolkit/lib*/stubs/libcuda.so" || compgen -G "$toolkit/targets/*/lib/stubs/libcuda.so") ||
    { echo "skip - $name: the CUDA toolkit contains no stubs/libcuda.so"; exit; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Functions that return a handle or a number must write it. The others only return success.
cat >"$folder/driver.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
static int handle;
static int accept_call(void) { return 0; }
int cuDriverGetVersion(int *version) { return *version = 13020, 0; }
int cuDeviceGetCount(int *count) { return *count = 0, 0; }
int cuLibraryLoadData(void **library) { return *library = &handle, 0; }
int cuLibraryGetKernel(void **kernel) { return *kernel = &handle, 0; }
int cuKernelGetFunction(void **function) { return *function = &handle, 0; }
int cuKernelGetAttribute(int *value) { return *value = 0, 0; }
int cuGetExportTable(void) { return 500; } /* CUDA_ERROR_NOT_FOUND */
int cuGetProcAddress_v2(const char *name, void **function) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) *function = (void *)accept_call;
    return 0;
}
int cuGetProcAddress(const char *name, void **function) { return cuGetProcAddress_v2(name, function); }
END
written=$(grep -oE '^int \w+' "$folder/driver.c" | cut -d' ' -f2)
nm -D --defined-only "${stub%%$'\n'*}" | awk '$2 == "T" { print $3 }' | grep -vxF "$written" |
    sed 's/.*/int &(void) { return 0; }/' >>"$folder/driver.c"
mkdir "$folder/lib"
gcc -shared -fPIC -o "$folder/lib/libcuda.so.1" "$folder/driver.c" || { echo "not ok - the library that replaces the driver compiles"; exit 1; }

mkdir "$folder/bad"
cat >"$folder/bad.c" <<'END'
static int handles;
unsigned long cudnnGetVersion(void) { return 91800; }
const char *cudnnGetErrorString(int status) { return status == 1 ? "the stream is bad" : "the handle was not destroyed"; }
int cudnnCreate(void **handle) { return *handle = &handles, handles++ ? 2 : 0; }
int cudnnDestroy(void *handle) { return handles--, handle != &handles; }
int cudnnSetStream(void) { return 1; }
END
gcc -shared -fPIC -o "$folder/bad/libcudnn.so.9" "$folder/bad.c" || { echo "not ok - the library that replaces cuDNN compiles"; exit 1; }
LD_LIBRARY_PATH=$folder/bad:$folder/lib "$program" handle 2>/dev/null || exit

LD_LIBRARY_PATH=$folder/lib "$program" || exit
[ -n "${TEST_LONG:-}" ] || exit 0
oldest=nvidia-cudnn-cu13==9.12.0.46
if python3 -m pip install --quiet --no-deps --no-compile --target "$folder/old" $oldest >"$folder/log" 2>&1; then
    LD_LIBRARY_PATH=$folder/lib:$folder/old/nvidia/cudnn/lib "$program"
else
    echo "skip - $name with $oldest: $(tail -n 1 "$folder/log")"
fi
