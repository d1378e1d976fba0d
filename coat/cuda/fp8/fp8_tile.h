// Tile in shared memory for passes that cast to FP8 and transpose: 128 rows of 64 or 128 columns of FP8 values, and
// their column sums. A thread processes 4 rows of 16 columns; adjacent threads process adjacent columns.
#pragma once
#include "fp8_kernels.h"

constexpr int TILE_ROWS = 128;
// number of words per column; a word contains the FP8 values of 4 rows
constexpr int TILE_WORDS = TILE_ROWS / THREAD_ROWS;

template <int COLUMNS> constexpr int TILE_LANES = COLUMNS / SPAN; // number of threads that process a row of a tile
template <int COLUMNS> constexpr int TILE_THREADS = TILE_LANES<COLUMNS> *TILE_WORDS;

constexpr size_t TILE_SUM_BYTES = (size_t)8 << 20; // maximum size in bytes of the partial column sums

template <int COLUMNS> struct Tile { uint4 memory[TILE_ROWS * COLUMNS / sizeof(uint4)]; };

// Outputs of a pass that casts to FP8 and transposes.
struct TileOut {
    char *plain;         // untransposed output, (rows, cols) in FP8 or BF16; NULL: not written
    uint8_t *transposed; // transposed output, (cols, rows) in FP8; NULL: not written
    float *sums;         // (gridDim.y, cols) partial column sums; NULL: not computed
    // scales of the untransposed and of the transposed output, which an earlier kernel has written. Without an
    // untransposed output, both point to the scale of the transposed output
    const float *scale;
    const float *scale_transposed;
    int plain_bytes, transposed_bytes; // row strides in bytes
};

// Describes the outputs of a pass. If the untransposed and transposed outputs have the same format, they share one
// scale.
static inline TileOut tile_out(Tensor plain, Tensor transposed) {
    const float *const scale = (const float *)(plain.data ? plain.scale : transposed.scale);
    return {(char *)plain.data,
            (uint8_t *)transposed.data,
            NULL,
            scale,
            transposed.data ? (const float *)transposed.scale : scale,
            (int)(plain.stride * (plain.format == FMT_BF16 ? 2 : 1)),
            (int)transposed.stride};
}

// Returns the address of a word in the tile. Each column's 16-byte pieces are permuted. The permutation differs between
// spans of 16 columns, so that neither writes nor reads cause bank conflicts.
template <int COLUMNS> __device__ static inline uint32_t *tile_word(Tile<COLUMNS> *tile, int column, int row_group) {
    const int piece = (row_group >> 2) ^ (column / SPAN * (128 / COLUMNS));
    return (uint32_t *)tile->memory + column * TILE_WORDS + (piece << 2 | (row_group & 3));
}

// Writes a thread's FP8 values to the tile, transposing each 4 x 4 block in registers.
template <int COLUMNS>
__device__ static inline void tile_put(Tile<COLUMNS> *tile, const uint32_t code[THREAD_ROWS][SPAN / 4]) {
    constexpr int LANES = TILE_LANES<COLUMNS>;
    uint32_t *const first = tile_word(tile, (int)threadIdx.x % LANES * SPAN, (int)threadIdx.x / LANES);
#pragma unroll
    for (int w = 0; w < SPAN / 4; w++) codes_transpose<TILE_WORDS>(first + 4 * w * TILE_WORDS, code, w);
}

// Writes the tile transposed: each column of the tile becomes part of an output row. Eight threads write 128 contiguous
// bytes. Skips rows of the tile's source >= end, and columns of the source >= cols.
template <int COLUMNS>
__device__ static inline void tile_write(Tile<COLUMNS> *tile, uint8_t *transposed, int stride, int first_row,
                                         int first_column, int end, int cols) {
    constexpr int THREADS = TILE_THREADS<COLUMNS>, PIECES = TILE_ROWS / SPAN;
    const int piece = (int)threadIdx.x % PIECES, row = first_row + piece * SPAN;
    if (row >= end) return;
#pragma unroll
    for (int i = 0; i < TILE_ROWS * COLUMNS / SPAN / THREADS; i++) {
        const int column = i * (THREADS / PIECES) + (int)threadIdx.x / PIECES;
        if (first_column + column < cols)
            *(uint4 *)((transposed + row) + (int64_t)(first_column + column) * stride) =
                *(const uint4 *)tile_word(tile, column, piece * (SPAN / THREAD_ROWS));
    }
}

// Writes the block's column sums. Adds over lanes, then over warps, in a fixed order. The sums use the tile's memory,
// so this function first waits until all threads have read the tile.
template <int COLUMNS>
__device__ static inline void tile_sums(Tile<COLUMNS> *tile, float sum[SPAN], float *out, int columns) {
    constexpr int LANES = TILE_LANES<COLUMNS>;
    float *const shared = (float *)tile->memory;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
#pragma unroll
        for (int mask = LANES; mask < WARP; mask *= 2) sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], mask);
    }
    __syncthreads();
    if (lane < LANES) {
#pragma unroll
        for (int i = 0; i < SPAN; i += 4)
            *(float4 *)(shared + warp * COLUMNS + lane * SPAN + i) =
                make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    }
    __syncthreads();
    if ((int)threadIdx.x >= min(columns, COLUMNS)) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < TILE_THREADS<COLUMNS> / WARP; w++) total += shared[w * COLUMNS + threadIdx.x];
    out[threadIdx.x] = total;
}

// Returns the maximum number of parts that rows may be split into: the partial sums of `cols` columns for each part
// must fit in the workspace and in TILE_SUM_BYTES. Calls fatal() if not even one part's sums fit.
static inline int64_t tile_sum_parts(const Exec *exec, const char *operation, int64_t cols) {
    const size_t room = exec->workspace_bytes < TILE_SUM_BYTES ? exec->workspace_bytes : TILE_SUM_BYTES;
    const int64_t most = (int64_t)(room / ((size_t)cols * sizeof(float)));
    if (most < 1)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: %lld column sums do not fit the workspace", operation,
              (long long)cols);
    return most;
}

// Returns the number of parts, at most `most`, into which rows are split if blocks write partial sums. across, down:
// numbers of tiles; slots: number of blocks that run at once. Minimizes the number of tiles that run one after another.
static inline int64_t tile_splits(int64_t across, int64_t down, int64_t slots, int64_t most) {
    int64_t best = 1, least = INT64_MAX;
    if (most > down) most = down;
    for (int64_t splits = 1; splits <= most && across * splits <= 16 * slots; splits++) {
        const int64_t turns = ceil_div(across * splits, slots) * ceil_div(down, splits);
        if (turns < least) best = splits, least = turns;
    }
    return best;
}
