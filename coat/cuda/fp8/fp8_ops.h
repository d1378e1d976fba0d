// What FP8 operations and products need of each other.
#pragma once
#include "cuda/common/cuda_internal.h"

// out (stored transposed) = the codes of x; both share one scale, or x has one per row and out the largest of them,
// which this makes first.
void fp8_transpose_codes(Exec *exec, Tensor out, Tensor x);
// The same of x with a scale per row, where out has its scale already.
void fp8_transpose_rescaled(Exec *exec, Tensor out, Tensor x);

// The maxima of the bits of |x| of each row of a BF16 tensor (rows, cols), where its producer leaves none.
void bf16_row_maxima(Exec *exec, Tensor x, uint32_t *maxima);
