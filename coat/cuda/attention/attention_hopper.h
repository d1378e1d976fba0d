// Causal attention by our own kernels for Hopper, in BF16 for heads 64 or 128 wide, grouped or not.
// Plain C without CUDA, so that a machine without it can plan the workspace. Other shapes, operands and GPUs are
// cuDNN's (attention.h).
#pragma once
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTENTION_TILE 128 // tokens

// Whether the kernels take a shape on a GPU of this compute capability (10 * major + minor).
static inline bool attention_hopper_supported(AttentionShape shape, int capability) {
    return capability == 90 && (shape.head_dim == 64 || shape.head_dim == 128);
}

static inline size_t attention_blocks(AttentionShape shape) {
    return ((size_t)shape.T + ATTENTION_TILE - 1) / ATTENTION_TILE;
}

// Bytes of workspace that the backward needs: a counter, two FP32 values per query and head, and where documents are
// apart the lengths of units. The forward needs a counter alone.
static inline size_t attention_backward_tiles_at(AttentionShape shape) {
    size_t rows = (size_t)shape.B * (size_t)shape.heads * attention_blocks(shape) * ATTENTION_TILE;
    return 256 + rows * 2 * sizeof(float);
}

static inline size_t attention_backward_bytes(AttentionShape shape) {
    return attention_backward_tiles_at(shape) + (size_t)shape.B * 2 * attention_blocks(shape) * sizeof(int);
}

// o and lse as the operation of ops.h; lse.data NULL where no backward follows. False, with nothing done, where the
// kernel does not take the operands: the shape or GPU is not supported, a view is not BF16, its rows do not begin at
// multiples of 16 bytes, or there is no workspace.
bool attention_forward_hopper(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                              AttentionShape shape);

// dq, dk, dv as the operation of ops.h; equal bits in every run. False, with nothing done, where the kernel does not
// take the operands, as above, or the workspace is too small.
bool attention_backward_hopper(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                               Tensor k, Tensor v, Tensor positions, Tensor rotations, AttentionShape shape);

#ifdef __cplusplus
}
#endif
