// The optimizer's 8-bit states with dynamic range expansion (COAT: optimizer states): per group of consecutive elements
// the codes, the absolute maximum a, and an exponent k that stretches the group's range onto the format's. One
// definition for host and device.
//
// What must agree between them to the last bit: a (a maximum of bits) and k, from moment_log2(), which consists of
// integer operations, fmaf, and multiplications whose result is added to nothing; compile with -ffp-contract=off and
// -fmad=false, without flushing subnormals. The elements' own logarithms and exponentials are the special-function
// unit's on the device: codes then differ only where a value lies within about 1e-5 of a rounding boundary.
//
// Non-finite inputs are found before (the gradient's norm). Should one come this far, its group's a is not finite and
// every non-zero element of the group decodes to that: reported, never hidden.
#pragma once
#include "rng.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOMENT_K_ONE 16       // k is stored in sixteenths, 1 .. 255
#define MOMENT_K_LARGEST 255  // log2 of a group's range <= 16.8 / 15.9
#define MOMENT_TINY 0x1p-149f // the smallest FP32: what decodes below it is not zero

// Streams of the random numbers; the low bits hold the step.
#define MOMENT_STREAM (0x76ULL << 56) // of the second moment's rounding
#define WEIGHT_STREAM (0x77ULL << 56) // of weights without masters

// --- logarithm and exponential -------------------------------------------------------------------------------------

// log2 x for x > 0, subnormals included: x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), and a minimax polynomial
// for log2(1 + f) / f (relative error 2.7e-8). Powers of two are exact. Not finite or 0: some finite number.
COAT_HD static inline float moment_log2(float x) {
    bool subnormal = float_bits(x) < 0x00800000u;
    uint32_t shifted = float_bits(subnormal ? x * 0x1p23f : x) + (0x3f800000u - 0x3f3504f3u);
    int n = (int)(shifted >> 23) - 127;
    float f = bits_float((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float p = 0.125837183f;
    p = fmaf(p, f, -0.207269996f);
    p = fmaf(p, f, 0.215715659f);
    p = fmaf(p, f, -0.238944792f);
    p = fmaf(p, f, 0.287916241f);
    p = fmaf(p, f, -0.360703684f);
    p = fmaf(p, f, 0.480910643f);
    p = fmaf(p, f, -0.721347347f);
    p = fmaf(p, f, 1.442695f);
    return fmaf(p, f, (float)(subnormal ? n - 23 : n));
}

// 2^x for x in [-126, 0], 0 below; exact for whole x. The rounding to a whole number is an addition, whose result's
// low bits are that number; the polynomial's relative error is 2e-9.
COAT_HD static inline float moment_exp2(float x) {
    const float shift = 12582912.0f; // 1.5 * 2^23
    float clamped = x > -126.0f ? x : -126.0f;
    float shifted = clamped + shift;
    float f = clamped - (shifted - shift); // in [-1/2, 1/2]
    float p = 0.000153458122f;
    p = fmaf(p, f, 0.00133999312f);
    p = fmaf(p, f, 0.00961848896f);
    p = fmaf(p, f, 0.0555032878f);
    p = fmaf(p, f, 0.240226469f);
    p = fmaf(p, f, 0.693147206f);
    p = fmaf(p, f, 1.0f);
    float power = bits_float((float_bits(shifted) + (127u - 0x4b400000u)) << 23); // 2^n
    return x < -126.0f ? 0.0f : p * power;
}

// Of single elements.
COAT_HD static inline float element_log2(float x) {
#ifdef __CUDA_ARCH__
    return __log2f(x);
#else
    return moment_log2(x);
#endif
}

COAT_HD static inline float element_exp2(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return moment_exp2(x);
#endif
}

// --- codes as positive numbers -------------------------------------------------------------------------------------

// F, the format's largest value, and log2(F / 2s), s its smallest subnormal: the range that k stretches a group to.
COAT_HD static inline float moment_largest(Format format) {
    return format == FMT_E4M3 ? E4M3_MAX : E5M2_MAX;
}
COAT_HD static inline uint8_t moment_largest_code(Format format) {
    return format == FMT_E4M3 ? 0x7e : 0x7b;
}
COAT_HD static inline float moment_target(Format format) {
    return format == FMT_E4M3 ? 16.8073549f : 30.8073549f; // log2(448 * 2^8), log2(57344 * 2^15)
}

// The value of a code without sign.
COAT_HD static inline float code_magnitude(uint8_t code, Format format) {
    uint32_t c = code & 0x7fu;
    if (format == FMT_E4M3) return c < 8 ? (float)c * 0x1p-9f : bits_float((c << 20) + (120u << 23));
    return c < 4 ? (float)c * 0x1p-16f : bits_float((c << 21) + (112u << 23));
}

// The nearest code (ties to even) of y in [0, F]: what the FP8 casts of formats.h give, in fewer steps. Subnormal
// codes are the low bits of a sum whose last place is s.
COAT_HD static inline uint8_t code_nearest(float y, Format format) {
    uint32_t u = float_bits(y);
    if (format == FMT_E4M3) {
        uint32_t normal = ((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - (120u << 3);
        uint32_t small = float_bits(y + 0x1p14f) - float_bits(0x1p14f);
        return (uint8_t)(y < 0x1p-6f ? small : normal);
    }
    uint32_t normal = ((u + 0xfffffu + ((u >> 21) & 1u)) >> 21) - (112u << 2);
    uint32_t small = float_bits(y + 0x1p7f) - float_bits(0x1p7f);
    return (uint8_t)(y < 0x1p-14f ? small : normal);
}

// The largest code not above y in [0, F].
COAT_HD static inline uint8_t code_below(float y, Format format) {
    uint32_t u = float_bits(y);
    if (format == FMT_E4M3) return (uint8_t)(y < 0x1p-6f ? (uint32_t)(int32_t)(y * 0x1p9f) : (u >> 20) - (120u << 3));
    return (uint8_t)(y < 0x1p-14f ? (uint32_t)(int32_t)(y * 0x1p16f) : (u >> 21) - (112u << 2));
}

// log2(code / F); exactly 0 for the largest code, without meaning for 0.
COAT_HD static inline float code_log2(uint8_t code, Format format) {
    return element_log2(code_magnitude(code, format) * (1.0f / moment_largest(format)));
}

// --- groups --------------------------------------------------------------------------------------------------------

// What all elements of a group share. Zero groups: a = 0, k = 1.
typedef struct {
    float a;         // absolute maximum
    float log2_a;    // 0 where a is not finite
    float k, k_inv;  // exponent and 1 / k
    uint8_t k_16ths; // k as it is stored
    bool deep;       // the smallest codes lie more than 2^-126 below a
} MomentGroup;

// k in sixteenths from log2 of the largest |x| less that of the smallest that is not zero, by moment_log2(). The
// smallest then takes the format's second code, where it stays: what was decoded keeps its codes when it is encoded
// again. (Rounding k down may leave it on the third or fourth code; then the first repetition can raise k, once.)
COAT_HD static inline uint8_t moment_exponent_of(float range, Format format) {
    float scaled = MOMENT_K_ONE * moment_target(format);
    if (!(range * MOMENT_K_LARGEST > scaled)) return MOMENT_K_LARGEST; // constant groups too
    float k = scaled / range + 0.02f;                                  // the margin covers the rounding of logarithms
    return k < 1.0f ? 1 : (uint8_t)k;
}

// The same from the bits of the two.
COAT_HD static inline uint8_t moment_exponent(uint32_t largest, uint32_t smallest, Format format) {
    return moment_exponent_of(moment_log2(bits_float(largest)) - moment_log2(bits_float(smallest)), format);
}

COAT_HD static inline MomentGroup moment_group(float a, uint8_t k_16ths, Format format) {
    MomentGroup group;
    bool usable = a > 0.0f && float_bits(a) < 0x7f800000u;
    group.a = a;
    group.log2_a = usable ? element_log2(a) : 0.0f;
    group.k = (float)k_16ths * (1.0f / MOMENT_K_ONE);
    group.k_inv = (float)MOMENT_K_ONE / (float)k_16ths;
    group.k_16ths = k_16ths;
    group.deep = (moment_target(format) + 1.0f) * group.k_inv > 126.0f;
    return group;
}

// The group of values with these extremes: the unsigned maximum of the bits of |x|, and the minimum of those that are
// not zero (any larger number where all are). Without `expand` k is 1.
COAT_HD static inline MomentGroup moment_group_measured(uint32_t largest, uint32_t smallest, Format format,
                                                        bool expand) {
    bool plain = !expand || largest == 0 || largest >= 0x7f800000u;
    return moment_group(bits_float(largest), plain ? MOMENT_K_ONE : moment_exponent(largest, smallest, format), format);
}

// F 2^(k log2_ratio), on the device with F as a power of two in the exponent.
COAT_HD static inline float element_position(float log2_ratio, float k, Format format) {
#ifdef __CUDA_ARCH__
    return element_exp2(fmaf(k, log2_ratio, format == FMT_E4M3 ? 8.80735492f : 15.8073549f)); // log2(448), log2(57344)
#else
    return moment_largest(format) * element_exp2(k * log2_ratio);
#endif
}

// F (|x| / a)^k: where |x| lies among the codes. In logarithms, so that no ratio leaves the range of FP32.
COAT_HD static inline float moment_position(float magnitude, MomentGroup group, Format format) {
    float log2_ratio = element_log2(magnitude) - group.log2_a;
    // not below zero: the maximum itself, or not finite
    return log2_ratio < 0.0f ? element_position(log2_ratio, group.k, format) : moment_largest(format);
}

// What the position of a second moment in E5M2 is multiplied by before it takes the nearest code. Where k > 1, values
// are concave in position, so what is rounded to the nearest position in every step comes out too low, by the square of
// the codes' distance: v of rare gradients by 1.1 %. The middle between the values of the codes c (1 - e) and c (1 + e)
// lies at c (1 - (1 - 1/k) e^2 / 2), and the mean of e^2 / 2 is 0.0042. Not below 0.95, so that what was decoded keeps
// its code. In E4M3 v is 0.4 % low, and is rounded as published.
COAT_HD static inline float moment_raise(float k_inv) {
    float raise = 1.0042f - 0.0042f * k_inv;
    return raise > 0.95f ? raise : 0.95f;
}

// Code of x, rounding to nearest even; a zero keeps its sign. The second moment is never negative, and is 0 only where
// x is: with v = 0 and m not, the update m / (sqrt v + eps) would explode.
COAT_HD static inline uint8_t moment_encode(float x, MomentGroup group, Format format, bool second) {
    uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
    float position = moment_position(bits_float(magnitude), group, format);
    if (second && format == FMT_E5M2) position = position * moment_raise(group.k_inv);
    uint32_t code = code_nearest(position, format);
    if (second) code = code == 0 ? 1 : code;
    uint32_t sign = second ? 0 : bits >> 24 & 0x80u;
    return (uint8_t)(sign | (magnitude == 0 ? 0 : code));
}

// a 2^exponent for an exponent <= 0 and a > 0, in steps that do not underflow on the way; never 0.
COAT_HD static inline float moment_scaled(float a, float exponent, bool deep) {
    float first = exponent > -126.0f ? exponent : -126.0f;
    float x = a * element_exp2(first);
    if (deep) {
        float rest = exponent - first, second = rest > -126.0f ? rest : -126.0f, third = rest - second;
        x = x * element_exp2(second) * element_exp2(third > -126.0f ? third : -126.0f);
    }
    return x == 0.0f ? MOMENT_TINY : x;
}

// The value of a code.
COAT_HD static inline float moment_decode(uint8_t code, MomentGroup group, Format format) {
    float scaled = moment_scaled(group.a, code_log2(code, format) * group.k_inv, group.deep);
    uint32_t magnitude = (code & 0x7fu) == 0 || group.a == 0.0f ? 0 : float_bits(scaled);
    return bits_float(magnitude | (uint32_t)(code & 0x80u) << 24);
}

// --- stochastic rounding -------------------------------------------------------------------------------------------

// Uniform in [0, 1) for the second moment of element `index` among all parameters in step t.
COAT_HD static inline float moment_uniform(uint64_t seed, int64_t t, uint64_t index) {
    uint64_t hash = rng_hash(seed, MOMENT_STREAM | (uint64_t)t, index);
    return (float)(int32_t)(hash >> 40) * 0x1p-24f; // as rng_uniform(), in conversions that vectorise
}

// The codes between which v >= 0 lies.
COAT_HD static inline uint8_t moment_code_below(float v, MomentGroup group, Format format) {
    return code_below(moment_position(bits_float(float_bits(v) & 0x7fffffffu), group, format), format);
}
COAT_HD static inline uint8_t moment_code_above(uint8_t low, Format format) {
    return (uint8_t)(low < moment_largest_code(format) ? low + 1 : low);
}

// Of them the one that v gets: the upper with the probability that makes the decoded values' mean v, save that nothing
// but 0 gets code 0.
COAT_HD static inline uint8_t moment_choose(float v, uint8_t low, uint8_t high, float below, float above,
                                            float uniform) {
    uint32_t code = uniform * (above - below) < v - below ? high : low;
    return (uint8_t)(v == 0.0f ? 0 : low == 0 ? 1 : code);
}

COAT_HD static inline uint8_t moment_encode_stochastic(float v, MomentGroup group, Format format, float uniform) {
    uint8_t low = moment_code_below(v, group, format), high = moment_code_above(low, format);
    return moment_choose(v, low, high, moment_decode(low, group, format), moment_decode(high, group, format), uniform);
}

// BF16 by stochastic rounding, for weights without masters: up with the probability of the share that is cut off.
COAT_HD static inline uint16_t bf16_encode_stochastic(float x, uint64_t seed, int64_t t, uint64_t index) {
    uint32_t u = float_bits(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return bf16_encode(x);
    return (uint16_t)((u + (uint32_t)(rng_hash(seed, WEIGHT_STREAM | (uint64_t)t, index) >> 48)) >> 16);
}

#ifdef __cplusplus
}
#endif
