// The cross-entropy loss over a chunk of tokens, with the gradient written over the logits: one read and one
// write of the widest tensor of the model.
#include "cuda_kernels.h"

#include <float.h>

namespace {

constexpr int LOSS_THREADS = 512;
constexpr int LOSS_BLOCKS_PER_SM = 2;
constexpr int LOSS_WARPS = LOSS_THREADS / WARP;

struct LossArguments {
    void *logits;  // (rows, cols)
    float *losses; // (rows); may be NULL
    const int32_t *targets;
    int64_t rows, stride, target_stride;
    int cols, vocab;
    float scale;
    bool backward;
    StepState *state;
};

// A maximum with the sum of the exponentials below it. Maxima start at NOTHING, the lowest finite value, and so do
// the columns that are padding: their exponentials vanish as soon as a real value is joined, and no difference
// of two infinities arises. A maximum passes NaN over, a sum does not.
struct SoftmaxSum {
    float max, sum;
};

constexpr float NOTHING = -FLT_MAX;

__device__ inline SoftmaxSum softmax_join(SoftmaxSum a, SoftmaxSum b) {
    float max = fmaxf(a.max, b.max);
    // not fused: joining b with a gives the same bits as joining a with b, so all threads agree
    return {max, __fadd_rn(__fmul_rn(a.sum, fast_exp(a.max - max)), __fmul_rn(b.sum, fast_exp(b.max - max)))};
}

__device__ inline SoftmaxSum block_softmax(SoftmaxSum mine, SoftmaxSum *shared) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        SoftmaxSum other = {__shfl_xor_sync(ALL_LANES, mine.max, mask), __shfl_xor_sync(ALL_LANES, mine.sum, mask)};
        mine = softmax_join(mine, other);
    }
    __syncthreads(); // the previous row's values have been read
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = mine;
    __syncthreads();
    SoftmaxSum all = shared[threadIdx.x % LOSS_WARPS];
#pragma unroll
    for (int mask = LOSS_WARPS / 2; mask > 0; mask /= 2) {
        SoftmaxSum other = {__shfl_xor_sync(ALL_LANES, all.max, mask), __shfl_xor_sync(ALL_LANES, all.sum, mask)};
        all = softmax_join(all, other);
    }
    return all;
}

// Values of vector `index` of a row, without the columns that are padding.
template <typename T, int V> __device__ inline void logits_unpack(Pack<T, V> pack, int index, int vocab, float out[V]) {
    unpack<V>(pack, out);
    if ((index + 1) * V > vocab) {
#pragma unroll
        for (int i = 0; i < V; i++)
            if (index * V + i >= vocab) out[i] = NOTHING;
    }
}

// Where the passes over a row read it from: the block's shared memory, filled by asynchronous copies, or device
// memory again where a row is too long for that. A thread reads only the vectors that it copied itself, so no
// barrier is needed, and the next row is fetched while this one is being written.
template <typename T, int V, bool STAGED> struct RowReader {
    Pack<T, V> *staged;

    __device__ void fetch(const T *row, int index) const {
        if constexpr (STAGED) copy_async<V>(staged + index, row + index * V);
    }
    __device__ void wait() const {
        if constexpr (STAGED) asm volatile("cp.async.wait_all;" ::: "memory");
    }
    __device__ Pack<T, V> read(const T *row, int index) const {
        if constexpr (STAGED)
            return load<V>((const T *)(staged + index));
        else
            return load<V>(row + index * V);
    }
    __device__ float element(const T *row, int column) const {
        float x;
        unpack<1>(load<1>((STAGED ? (const T *)staged : row) + column), &x);
        return x;
    }
};

// A persistent block takes every gridDim.x-th row.
template <typename T, int V, bool STAGED>
__global__ __launch_bounds__(LOSS_THREADS, LOSS_BLOCKS_PER_SM) void loss_kernel(LossArguments a) {
    extern __shared__ uint4 staging[];
    __shared__ SoftmaxSum shared[LOSS_WARPS];
    const RowReader<T, V, STAGED> reader = {(Pack<T, V> *)staging};
    const int thread = (int)threadIdx.x, vectors = a.cols / V;
    T *const logits = (T *)a.logits;

    if (blockIdx.x < a.rows)
        for (int i = thread; i < vectors; i += LOSS_THREADS) reader.fetch(logits + blockIdx.x * a.stride, i);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        T *const here = logits + row * a.stride;
        const T *const next = row + gridDim.x < a.rows ? here + gridDim.x * a.stride : nullptr;
        const int target = a.targets[row * a.target_stride];
        reader.wait();

        SoftmaxSum mine = {NOTHING, 0.0f};
        for (int i = thread; i < vectors; i += LOSS_THREADS) {
            float x[V];
            logits_unpack<T, V>(reader.read(here, i), i, a.vocab, x);
#pragma unroll
            for (int j = 0; j < V; j++) mine.max = fmaxf(mine.max, x[j]);
        }
        for (int i = thread; i < vectors; i += LOSS_THREADS) {
            float x[V];
            logits_unpack<T, V>(reader.read(here, i), i, a.vocab, x);
#pragma unroll
            for (int j = 0; j < V; j++) mine.sum += fast_exp(x[j] - mine.max);
        }
        const SoftmaxSum all = block_softmax(mine, shared);
        const float inverse = target < 0 ? 0.0f : a.scale / all.sum;

        const bool owner = target < 0 ? thread == 0 : target / V % LOSS_THREADS == thread;
        float target_gradient = 0.0f;
        if (owner) {
            float loss = 0.0f;
            if (target >= 0) {
                const float logit = reader.element(here, target);
                target_gradient = fast_exp(logit - all.max) * inverse - a.scale;
                loss = logf(all.sum) + all.max - logit;
                if (!isfinite(loss)) a.state->nonfinite = 1;
            }
            if (a.losses) a.losses[row] = loss;
        }
        for (int i = thread; i < vectors; i += LOSS_THREADS) {
            if (a.backward) {
                float x[V];
                logits_unpack<T, V>(reader.read(here, i), i, a.vocab, x);
#pragma unroll
                for (int j = 0; j < V; j++) x[j] = target < 0 ? 0.0f : fast_exp(x[j] - all.max) * inverse;
                store(here + i * V, packed<T, V>(x));
            }
            if (next) reader.fetch(next, i);
        }
        if (a.backward && owner && target >= 0) store(here + target, packed<T, 1>(&target_gradient));
    }
}

template <typename T, int V, bool STAGED> void loss_launch(const CudaBackend *backend, const LossArguments &a) {
    const int64_t slots = (int64_t)backend->sm_count * LOSS_BLOCKS_PER_SM;
    const size_t shared = STAGED ? (size_t)a.cols * sizeof(T) : 0;
    if (STAGED)
        CUDA_CHECK(
            cudaFuncSetAttribute(loss_kernel<T, V, STAGED>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
            "reserving shared memory for a row of logits");
    loss_kernel<T, V, STAGED><<<grid_of(a.rows < slots ? a.rows : slots), LOSS_THREADS, shared, backend->stream>>>(a);
    LAUNCH_CHECK("loss_kernel");
}

template <typename T, int V> void loss_run(const CudaBackend *backend, const LossArguments &a) {
    const size_t row_bytes = (size_t)a.cols * sizeof(T);
    int per_block = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, backend->device),
               "asking for the size of shared memory");
    const bool fits = row_bytes + LOSS_WARPS * sizeof(SoftmaxSum) <= (size_t)per_block;
    if constexpr (V > 1) {
        if (fits)
            loss_launch<T, V, true>(backend, a);
        else
            loss_launch<T, V, false>(backend, a);
    } else {
        loss_launch<T, V, false>(backend, a);
    }
}

// --- the sum of the losses ----------------------------------------------------------------------------------
constexpr int SUM_THREADS = 1024;

__global__ __launch_bounds__(SUM_THREADS) void loss_sum_kernel(const float *losses, int64_t count, float scale,
                                                               StepState *state) {
    __shared__ double shared[SUM_THREADS / WARP];
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < count; i += SUM_THREADS) sum += (double)losses[i];
    sum = block_sum<SUM_THREADS / WARP>(sum, shared);
    if (threadIdx.x == 0) state->loss_sum += (double)scale * sum;
}

} // namespace

void cuda_loss_forward_backward(Exec *exec, Tensor logits, Tensor losses, Tensor targets, int vocab, float scale,
                                bool backward, StepState *state) {
    const char *operation = "loss_forward_backward";
    require_format(operation, "losses", losses, FMT_FP32);
    require_format(operation, "targets", targets, FMT_I32);
    if (logits.rows == 0) return;
    const LossArguments a = {logits.data,
                             (float *)losses.data,
                             (const int32_t *)targets.data,
                             logits.rows,
                             logits.stride,
                             targets.stride,
                             (int)logits.cols,
                             vocab,
                             scale,
                             backward,
                             state};
    for_layout(operation, logits.format, tensor_wide(logits), [&](auto layout) {
        loss_run<typename decltype(layout)::type, decltype(layout)::width>(cuda_backend(exec), a);
    });
}

void cuda_loss_sum(Exec *exec, Tensor losses, float scale, StepState *state) {
    require_format("loss_sum", "losses", losses, FMT_FP32);
    loss_sum_kernel<<<1, SUM_THREADS, 0, cuda_backend(exec)->stream>>>((const float *)losses.data, losses.rows, scale,
                                                                       state);
    LAUNCH_CHECK("loss_sum_kernel");
}
