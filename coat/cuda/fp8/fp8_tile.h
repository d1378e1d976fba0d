// The tile of 128 x 128 of the passes that cast and transpose: how a block shares it, and the sums of its columns.
#pragma once
#include "fp8_kernels.h"

// A block is 8 warps, a warp has 16 rows, a thread 4 rows of 16 columns: 8 lanes cover the tile's columns, so that all
// accesses are whole lines of 128 bytes, those of the transposed codes too.
constexpr int TILE = 128;
constexpr int TILE_THREADS = 256;
constexpr int TILE_WARPS = TILE_THREADS / WARP;

constexpr size_t TILE_SUM_BYTES = (size_t)8 << 20; // of partial sums, at most

// The block's column sums, from those of its threads: over 4 lanes, then over the warps, in a fixed order. `shared`
// is the tile's memory.
template <typename Index>
__device__ static inline void tile_sums(float sum[SPAN], float *shared, float *out, Index first_column, Index cols) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], 8);
        sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], 16);
    }
    __syncthreads(); // the tile has been read
    if (lane < TILE / SPAN) {
#pragma unroll
        for (int i = 0; i < SPAN; i += 4)
            *(float4 *)(shared + warp * TILE + lane * SPAN + i) =
                make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    }
    __syncthreads();
    const int column = (int)threadIdx.x;
    if (column >= TILE || first_column + column >= cols) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < TILE_WARPS; w++) total += shared[w * TILE + column];
    out[first_column + column] = total;
}

// How many parts of the rows may have partial sums of `cols` columns in the workspace.
static inline int64_t tile_sum_parts(const Exec *exec, const char *operation, int64_t cols) {
    const size_t room = exec->workspace_bytes < TILE_SUM_BYTES ? exec->workspace_bytes : TILE_SUM_BYTES;
    const int64_t most = (int64_t)(room / ((size_t)cols * sizeof(float)));
    if (most < 1) fatal(EXIT_DEVICE, "%s: %lld column sums do not fit the workspace", operation, (long long)cols);
    return most;
}
