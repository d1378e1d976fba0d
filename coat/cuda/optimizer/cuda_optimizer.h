// Shared declarations of the optimizers: cuda_gradients.cu accumulates gradients and computes norms; cuda_optimizer.cu
// runs AdamW on FP32 and BF16 moments, fp8_moments.cu on 8-bit moments; cuda_muon.cu runs Muon. Included by these files
// only.
#pragma once
#include "cuda/common/cuda_kernels.h"

constexpr int OPTIMIZER_THREADS = 256;

// Values that one optimizer step needs for every element, computed once on the device.
struct UpdateScalars {
    float lr, beta1, beta2, eps, weight_decay;
    float clip;                     // gradient clipping: factor that multiplies every gradient element
    float correction1, correction2; // bias corrections of the moments: 1 / (1 - beta^t)
    float rate, floor;              // for 8-bit moments: lr * correction1 / sqrt(correction2), eps / sqrt(correction2)
    uint64_t seed;                  // seed of stochastic rounding, which is combined with t
    int64_t t;                      // number of this optimizer update
    int32_t skip;                   // StepState.skips; if not 0, the other values are 0 and no update is made
};

// Returns the step's scalars for a parameter whose learning rate is the step's learning rate times `rate`.
__device__ static inline UpdateScalars with_rate(UpdateScalars s, float rate) {
    s.lr *= rate;
    s.rate *= rate;
    return s;
}

// Storage of full-precision parameters. IN_VALUE: FP32 value. IN_VALUE_BF16: BF16 value, rounded stochastically.
// IN_FP32: FP32 master weights. IN_SPLIT16: BF16 value as upper half, U16 master weights as lower half.
enum MasterStore { IN_VALUE, IN_VALUE_BF16, IN_FP32, IN_SPLIT16 };

// Returns how the parameter's full-precision value is stored. Calls fatal() if the parameter's formats are unsupported.
MasterStore master_store(const Parameter &p);

// Returns the number of elements of t. Calls fatal() if there are gaps between the rows of t.
int64_t flat_elements(const char *operation, Tensor t);

static inline bool aligned16(const void *address) {
    return (uintptr_t)address % 16 == 0;
}

__device__ static inline float fast_sqrt(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Computes AdamW for one element: updates m and v in place and returns the new parameter.
__device__ static inline float adamw_element(const UpdateScalars &s, float decay, float grad, float *m, float *v,
                                             float p) {
    const float g = grad * s.clip;
    *m = s.beta1 * *m + (1.0f - s.beta1) * g;
    *v = s.beta2 * *v + (1.0f - s.beta2) * g * g;
    const float update = *m * s.correction1 / (sqrtf(*v * s.correction2) + s.eps);
    return p - s.lr * update - decay * p;
}

// Computes AdamW for one element in fewer operations; on entry, *m and *v are already multiplied by beta1 and beta2.
// Used for 8-bit moments, whose rounding hides the difference. Uses FMAs and the hardware's square root and reciprocal
// (error 2^-23); the root of a subnormal number is 0.
__device__ static inline float adamw_element_short(const UpdateScalars &s, float decay, float grad, float *m, float *v,
                                                   float p) {
    const float g = grad * s.clip;
    *m = fmaf(1.0f - s.beta1, g, *m);
    *v = fmaf((1.0f - s.beta2) * g, g, *v);
    const float update = *m * fast_reciprocal(fast_sqrt(*v) + s.floor);
    return fmaf(-decay, p, fmaf(-s.rate, update, p));
}

// Runs AdamW on those of the parameters whose moments are 8-bit (SCALE_EXPAND). Sets state->nonfinite if a new group of
// moments contains inf or NaN.
void fp8_moments_update(Exec *exec, const Parameter *parameters, int count, const UpdateScalars *scalars,
                        StepState *state);

// Sets the amaxes of the weights to 0 before an update writes them. A skipped step (state->skips) changes no amax.
void amaxes_clear(cudaStream_t stream, const Parameter *parameters, int count, const StepState *state);

// Divides a tensor without gaps (BF16 or FP32) into `count` equal parts. Writes partial sums of squares of each part to
// the workspace, part after part, in FP64. Returns the number of sums per part; 0 if the tensor is empty.
int squares_launch(Exec *exec, const char *operation, Tensor t, int count);
