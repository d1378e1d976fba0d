// The norms: residual addition with the norm behind it, the norm again for the weight gradient, and the norm's
// backward (COAT sections 3 and 4). LayerNorm, and RMSNorm where the mean is absent.
#include "cuda_kernels.h"

namespace {

// --- what forward and rebuild share -------------------------------------------------------------------------
// One value of the norm. Written out so that the compiler rounds it alike everywhere: backward makes the bits of
// forward again.
__device__ inline float norm_hat(float x, float mean, float rstd) {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

__device__ inline float norm_value(float x, float mean, float rstd, float weight, float bias) {
    return __fmaf_rn(norm_hat(x, mean, rstd), weight, bias);
}

template <int V, typename T> __device__ inline void load_parameter_or_zero(const T *address, float out[V]) {
    if (address) {
        unpack<V>(load_parameter<V>(address), out);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = 0.0f;
    }
}

template <typename T> struct NormForward {
    T *n, *x, *r_out;         // NULL: not to be written
    const T *r_in, *y;        // y NULL: nothing to add
    const T *y_bias;          // may be NULL
    const T *weight, *bias;   // bias may be NULL
    float *mean, *rstd;       // mean NULL: RMSNorm; rstd NULL: not to be written
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
constexpr int ANY_THREADS = 256;

template <typename T> __global__ __launch_bounds__(ANY_THREADS) void norm_forward_any_kernel(NormForward<T> a) {
    __shared__ float shared[2][ANY_THREADS / WARP];
    const int64_t row = blockIdx.x;
    const T *r = a.r_in + row * a.r_in_stride;
    if (a.r_out) r = a.r_out + row * a.r_out_stride;
    else if (a.x) r = a.x + row * a.x_stride;
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

// --- backward -----------------------------------------------------------------------------------------------
template <typename T> struct NormBackward {
    T *g;
    const T *dn, *x, *weight;
    const float *mean, *rstd; // mean NULL: RMSNorm
    uint32_t *amax;           // maxima of the bits of |g|, one per row; may be NULL
    float *partials;          // (gridDim.x, 2, cols): the blocks' shares of dweight and dbias
    int64_t g_stride, dn_stride, x_stride;
    int64_t rows;
    int cols;
    bool add;
};

// A persistent block takes ROWS rows at a time; a thread keeps its 8 columns, so that the weight stays in
// registers and so do the sums for dweight and dbias. Per group of rows there is one exchange: two sums per row.
template <typename T, int THREADS, int BLOCKS_PER_SM, int ROWS>
__global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void norm_backward_kernel(NormBackward<T> a) {
    constexpr int V = 8, WARPS = THREADS / WARP;
    __shared__ float2 shared[2][WARPS][ROWS]; // two sets in turn, so that one barrier per group is enough
    __shared__ uint32_t shared_max[2][WARPS][ROWS];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    const int column = (int)threadIdx.x * V;
    const bool inside = column < a.cols;
    const float per_column = 1.0f / (float)a.cols;
    float weight[V] = {}, dweight[V] = {}, dbias[V] = {};
    if (inside) unpack<V>(load_parameter<V>(a.weight + column), weight);

    int set = 0;
    for (int64_t first = (int64_t)blockIdx.x * ROWS; first < a.rows; first += (int64_t)gridDim.x * ROWS, set ^= 1) {
        Pack<T, V> dn[ROWS], x[ROWS], g[ROWS];
        float mean[ROWS], rstd[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = first + r;
            if (row < a.rows && inside) {
                dn[r] = load_streaming<V>(a.dn + row * a.dn_stride + column);
                x[r] = load_streaming<V>(a.x + row * a.x_stride + column);
                if (a.add) g[r] = load_streaming<V>(a.g + row * a.g_stride + column);
                mean[r] = a.mean ? a.mean[row] : 0.0f;
                rstd[r] = a.rstd[row];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float2 sums = {0.0f, 0.0f}; // of dn * weight, and of that times xhat
            if (first + r < a.rows && inside) {
                float d[V], value[V];
                unpack<V>(dn[r], d);
                unpack<V>(x[r], value);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const float hat = norm_hat(value[i], mean[r], rstd[r]);
                    const float scaled = d[i] * weight[i];
                    sums.x += scaled;
                    sums.y = fmaf(scaled, hat, sums.y);
                    dweight[i] = fmaf(d[i], hat, dweight[i]);
                    dbias[i] += d[i];
                }
            }
            sums.x = warp_sum(sums.x);
            sums.y = warp_sum(sums.y);
            if (lane == 0) shared[set][warp][r] = sums;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint32_t largest = 0;
            if (first + r < a.rows && inside) {
                float2 sums = {0.0f, 0.0f};
                for (int w = 0; w < warps; w++) {
                    sums.x += shared[set][w][r].x;
                    sums.y += shared[set][w][r].y;
                }
                const float mean_d = a.mean ? sums.x * per_column : 0.0f, mean_dot = sums.y * per_column;
                float d[V], value[V], out[V];
                unpack<V>(dn[r], d);
                unpack<V>(x[r], value);
                if (a.add) {
                    unpack<V>(g[r], out);
                } else {
#pragma unroll
                    for (int i = 0; i < V; i++) out[i] = 0.0f;
                }
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const float hat = norm_hat(value[i], mean[r], rstd[r]);
                    out[i] = fmaf(rstd[r], d[i] * weight[i] - mean_d - hat * mean_dot, out[i]);
                }
                const Pack<T, V> kept = packed<T, V>(out);
                store(a.g + (first + r) * a.g_stride + column, kept);
                if (a.amax) {
                    unpack<V>(kept, out);
#pragma unroll
                    for (int i = 0; i < V; i++) largest = max(largest, __float_as_uint(out[i]) & 0x7fffffffu);
                }
            }
            if (a.amax) {
                largest = __reduce_max_sync(ALL_LANES, largest);
                if (lane == 0) shared_max[set][warp][r] = largest;
            }
        }
        if (a.amax) {
            __syncthreads();
            if (threadIdx.x < ROWS && first + threadIdx.x < a.rows) {
                uint32_t largest = 0;
                for (int w = 0; w < warps; w++) largest = max(largest, shared_max[set][w][threadIdx.x]);
                a.amax[first + threadIdx.x] = largest;
            }
        }
    }
    if (inside) {
        float *const out = a.partials + (int64_t)blockIdx.x * 2 * a.cols + column;
        Pack<float, V> sums = packed<float, V>(dweight);
        store(out, sums);
        sums = packed<float, V>(dbias);
        store(out + a.cols, sums);
    }
}

// Any width: a block per row for g, and the walk over columns for the parameters' gradients.
template <typename T> __global__ __launch_bounds__(ANY_THREADS) void norm_backward_any_kernel(NormBackward<T> a) {
    __shared__ float shared[2][ANY_THREADS / WARP];
    __shared__ uint32_t shared_max[ANY_THREADS / WARP];
    const int64_t row = blockIdx.x;
    const T *const dn = a.dn + row * a.dn_stride, *const x = a.x + row * a.x_stride;
    T *const g = a.g + row * a.g_stride;
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
        g[c] = (T)fmaf(rstd, gradient, a.add ? (float)g[c] : 0.0f);
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

template <typename T, bool OF_WEIGHT> struct NormParameterGradient {
    static constexpr int unroll = 4;
    static constexpr bool sums = true;
    struct Loaded {
        float dn, hat;
    };
    NormBackward<T> a;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        if (!OF_WEIGHT) return {(float)a.dn[row * a.dn_stride + column], 1.0f};
        return {(float)a.dn[row * a.dn_stride + column],
                norm_hat((float)a.x[row * a.x_stride + column], a.mean ? a.mean[row] : 0.0f, a.rstd[row])};
    }
    __device__ void apply(int64_t, int64_t, Loaded loaded, float *sum) const {
        *sum = fmaf(loaded.dn, loaded.hat, *sum);
    }
};

template <typename T>
void norm_backward_any(Exec *exec, const NormBackward<T> &a, float *dweight, float *dbias, bool accumulate) {
    norm_backward_any_kernel<T><<<grid_of(a.rows), ANY_THREADS, 0, cuda_backend(exec)->stream>>>(a);
    LAUNCH_CHECK("norm_backward_any_kernel");
    if (dweight)
        columns_run<1>(exec, NormParameterGradient<T, true>{a}, a.rows, a.cols, dweight, accumulate);
    if (dbias) columns_run<1>(exec, NormParameterGradient<T, false>{a}, a.rows, a.cols, dbias, accumulate);
}

template <typename T, int THREADS, int BLOCKS_PER_SM, int ROWS>
void norm_backward_run(Exec *exec, NormBackward<T> a, float *dweight, float *dbias, bool accumulate) {
    const CudaBackend *backend = cuda_backend(exec);
    const int64_t groups = ceil_div(a.rows, ROWS), slots = (int64_t)backend->sm_count * BLOCKS_PER_SM;
    const int64_t blocks = groups < slots ? groups : slots;
    const int threads = (int)ceil_div(a.cols, 8 * WARP) * WARP;
    if ((size_t)(blocks * 2 * a.cols) * sizeof(float) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "norm_backward: %d channels do not fit the workspace", a.cols);
    a.partials = (float *)exec->workspace;
    norm_backward_kernel<T, THREADS, BLOCKS_PER_SM, ROWS>
        <<<grid_of(blocks), (unsigned)threads, 0, backend->stream>>>(a);
    LAUNCH_CHECK("norm_backward_kernel");
    partials_sum_pair(exec, dweight, dbias, a.partials, (int)blocks, a.cols, accumulate);
}

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

void cuda_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                        bool accumulate) {
    const char *operation = "norm_backward";
    const Tensor all[] = {dn, norm.x, norm.weight};
    bool wide = tensor_wide(g);
    for (const Tensor &t : all) {
        require_format(operation, "a tensor", t, g.format);
        wide = wide && tensor_wide(t);
    }
    require_format(operation, "the weight's gradient", dweight, FMT_FP32);
    require_format(operation, "the bias's gradient", dbias, FMT_FP32);
    if (g.rows == 0) return;
    for_layout(operation, g.format, wide, [&](auto layout) {
        typedef typename decltype(layout)::type T;
        NormBackward<T> a = {};
        a.g = (T *)g.data;
        a.dn = (const T *)dn.data;
        a.x = (const T *)norm.x.data;
        a.weight = (const T *)norm.weight.data;
        a.mean = (const float *)norm.mean.data;
        a.rstd = (const float *)norm.rstd.data;
        a.amax = g.amax;
        a.g_stride = g.stride;
        a.dn_stride = dn.stride;
        a.x_stride = norm.x.stride;
        a.rows = g.rows;
        a.cols = (int)g.cols;
        a.add = add;
        float *const dw = (float *)dweight.data, *const db = (float *)dbias.data;
        constexpr bool half = sizeof(T) == 2; // FP32 rows fill the registers sooner
        if (!wide || a.cols > (half ? 8192 : 4096))
            norm_backward_any<T>(exec, a, dw, db, accumulate);
        else if (a.cols <= 1024)
            norm_backward_run<T, 128, 4, half ? 4 : 2>(exec, a, dw, db, accumulate);
        else if (a.cols <= 2048)
            norm_backward_run<T, 256, 2, half ? 4 : 2>(exec, a, dw, db, accumulate);
        else if (a.cols <= 4096)
            norm_backward_run<T, 512, 1, half ? 4 : 2>(exec, a, dw, db, accumulate);
        else if constexpr (half)
            norm_backward_run<T, 1024, 1, 1>(exec, a, dw, db, accumulate);
    });
}
