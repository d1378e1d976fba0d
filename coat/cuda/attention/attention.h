// Flash attention in BF16 by cuDNN, with a deterministic backward. Only attention.cpp includes the cuDNN frontend,
// which is C++. This header is C and needs neither CUDA nor cuDNN, so that CPU builds can plan the workspace.
#pragma once
#include "ops.h"

C_LINKAGE_BEGIN

// Maximum workspace in bytes for cuDNN's deterministic attention backward, which stores the BF16 gradient of all
// scores. The size of that gradient grows with the square of the sequence length. To stay within the limit, the
// backward processes a few sequences at a time. If one sequence needs too much, the backward processes a few heads of a
// sequence at a time.
#define ATTENTION_WORKSPACE_LIMIT ((size_t)256 * 1000 * 1000)

// Size of a slice of attention's backward: a number of sequences and, in each sequence, a number of key/value heads
// with their query heads.
typedef struct {
    int sequences, kv_heads;
} AttentionSlice;

// Predicts the workspace bytes that cuDNN's backward needs for a slice: for each query head, the scores' BF16 gradient,
// padded to tiles of 64 x 128, and an FP32 sum per row of the scores. With grouped query heads, each query head also
// needs its own dk and dv in BF16.
static inline size_t attention_slice_bytes(AttentionShape shape, AttentionSlice slice) {
    size_t T = (size_t)shape.T, group = (size_t)(shape.heads / shape.kv_heads);
    size_t scores = (T + 63) / 64 * 64 * ((T + 127) / 128 * 128);
    size_t head = scores * 2 + T * 4 + (group > 1 ? T * (size_t)shape.head_dim * 2 * 2 : 0);
    return head * group * (size_t)slice.kv_heads * (size_t)slice.sequences;
}

// Returns the size of a slice of `count` items: the largest divisor of `count` that is at most `most`, so that all
// slices have the same size. If that divisor is below 3/4 of `most`, returns `most`; the last slice is then smaller.
// Returns at least 1.
static inline int attention_even_part(int count, int most) {
    if (most >= count) return count;
    for (int n = most; n > 0 && 4 * n >= 3 * most; n--)
        if (count % n == 0) return n;
    return most > 0 ? most : 1;
}

// Returns a slice whose backward needs at most `limit` bytes of workspace: several sequences, or some heads of one
// sequence. If even one key/value head needs more than `limit`, returns a slice of one key/value head. head_bytes:
// workspace bytes for one key/value head, with its query heads, of one sequence.
static inline AttentionSlice attention_slice_of(AttentionShape shape, size_t head_bytes, size_t limit) {
    const size_t sequence_bytes = head_bytes * (size_t)shape.kv_heads;
    AttentionSlice slice = {1, shape.kv_heads};
    if (sequence_bytes <= limit)
        slice.sequences = attention_even_part(shape.B, (int)(limit / sequence_bytes));
    else
        slice.kv_heads = attention_even_part(shape.kv_heads, (int)(limit / head_bytes));
    return slice;
}

// Returns attention_slice_of() for the bytes per head that attention_slice_bytes() predicts.
static inline AttentionSlice attention_slice(AttentionShape shape, size_t limit) {
    const AttentionSlice one_head = {1, 1};
    return attention_slice_of(shape, attention_slice_bytes(shape, one_head), limit);
}

// Returns the workspace bytes to plan for cuDNN's attention: the bytes predicted for the slice that fits
// ATTENTION_WORKSPACE_LIMIT, plus 4 MiB for cuDNN's small buffers.
static inline size_t attention_workspace_bytes(AttentionShape shape) {
    const size_t room = (size_t)4 * 1024 * 1024;
    return attention_slice_bytes(shape, attention_slice(shape, ATTENTION_WORKSPACE_LIMIT)) + room;
}

// Loads NVRTC, which cuDNN needs to compile kernels. cuDNN alone would search for NVRTC in fewer folders than this
// program does, so the program loads NVRTC first. Returns NULL on success, otherwise the reason why NVRTC cannot be
// loaded.
const char *libraries_load_nvrtc(void);

typedef struct AttentionState AttentionState;

// Creates cuDNN's state for a stream (a cudaStream_t) of a GPU of this compute capability (10 * major + minor). cuDNN
// itself is initialized when the first plan is built.
AttentionState *attention_open(void *stream, int capability);
void attention_close(AttentionState *state);

// Creates a state that builds plans for a described GPU, which need not exist; the plans cannot run. device: the GPU's
// properties in cuDNN's JSON format. capability: 10 * major + minor of the GPU. Returns NULL with err (EXIT_DEVICE) if
// cuDNN does not accept the properties.
AttentionState *attention_open_described(const char *device, int capability, Error *err);

typedef struct {
    bool supported;         // true if cuDNN can compute the shape in the given workspace
    size_t workspace_bytes; // workspace that the plan needs
    AttentionSlice slice;   // sequences and heads that the plan processes at a time
} AttentionPlan;

// Builds cuDNN's plan of attention's forward or backward in training. q, k and v are packed in one tensor with row
// stride (heads + 2 kv_heads) * head_dim. workspace_bytes: size of the available workspace. If cuDNN cannot compute the
// shape, rank 0 prints a warning. The warning is printed once per state, and never for a state from
// attention_open_described().
AttentionPlan attention_plan(AttentionState *state, AttentionShape shape, bool backward, size_t workspace_bytes);

// Returns the reason of cuDNN's latest failure to compute a shape; "" if there was no failure.
const char *attention_refusal(const AttentionState *state);

// Compute attention by cuDNN (see operations.h) and return true. q, k, v, o and their gradients are BF16 with 16-byte
// aligned rows. lse is FP32; lse.data is NULL if no backward follows. Return false if cuDNN cannot compute the shape in
// this workspace; the outputs are then undefined. Call fatal() if cuDNN accepted the plan but its execution fails.
bool attention_forward(AttentionState *state, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape,
                       void *workspace, size_t workspace_bytes);
bool attention_backward(AttentionState *state, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                        Tensor q, Tensor k, Tensor v, AttentionShape shape, void *workspace, size_t workspace_bytes);

// Returns the largest workspace, in bytes, that a plan built so far needs. For reports.
size_t attention_workspace_used(const AttentionState *state);

C_LINKAGE_END
