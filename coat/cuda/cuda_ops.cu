// Defines the CUDA backend's table of functions, and the operations that choose their kernels by format, GPU and shape.
#include "cuda/attention/attention.h"
#include "cuda/attention/attention_hopper.h"
#include "cuda/attention/attention_portable.h"
#include "cuda/common/cuda_kernels.h"
#include "cuda/fp8/fp8_ops.h"

// --- attention: choice between the project's kernels and cuDNN -------------------------------------------------------

// Implementations of attention; the first one that fits is used:
//   BF16   Hopper kernels, if they support the GPU and shape, with or without document masking
//          cuDNN, without document masking, if it supports the shape
//          attention_portable_forward()
//   FP32   attention_plain_forward()
// If k has more rows than q, then k and v include a KV cache, and attention_cached_forward() is used.
void cuda_attention_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                            AttentionShape shape) {
    CudaBackend *backend = cuda_backend(exec);
    require_format("attention_forward", "positions", positions, FMT_I32);
    if (k.rows > q.rows) {
        attention_cached_forward(exec, o, lse, q, k, v, shape);
        return;
    }
    if (q.format != FMT_BF16) {
        attention_plain_forward(exec, o, lse, q, k, v, positions, shape);
        return;
    }
    if (attention_forward_hopper(exec, o, lse, q, k, v, positions, shape)) return;
    if (positions.data ||
        !attention_forward(backend->attention, o, lse, q, k, v, shape, exec->workspace, exec->workspace_bytes))
        attention_portable_forward(exec, o, lse, q, k, v, positions, shape);
}

void cuda_attention_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                             Tensor k, Tensor v, Tensor positions, Tensor rope_table, AttentionShape shape) {
    CudaBackend *backend = cuda_backend(exec);
    require_format("attention_backward", "positions", positions, FMT_I32);
    require_format("attention_backward", "the RoPE table", rope_table, FMT_FP32);
    if (attention_backward_hopper(exec, dq, dk, dv, d_o, o, lse, q, k, v, positions, rope_table, shape)) return;
    if (q.format != FMT_BF16)
        attention_plain_backward(exec, dq, dk, dv, d_o, o, lse, q, k, v, positions, shape);
    else if (positions.data || !attention_backward(backend->attention, dq, dk, dv, d_o, o, lse, q, k, v, shape,
                                                   exec->workspace, exec->workspace_bytes))
        attention_portable_backward(exec, dq, dk, dv, d_o, o, lse, q, k, v, positions, shape);
    qk_norm_rope_rotate_back(exec, dq, shape.heads, positions, rope_table, shape);
    qk_norm_rope_rotate_back(exec, dk, shape.kv_heads, positions, rope_table, shape);
    // The Hopper kernels, used above, write amaxes themselves. For all other kernels, the row amaxes are computed here.
    Tensor packed = dq;
    packed.cols = dq.cols + dk.cols + dv.cols;
    if (dq.amax && q.format == FMT_BF16) bf16_row_amaxes(exec, packed, dq.amax);
}

// --- norms and activations: plain/ handles unscaled tensors, fp8/ handles tensors with scales ------------------------
// Returns `norm` or, if it has no weight, a copy with a weight of ones. The ones are FP32 if `like` is FP32, otherwise
// BF16.
static Norm with_weight(Exec *exec, Norm norm, Tensor like) {
    const CudaBackend *backend = cuda_backend(exec);
    if (norm.weight.data) return norm;
    if (like.cols > backend->ones_count)
        fatal(EXIT_DEVICE, "internal error: a norm without weight has %lld columns; at most %lld are supported",
              (long long)like.cols, (long long)backend->ones_count);
    norm.weight = like.format == FMT_FP32 ? tensor_of(backend->ones, 1, like.cols, FMT_FP32)
                                          : tensor_of(backend->ones + backend->ones_count, 1, like.cols, FMT_BF16);
    return norm;
}

void cuda_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias) {
    const bool fp8 = is_fp8(n) || is_fp8(norm.x) || y.granularity == SCALE_ROW;
    norm = with_weight(exec, norm, r_in);
    (fp8 ? fp8_residual_norm_forward : plain_residual_norm_forward)(exec, n, norm, r_out, r_in, y, y_bias);
}

// Copies the unscaled tensor `from` to `to`, which must have the same format and shape. Does nothing if to.data is NULL
// or equals from.data.
static void copy_rows(Exec *exec, Tensor to, Tensor from) {
    if (!to.data || to.data == from.data || to.rows == 0) return;
    require_format("postnorm_residual_forward", "the copy of the residual stream", to, from.format);
    const size_t bytes = format_bytes(from.format);
    CUDA_CHECK(cudaMemcpy2DAsync(to.data, (size_t)to.stride * bytes, from.data, (size_t)from.stride * bytes,
                                 (size_t)from.cols * bytes, (size_t)from.rows, cudaMemcpyDeviceToDevice,
                                 cuda_backend(exec)->stream),
               "copying the residual stream");
}

// The post-norm kernels write r_out (the residual stream) and, if n is FP8, n. If n is unscaled, r_out is copied to n,
// unless both share memory.
void cuda_postnorm_residual_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y) {
    const bool fp8 = is_fp8(n) || is_fp8(norm.x) || y.granularity == SCALE_ROW;
    if (y.data) {
        norm = with_weight(exec, norm, r_in);
        (fp8 ? fp8_postnorm_residual_forward : plain_postnorm_residual_forward)(exec, n, norm, r_out, r_in, y);
    } else {
        copy_rows(exec, r_out, r_in);
        if (is_fp8(n)) fp8_quantize_forward(exec, n, r_out);
    }
    if (!is_fp8(n)) copy_rows(exec, n, r_out);
}

void cuda_norm_recompute(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
    if (!n_t.data || n_t.data == n.data) return;
    const bool fp8 = is_fp8(n_t) || is_fp8(n) || is_fp8(norm.x);
    (fp8 ? fp8_norm_recompute : plain_norm_recompute)(exec, n_t, n, with_weight(exec, norm, n_t));
}

void cuda_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                        bool accumulate) {
    norm = with_weight(exec, norm, g);
    (is_fp8(norm.x) ? fp8_norm_backward : plain_norm_backward)(exec, g, dweight, dbias, dn, norm, add, accumulate);
}

void cuda_activation_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved,
                             ActivationKind kind) {
    const bool fp8 = is_fp8(g) || is_fp8(h);
    (fp8 ? fp8_activation_forward : plain_activation_forward)(exec, g, h, y, bias, from_saved, kind);
}

void cuda_activation_recompute(Exec *exec, Tensor g_t, Tensor g, Tensor h, ActivationKind kind) {
    if (!g_t.data || g_t.data == g.data) return;
    (is_fp8(g_t) || is_fp8(h) ? fp8_activation_recompute : plain_activation_recompute)(exec, g_t, g, h, kind);
}

void cuda_activation_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h, bool accumulate,
                              ActivationKind kind) {
    const bool fp8 = is_fp8(dh_q) || is_fp8(h);
    (fp8 ? fp8_activation_backward : plain_activation_backward)(exec, dh_q, dh_qt, dbias, dg, h, accumulate, kind);
}

void cuda_quantize_forward(Exec *exec, Tensor q, Tensor x) {
    (is_fp8(q) ? fp8_quantize_forward : plain_quantize_forward)(exec, q, x);
    if (q.amax && !is_fp8(q)) bf16_row_amaxes(exec, x, q.amax);
}

void cuda_quantize_recompute(Exec *exec, Tensor q_t, Tensor q, Tensor x) {
    (is_fp8(q_t) ? fp8_quantize_recompute : plain_quantize_recompute)(exec, q_t, q, x);
}

void cuda_grad_quantize(Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate) {
    (is_fp8(dy_q) ? fp8_grad_quantize : plain_grad_quantize)(exec, dy_q, dy_qt, dbias, dy, accumulate);
}

extern "C" const Ops *cuda_ops(void) {
    static const Ops ops = {
        .name = "cuda",
        .device = DEVICE_CUDA,
#define DEVICE_FUNCTION(name, result, parameters) .name = cuda_##name,
#include "device_functions.h"
#undef DEVICE_FUNCTION
#define OPERATION(name, parameters) .name = cuda_##name,
#include "operations.h"
#undef OPERATION
    };
    return &ops;
}
