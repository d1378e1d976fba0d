// Causal attention by this project's kernels for Hopper: BF16, heads 64 or 128 wide, with or without grouped heads.
// This header is plain C without CUDA, so that the workspace can be planned without it. cuDNN (attention.h) handles
// other shapes, operands and GPUs.
#pragma once
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTENTION_TILE 128 // tokens per unit of work

// True if the kernels support a shape on a GPU of this compute capability (10 * major + minor).
static inline bool attention_hopper_supported(AttentionShape shape, int capability) {
    return capability == 90 && (shape.head_dim == 64 || shape.head_dim == 128);
}

// Returns the number of tiles in a sequence.
static inline size_t attention_blocks(AttentionShape shape) {
    return ((size_t)shape.T + ATTENTION_TILE - 1) / ATTENTION_TILE;
}

// Returns the offset in the backward's workspace of the units' lengths, which follow a counter and two FP32 values per
// query and head. They are used with document masking.
static inline size_t attention_backward_tiles_at(AttentionShape shape) {
    size_t rows = (size_t)shape.B * (size_t)shape.heads * attention_blocks(shape) * ATTENTION_TILE;
    return 256 + rows * 2 * sizeof(float);
}

// Returns the bytes of workspace that the backward needs. The forward needs only a counter.
static inline size_t attention_backward_bytes(AttentionShape shape) {
    return attention_backward_tiles_at(shape) + (size_t)shape.B * 2 * attention_blocks(shape) * sizeof(int);
}

// Computes o and lse as attention_forward of operations.h; lse has no data if no backward follows. Returns false
// without doing anything if the kernel does not support the call: the shape, the GPU, a view that is not BF16 or whose
// rows are not 16-byte aligned, or no workspace.
bool attention_forward_hopper(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                              AttentionShape shape);

// Computes dq, dk and dv as attention_backward of operations.h; equal bits in every run. Returns false without doing
// anything if the kernel does not support the shape, GPU or views (see attention_forward_hopper) or the workspace is
// too small.
bool attention_backward_hopper(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                               Tensor k, Tensor v, Tensor positions, Tensor rope_table, AttentionShape shape);

#ifdef __cplusplus
}
#endif
