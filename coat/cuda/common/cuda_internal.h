// What the files of the CUDA backend share: the backend's state and the checks around CUDA calls.
// Included by CUDA files only.
//
// Everything runs on one stream, in the order of the calls. Exec.workspace belongs to the operation that is
// running, as a whole; nothing in it survives from one operation to the next. Operations may be recorded into a
// CUDA graph: they neither allocate, nor wait for the device, nor read host memory that changes later. What
// differs from step to step is in StepState, in device memory.
#pragma once
#include "ops.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

struct MatmulState;    // cuda_matmul.cu
struct AttentionState; // attention.h
struct Staging;        // cuda_exec.cu

#define MAX_REPLAYS 16                                    // recordings (CUDA graphs) a run may have
#define MATMUL_WORKSPACE_BYTES ((size_t)32 * 1024 * 1024) // what cuBLASLt wants on Hopper

typedef enum { REPLAY_COLD, REPLAY_WARM, REPLAY_RECORDED } ReplayStage;

typedef struct {
    ReplayStage stage; // cold: never run; warm: run once, so that libraries have loaded what they need
    cudaGraphExec_t graph;
} Replay;

// What the blocks of a pass find together: the largest magnitude so far, and how many blocks were there.
typedef struct {
    uint32_t maximum;
    unsigned blocks;
} BlockTally;

typedef struct CudaBackend {
    cudaStream_t stream;
    int device;
    int sm_count;
    int capability; // 10 * major + minor: 90 on Hopper
    int64_t l2_bytes;
    int64_t memory_bytes; // of the whole device
    char device_name[256];
    Recipe recipe;    // for what descriptors do not say: how moments are rounded
    bool maxima_left; // adamw_update has left the weights' maxima, and weights_quantize has not yet used them
    struct MatmulState *matmul;
    struct AttentionState *attention; // NULL with --precision fp32
    struct Staging *staging;          // pinned memory for uploads
    BlockTally *tally;                // in the device's memory; all 0 between operations
    float *ones;                      // (channels), and the same in BF16 behind: the weight of norms that have none
    int64_t ones_count;
    Replay replay[MAX_REPLAYS];
    int replay_current; // being run between replay_begin and replay_end, or -1
} CudaBackend;

static inline CudaBackend *cuda_backend(Exec *exec) {
    return (CudaBackend *)exec->backend;
}

// Ends the process with one line that says what was being done, on which rank, and what can be changed.
[[noreturn]] void cuda_fail(cudaError_t error, const char *doing, const char *file, int line);

static inline void cuda_check(cudaError_t error, const char *doing, const char *file, int line) {
    if (error != cudaSuccess) cuda_fail(error, doing, file, line);
}

// CUDA_CHECK(cudaMemsetAsync(...), "zeroing the gradients"). Macros, for the place in the source.
#define CUDA_CHECK(call, doing) cuda_check((call), (doing), __FILE__, __LINE__)
// After a kernel's launch: LAUNCH_CHECK("activation_forward").
#define LAUNCH_CHECK(kernel) cuda_check(cudaGetLastError(), "launching the kernel " kernel, __FILE__, __LINE__)

// 2^x by the hardware, to 2 units in the last place; subnormal numbers count as 0.
__device__ static inline float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// --- the device and the operations, documented in device_functions.h and operations.h ----------------------------
#define DEVICE_FUNCTION(name, result, parameters) result cuda_##name parameters;
#include "device_functions.h"
#undef DEVICE_FUNCTION

#define OPERATION(name, parameters) void cuda_##name parameters;
#define OPERATION_BY_FORMAT(name, parameters)                                                                          \
    void cuda_##name parameters;                                                                                       \
    void plain_##name parameters;                                                                                      \
    void fp8_##name parameters;
#include "operations.h"
#undef OPERATION

// matmuls: cuda_matmul.cu
// Algorithms come from a table (matmul_algos.h) or are the library's. They are checked, and with --autotune timed,
// when a shape is first met, which overwrites the matmul's output before the right result is written.
struct MatmulState *matmul_open(const Exec *exec, const Config *config, Error *err);
void matmul_close(struct MatmulState *state);

// attention: cuda_ops.cu calls cuDNN (attention.h), kernels for Hopper (attention_hopper.h), or those of
// cuda_attention_plain.cu: any head up to 256 wide, FP32 or BF16; where k and v have rows before q's, the kernel of
// cuda_attention_cached.cu. As the operations of ops.h
void attention_plain_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                             AttentionShape shape);
void attention_plain_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                              Tensor k, Tensor v, Tensor positions, AttentionShape shape);
void attention_cached_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape);

void cuda_replay_forget(Exec *exec); // what was recorded; communication in it keeps its communicator from ending
