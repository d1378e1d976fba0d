// Attention on the GPU by cuDNN: flash attention in BF16, causal, its backward deterministic. The cuDNN frontend
// is C++ and stays in attention.cpp; this header is C and needs neither CUDA nor cuDNN, so that a machine
// without them can plan the workspace.
#pragma once
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the deterministic backward needs grows with the square of the sequence (it keeps the BF16 gradient of all
// scores), so it runs in slices of the batch, or of the heads where one sequence alone is too much.
#define ATTENTION_WORKSPACE_LIMIT ((size_t)256 * 1000 * 1000)

// One slice of a backward: so many sequences, and of each so many key/value heads with their query heads.
typedef struct {
    int sequences, kv_heads;
} AttentionSlice;

// Bytes of workspace that the backward of a slice needs: per query head the gradient of the scores in BF16, in
// tiles of 64 x 128, and a row sum in FP32; with fewer key/value heads also dk and dv of every query head.
static inline size_t attention_slice_bytes(AttentionShape shape, AttentionSlice slice) {
    size_t T = (size_t)shape.T, group = (size_t)(shape.heads / shape.kv_heads);
    size_t scores = (T + 63) / 64 * 64 * ((T + 127) / 128 * 128);
    size_t head = scores * 2 + T * 4 + (group > 1 ? T * (size_t)shape.head_dim * 2 * 2 : 0);
    return head * group * (size_t)slice.kv_heads * (size_t)slice.sequences;
}

// The largest divisor of `count` up to `most` if it is not much smaller, so that all slices are equal; else most.
static inline int attention_even_share(int count, int most) {
    if (most >= count) return count;
    for (int n = most; n > 0 && 4 * n >= 3 * most; n--)
        if (count % n == 0) return n;
    return most > 0 ? most : 1;
}

static inline AttentionSlice attention_slice(AttentionShape shape, size_t limit) {
    AttentionSlice one_head = {1, 1}, sequence = {1, shape.kv_heads};
    if (attention_slice_bytes(shape, sequence) <= limit) {
        sequence.sequences = attention_even_share(shape.B, (int)(limit / attention_slice_bytes(shape, sequence)));
        return sequence;
    }
    one_head.kv_heads = attention_even_share(shape.kv_heads, (int)(limit / attention_slice_bytes(shape, one_head)));
    return one_head;
}

// The workspace to plan: the largest slice within the limit, and room for the library's small buffers.
static inline size_t attention_workspace_bytes(AttentionShape shape) {
    const size_t room = (size_t)4 * 1024 * 1024;
    return attention_slice_bytes(shape, attention_slice(shape, ATTENTION_WORKSPACE_LIMIT)) + room;
}

typedef struct AttentionState AttentionState;

// Opens cuDNN on a stream (a cudaStream_t). Fails with EXIT_DEVICE when the library does not load.
AttentionState *attention_open(void *stream, Error *err);
void attention_close(AttentionState *state);

// Builds the plans of a training run with a packed projection (row stride (heads + 2 kv_heads) * head_dim), so
// that a shape which cuDNN does not support, or a workspace that is too small, is an error before any training.
bool attention_prepare(AttentionState *state, AttentionShape shape, size_t workspace_bytes, Error *err);

// As the operations of ops.h. q, k, v, o and their gradients BF16 with 16-byte aligned rows; lse FP32, its data
// NULL where no backward follows. The process ends when the library fails.
void attention_forward(AttentionState *state, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape,
                       void *workspace, size_t workspace_bytes);
void attention_backward(AttentionState *state, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                        Tensor q, Tensor k, Tensor v, AttentionShape shape, void *workspace, size_t workspace_bytes);

// For reports: the bytes of workspace that the plans built so far use at most.
size_t attention_workspace_used(const AttentionState *state);

#ifdef __cplusplus
}
#endif
