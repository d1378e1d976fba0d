// What the update is made of: cuda_gradients.cu for sums and the norm of gradients; the AdamW step in cuda_optimizer.cu
// for moments in FP32 and BF16, in fp8_moments.cu for those in 8 bits. Included by these alone.
#pragma once
#include "cuda/common/cuda_kernels.h"

constexpr int OPTIMIZER_THREADS = 256;

// What all elements of a step share, made once on the device.
struct UpdateScalars {
    float lr, beta1, beta2, eps, weight_decay;
    float clip;                     // factor of the gradient
    float correction1, correction2; // 1 / (1 - beta^t) of the moments
    float rate, floor; // for moments in 8 bits: lr correction1 / sqrt(correction2), eps / sqrt(correction2)
    uint64_t seed;     // of stochastic rounding, with
    int64_t t;         // the number of this update
    int32_t skip;
};

// Where the full-precision parameter lives: in the value, in FP32 or (by stochastic rounding) in BF16; in FP32 beside
// it; or in the value's 16 bits and 16 more.
enum MasterStore { IN_VALUE, IN_VALUE_BF16, IN_FP32, IN_SPLIT16 };

// Which of these a parameter has; ends the process if none.
MasterStore master_store(const Parameter &p);

// The elements of a tensor without gaps between its rows; ends the process if it has any.
int64_t flat_elements(const char *operation, Tensor t);

static inline bool aligned16(const void *address) {
    return (uintptr_t)address % 16 == 0;
}

__device__ static inline float fast_sqrt(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// One element: m and v become the fresh moments; returns the parameter after the step.
__device__ static inline float adamw_element(const UpdateScalars &s, float decay, float grad, float *m, float *v,
                                             float p) {
    const float g = grad * s.clip;
    *m = s.beta1 * *m + (1.0f - s.beta1) * g;
    *v = s.beta2 * *v + (1.0f - s.beta2) * g * g;
    const float update = *m * s.correction1 / (sqrtf(*v * s.correction2) + s.eps);
    return p - s.lr * update - decay * p;
}

// The same for moments that are rounded to 8 bits anyway, in fewer operations: m and v come multiplied by their betas,
// sums are fused, and root and reciprocal are the hardware's (2^-23); the root of a subnormal number is 0.
__device__ static inline float adamw_element_short(const UpdateScalars &s, float decay, float grad, float *m, float *v,
                                                   float p) {
    const float g = grad * s.clip;
    *m = fmaf(1.0f - s.beta1, g, *m);
    *v = fmaf((1.0f - s.beta2) * g, g, *v);
    const float update = *m * fast_reciprocal(fast_sqrt(*v) + s.floor);
    return fmaf(-decay, p, fmaf(-s.rate, update, p));
}

// The step for all parameters whose moments are SCALE_EXPAND, as Parameter and Recipe say.
void fp8_moments_update(Exec *exec, const Parameter *parameters, int count, const UpdateScalars *scalars,
                        StepState *state);
