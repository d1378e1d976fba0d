// What the norm's forward, rebuild and backward share.
#pragma once
#include "cuda_kernels.h"

constexpr int ANY_THREADS = 256; // of the kernels for widths that do not divide by 8: a block per row

// One value of the norm. Every product and sum is rounded, as the twin does, and alike everywhere: backward makes
// the bits of forward again.
__device__ static inline float norm_hat(float x, float mean, float rstd) {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

__device__ static inline float norm_value(float x, float mean, float rstd, float weight, float bias) {
    return __fadd_rn(__fmul_rn(norm_hat(x, mean, rstd), weight), bias);
}
