// Random inputs for tests of format conversions on both backends.
#pragma once
#include "coat/numerics/rng.h"

// Returns a random FP32 number. Half of the numbers are random bit patterns, including NaN, inf and subnormals. The
// other half have exponents near those of FP8.
static inline float random_float(uint64_t stream, uint64_t i) {
    const uint64_t hash = rng_hash(3, stream, i);
    if (i % 2) return bits_float((uint32_t)hash);
    return bits_float((uint32_t)(hash & 0x807fffffu) | (uint32_t)(100 + (hash >> 32) % 46) << 23);
}
