// Backward of norms whose input is saved in E4M3 with a scale per group or in BF16. Computes the gradient g of the
// residual stream, g's row amaxes, and the gradients of the norm's parameters, reduced in a fixed order.
//
// Bytes per element with groups of 16: reads dn 2, x 1.125, residual's gradient 2; writes residual's gradient 2.
#include "fp8_norm.h"

namespace {

constexpr int V = 8; // number of columns that a thread processes

struct Fp8NormBackward {
    Matrix<bf16> g;
    Matrix<const bf16> dn;
    Matrix<const char> x; // input that the forward saved, in E4M3 with group scales or in BF16; the stride is in bytes
    const uint16_t *scales; // (rows, groups) group scales
    const bf16 *weight;
    const float *mean, *rstd; // mean and 1 / standard deviation of each row, from the forward; mean is NULL for RMSNorm
    const float *dn_scales;   // row scales of dn, the gradient of the norm's result, (rows); NULL: dn is unscaled
    uint32_t *amax;           // row amaxes of g, the residual stream's gradient; NULL: not computed
    float *partials;          // (gridDim.x, 2, cols) the blocks' partial sums for dweight and dbias
    int rows, cols, groups, group_bits;
    bool add;
};

// The values of x that a thread loads from a row: 8 E4M3 values (GROUPED) or 8 BF16 values.
template <bool GROUPED> struct SavedColumns;
template <> struct SavedColumns<true> {
    uint2 codes;

    __device__ static void copy(SavedColumns *shared, const char *address) {
        const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(address) : "memory");
    }
    struct Values {
        __half2 halves[V / 2];
    };
    __device__ Values read() const {
        const uint2 code = codes;
        const uint32_t words[2] = {code.x, code.y};
        Values values;
        decode_halves<V>(words, values.halves);
        return values;
    }
    __device__ static void unpacked(const Values &values, float out[V]) { unpack_halves<V>(values.halves, out); }
};
template <> struct SavedColumns<false> {
    Pack<bf16, V> pack;

    __device__ static void copy(SavedColumns *shared, const char *address) {
        copy_async<V>(&shared->pack, (const bf16 *)address);
    }
    typedef Pack<bf16, V> Values;
    __device__ Values read() const { return load<V>((const bf16 *)&pack); }
    __device__ static void unpacked(const Values &values, float out[V]) { unpack<V>(values, out); }
};

// Ring buffer in shared memory: STAGES slots per thread. A slot holds one thread's inputs of a group of ROWS rows. A
// group is loaded STAGES groups in advance.
template <bool GROUPED, int THREADS, int ROWS, int STAGES> struct Ring {
    Pack<bf16, V> dn[STAGES][ROWS][THREADS], g[STAGES][ROWS][THREADS];
    SavedColumns<GROUPED> x[STAGES][ROWS][THREADS];
};

// Norm statistics, row scales of dn and group scales of x, for the next ROWS rows that a thread processes.
template <int ROWS> struct RowFactors {
    Pack<float, ROWS> mean, rstd, dn_scale;
    uint16_t scale[ROWS];
};

// Converts dn, the gradient of the norm's result, to FP32 and multiplies dn by the row scale.
__device__ inline void unpack_scaled(const Pack<bf16, V> &dn, float scale, float out[V]) {
    unpack<V>(dn, out);
#pragma unroll
    for (int i = 0; i < V; i++) out[i] *= scale;
}

// Adds a thread's columns of a row to four sums: dn * weight to sums[0], dn * weight * xhat to sums[1], and the row's
// terms to dweight and dbias.
__device__ inline void add_to_sums(const float dn[V], const float x[V], const float weight[V], HatOf hat, float sums[2],
                                   float dweight[V], float dbias[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) {
        const float xhat = fmaf(x[i], hat.factor, hat.shift), scaled = dn[i] * weight[i];
        sums[0] += scaled;
        sums[1] = fmaf(scaled, xhat, sums[1]);
        dweight[i] = fmaf(dn[i], xhat, dweight[i]);
        dbias[i] += dn[i];
    }
}

// Computes 2 * ROWS means over the columns from the warps' partial sums, shared[warp][sum]. The mean of sum number s is
// in mean[p] of each lane with (p * WARP + lane) / WARPS = s.
template <int ROWS, int WARPS, int PARTS>
__device__ inline void means_of_rows(const float (&shared)[WARPS][2 * ROWS], int lane, int warps, float per_column,
                                     float (&mean)[PARTS]) {
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const int of_warp = lane % WARPS, of_sum = (p * WARP + lane) / WARPS;
        mean[p] = of_warp < warps && of_sum < 2 * ROWS ? shared[of_warp][of_sum] : 0.0f;
        mean[p] = lanes_sum<WARPS>(mean[p]) * per_column;
    }
}

// Kernel of the norms' backward. Persistent blocks process groups of ROWS rows, with one barrier per group. A group's
// row amaxes are written after the next group's barrier, so only the last group needs a second barrier. A thread
// processes the same 8 columns of every row, so the weight and the partial sums of dweight and dbias stay in registers.
// a.rows is a multiple of ROWS. The slots of threads whose columns do not exist contain zeros.
template <bool GROUPED, int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES>
__global__ __launch_bounds__(THREADS,
                             BLOCKS_PER_SM) void fp8_norm_backward_kernel(const __grid_constant__ Fp8NormBackward a) {
    constexpr int WARPS = THREADS / WARP, PARTS = (2 * ROWS * WARPS + WARP - 1) / WARP;
    extern __shared__ uint4 ring_memory[];
    __shared__ float shared[2][WARPS][2 * ROWS]; // double buffer
    __shared__ uint32_t shared_max[2][WARPS][ROWS];
    second_stage_allow();
    Ring<GROUPED, THREADS, ROWS, STAGES> &ring = *(Ring<GROUPED, THREADS, ROWS, STAGES> *)ring_memory;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    const int column = (int)threadIdx.x * V;
    const bool inside = column < a.cols;
    const float per_column = 1.0f / (float)a.cols;
    const int first = (int)blockIdx.x * ROWS, step = (int)gridDim.x * ROWS;
    int row = first, fetched = first;
    const bf16 *dn_from = a.dn.at(row, column), *g_from = a.g.at(row, column);
    const char *x_from = a.x.at(row, column * (GROUPED ? 1 : 2));
    const uint16_t *scales_from = a.scales + (int64_t)row * a.groups + (inside ? column >> a.group_bits : 0);
    const auto fetch = [&](int stage) {
        if (inside && fetched < a.rows) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                copy_async<V>(&ring.dn[stage][r][threadIdx.x], dn_from + r * a.dn.stride);
                if (a.add) copy_async<V>(&ring.g[stage][r][threadIdx.x], g_from + r * a.g.stride);
                SavedColumns<GROUPED>::copy(&ring.x[stage][r][threadIdx.x], x_from + r * a.x.stride);
            }
        }
        copies_commit();
        fetched += step, dn_from += (int64_t)step * a.dn.stride, g_from += (int64_t)step * a.g.stride;
        x_from += (int64_t)step * a.x.stride;
    };
    RowFactors<ROWS> next = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) next.dn_scale.value[r] = 1.0f;
    const auto load_factors = [&](int from) {
        if (from < a.rows) {
            if (a.mean) next.mean = load<ROWS>(a.mean + from);
            next.rstd = load<ROWS>(a.rstd + from);
            if (a.dn_scales) next.dn_scale = load<ROWS>(a.dn_scales + from);
#pragma unroll
            for (int r = 0; GROUPED && r < ROWS; r++) next.scale[r] = scales_from[r * a.groups];
        }
        scales_from += (int64_t)step * a.groups;
    };
    const auto write_amaxes = [&](int from, const uint32_t(*amaxes)[ROWS]) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const uint32_t largest = __reduce_max_sync(ALL_LANES, lane < warps ? amaxes[lane][r] : 0);
            if (lane == 0) a.amax[from + r] = largest;
        }
    };
#pragma unroll
    for (int s = 0; s < STAGES; s++) {
        for (int r = 0; !inside && r < ROWS; r++) {
            ring.dn[s][r][threadIdx.x] = ring.g[s][r][threadIdx.x] = Pack<bf16, V>{};
            ring.x[s][r][threadIdx.x] = {};
        }
        fetch(s);
    }
    load_factors(row);
    float weight[V] = {}, dweight[V] = {}, dbias[V] = {};
    if (inside) unpack<V>(load_parameter<V>(a.weight + column), weight);

    for (int stage = 0, set = 0; row < a.rows; set ^= 1) {
        HatOf hat[ROWS];
        // sums of dn * weight and of dn * weight * xhat, for each row
        float rstd[ROWS], dn_scale[ROWS], sums[2 * ROWS] = {};
        Pack<bf16, V> dn[ROWS];
        typename SavedColumns<GROUPED>::Values saved[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            hat[r] = hat_of(next.mean.value[r], next.rstd.value[r]);
            if (GROUPED)
                // x is unpacked without the group scale, so the factor of xhat includes the scale
                hat[r].factor *= bf16_decode(next.scale[r]);
            rstd[r] = next.rstd.value[r];
            dn_scale[r] = next.dn_scale.value[r];
        }
        load_factors(row + step);
        copies_wait<STAGES - 1>();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float d[V], x[V];
            dn[r] = load<V>((const bf16 *)&ring.dn[stage][r][threadIdx.x]);
            unpack_scaled(dn[r], dn_scale[r], d);
            saved[r] = ring.x[stage][r][threadIdx.x].read();
            SavedColumns<GROUPED>::unpacked(saved[r], x);
            add_to_sums(d, x, weight, hat[r], &sums[2 * r], dweight, dbias);
        }
        const float own = warp_sums<2 * ROWS>(sums);
        if (lane < 2 * ROWS) shared[set][warp][lane] = own;
        __syncthreads();
        if (a.amax && warp == 0 && row > first) write_amaxes(row - step, shared_max[set ^ 1]);
        float mean[PARTS];
        means_of_rows<ROWS>(shared[set], lane, warps, per_column, mean);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            constexpr int LANES = WARPS;
            const int at = 2 * r * LANES, at_dot = at + LANES;
            const float mean_d = a.mean ? __shfl_sync(ALL_LANES, mean[at / WARP], at % WARP) : 0.0f;
            const float mean_dot = __shfl_sync(ALL_LANES, mean[at_dot / WARP], at_dot % WARP);
            // Computes g + rstd * (dn * weight - mean_d - xhat * mean_dot) with xhat = x * factor + shift.
            const float slope = hat[r].factor * mean_dot, offset = fmaf(hat[r].shift, mean_dot, mean_d);
            float d[V], x[V], out[V] = {};
            unpack_scaled(dn[r], dn_scale[r], d);
            SavedColumns<GROUPED>::unpacked(saved[r], x);
            if (a.add) unpack<V>(load<V>((const bf16 *)&ring.g[stage][r][threadIdx.x]), out);
#pragma unroll
            for (int i = 0; i < V; i++)
                out[i] = fmaf(rstd[r], fmaf(d[i], weight[i], -fmaf(x[i], slope, offset)), out[i]);
            const Pack<bf16, V> rounded = packed<bf16, V>(out);
            if (inside) store(a.g.at(row + r, column), rounded);
            if (a.amax) {
                const uint32_t bits = warp_amax_bits(inside ? largest_magnitude(rounded, 0.0f) : 0.0f);
                if (lane == 0) shared_max[set][warp][r] = bits;
            }
        }
        fetch(stage);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        row += step;
        if (row >= a.rows && a.amax) {
            __syncthreads();
            if (warp == 0) write_amaxes(row - step, shared_max[set]);
        }
    }
    if (inside) {
        float *const out = a.partials + (int64_t)blockIdx.x * 2 * a.cols + column;
        store(out, packed<float, V>(dweight));
        store(out + a.cols, packed<float, V>(dbias));
    }
}

// Launches as many blocks as the GPU can run at once, then sums the blocks' partial gradients of weight and bias.
// Returns false, without launching, if the number of rows is not a multiple of ROWS or if no block fits on an SM.
template <bool GROUPED, int THREADS, int BLOCKS_PER_SM, int ROWS, int STAGES>
bool fp8_norm_backward_run(Exec *exec, Fp8NormBackward a, float *dweight, float *dbias, bool accumulate) {
    const auto kernel = fp8_norm_backward_kernel<GROUPED, THREADS, BLOCKS_PER_SM, ROWS, STAGES>;
    const size_t ring = sizeof(Ring<GROUPED, THREADS, ROWS, STAGES>);
    const CudaBackend *backend = cuda_backend(exec);
    const int threads =
        (int)ceil_div(a.cols, V * WARP) * WARP; // number of threads that process a row, rounded up to whole warps
    const char *doing = "querying how many blocks of fp8_norm_backward_kernel fit";
    int per_sm = 0;
    cudaFuncAttributes attributes;
    if (a.rows % ROWS) return false;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel), doing);
    if (ring + attributes.sharedSizeBytes > backend->shared_bytes) return false;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)ring), doing);
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, ring), doing);
    const int64_t groups = a.rows / ROWS, slots = (int64_t)per_sm * backend->sm_count;
    const int64_t blocks = groups < slots ? groups : slots;
    if (blocks == 0) return false;
    if ((size_t)(blocks * 2 * a.cols) * sizeof(float) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "internal error: norm_backward on the GPU: the sums of %d channels do not fit the workspace",
              a.cols);
    a.partials = (float *)exec->workspace;
    kernel<<<grid_of(blocks), (unsigned)threads, ring, backend->stream>>>(a);
    LAUNCH_CHECK("fp8_norm_backward_kernel");
    partials_sum_pair(exec, dweight, dbias, a.partials, (int)blocks, a.cols, accumulate);
    return true;
}

// Processes two rows at a time if a.rows is even, the shared memory suffices and the width is at most 4096; otherwise
// one row at a time. Returns false if the width exceeds 8192 or one row's ring does not fit in shared memory.
template <bool GROUPED>
bool fp8_norm_backward_launch(Exec *exec, const Fp8NormBackward &a, float *dweight, float *dbias, bool accumulate) {
    const auto try_run = [&](auto run) { return run(exec, a, dweight, dbias, accumulate); };
    if (a.cols <= 1024)
        return try_run(fp8_norm_backward_run<GROUPED, 128, 4, 2, 4>) ||
               try_run(fp8_norm_backward_run<GROUPED, 128, 4, 1, 4>);
    if (a.cols <= 2048)
        return try_run(fp8_norm_backward_run<GROUPED, 256, 2, 2, 4>) ||
               try_run(fp8_norm_backward_run<GROUPED, 256, 2, 1, 4>);
    if (a.cols <= 4096)
        return try_run(fp8_norm_backward_run<GROUPED, 512, 1, 2, 3>) ||
               try_run(fp8_norm_backward_run<GROUPED, 512, 1, 1, 3>);
    return a.cols <= 8192 && try_run(fp8_norm_backward_run<GROUPED, 1024, 1, 1, 2>);
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
    if (!is_grouped(norm.x)) require_format(operation, "x", norm.x, FMT_BF16);
    require_format(operation, "the weight's gradient", dweight, FMT_FP32);
    require_format(operation, "the bias's gradient", dbias, FMT_FP32);
    if (g.rows == 0) return;
    const bool grouped = is_grouped(norm.x);
    Fp8NormBackward a = {};
    a.g = matrix_of<bf16>(g);
    a.dn = matrix_of<const bf16>(dn);
    a.x = {(const char *)norm.x.data, norm.x.stride * (grouped ? 1 : 2)};
    a.scales = (const uint16_t *)norm.x.scale;
    a.weight = (const bf16 *)norm.weight.data;
    a.mean = (const float *)norm.mean.data;
    a.rstd = (const float *)norm.rstd.data;
    a.dn_scales = scaled_by_row(dn) ? (const float *)dn.scale : NULL;
    a.amax = g.amax;
    a.rows = (int)g.rows;
    a.cols = (int)g.cols;
    a.groups = grouped ? (int)ceil_div(norm.x.cols, norm.x.group) : 0;
    a.group_bits = group_bits_of(norm.x);
    a.add = add;
    const auto launch = grouped ? fp8_norm_backward_launch<true> : fp8_norm_backward_launch<false>;
    if (!launch(exec, a, (float *)dweight.data, (float *)dbias.data, accumulate))
        fatal(EXIT_DEVICE, "internal error: %s on the GPU does not support %d channels", operation, a.cols);
}
