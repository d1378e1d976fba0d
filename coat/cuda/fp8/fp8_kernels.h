// Helpers of the FP8 kernels: hardware conversions, amaxes that preserve NaN, scales, and checks of tensor descriptors.
// For CUDA sources only.
//
// A thread processes 16 adjacent columns of a row: 16 FP8 values are 16 bytes and are in the same group for every group
// size (16, 32, 64, 128). All widths are multiples of 16.
#pragma once
#include "cuda/common/cuda_kernels.h"
#include "fp8_ops.h"
#include "numerics/quantize.h"

#include <cuda_fp16.h>

constexpr int SPAN = 16;       // number of columns that a thread processes at a time
constexpr int THREAD_ROWS = 4; // number of rows of a tile that a thread processes

// --- BF16 values, packed in pairs in 32-bit words --------------------------------------------------------------------
// N BF16 values packed in 32-bit words. Kernels keep values that they load in advance in this form. If the values were
// 16-bit variables and live across a branch, the compiler would unpack them right after the load and so wait for the
// load.
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

// --- conversion to and from FP8 -----------------------------------------------------------------------------
// Converts two FP32 values to FP8, rounding to nearest even and saturating. `first` becomes the lower byte.
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

// Converts N values, multiplied by `reciprocal`, to FP8, 4 per word. N is a multiple of 4.
template <Format F, int N>
__device__ static inline void encode(const float value[N], float reciprocal, uint32_t out[N / 4]) {
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        out[i] = encode_pair<F>(value[4 * i] * reciprocal, value[4 * i + 1] * reciprocal) |
                 encode_pair<F>(value[4 * i + 2] * reciprocal, value[4 * i + 3] * reciprocal) << 16;
}

// Converts N E4M3 values, 4 per word, to FP16, which represents them exactly.
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

// Converts N E4M3 values to FP32 without applying a scale.
template <int N> __device__ static inline void decode_unscaled(const uint32_t code[N / 4], float out[N]) {
    __half2 halves[N / 2];
    decode_halves<N>(code, halves);
    unpack_halves<N>(halves, out);
}

// Converts N E4M3 values to FP32 and multiplies them by the scale.
template <int N> __device__ static inline void decode(const uint32_t code[N / 4], float scale, float out[N]) {
    decode_unscaled<N>(code, out);
#pragma unroll
    for (int i = 0; i < N; i++) out[i] *= scale;
}

// Multiplies N E4M3 values by a power of two and converts the results to format TO. Computes in FP16, which represents
// E4M3 exactly. The factor must be at most 1 if TO is E4M3, and at most 2^7 if TO is E5M2. FP16 rounds only numbers so
// small that their FP8 result is 0, so every result is correctly rounded.
template <Format TO, int N>
__device__ static inline void rescale_codes(const uint32_t code[N / 4], float factor, uint32_t out[N / 4]) {
#if __CUDA_ARCH__ >= 890
    // smallest positive FP16 number; two factors of at least this size suffice for every result that is not 0
    constexpr float smallest = 0x1p-24f;
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

// --- amaxes, and the scales of groups --------------------------------------------------------------------------------
// Returns the larger of `maximum` and |x|; NaN if either is NaN.
__device__ static inline float larger_magnitude(float maximum, float x) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(maximum), "f"(fabsf(x)));
    return out;
}

// Returns the largest of `maximum` and the magnitudes of N values; NaN if any is NaN.
template <int N> __device__ static inline float largest_magnitude(const float x[N], float maximum) {
#pragma unroll
    for (int i = 0; i < N; i++) maximum = larger_magnitude(maximum, x[i]);
    return maximum;
}

// Returns the largest of `maximum` and the magnitudes of N BF16 values, computed two at a time; NaN if any is NaN.
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

// Returns the amax over the warp as FP32 bits, in every lane.
__device__ static inline uint32_t warp_amax_bits(float amax) {
    return __reduce_max_sync(ALL_LANES, __float_as_uint(amax));
}

// Returns the amax over `lanes` adjacent lanes (a power of two) in each of these lanes.
__device__ static inline float lanes_amax(float amax, int lanes) {
    for (int mask = 1; mask < lanes; mask *= 2) amax = larger_magnitude(amax, __shfl_xor_sync(ALL_LANES, amax, mask));
    return amax;
}

// Returns the BF16 scale of an E4M3 group with this amax; *scale is the same scale as FP32. Computes the result of
// group_scale_from_amax() in fewer instructions: multiplying by 1 / 448 and one correction step give the correctly
// rounded quotient for every amax.
__device__ static inline __nv_bfloat16 group_scale(float amax, float *scale) {
    constexpr float part = 1.0f / E4M3_MAX;
    const float finite = fminf(amax, bits_float(NONFINITE_BITS - 1u)); // finite even if amax is NaN
    const float approximate = finite * part, quotient = fmaf(fmaf(-E4M3_MAX, approximate, finite), part, approximate);
    const float largest = amax == 0.0f ? 1.0f : fmaxf(quotient, SCALE_MIN);
    const __nv_bfloat16 rounded = __float2bfloat16_rn(largest);
    *scale = __bfloat162float(rounded);
    return rounded;
}

// Returns 1 / scale of a group, correctly rounded. The hardware's approximation and one Newton step suffice because the
// divisor is BF16. Group scales are between 2^-126 and 2^120, so all intermediates are normal numbers.
__device__ static inline float group_scale_reciprocal(float scale) {
    const float near = fast_reciprocal(scale);
    return fmaf(fmaf(-scale, near, 1.0f), near, near);
}

// --- transposing FP8 values in registers -----------------------------------------------------------------------------
// Transposes a block of 4 x 4 FP8 values (word w of 4 rows) in registers. Each column of the block becomes a word;
// consecutive columns are STRIDE words apart.
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

// --- scales of tensors and rows from their amaxes ------------------------------------------------------------
// Returns memory for the row amaxes of a tensor: t.amax, or the workspace if t.amax is NULL. Calls fatal() if the
// workspace is too small.
uint32_t *amaxes_of(Exec *exec, const char *operation, Tensor t);
// Writes t's scale, computed from amaxes. Sets the step's nonfinite flag if an amax is inf or NaN.
void scale_from_amaxes(Exec *exec, Tensor t, const uint32_t *amaxes, int64_t count);
// Writes t's scale, computed from amaxes, in a kernel that may start before the amaxes are complete. The kernel that
// computes the amaxes must call second_stage_allow(). The kernel that follows the scale's kernel may start early, too.
// Before that kernel calls first_stage_wait(), it may read everything except the scale.
void scale_after_amaxes(Exec *exec, Tensor t, const uint32_t *amaxes, int64_t count);

// Returns the maximum of `count` amaxes in thread 0 of a block.
template <int THREADS> __device__ static inline uint32_t block_amax(const uint32_t *amaxes, int64_t count) {
    __shared__ uint32_t shared[THREADS / WARP];
    uint32_t largest = 0;
    const bool wide = (uintptr_t)amaxes % 16 == 0;
    const int64_t vectors = wide ? count / 4 : 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < vectors; i += THREADS) {
        const uint4 v = ((const uint4 *)amaxes)[i];
        largest = max(max(max(largest, v.x), max(v.y, v.z)), v.w);
    }
    for (int64_t i = 4 * vectors + threadIdx.x; i < count; i += THREADS) largest = max(largest, amaxes[i]);
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = largest;
    __syncthreads();
    for (int w = 0; threadIdx.x == 0 && w < THREADS / WARP; w++) largest = max(largest, shared[w]);
    return largest;
}

// Writes the scale that maps `amax` to `largest`, the largest value of the FP8 format. Sets the step's nonfinite flag
// if the amax is inf or NaN.
__device__ static inline void scale_write(float *scale, uint32_t amax, float largest, StepState *state) {
    *scale = scale_from_amax(amax, largest);
    if (amax >= NONFINITE_BITS && state) state->nonfinite = 1;
}

// Writes the scale of q_t, the transposed copy of q that wgrad reads. If q has row scales, q_t's scale is the largest
// row scale, converted to q_t's format. If q is unscaled and q_t is FP8, q_t's scale is computed from q.amax. Otherwise
// writes nothing, because q_t shares q's scale or is unscaled. Returns true if it launched a kernel; the next kernel
// may then be launched with `overlaps`.
bool scale_over_rows(Exec *exec, Tensor q_t, Tensor q);
// Returns the E4M3 scale of a row whose amax has these FP32 bits. The thread whose `first` is true stores the scale at
// `address`.
__device__ static inline float row_scale(uint32_t bits, float *address, bool first, StepState *state) {
    const float scale = row_scale_from_amax(bits, FMT_E4M3);
    if (first) {
        *address = scale;
        if (bits >= NONFINITE_BITS && state) state->nonfinite = 1;
    }
    return scale;
}

// Returns 1 / scale of a row without a division, because row scales are powers of two.
__device__ static inline float row_scale_reciprocal(float scale) {
    return __uint_as_float(0x7f000000u - __float_as_uint(scale));
}

// --- checks of tensor descriptors ---------------------------------------------------------------------------
static inline bool is_grouped(Tensor t) {
    return t.data && t.granularity == SCALE_GROUP;
}

// Calls fatal() unless tensor t can be accessed 16 columns at a time: BF16 or FP8, aligned, with a supported group
// size.
static inline void require_spans(const char *operation, const char *what, Tensor t) {
    if (!t.data) return;
    if (t.format != FMT_BF16 && !format_is_fp8(t.format))
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: %s is stored as %s, but must be bf16 or FP8", operation,
              what, format_name(t.format));
    const int64_t inner = t.transposed ? t.rows : t.cols;
    if (inner % SPAN || t.stride % SPAN || (uintptr_t)t.data % 16)
        fatal(EXIT_DEVICE,
              "internal error: %s on the GPU: %s must be 16-byte aligned, with rows of a multiple of %d elements (is "
              "%lld)",
              operation, what, SPAN, (long long)inner);
    const bool grouped = t.granularity == SCALE_GROUP;
    if (grouped && (t.format != FMT_E4M3 || (t.group != 16 && t.group != 32 && t.group != 64 && t.group != 128)))
        fatal(EXIT_DEVICE,
              "internal error: %s on the GPU: %s has groups of %d values in %s, but must have groups of 16, 32, 64 or "
              "128 values in e4m3",
              operation, what, t.group, format_name(t.format));
    if (format_is_fp8(t.format) && !t.scale)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: %s has no scale", operation, what);
}

// Calls fatal() unless dy_t has the required format: E5M2 if dy is FP8, otherwise dy's format.
static inline void require_gradient_formats(const char *operation, Tensor dy, Tensor dy_t) {
    require_format(operation, "the transpose", dy_t, format_is_fp8(dy.format) ? FMT_E5M2 : dy.format);
}

static inline bool scaled_by_row(Tensor t) {
    return t.data && t.granularity == SCALE_ROW;
}

// Returns log2 of the tensor's group size.
static inline int group_bits_of(Tensor t) {
    int bits = 0;
    while (1 << bits < t.group) bits++;
    return bits;
}
