// Operands of the attention benchmarks, and their conversion to FP32 for the reference kernels.
#pragma once
#include "bench_ceiling.h"
#include "coat/cuda/attention/attention.h"

typedef struct {
    const char *name;
    AttentionShape shape;
} NamedShape;

// Operands and results of attention. qkv and dqkv are packed, (M, (heads + 2 kv_heads) * head_dim). o and d_o are (M,
// heads * head_dim). lse is (B * heads, T) FP32. Only bench_attention_backward uses the other fields:
//   maxima      (M) FP32: the amax of dqkv, which the Hopper kernels store once per MAXIMUM_ROWS tokens
//   positions   (M): each token's position in its document; has no data if sequences are not divided into documents
//   portable    true: run_ours() and run_our_forward() use the portable kernels; false: the Hopper kernels
typedef struct {
    AttentionShape shape;
    bool portable;
    Tensor qkv, o, lse, d_o, dqkv, maxima, positions;
} Attention;

static inline Attention attention_make(Bench *bench, AttentionShape s, Format format) {
    Attention a = {};
    const int64_t M = (int64_t)s.B * s.T, width = (int64_t)s.heads * s.head_dim;
    const int64_t packed = width + 2 * (int64_t)s.kv_heads * s.head_dim;
    a.shape = s;
    a.qkv = bench_tensor(bench, M, packed, format, 1.0f);
    a.dqkv = bench_tensor(bench, M, packed, format, 1.0f);
    a.o = bench_tensor(bench, M, width, format, 1.0f);
    a.d_o = bench_tensor(bench, M, width, format, 1.0f);
    a.lse = bench_tensor(bench, (int64_t)s.B * s.heads, s.T, FMT_FP32, 1.0f);
    return a;
}

static inline void attention_release(Bench *bench, Attention *a) {
    const Tensor all[] = {a->qkv, a->o, a->lse, a->d_o, a->dqkv, a->maxima, a->positions};
    for (const Tensor &t : all) bench_release(bench, t);
}

// Returns the index of the first head of q, k or v (`which` 0, 1 or 2) in a row of a packed QKV tensor.
static inline int first_head(AttentionShape s, int which) {
    return which == 0 ? 0 : s.heads + (which - 1) * s.kv_heads;
}

static inline int heads_of(AttentionShape s, int which) {
    return which == 0 ? s.heads : s.kv_heads;
}

// Returns the columns of q, k or v of a packed QKV tensor.
static inline Tensor part(AttentionShape s, Tensor packed, int which) {
    return tensor_cols(packed, (int64_t)first_head(s, which) * s.head_dim, (int64_t)heads_of(s, which) * s.head_dim);
}

__global__ static void convert_kernel(Tensor to, Tensor from) {
    int64_t count = from.rows * from.cols, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int64_t row = i / from.cols, column = i % from.cols;
        bench_encode(to.data, to.format, row * to.stride + column, bench_element(from, row, column));
    }
}

static inline void convert(Bench *bench, Tensor to, Tensor from) {
    convert_kernel<<<512, 256, 0, cuda_backend(&bench->exec)->stream>>>(to, from);
    LAUNCH_CHECK("convert");
}

// Returns a copy of `from` in FP32.
static inline Tensor widened(Bench *bench, Tensor from) {
    Tensor to = bench_tensor(bench, from.rows, from.cols, FMT_FP32, 1.0f);
    convert(bench, to, from);
    return to;
}

// Opens the GPU with a workspace for the attention of all these shapes.
static inline void bench_open_attention(Bench *bench, const NamedShape shapes[], size_t count) {
    ModelShape *model = &bench->config.shape;
    bench->config.micro_batch = 64, bench->config.seq_len = 1024;
    model->heads = model->kv_heads = 12, model->head_dim = 64, model->channels = 768, model->ffn = 3072;
    bench_open(bench);
    bench->exec.ops->release(&bench->exec, bench->exec.workspace);
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = attention_workspace_bytes(shapes[i].shape);
        if (bytes > bench->exec.workspace_bytes) bench->exec.workspace_bytes = bytes;
    }
    bench->exec.workspace = bench_allocate(bench, bench->exec.workspace_bytes);
}
