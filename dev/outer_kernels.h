// Producers of FP8 operands with a scale per row, each in one pass: the block or warp that makes a row holds it in
// registers until its maximum is known, and writes codes and scale then. Groups of 16. Included by
// bench_outer_vector.cu.
//
// Bytes per element of device memory: residual + norm 2 + 2 read, 2 + 1.125 + 1 written; gelu 2 read, 1.125 + 1
// written; quantise 2 read, 1 written.
#pragma once
#include "coat/cuda/fp8_gelu.h"
#include "coat/cuda/fp8_norm.h"

namespace {

constexpr int OUTER_GROUP = 16;
constexpr int OUTER_WIDTH = 8;     // columns per lane and vector, where a warp has a row
constexpr int OUTER_THREADS = 128; // 4 rows
constexpr int OUTER_STEP = WARP * OUTER_WIDTH;

// The scale of a row whose largest magnitude has these bits, in every thread; `first` is true in one, which stores it.
__device__ inline float row_scale(uint32_t bits, float *address, bool first, StepState *state) {
    const float scale = scale_from_maximum(bits, E4M3_MAX);
    if (first) {
        *address = scale;
        if (bits >= NONFINITE_BITS && state) state->nonfinite = 1;
    }
    return scale;
}

// --- residual and norm --------------------------------------------------------------------------------------
struct OuterNorm {
    const bf16 *r_in, *y, *y_bias, *weight, *bias;
    bf16 *r_out;
    uint8_t *x; // r_out per group
    bf16 *x_scales;
    uint8_t *n;     // the norm of the dequantised x
    float *n_scale; // (rows)
    float *mean, *rstd;
    StepState *state;
    int64_t rows;
    int cols;
    float eps;
};

template <CachePolicy POLICY> __device__ inline void read_vector(const bf16 *address, float out[OUTER_WIDTH]) {
    unpack<OUTER_WIDTH>(load_words<OUTER_WIDTH, POLICY>(address), out);
}

// A warp has a row, VECTORS vectors of 8 columns per lane, of which only the last may be missing. The same arithmetic
// in the same order as the trainer's kernel: same r_out, x, mean and rstd, bit for bit.
template <int VECTORS>
__global__ __launch_bounds__(OUTER_THREADS, 4) void outer_norm_kernel(const __grid_constant__ OuterNorm a) {
    constexpr int V = OUTER_WIDTH;
    const int lane = (int)threadIdx.x % WARP, column = lane * V;
    const int64_t row = (int64_t)blockIdx.x * (OUTER_THREADS / WARP) + threadIdx.x / WARP;
    if (row >= a.rows) return; // whole warps
    const bool last = column + (VECTORS - 1) * OUTER_STEP < a.cols;
    const auto has = [&](int k) { return k < VECTORS - 1 || last; };
    const int64_t first = row * a.cols + column;

    Bf16Words<V> r[VECTORS], y[VECTORS];
    float value[VECTORS][V], maximum[VECTORS];
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (has(k)) r[k] = load_words<V, CACHE_STREAM>(a.r_in + first + k * OUTER_STEP);
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (has(k)) y[k] = load_words<V, CACHE_STREAM>(a.y + first + k * OUTER_STEP);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        maximum[k] = 0.0f;
        if (!has(k)) continue;
        float add[V], bias[V];
        unpack<V>(r[k], value[k]);
        unpack<V>(y[k], add);
        read_vector<CACHE_PARAMETER>(a.y_bias + column + k * OUTER_STEP, bias);
#pragma unroll
        for (int i = 0; i < V; i++) value[k][i] = value[k][i] + add[i] + bias[i];
        r[k] = packed_words<V>(value[k]);
        store_words(a.r_out + first + k * OUTER_STEP, r[k]);
        maximum[k] = largest_magnitude(r[k], 0.0f);
    }

    // x: a group is two lanes
    float sum = 0.0f, largest = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) maximum[k] = lanes_maximum(maximum[k], OUTER_GROUP / V);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!has(k)) continue;
        float scale;
        const bf16 rounded = group_scale(maximum[k], &scale);
        largest = larger_magnitude(largest, maximum[k]);
        unpack<V>(r[k], value[k]);
        Pack<uint32_t, V / 4> codes;
        encode<FMT_E4M3, V>(value[k], group_scale_reciprocal(scale), codes.value);
        store((uint32_t *)(a.x + first + k * OUTER_STEP), codes);
        if (lane % 2 == 0) a.x_scales[(first + k * OUTER_STEP) / OUTER_GROUP] = rounded;
        decode<V>(codes.value, scale, value[k]);
#pragma unroll
        for (int i = 0; i < V; i++) sum += value[k][i];
    }
    if (warp_maximum_bits(largest) >= NONFINITE_BITS && lane == 0 && a.state) a.state->nonfinite = 1;

    const float mean = warp_sum(sum) / (float)a.cols;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!has(k)) continue;
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float centred = value[k][i] - mean;
            squares = fmaf(centred, centred, squares);
        }
    }
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / (float)a.cols + a.eps);
    if (lane == 0) a.mean[row] = mean, a.rstd[row] = rstd;

    const HatOf hat = hat_of(mean, rstd);
    largest = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!has(k)) continue;
        float weight[V], bias[V];
        read_vector<CACHE_PARAMETER>(a.weight + column + k * OUTER_STEP, weight);
        read_vector<CACHE_PARAMETER>(a.bias + column + k * OUTER_STEP, bias);
#pragma unroll
        for (int i = 0; i < V; i++) value[k][i] = norm_affine(value[k][i], hat, weight[i], bias[i]);
        largest = largest_magnitude<V>(value[k], largest);
    }
    const float scale = row_scale(warp_maximum_bits(largest), a.n_scale + row, lane == 0, a.state);
    const float reciprocal = scale_reciprocal(scale);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!has(k)) continue;
        Pack<uint32_t, V / 4> codes;
        encode<FMT_E4M3, V>(value[k], reciprocal, codes.value);
        store((uint32_t *)(a.n + first + k * OUTER_STEP), codes);
    }
}

// --- quantisation -------------------------------------------------------------------------------------------
struct OuterQuantize {
    const bf16 *x;
    uint8_t *q;
    float *scale; // (rows)
    StepState *state;
    int64_t rows;
    int cols;
};

template <int VECTORS>
__global__ __launch_bounds__(OUTER_THREADS) void outer_quantize_kernel(const __grid_constant__ OuterQuantize a) {
    constexpr int V = OUTER_WIDTH;
    const int lane = (int)threadIdx.x % WARP, column = lane * V;
    const int64_t row = (int64_t)blockIdx.x * (OUTER_THREADS / WARP) + threadIdx.x / WARP;
    if (row >= a.rows) return; // whole warps
    const bool last = column + (VECTORS - 1) * OUTER_STEP < a.cols;
    const auto has = [&](int k) { return k < VECTORS - 1 || last; };
    const int64_t first = row * a.cols + column;
    Bf16Words<V> x[VECTORS];
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (has(k)) x[k] = load_words<V, CACHE_STREAM>(a.x + first + k * OUTER_STEP);
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (has(k)) largest = largest_magnitude(x[k], largest);
    const float scale = row_scale(warp_maximum_bits(largest), a.scale + row, lane == 0, a.state);
    const float reciprocal = scale_reciprocal(scale);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!has(k)) continue;
        float value[V];
        unpack<V>(x[k], value);
        Pack<uint32_t, V / 4> codes;
        encode<FMT_E4M3, V>(value, reciprocal, codes.value);
        store((uint32_t *)(a.q + first + k * OUTER_STEP), codes);
    }
}

// --- gelu ---------------------------------------------------------------------------------------------------
struct OuterGelu {
    const bf16 *y, *bias;
    uint8_t *h; // y + bias per group
    bf16 *h_scales;
    uint8_t *g;     // gelu of the dequantised h
    float *g_scale; // (rows)
    StepState *state;
    int rows, cols;
    LoadOrder order;
};

// A block stays and takes every gridDim.x-th row, a thread keeps its 16 columns. The next row is on its way while this
// one is worked on; one barrier per row, for its maximum. The bias is in shared memory, because registers are what
// limits the number of blocks.
template <int THREADS, int BLOCKS>
__global__ __launch_bounds__(THREADS, BLOCKS) void outer_gelu_kernel(const __grid_constant__ OuterGelu a) {
    constexpr int WARPS = THREADS / WARP;
    static_assert(WARPS <= WARP, "a warp reads the maxima of all");
    __shared__ uint32_t maxima[2][WARPS];
    __shared__ PairWords biases[THREADS]; // each thread reads what it has written
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, column = (int)threadIdx.x * SPAN;
    const bool inside = column < a.cols;
    const int at = min(column, a.cols - SPAN); // threads without columns read what others do
    const auto fetch = [&](int row) {
        return load<SPAN / 2, CACHE_STREAM>((const uint32_t *)(a.y + (int64_t)min(row, a.rows - 1) * a.cols + at));
    };
    biases[threadIdx.x] = load_parameter<SPAN / 2>((const uint32_t *)(a.bias + at));
    PairWords next = fetch((int)blockIdx.x);
    float largest_h = 0.0f;
    int turn = 0;
    for (int row = (int)blockIdx.x; row < a.rows; row += (int)gridDim.x, turn ^= 1) {
        const PairWords now = next;
        next = fetch(row + (int)gridDim.x + (int)(now.value[SPAN / 2 - 1] & a.order.zero));
        const int64_t first = (int64_t)row * a.cols + column;
        float x[SPAN], add[SPAN], scale;
        unpack_pairs(now, x);
        unpack_pairs(biases[threadIdx.x], add);
#pragma unroll
        for (int i = 0; i < SPAN; i++) x[i] += add[i];
        const float maximum = inside ? largest_magnitude<SPAN>(x, 0.0f) : 0.0f;
        largest_h = larger_magnitude(largest_h, maximum);
        const bf16 rounded = group_scale(maximum, &scale);
        Pack<uint32_t, SPAN / 4> codes;
        encode<FMT_E4M3, SPAN>(x, group_scale_reciprocal(scale), codes.value);
        if (inside) {
            store((uint32_t *)(a.h + first), codes);
            a.h_scales[first / OUTER_GROUP] = rounded;
        }
        decode_words(codes.value, scale, x);
        gelu_span(x);
        uint32_t bits = warp_maximum_bits(inside ? largest_magnitude<SPAN>(x, 0.0f) : 0.0f);
        if (lane == 0) maxima[turn][warp] = bits;
        __syncthreads(); // the other half of maxima is free since the barrier before
        bits = __reduce_max_sync(ALL_LANES, lane < WARPS ? maxima[turn][lane] : 0u);
        const float of_row = row_scale(bits, a.g_scale + row, threadIdx.x == 0, a.state);
        encode<FMT_E4M3, SPAN>(x, scale_reciprocal(of_row), codes.value);
        if (inside) store((uint32_t *)(a.g + first), codes);
    }
    if (__float_as_uint(largest_h) >= NONFINITE_BITS && a.state) a.state->nonfinite = 1;
}

// --- launches -----------------------------------------------------------------------------------------------
inline dim3 outer_grid(int64_t rows) {
    return grid_of(ceil_div(rows, OUTER_THREADS / WARP));
}

// VECTORS rises until it covers the width, 1792 columns at most.
template <int VECTORS = 1> void outer_norm(Exec *exec, const OuterNorm &a) {
    if constexpr (VECTORS > 7) {
        fatal(EXIT_DEVICE, "the one-pass norm is built for at most %d channels, not %d", 7 * OUTER_STEP, a.cols);
    } else {
        if (a.cols > VECTORS * OUTER_STEP) return outer_norm<VECTORS + 1>(exec, a);
        outer_norm_kernel<VECTORS><<<outer_grid(a.rows), OUTER_THREADS, 0, cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("outer_norm_kernel");
    }
}

template <int VECTORS = 1> void outer_quantize(Exec *exec, const OuterQuantize &a) {
    if constexpr (VECTORS > 7) {
        fatal(EXIT_DEVICE, "the one-pass cast is built for at most %d channels, not %d", 7 * OUTER_STEP, a.cols);
    } else {
        if (a.cols > VECTORS * OUTER_STEP) return outer_quantize<VECTORS + 1>(exec, a);
        outer_quantize_kernel<VECTORS><<<outer_grid(a.rows), OUTER_THREADS, 0, cuda_backend(exec)->stream>>>(a);
        LAUNCH_CHECK("outer_quantize_kernel");
    }
}

template <int THREADS, int BLOCKS> void outer_gelu_run(Exec *exec, const OuterGelu &a) {
    const int64_t slots = (int64_t)cuda_backend(exec)->sm_count * BLOCKS;
    outer_gelu_kernel<THREADS, BLOCKS>
        <<<grid_of(slots < a.rows ? slots : a.rows), THREADS, 0, cuda_backend(exec)->stream>>>(a);
    LAUNCH_CHECK("outer_gelu_kernel");
}

// As many threads as the width of the model has spans of 16. More blocks have more rows on their way, fewer have more
// registers for the arithmetic of one.
inline void outer_gelu(Exec *exec, const OuterGelu &a, bool many_blocks) {
    if (a.cols <= 192 * SPAN)
        many_blocks ? outer_gelu_run<192, 6>(exec, a) : outer_gelu_run<192, 4>(exec, a);
    else if (a.cols <= 416 * SPAN)
        many_blocks ? outer_gelu_run<416, 3>(exec, a) : outer_gelu_run<416, 2>(exec, a);
    else
        fatal(EXIT_DEVICE, "the one-pass gelu is built for at most %d columns, not %d", 416 * SPAN, a.cols);
}

} // namespace
