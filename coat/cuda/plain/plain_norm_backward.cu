// The norm's backward (COAT: FP8 flow): the gradient of the residual stream, and those of the norm's parameters by
// a reduction in a fixed order. LayerNorm, and RMSNorm where the mean is absent.
#include "cuda/common/cuda_norm.h"

namespace {

// The persistent kernels of wide rows. A block takes ROWS rows at a time and a thread keeps its 8 columns, so that
// parameters stay in registers. What a group of rows needs is fetched STAGES groups ahead into a ring in shared
// memory, whose slots belong to a thread each: device memory is never left waiting for the exchanges of a group.
template <typename T, int OPERANDS, int ROWS, int STAGES> struct RowRing {
    Pack<T, 8> *slots; // (STAGES, ROWS, OPERANDS, blockDim.x)

    __device__ Pack<T, 8> *slot(int stage, int row, int operand) const {
        return slots + ((stage * ROWS + row) * OPERANDS + operand) * (int)blockDim.x + (int)threadIdx.x;
    }
    __device__ void fetch(int stage, int row, int operand, const T *address) const {
        copy_async<8>(slot(stage, row, operand), address);
    }
    __device__ Pack<T, 8> read(int stage, int row, int operand) const {
        return load<8>((const T *)slot(stage, row, operand));
    }
    static size_t bytes(int threads) { return sizeof(Pack<T, 8>) * STAGES * ROWS * OPERANDS * (size_t)threads; }
};

// Sums of N values over a block of `warps` warps, in every thread, in the warps' order. `shared` may be written
// again after the next barrier.
template <int N> __device__ inline void block_sums(float value[N], float (*shared)[N], int lane, int warp, int warps) {
    const float mine = warp_sums<N>(value);
    if (lane < N) shared[warp][lane] = mine;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = 0.0f;
#pragma unroll 4
    for (int w = 0; w < warps; w++) {
#pragma unroll
        for (int i = 0; i < N; i++) value[i] += shared[w][i];
    }
}

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

// The sums for dweight and dbias stay in registers too. Per group of rows there is one exchange: two sums per row.
template <typename T, int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES>
__global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void norm_backward_kernel(NormBackward<T> a) {
    constexpr int V = 8, WARPS = THREADS / WARP;
    extern __shared__ uint4 ring_memory[];
    __shared__ alignas(16) float shared[2][WARPS][2 * ROWS]; // two sets in turn: one barrier per group is enough
    __shared__ uint32_t shared_max[2][WARPS][ROWS];
    second_stage_allow();
    const RowRing<T, 3, ROWS, STAGES> ring = {(Pack<T, V> *)ring_memory};
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    const int column = (int)threadIdx.x * V;
    const bool inside = column < a.cols;
    const float per_column = 1.0f / (float)a.cols;
    const int64_t step = (int64_t)gridDim.x * ROWS;
    const auto fetch = [&](int64_t first, int stage) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = first + r;
            if (inside && row < a.rows) {
                ring.fetch(stage, r, 0, a.dn + row * a.dn_stride + column);
                ring.fetch(stage, r, 1, a.x + row * a.x_stride + column);
                if (a.add) ring.fetch(stage, r, 2, a.g + row * a.g_stride + column);
            }
        }
        copies_commit();
    };
    // of the group's rows: lanes below ROWS hold the means, the next ROWS lanes the reciprocal deviations
    const auto load_statistics = [&](int64_t first) {
        const float *const from = lane < ROWS ? a.mean : a.rstd;
        const int64_t row = first + lane % ROWS;
        return from && row < a.rows ? from[row] : 0.0f;
    };
    int64_t first = (int64_t)blockIdx.x * ROWS;
#pragma unroll
    for (int s = 0; s < STAGES; s++) fetch(first + s * step, s);
    float statistics = load_statistics(first);
    float weight[V] = {}, dweight[V] = {}, dbias[V] = {};
    if (inside) unpack<V>(load_parameter<V>(a.weight + column), weight);

    for (int stage = 0, set = 0; first < a.rows; first += step, set ^= 1) {
        Pack<T, V> dn[ROWS], x[ROWS];
        float mean[ROWS], rstd[ROWS], shift[ROWS]; // xhat = x * rstd + shift
        float sums[2 * ROWS] = {};                 // per row of dn * weight, and of that times xhat
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            mean[r] = __shfl_sync(ALL_LANES, statistics, r);
            rstd[r] = __shfl_sync(ALL_LANES, statistics, ROWS + r);
            shift[r] = -mean[r] * rstd[r];
        }
        statistics = load_statistics(first + step);
        copies_wait<STAGES - 1>();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first + r < a.rows && inside) {
                dn[r] = ring.read(stage, r, 0);
                x[r] = ring.read(stage, r, 1);
                float d[V], value[V];
                unpack<V>(dn[r], d);
                unpack<V>(x[r], value);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const float hat = fmaf(value[i], rstd[r], shift[r]);
                    const float scaled = d[i] * weight[i];
                    sums[2 * r] += scaled;
                    sums[2 * r + 1] = fmaf(scaled, hat, sums[2 * r + 1]);
                    dweight[i] = fmaf(d[i], hat, dweight[i]);
                    dbias[i] += d[i];
                }
            }
        }
        block_sums<2 * ROWS>(sums, shared[set], lane, warp, warps);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint32_t largest = 0;
            if (first + r < a.rows && inside) {
                // g + rstd * (dn * weight - mean_d - xhat * mean_dot), with xhat = x * rstd + shift put in
                const float mean_d = a.mean ? sums[2 * r] * per_column : 0.0f;
                const float mean_dot = sums[2 * r + 1] * per_column;
                const float slope = rstd[r] * mean_dot, offset = fmaf(shift[r], mean_dot, mean_d);
                float d[V], value[V], out[V] = {};
                unpack<V>(dn[r], d);
                unpack<V>(x[r], value);
                if (a.add) unpack<V>(ring.read(stage, r, 2), out);
#pragma unroll
                for (int i = 0; i < V; i++)
                    out[i] = fmaf(rstd[r], fmaf(d[i], weight[i], -fmaf(value[i], slope, offset)), out[i]);
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
        fetch(first + STAGES * step, stage);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
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

template <typename T, bool OF_WEIGHT> struct NormParameterGradient {
    static constexpr int unroll = 4;
    static constexpr bool sums = true, rolling = false;
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
    if (dweight) columns_run<1>(exec, NormParameterGradient<T, true>{a}, a.rows, a.cols, dweight, accumulate);
    if (dbias) columns_run<1>(exec, NormParameterGradient<T, false>{a}, a.rows, a.cols, dbias, accumulate);
}

// False where the device has too little shared memory.
template <typename T, int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES>
bool norm_backward_ring(Exec *exec, const NormBackward<T> &a, float *dweight, float *dbias, bool accumulate) {
    const int threads = row_threads(a.cols);
    return norm_backward_start(exec, norm_backward_kernel<T, THREADS, BLOCKS_PER_SM, ROWS, STAGES>, a, threads,
                               RowRing<T, 3, ROWS, STAGES>::bytes(threads), ceil_div(a.rows, ROWS), dweight, dbias,
                               accumulate);
}

template <typename T>
bool norm_backward_wide(Exec *exec, const NormBackward<T> &a, float *dweight, float *dbias, bool accumulate) {
    if constexpr (sizeof(T) == 2) {
        if (a.cols <= 1024) return norm_backward_ring<T, 128, 4, 4, 2>(exec, a, dweight, dbias, accumulate);
        if (a.cols <= 2048) return norm_backward_ring<T, 256, 3, 2, 3>(exec, a, dweight, dbias, accumulate);
        if (a.cols <= 4096) return norm_backward_ring<T, 512, 2, 1, 3>(exec, a, dweight, dbias, accumulate);
        if (a.cols <= 8192) return norm_backward_ring<T, 1024, 1, 1, 2>(exec, a, dweight, dbias, accumulate);
    } else {
        if (a.cols <= 1024) return norm_backward_ring<T, 128, 4, 1, 3>(exec, a, dweight, dbias, accumulate);
        if (a.cols <= 2048) return norm_backward_ring<T, 256, 2, 1, 3>(exec, a, dweight, dbias, accumulate);
        if (a.cols <= 4096) return norm_backward_ring<T, 512, 1, 1, 2>(exec, a, dweight, dbias, accumulate);
    }
    return false;
}

} // namespace

void plain_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                         bool accumulate) {
    const char *operation = "norm_backward";
    const Tensor all[] = {dn, norm.x, norm.weight};
    if (dn.granularity != SCALE_NONE)
        fatal(EXIT_DEVICE, "%s on the GPU: scales of dn's rows are built for a grouped x", operation);
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
        if (!wide || !norm_backward_wide<T>(exec, a, dw, db, accumulate))
            norm_backward_any<T>(exec, a, dw, db, accumulate);
    });
}
