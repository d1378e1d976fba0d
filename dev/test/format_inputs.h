// Numbers that the conversions between formats are tested with, on both backends.
#pragma once
#include "coat/numerics/rng.h"

// Half of them any bit pattern, NaN, infinities and subnormal numbers included; half within the exponents of the 8-bit
// formats and a little around them.
static inline float random_float(uint64_t stream, uint64_t i) {
    const uint64_t hash = rng_hash(3, stream, i);
    if (i % 2) return bits_float((uint32_t)hash);
    return bits_float((uint32_t)(hash & 0x807fffffu) | (uint32_t)(100 + (hash >> 32) % 46) << 23);
}
