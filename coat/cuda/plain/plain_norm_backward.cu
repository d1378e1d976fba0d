// Backward of norms, LayerNorm or RMSNorm: the gradient of the residual stream, and the gradients of the norm's
// parameters, reduced in a fixed order. BF16 of common widths uses fp8_norm_backward.cu instead. Also implements
// residual_backward for post-norm, which per element reads g and dn (2 bytes each) and writes g (2 bytes).
#include "plain_norm.h"

namespace {

template <typename T> struct NormBackward {
    Matrix<T> g;
    Matrix<const T> dn, x;
    const T *weight;
    const float *mean, *rstd; // mean and 1 / standard deviation of each row, from the forward; mean is NULL for RMSNorm
    uint32_t *amax;           // amax of each row of g as FP32 bits; NULL: not computed
    int cols;
    bool add;
};

// Computes the residual stream's gradient g for norms of any width, one block per row. g must not share memory with dn
// or x, because column sums over dn and x later give the gradients of the norm's parameters.
template <typename T> __global__ __launch_bounds__(ANY_THREADS) void norm_backward_kernel(NormBackward<T> a) {
    __shared__ float shared[2][ANY_THREADS / WARP];
    __shared__ uint32_t shared_max[ANY_THREADS / WARP];
    const int64_t row = blockIdx.x;
    const T *const dn = a.dn.at(row, 0), *const x = a.x.at(row, 0);
    T *const g = a.g.at(row, 0);
    const float mean = a.mean ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float sum = 0.0f, dot = 0.0f;
    for (int c = (int)threadIdx.x; c < a.cols; c += ANY_THREADS) {
        const float scaled = (float)dn[c] * (float)a.weight[c];
        sum += scaled;
        dot = fmaf(scaled, norm_hat((float)x[c], mean, rstd), dot);
    }
    const float per_column = 1.0f / (float)a.cols;
    sum = block_sum<ANY_THREADS / WARP>(sum, shared[0]);
    const float mean_d = a.mean ? sum * per_column : 0.0f;
    const float mean_dot = block_sum<ANY_THREADS / WARP>(dot, shared[1]) * per_column;
    uint32_t largest = 0;
    for (int c = (int)threadIdx.x; c < a.cols; c += ANY_THREADS) {
        const float hat = norm_hat((float)x[c], mean, rstd);
        const float gradient = (float)dn[c] * (float)a.weight[c] - mean_d - hat * mean_dot;
        g[c] = (T)((a.add ? (float)g[c] : 0.0f) + rstd * gradient);
        largest = max(largest, __float_as_uint((float)g[c]) & 0x7fffffffu);
    }
    if (!a.amax) return;
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (threadIdx.x % WARP == 0) shared_max[threadIdx.x / WARP] = largest;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (uint32_t other : shared_max) largest = max(largest, other);
    a.amax[row] = largest;
}

// Computes the gradient of the norm's weight (column sums of dn * xhat) or bias (column sums of dn).
template <typename T, bool OF_WEIGHT> struct NormParameterGradient {
    static constexpr int unroll = 4;
    static constexpr bool sums = true, rolling = false;
    struct Loaded {
        float dn, hat;
    };
    NormBackward<T> a;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        const float dn = (float)*a.dn.at(row, column);
        if (!OF_WEIGHT) return {dn, 1.0f};
        return {dn, norm_hat((float)*a.x.at(row, column), a.mean ? a.mean[row] : 0.0f, a.rstd[row])};
    }
    __device__ void apply(int64_t, int64_t, Loaded loaded, float *sum) const {
        *sum = fmaf(loaded.dn, loaded.hat, *sum);
    }
};

// Computes the residual stream's gradient with post-norm: g += dn.
template <typename T, int V> struct ResidualBackward {
    static constexpr int unroll = sizeof(T) == 4 ? 1 : 4;
    static constexpr bool sums = false, rolling = false;
    struct Loaded {
        Pack<T, V> g, dn;
        float scale;
    };
    Matrix<T> g;
    Matrix<const T> dn;
    const float *dn_scales; // row scales of dn, the gradient of the sublayer's input, (rows); NULL: dn is unscaled

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        return {load_streaming<V>(g.at(row, column)), load_streaming<V>(dn.at(row, column)),
                dn_scales ? dn_scales[row] : 1.0f};
    }
    __device__ void apply(int64_t row, int64_t column, const Loaded &loaded, float *) const {
        float sum[V], d[V];
        unpack<V>(loaded.g, sum);
        unpack<V>(loaded.dn, d);
#pragma unroll
        for (int i = 0; i < V; i++) sum[i] = fmaf(d[i], loaded.scale, sum[i]);
        store(g.at(row, column), packed<T, V>(sum));
    }
};

} // namespace

void cuda_residual_backward(Exec *exec, Tensor g, Tensor dn) {
    const char *operation = "residual_backward";
    require_format(operation, "dn", dn, g.format);
    for_layout(operation, g.format, tensor_wide(g) && tensor_wide(dn), [&]<typename T, int V>(Layout<T, V>) {
        const float *const scales = dn.granularity == SCALE_ROW ? (const float *)dn.scale : nullptr;
        const ResidualBackward<T, V> op = {matrix_of<T>(g), matrix_of<const T>(dn), scales};
        columns_run<V>(exec, op, g.rows, g.cols, nullptr, false);
    });
}

void plain_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                         bool accumulate) {
    const char *operation = "norm_backward";
    if (dn.granularity != SCALE_NONE)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: dn with row scales needs x with group scales", operation);
    const bool by_fp8_norm = fp8_norm_supports(operation, g.format, {g, dn, norm.x, norm.weight});
    require_format(operation, "the weight's gradient", dweight, FMT_FP32);
    require_format(operation, "the bias's gradient", dbias, FMT_FP32);
    if (g.rows == 0) return;
    if (by_fp8_norm) {
        fp8_norm_backward(exec, g, dweight, dbias, dn, norm, add, accumulate);
        return;
    }
    for_layout(operation, g.format, false, [&]<typename T, int V>(Layout<T, V>) {
        const NormBackward<T> a = {matrix_of<T>(g),
                                   matrix_of<const T>(dn),
                                   matrix_of<const T>(norm.x),
                                   (const T *)norm.weight.data,
                                   (const float *)norm.mean.data,
                                   (const float *)norm.rstd.data,
                                   g.amax,
                                   (int)g.cols,
                                   add};
        norm_backward_kernel<<<grid_of(g.rows), ANY_THREADS, 0, cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("norm_backward_kernel");
        float *const dw = (float *)dweight.data, *const db = (float *)dbias.data;
        if (dw) columns_run<1>(exec, NormParameterGradient<T, true>{a}, g.rows, g.cols, dw, accumulate);
        if (db) columns_run<1>(exec, NormParameterGradient<T, false>{a}, g.rows, g.cols, db, accumulate);
    });
}
