// q, k and v between their product and attention: the clip, the norms of q and k, their rotation, and all in reverse. A
// block has a token. Where there is a rotation alone, every value is read once and written once.
#include "cuda/common/cuda_kernels.h"

namespace {

constexpr int HEADS_THREADS = 64, HEADS_WARPS = HEADS_THREADS / WARP;

// q's heads, then k's. A head's value i is rotated with value i + half.
template <typename T> struct HeadsOf {
    T *out;                   // forward: (tokens, columns); backward: the gradient, in place
    const T *qkv;             // before all of it
    const float *rotations;   // (T, 2 half); NULL: none
    const int32_t *positions; // of documents that are apart; NULL: none are
    const T *weight[2];       // of q's and k's norm; NULL: none
    float *rstd;              // (tokens, norms), in the workspace
    uint32_t *amax;           // of the gradient's rows; may be NULL
    int64_t out_stride, qkv_stride;
    int T_length, heads, q_heads, half, width[2]; // width: of a norm
    int q_norms, norms;                           // of a token: q's, and all
    int across, at_once;                          // threads across half a head, heads at a time
    int columns;                                  // q, k and v
    float eps, clip;
};

// The cosines and sines of a token's position.
template <typename T> __device__ inline const float *rotation_of(const HeadsOf<T> &a, int64_t token) {
    if (!a.rotations) return nullptr;
    const int64_t position = a.positions ? a.positions[token] : (uint32_t)token % (uint32_t)a.T_length;
    return a.rotations + position * 2 * a.half;
}

// body(head's first column, i, cosines, sines) for V values i of every half head, a thread's heads with one rotation.
template <int V, typename T, typename Body>
__device__ inline void each_half_head(const HeadsOf<T> &a, const float *rotation, Body body) {
    const int first = (int)threadIdx.x / a.across;
    if (first >= a.at_once) return;
    for (int i = ((int)threadIdx.x - first * a.across) * V; i < a.half; i += a.across * V) {
        float cosine[V], sine[V];
        if (rotation) {
            unpack<V>(load_parameter<V>(rotation + i), cosine);
            unpack<V>(load_parameter<V>(rotation + a.half + i), sine);
        }
        for (int head = first; head < a.heads; head += a.at_once) body(head * 2 * a.half, i, cosine, sine);
    }
}

__device__ inline float clipped(float x, float clip) {
    return clip > 0.0f ? fminf(fmaxf(x, -clip), clip) : x;
}

// Where a norm's values begin in a row, and its weight.
template <typename T> struct NormColumns {
    int begin, width;
    const T *weight;

    __device__ NormColumns(const HeadsOf<T> &a, int norm) {
        const int k = norm >= a.q_norms;
        width = a.width[k];
        weight = a.weight[k];
        begin = k ? a.q_heads * 2 * a.half + (norm - a.q_norms) * width : norm * width;
    }
};

// 1 / root mean square of every norm's values, a warp each.
template <typename T> __global__ __launch_bounds__(HEADS_THREADS) void heads_statistics_kernel(HeadsOf<T> a) {
    const int64_t token = blockIdx.x;
    const int lane = (int)threadIdx.x % WARP;
    for (int n = (int)threadIdx.x / WARP; n < a.norms; n += HEADS_WARPS) {
        const NormColumns<T> at(a, n);
        const T *const x = a.qkv + token * a.qkv_stride + at.begin;
        float squares = 0.0f;
        for (int i = lane; i < at.width; i += WARP) {
            const float value = clipped((float)x[i], a.clip);
            squares = fmaf(value, value, squares);
        }
        squares = warp_sum(squares);
        if (lane == 0) a.rstd[token * a.norms + n] = 1.0f / sqrtf(squares / (float)at.width + a.eps);
    }
}

// The norm that column `column` of q or k passes, as a number within the token.
template <typename T> __device__ inline int norm_of(const HeadsOf<T> &a, int column) {
    const int k_begin = a.q_heads * 2 * a.half;
    return column < k_begin ? column / a.width[0] : a.q_norms + (column - k_begin) / a.width[1];
}

template <typename T, int V> __global__ __launch_bounds__(HEADS_THREADS) void heads_forward_kernel(HeadsOf<T> a) {
    const int64_t token = blockIdx.x;
    const T *const from = a.qkv + token * a.qkv_stride;
    T *const to = a.out + token * a.out_stride;
    const float *const rotation = rotation_of(a, token);
    each_half_head<V>(a, rotation, [&](int begin, int i, const float cosine[V], const float sine[V]) {
        const int column = begin + i;
        float x[2][V];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = column + h * a.half;
            unpack<V>(load_streaming<V>(from + at), x[h]);
#pragma unroll
            for (int j = 0; j < V; j++) x[h][j] = clipped(x[h][j], a.clip);
            if (a.norms == 0) continue;
            const int n = norm_of(a, at);
            const NormColumns<T> columns(a, n);
            const float rstd = a.rstd[token * a.norms + n];
            float weight[V];
#pragma unroll
            for (int j = 0; j < V; j++) weight[j] = (float)columns.weight[at + j - columns.begin];
#pragma unroll
            for (int j = 0; j < V; j++) x[h][j] = x[h][j] * rstd * weight[j];
        }
        if (rotation) {
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float low = x[0][j], high = x[1][j];
                x[0][j] = low * cosine[j] - high * sine[j];
                x[1][j] = high * cosine[j] + low * sine[j];
            }
        }
        store(to + column, packed<T, V>(x[0]));
        store(to + column + a.half, packed<T, V>(x[1]));
    });
    if (to == from && !(a.clip > 0.0f)) return;
    for (int c = 2 * a.half * a.heads + (int)threadIdx.x * V; c < a.columns; c += HEADS_THREADS * V) {
        float x[V];
        unpack<V>(load_streaming<V>(from + c), x);
#pragma unroll
        for (int j = 0; j < V; j++) x[j] = clipped(x[j], a.clip);
        store(to + c, packed<T, V>(x));
    }
}

// The gradient of what a norm made, at a column: rotated back.
template <typename T> __device__ inline float rotated_back(const HeadsOf<T> &a, const T *g, int64_t token, int column) {
    const float *const rotation = rotation_of(a, token);
    if (!rotation) return (float)g[column];
    const int i = column % (2 * a.half);
    return i < a.half ? (float)g[column] * rotation[i] + (float)g[column + a.half] * rotation[a.half + i]
                      : (float)g[column] * rotation[i - a.half] - (float)g[column - a.half] * rotation[i];
}

template <typename T, int V> __global__ __launch_bounds__(HEADS_THREADS) void heads_backward_kernel(HeadsOf<T> a) {
    extern __shared__ float dots[]; // of each norm: the mean of gradient times weight times normalised value
    __shared__ uint32_t shared_max[HEADS_WARPS];
    const int64_t token = blockIdx.x;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const T *const x = a.qkv + token * a.qkv_stride;
    T *const g = a.out + token * a.out_stride;
    const float *const rotation = rotation_of(a, token);
    for (int n = warp; n < a.norms; n += HEADS_WARPS) {
        const NormColumns<T> at(a, n);
        const float rstd = a.rstd[token * a.norms + n];
        float dot = 0.0f;
        for (int i = lane; i < at.width; i += WARP)
            dot = fmaf(rotated_back(a, g, token, at.begin + i) * (float)at.weight[i],
                       clipped((float)x[at.begin + i], a.clip) * rstd, dot);
        dot = warp_sum(dot);
        if (lane == 0) dots[n] = dot / (float)at.width;
    }
    __syncthreads();
    uint32_t largest = 0;
    const auto keep = [&](int column, float value[V]) {
        if (a.clip > 0.0f) {
#pragma unroll
            for (int j = 0; j < V; j++)
                if (fabsf((float)x[column + j]) > a.clip) value[j] = 0.0f;
        }
        const Pack<T, V> pack = packed<T, V>(value);
        store(g + column, pack);
        unpack<V>(pack, value);
#pragma unroll
        for (int j = 0; j < V; j++) largest = max(largest, __float_as_uint(value[j]) & 0x7fffffffu);
    };
    each_half_head<V>(a, rotation, [&](int begin, int i, const float cosine[V], const float sine[V]) {
        const int column = begin + i;
        float d[2][V];
        unpack<V>(load<V>(g + column), d[0]);
        unpack<V>(load<V>(g + column + a.half), d[1]);
        if (rotation) {
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float low = d[0][j], high = d[1][j];
                d[0][j] = low * cosine[j] + high * sine[j];
                d[1][j] = high * cosine[j] - low * sine[j];
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = column + h * a.half;
            if (a.norms > 0) {
                const int n = norm_of(a, at);
                const NormColumns<T> columns(a, n);
                const float rstd = a.rstd[token * a.norms + n];
#pragma unroll
                for (int j = 0; j < V; j++) {
                    const float hat = clipped((float)x[at + j], a.clip) * rstd;
                    d[h][j] = rstd * (d[h][j] * (float)columns.weight[at + j - columns.begin] - hat * dots[n]);
                }
            }
            keep(at, d[h]);
        }
    });
    if (a.amax || a.clip > 0.0f) {
        for (int c = 2 * a.half * a.heads + (int)threadIdx.x * V; c < a.columns; c += HEADS_THREADS * V) {
            float d[V];
            unpack<V>(load<V>(g + c), d);
            keep(c, d);
        }
    }
    if (!a.amax) return;
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (lane == 0) shared_max[warp] = largest;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (uint32_t other : shared_max) largest = max(largest, other);
    a.amax[token] = largest;
}

// The gradient of the weight of q's or k's norms, over all tokens and the heads that share it: a row is a norm.
template <typename T> struct HeadNormWeight {
    static constexpr int unroll = 4;
    static constexpr bool sums = true, rolling = false;
    struct Loaded {
        float d, hat;
    };
    HeadsOf<T> a;
    int first, count; // norms of a token

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        const int64_t token = row / count;
        const int n = first + (int)(row % count);
        const NormColumns<T> at(a, n);
        const int c = at.begin + (int)column;
        const float x = clipped((float)a.qkv[token * a.qkv_stride + c], a.clip);
        return {rotated_back(a, a.out + token * a.out_stride, token, c), x * a.rstd[token * a.norms + n]};
    }
    __device__ void apply(int64_t, int64_t, Loaded loaded, float *sum) const {
        *sum = fmaf(loaded.d, loaded.hat, *sum);
    }
};

template <typename T, int V>
HeadsOf<T> heads_of(Exec *exec, const char *operation, Tensor out, Tensor qkv, const Heads &h) {
    HeadsOf<T> a = {};
    a.out = (T *)out.data;
    a.qkv = (const T *)qkv.data;
    a.rotations = (const float *)h.rotations.data;
    a.weight[0] = (const T *)h.q_weight.data;
    a.weight[1] = (const T *)h.k_weight.data;
    a.amax = out.amax;
    a.out_stride = out.stride;
    a.qkv_stride = qkv.stride;
    a.positions = (const int32_t *)h.positions.data;
    a.T_length = h.shape.T;
    a.q_heads = h.shape.heads;
    a.heads = h.shape.heads + h.shape.kv_heads;
    a.half = h.shape.head_dim / 2;
    a.across = a.half / V < HEADS_THREADS ? a.half / V : HEADS_THREADS;
    a.at_once = HEADS_THREADS / a.across;
    a.columns = (int)out.cols;
    a.eps = h.eps;
    a.clip = h.clip;
    if (!h.q_weight.data) return a;
    a.width[0] = (int)h.q_weight.cols;
    a.width[1] = (int)h.k_weight.cols;
    a.q_norms = h.shape.heads * h.shape.head_dim / a.width[0];
    a.norms = a.q_norms + h.shape.kv_heads * h.shape.head_dim / a.width[1];
    const size_t bytes = (size_t)out.rows * (size_t)a.norms * sizeof(float);
    if (bytes > exec->workspace_bytes / 2)
        fatal(EXIT_DEVICE, "%s on the GPU: the norms of %lld tokens do not fit the workspace", operation,
              (long long)out.rows);
    a.rstd =
        (float *)((char *)exec->workspace + (exec->workspace_bytes - bytes) / 16 * 16); // sums are at its beginning
    heads_statistics_kernel<T><<<grid_of(out.rows), HEADS_THREADS, 0, cuda_backend(exec)->stream>>>(a);
    LAUNCH_CHECK("heads_statistics_kernel");
    return a;
}

void require_heads(const char *operation, Tensor out, Tensor qkv, const Heads &h) {
    require_format(operation, "qkv", qkv, out.format);
    require_format(operation, "positions", h.positions, FMT_I32);
    require_format(operation, "the weight of q's norm", h.q_weight, out.format);
    require_format(operation, "the weight of k's norm", h.k_weight, out.format);
}

// 8 values at a time lie in one half of a head.
bool heads_wide(Tensor out, Tensor qkv, const Heads &h) {
    return h.shape.head_dim % 16 == 0 && tensor_wide(out) && tensor_wide(qkv) && tensor_wide(h.rotations);
}

} // namespace

void cuda_heads_forward(Exec *exec, Tensor out, Tensor qkv, Heads heads) {
    const char *operation = "heads_forward";
    if ((out.data == qkv.data && !heads_changed(&heads)) || out.rows == 0) return;
    require_heads(operation, out, qkv, heads);
    for_layout(operation, out.format, heads_wide(out, qkv, heads), [&]<typename T, int V>(Layout<T, V>) {
        const HeadsOf<T> a = heads_of<T, V>(exec, operation, out, qkv, heads);
        heads_forward_kernel<T, V><<<grid_of(out.rows), HEADS_THREADS, 0, cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("heads_forward_kernel");
    });
}

void cuda_heads_backward(Exec *exec, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor qkv, Heads heads,
                         bool accumulate) {
    const char *operation = "heads_backward";
    if (!heads_changed(&heads) || dqkv.rows == 0) return;
    require_heads(operation, dqkv, qkv, heads);
    require_format(operation, "the gradient of a weight", dq_weight, FMT_FP32);
    for_layout(operation, dqkv.format, heads_wide(dqkv, qkv, heads), [&]<typename T, int V>(Layout<T, V>) {
        const HeadsOf<T> a = heads_of<T, V>(exec, operation, dqkv, qkv, heads);
        const int k_norms = a.norms - a.q_norms;
        if (a.norms > 0) { // before the gradient is overwritten
            columns_run<1>(exec, HeadNormWeight<T>{a, 0, a.q_norms}, dqkv.rows * a.q_norms, a.width[0],
                           (float *)dq_weight.data, accumulate);
            columns_run<1>(exec, HeadNormWeight<T>{a, a.q_norms, k_norms}, dqkv.rows * k_norms, a.width[1],
                           (float *)dk_weight.data, accumulate);
        }
        heads_backward_kernel<T, V>
            <<<grid_of(dqkv.rows), HEADS_THREADS, (size_t)a.norms * sizeof(float), cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("heads_backward_kernel");
    });
}
