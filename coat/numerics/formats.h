// Number formats: FP32, BF16, and the 8-bit floats E4M3 and E5M2. The functions here run on host and device and define
// every conversion: decoding is exact, encoding rounds once. Kernels use the GPU's conversion instructions if there are
// any. dev/test/test_formats.cu compares these instructions with this file (all FP8 values, all BF16 values, random
// FP32). The results are bitwise equal, except that NaNs may differ in sign and payload.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define COAT_HD __host__ __device__
#else
#define COAT_HD
#endif

// Type that stores FMT_FP32 values on the CPU: float, or double with COAT_DOUBLE. Only the gradient check defines
// COAT_DOUBLE, so that its finite differences are exact enough to reveal a wrong term.
#ifdef COAT_DOUBLE
typedef double real;
#else
typedef float real;
#endif

typedef enum { FMT_NONE, FMT_FP32, FMT_BF16, FMT_E4M3, FMT_E5M2, FMT_U16, FMT_I32, FMT_U8, FMT_I8, FMT_COUNT } Format;

static inline size_t format_bytes(Format f) {
    switch (f) {
    case FMT_FP32: return sizeof(real);
    case FMT_I32: return 4;
    case FMT_BF16:
    case FMT_U16: return 2;
    case FMT_E4M3:
    case FMT_E5M2:
    case FMT_U8:
    case FMT_I8: return 1;
    default: return 0;
    }
}

static inline const char *format_name(Format f) {
    static const char *const names[FMT_COUNT] = {"none", "fp32", "bf16", "e4m3", "e5m2", "u16", "i32", "u8", "i8"};
    return (unsigned)f < FMT_COUNT ? names[f] : "?";
}

static inline bool format_is_fp8(Format f) {
    return f == FMT_E4M3 || f == FMT_E5M2;
}

// True if 8-bit optimizer states may have the format f. Such states have an amax and an exponent per group
// (SCALE_EXPAND).
static inline bool format_has_groups(Format f) {
    return format_is_fp8(f) || f == FMT_I8;
}

#define E4M3_MAX 448.0f
#define E5M2_MAX 57344.0f

COAT_HD static inline uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

COAT_HD static inline float bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

// Rounds x to BF16, the upper 16 bits of an FP32, to nearest even. A NaN becomes a quiet NaN.
COAT_HD static inline uint16_t bf16_encode(float x) {
    uint32_t u = float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

COAT_HD static inline float bf16_decode(uint16_t b) {
    return bits_float((uint32_t)b << 16);
}

// Encodes a magnitude, the bits of |x|, as a float with `mbits` mantissa bits and exponent bias `bias`. Rounds to
// nearest even. Infinities and values above the format's largest finite value saturate to that value, whose bits are
// `max_code`. x must not be NaN. To detect an infinity, callers must check x before the cast.
COAT_HD static inline uint32_t float_encode_bits(uint32_t magnitude, int mbits, int bias, uint32_t max_code) {
    int exponent = (int)(magnitude >> 23) - 127; // exponent of x if x is a normal FP32; subnormals are encoded as 0
    int lowest = 1 - bias;                       // exponent of the format's smallest normal value
    if (exponent < lowest - mbits - 1) return 0; // |x| is below half of the smallest subnormal value
    int drop = 23 - mbits + (exponent < lowest ? lowest - exponent : 0);
    uint32_t mant = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t kept = mant >> drop, rest = mant & ((1u << drop) - 1u), half = 1u << (drop - 1);
    kept += (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
    // for normal values, the leading 1 in `kept` adds 1 to the exponent field, and so does a carry from rounding
    uint32_t code = exponent < lowest ? kept : kept + ((uint32_t)(exponent + bias - 1) << mbits);
    return code > max_code ? max_code : code;
}

// Encodes x as an 8-bit float as float_encode_bits() does. A NaN becomes 0x7f with the sign of x.
COAT_HD static inline uint8_t fp8_encode_bits(float x, int mbits, int bias, uint8_t max_code) {
    uint32_t u = float_bits(x), sign = u >> 31, magnitude = u & 0x7fffffffu;
    return (uint8_t)(sign << 7 |
                     (magnitude > 0x7f800000u ? 0x7fu : float_encode_bits(magnitude, mbits, bias, max_code)));
}

COAT_HD static inline float fp8_decode_bits(uint8_t c, int mbits, int bias) {
    uint32_t sign = c >> 7, exponent = (c & 0x7fu) >> mbits, mant = c & ((1u << mbits) - 1u);
    float magnitude = exponent ? ldexpf((float)(mant + (1u << mbits)), (int)exponent - bias - mbits)
                               : ldexpf((float)mant, 1 - bias - mbits);
    return sign ? -magnitude : magnitude;
}

// Rounds x to E4M3: largest finite value 448, smallest subnormal 2^-9, no infinity, NaN is 0x7f or 0xff.
COAT_HD static inline uint8_t e4m3_encode(float x) {
    return fp8_encode_bits(x, 3, 7, 0x7e);
}
COAT_HD static inline float e4m3_decode(uint8_t c) {
    return (c & 0x7fu) == 0x7fu ? bits_float(0x7fc00000u) : fp8_decode_bits(c, 3, 7);
}

// Rounds x to E5M2, whose largest finite value is 57344. Infinity is 0x7c or 0xfc; 0x7d to 0x7f and 0xfd to 0xff are
// NaN. The cast saturates, so it never produces infinities.
COAT_HD static inline uint8_t e5m2_encode(float x) {
    return fp8_encode_bits(x, 2, 15, 0x7b);
}
COAT_HD static inline float e5m2_decode(uint8_t c) {
    uint8_t magnitude = c & 0x7fu;
    if (magnitude > 0x7cu) return bits_float(0x7fc00000u);
    if (magnitude == 0x7cu) return bits_float((uint32_t)(c >> 7) << 31 | 0x7f800000u);
    return fp8_decode_bits(c, 2, 15);
}

// Rounds x stochastically to E5M2: away from zero if `random`, uniform in 0 to 255, is large enough. The expected value
// is x, rounded to FP16. The upper 8 bits of an FP16 value are an E5M2 value, and the lower 8 bits, divided by 256, are
// the probability of rounding away from zero.
COAT_HD static inline uint8_t e5m2_encode_stochastic(float x, uint32_t random) {
    uint32_t u = float_bits(x), sign = u >> 31, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint8_t)(sign << 7 | 0x7fu);
    uint32_t code = (float_encode_bits(magnitude, 10, 15, 0x7bffu) + random) >> 8;
    return (uint8_t)(sign << 7 | (code > 0x7bu ? 0x7bu : code));
}

// Rounds a master weight to the nearest BF16, ties away from zero (--master split16). Bit 15 of x is 1 if and only if
// the magnitude was rounded up. master_join() uses this bit to restore x from the BF16 weight and the low 16 bits of x.
COAT_HD static inline uint16_t master_bf16(float x) {
    return (uint16_t)((float_bits(x) + 0x8000u) >> 16);
}
COAT_HD static inline float master_join(uint16_t bf16, uint16_t low) {
    return bits_float((uint32_t)(uint16_t)(bf16 - (low >> 15)) << 16 | low);
}
