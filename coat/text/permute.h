// Computes individual elements of a pseudorandom permutation, for the order of training data, without a table.
#pragma once
#include <stdint.h>

static inline uint64_t permute_mix(uint64_t x) { // a bijection in which every input bit affects every output bit
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

// Returns element i of the permutation of 0 to n - 1 that (seed, epoch) selects, 0 <= i < n.
static inline int64_t permute(int64_t i, int64_t n, uint64_t seed, int64_t epoch) {
    // A Feistel network permutes the numbers 0 to 4^half - 1. Applying it repeatedly, from i to the next number below
    // n, gives a permutation of 0 to n - 1. The network has at least 8 bits, because a smaller network can produce only
    // a few permutations.
    int half = 4;
    while (((uint64_t)1 << (2 * half)) < (uint64_t)n) half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1, key = permute_mix(permute_mix(seed) + (uint64_t)epoch);
    uint64_t x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 1; round <= 6; round++) {
            uint64_t next = left ^ (permute_mix(key + round * 0x9e3779b97f4a7c15u + right) & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
