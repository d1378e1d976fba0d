// The cross-entropy loss over a chunk of tokens, with the gradient written over the logits: one read and one
// write of the widest tensor of the model. With --head fp8 the gradient is written as codes, half the bytes, and then
// transposed for the product that makes the weight's gradient: 2 + 1 and 1 + 1 bytes per element.
#include "cuda/fp8/fp8_kernels.h"

#include <float.h>

namespace {

constexpr int LOSS_THREADS = 512;
constexpr int LOSS_BLOCKS_PER_SM = 2;
constexpr int LOSS_WARPS = LOSS_THREADS / WARP;

struct LossArguments {
    void *logits;       // (rows, cols)
    float *losses;      // (rows); may be NULL
    uint8_t *codes;     // (rows, cols) E5M2 for the gradient; NULL: in place of the logits
    float *codes_scale; // written by the kernel
    int64_t codes_stride;
    const int32_t *targets;
    int64_t rows, stride, target_stride;
    int cols, vocab;
    bool backward;
    StepState *state; // with the loss's scale
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

// Vectors of the gradient: where they go, and how.
template <typename T, int V> struct GradientInPlace {
    T *row;

    __device__ GradientInPlace(const LossArguments &a, int64_t at, float) : row((T *)a.logits + at * a.stride) {}
    __device__ void write(int index, const float x[V]) const { store(row + index * V, packed<T, V>(x)); }
    __device__ void element(int column, float x) const { store(row + column, packed<T, 1>(&x)); }
};

template <typename T, int V> struct GradientCodes {
    uint8_t *row;
    float reciprocal;

    __device__ GradientCodes(const LossArguments &a, int64_t at, float scale)
        : row(a.codes + at * a.codes_stride), reciprocal(scale_reciprocal(loss_gradient_scale(scale))) {}
    __device__ void write(int index, const float x[V]) const {
        Pack<uint32_t, V / 4> words;
        encode<FMT_E5M2, V>(x, reciprocal, words.value);
        store((uint32_t *)(row + index * V), words);
    }
    __device__ void element(int column, float x) const {
        row[column] = (uint8_t)encode_pair<FMT_E5M2>(x * reciprocal, 0.0f);
    }
};

// A persistent block takes every gridDim.x-th row.
template <typename T, int V, bool STAGED, typename Gradient>
__global__ __launch_bounds__(LOSS_THREADS, LOSS_BLOCKS_PER_SM) void loss_kernel(LossArguments a) {
    extern __shared__ uint4 staging[];
    __shared__ SoftmaxSum shared[LOSS_WARPS];
    const RowReader<T, V, STAGED> reader = {(Pack<T, V> *)staging};
    const int thread = (int)threadIdx.x, vectors = a.cols / V;
    T *const logits = (T *)a.logits;
    const float scale = a.state->loss_scale;

    if (a.codes_scale && blockIdx.x == 0 && thread == 0) *a.codes_scale = loss_gradient_scale(scale);
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
        const Gradient gradient(a, row, scale);
        const float inverse = target < 0 ? 0.0f : scale / all.sum;

        const bool owner = target < 0 ? thread == 0 : target / V % LOSS_THREADS == thread;
        float target_gradient = 0.0f;
        if (owner) {
            float loss = 0.0f;
            if (target >= 0) {
                const float logit = reader.element(here, target);
                target_gradient = fast_exp(logit - all.max) * inverse - scale;
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
                gradient.write(i, x);
            }
            if (next) reader.fetch(next, i);
        }
        if (a.backward && owner && target >= 0) gradient.element(target, target_gradient);
    }
}

template <typename T, int V, bool STAGED, typename Gradient>
void loss_launch(const CudaBackend *backend, const LossArguments &a) {
    const auto kernel = loss_kernel<T, V, STAGED, Gradient>;
    const int64_t slots = (int64_t)backend->sm_count * LOSS_BLOCKS_PER_SM;
    const size_t shared = STAGED ? (size_t)a.cols * sizeof(T) : 0;
    if (STAGED)
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                   "reserving shared memory for a row of logits");
    kernel<<<grid_of(a.rows < slots ? a.rows : slots), LOSS_THREADS, shared, backend->stream>>>(a);
    LAUNCH_CHECK("loss_kernel");
}

template <typename T, int V, typename Gradient> void loss_run(const CudaBackend *backend, const LossArguments &a) {
    const size_t row_bytes = (size_t)a.cols * sizeof(T);
    int per_block = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, backend->device),
               "asking for the size of shared memory");
    const bool fits = row_bytes + LOSS_WARPS * sizeof(SoftmaxSum) <= (size_t)per_block;
    if constexpr (V > 1) {
        if (fits)
            loss_launch<T, V, true, Gradient>(backend, a);
        else
            loss_launch<T, V, false, Gradient>(backend, a);
    } else {
        loss_launch<T, V, false, Gradient>(backend, a);
    }
}

// --- the sum of the losses ----------------------------------------------------------------------------------
constexpr int SUM_THREADS = 1024;

__global__ __launch_bounds__(SUM_THREADS) void loss_sum_kernel(const float *losses, int64_t count, StepState *state) {
    __shared__ double shared[SUM_THREADS / WARP];
    double sum = 0.0, before = 0.0, scale = 0.0;
    if (threadIdx.x == 0) before = state->loss_sum, scale = (double)state->loss_scale; // on their way with the losses
    for (int64_t i = threadIdx.x; i < count; i += SUM_THREADS) sum += (double)losses[i];
    sum = block_sum<SUM_THREADS / WARP>(sum, shared);
    if (threadIdx.x == 0) state->loss_sum = before + scale * sum;
}

} // namespace

// The gradient as codes, and their transpose.
static void loss_codes(Exec *exec, const char *operation, LossArguments a, Tensor dlogits, Tensor dlogits_t,
                       Tensor logits) {
    require_format(operation, "the logits", logits, FMT_BF16);
    require_format(operation, "dlogits", dlogits, FMT_E5M2);
    require_format(operation, "the transposed dlogits", dlogits_t, FMT_E5M2);
    require_spans(operation, "the logits", logits);
    require_spans(operation, "dlogits", dlogits);
    a.codes = (uint8_t *)dlogits.data;
    a.codes_scale = (float *)dlogits.scale;
    a.codes_stride = dlogits.stride;
    loss_run<bf16, 8, GradientCodes<bf16, 8>>(cuda_backend(exec), a);
    fp8_transpose_codes(exec, dlogits_t, dlogits);
}

void cuda_loss_forward_backward(Exec *exec, Tensor dlogits, Tensor dlogits_t, Tensor losses, Tensor logits,
                                Tensor targets, int vocab, StepState *state) {
    const char *operation = "loss_forward_backward";
    require_format(operation, "losses", losses, FMT_FP32);
    require_format(operation, "targets", targets, FMT_I32);
    if (logits.rows == 0) return;
    LossArguments a = {};
    a.logits = logits.data;
    a.losses = (float *)losses.data;
    a.targets = (const int32_t *)targets.data;
    a.rows = logits.rows;
    a.stride = logits.stride;
    a.target_stride = targets.stride;
    a.cols = (int)logits.cols;
    a.vocab = vocab;
    a.backward = dlogits.data != NULL;
    a.state = state;
    if (dlogits.data && format_is_fp8(dlogits.format)) {
        loss_codes(exec, operation, a, dlogits, dlogits_t, logits);
        return;
    }
    if (dlogits.data && dlogits.data != logits.data)
        fatal(EXIT_DEVICE, "%s on the GPU: dlogits in %s must take the place of the logits", operation,
              format_name(dlogits.format));
    for_layout(operation, logits.format, tensor_wide(logits),
               [&]<typename T, int V>(Layout<T, V>) { loss_run<T, V, GradientInPlace<T, V>>(cuda_backend(exec), a); });
}

void cuda_loss_sum(Exec *exec, Tensor losses, StepState *state) {
    require_format("loss_sum", "losses", losses, FMT_FP32);
    loss_sum_kernel<<<1, SUM_THREADS, 0, cuda_backend(exec)->stream>>>((const float *)losses.data, losses.rows, state);
    LAUNCH_CHECK("loss_sum_kernel");
}
