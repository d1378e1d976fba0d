// Helpers of the FP8 kernels (COAT: FP8 matmuls): the hardware's conversions, maxima that keep NaN, scales, and what
// is demanded of descriptors. Included by CUDA files only.
//
// A thread handles 16 neighbouring columns of a row at a time: 16 codes are 16 bytes, and lie in one group of every
// group size (16, 32, 128). All widths are multiples of 16.
#pragma once
#include "cuda/common/cuda_kernels.h"
#include "fp8_ops.h"
#include "numerics/quantize.h"

#include <cuda_fp16.h>

constexpr int SPAN = 16;       // columns of a thread
constexpr int THREAD_ROWS = 4; // and its rows in a tile

// --- BF16 in whole words ------------------------------------------------------------------------------------
// Values of 16 bits that live across a branch are taken apart as soon as they arrive, and so waited for: what is on its
// way while other work is done is kept in words of two.
template <int N> struct alignas(16) Bf16Words { uint32_t word[N / 2]; };

template <int N, CachePolicy POLICY> __device__ static inline Bf16Words<N> load_words(const bf16 *address) {
    const Pack<uint32_t, N / 2> pack = load<N / 2, POLICY>((const uint32_t *)address);
    Bf16Words<N> words;
    memcpy(&words, &pack, sizeof words);
    return words;
}

template <int N> __device__ static inline void store_words(bf16 *address, const Bf16Words<N> &words) {
    Pack<uint32_t, N / 2> pack;
    memcpy(&pack, &words, sizeof pack);
    store((uint32_t *)address, pack);
}

template <int N> __device__ static inline void unpack(const Bf16Words<N> &words, float out[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        out[2 * i] = __uint_as_float(words.word[i] << 16);
        out[2 * i + 1] = __uint_as_float(words.word[i] & 0xffff0000u);
    }
}

template <int N> __device__ static inline Bf16Words<N> packed_words(const float in[N]) {
    Bf16Words<N> words;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
        memcpy(&words.word[i], &pair, sizeof pair);
    }
    return words;
}

// --- conversions --------------------------------------------------------------------------------------------
// Two codes, the first in the lower byte; to nearest even, saturating.
template <Format F> __device__ static inline uint32_t encode_pair(float first, float second) {
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    if constexpr (F == FMT_E5M2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return fp8_encode(F, first) | (uint32_t)fp8_encode(F, second) << 8;
#endif
}

// N codes of values * reciprocal, N a multiple of 4; 4 codes per word.
template <Format F, int N>
__device__ static inline void encode(const float value[N], float reciprocal, uint32_t out[N / 4]) {
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        out[i] = encode_pair<F>(value[4 * i] * reciprocal, value[4 * i + 1] * reciprocal) |
                 encode_pair<F>(value[4 * i + 2] * reciprocal, value[4 * i + 3] * reciprocal) << 16;
}

// N codes of E4M3 as halves, which hold them exactly, 4 from each word.
template <int N> __device__ static inline void decode_halves(const uint32_t code[N / 4], __half2 out[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
#if __CUDA_ARCH__ >= 890
        uint32_t halves[2];
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; "
            "cvt.rn.f16x2.e4m3x2 %1, high; }"
            : "=r"(halves[0]), "=r"(halves[1])
            : "r"(code[i]));
        memcpy(&out[2 * i], halves, sizeof halves);
#else
        for (int k = 0; k < 2; k++) {
            const uint32_t pair = code[i] >> 16 * k;
            out[2 * i + k] = __floats2half2_rn(e4m3_decode((uint8_t)pair), e4m3_decode((uint8_t)(pair >> 8)));
        }
#endif
    }
}

template <int N> __device__ static inline void unpack_halves(const __half2 halves[N / 2], float out[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        out[2 * i] = __low2float(halves[i]);
        out[2 * i + 1] = __high2float(halves[i]);
    }
}

// N values from E4M3 codes, without their scale.
template <int N> __device__ static inline void decode_unscaled(const uint32_t code[N / 4], float out[N]) {
    __half2 halves[N / 2];
    decode_halves<N>(code, halves);
    unpack_halves<N>(halves, out);
}

// N values from E4M3 codes.
template <int N> __device__ static inline void decode(const uint32_t code[N / 4], float scale, float out[N]) {
    decode_unscaled<N>(code, out);
#pragma unroll
    for (int i = 0; i < N; i++) out[i] *= scale;
}

// N E4M3 codes times a power of two, as codes in TO: in the halves that hold them exactly. The power is at most 1, or
// 2^7 from E4M3 to E5M2. What a half cannot hold on the way is too small for a code: the result is the rounded
// product.
template <Format TO, int N>
__device__ static inline void rescale_codes(const uint32_t code[N / 4], float factor, uint32_t out[N / 4]) {
#if __CUDA_ARCH__ >= 890
    constexpr float smallest = 0x1p-24f; // of a half; two factors reach everything that is not 0 then
    const float first = fmaxf(factor, smallest), second = fminf(fmaxf(factor * 0x1p24f, smallest), 1.0f);
    const __half2 firsts = __float2half2_rn(first), seconds = __float2half2_rn(second);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        uint32_t word = 0;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint16_t pair = (uint16_t)(code[i] >> 16 * k);
            uint32_t halves;
            uint16_t rounded;
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
            __half2 values;
            memcpy(&values, &halves, sizeof values);
            values = __hmul2(__hmul2(values, firsts), seconds);
            memcpy(&halves, &values, sizeof halves);
            if constexpr (TO == FMT_E5M2)
                asm("cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;" : "=h"(rounded) : "r"(halves));
            else
                asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(rounded) : "r"(halves));
            word |= (uint32_t)rounded << 16 * k;
        }
        out[i] = word;
    }
#else
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        out[i] = 0;
        for (int k = 0; k < 4; k++)
            out[i] |= (uint32_t)fp8_encode(TO, fp8_decode(FMT_E4M3, (uint8_t)(code[i] >> 8 * k)) * factor) << 8 * k;
    }
#endif
}

// --- maxima -------------------------------------------------------------------------------------------------
// The larger of a maximum and |x|; NaN stays NaN, whose bits are above those of all other values.
__device__ static inline float larger_magnitude(float maximum, float x) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(maximum), "f"(fabsf(x)));
    return out;
}

template <int N> __device__ static inline float largest_magnitude(const float x[N], float maximum) {
#pragma unroll
    for (int i = 0; i < N; i++) maximum = larger_magnitude(maximum, x[i]);
    return maximum;
}

// The same over BF16, two at a time.
template <int N> __device__ static inline float largest_magnitude(const Bf16Words<N> &words, float maximum) {
    __nv_bfloat162 pairs[N / 2];
    memcpy(pairs, &words, sizeof pairs);
    __nv_bfloat162 largest = __habs2(pairs[0]);
#pragma unroll
    for (int i = 1; i < N / 2; i++) largest = __hmax2_nan(largest, __habs2(pairs[i]));
    return larger_magnitude(larger_magnitude(maximum, __low2float(largest)), __high2float(largest));
}

template <int N> __device__ static inline float largest_magnitude(const Pack<bf16, N> &pack, float maximum) {
    Bf16Words<N> words;
    memcpy(&words, &pack, sizeof words);
    return largest_magnitude(words, maximum);
}

// Bits of the maximum over the lanes of a warp, in every lane.
__device__ static inline uint32_t warp_maximum_bits(float maximum) {
    return __reduce_max_sync(ALL_LANES, __float_as_uint(maximum));
}

// Over `lanes` neighbouring lanes (a power of two), in each of them.
__device__ static inline float lanes_maximum(float maximum, int lanes) {
    for (int mask = 1; mask < lanes; mask *= 2)
        maximum = larger_magnitude(maximum, __shfl_xor_sync(ALL_LANES, maximum, mask));
    return maximum;
}

// The BF16 scale of a group of E4M3, and its value: group_scale_from_maximum() in fewer instructions. One step from the
// rounded product with 1 / 448 is the correctly rounded quotient, for every FP32 maximum.
__device__ static inline __nv_bfloat16 group_scale(float maximum, float *scale) {
    constexpr float part = 1.0f / E4M3_MAX;
    const float finite = fminf(maximum, bits_float(NONFINITE_BITS - 1u)); // of NaN too
    const float product = finite * part, quotient = fmaf(fmaf(-E4M3_MAX, product, finite), part, product);
    const float largest = maximum == 0.0f ? 1.0f : fmaxf(quotient, SCALE_SMALLEST);
    const __nv_bfloat16 rounded = __float2bfloat16_rn(largest);
    *scale = __bfloat162float(rounded);
    return rounded;
}

// RN(1 / scale) of a group: the approximation and one step of Newton's, enough for the 8 bits of a BF16 divisor.
// The scales of groups lie between 2^-126 and 2^120, so nothing here leaves the normal numbers.
__device__ static inline float group_scale_reciprocal(float scale) {
    const float near = fast_reciprocal(scale);
    return fmaf(fmaf(-scale, near, 1.0f), near, near);
}

// --- transposed codes ---------------------------------------------------------------------------------------
// Word w of 4 rows, which is 4 x 4 codes, transposed in registers: each of its columns becomes a word of 4 rows, STRIDE
// words behind the column before.
template <int STRIDE>
__device__ static inline void codes_transpose(uint32_t *word, const uint32_t code[THREAD_ROWS][SPAN / 4], int w) {
    const uint32_t ab_low = __byte_perm(code[0][w], code[1][w], 0x5140);
    const uint32_t ab_high = __byte_perm(code[0][w], code[1][w], 0x7362);
    const uint32_t cd_low = __byte_perm(code[2][w], code[3][w], 0x5140);
    const uint32_t cd_high = __byte_perm(code[2][w], code[3][w], 0x7362);
    word[0] = __byte_perm(ab_low, cd_low, 0x5410);
    word[STRIDE] = __byte_perm(ab_low, cd_low, 0x7632);
    word[2 * STRIDE] = __byte_perm(ab_high, cd_high, 0x5410);
    word[3 * STRIDE] = __byte_perm(ab_high, cd_high, 0x7632);
}

// --- scales of tensors ---------------------------------------------------------------------------------------
// Where the row maxima of a tensor go: its own list, or the workspace until its scale is made.
uint32_t *maxima_of(Exec *exec, const char *operation, Tensor t);
// scale = that of a tensor with these maxima; a maximum that is not finite raises the step's flag.
void scale_from_maxima(Exec *exec, Tensor t, const uint32_t *maxima, int64_t count);
// The same right behind the kernel that makes the maxima, which must allow it: the launch overlaps with that kernel.
// The next kernel may be launched to overlap too, and may read all but the scale before it waits.
void scale_behind_maxima(Exec *exec, Tensor t, const uint32_t *maxima, int64_t count);

// The largest of `count` maxima, in thread 0 of a block.
template <int THREADS> __device__ static inline uint32_t block_maximum(const uint32_t *maxima, int64_t count) {
    __shared__ uint32_t shared[THREADS / WARP];
    uint32_t largest = 0;
    const bool wide = (uintptr_t)maxima % 16 == 0;
    const int64_t vectors = wide ? count / 4 : 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < vectors; i += THREADS) {
        const uint4 v = ((const uint4 *)maxima)[i];
        largest = max(max(max(largest, v.x), max(v.y, v.z)), v.w);
    }
    for (int64_t i = 4 * vectors + threadIdx.x; i < count; i += THREADS) largest = max(largest, maxima[i]);
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = largest;
    __syncthreads();
    for (int w = 0; threadIdx.x == 0 && w < THREADS / WARP; w++) largest = max(largest, shared[w]);
    return largest;
}

__device__ static inline void scale_write(float *scale, uint32_t maximum, float largest, StepState *state) {
    *scale = scale_from_maximum(maximum, largest);
    if (maximum >= NONFINITE_BITS && state) state->nonfinite = 1;
}

// The scale of q_t, for matmuls over the rows: where q has a scale per row, the largest of them; where q
// is plain, that of the maxima that lie with it; else they share one. Whether a kernel makes it, which
// the next one may overlap with.
bool scale_over_rows(Exec *exec, Tensor q_t, Tensor q);
// Returns the E4M3 scale of a row whose largest magnitude has these bits. `first` is true in one thread of the row,
// which stores the scale at `address`.
__device__ static inline float row_scale(uint32_t bits, float *address, bool first, StepState *state) {
    const float scale = row_scale_from_maximum(bits, FMT_E4M3);
    if (first) {
        *address = scale;
        if (bits >= NONFINITE_BITS && state) state->nonfinite = 1;
    }
    return scale;
}

// 1 / scale of a row: of a power of two, without a division.
__device__ static inline float row_scale_reciprocal(float scale) {
    return __uint_as_float(0x7f000000u - __float_as_uint(scale));
}

// --- descriptors --------------------------------------------------------------------------------------------
static inline bool is_grouped(Tensor t) {
    return t.data && t.granularity == SCALE_GROUP;
}

// Ends the program unless the tensor can be walked in spans of 16: BF16, or codes.
static inline void require_spans(const char *operation, const char *what, Tensor t) {
    if (!t.data) return;
    if (t.format != FMT_BF16 && !format_is_fp8(t.format))
        fatal(EXIT_DEVICE, "%s on the GPU: %s is stored as %s where bf16 or an 8-bit format is needed", operation, what,
              format_name(t.format));
    const int64_t inner = t.transposed ? t.rows : t.cols;
    if (inner % SPAN || t.stride % SPAN || (uintptr_t)t.data % 16)
        fatal(EXIT_DEVICE, "%s on the GPU: %s has %lld elements in a row where FP8 kernels need a multiple of %d",
              operation, what, (long long)inner, SPAN);
    const bool grouped = t.granularity == SCALE_GROUP;
    if (grouped && (t.format != FMT_E4M3 || (t.group != 16 && t.group != 32 && t.group != 64 && t.group != 128)))
        fatal(EXIT_DEVICE, "%s on the GPU: %s has groups of %d %s where 16, 32, 64 or 128 e4m3 are built", operation,
              what, t.group, format_name(t.format));
    if (format_is_fp8(t.format) && !t.scale) fatal(EXIT_DEVICE, "%s on the GPU: %s has no scale", operation, what);
}

// Ends the program unless a gradient in FP8, E4M3 or E5M2, has a transpose in E5M2.
static inline void require_gradient_formats(const char *operation, Tensor dy, Tensor dy_t) {
    require_format(operation, "the transpose", dy_t, format_is_fp8(dy.format) ? FMT_E5M2 : dy.format);
}

static inline bool scaled_by_row(Tensor t) {
    return t.data && t.granularity == SCALE_ROW;
}

static inline int group_bits_of(Tensor t) {
    int bits = 0;
    while (1 << bits < t.group) bits++;
    return bits;
}
