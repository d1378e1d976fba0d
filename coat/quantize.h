// How FP8 scales follow from maxima (COAT: FP8 products), once for host and device, so that both make the same codes.
//
// A scale is the multiplier that turns a code back into a value. It is chosen from the absolute maximum, rounded
// to the type it is stored in, and only then used: codes are cast(x * r) with r = RN(1 / scale). Maxima travel as
// the bits of |x|, compared as unsigned integers: the order of comparison does not matter, and NaN > inf > all
// finite values, so that nothing that is not finite is lost.
#pragma once
#include "formats.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SCALE_SMALLEST 1.17549435e-38f // 2^-126: a scale is never 0 or subnormal
#define NONFINITE_BITS 0x7f800000u     // maxima from here on are inf or NaN

COAT_HD static inline uint32_t magnitude_bits(float x) {
    return float_bits(x) & 0x7fffffffu;
}

COAT_HD static inline float format_max(Format f) {
    return f == FMT_E5M2 ? E5M2_MAX : E4M3_MAX;
}

// The smallest code, without sign, that keeps the format's precision: those below it are subnormal.
COAT_HD static inline uint8_t fp8_smallest_normal_code(Format f) {
    return f == FMT_E5M2 ? 0x04 : 0x08;
}

// The FP32 scale of a tensor whose largest magnitude has these bits. 0 -> 1 (all codes are 0 then). A maximum that
// is not finite gives the scale of the largest finite value: the caller raises the step's flag.
COAT_HD static inline float scale_from_maximum(uint32_t amax, float largest) {
    if (amax == 0) return 1.0f;
    float scale = bits_float(amax < NONFINITE_BITS ? amax : NONFINITE_BITS - 1u) / largest;
    return scale < SCALE_SMALLEST ? SCALE_SMALLEST : scale;
}

// The same for a group, rounded to the BF16 it is stored in. Rounding down lets the largest element exceed the
// largest code by less than 2^-8 of itself; the cast saturates it.
COAT_HD static inline uint16_t group_scale_from_maximum(uint32_t amax, float largest) {
    return bf16_encode(scale_from_maximum(amax, largest));
}

// The scale of a row: the smallest power of two with which its largest magnitude, of these bits, has a code. So codes
// can be given the scale of the whole tensor, or of none, without being rounded again but for those that become
// subnormal. That of a row of zeros is the smallest there is, so that the tensor's scale is the largest of its rows'.
COAT_HD static inline float row_scale_from_maximum(uint32_t amax, Format f) {
    // both formats end at 1.75 times a power of two: 2^8, and 2^15
    const uint32_t largest_exponent = f == FMT_E5M2 ? 15u : 8u,
                   finite = amax < NONFINITE_BITS ? amax : NONFINITE_BITS - 1u;
    const uint32_t exponent = (finite + 0x1fffffu) >> 23;
    return bits_float((exponent > largest_exponent ? exponent - largest_exponent : 1u) << 23);
}

// No magnitude of a norm's result over `root` squared columns is larger in a column with this weight and bias, nor is
// it less this centre: a row's largest part is the whole of it. That may be 20 times the largest there is, which
// costs E4M3 range, not precision.
COAT_HD static inline float norm_bound(float root, float weight, float bias, float centre) {
    return fmaf(fabsf(weight), root, fabsf(bias)) + fabsf(centre);
}

// The rows whose mean is a norm's centre: how many of M, and the number of each; all, or some of every part of
// the batch and of its sequences.
#define CENTRE_ROWS 256
COAT_HD static inline int64_t centre_rows(int64_t rows) {
    return rows < CENTRE_ROWS ? rows : CENTRE_ROWS;
}
COAT_HD static inline int64_t centre_row(int64_t i, int64_t rows) {
    const int64_t apart = rows / CENTRE_ROWS;
    return apart > 1 ? i * apart + i * 97 % apart : i;
}

// The scale with which codes in `to` reach as far as those in `from` with theirs: 2^-7 of it from E4M3 to E5M2, whose
// largest codes are 1.75 times a power of two both.
COAT_HD static inline float scale_in_format(float scale, Format from, Format to) {
    const float other = scale * (format_max(from) / format_max(to));
    return other < SCALE_SMALLEST ? SCALE_SMALLEST : other;
}

// The squares of neighbouring values of codes in E4M3, at most a span, added up in their order. Spans are added up in
// double.
#define SQUARES_SPAN 16
COAT_HD static inline float squares_of(const float *value, int64_t count) {
    float sum = 0.0f;
    for (int64_t i = 0; i < count; i++) sum = fmaf(value[i], value[i], sum);
    return sum;
}

// No |dy w| is larger, by Cauchy and Schwarz: from the squares of the codes of a row of dy, and the largest of a column
// of w, with room for what the product rounds. Times the largest slope of what follows.
COAT_HD static inline float gradient_bound(double row_squares, double column_squares, float scale, float weight_scale,
                                           float slope) {
    return (float)(sqrt(row_squares * column_squares) * 1.02 * ((double)scale * (double)weight_scale)) * slope;
}

// The largest slope of gelu, and of silu(gate) up by gate and by up where a row has no larger scales of gate's groups
// and of up's: |silu'| < 1.1, |silu(x)| <= |x|.
#define GELU_LARGEST_SLOPE 1.13f
COAT_HD static inline float swiglu_slope(float gate_scale, float up_scale) {
    return fmaxf(E4M3_MAX * gate_scale, 1.1f * E4M3_MAX * up_scale);
}

COAT_HD static inline float scale_reciprocal(float scale) {
    return 1.0f / scale;
}

// The scale of the loss's gradient in E5M2, known without a maximum: (softmax - onehot) * scale lies within [-scale,
// scale], and -1 becomes exactly 2^15. Probabilities down to 2^-29 keep the format's precision; what becomes 0, below
// 2^-32, is together less than 2^-16 of a token's gradient as long as the vocabulary has at most 65536 tokens.
COAT_HD static inline float loss_gradient_scale(float scale) {
    float quantum = scale * 0x1p-15f;
    return quantum < SCALE_SMALLEST ? SCALE_SMALLEST : quantum;
}

COAT_HD static inline uint8_t fp8_encode(Format f, float x) {
    return f == FMT_E5M2 ? e5m2_encode(x) : e4m3_encode(x);
}

COAT_HD static inline float fp8_decode(Format f, uint8_t code) {
    return f == FMT_E5M2 ? e5m2_decode(code) : e4m3_decode(code);
}

#ifdef __cplusplus
}
#endif
