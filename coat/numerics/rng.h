// Counter-based random numbers. A value depends only on (seed, stream, index), not on earlier draws, threads or
// devices. Callers choose a stream (one per purpose or tensor) and increment the index.
#pragma once
#include "base/c_linkage.h"
#include "formats.h"

C_LINKAGE_BEGIN

// distance between consecutive counters: an odd number, 2^64 divided by the golden ratio
#define RNG_STRIDE 0x9e3779b97f4a7c15ULL

// Mixes 64 bits: two rounds of xor-shift and multiplication by an odd constant, and a last xor-shift. The function is a
// bijection. A flipped input bit flips each output bit with a probability of about 1/2.
COAT_HD static inline uint64_t rng_mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ULL;
    return x ^ (x >> 32);
}

// Returns the first counter of (seed, stream). Mixes the stream before combining the stream with the seed, so that
// neither (seed + 1, stream) nor (seed, stream + 1) is a shifted copy of (seed, stream).
COAT_HD static inline uint64_t rng_start(uint64_t seed, uint64_t stream) {
    return rng_mix(rng_mix(seed + RNG_STRIDE) ^ rng_mix(~stream * RNG_STRIDE));
}

// Returns 64 random bits. rng_start() does not depend on index, so compilers hoist it out of loops.
COAT_HD static inline uint64_t rng_hash(uint64_t seed, uint64_t stream, uint64_t index) {
    return rng_mix(rng_start(seed, stream) + index * RNG_STRIDE);
}

// Returns a uniform number in [0, 1), a multiple of 2^-24.
COAT_HD static inline float rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (float)(rng_hash(seed, stream, index) >> 40) * (1.0f / 16777216.0f);
}

// Returns a standard normal number by the Box-Muller transform of two hashes. Computes in double and rounds once, so
// that math libraries that differ in the last bit agree in nearly every float.
COAT_HD static inline float rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    const double unit = 1.0 / 9007199254740992.0; // 2^-53
    // in (0, 1], because the logarithm of 0 is infinite
    double radius = ((double)(rng_hash(seed, stream, 2 * index) >> 11) + 1.0) * unit;
    double angle = (double)(rng_hash(seed, stream, 2 * index + 1) >> 11) * unit;
    return (float)(sqrt(-2.0 * log(radius)) * cos(6.283185307179586 * angle));
}

C_LINKAGE_END
