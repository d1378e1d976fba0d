// FP8 functions that other files of the CUDA backend call.
#pragma once
#include "cuda/common/cuda_internal.h"

// out = transpose of x's FP8 values. out shares x's scale; if x is SCALE_ROW, first writes out's scale, the largest row
// scale, and rescales.
void fp8_transpose_codes(Exec *exec, Tensor out, Tensor x);
// out = transpose of x, which is SCALE_ROW, rescaled to the scale that out already has.
void fp8_transpose_rescaled(Exec *exec, Tensor out, Tensor x);
// out (BF16) = decoded values of x, which is E4M3 with one scale or a scale per row.
void fp8_decode(Exec *exec, const char *operation, Tensor out, Tensor x);

// q (FP8, one scale) = x (BF16). Must directly follow the kernel that computes x and its row amaxes, which must call
// second_stage_allow().
void fp8_cast_after_amaxes(Exec *exec, const char *operation, Tensor q, Tensor x, const uint32_t *amaxes);
// Writes the row amaxes of a BF16 tensor, as FP32 bits. For tensors whose own kernel did not write them.
void bf16_row_amaxes(Exec *exec, Tensor x, uint32_t *amaxes);
