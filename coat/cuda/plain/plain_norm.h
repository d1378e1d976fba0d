// What the norms of FP32, and of BF16 in uncommon widths, share.
#pragma once
#include "cuda/fp8/fp8_kernels.h"

#include <initializer_list>

constexpr int ANY_THREADS = 256; // a block per row

// xhat, with every product and sum rounded, as the CPU reference does.
__device__ static inline float norm_hat(float x, float mean, float rstd) {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

// Whether the kernels of fp8_norm.cu and fp8_norm_backward.cu take these tensors, of which some may be absent. Ends the
// program where one has another format.
static inline bool fp8_norm_takes(const char *operation, Format format, std::initializer_list<Tensor> tensors) {
    bool takes = format == FMT_BF16;
    for (const Tensor &t : tensors) {
        require_format(operation, "a tensor", t, format);
        takes = takes && (!t.data || (t.cols <= FP8_WIDEST_NORM && t.cols % SPAN == 0 && t.stride % SPAN == 0 &&
                                      (uintptr_t)t.data % 16 == 0));
    }
    return takes;
}
