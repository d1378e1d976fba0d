// Applies RoPE to one pair of a head's values, elements i and i + head_dim / 2; negate sine for the inverse. No FMA is
// used, so the result has the same bits in every kernel and on the CPU.
#pragma once

__device__ static inline void rotate_pair(float &low, float &high, float cosine, float sine) {
    const float x = low;
    low = x * cosine - high * sine;
    high = high * cosine + x * sine;
}
