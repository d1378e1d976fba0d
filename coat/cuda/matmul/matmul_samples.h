// Measures whether an FP8 matmul algorithm accumulates in FP32 over all of k, or with fewer bits as the tensor cores'
// fast accumulation does. Samples of the output are compared with sums in FP64.
#pragma once
#include "cuda/common/cuda_internal.h"
#include "matmul_algos.h"

// A sampled matmul D (m, n) = A (m, k) * B (k, n), column-major. k is contiguous in A and B, as cuBLASLt requires for
// FP8 on Hopper.
typedef struct {
    MatmulKey key;
    const void *a, *b, *d;
    const float *scale_a, *scale_b; // addresses of the operands' scales; if scale_b is NULL, b's scale is 1
} SampledMatmul;

// Error of a matmul, summed over samples of its output. For each sample, S is the FP64 sum of the terms t, D the output
// and `added` the output's increase by the matmul. The denominator includes the terms and D, because sums may cancel
// and D is rounded.
typedef struct {
    double error; // relative error: sqrt(sum |added - S|^2 / sum max(S^2, sum t^2, D^2))
    double bias;  // relative bias: sum added * S / sum S^2 - 1
} MatmulError;

// Maximum relative error of an algorithm that accumulates in FP32, including the rounding of D to BF16 (at most 2^-9).
// Measured on an H200, in E4M3 and E5M2: at most 0.002 with FP32 accumulation; 0.005 if one value of 4096 is 2^12 times
// the others, because a tensor core drops terms below 2^-13 of the largest of its 32; up to 0.39 with fast
// accumulation.
#define MATMUL_ERROR_LIMIT 0.01
#define MATMUL_BIAS_LIMIT 0.01

typedef struct MatmulSamples MatmulSamples;

MatmulSamples *matmul_samples_open(void); // allocates 36 KiB of device memory
void matmul_samples_close(MatmulSamples *samples);

// Measure a matmul's error. matmul_samples_before() must run before the matmul and saves samples of D if the matmul
// adds to D. matmul_samples_after() must run after the matmul. It waits for the GPU and returns the error, or NaN if
// the operands are all 0 or not finite.
void matmul_samples_before(Exec *exec, MatmulSamples *samples, const SampledMatmul *p);
MatmulError matmul_samples_after(Exec *exec, MatmulSamples *samples, const SampledMatmul *p);

static inline bool matmul_is_exact(MatmulError e) {
    return e.error <= MATMUL_ERROR_LIMIT && fabs(e.bias) <= MATMUL_BIAS_LIMIT; // false if the error is NaN
}
