// Quantisation of the inputs of products and of the weights. Plain recipes have none: the products read the
// tensors as they are.
#include "cuda_kernels.h"

static void require_same(const char *operation, Tensor codes, Tensor x) {
    if (codes.data && codes.data != x.data)
        fatal(EXIT_DEVICE, "%s on the GPU: the format %s is not built", operation, format_name(codes.format));
}

void cuda_quantize_forward(Exec *, Tensor q, Tensor x) {
    require_same("quantize_forward", q, x);
}

void cuda_quantize_rebuild(Exec *, Tensor q_t, Tensor q, Tensor x) {
    if (q_t.data != q.data) require_same("quantize_rebuild", q_t, x);
}

void cuda_weights_quantize(Exec *, const Parameter *parameters, int count) {
    for (int i = 0; i < count; i++)
        if (parameters[i].weight.codes.data) fatal(EXIT_DEVICE, "weights_quantize on the GPU: FP8 codes are not built");
}
