// The backward of causal attention by our own kernel for Hopper, in BF16 for heads 64 or 128 wide, grouped or not.
// Plain C without CUDA, so that a machine without it can plan the workspace. Other shapes, operands and GPUs are
// cuDNN's (attention.h).
#pragma once
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTENTION_BACKWARD_TILE 128 // tokens

// Whether the kernel takes a shape on a GPU of this compute capability (10 * major + minor).
static inline bool attention_backward_supported(AttentionShape shape, int capability) {
    return capability == 90 && (shape.head_dim == 64 || shape.head_dim == 128);
}

static inline size_t attention_backward_blocks(AttentionShape shape) {
    return ((size_t)shape.T + ATTENTION_BACKWARD_TILE - 1) / ATTENTION_BACKWARD_TILE;
}

// Bytes of workspace: two FP32 values per query and head, and a counter.
static inline size_t attention_backward_bytes(AttentionShape shape) {
    size_t rows = (size_t)shape.B * (size_t)shape.heads * attention_backward_blocks(shape) * ATTENTION_BACKWARD_TILE;
    return 256 + rows * 2 * sizeof(float);
}

// dq, dk, dv as the operation of ops.h; equal bits in every run. False, with nothing done, where the kernel does not
// take the operands: the shape or GPU is not supported, a view is not BF16, its rows do not begin at multiples of 16
// bytes, or the workspace is too small.
bool attention_backward_hopper(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                               Tensor k, Tensor v, AttentionShape shape);

// How many heads' units of work are handed out together, for the benchmark to vary; 0: as many as suit the shape.
// Results do not depend on it.
extern int attention_backward_heads_together;

#ifdef __cplusplus
}
#endif
