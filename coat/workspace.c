// Bytes of scratch memory that each backend's operations need, for the memory plan.
#include "cpu/cpu_workspace.h"
#include "cuda/attention.h"
#include "ops.h"

#define CUBLASLT_WORKSPACE ((size_t)32 << 20) // what cuBLASLt's fastest algorithms ask for
#define REDUCTION_BLOCKS 512                  // partial sums per column that the GPU's kernels leave

static int add_part(WorkspacePart parts[], int count, int max_parts, const char *name, size_t bytes) {
    if (count >= max_parts || bytes == 0) return count;
    parts[count].name = name;
    parts[count].bytes = bytes;
    return count + 1;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static int64_t wider(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Columns of the widest activation, the logits apart.
static int64_t widest_activation(const ModelShape *shape) {
    int64_t qkv = (int64_t)(shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    return wider(qkv, wider(shape->ffn, shape->channels));
}

// One operation runs at a time and uses the workspace from its beginning: the largest need counts.
static int cpu_parts(const Config *config, WorkspacePart parts[], int max_parts) {
    size_t threads = (size_t)cpu_threads(config);
    int64_t widest = widest_activation(&config->shape);
    size_t bytes = cpu_piece(widest) + threads * cpu_gemm_slot();
    bytes = larger(bytes, threads * cpu_attention_slot(config->seq_len, config->shape.head_dim));
    bytes = larger(bytes, cpu_row_shared(widest) + threads * cpu_row_slot(widest));
    return add_part(parts, 0, max_parts, "cpu_scratch", bytes);
}

// One operation runs at a time here too: one row of the plan, named after the largest need.
static int cuda_parts(const Config *config, WorkspacePart parts[], int max_parts) {
    const ModelShape *shape = &config->shape;
    int64_t widest = shape->ffn > 3 * shape->channels ? shape->ffn : 3 * shape->channels;
    size_t reductions = (size_t)REDUCTION_BLOCKS * (size_t)widest * sizeof(float);
    const char *name = reductions > CUBLASLT_WORKSPACE ? "reductions" : "cublaslt";
    size_t bytes = larger(reductions, CUBLASLT_WORKSPACE);
    if (config->recipe.precision != PRECISION_FP32) {
        AttentionShape attention;
        attention.B = config->micro_batch;
        attention.T = config->seq_len;
        attention.heads = shape->heads;
        attention.kv_heads = shape->kv_heads;
        attention.head_dim = shape->head_dim;
        size_t backward = attention_workspace_bytes(attention);
        if (backward > bytes) name = "attention_backward";
        bytes = larger(bytes, backward);
    }
    return add_part(parts, 0, max_parts, name, bytes);
}

int ops_workspace_parts(const Config *config, DeviceKind device, WorkspacePart parts[], int max_parts) {
    return device == DEVICE_CUDA ? cuda_parts(config, parts, max_parts) : cpu_parts(config, parts, max_parts);
}
