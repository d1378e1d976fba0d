// What the norms of FP32, and of BF16 in uncommon widths, share.
#pragma once
#include "cuda/fp8/fp8_kernels.h"

#include <initializer_list>

constexpr int ANY_THREADS = 256; // a block per row

// xhat, with every product and sum rounded, as the twin does.
__device__ static inline float norm_hat(float x, float mean, float rstd) {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

// Ends the program unless those that are there have this format. Whether they are for the kernels of fp8_norm.cu and
// fp8_norm_backward.cu.
static inline bool in_spans(const char *operation, Format format, std::initializer_list<Tensor> tensors) {
    bool spans = format == FMT_BF16;
    for (const Tensor &t : tensors) {
        require_format(operation, "a tensor", t, format);
        spans = spans && (!t.data || (t.cols <= FP8_WIDEST_NORM && t.cols % SPAN == 0 && t.stride % SPAN == 0 &&
                                      (uintptr_t)t.data % 16 == 0));
    }
    return spans;
}
