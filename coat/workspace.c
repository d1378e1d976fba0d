// Bytes of scratch memory that each backend's operations need, for the memory plan.
#include "cpu/cpu_workspace.h"
#include "cuda/attention.h"
#include "ops.h"

#define CUBLASLT_WORKSPACE ((size_t)32 << 20) // what cuBLASLt's fastest algorithms ask for
#define SORT_CHUNK 64                         // sorted tokens that leave partial sums of the embedding's gradient

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
    size_t bytes = cpu_piece(widest) + threads * cpu_product_slot();
    bytes = larger(bytes, threads * cpu_attention_slot(config->seq_len, config->shape.head_dim));
    bytes = larger(bytes, cpu_row_shared(widest) + threads * cpu_quantize_slot(widest));
    return add_part(parts, 0, max_parts, "cpu_scratch", bytes);
}

// What the largest of the GPU's reductions, the gradient of the token embedding, leaves between its stages: the sort
// of the tokens (keys and rows, in and out, and the library's own copies) and two partial sums per chunk of sorted
// tokens. The norms' reductions stay under half of what cuBLASLt has (blocks * 2 * channels, with as many blocks as
// fill the device and at most 8192 channels), the others are smaller still.
static size_t reductions_bytes(const Config *config) {
    size_t tokens = (size_t)config_micro_tokens(config);
    size_t sort = 24 * tokens + ((size_t)1 << 20);
    return sort + 2 * (tokens / SORT_CHUNK + 1) * (size_t)config->shape.channels * sizeof(float);
}

// One operation runs at a time here too: one row of the plan, named after the largest need.
static int cuda_parts(const Config *config, WorkspacePart parts[], int max_parts) {
    const ModelShape *shape = &config->shape;
    size_t reductions = reductions_bytes(config);
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
