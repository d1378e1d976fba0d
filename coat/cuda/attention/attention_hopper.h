// Causal attention on Hopper with this project's kernels: BF16, head width 64 or 128, with or without grouped query
// heads. Other cases use cuDNN (attention.h) or the portable kernels (attention_portable.h). This header is plain C
// without CUDA, so that CPU builds can plan memory with it.
#pragma once
#include "ops.h"

C_LINKAGE_BEGIN

#define ATTENTION_TILE 128 // query or key rows that one unit of work owns (attention_copying.h)

// True if attention's Hopper kernels support a shape. hopper: the GPU is a Hopper, and the code was compiled for it.
static inline bool attention_hopper_supported(AttentionShape shape, bool hopper) {
    return hopper && !shape.bidirectional && (shape.head_dim == 64 || shape.head_dim == 128);
}

// Returns the number of 128-row tiles in a sequence.
static inline size_t attention_blocks(AttentionShape shape) {
    return ((size_t)shape.T + ATTENTION_TILE - 1) / ATTENTION_TILE;
}

// Returns the number of heads that attention computes together, before it starts other heads: the largest number from 1
// to 16 whose q, k, v and do fit in 32 MiB of the L2 cache. Returns 1 if even one head does not fit.
static inline int attention_heads_together(AttentionShape shape) {
    const int64_t cached = 32 << 20, head = (int64_t)shape.T * shape.head_dim * 4 * (int64_t)sizeof(uint16_t);
    return head * 16 <= cached ? 16 : head < cached ? (int)(cached / head) : 1;
}

// Returns the byte offset of an int array (B, 2, blocks) in the workspace of attention's backward. The array stores how
// many 128-row tiles each unit of work streams: first units of queries, then units of keys. It is used only with
// document masking. The array comes after the counter of claimed units (256 bytes) and after lse and delta, two FP32
// values per head and query. Each sequence's queries are padded to a multiple of 128.
static inline size_t attention_backward_tiles_at(AttentionShape shape) {
    size_t rows = (size_t)shape.B * (size_t)shape.heads * attention_blocks(shape) * ATTENTION_TILE;
    return 256 + rows * 2 * sizeof(float);
}

// Returns the workspace bytes that attention's backward on Hopper needs. The forward needs only the counter of claimed
// units.
static inline size_t attention_backward_bytes(AttentionShape shape) {
    return attention_backward_tiles_at(shape) + (size_t)shape.B * 2 * attention_blocks(shape) * sizeof(int);
}

// Computes o and lse as attention_forward() does (operations.h). lse.data is NULL if no backward follows. Returns false
// without launching a kernel in four cases: the shape or GPU is not supported, a tensor is not BF16 with 16-byte
// aligned rows, there is no workspace, or the driver cannot create the TMA maps.
bool attention_forward_hopper(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                              AttentionShape shape);

// Computes dq, dk and dv as attention_backward() does (operations.h), with bit-identical results in every run. If
// dq.amax exists, writes one amax for every 16 tokens of a sequence, at the first of these tokens, and 0 at the others.
// Returns false without launching a kernel in four cases: the shape or GPU is not supported, a tensor is not BF16 with
// 16-byte aligned rows, the workspace is smaller than attention_backward_bytes(), or the driver cannot create the TMA
// maps.
bool attention_backward_hopper(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                               Tensor k, Tensor v, Tensor positions, Tensor rope_table, AttentionShape shape);

C_LINKAGE_END
