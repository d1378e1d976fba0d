// The norm's backward from the input that was kept in E4M3 with a scale per group (COAT section 4): the gradient of
// the residual stream with its row maxima, and those of the norm's parameters by a reduction in a fixed order.
//
// Bytes per element of device memory, with groups of 16: 2 + 1.125 + 2 read, 2 written.
#include "cuda_norm.h"
#include "fp8_kernels.h"

namespace {

constexpr int V = 8; // columns per thread

struct NormBackward {
    bf16 *g;
    const bf16 *dn, *weight;
    const uint8_t *codes;
    const uint16_t *scales;   // (rows, groups)
    const float *mean, *rstd; // mean NULL: RMSNorm
    uint32_t *amax;           // maxima of the rows of g; may be NULL
    float *partials;          // (gridDim.x, 2, cols): the blocks' shares of dweight and dbias
    int64_t g_stride, dn_stride, codes_stride;
    int64_t rows;
    int cols, groups, group_bits;
    bool add;
};

// Asynchronous copy of 8 codes.
__device__ inline void copy_codes(uint2 *shared, const uint8_t *address) {
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(address) : "memory");
}

// What groups of ROWS rows need, fetched STAGES groups ahead; slots belong to a thread each.
template <int ROWS, int STAGES> struct Ring {
    Pack<bf16, V> *values; // (STAGES, ROWS, 2, blockDim.x): dn and g
    uint2 *codes;          // (STAGES, ROWS, blockDim.x)

    __device__ static Ring over(uint4 *memory) {
        const int count = STAGES * ROWS * 2 * (int)blockDim.x;
        return {(Pack<bf16, V> *)memory, (uint2 *)(memory + count)};
    }
    __device__ Pack<bf16, V> *value(int stage, int row, int operand) const {
        return values + ((stage * ROWS + row) * 2 + operand) * (int)blockDim.x + (int)threadIdx.x;
    }
    __device__ uint2 *code(int stage, int row) const {
        return codes + (stage * ROWS + row) * (int)blockDim.x + (int)threadIdx.x;
    }
    static size_t bytes(int threads) { return (size_t)(STAGES * ROWS * threads) * (2 * sizeof(uint4) + sizeof(uint2)); }
};

// Statistics and the group's scale of a thread's next rows.
template <int ROWS> struct RowFactors {
    float mean[ROWS], rstd[ROWS];
    uint16_t scale[ROWS];

    __device__ void load(const NormBackward &a, int64_t first, int column, bool inside) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (inside && first + r < a.rows) {
                mean[r] = a.mean ? a.mean[first + r] : 0.0f;
                rstd[r] = a.rstd[first + r];
                scale[r] = a.scales[(first + r) * a.groups + (column >> a.group_bits)];
            }
        }
    }
};

// A persistent block takes ROWS rows at a time, and a thread keeps its 8 columns, so that the weight and the sums
// for dweight and dbias stay in registers.
template <int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES>
__global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void norm_backward_kernel(const __grid_constant__ NormBackward a) {
    constexpr int WARPS = THREADS / WARP;
    extern __shared__ uint4 ring_memory[];
    __shared__ alignas(16) float shared[2][WARPS][2 * ROWS]; // two sets in turn: one barrier per group is enough
    __shared__ uint32_t shared_max[2][WARPS][ROWS];
    second_stage_allow();
    const Ring<ROWS, STAGES> ring = Ring<ROWS, STAGES>::over(ring_memory);
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
                copy_async<V>(ring.value(stage, r, 0), a.dn + row * a.dn_stride + column);
                if (a.add) copy_async<V>(ring.value(stage, r, 1), (const bf16 *)a.g + row * a.g_stride + column);
                copy_codes(ring.code(stage, r), a.codes + row * a.codes_stride + column);
            }
        }
        copies_commit();
    };
    int64_t first = (int64_t)blockIdx.x * ROWS;
#pragma unroll
    for (int s = 0; s < STAGES; s++) fetch(first + s * step, s);
    RowFactors<ROWS> next = {};
    next.load(a, first, column, inside);
    float weight[V] = {}, dweight[V] = {}, dbias[V] = {};
    if (inside) unpack<V>(load_parameter<V>(a.weight + column), weight);

    for (int stage = 0, set = 0; first < a.rows; first += step, set ^= 1) {
        const RowFactors<ROWS> now = next;
        next.load(a, first + step, column, inside);
        float sums[2 * ROWS] = {}; // per row of dn * weight, and of that times xhat
        copies_wait<STAGES - 1>();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (first + r < a.rows && inside) {
                const uint2 code = *ring.code(stage, r);
                const uint32_t words[2] = {code.x, code.y};
                float d[V], value[V];
                unpack<V>(load<V>((const bf16 *)ring.value(stage, r, 0)), d);
                decode<V>(words, bf16_decode(now.scale[r]), value);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const float hat = norm_hat(value[i], now.mean[r], now.rstd[r]);
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
            float largest = 0.0f;
            if (first + r < a.rows && inside) {
                const float mean_d = a.mean ? sums[2 * r] * per_column : 0.0f;
                const float mean_dot = sums[2 * r + 1] * per_column;
                const uint2 code = *ring.code(stage, r);
                const uint32_t words[2] = {code.x, code.y};
                float d[V], value[V], out[V] = {};
                unpack<V>(load<V>((const bf16 *)ring.value(stage, r, 0)), d);
                decode<V>(words, bf16_decode(now.scale[r]), value);
                if (a.add) unpack<V>(load<V>((const bf16 *)ring.value(stage, r, 1)), out);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    const float hat = norm_hat(value[i], now.mean[r], now.rstd[r]);
                    const float gradient = d[i] * weight[i] - mean_d - hat * mean_dot;
                    out[i] = fmaf(now.rstd[r], gradient, out[i]);
                }
                const Pack<bf16, V> kept = packed<bf16, V>(out);
                store(a.g + (first + r) * a.g_stride + column, kept);
                largest = largest_magnitude(kept, 0.0f);
            }
            if (a.amax) {
                const uint32_t bits = warp_maximum_bits(largest);
                if (lane == 0) shared_max[set][warp][r] = bits;
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
        store(out, packed<float, V>(dweight));
        store(out + a.cols, packed<float, V>(dbias));
    }
}

template <int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES>
bool norm_backward_run(Exec *exec, NormBackward a, float *dweight, float *dbias, bool accumulate) {
    const CudaBackend *backend = cuda_backend(exec);
    const auto kernel = norm_backward_kernel<THREADS, BLOCKS_PER_SM, ROWS, STAGES>;
    const int threads = row_threads(a.cols);
    const size_t ring = Ring<ROWS, STAGES>::bytes(threads);
    const int64_t groups = ceil_div(a.rows, ROWS), slots = resident_blocks(backend, kernel, threads, ring);
    const int64_t blocks = groups < slots ? groups : slots;
    if (blocks == 0) return false;
    if ((size_t)(blocks * 2 * a.cols) * sizeof(float) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "norm_backward: %d channels do not fit the workspace", a.cols);
    a.partials = (float *)exec->workspace;
    kernel<<<grid_of(blocks), (unsigned)threads, ring, backend->stream>>>(a);
    LAUNCH_CHECK("norm_backward_kernel");
    partials_sum_pair(exec, dweight, dbias, a.partials, (int)blocks, a.cols, accumulate);
    return true;
}

// False where the width is not built, or the device has too little shared memory.
bool norm_backward_launch(Exec *exec, const NormBackward &a, float *dweight, float *dbias, bool accumulate) {
    if (a.cols <= 1024) return norm_backward_run<128, 6, 2, 3>(exec, a, dweight, dbias, accumulate);
    if (a.cols <= 2048) return norm_backward_run<256, 3, 2, 3>(exec, a, dweight, dbias, accumulate);
    if (a.cols <= 4096) return norm_backward_run<512, 2, 1, 3>(exec, a, dweight, dbias, accumulate);
    if (a.cols <= 8192) return norm_backward_run<1024, 1, 1, 2>(exec, a, dweight, dbias, accumulate);
    return false;
}

} // namespace

void fp8_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                       bool accumulate) {
    const char *operation = "norm_backward";
    const Tensor plain[] = {g, dn, norm.weight};
    for (const Tensor &t : plain) {
        require_format(operation, "a tensor", t, FMT_BF16);
        require_spans(operation, "a tensor", t);
    }
    require_spans(operation, "x", norm.x);
    require_format(operation, "the weight's gradient", dweight, FMT_FP32);
    require_format(operation, "the bias's gradient", dbias, FMT_FP32);
    if (g.rows == 0) return;
    NormBackward a = {};
    a.g = (bf16 *)g.data;
    a.dn = (const bf16 *)dn.data;
    a.weight = (const bf16 *)norm.weight.data;
    a.codes = (const uint8_t *)norm.x.data;
    a.scales = (const uint16_t *)norm.x.scale;
    a.mean = (const float *)norm.mean.data;
    a.rstd = (const float *)norm.rstd.data;
    a.amax = g.amax;
    a.g_stride = g.stride;
    a.dn_stride = dn.stride;
    a.codes_stride = norm.x.stride;
    a.rows = g.rows;
    a.cols = (int)g.cols;
    a.groups = (int)ceil_div(norm.x.cols, norm.x.group);
    a.group_bits = group_bits_of(norm.x);
    a.add = add;
    if (!norm_backward_launch(exec, a, (float *)dweight.data, (float *)dbias.data, accumulate))
        fatal(EXIT_DEVICE, "%s on the GPU: %d channels are not built for FP8", operation, a.cols);
}
