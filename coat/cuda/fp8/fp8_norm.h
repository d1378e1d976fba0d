// What the norm's FP8 kernels share: the affine maps that the norm and its input are of the stored codes, and
// reductions over a block that holds a row.
#pragma once
#include "fp8_kernels.h"

// xhat = x * factor + shift, of a row.
struct HatOf {
    float factor, shift;
};

__device__ static inline HatOf hat_of(float mean, float rstd) {
    return {rstd, -mean * rstd};
}

// One value of the norm; where weight and bias hold the reciprocal of a scale (NormOf), times that. Forward, recompute
// and backward make the same bits from the same x.
__device__ static inline float norm_affine(float x, HatOf hat, float weight, float bias) {
    return fmaf(fmaf(x, hat.factor, hat.shift), weight, bias);
}

// Sum over aligned sets of LANES neighbouring lanes, in each of them.
template <int LANES> __device__ static inline float lanes_sum(float x) {
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2) x += __shfl_xor_sync(ALL_LANES, x, mask);
    return x;
}
