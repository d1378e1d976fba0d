// Implements quantize_forward and quantize_recompute for unscaled outputs: matmuls read x itself, so nothing is
// quantized or copied.
#include "cuda/common/cuda_kernels.h"

// Calls fatal() unless q is absent or shares x's memory.
static void require_same(const char *operation, Tensor q, Tensor x) {
    if (q.data && q.data != x.data)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: a copy in format %s is not supported", operation,
              format_name(q.format));
}

void plain_quantize_forward(Exec *, Tensor q, Tensor x) {
    require_same("quantize_forward", q, x);
}

void plain_quantize_recompute(Exec *, Tensor q_t, Tensor q, Tensor x) {
    if (q_t.data != q.data) require_same("quantize_recompute", q_t, x);
}
