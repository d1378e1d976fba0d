// FP8 functions that other files of the CUDA backend call.
#pragma once
#include "cuda/common/cuda_internal.h"

static inline bool is_fp8(Tensor t) {
    return t.data && format_is_fp8(t.format);
}

// Transposes x's FP8 values into `out`, which shares x's scale. If x has row scales, first writes out's own scale, the
// largest row scale converted to out's format, and rescales the values to that scale.
void fp8_transpose_codes(Exec *exec, Tensor out, Tensor x);
// Transposes x, which has row scales, into `out` and rescales the values to out's scale, which must already be written.
void fp8_transpose_rescaled(Exec *exec, Tensor out, Tensor x);
// Decodes x, which is E4M3 with one scale or a scale per row, to `out` in BF16.
void fp8_decode(Exec *exec, const char *operation, Tensor out, Tensor x);

// Computes q's scale from x's row amaxes, and casts x (BF16) to q (E4M3 with one scale). Must run right after the
// kernel that computes x and the amaxes. That kernel must call second_stage_allow().
void fp8_cast_after_amaxes(Exec *exec, const char *operation, Tensor q, Tensor x, const uint32_t *amaxes);
// Computes the row amaxes of x (BF16), as FP32 bits. x's rows must be 16-byte aligned and a multiple of 8 wide.
void bf16_row_amaxes(Exec *exec, Tensor x, uint32_t *amaxes);
