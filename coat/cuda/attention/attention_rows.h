// Loads one row of an attention head into a warp's registers, N values per lane. value[i] of lane l is element l + 32 i
// of the row, or 0 from head_dim on. Attention kernels without tensor cores use this function.
#pragma once
#include "cuda/common/cuda_kernels.h"

template <int N, typename T> __device__ inline void row_load(const T *row, int head_dim, float value[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int d = (int)threadIdx.x % WARP + i * WARP;
        value[i] = d < head_dim ? (float)row[d] : 0.0f;
    }
}
