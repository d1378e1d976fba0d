// The norms of the forward pass: residual addition with the norm behind it, and the norm again for the weight
// gradient (COAT section 3). LayerNorm, and RMSNorm where the mean is absent.
#include "cuda_norm.h"

namespace {

template <int V, typename T> __device__ inline void load_parameter_or_zero(const T *address, float out[V]) {
    if (address) {
        unpack<V>(load_parameter<V>(address), out);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = 0.0f;
    }
}

template <typename T> struct NormForward {
    T *n, *x, *r_out;       // NULL: not to be written
    const T *r_in, *y;      // y NULL: nothing to add
    const T *y_bias;        // may be NULL
    const T *weight, *bias; // bias may be NULL
    float *mean, *rstd;     // mean NULL: RMSNorm; rstd NULL: not to be written
    int64_t n_stride, x_stride, r_out_stride, r_in_stride, y_stride;
    int64_t rows;
    int cols;
    float eps;
};

// --- forward ------------------------------------------------------------------------------------------------
constexpr int NORM_THREADS = 128;
constexpr int NORM_BLOCK_WARPS = NORM_THREADS / WARP;

// WARPS warps (1, or the block) hold a row in registers, VECTORS vectors of 8 per thread, so that it is read
// once for the sum, the mean, the variance around the mean, and the result.
template <typename T, int WARPS, int VECTORS>
__global__ __launch_bounds__(NORM_THREADS, 1) void norm_forward_kernel(NormForward<T> a) {
    constexpr int V = 8, LANES = WARPS * WARP;
    __shared__ float shared[2][NORM_BLOCK_WARPS];
    const int lane = (int)threadIdx.x % LANES;
    const int64_t row = (int64_t)blockIdx.x * (NORM_THREADS / LANES) + threadIdx.x / LANES;
    if (row >= a.rows) return; // whole warps, or the whole block

    Pack<T, V> r[VECTORS], y[VECTORS];
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int column = (k * LANES + lane) * V;
        if (column < a.cols) r[k] = load_streaming<V>(a.r_in + row * a.r_in_stride + column);
    }
    if (a.y) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            const int column = (k * LANES + lane) * V;
            if (column < a.cols) y[k] = load_streaming<V>(a.y + row * a.y_stride + column);
        }
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            const int column = (k * LANES + lane) * V;
            if (column < a.cols) {
                float value[V], add[V], bias[V];
                unpack<V>(r[k], value);
                unpack<V>(y[k], add);
                load_parameter_or_zero<V>(a.y_bias ? a.y_bias + column : nullptr, bias);
#pragma unroll
                for (int i = 0; i < V; i++) value[i] = value[i] + add[i] + bias[i];
                r[k] = packed<T, V>(value);
            }
        }
    }

    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int column = (k * LANES + lane) * V;
        if (column < a.cols) {
            if (a.r_out) store(a.r_out + row * a.r_out_stride + column, r[k]);
            if (a.x) store(a.x + row * a.x_stride + column, r[k]);
            float value[V];
            unpack<V>(r[k], value);
#pragma unroll
            for (int i = 0; i < V; i++) sum += value[i];
        }
    }
    const float mean = a.mean ? block_sum<WARPS>(sum, shared[0]) / (float)a.cols : 0.0f;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if ((k * LANES + lane) * V < a.cols) {
            float value[V];
            unpack<V>(r[k], value);
#pragma unroll
            for (int i = 0; i < V; i++) squares = fmaf(value[i] - mean, value[i] - mean, squares);
        }
    }
    const float rstd = 1.0f / sqrtf(block_sum<WARPS>(squares, shared[1]) / (float)a.cols + a.eps);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int column = (k * LANES + lane) * V;
        if (a.n && column < a.cols) {
            float value[V], weight[V], bias[V];
            unpack<V>(r[k], value);
            unpack<V>(load_parameter<V>(a.weight + column), weight);
            load_parameter_or_zero<V>(a.bias ? a.bias + column : nullptr, bias);
#pragma unroll
            for (int i = 0; i < V; i++) value[i] = norm_value(value[i], mean, rstd, weight[i], bias[i]);
            store(a.n + row * a.n_stride + column, packed<T, V>(value));
        }
    }
    if (lane == 0) {
        if (a.mean) a.mean[row] = mean;
        if (a.rstd) a.rstd[row] = rstd;
    }
}

// Any width: a block per row, which it reads again for each pass. A thread reads only what it wrote itself.
template <typename T> __global__ __launch_bounds__(ANY_THREADS) void norm_forward_any_kernel(NormForward<T> a) {
    __shared__ float shared[2][ANY_THREADS / WARP];
    const int64_t row = blockIdx.x;
    const T *r = a.r_in + row * a.r_in_stride;
    if (a.r_out)
        r = a.r_out + row * a.r_out_stride;
    else if (a.x)
        r = a.x + row * a.x_stride;
    float sum = 0.0f;
    for (int c = (int)threadIdx.x; c < a.cols; c += ANY_THREADS) {
        float value = (float)a.r_in[row * a.r_in_stride + c];
        if (a.y) value = value + (float)a.y[row * a.y_stride + c] + (a.y_bias ? (float)a.y_bias[c] : 0.0f);
        const T kept = (T)value;
        if (a.r_out) a.r_out[row * a.r_out_stride + c] = kept;
        if (a.x) a.x[row * a.x_stride + c] = kept;
        sum += (float)kept;
    }
    const float mean = a.mean ? block_sum<ANY_THREADS / WARP>(sum, shared[0]) / (float)a.cols : 0.0f;
    float squares = 0.0f;
    for (int c = (int)threadIdx.x; c < a.cols; c += ANY_THREADS) {
        const float centred = (float)r[c] - mean;
        squares = fmaf(centred, centred, squares);
    }
    squares = block_sum<ANY_THREADS / WARP>(squares, shared[1]);
    const float rstd = 1.0f / sqrtf(squares / (float)a.cols + a.eps);
    for (int c = (int)threadIdx.x; a.n && c < a.cols; c += ANY_THREADS)
        a.n[row * a.n_stride + c] =
            (T)norm_value((float)r[c], mean, rstd, (float)a.weight[c], a.bias ? (float)a.bias[c] : 0.0f);
    if (threadIdx.x == 0) {
        if (a.mean) a.mean[row] = mean;
        if (a.rstd) a.rstd[row] = rstd;
    }
}

template <typename T, int WARPS, int VECTORS> void norm_forward_run(cudaStream_t stream, const NormForward<T> &a) {
    const int64_t rows_per_block = NORM_BLOCK_WARPS / WARPS;
    norm_forward_kernel<T, WARPS, VECTORS><<<grid_of(ceil_div(a.rows, rows_per_block)), NORM_THREADS, 0, stream>>>(a);
}

template <typename T> void norm_forward_launch(cudaStream_t stream, const NormForward<T> &a, bool wide) {
    const int64_t vectors = wide ? ceil_div(a.cols, 8 * WARP) : INT64_MAX; // per thread, with a warp per row
    switch (vectors) {
    case 1: norm_forward_run<T, 1, 1>(stream, a); break;
    case 2: norm_forward_run<T, 1, 2>(stream, a); break;
    case 3: norm_forward_run<T, 1, 3>(stream, a); break;
    case 4: norm_forward_run<T, 1, 4>(stream, a); break;
    case 5: norm_forward_run<T, 1, 5>(stream, a); break;
    case 6: norm_forward_run<T, 1, 6>(stream, a); break;
    case 7: norm_forward_run<T, 1, 7>(stream, a); break;
    case 8: norm_forward_run<T, 1, 8>(stream, a); break;
    default:
        if (vectors <= 4 * NORM_BLOCK_WARPS)
            norm_forward_run<T, NORM_BLOCK_WARPS, 4>(stream, a);
        else if (vectors <= 8 * NORM_BLOCK_WARPS)
            norm_forward_run<T, NORM_BLOCK_WARPS, 8>(stream, a);
        else
            norm_forward_any_kernel<T><<<grid_of(a.rows), ANY_THREADS, 0, stream>>>(a);
    }
    LAUNCH_CHECK("norm_forward_kernel");
}

// --- again for the weight gradient --------------------------------------------------------------------------
template <typename T, int V> struct NormRebuild {
    static constexpr int unroll = sizeof(T) == 4 ? 1 : 4;
    static constexpr bool sums = false;
    struct Loaded {
        Pack<T, V> x;
        float mean, rstd;
    };
    T *n;
    const T *x, *weight, *bias;
    const float *mean, *rstd;
    int64_t n_stride, x_stride;
    float weight_here[V], bias_here[V];

    __device__ void begin(int64_t column) {
        unpack<V>(load_parameter<V>(weight + column), weight_here);
        load_parameter_or_zero<V>(bias ? bias + column : nullptr, bias_here);
    }
    __device__ Loaded load(int64_t row, int64_t column) const {
        return {load_streaming<V>(x + row * x_stride + column), mean ? mean[row] : 0.0f, rstd[row]};
    }
    __device__ void apply(int64_t row, int64_t column, const Loaded &loaded, float *) const {
        float value[V];
        unpack<V>(loaded.x, value);
#pragma unroll
        for (int i = 0; i < V; i++)
            value[i] = norm_value(value[i], loaded.mean, loaded.rstd, weight_here[i], bias_here[i]);
        store(n + row * n_stride + column, packed<T, V>(value));
    }
};

} // namespace

void cuda_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias) {
    const char *operation = "residual_norm_forward";
    const Tensor all[] = {n, norm.x, r_out, y, y_bias, norm.weight, norm.bias};
    bool wide = tensor_wide(r_in);
    for (const Tensor &t : all) {
        require_format(operation, "a tensor", t, r_in.format);
        wide = wide && tensor_wide(t);
    }
    if (!y.data && r_out.data == r_in.data) r_out.data = NULL; // complete already
    if (norm.x.data == r_out.data || (!y.data && norm.x.data == r_in.data)) norm.x.data = NULL;
    if (r_in.rows == 0) return;
    for_layout(operation, r_in.format, wide, [&](auto layout) {
        typedef typename decltype(layout)::type T;
        const NormForward<T> a = {(T *)n.data,
                                  (T *)norm.x.data,
                                  (T *)r_out.data,
                                  (const T *)r_in.data,
                                  (const T *)y.data,
                                  (const T *)y_bias.data,
                                  (const T *)norm.weight.data,
                                  (const T *)norm.bias.data,
                                  (float *)norm.mean.data,
                                  (float *)norm.rstd.data,
                                  n.stride,
                                  norm.x.stride,
                                  r_out.stride,
                                  r_in.stride,
                                  y.stride,
                                  r_in.rows,
                                  (int)r_in.cols,
                                  norm.eps};
        norm_forward_launch<T>(cuda_backend(exec)->stream, a, wide);
    });
}

void cuda_norm_rebuild(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
    if (!n_t.data || n_t.data == n.data) return;
    const char *operation = "norm_rebuild";
    const Tensor all[] = {norm.x, norm.weight, norm.bias};
    bool wide = tensor_wide(n_t);
    for (const Tensor &t : all) {
        require_format(operation, "a tensor", t, n_t.format);
        wide = wide && tensor_wide(t);
    }
    for_layout(operation, n_t.format, wide, [&](auto layout) {
        typedef typename decltype(layout)::type T;
        constexpr int V = decltype(layout)::width;
        NormRebuild<T, V> op = {};
        op.n = (T *)n_t.data;
        op.x = (const T *)norm.x.data;
        op.weight = (const T *)norm.weight.data;
        op.bias = (const T *)norm.bias.data;
        op.mean = (const float *)norm.mean.data;
        op.rstd = (const float *)norm.rstd.data;
        op.n_stride = n_t.stride;
        op.x_stride = norm.x.stride;
        columns_run<V>(exec, op, n_t.rows, n_t.cols, nullptr, false);
    });
}
