// The table of the GPU's operations. What each does is said in ops.h.
#include "attention.h"
#include "cuda_internal.h"

// Attention in BF16 is cuDNN's; in FP32, for exact comparisons, there are slow kernels of our own.
static void attention_forward_op(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape) {
    CudaBackend *backend = cuda_backend(exec);
    if (q.format == FMT_FP32)
        attention_fp32_forward(exec, o, lse, q, k, v, shape);
    else
        attention_forward(backend->attention, o, lse, q, k, v, shape, exec->workspace, exec->workspace_bytes);
}

static void attention_backward_op(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                                  Tensor q, Tensor k, Tensor v, AttentionShape shape) {
    CudaBackend *backend = cuda_backend(exec);
    if (q.format == FMT_FP32)
        attention_fp32_backward(exec, dq, dk, dv, d_o, o, lse, q, k, v, shape);
    else
        attention_backward(backend->attention, dq, dk, dv, d_o, o, lse, q, k, v, shape, exec->workspace,
                           exec->workspace_bytes);
}

extern "C" const Ops *cuda_ops(void) {
    static const Ops ops = {
        .name = "cuda",
        .open = cuda_open,
        .close = cuda_close,
        .allocate = cuda_allocate,
        .release = cuda_release,
        .upload = cuda_upload,
        .download = cuda_download,
        .zero = cuda_zero,
        .synchronize = cuda_synchronize,
        .replay_begin = cuda_replay_begin,
        .replay_end = cuda_replay_end,
        .range_push = cuda_range_push,
        .range_pop = cuda_range_pop,
        .describe = cuda_describe,
        .memory_in_use = cuda_memory_in_use,
        .peak_flops = cuda_peak_flops,
        .embed_forward = cuda_embed_forward,
        .residual_norm_forward = cuda_residual_norm_forward,
        .linear_forward = cuda_linear_forward,
        .attention_forward = attention_forward_op,
        .quantize_forward = cuda_quantize_forward,
        .gelu_forward = cuda_gelu_forward,
        .loss_forward_backward = cuda_loss_forward_backward,
        .loss_sum = cuda_loss_sum,
        .embed_backward = cuda_embed_backward,
        .norm_rebuild = cuda_norm_rebuild,
        .norm_backward = cuda_norm_backward,
        .grad_quantize = cuda_grad_quantize,
        .linear_backward_data = cuda_linear_backward_data,
        .linear_backward_weight = cuda_linear_backward_weight,
        .quantize_rebuild = cuda_quantize_rebuild,
        .gelu_rebuild = cuda_gelu_rebuild,
        .gelu_backward = cuda_gelu_backward,
        .attention_backward = attention_backward_op,
        .grad_norm = cuda_grad_norm,
        .adamw_update = cuda_adamw_update,
        .weights_quantize = cuda_weights_quantize,
    };
    return &ops;
}
