// The passes behind the products of bench_fused_product.cu, which make g's codes with a scale per token from h's codes,
// and the checks of what products and passes make.
//
// A block has ROWS rows. A thread has 16 columns of each, which it loads before it uses any. The largest |gelu(h)| of
// a row follows from its largest h: gelu rises above its dip near -0.75, where it is -0.17. So the maximum costs no
// gelu, and codes are all that a thread keeps until it is known.
#pragma once
#include "coat/cuda/fp8/fp8_gelu.h"

namespace {

constexpr int PASS_THREADS = 416; // 13 warps for 400 spans of 16 columns
constexpr float GELU_DIP = 0.17004f;
constexpr float CODE_STEP = 0x1p-4f; // half a step of E4M3, relative
constexpr float CODE_LEAST = 0x1p-10f;

// h = code * the row's scale + bias. `unit`: a code's value without the row's scale.
struct TokenHidden {
    typedef Bf16Words<SPAN> Parameter;
    struct Loaded {
        Pack<uint32_t, SPAN / 4> codes;
        float factor;
    };
    const uint8_t *codes;
    const float *row_scales;
    const bf16 *bias;
    int cols;
    float unit;

    __device__ Loaded load(int row, int column) const {
        return {load_streaming<SPAN / 4>((const uint32_t *)(codes + (int64_t)row * cols + column)),
                row_scales[row] * unit};
    }
    __device__ Parameter parameter(int column) const { return load_words<SPAN, CACHE_PARAMETER>(bias + column); }
    __device__ static void values(const Loaded &loaded, const Parameter &parameter, float out[SPAN]) {
        float add[SPAN];
        unpack<SPAN>(parameter, add);
        decode_unscaled<SPAN>(loaded.codes.value, out);
#pragma unroll
        for (int i = 0; i < SPAN; i++) out[i] = fmaf(out[i], loaded.factor, add[i]);
    }
    __device__ static float largest(const Loaded &loaded, const Parameter &parameter) {
        float x[SPAN], most = 0.0f;
        values(loaded, parameter, x);
#pragma unroll
        for (int i = 0; i < SPAN; i++) most = fmaxf(most, x[i]);
        return most;
    }
    __device__ static void scaled_gelu(const Loaded &loaded, const Parameter &parameter, float reciprocal,
                                       float out[SPAN]) {
        values(loaded, parameter, out);
        const GeluScaled gelu(1.0f);
#pragma unroll
        for (int i = 0; i < SPAN; i++) out[i] *= reciprocal * fast_reciprocal(1.0f + gelu.power(out[i]));
    }
    // For checks.
    __device__ float value(int row, int column) const {
        const float code = e4m3_decode(codes[(int64_t)row * cols + column]);
        return fmaf(code, row_scales[row] * unit, bf16_decode(((const uint16_t *)bias)[column]));
    }
};

// h = code * its group's scale.
struct GroupHidden {
    struct Parameter {};
    typedef GeluOf<GroupReader<true>> Reader;
    typedef Reader::Loaded Loaded;
    Reader reader;

    __device__ Loaded load(int row, int column) const { return reader.load(row, column); }
    __device__ Parameter parameter(int) const { return {}; }
    __device__ static float largest(const Loaded &loaded, const Parameter &) {
        float x[SPAN], most = 0.0f;
        Reader::unscaled(loaded, x);
#pragma unroll
        for (int i = 0; i < SPAN; i++) most = fmaxf(most, x[i]);
        return most * Reader::scale(loaded);
    }
    __device__ static void scaled_gelu(const Loaded &loaded, const Parameter &, float reciprocal, float out[SPAN]) {
        Reader::multiplied(loaded, reciprocal, out);
    }
    __device__ float value(int row, int column) const {
        const float code = e4m3_decode(reader.codes[(int64_t)row * reader.row_bytes + column]);
        return code * bf16_decode(*(const uint16_t *)(reader.scales + (int64_t)row * reader.scale_bytes +
                                                      2 * (column >> reader.group_bits)));
    }
};

enum RowMaximum { FINDS_IT, LARGEST_H_KNOWN, LARGEST_G_KNOWN };

template <typename Hidden, RowMaximum MAXIMUM, int ROWS>
__global__ void __launch_bounds__(PASS_THREADS, ROWS > 2 ? 2 : 3)
    pass_kernel(Hidden hidden, uint8_t *g, float *scales, const uint32_t *maxima, int first_row, int cols) {
    __shared__ uint32_t found[ROWS][PASS_THREADS / WARP];
    const int first = first_row + (int)blockIdx.x * ROWS, column = (int)threadIdx.x * SPAN,
              here = min(column, cols - SPAN);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    typename Hidden::Loaded loaded[ROWS];
    uint32_t bits[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) loaded[r] = hidden.load(first + r, here);
    const typename Hidden::Parameter parameter = hidden.parameter(here);
    if constexpr (MAXIMUM == FINDS_IT) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const uint32_t most = warp_maximum_bits(Hidden::largest(loaded[r], parameter));
            if (lane == 0) found[r][warp] = most;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            bits[r] = __reduce_max_sync(ALL_LANES, lane < PASS_THREADS / WARP ? found[r][lane] : 0u);
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; r++) bits[r] = maxima[first + r];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if constexpr (MAXIMUM != LARGEST_G_KNOWN)
            bits[r] = __float_as_uint(fmaxf(gelu_of(__uint_as_float(bits[r])), GELU_DIP));
        const float scale = row_scale<FMT_E4M3>(bits[r], scales + first + r, threadIdx.x == 0, NULL);
        float value[SPAN];
        Pack<uint32_t, SPAN / 4> codes;
        Hidden::scaled_gelu(loaded[r], parameter, row_scale_reciprocal(scale), value);
        encode<FMT_E4M3, SPAN>(value, 1.0f, codes.value);
        if (column < cols) store((uint32_t *)(g + (int64_t)(first + r) * cols + column), codes);
    }
}

template <typename Hidden, RowMaximum MAXIMUM, int ROWS>
void pass_launch(const CudaBackend *backend, const Hidden &hidden, uint8_t *g, float *scales, const uint32_t *maxima,
                 int64_t first_row, int64_t rows, int64_t cols) {
    if (rows % ROWS || cols % SPAN || cols > PASS_THREADS * SPAN)
        fatal(EXIT_USER, "the pass is not built for %lld columns", (long long)cols);
    pass_kernel<Hidden, MAXIMUM, ROWS><<<(unsigned)(rows / ROWS), PASS_THREADS, 0, backend->stream>>>(
        hidden, g, scales, maxima, (int)first_row, (int)cols);
    LAUNCH_CHECK("pass_kernel");
}

// --- checks -------------------------------------------------------------------------------------------------------
struct Difference {
    double error, size;           // sums of squares
    uint32_t largest;             // of differences, as bits
    unsigned wrong, wrong_scales; // values; scales of rows or groups
};

// Another product's y against one in BF16.
__global__ void compare_y(const bf16 *y, const bf16 *expected, int64_t count, Difference *d) {
    double error = 0, size = 0;
    float largest = 0.0f;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const float want = __bfloat162float(expected[i]), off = __bfloat162float(y[i]) - want;
        error += (double)off * off, size += (double)want * want;
        largest = larger_magnitude(largest, off);
    }
    atomicAdd(&d->error, error);
    atomicAdd(&d->size, size);
    atomicMax(&d->largest, __float_as_uint(largest));
}

// y in codes, whose values are times unit: as near to the one in BF16 as codes are, with `room` for another order of
// sums.
__global__ void compare_codes(const uint8_t *codes, float unit, const bf16 *expected, int64_t count, float room,
                              Difference *d) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const float want = __bfloat162float(expected[i]), off = e4m3_decode(codes[i]) * unit - want;
        if (!(fabsf(off) <= fabsf(want) * CODE_STEP + CODE_LEAST * unit + room)) atomicAdd(&d->wrong, 1u);
    }
}

// h's codes and scales against those made one by one from the product's y: a thread has a group.
__global__ void compare_hidden(const uint8_t *h, const bf16 *h_scales, const bf16 *y, const float *row_scales,
                               const bf16 *bias, int cols, int64_t groups, Difference *d) {
    const int64_t group = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= groups) return;
    const int64_t row = group / (cols / SPAN);
    const int column = (int)(group % (cols / SPAN)) * SPAN;
    float x[SPAN];
    uint32_t maximum = 0;
    for (int i = 0; i < SPAN; i++) {
        x[i] = fmaf(__bfloat162float(y[row * cols + column + i]), row_scales[row], __bfloat162float(bias[column + i]));
        maximum = max(maximum, magnitude_bits(x[i]));
    }
    const uint16_t scale = group_scale_from_maximum(maximum, E4M3_MAX);
    if (scale != ((const uint16_t *)h_scales)[group]) atomicAdd(&d->wrong_scales, 1u);
    for (int i = 0; i < SPAN; i++)
        if (e4m3_encode(x[i] * scale_reciprocal(bf16_decode(scale))) != h[row * cols + column + i])
            atomicAdd(&d->wrong, 1u);
}

// g's codes and scales against gelu of the kept h: a block has a row.
template <typename Hidden>
__global__ void compare_g(Hidden hidden, const uint8_t *g, const float *scales, int cols, Difference *d) {
    __shared__ uint32_t maximum;
    const int row = (int)blockIdx.x;
    const auto gelu = [&](int column) {
        const float x = hidden.value(row, column);
        return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    };
    if (threadIdx.x == 0) maximum = 0;
    __syncthreads();
    uint32_t largest = 0;
    for (int c = (int)threadIdx.x; c < cols; c += (int)blockDim.x) largest = max(largest, magnitude_bits(gelu(c)));
    atomicMax(&maximum, largest);
    __syncthreads();
    const float scale = scales[row];
    if (threadIdx.x == 0 && scale != row_scale_from_maximum(maximum, FMT_E4M3)) atomicAdd(&d->wrong_scales, 1u);
    for (int c = (int)threadIdx.x; c < cols; c += (int)blockDim.x) {
        const float want = gelu(c), found = e4m3_decode(g[(int64_t)row * cols + c]) * scale;
        // half a step, and what the hardware's exponential may be off
        if (!(fabsf(found - want) <= fabsf(want) * (CODE_STEP + 0x1p-10f) + scale * CODE_LEAST + 1e-6f))
            atomicAdd(&d->wrong, 1u);
    }
}

} // namespace
