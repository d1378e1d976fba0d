// Functions shared by the forward and backward norm kernels for FP32 and for BF16 of unusual widths.
#pragma once
#include "cuda/fp8/fp8_kernels.h"

#include <initializer_list>

constexpr int ANY_THREADS = 256; // number of threads of a block that processes one row of a norm

// Returns xhat, the normalized value of x. Rounds after each multiplication and addition, as the CPU reference does.
__device__ static inline float norm_hat(float x, float mean, float rstd) {
    return __fmul_rn(__fsub_rn(x, mean), rstd);
}

// True if the kernels of fp8_norm.cu and fp8_norm_backward.cu support a norm's tensors: BF16, aligned, and of a width
// that is a multiple of 16 and not too large. Tensors without data are ignored. Calls fatal() if a tensor's format is
// not `format`.
static inline bool fp8_norm_supports(const char *operation, Format format, std::initializer_list<Tensor> tensors) {
    bool takes = format == FMT_BF16;
    for (const Tensor &t : tensors) {
        require_format(operation, "a tensor", t, format);
        takes = takes && (!t.data || (t.cols <= FP8_MAX_NORM_WIDTH && t.cols % SPAN == 0 && t.stride % SPAN == 0 &&
                                      (uintptr_t)t.data % 16 == 0));
    }
    return takes;
}
