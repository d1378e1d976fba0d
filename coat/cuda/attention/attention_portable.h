// Attention in BF16 by mma.sync for GPUs of compute capability 8.0 and later: causal or bidirectional, with or without
// grouped query heads and document masking. This header is plain C without CUDA, so that CPU builds can plan memory.
#pragma once
#include "ops.h"

C_LINKAGE_BEGIN

// Returns the workspace bytes that the backward needs: lse and delta of each query and head (statistics_kernel).
static inline size_t attention_portable_bytes(AttentionShape shape) {
    return (size_t)shape.B * (size_t)shape.heads * (size_t)shape.T * 2 * sizeof(float);
}

// Computes o and lse as attention_forward() does (operations.h). lse.data is NULL if no backward follows. Calls fatal()
// unless the head width is a multiple of 8 up to 128 and all views are BF16 with 16-byte aligned rows.
void attention_portable_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                                AttentionShape shape);

// Computes dq, dk and dv as attention_backward() does (operations.h), but without RoPE's backward and amaxes. Results
// are bit-identical in every run. Calls fatal() if the workspace is too small or if attention_portable_forward()'s
// conditions on head width and views are not met.
void attention_portable_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                                 Tensor q, Tensor k, Tensor v, Tensor positions, AttentionShape shape);

C_LINKAGE_END
