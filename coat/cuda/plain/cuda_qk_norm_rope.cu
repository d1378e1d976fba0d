// Computes QKV clip, QK-norm and RoPE, which are applied between the qkv matmul and attention, and their backward. A
// block processes one token or, in the backward of QK-norm, several tokens one after the other. With RoPE alone, every
// value of q and k is read once and written once.
#include "heads_walk.h"

namespace {

// --- forward of QKV clip, QK norm and RoPE --------------------------------------------------------------------------
template <typename T, int V, bool NORMS>
__global__ __launch_bounds__(HEADS_THREADS) void qk_norm_rope_forward_kernel(HeadsOf<T> a) {
    constexpr CachePolicy POLICY = NORMS ? CACHE_DEFAULT : CACHE_STREAM;
    extern __shared__ float of_heads[]; // partial sums of squares (heads, across), then rstd of each norm
    float *const rstd = of_heads + a.heads * a.across;
    const int64_t token = blockIdx.x;
    const T *const from = a.qkv + token * a.qkv_stride;
    T *const to = a.out + token * a.out_stride;
    const float *const rotation = rotation_of(a, token);
    if constexpr (NORMS) {
        each_half_head<V>(a, nullptr, [&](int head, int i, const float *, const float *) {
            float squares = 0.0f;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float x[V];
                load_clipped<V>(a, from + (2 * head + h) * a.half + i, x);
#pragma unroll
                for (int j = 0; j < V; j++) squares = fmaf(x[j], x[j], squares);
            }
            head_adds<V>(a, of_heads, head, i, squares);
        });
        __syncthreads();
        each_norm(a, of_heads, nullptr, [&](int n, int width, float squares, float) {
            rstd[n] = 1.0f / sqrtf(squares / (float)width + a.eps);
        });
        __syncthreads();
    }
    each_half_head<V>(a, rotation, [&](int head, int i, const float cosine[V], const float sine[V]) {
        const int column = 2 * head * a.half + i;
        float x[2][V];
        load_clipped<V, POLICY>(a, from + column, x[0]);
        load_clipped<V, POLICY>(a, from + column + a.half, x[1]);
        if constexpr (NORMS) {
            const HeadNorm<T> norm(a, head);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float weight[V];
                unpack<V>(load_parameter<V>(a.weight[norm.k] + norm.begin + h * a.half + i), weight);
#pragma unroll
                for (int j = 0; j < V; j++) x[h][j] = x[h][j] * rstd[norm.number] * weight[j];
            }
        }
        if (rotation) rotate<V>(x, cosine, sine);
        store(to + column, packed<T, V>(x[0]));
        store(to + column + a.half, packed<T, V>(x[1]));
    });
    if (to == from && !(a.clip > 0.0f)) return;
    for (int c = 2 * a.half * a.heads + (int)threadIdx.x * V; c < a.columns; c += HEADS_THREADS * V) {
        float x[V];
        load_clipped<V, CACHE_STREAM>(a, from + c, x);
        store(to + c, packed<T, V>(x));
    }
}

// --- backward of QKV clip, QK norm and RoPE -------------------------------------------------------------------------
// Loads V values from each half of a head's gradient, and applies RoPE's backward to these values.
template <int V, typename T>
__device__ inline void load_gradient(const HeadsOf<T> &a, const T *g, int column, const float *rotation,
                                     const float cosine[V], const float sine[V], float d[2][V]) {
    unpack<V>(load<V>(g + column), d[0]);
    unpack<V>(load<V>(g + column + a.half), d[1]);
    if (rotation) rotate_back<V>(d, cosine, sine);
}

// Layout of a block's shared memory, all FP32; empty without QK-norm:
//   1. sums: partial sums of the norm weights' gradients, (copies, width of a norm of q + width of a norm of k)
//   2. squares, dots: each thread's sums of x^2 and of gradient * weight * x for each head, (heads, across) each
//   3. rstd, mean: (norms) each
template <typename T> struct NormsShared {
    float *sums, *squares, *dots, *rstd, *mean;

    __device__ __host__ static int sums_of(const HeadsOf<T> &a) { return a.copies * (a.width[0] + a.width[1]); }
    static size_t bytes(const HeadsOf<T> &a) {
        return a.norms == 0 ? 0 : sizeof(float) * (size_t)(sums_of(a) + 2 * a.heads * a.across + 2 * a.norms);
    }
    __device__ NormsShared(const HeadsOf<T> &a, float *memory) {
        sums = memory;
        squares = sums + sums_of(a);
        dots = squares + a.heads * a.across;
        rstd = dots + a.heads * a.across;
        mean = rstd + a.norms;
    }
};

// Computes rstd of each QK-norm of a token, and the mean of gradient * weight * xhat over each norm.
template <int V, typename T>
__device__ inline void token_norms(const HeadsOf<T> &a, const NormsShared<T> &shared, const T *x, const T *g,
                                   const float *rotation) {
    each_half_head<V>(a, rotation, [&](int head, int i, const float cosine[V], const float sine[V]) {
        const HeadNorm<T> norm(a, head);
        const int column = 2 * head * a.half + i;
        float d[2][V], squares = 0.0f, dot = 0.0f;
        load_gradient<V>(a, g, column, rotation, cosine, sine, d);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float value[V], weight[V];
            load_clipped<V>(a, x + column + h * a.half, value);
            unpack<V>(load_parameter<V>(a.weight[norm.k] + norm.begin + h * a.half + i), weight);
#pragma unroll
            for (int j = 0; j < V; j++) {
                squares = fmaf(value[j], value[j], squares);
                dot = fmaf(d[h][j] * weight[j], value[j], dot);
            }
        }
        head_adds<V>(a, shared.squares, head, i, squares);
        head_adds<V>(a, shared.dots, head, i, dot);
    });
    __syncthreads();
    each_norm(a, shared.squares, shared.dots, [&](int n, int width, float squares, float dot) {
        const float rstd = 1.0f / sqrtf(squares / (float)width + a.eps);
        shared.rstd[n] = rstd;
        shared.mean[n] = dot * rstd / (float)width;
    });
    __syncthreads();
}

// Replaces d, the gradient of V values of a norm's output, with the gradient of the norm's input. The values start at
// value `at` of head `head`. Adds the contribution of these values to the gradient of the norm's weight.
template <int V, typename T>
__device__ inline void norm_gradient(const HeadsOf<T> &a, const NormsShared<T> &shared, const T *x, int head, int at,
                                     float d[V]) {
    const HeadNorm<T> norm(a, head);
    const float rstd = shared.rstd[norm.number], mean = shared.mean[norm.number];
    const int copy = a.copies > 1 ? (int)threadIdx.x / a.across : 0;
    float *const sums = shared.sums + copy * (a.width[0] + a.width[1]) + (norm.k ? a.width[0] : 0) + norm.begin + at;
    Pack<float, V> &of_weight =
        *(Pack<float, V> *)sums; // accessed directly, because store() does not support shared memory
    float value[V], weight[V], sum[V];
    load_clipped<V>(a, x + 2 * head * a.half + at, value);
    unpack<V>(load_parameter<V>(a.weight[norm.k] + norm.begin + at), weight);
    unpack<V>(of_weight, sum);
#pragma unroll
    for (int j = 0; j < V; j++) {
        const float hat = value[j] * rstd;
        sum[j] = fmaf(d[j], hat, sum[j]);
        d[j] = rstd * (d[j] * weight[j] - hat * mean);
    }
    of_weight = packed<float, V>(sum);
}

// Adds the block's copies of the weight gradients' sums and writes the totals to a.partials.
template <typename T> __device__ inline void store_partials(const HeadsOf<T> &a, const float *sums) {
    const int both = a.width[0] + a.width[1];
    for (int c = (int)threadIdx.x; c < both; c += (int)blockDim.x) {
        float total = 0.0f;
        for (int copy = 0; copy < a.copies; copy++) total += sums[copy * both + c];
        const int k = c >= a.width[0];
        a.partials[k][(int64_t)blockIdx.x * a.width[k] + c - (k ? a.width[0] : 0)] = total;
    }
}

// Computes the backward of clipping, QK-norm and RoPE in place. A block processes every gridDim.x-th token. With NORMS,
// the block also sums the gradients of the norms' weights over these tokens.
template <typename T, int V, bool NORMS>
__global__ __launch_bounds__(NORMS ? NORMS_THREADS : HEADS_THREADS,
                             NORMS ? NORMS_BLOCKS_PER_SM
                                   : HEADS_BLOCKS_PER_SM) void qk_norm_rope_backward_kernel(HeadsOf<T> a) {
    constexpr int THREADS = NORMS ? NORMS_THREADS : HEADS_THREADS;
    extern __shared__ __align__(16) float memory[];
    const NormsShared<T> shared(a, memory);
    if constexpr (NORMS) {
        for (int c = (int)threadIdx.x; c < NormsShared<T>::sums_of(a); c += THREADS) shared.sums[c] = 0.0f;
        __syncthreads();
    }
    for (int64_t token = blockIdx.x; token < a.tokens; token += gridDim.x) {
        const T *const x = a.qkv + token * a.qkv_stride;
        T *const g = a.out + token * a.out_stride;
        const float *const rotation = rotation_of(a, token);
        if constexpr (NORMS) token_norms<V>(a, shared, x, g, rotation);
        uint32_t largest = 0;
        const auto keep = [&](int column, float value[V]) {
            if (a.clip > 0.0f) {
                float before[V];
                unpack<V>(load<V>(x + column), before);
#pragma unroll
                for (int j = 0; j < V; j++)
                    if (fabsf(before[j]) > a.clip) value[j] = 0.0f;
            }
            const Pack<T, V> pack = packed<T, V>(value);
            store(g + column, pack);
            unpack<V>(pack, value);
#pragma unroll
            for (int j = 0; j < V; j++) largest = max(largest, __float_as_uint(value[j]) & 0x7fffffffu);
        };
        each_half_head<V>(a, rotation, [&](int head, int i, const float cosine[V], const float sine[V]) {
            const int column = 2 * head * a.half + i;
            float d[2][V];
            load_gradient<V>(a, g, column, rotation, cosine, sine, d);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if constexpr (NORMS) norm_gradient<V>(a, shared, x, head, h * a.half + i, d[h]);
                keep(column + h * a.half, d[h]);
            }
        });
        if (a.amax || a.clip > 0.0f) {
            for (int c = 2 * a.half * a.heads + (int)threadIdx.x * V; c < a.columns; c += THREADS * V) {
                float d[V];
                unpack<V>(load<V>(g + c), d);
                keep(c, d);
            }
        }
        if (a.amax) block_max<THREADS>(largest, [&](uint32_t x) { a.amax[token] = x; });
        if constexpr (NORMS) __syncthreads(); // waits until all threads have read this token's data
    }
    if constexpr (NORMS) store_partials(a, shared.sums);
}

// --- host code that launches the kernels of QKV clip, QK norm and RoPE -----------------------------------------------
template <typename T, int V> HeadsOf<T> heads_of(Tensor out, Tensor qkv, const QkRope &h, int threads) {
    HeadsOf<T> a = {};
    a.out = (T *)out.data;
    a.qkv = (const T *)qkv.data;
    a.rope_table = (const float *)h.rope_table.data;
    a.weight[0] = (const T *)h.q_weight.data;
    a.weight[1] = (const T *)h.k_weight.data;
    a.amax = out.amax;
    a.out_stride = out.stride;
    a.qkv_stride = qkv.stride;
    a.tokens = out.rows;
    a.positions = (const int32_t *)h.positions.data;
    a.T_length = h.shape.T;
    a.q_heads = h.shape.heads;
    a.heads = h.shape.heads + h.shape.kv_heads;
    a.half = h.shape.head_dim / 2;
    a.across = a.half / V < threads ? a.half / V : threads;
    a.at_once = threads / a.across;
    a.columns = (int)out.cols;
    a.eps = h.eps;
    a.clip = h.clip;
    if (!h.q_weight.data) return a;
    a.width[0] = (int)h.q_weight.cols;
    a.width[1] = (int)h.k_weight.cols;
    a.q_norms = h.shape.heads * h.shape.head_dim / a.width[0];
    a.norms = a.q_norms + h.shape.kv_heads * h.shape.head_dim / a.width[1];
    const int fewest = (a.width[0] < a.width[1] ? a.width[0] : a.width[1]) / h.shape.head_dim * a.across;
    for (a.lanes = 1; 2 * a.lanes <= fewest && a.lanes < WARP;) a.lanes *= 2;
    a.copies = a.norms > 2 ? a.at_once : 1;
    return a;
}

// Calls fatal() if qkv or a weight does not have out's format, or if the positions are not I32.
void require_heads(const char *operation, Tensor out, Tensor qkv, const QkRope &h) {
    require_format(operation, "qkv", qkv, out.format);
    require_format(operation, "positions", h.positions, FMT_I32);
    require_format(operation, "the weight of q's norm", h.q_weight, out.format);
    require_format(operation, "the weight of k's norm", h.k_weight, out.format);
}

// True if values can be loaded 8 at a time and 8 adjacent values always belong to the same half of a head.
bool heads_wide(Tensor out, Tensor qkv, const QkRope &h) {
    return h.shape.head_dim % 16 == 0 && tensor_wide(out) && tensor_wide(qkv) && tensor_wide(h.rope_table) &&
           tensor_wide(h.q_weight) && tensor_wide(h.k_weight);
}

// Allows a kernel of QK-norm to use `shared` bytes of dynamic shared memory per block. Calls fatal() if this GPU has
// less.
template <typename T> void allow_shared(Exec *exec, void (*kernel)(HeadsOf<T>), const HeadsOf<T> &a, size_t shared) {
    const char *doing = "setting the shared memory of QK-norm";
    const size_t limit = cuda_backend(exec)->shared_bytes;
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel), doing);
    if (shared + attributes.sharedSizeBytes > limit)
        fatal(
            EXIT_DEVICE,
            "QK-norm of %d query and key heads of width %d needs %zu bytes of shared memory, but this GPU has %zu per "
            "block; use --device cpu, or fewer --heads",
            a.heads, 2 * a.half, shared + attributes.sharedSizeBytes, limit);
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), doing);
}

template <typename T, int V>
void norms_backward(Exec *exec, const char *operation, Tensor dq_weight, Tensor dk_weight, HeadsOf<T> a,
                    bool accumulate) {
    const int64_t fit = (int64_t)(exec->workspace_bytes / sizeof(float)) / (a.width[0] + a.width[1]);
    const int64_t resident = (int64_t)cuda_backend(exec)->sm_count * NORMS_BLOCKS_PER_SM;
    const int64_t most = a.tokens < resident ? a.tokens : resident;
    const int blocks = (int)(most < fit ? most : fit);
    if (blocks == 0)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: the norms' sums do not fit the workspace", operation);
    a.partials[0] = (float *)exec->workspace;
    a.partials[1] = a.partials[0] + (int64_t)blocks * a.width[0];
    const auto kernel = qk_norm_rope_backward_kernel<T, V, true>;
    const size_t shared = NormsShared<T>::bytes(a);
    allow_shared(exec, kernel, a, shared);
    kernel<<<grid_of(blocks), NORMS_THREADS, shared, cuda_backend(exec)->stream>>>(a);
    LAUNCH_CHECK("qk_norm_rope_backward_kernel");
    partials_sum(exec, (float *)dq_weight.data, a.partials[0], blocks, a.width[0], accumulate);
    partials_sum(exec, (float *)dk_weight.data, a.partials[1], blocks, a.width[1], accumulate);
}

} // namespace

void cuda_qk_norm_rope_forward(Exec *exec, Tensor out, Tensor qkv, QkRope rope) {
    const char *operation = "qk_norm_rope_forward";
    if ((out.data == qkv.data && !qk_norm_rope_active(&rope)) || out.rows == 0) return;
    require_heads(operation, out, qkv, rope);
    for_layout(operation, out.format, heads_wide(out, qkv, rope), [&]<typename T, int V>(Layout<T, V>) {
        const HeadsOf<T> a = heads_of<T, V>(out, qkv, rope, HEADS_THREADS);
        const bool norms = a.norms > 0;
        const auto kernel = norms ? qk_norm_rope_forward_kernel<T, V, true> : qk_norm_rope_forward_kernel<T, V, false>;
        const size_t shared = norms ? sizeof(float) * (size_t)(a.heads * a.across + a.norms) : 0;
        if (norms) allow_shared(exec, kernel, a, shared);
        kernel<<<grid_of(out.rows), HEADS_THREADS, shared, cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("qk_norm_rope_forward_kernel");
    });
}

void cuda_qk_norm_rope_backward(Exec *exec, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor qkv, QkRope rope,
                                bool accumulate) {
    const char *operation = "qk_norm_rope_backward";
    if (!qk_norm_rope_active(&rope) || dqkv.rows == 0) return;
    require_heads(operation, dqkv, qkv, rope);
    require_format(operation, "the gradient of a weight", dq_weight, FMT_FP32);
    for_layout(operation, dqkv.format, heads_wide(dqkv, qkv, rope), [&]<typename T, int V>(Layout<T, V>) {
        if (rope.q_weight.data) {
            norms_backward<T, V>(exec, operation, dq_weight, dk_weight, heads_of<T, V>(dqkv, qkv, rope, NORMS_THREADS),
                                 accumulate);
            return;
        }
        const HeadsOf<T> a = heads_of<T, V>(dqkv, qkv, rope, HEADS_THREADS);
        qk_norm_rope_backward_kernel<T, V, false>
            <<<grid_of(dqkv.rows), HEADS_THREADS, 0, cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("qk_norm_rope_backward_kernel");
    });
}
