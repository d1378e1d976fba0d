// Applies RoPE to one pair of values of a head: low is element i, high is element i + head_dim / 2. The inverse
// rotation needs the negated sine. Every kernel and the CPU reference use this formula without FMA, so that their bits
// are identical.
#pragma once

__device__ static inline void rotate_pair(float &low, float &high, float cosine, float sine) {
    const float x = low;
    low = x * cosine - high * sine;
    high = high * cosine + x * sine;
}
