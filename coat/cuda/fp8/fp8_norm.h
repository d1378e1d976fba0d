// Shared code of the FP8 norm kernels: xhat and the norm as affine functions of the stored values, and lane sums.
#pragma once
#include "fp8_kernels.h"

// Factors of a row's normalized input: xhat = x * factor + shift.
struct HatOf {
    float factor, shift;
};

__device__ static inline HatOf hat_of(float mean, float rstd) {
    return {rstd, -mean * rstd};
}

// Returns one value of the norm. If weight and bias are divided by a scale (NormOf), so is the result. Forward,
// recompute and backward get identical bits from the same x.
__device__ static inline float norm_affine(float x, HatOf hat, float weight, float bias) {
    return fmaf(fmaf(x, hat.factor, hat.shift), weight, bias);
}

// Returns the sum over aligned sets of LANES adjacent lanes, in each of them.
template <int LANES> __device__ static inline float lanes_sum(float x) {
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2) x += __shfl_xor_sync(ALL_LANES, x, mask);
    return x;
}
