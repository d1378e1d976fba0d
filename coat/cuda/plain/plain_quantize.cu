// Quantisation in plain recipes: there is none, the matmuls read the tensors as they are. What fp8_quantize.cu does
// not take either is refused.
#include "cuda/common/cuda_kernels.h"

static void require_same(const char *operation, Tensor codes, Tensor x) {
    if (codes.data && codes.data != x.data)
        fatal(EXIT_DEVICE, "%s on the GPU: a copy in the format %s is not built", operation, format_name(codes.format));
}

void plain_quantize_forward(Exec *, Tensor q, Tensor x) {
    require_same("quantize_forward", q, x);
}

void plain_quantize_recompute(Exec *, Tensor q_t, Tensor q, Tensor x) {
    if (q_t.data != q.data) require_same("quantize_recompute", q_t, x);
}
