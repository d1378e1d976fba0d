// FP8 scales from amaxes, shared by host and device, so that both compute the same FP8 values.
//
// A scale is the dequantization multiplier. The scale is computed from the amax (largest absolute value) and rounded to
// the scale's storage type. Quantization uses the rounded scale: FP8 value = cast(x * r), r = 1 / scale rounded to
// FP32. Amaxes are the raw bits of |x|, compared as unsigned integers. In that order NaN > inf > every finite value, so
// a NaN or inf always survives the reduction. The result does not depend on the order of comparison.
#pragma once
#include "base/c_linkage.h"
#include "formats.h"
#include "rng.h"

C_LINKAGE_BEGIN

#define SCALE_MIN 1.17549435e-38f  // smallest scale, 2^-126, so that a scale is never 0 or subnormal
#define NONFINITE_BITS 0x7f800000u // an amax whose bits are at least this is inf or NaN

COAT_HD static inline uint32_t magnitude_bits(float x) {
    return float_bits(x) & 0x7fffffffu;
}

COAT_HD static inline float format_max(Format f) {
    return f == FMT_E5M2 ? E5M2_MAX : E4M3_MAX;
}

// Returns the code of the format's smallest positive normal value. Smaller positive codes are subnormal values.
COAT_HD static inline uint8_t fp8_smallest_normal_code(Format f) {
    return f == FMT_E5M2 ? 0x04 : 0x08;
}

// Returns the FP32 scale of a tensor with this amax, for a format whose largest value is `largest`. amax 0 gives scale
// 1. A non-finite amax gives the scale of the largest finite FP32; the caller then sets the step's nonfinite flag.
COAT_HD static inline float scale_from_amax(uint32_t amax, float largest) {
    if (amax == 0) return 1.0f;
    float scale = bits_float(amax < NONFINITE_BITS ? amax : NONFINITE_BITS - 1u) / largest;
    return scale < SCALE_MIN ? SCALE_MIN : scale;
}

// Returns the BF16 scale of a group with this amax. If rounding to BF16 makes the scale smaller, amax / scale exceeds
// `largest` by less than 0.4 %, and the cast saturates.
COAT_HD static inline uint16_t group_scale_from_amax(uint32_t amax, float largest) {
    return bf16_encode(scale_from_amax(amax, largest));
}

// Returns the scale of a row with this amax: the smallest power of two that makes the amax representable. Because all
// row scales are powers of two, FP8 values can later be converted to one scale per tensor. Only values that become
// subnormal are then rounded a second time. The tensor's scale is the largest row scale. A row of zeros therefore gets
// the smallest scale, so that this row does not raise the tensor's scale.
COAT_HD static inline float row_scale_from_amax(uint32_t amax, Format f) {
    // The largest values of both formats are 1.75 times a power of two: 2^8 for E4M3, 2^15 for E5M2.
    const uint32_t largest_exponent = f == FMT_E5M2 ? 15u : 8u,
                   finite = amax < NONFINITE_BITS ? amax : NONFINITE_BITS - 1u;
    const uint32_t exponent = (finite + 0x1fffffu) >> 23;
    return bits_float((exponent > largest_exponent ? exponent - largest_exponent : 1u) << 23);
}

// Returns the scale that gives format `to` the range that `scale` gives format `from`. From E4M3 to E5M2, the result is
// 2^-7 * scale, because both formats' largest values are 1.75 times a power of two.
COAT_HD static inline float scale_in_format(float scale, Format from, Format to) {
    const float other = scale * (format_max(from) / format_max(to));
    return other < SCALE_MIN ? SCALE_MIN : other;
}

// Maximum number of consecutive E4M3 values whose squares are summed in FP32, in order. Callers add these sums in
// double.
#define SQUARES_SPAN 16
COAT_HD static inline float squares_of(const float *value, int64_t count) {
    float sum = 0.0f;
    for (int64_t i = 0; i < count; i++) sum = fmaf(value[i], value[i], sum);
    return sum;
}

// Returns slope times an upper bound of |dy w| for one row of dy (Cauchy-Schwarz). The factor 1.02 covers the matmul's
// rounding.
//   row_squares      sum of squares of the row's FP8 values, without their scale
//   column_squares   maximum over w's columns of the sum of squares of FP8 values, without their scale
//   scale            scale of dy
//   weight_scale     scale of w
//   slope            upper bound of the absolute derivative of the activation function
COAT_HD static inline float gradient_bound(double row_squares, double column_squares, float scale, float weight_scale,
                                           float slope) {
    return (float)(sqrt(row_squares * column_squares) * 1.02 * ((double)scale * (double)weight_scale)) * slope;
}

// GELU_MAX_SLOPE: upper bound of |gelu'|. swiglu_slope(): upper bound of the derivatives of silu(gate) * up with
// respect to gate and to up, from |silu'| < 1.1 and |silu(x)| <= |x|. gate_scale, up_scale: largest group scale in the
// gate columns and in the up columns of a row.
#define GELU_MAX_SLOPE 1.13f
COAT_HD static inline float swiglu_slope(float gate_scale, float up_scale) {
    return fmaxf(E4M3_MAX * gate_scale, 1.1f * E4M3_MAX * up_scale);
}

COAT_HD static inline float scale_reciprocal(float scale) {
    return 1.0f / scale;
}

// Returns the E5M2 scale of the loss gradient (softmax - onehot) * scale. No amax is needed, because the gradient lies
// within [-scale, scale]; -scale becomes exactly -2^15. Probabilities of at least 2^-29 keep E5M2's precision.
// Probabilities below 2^-32 become 0. With at most 65536 tokens in the vocabulary, the dropped probabilities of a
// position sum to less than 2^-16.
COAT_HD static inline float loss_gradient_scale(float scale) {
    float quantum = scale * 0x1p-15f;
    return quantum < SCALE_MIN ? SCALE_MIN : quantum;
}

// Random bits that round the loss gradient to E5M2 stochastically. Rounding to nearest has the same error in all
// positions of equal probabilities, so the error does not average out over a batch.
//   loss_random_start() depends on the step only.
//   loss_random_bits() returns the bits of LOSS_RANDOM columns of a row of logits, from column LOSS_RANDOM * vector on.
//       `row` counts from the start of the micro-batch. Rows of different micro-batches or processes have the same bits
//       only if their row numbers and targets are equal. Beyond 2^22 rows, 2^22 tokens in the vocabulary or 2^20
//       vectors, bits repeat.
//   loss_random_byte() returns the bits of column i of these columns.
#define LOSS_RANDOM 8
#define LOSS_STREAM (0x6cULL << 56) // random stream; the low 56 bits contain the step
COAT_HD static inline uint64_t loss_random_start(uint64_t seed, int64_t t) {
    return rng_start(seed, LOSS_STREAM | (uint64_t)t);
}
COAT_HD static inline uint64_t loss_random_bits(uint64_t start, int64_t row, int32_t target, int64_t vector) {
    return rng_mix(start + ((uint64_t)row << 42 | (uint64_t)target << 20 | (uint64_t)vector) * RNG_STRIDE);
}
COAT_HD static inline uint32_t loss_random_byte(uint64_t bits, int i) {
    return (uint32_t)(bits >> (i / 4 * 32 + i % 2 * 16 + i / 2 % 2 * 8)) & 0xffu;
}

COAT_HD static inline uint8_t fp8_encode(Format f, float x) {
    return f == FMT_E5M2 ? e5m2_encode(x) : e4m3_encode(x);
}

COAT_HD static inline float fp8_decode(Format f, uint8_t code) {
    return f == FMT_E5M2 ? e5m2_decode(code) : e4m3_decode(code);
}

C_LINKAGE_END
