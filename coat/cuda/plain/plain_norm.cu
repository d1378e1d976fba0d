// The norms of the forward pass: residual addition with the norm behind it, and the norm again for the weight
// gradient (COAT: saved activations). LayerNorm, and RMSNorm where the mean is absent.
#include "cuda/common/cuda_norm.h"

namespace {

template <int V, typename T> __device__ inline void load_parameter_or_zero(const T *address, float out[V]) {
    if (address) {
        unpack<V>(load_parameter<V>(address), out);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = 0.0f;
    }
}

// The new residual stream, as it is stored.
template <typename T, int V>
__device__ inline Pack<T, V> residual_sum(Pack<T, V> r, Pack<T, V> y, const float bias[V]) {
    float value[V], add[V];
    unpack<V>(r, value);
    unpack<V>(y, add);
#pragma unroll
    for (int i = 0; i < V; i++) value[i] = value[i] + add[i] + bias[i];
    return packed<T, V>(value);
}

template <typename T, int V> __device__ inline float pack_sum(Pack<T, V> pack) {
    float value[V], sum = 0.0f;
    unpack<V>(pack, value);
#pragma unroll
    for (int i = 0; i < V; i++) sum += value[i];
    return sum;
}

template <typename T, int V> __device__ inline float pack_squares(Pack<T, V> pack, float mean) {
    float value[V], squares = 0.0f;
    unpack<V>(pack, value);
#pragma unroll
    for (int i = 0; i < V; i++) squares = fmaf(value[i] - mean, value[i] - mean, squares);
    return squares;
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

// Narrow rows: a warp holds a row in registers, VECTORS vectors of 8 per thread, so that it is read once for the
// sum, the mean, the variance around the mean, and the result.
template <typename T, int VECTORS>
__global__ __launch_bounds__(NORM_THREADS, 1) void norm_forward_kernel(NormForward<T> a) {
    constexpr int V = 8;
    const int lane = (int)threadIdx.x % WARP;
    const int64_t row = (int64_t)blockIdx.x * (NORM_THREADS / WARP) + threadIdx.x / WARP;
    if (row >= a.rows) return;

    Pack<T, V> r[VECTORS], y[VECTORS];
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int column = (k * WARP + lane) * V;
        if (column < a.cols) r[k] = load_streaming<V>(a.r_in + row * a.r_in_stride + column);
    }
    if (a.y) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            const int column = (k * WARP + lane) * V;
            if (column < a.cols) y[k] = load_streaming<V>(a.y + row * a.y_stride + column);
        }
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            const int column = (k * WARP + lane) * V;
            if (column < a.cols) {
                float bias[V];
                load_parameter_or_zero<V>(a.y_bias ? a.y_bias + column : nullptr, bias);
                r[k] = residual_sum(r[k], y[k], bias);
            }
        }
    }

    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int column = (k * WARP + lane) * V;
        if (column < a.cols) {
            if (a.r_out) store(a.r_out + row * a.r_out_stride + column, r[k]);
            if (a.x) store(a.x + row * a.x_stride + column, r[k]);
            sum += pack_sum(r[k]);
        }
    }
    const float mean = a.mean ? warp_sum(sum) / (float)a.cols : 0.0f;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if ((k * WARP + lane) * V < a.cols) squares += pack_squares(r[k], mean);
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)a.cols + a.eps);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        const int column = (k * WARP + lane) * V;
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

// Wide rows: a block holds a row. A group's slots are free again as soon as its sums are in registers.
template <typename T, int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES>
__global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void norm_forward_ring_kernel(NormForward<T> a) {
    constexpr int V = 8, WARPS = THREADS / WARP;
    extern __shared__ uint4 ring_memory[];
    __shared__ float shared[2][WARPS][ROWS];
    const RowRing<T, 2, ROWS, STAGES> ring = {(Pack<T, V> *)ring_memory};
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    const int column = (int)threadIdx.x * V;
    const bool inside = column < a.cols;
    const float columns = (float)a.cols;
    const int64_t step = (int64_t)gridDim.x * ROWS;
    const auto fetch = [&](int64_t first, int stage) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = first + r;
            if (inside && row < a.rows) {
                ring.fetch(stage, r, 0, a.r_in + row * a.r_in_stride + column);
                if (a.y) ring.fetch(stage, r, 1, a.y + row * a.y_stride + column);
            }
        }
        copies_commit();
    };
    int64_t first = (int64_t)blockIdx.x * ROWS;
#pragma unroll
    for (int s = 0; s < STAGES; s++) fetch(first + s * step, s);
    Pack<T, V> y_bias = {}, weight = {}, bias = {};
    if (inside) {
        if (a.y_bias) y_bias = load_parameter<V>(a.y_bias + column);
        if (a.n) weight = load_parameter<V>(a.weight + column);
        if (a.bias) bias = load_parameter<V>(a.bias + column);
    }

    for (int stage = 0; first < a.rows; first += step, stage = stage + 1 < STAGES ? stage + 1 : 0) {
        Pack<T, V> r[ROWS];
        float sums[ROWS] = {}, squares[ROWS] = {}, mean[ROWS], rstd[ROWS];
        copies_wait<STAGES - 1>();
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const int64_t row = first + k;
            if (!inside || row >= a.rows) continue;
            r[k] = ring.read(stage, k, 0);
            if (a.y) {
                float add[V];
                unpack<V>(y_bias, add);
                r[k] = residual_sum(r[k], ring.read(stage, k, 1), add);
            }
            if (a.r_out) store(a.r_out + row * a.r_out_stride + column, r[k]);
            if (a.x) store(a.x + row * a.x_stride + column, r[k]);
            sums[k] = pack_sum(r[k]);
        }
        fetch(first + STAGES * step, stage);

        block_sums<ROWS>(sums, shared[0], lane, warp, warps);
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            mean[k] = a.mean ? sums[k] / columns : 0.0f;
            if (inside && first + k < a.rows) squares[k] = pack_squares(r[k], mean[k]);
        }
        block_sums<ROWS>(squares, shared[1], lane, warp, warps);
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const int64_t row = first + k;
            rstd[k] = 1.0f / sqrtf(squares[k] / columns + a.eps);
            if (row >= a.rows) continue;
            if (a.n && inside) {
                float value[V], scale[V], shift[V];
                unpack<V>(r[k], value);
                unpack<V>(weight, scale);
                unpack<V>(bias, shift);
#pragma unroll
                for (int i = 0; i < V; i++) value[i] = norm_value(value[i], mean[k], rstd[k], scale[i], shift[i]);
                store(a.n + row * a.n_stride + column, packed<T, V>(value));
            }
            if (threadIdx.x == 0) {
                if (a.mean) a.mean[row] = mean[k];
                if (a.rstd) a.rstd[row] = rstd[k];
            }
        }
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

template <typename T, int VECTORS> void norm_forward_warps(const CudaBackend *backend, const NormForward<T> &a) {
    norm_forward_kernel<T, VECTORS>
        <<<grid_of(ceil_div(a.rows, NORM_THREADS / WARP)), NORM_THREADS, 0, backend->stream>>>(a);
    LAUNCH_CHECK("norm_forward_kernel");
}

// False where the device has too little shared memory.
template <typename T, int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES>
bool norm_forward_ring(const CudaBackend *backend, const NormForward<T> &a) {
    const auto kernel = norm_forward_ring_kernel<T, THREADS, BLOCKS_PER_SM, ROWS, STAGES>;
    const int threads = row_threads(a.cols);
    const size_t ring = RowRing<T, 2, ROWS, STAGES>::bytes(threads);
    const int64_t groups = ceil_div(a.rows, ROWS), slots = resident_blocks(backend, kernel, threads, ring);
    if (slots == 0) return false;
    kernel<<<grid_of(groups < slots ? groups : slots), (unsigned)threads, ring, backend->stream>>>(a);
    LAUNCH_CHECK("norm_forward_ring_kernel");
    return true;
}

template <typename T> bool norm_forward_wide(const CudaBackend *backend, const NormForward<T> &a) {
    constexpr bool small = sizeof(T) == 2;
    if (a.cols <= 2048) return norm_forward_ring < T, 256, 4, small ? 2 : 1, 2 > (backend, a);
    if (a.cols <= 4096) return norm_forward_ring < T, 512, 2, small ? 2 : 1, 2 > (backend, a);
    if (a.cols <= 8192) return norm_forward_ring < T, 1024, 1, 1, small ? 2 : 1 > (backend, a);
    return false;
}

template <typename T> void norm_forward_launch(const CudaBackend *backend, const NormForward<T> &a, bool wide) {
    switch (wide ? ceil_div(a.cols, 8 * WARP) : INT64_MAX) { // vectors per thread, with a warp per row
    case 1: norm_forward_warps<T, 1>(backend, a); return;
    case 2: norm_forward_warps<T, 2>(backend, a); return;
    case 3: norm_forward_warps<T, 3>(backend, a); return;
    case 4: norm_forward_warps<T, 4>(backend, a); return;
    default: break;
    }
    if (wide && norm_forward_wide<T>(backend, a)) return;
    norm_forward_any_kernel<T><<<grid_of(a.rows), ANY_THREADS, 0, backend->stream>>>(a);
    LAUNCH_CHECK("norm_forward_any_kernel");
}

// --- again for the weight gradient --------------------------------------------------------------------------
template <typename T, int V> struct NormRebuild {
    static constexpr int unroll = sizeof(T) == 4 ? 1 : 2;
    static constexpr bool sums = false, rolling = false;
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

void plain_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias) {
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
        norm_forward_launch<T>(cuda_backend(exec), a, wide);
    });
}

void plain_norm_rebuild(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
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
