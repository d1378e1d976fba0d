// Shared code of the FP8 norm kernels: sums over lanes, and affine functions that compute the normalized input xhat and
// the norm.
#pragma once
#include "fp8_kernels.h"

// Factors that compute a row's normalized input: xhat = x * factor + shift.
struct HatOf {
    float factor, shift;
};

__device__ static inline HatOf hat_of(float mean, float rstd) {
    return {rstd, -mean * rstd};
}

// Returns one value of the norm. If the caller has divided weight and bias by a scale (NormOf), the result is divided
// by that scale, too. Forward, recompute and backward get identical bits from the same x.
__device__ static inline float norm_affine(float x, HatOf hat, float weight, float bias) {
    return fmaf(fmaf(x, hat.factor, hat.shift), weight, bias);
}

// Returns the sum over LANES adjacent lanes, aligned to LANES, in each of these lanes.
template <int LANES> __device__ static inline float lanes_sum(float x) {
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2) x += __shfl_xor_sync(ALL_LANES, x, mask);
    return x;
}
