// A row of a head as a warp holds it, N values per lane: value lane + 32 i in lane `lane`, zeros beyond the head's
// width. Shared by the attention kernels that are not made of matmuls.
#pragma once
#include "cuda/common/cuda_kernels.h"

template <int N, typename T> __device__ inline void row_load(const T *row, int head_dim, float value[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int d = (int)threadIdx.x % WARP + i * WARP;
        value[i] = d < head_dim ? (float)row[d] : 0.0f;
    }
}
