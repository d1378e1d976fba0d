// Loads cuDNN and NCCL when their first function is called. Therefore the program starts without these libraries. If a
// library is missing, only a run that needs this library fails or prints a warning. This file defines every cuDNN and
// NCCL function that the program calls. If a library is missing, these functions return an error status. Those that
// return an error message return the reason why the library could not be loaded.
#include "cuda/attention/attention.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <stdint.h>
#include <stdio.h>
#ifdef COAT_NCCL
#include <nccl.h>
#endif

#define TEXT_OF(x) #x
#define NUMBER_OF(x) TEXT_OF(x)
#define CUDNN "libcudnn.so." NUMBER_OF(CUDNN_MAJOR)
#define NCCL "libnccl.so.2"

static char missing_why[256]; // why the latest missing library or function could not be loaded

// Returns the address of a library's function, or NULL. Libraries stay loaded until the process ends.
static void *find(const char *library, const char *function) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL), *address = handle ? dlsym(handle, function) : NULL;
    if (!address) snprintf(missing_why, sizeof missing_why, "%s", dlerror());
    return address;
}

// Returns the result of a call whose library or function is missing: an error status, the reason as text, or 0.
template <typename R> static R missing();
template <> cudnnStatus_t missing() {
    return CUDNN_STATUS_NOT_INITIALIZED;
}
template <> const char *missing() {
    return missing_why;
}
template <> size_t missing() {
    return 0;
}
template <> void missing() {}

// Defines the function `name`. The first call loads the library and looks up the library's function of the same name.
// Every call forwards its arguments to the library's function.
#define FORWARD(library, result, name, parameters, arguments)                                                          \
    extern "C" result name parameters {                                                                                \
        static const auto function = (decltype(&name))find(library, #name);                                            \
        return function ? function arguments : missing<result>();                                                      \
    }

FORWARD(CUDNN, size_t, cudnnGetVersion, (), ())
FORWARD(CUDNN, const char *, cudnnGetErrorString, (cudnnStatus_t a), (a))
FORWARD(CUDNN, void, cudnnGetLastErrorString, (char *a, size_t b), (a, b))
FORWARD(CUDNN, cudnnStatus_t, cudnnCreate, (cudnnHandle_t * a), (a))
FORWARD(CUDNN, cudnnStatus_t, cudnnDestroy, (cudnnHandle_t a), (a))
FORWARD(CUDNN, cudnnStatus_t, cudnnSetStream, (cudnnHandle_t a, cudaStream_t b), (a, b))
FORWARD(CUDNN, cudnnStatus_t, cudnnGetStream, (cudnnHandle_t a, cudaStream_t *b), (a, b))
typedef cudnnBackendDescriptor_t Descriptor;
FORWARD(CUDNN, cudnnStatus_t, cudnnBackendCreateDescriptor, (cudnnBackendDescriptorType_t a, Descriptor *b), (a, b))
FORWARD(CUDNN, cudnnStatus_t, cudnnBackendDestroyDescriptor, (Descriptor a), (a))
FORWARD(CUDNN, cudnnStatus_t, cudnnBackendFinalize, (Descriptor a), (a))
FORWARD(CUDNN, cudnnStatus_t, cudnnBackendExecute, (cudnnHandle_t a, Descriptor b, Descriptor c), (a, b, c))
FORWARD(CUDNN, cudnnStatus_t, cudnnBackendSetAttribute,
        (Descriptor a, cudnnBackendAttributeName_t b, cudnnBackendAttributeType_t c, int64_t d, const void *e),
        (a, b, c, d, e))
FORWARD(CUDNN, cudnnStatus_t, cudnnBackendGetAttribute,
        (Descriptor const a, cudnnBackendAttributeName_t b, cudnnBackendAttributeType_t c, int64_t d, int64_t *e,
         void *f),
        (a, b, c, d, e, f))

const char *libraries_load_nvrtc(void) {
    char name[32];
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    return dlopen(name, RTLD_NOW | RTLD_LOCAL) ? NULL : dlerror();
}

// Stubs of the NVRTC functions that the cuDNN frontend's headers call to compile kernels. This program requests no such
// kernels. The cuDNN library itself calls the real NVRTC, not these stubs.
#define UNUSED(name, ...)                                                                                              \
    extern "C" nvrtcResult name(__VA_ARGS__) {                                                                         \
        return NVRTC_ERROR_INTERNAL_ERROR;                                                                             \
    }
typedef const char *const *Texts;
UNUSED(nvrtcCreateProgram, nvrtcProgram *, const char *, const char *, int, Texts, Texts)
UNUSED(nvrtcDestroyProgram, nvrtcProgram *)
UNUSED(nvrtcCompileProgram, nvrtcProgram, int, Texts)
UNUSED(nvrtcGetCUBIN, nvrtcProgram, char *)
UNUSED(nvrtcGetCUBINSize, nvrtcProgram, size_t *)
UNUSED(nvrtcGetProgramLog, nvrtcProgram, char *)
UNUSED(nvrtcGetProgramLogSize, nvrtcProgram, size_t *)

#ifdef COAT_NCCL
template <> ncclResult_t missing() {
    return ncclSystemError;
}
typedef ncclDataType_t Type;
typedef ncclComm_t Ranks;
typedef cudaStream_t Stream;
FORWARD(NCCL, ncclResult_t, ncclGetVersion, (int *a), (a))
FORWARD(NCCL, const char *, ncclGetErrorString, (ncclResult_t a), (a))
FORWARD(NCCL, const char *, ncclGetLastError, (Ranks a), (a))
FORWARD(NCCL, ncclResult_t, ncclGetUniqueId, (ncclUniqueId * a), (a))
FORWARD(NCCL, ncclResult_t, ncclCommInitRank, (Ranks * a, int b, ncclUniqueId c, int d), (a, b, c, d))
FORWARD(NCCL, ncclResult_t, ncclCommDestroy, (Ranks a), (a))
FORWARD(NCCL, ncclResult_t, ncclCommGetAsyncError, (Ranks a, ncclResult_t *b), (a, b))
FORWARD(NCCL, ncclResult_t, ncclGroupStart, (), ())
FORWARD(NCCL, ncclResult_t, ncclGroupEnd, (), ())
FORWARD(NCCL, ncclResult_t, ncclAllReduce, (const void *a, void *b, size_t c, Type d, ncclRedOp_t e, Ranks f, Stream g),
        (a, b, c, d, e, f, g))
FORWARD(NCCL, ncclResult_t, ncclReduceScatter,
        (const void *a, void *b, size_t c, Type d, ncclRedOp_t e, Ranks f, Stream g), (a, b, c, d, e, f, g))
FORWARD(NCCL, ncclResult_t, ncclAllGather, (const void *a, void *b, size_t c, Type d, Ranks e, Stream f),
        (a, b, c, d, e, f))
FORWARD(NCCL, ncclResult_t, ncclSend, (const void *a, size_t b, Type c, int d, Ranks e, Stream f), (a, b, c, d, e, f))
FORWARD(NCCL, ncclResult_t, ncclRecv, (void *a, size_t b, Type c, int d, Ranks e, Stream f), (a, b, c, d, e, f))
#endif
