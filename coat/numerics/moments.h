// The optimizer's 8-bit states with dynamic range expansion (COAT, section 4). A group of consecutive elements is
// stored as FP8 values, an amax a, and an exponent k that stretches the group's range to the format's range. Muon's
// momentum may be stored as INT8 values instead: integer multiples of a / 127, with k = 1.
//
// Host and device compute identical bits for a (a maximum of raw bits) and for k. k comes from moment_log2(), which
// uses only integer operations, fmaf, and multiplications whose result is not added to anything. Compile with
// -ffp-contract=off and -fmad=false, and do not flush subnormals. The device encodes and decodes elements with its
// special-function unit. FP8 values from host and device may therefore differ if x lies within about 1e-5 of a rounding
// boundary.
//
// The gradient norm detects non-finite gradients before the update. If a moment still becomes non-finite, so does the
// amax a of the moment's group. Every FP8 or INT8 value of the group except 0 then decodes to inf or NaN, which later
// checks detect.
#pragma once
#include "base/c_linkage.h"
#include "rng.h"

C_LINKAGE_BEGIN

// number of elements per group, also in checkpoint files; every process's shard is a multiple of this size
#define MOMENT_GROUP 128
#define MOMENT_K_ONE 16 // stored exponent of a group with k = 1; k is stored in sixteenths, 1 to 255
// largest stored exponent, of groups whose largest |x| is less than 2.1 (E4M3) or 3.8 (E5M2) times their smallest
// nonzero |x|
#define MOMENT_K_MAX 255
#define MOMENT_TINY 0x1p-149f // smallest positive FP32 number; no nonzero FP8 value decodes to a smaller magnitude

// Random stream for the stochastic rounding of weights without master weights. The low 56 bits contain the step.
#define WEIGHT_STREAM (0x77ULL << 56)

// --- logarithm and exponential -------------------------------------------------------------------------------------

// Returns log2 x for x > 0, subnormals included. x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); a minimax
// polynomial gives log2(1 + f) / f (relative error 2.7e-8). Powers of two are exact. Returns some finite number if x is
// 0 or not finite.
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

// Returns 2^x for x in [-126, 0], and 0 for smaller x; exact for integers. Adding a constant rounds x to an integer,
// which is then in the low bits of the sum. The polynomial's relative error is 2e-9.
COAT_HD static inline float moment_exp2(float x) {
    const float shift = 12582912.0f; // 1.5 * 2^23, which rounds a float to an integer when added
    float clamped = x > -126.0f ? x : -126.0f;
    float shifted = clamped + shift;
    float f = clamped - (shifted - shift); // fraction in [-1/2, 1/2]
    float p = 0.000153458122f;
    p = fmaf(p, f, 0.00133999312f);
    p = fmaf(p, f, 0.00961848896f);
    p = fmaf(p, f, 0.0555032878f);
    p = fmaf(p, f, 0.240226469f);
    p = fmaf(p, f, 0.693147206f);
    p = fmaf(p, f, 1.0f);
    float power = bits_float((float_bits(shifted) + (127u - 0x4b400000u)) << 23); // computes 2^n
    return x < -126.0f ? 0.0f : p * power;
}

// Return log2 x and 2^x. The device uses its special-function unit; the host calls moment_log2() and moment_exp2().
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

// --- magnitudes of FP8 values ---------------------------------------------------------------------------------------

// moment_largest() returns F, the FP8 format's largest value. moment_max_code() returns the FP8 bits of F, or the
// largest INT8 value. moment_target() returns log2(F / 2s), the range in octaves that k stretches a group to; s is the
// format's smallest subnormal.
COAT_HD static inline float moment_largest(Format format) {
    return format == FMT_E4M3 ? E4M3_MAX : E5M2_MAX;
}
COAT_HD static inline uint8_t moment_max_code(Format format) {
    return format == FMT_I8 ? 0x7f : format == FMT_E4M3 ? 0x7e : 0x7b;
}
COAT_HD static inline float moment_target(Format format) {
    return format == FMT_E4M3 ? 16.8073549f : 30.8073549f; // log2(448 * 2^8) for E4M3, log2(57344 * 2^15) for E5M2
}

// Returns the magnitude of an FP8 value.
COAT_HD static inline float code_magnitude(uint8_t code, Format format) {
    uint32_t c = code & 0x7fu;
    if (format == FMT_E4M3) return c < 8 ? (float)c * 0x1p-9f : bits_float((c << 20) + (120u << 23));
    return c < 4 ? (float)c * 0x1p-16f : bits_float((c << 21) + (112u << 23));
}

// Returns the FP8 value nearest to y, ties to even. y lies in [0, F], F being the format's largest value. The result
// equals that of the casts in formats.h. Adding a constant to y puts a subnormal result into the low bits of the sum.
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

// Returns log2(value / F) of an FP8 value, F being the format's largest value. The result is exactly 0 for F, and
// meaningless for value 0.
COAT_HD static inline float code_log2(uint8_t code, Format format) {
    return element_log2(code_magnitude(code, format) * (1.0f / moment_largest(format)));
}

// --- encoding and decoding groups of moments -----------------------------------------------------------------------

// Parameters of a group of 8-bit moments. A group of zeros has a = 0 and k = 1.
typedef struct {
    float a;         // amax of the group
    float log2_a;    // log2 of a; 0 if a is 0 or not finite
    float k, k_inv;  // exponent k and 1 / k
    uint8_t k_16ths; // k in sixteenths, as it is stored
    bool deep;       // true: the smallest FP8 value decodes to less than 2^-126 * a, so moment_scaled() uses 3 factors
} MomentGroup;

// Returns a group's exponent k in sixteenths. range: log2(largest |x|) - log2(smallest nonzero |x|), by moment_log2().
// k maps the smallest element to the format's second smallest positive value, so that decoded values keep their FP8
// values when they are encoded again. Because k is rounded down, that element may become the third or fourth smallest
// value, and the next encoding may then raise k once.
COAT_HD static inline uint8_t moment_exponent_of(float range, Format format) {
    float scaled = MOMENT_K_ONE * moment_target(format);
    if (!(range * MOMENT_K_MAX > scaled)) return MOMENT_K_MAX; // also for groups of equal magnitudes
    float k = scaled / range + 0.02f;                          // 0.02 covers the rounding of the logarithms
    return k < 1.0f ? 1 : (uint8_t)k;
}

// Returns a group's exponent k in sixteenths from the bits of its largest and of its smallest nonzero |x|.
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

// Returns the amax and exponent k of a group of moments. The largest |x| has the bits `largest`, the smallest nonzero
// |x| the bits `smallest`. k is 1 without `expand`, and if the amax is 0, inf or NaN.
COAT_HD static inline MomentGroup moment_group_measured(uint32_t largest, uint32_t smallest, Format format,
                                                        bool expand) {
    bool plain = !expand || largest == 0 || largest >= 0x7f800000u;
    return moment_group(bits_float(largest), plain ? MOMENT_K_ONE : moment_exponent(largest, smallest, format), format);
}

// Returns F * 2^(k * log2_ratio), F being the format's largest value. The device adds log2 F in the exponent.
COAT_HD static inline float element_position(float log2_ratio, float k, Format format) {
#ifdef __CUDA_ARCH__
    // log2(448) for E4M3, log2(57344) for E5M2
    return element_exp2(fmaf(k, log2_ratio, format == FMT_E4M3 ? 8.80735492f : 15.8073549f));
#else
    return moment_largest(format) * element_exp2(k * log2_ratio);
#endif
}

// Returns F * (|x| / a)^k, the position of |x| on the FP8 format's scale, F being the format's largest value. Uses
// logarithms, so no intermediate leaves FP32's range.
COAT_HD static inline float moment_position(float magnitude, MomentGroup group, Format format) {
    float log2_ratio = element_log2(magnitude) - group.log2_a;
    // The log ratio is 0 or more only if |x| equals the amax, up to rounding, or if the amax is not finite.
    return log2_ratio < 0.0f ? element_position(log2_ratio, group.k, format) : moment_largest(format);
}

// Returns a factor that corrects the rounding bias of a second moment v in E5M2. Callers multiply moment_position(v) by
// the factor before rounding. If k > 1, v is a concave function of its position, so rounding to the nearest position in
// every step would make v too low on average, by 1.1 % for rare gradients. For a relative rounding error e, the mean of
// v at the positions c (1 - e) and c (1 + e) is v at the position c (1 - (1 - 1/k) e^2 / 2), and the mean of e^2 / 2 is
// 0.0042. The factor is at least 0.95, so that encoding a decoded value returns the same FP8 value. E4M3 has no
// correction, because v is only 0.4 % too low there, and COAT rounds v to nearest.
COAT_HD static inline float moment_raise(float k_inv) {
    float raise = 1.0042f - 0.0042f * k_inv;
    return raise > 0.95f ? raise : 0.95f;
}

// Returns the FP8 value of x, rounded to nearest even; a zero keeps its sign. second: x is a second moment, which has
// no sign. A second moment becomes 0 only if x is 0, because m / (sqrt(v) + eps) would explode with v = 0 and m != 0.
COAT_HD static inline uint8_t moment_encode(float x, MomentGroup group, Format format, bool second) {
    uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
    float position = moment_position(bits_float(magnitude), group, format);
    if (second && format == FMT_E5M2) position = position * moment_raise(group.k_inv);
    uint32_t code = code_nearest(position, format);
    if (second) code = code == 0 ? 1 : code;
    uint32_t sign = second ? 0 : bits >> 24 & 0x80u;
    return (uint8_t)(sign | (magnitude == 0 ? 0 : code));
}

// Returns a * 2^exponent for exponent <= 0 and a > 0. Never returns 0. deep: the exponent may be below -126; a is then
// multiplied by three powers of two, because a single power might underflow.
COAT_HD static inline float moment_scaled(float a, float exponent, bool deep) {
    float first = exponent > -126.0f ? exponent : -126.0f;
    float x = a * element_exp2(first);
    if (deep) {
        float rest = exponent - first, second = rest > -126.0f ? rest : -126.0f, third = rest - second;
        x = x * element_exp2(second) * element_exp2(third > -126.0f ? third : -126.0f);
    }
    return x == 0.0f ? MOMENT_TINY : x;
}

// Returns the moment that an FP8 value of a group represents.
COAT_HD static inline float moment_decode(uint8_t code, MomentGroup group, Format format) {
    float scaled = moment_scaled(group.a, code_log2(code, format) * group.k_inv, group.deep);
    uint32_t magnitude = (code & 0x7fu) == 0 || group.a == 0.0f ? 0 : float_bits(scaled);
    return bits_float(magnitude | (uint32_t)(code & 0x80u) << 24);
}

// --- INT8 values of Muon's momentum --------------------------------------------------------------------------------

#define MOMENT_I8_MAX 127            // largest magnitude of an INT8 value; -128 is not used
#define MOMENT_I8_MIN_AMAX 0x1p-100f // a group with a smaller amax is stored as zeros, because 127 / a might overflow

// Returns the amax that is stored for a group whose largest |x| has the bits `largest`.
COAT_HD static inline float moment_i8_amax(uint32_t largest) {
    const float a = bits_float(largest);
    return a < MOMENT_I8_MIN_AMAX ? 0.0f : a;
}

// Returns the INT8 value of x in a group with amax a: x * 127 / a, rounded to nearest even. Adding 1.5 * 2^23 puts the
// rounded number into the low bits of the sum. If a is inf or NaN, every nonzero x becomes 1, which decodes to inf or
// NaN.
COAT_HD static inline uint8_t moment_i8_encode(float x, float a) {
    const float r = (float)MOMENT_I8_MAX / a;
    const uint32_t rounded = float_bits(x * r + 12582912.0f), nonzero = x != 0.0f;
    return (uint8_t)(a == 0.0f ? 0 : float_bits(a) < 0x7f800000u ? rounded : nonzero);
}

// Returns the moment that an INT8 value represents. 127 decodes to a exactly, and decoded moments keep their INT8
// values when they are encoded again.
COAT_HD static inline float moment_i8_decode(uint8_t code, float a) {
    const float value = (float)(int8_t)code;
#ifdef __CUDA_ARCH__
    // multiplies by the reciprocal, then adds the remainder's quotient; the result is the correctly rounded quotient
    const float near = value * (1.0f / MOMENT_I8_MAX),
                ratio = fmaf(fmaf(-near, MOMENT_I8_MAX, value), 1.0f / MOMENT_I8_MAX, near);
#else
    const float ratio = value / MOMENT_I8_MAX;
#endif
    return code == 0 ? 0.0f : a * ratio;
}

// Rounds x to BF16 stochastically, for weights without master weights. The probability of rounding away from zero is
// the part of x that BF16 cuts off, as a fraction of a BF16 ulp. t: step. index: the element's index among the elements
// of all parameters.
COAT_HD static inline uint16_t bf16_encode_stochastic(float x, uint64_t seed, int64_t t, uint64_t index) {
    uint32_t u = float_bits(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return bf16_encode(x);
    return (uint16_t)((u + (uint32_t)(rng_hash(seed, WEIGHT_STREAM | (uint64_t)t, index) >> 48)) >> 16);
}

C_LINKAGE_END
