// Computes the size of the CPU backend's workspace for the memory plan: the largest need of any operation.
#include "cpu_workspace.h"

#include "config/shapes.h"
#include "ops.h"

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

WorkspaceNeed cpu_workspace(const Config *config) {
    const ModelShape *shape = &config->shape;
    size_t threads = (size_t)cpu_threads(config);
    // number of columns of the widest activation other than the logits
    int64_t widest = shape_qkv_width(shape);
    if (shape_hidden_width(shape) > widest) widest = shape_hidden_width(shape);
    if (shape->channels > widest) widest = shape->channels;
    size_t bytes = cpu_piece(widest) + threads * cpu_matmul_slot();
    bytes = larger(bytes, threads * cpu_attention_slot(config->seq_len, shape->head_dim));
    bytes = larger(bytes, cpu_row_shared(widest) + threads * cpu_quantize_slot(widest));
    const WorkspaceNeed need = {"cpu_scratch", bytes};
    return need;
}
