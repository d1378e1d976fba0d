// Shared declarations of the CUDA backend: its state and error checks of CUDA calls. For CUDA sources only.
//
// All operations run on one stream, in the order of the calls; only collectives use another stream (comm_nccl.cu). An
// operation may use all of Exec.workspace; the workspace's contents do not survive the operation. Operations of a
// training pass may be captured into a CUDA graph. They must not allocate memory, wait for the device, or read host
// memory that changes later. Therefore values that differ between steps are in StepState, in device memory.
#pragma once
#include "ops.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

struct MatmulState;    // defined in matmul_plan.h
struct AttentionState; // defined in attention.cpp
struct Staging;        // defined in cuda_exec.cu

#define MAX_REPLAYS 16 // maximum number of CUDA graphs in a run

typedef enum { REPLAY_COLD, REPLAY_WARM, REPLAY_RECORDED } ReplayStage;

// Recording of a micro-step as a CUDA graph. REPLAY_COLD: the micro-step has not run yet. REPLAY_WARM: the micro-step
// has run once, so libraries have loaded their code. REPLAY_RECORDED: `graph` exists.
typedef struct {
    ReplayStage stage;
    cudaGraphExec_t graph;
} Replay;

// Counters in device memory that the blocks of a kernel share. amax: FP32 bits of the amax so far. blocks: number of
// finished blocks.
typedef struct {
    uint32_t amax;
    unsigned blocks;
} BlockTally;

typedef struct CudaBackend {
    cudaStream_t stream;
    int device;
    int sm_count;
    int capability;      // compute capability of the GPU: 10 * major + minor
    int code_capability; // compute capability that the loaded kernels were compiled for; decides which kernels run
    bool hopper;         // true: the GPU is a Hopper, and the loaded kernels were compiled for it
    size_t shared_bytes; // maximum bytes of shared memory that a kernel may request per block
    int64_t l2_bytes;
    int64_t memory_bytes; // memory of the whole GPU
    char device_name[256];
    Recipe recipe; // settings that tensor descriptors do not record, such as the rounding of moments
    // true: the optimizer has written the weights' amaxes, so the next weights_quantize() does not compute them. Always
    // false in a run of several processes
    bool amaxes_valid;
    struct MatmulState *matmul;
    struct AttentionState *attention; // cuDNN's attention (attention.cpp); NULL with --precision fp32
    struct Staging *staging;          // pinned host memory through which uploads are copied
    BlockTally *tally;                // counters that the blocks of a kernel share; all 0 between operations
    float *ones; // `ones_count` ones in FP32, then as many in BF16; used as the weight of norms that have no weight
    int64_t ones_count; // maximum width of a norm without weight
    Replay replay[MAX_REPLAYS];
    int replay_current; // id of the CUDA graph between replay_begin and replay_end; -1 at other times
} CudaBackend;

static inline CudaBackend *cuda_backend(Exec *exec) {
    return (CudaBackend *)exec->backend;
}

// Ends the process with a one-line error message: the rank, the failed action (`doing`), CUDA's error, the source
// position and a remedy.
[[noreturn]] void cuda_fail(cudaError_t error, const char *doing, const char *file, int line);

static inline void cuda_check(cudaError_t error, const char *doing, const char *file, int line) {
    if (error != cudaSuccess) cuda_fail(error, doing, file, line);
}

// Ends the process if a CUDA call failed. Example: CUDA_CHECK(cudaMemsetAsync(...), "zeroing the gradients"). This is a
// macro because it records __LINE__.
#define CUDA_CHECK(call, doing) cuda_check((call), (doing), __FILE__, __LINE__)
// Ends the process if the preceding kernel launch failed. Example: LAUNCH_CHECK("activation_forward").
#define LAUNCH_CHECK(kernel) cuda_check(cudaGetLastError(), "launching the kernel " kernel, __FILE__, __LINE__)

// Returns 2^x, computed by the hardware instruction to within 2 ulp. Subnormal inputs and results are treated as 0.
__device__ static inline float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Rounds two FP32 values to BF16 (nearest even) and packs them into a word; `low` becomes the lower half.
__device__ static inline uint32_t bf16_pair(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// Returns threadIdx.x, read by a volatile asm each time. If the compiler knew that the value is constant, it would keep
// values derived from threadIdx.x in registers throughout a loop and spill other values.
__device__ static inline unsigned thread_get() {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// --- declarations of the backend's operations, documented in device_functions.h and operations.h ---------------------
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

// Opens cuBLASLt; NULL with err on failure. matmul_plan.h describes how each matmul gets its algorithm.
struct MatmulState *matmul_open(const Exec *exec, const Config *config, Error *err);
void matmul_close(struct MatmulState *state);

// Computes d = alpha * op(a) * op(b) + beta * c on row-major matrices in BF16 or FP32. op() transposes a if transpose_a
// is set, and b if transpose_b is set. k: number of columns of op(a). c has d's format and row stride; if c.data is
// NULL, beta must be 0.
// Each tensor consists of `count` matrices, one below the other; matrix i of d is computed from matrix i of a, b and c.
// The bits of a result do not depend on `count`.
void matmul_add(Exec *exec, int count, Tensor d, float alpha, Tensor a, Tensor b, bool transpose_a, bool transpose_b,
                int64_t k, float beta, Tensor c);

// Compute attention in FP32. The backward neither applies RoPE's backward nor writes amaxes. Call fatal() if the head
// width is above 256.
void attention_plain_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                             AttentionShape shape);
void attention_plain_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                              Tensor k, Tensor v, Tensor positions, AttentionShape shape);
// Computes attention_forward() (operations.h) with a KV cache. k and v contain the rows of the cached tokens, followed
// by the rows of q's tokens. Calls fatal() unless shape.B is 1 and the head width is at most 256.
void attention_cached_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape);

// Destroys all recorded CUDA graphs. Must be called before the NCCL communicator is destroyed, because graphs with
// collectives refer to the communicator.
void cuda_replay_forget(Exec *exec);
