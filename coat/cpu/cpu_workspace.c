// Computes the size of the CPU backend's workspace for the memory plan: the largest need of any operation.
#include "cpu_workspace.h"

#include "config/shapes.h"
#include "ops.h"

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static int64_t wider(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Returns the number of columns of the widest activation other than the logits.
static int64_t widest_activation(const ModelShape *shape) {
    return wider(shape_qkv_width(shape), wider(shape_hidden_width(shape), shape->channels));
}

WorkspaceNeed cpu_workspace(const Config *config) {
    size_t threads = (size_t)cpu_threads(config);
    int64_t widest = widest_activation(&config->shape);
    size_t bytes = cpu_piece(widest) + threads * cpu_matmul_slot();
    bytes = larger(bytes, threads * cpu_attention_slot(config->seq_len, config->shape.head_dim));
    bytes = larger(bytes, cpu_row_shared(widest) + threads * cpu_quantize_slot(widest));
    const WorkspaceNeed need = {"cpu_scratch", bytes};
    return need;
}
