// Computes the CUDA backend's workspace size for the memory plan. Needs no CUDA, so that CPU builds can use it.
#include "cuda/attention/attention.h"
#include "cuda/attention/attention_hopper.h"
#include "cuda/attention/attention_portable.h"
#include "ops.h"

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

// Returns the workspace bytes that reductions need. The token embedding's gradient needs the most: memory to sort the
// tokens (keys, rows and library buffers), and two partial sums per column and chunk of sorted tokens. The norms'
// reductions are not counted: they need 2 * channels floats per thread block. With at most 8192 channels, that is less
// than half of cuBLASLt's workspace.
static size_t reductions_bytes(const Config *config) {
    size_t tokens = (size_t)config_micro_tokens(config);
    size_t sort = 24 * tokens + ((size_t)1 << 20);
    return sort + 2 * (tokens / EMBED_SORT_CHUNK + 1) * (size_t)config->shape.channels * sizeof(float);
}

// Returns the workspace bytes that attention's backward needs: the largest need of cuDNN, the Hopper kernels and the
// portable kernels. The memory plan does not know the GPU, so each of these implementations may run.
static size_t attention_bytes(const Config *config) {
    if (config->recipe.precision == PRECISION_FP32) return 0;
    const AttentionShape shape = attention_shape(&config->shape, config->micro_batch, config->seq_len);
    const size_t ours = attention_hopper_supported(shape, true) ? attention_backward_bytes(shape) : 0;
    return larger(attention_workspace_bytes(shape), larger(attention_portable_bytes(shape), ours));
}

WorkspaceNeed cuda_workspace(const Config *config) {
    const WorkspaceNeed needs[] = {
        {"cublaslt", MATMUL_WORKSPACE_BYTES},
        {"reductions", reductions_bytes(config)},
        {"attention_backward", attention_bytes(config)},
    };
    WorkspaceNeed most = needs[0];
    for (size_t i = 1; i < sizeof needs / sizeof needs[0]; i++)
        if (needs[i].bytes > most.bytes) most = needs[i];
    return most;
}
