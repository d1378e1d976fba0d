// What FP8 operations and matmuls need of each other.
#pragma once
#include "cuda/common/cuda_internal.h"

// out (stored transposed) = the codes of x; both share one scale, or x has one per row and out the largest of them,
// which this makes first.
void fp8_transpose_codes(Exec *exec, Tensor out, Tensor x);
// The same of x with a scale per row, where out has its scale already.
void fp8_transpose_rescaled(Exec *exec, Tensor out, Tensor x);
// out (BF16) = the values that the codes of x, E4M3 with one scale or one per row, stand for.
void fp8_decode(Exec *exec, const char *operation, Tensor out, Tensor x);

// q (one scale) = the codes of x, right behind the kernel that makes x and the maxima of its rows, which must allow it.
void fp8_cast_behind_maxima(Exec *exec, const char *operation, Tensor q, Tensor x, const uint32_t *maxima);
// The maxima of the bits of |x| of each row of a BF16 tensor (rows, cols), where its producer leaves none.
void bf16_row_maxima(Exec *exec, Tensor x, uint32_t *maxima);
