// Samples of an FP8 matmul's elements, compared with sums in FP64: whether an algorithm adds up in FP32 over the whole
// of k, or shorter, as the tensor cores do by themselves.
#pragma once
#include "cuda/common/cuda_internal.h"
#include "matmul_algos.h"

// D (m, n) = A (m, k) * B (k, n), column-major, with k contiguous in A and B: as cuBLASLt takes FP8 on Hopper.
typedef struct {
    MatmulKey key;
    const void *a, *b, *d;
    const float *scale_a, *scale_b; // scale_b NULL: 1
} SampledMatmul;

// Over the samples s, with the sum S(s) of terms t(s, i) in FP64, and what the matmul added to D:
typedef struct {
    double
        error; // root of sum |added - S|^2 / sum max(S^2, sum t^2, D^2): sums that cancel are held beside their terms,
               // and what is added to D beside D, which is rounded
    double bias; // sum added * S / sum S^2, less 1
} MatmulError;

// What sums in FP32 stay within, the rounding of D to BF16 (at most 2^-9) included. Measured on an H200, in
// every algorithm and in both formats: error up to 0.002; 0.005 where one value of 4096 is 2^12 times the
// others, since a tensor core cuts terms off that lie 2^13 below the largest of the 32 beside them. Fast
// accumulation is up to 0.39 off.
#define MATMUL_ERROR_LIMIT 0.01
#define MATMUL_BIAS_LIMIT 0.01

typedef struct MatmulSamples MatmulSamples;

MatmulSamples *matmul_samples_open(void); // takes 36 KB of the GPU's memory
void matmul_samples_close(MatmulSamples *samples);

// Before the matmul: keeps the samples of D where the matmul adds to it. After it: the error; NaN where the operands
// are 0 or not finite, which tells nothing. Waits for the GPU.
void matmul_samples_before(Exec *exec, MatmulSamples *samples, const SampledMatmul *p);
MatmulError matmul_samples_after(Exec *exec, MatmulSamples *samples, const SampledMatmul *p);

static inline bool matmul_is_exact(MatmulError e) {
    return e.error <= MATMUL_ERROR_LIMIT && fabs(e.bias) <= MATMUL_BIAS_LIMIT; // false of NaN
}
