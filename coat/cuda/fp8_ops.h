// The operations of ops.h for FP8 descriptors (COAT: FP8 products, saved activations, FP8 flow). cuda_ops.cu calls
// these where a tensor that an operation reads or writes is quantised, and the kernels for plain formats otherwise.
// (The weights' operation is the same for all: those without codes are passed over.)
#pragma once
#include "cuda_internal.h"

void fp8_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias);
void fp8_norm_rebuild(Exec *exec, Tensor n_t, Tensor n, Norm norm);
void fp8_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                       bool accumulate);

void fp8_gelu_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved);
void fp8_gelu_rebuild(Exec *exec, Tensor g_t, Tensor g, Tensor h);
void fp8_gelu_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h, bool accumulate);

void fp8_quantize_forward(Exec *exec, Tensor q, Tensor x);
void fp8_quantize_rebuild(Exec *exec, Tensor q_t, Tensor q, Tensor x);
void fp8_grad_quantize(Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate);

// out (stored transposed) = the codes of x; both share one scale, or x has one per row and out the largest of them,
// which this makes first.
void fp8_transpose_codes(Exec *exec, Tensor out, Tensor x);
// The same of x with a scale per row, where out has its scale already.
void fp8_transpose_rescaled(Exec *exec, Tensor out, Tensor x);

// The maxima of the bits of |x| of each row of a BF16 tensor (rows, cols), where its producer leaves none.
void bf16_row_maxima(Exec *exec, Tensor x, uint32_t *maxima);
