// A pair of a head's values, (i, i + half), rotated by its angle; back with the sine negated. As on the CPU, nothing is
// contracted to fused operations, so that whoever rotates has the same bits.
#pragma once

__device__ static inline void rotate_pair(float &low, float &high, float cosine, float sine) {
    const float x = low;
    low = x * cosine - high * sine;
    high = high * cosine + x * sine;
}
