// The walk down tiles of 128 x 128, which casts and transposes what a source of fp8_gelu.h makes, and sums its columns.
#pragma once
#include "fp8_gelu.h"
#include "fp8_tile.h"

namespace {

// --- the walk down tiles ------------------------------------------------------------------------------------
// A block has one tile, or where it leaves sums of its columns the tiles blockIdx.y, blockIdx.y + gridDim.y, ... down
// the tensor; a thread has its next BATCH rows on their way, also those of the next tile.
constexpr int TILE_WORDS = TILE * TILE / 4;

struct TileWalk {
    char *plain;                       // (rows, cols) codes or BF16
    uint8_t *transposed;               // (cols, rows) codes
    float *sums;                       // (gridDim.y, cols) partial sums of the columns; NULL: none wanted
    const float *scale;                // of the codes
    const float *scale_transposed;     // of those of the transpose
    int plain_bytes, transposed_bytes; // of a row
    int rows, cols;
    LoadOrder order;
};

// 4 rows of 16 codes into the shared tile, each 4 x 4 block transposed in registers. A column of the tile has 32
// words of 4 rows; its 16-byte pieces are permuted by the column's span, so that neither side meets bank conflicts.
__device__ inline void tile_put(uint32_t *first, const uint32_t code[THREAD_ROWS][SPAN / 4]) {
#pragma unroll
    for (int w = 0; w < SPAN / 4; w++) codes_transpose<TILE / 4>(first + 4 * w * (TILE / 4), code, w);
}

// F: what is stored as it is; T: the codes of the transpose.
template <Format F, Format T, bool PLAIN, bool TRANSPOSE, bool SUMS, int BATCH, int BLOCKS, typename Source>
__global__ __launch_bounds__(TILE_THREADS, BLOCKS) void gelu_tile_kernel(const __grid_constant__ Source source,
                                                                         const __grid_constant__ TileWalk w) {
    __shared__ uint4 tile[(TRANSPOSE ? 2 : 1) * TILE_WORDS / 4]; // in turn
    if constexpr (SUMS) second_stage_allow();
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int span = lane % (TILE / SPAN), row_group = warp * (WARP / (TILE / SPAN)) + lane / (TILE / SPAN);
    const int first_column = (int)blockIdx.x * TILE, column = first_column + span * SPAN;
    const int step = (int)gridDim.y * TILE;
    const int limit = column < w.cols ? w.rows : 0; // of the rows that this thread has
    int row = (int)blockIdx.y * TILE + row_group * THREAD_ROWS;
    const int from = min(column, w.cols - SPAN);
    typename Source::Loaded loaded[BATCH];
#pragma unroll
    for (int r = 0; r < BATCH; r++) loaded[r] = source.load(min(row + r, w.rows - 1), from);
    first_stage_wait();
    static_assert(F == T || (PLAIN && SUMS), "two formats are built for gradients");
    const float reciprocal = F == FMT_BF16 ? 1.0f : scale_reciprocal(*w.scale);
    const float reciprocal_t = F == T ? reciprocal : scale_reciprocal(*w.scale_transposed);
    uint32_t *put = (uint32_t *)tile + span * SPAN * (TILE / 4) + (((row_group >> 2) ^ span) << 2 | (row_group & 3));
    const uint32_t *get = (const uint32_t *)tile + row_group * (TILE / 4);
    int flip = TILE_WORDS;
    float sum[SPAN] = {};
    for (int first_row = (int)blockIdx.y * TILE; first_row < w.rows; first_row += step, row += step) {
        uint32_t code[THREAD_ROWS][SPAN / 4];
#pragma unroll
        for (int first = 0; first < THREAD_ROWS; first += BATCH) {
            typename Source::Loaded now[BATCH];
            uint32_t came = 0;
#pragma unroll
            for (int r = 0; r < BATCH; r++) now[r] = loaded[r], came |= Source::word(now[r]);
            came &= w.order.zero;
            const int next = (int)came + (first + BATCH < THREAD_ROWS ? row + first + BATCH : row + step);
            if (first + BATCH < THREAD_ROWS || first_row + step < w.rows) {
#pragma unroll
                for (int r = 0; r < BATCH; r++) loaded[r] = source.load(min(next + r, w.rows - 1), from);
            }
#pragma unroll
            for (int r = 0; r < BATCH; r++) {
                const int here = row + first + r;
                const bool inside = here < limit;
                if (here == w.order.never) continue;
                float value[SPAN];
                if constexpr (SUMS || F == FMT_BF16)
                    source.values(now[r], value);
                else
                    source.multiplied(now[r], reciprocal, value);
                if constexpr (SUMS) {
#pragma unroll
                    for (int i = 0; i < SPAN; i++) sum[i] += inside ? value[i] : 0.0f;
                }
                char *const to = (w.plain + column * (F == FMT_BF16 ? 2 : 1)) + (int64_t)here * w.plain_bytes;
                if constexpr (F == FMT_BF16) {
                    if (PLAIN && inside) store((bf16 *)to, packed<bf16, SPAN>(value));
                } else {
                    Pack<uint32_t, SPAN / 4> words;
                    encode<F, SPAN>(value, SUMS ? reciprocal : 1.0f, words.value);
                    if constexpr (F == T)
                        memcpy(code[first + r], words.value, SPAN);
                    else
                        encode<T, SPAN>(value, reciprocal_t, code[first + r]);
                    if (PLAIN && inside) store((uint32_t *)to, words);
                }
            }
        }
        if constexpr (TRANSPOSE) {
            tile_put(put, code);
            __syncthreads();
            const int out_row = first_row + span * SPAN; // 16 rows
            if (out_row < w.rows) {
#pragma unroll
                for (int i = 0; i < TILE * TILE / SPAN / TILE_THREADS; i++) {
                    constexpr int columns = TILE_THREADS / (TILE / SPAN);
                    const int tile_column = i * columns + row_group;
                    const int piece = span ^ (tile_column / SPAN);
                    if (first_column + tile_column < w.cols)
                        *(uint4 *)((w.transposed + out_row) +
                                   (int64_t)(first_column + tile_column) * w.transposed_bytes) =
                            *(const uint4 *)(get + i * columns * (TILE / 4) + 4 * piece);
                }
            }
            put += flip, get += flip, flip = -flip;
        }
    }
    if constexpr (SUMS) {
        if (w.sums) tile_sums(sum, (float *)tile, w.sums + blockIdx.y * (int64_t)w.cols, first_column, w.cols);
    }
}

// Into how many parts the rows are split where their blocks leave sums: so that the blocks' last turn is nearly full.
// Depends on the shape and on the number of multiprocessors alone.
inline int64_t tile_splits(int64_t across, int64_t down, int64_t slots, int64_t most) {
    int64_t best = 1, least = INT64_MAX;
    if (most > down) most = down;
    for (int64_t splits = 1; splits <= most && across * splits <= 16 * slots; splits++) {
        const int64_t turns = ceil_div(across * splits, slots) * ceil_div(down, splits);
        if (turns < least) best = splits, least = turns;
    }
    return best;
}

// Runs the pass over a whole tensor. dbias (1, cols) FP32 gets or adds the column sums; data NULL: none wanted.
// early: the kernel before this one writes nothing that the source reads, and began when the source was complete.
template <Format F, Format T, bool PLAIN, bool TRANSPOSE, bool SUMS, int BATCH, int BLOCKS, typename Source>
void gelu_tiles_run(Exec *exec, const char *operation, const Source &source, Tensor plain, Tensor transposed,
                    int64_t rows, int64_t cols, Tensor dbias, bool accumulate, bool early) {
    if (rows == 0 || cols == 0) return;
    TileWalk w = {(char *)plain.data,
                  (uint8_t *)transposed.data,
                  NULL,
                  (const float *)(PLAIN ? plain : transposed).scale,
                  (const float *)transposed.scale,
                  (int)(plain.stride * (F == FMT_BF16 ? 2 : 1)),
                  (int)transposed.stride,
                  (int)rows,
                  (int)cols,
                  LOAD_ORDER};
    const bool sums = SUMS && dbias.data;
    const int64_t across = ceil_div(cols, TILE), down = ceil_div(rows, TILE);
    int64_t splits = down < 65535 ? down : 65535; // a block per tile, taken as multiprocessors get free
    if (sums) {
        splits = tile_splits(across, down, (int64_t)cuda_backend(exec)->sm_count * BLOCKS,
                             tile_sum_parts(exec, operation, cols));
        w.sums = (float *)exec->workspace;
    }
    launch_behind(exec, "launching the kernel gelu_tile_kernel",
                  gelu_tile_kernel<F, T, PLAIN, TRANSPOSE, SUMS, BATCH, BLOCKS, Source>,
                  dim3((unsigned)across, (unsigned)splits), TILE_THREADS, 0, early, source, w);
    if (sums) partials_sum(exec, (float *)dbias.data, w.sums, (int)splits, cols, accumulate);
}

} // namespace
