// Measures whether an FP8 matmul algorithm accumulates in FP32 over all of k, or with fewer bits, as the tensor cores'
// fast accumulation does. For this, samples of the algorithm's output are compared with FP64 sums.
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

// Error of a matmul, summed over samples of its output. For each sample, S is the FP64 sum of the terms t, and D is the
// output after the matmul. `added` is the increase of the output by the matmul. The denominator includes t^2 because
// the terms may cancel, and D^2 because D is rounded.
typedef struct {
    double error; // relative error: sqrt(sum |added - S|^2 / sum max(S^2, sum t^2, D^2))
    double bias;  // relative bias: sum added * S / sum S^2 - 1
} MatmulError;

// Maximum relative error of an algorithm that accumulates in FP32, including the rounding of D to BF16 (at most 2^-9).
// Measured on an H200, in E4M3 and E5M2: at most 0.002 with FP32 accumulation; up to 0.39 with fast accumulation. If
// one value in 4096 is 2^12 times the others, FP32 accumulation has an error of 0.005. The reason is that a tensor core
// adds 32 terms at a time and drops terms below 2^-13 of the largest of them.
#define MATMUL_ERROR_LIMIT 0.01
#define MATMUL_BIAS_LIMIT 0.01

typedef struct MatmulSamples MatmulSamples;

MatmulSamples *matmul_samples_open(void); // allocates 36 KiB of device memory
void matmul_samples_close(MatmulSamples *samples);

// Measure a matmul's error. matmul_samples_before() must be called before the matmul; if the matmul adds to D, it saves
// samples of D. matmul_samples_after() must be called after the matmul. matmul_samples_after() waits for the GPU and
// returns the error, or NaN if the operands are all 0 or not finite.
void matmul_samples_before(Exec *exec, MatmulSamples *samples, const SampledMatmul *p);
MatmulError matmul_samples_after(Exec *exec, MatmulSamples *samples, const SampledMatmul *p);

static inline bool matmul_is_exact(MatmulError e) {
    return e.error <= MATMUL_ERROR_LIMIT && fabs(e.bias) <= MATMUL_BIAS_LIMIT; // false if the error is NaN
}
