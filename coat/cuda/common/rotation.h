// Applies RoPE to one pair of values of a head, elements i and i + head_dim / 2. Negate the sine for the inverse. No
// FMA is used, so that every kernel and the CPU compute identical bits.
#pragma once

__device__ static inline void rotate_pair(float &low, float &high, float cosine, float sine) {
    const float x = low;
    low = x * cosine - high * sine;
    high = high * cosine + x * sine;
}
