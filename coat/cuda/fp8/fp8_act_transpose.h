// Computes an activation function or its gradient tile by tile: evaluates a function object (fp8_act.h) for every
// element and writes the results transposed. For a gradient, also writes the untransposed results and column sums.
#pragma once
#include "fp8_act.h"
#include "fp8_tile.h"

namespace {

// --- tile walk: the kernel of an activation pass over tiles ----------------------------------------------------------
// A block processes one tile or, if columns are summed, every gridDim.y-th tile of a column of tiles. A thread loads
// its next BATCH rows in advance, even if they are in the next tile.
constexpr int ACT_COLUMNS = 128;
template <bool GRADIENT> constexpr int ACT_BLOCKS = GRADIENT ? 3 : 4; // number of resident blocks per SM

struct TileWalk {
    TileOut out;
    int rows, cols;
    LoadOrder order;
};

// Computes the values of `function`. With GRADIENT, writes a gradient in format F, its column sums and, unless F is
// BF16, its transpose in format T. Otherwise writes only the transpose of the activation function's output.
template <Format F, Format T, bool GRADIENT, typename Function>
__global__ __launch_bounds__(TILE_THREADS<ACT_COLUMNS>,
                             ACT_BLOCKS<GRADIENT>) void act_tile_kernel(const __grid_constant__ Function function,
                                                                        const __grid_constant__ TileWalk w) {
    constexpr bool TRANSPOSE = F != FMT_BF16;
    constexpr int BATCH = GRADIENT ? 1 : 2;                // number of rows that are loaded in advance
    __shared__ Tile<ACT_COLUMNS> tiles[TRANSPOSE ? 2 : 1]; // double buffer
    if constexpr (GRADIENT) second_stage_allow();
    const int row_group = (int)threadIdx.x / TILE_LANES<ACT_COLUMNS>, first_column = (int)blockIdx.x * ACT_COLUMNS;
    const int column = first_column + (int)threadIdx.x % TILE_LANES<ACT_COLUMNS> * SPAN;
    const int step = (int)gridDim.y * TILE_ROWS;
    const int limit =
        column < w.cols ? w.rows : 0; // rows below this limit are processed; 0 if the thread's columns do not exist
    int row = (int)blockIdx.y * TILE_ROWS + row_group * THREAD_ROWS;
    const int from = min(column, w.cols - SPAN);
    typename Function::Loaded loaded[BATCH];
#pragma unroll
    for (int r = 0; r < BATCH; r++) loaded[r] = function.load(min(row + r, w.rows - 1), from);
    first_stage_wait();
    static_assert(F == T || GRADIENT, "only gradients support two formats");
    const float reciprocal = F == FMT_BF16 ? 1.0f : scale_reciprocal(*w.out.scale);
    const float reciprocal_t = F == T ? reciprocal : scale_reciprocal(*w.out.scale_transposed);
    Tile<ACT_COLUMNS> *tile = tiles;
    int flip = 1;
    float sum[SPAN] = {};
    for (int first_row = (int)blockIdx.y * TILE_ROWS; first_row < w.rows; first_row += step, row += step) {
        uint32_t code[THREAD_ROWS][SPAN / 4];
#pragma unroll
        for (int first = 0; first < THREAD_ROWS; first += BATCH) {
            typename Function::Loaded now[BATCH];
            uint32_t came = 0;
#pragma unroll
            for (int r = 0; r < BATCH; r++) now[r] = loaded[r], came |= Function::word(now[r]);
            came &= w.order.opaque_zero;
            const int next = (int)came + (first + BATCH < THREAD_ROWS ? row + first + BATCH : row + step);
            if (first + BATCH < THREAD_ROWS || first_row + step < w.rows) {
#pragma unroll
                for (int r = 0; r < BATCH; r++) loaded[r] = function.load(min(next + r, w.rows - 1), from);
            }
#pragma unroll
            for (int r = 0; r < BATCH; r++) {
                const int here = row + first + r;
                const bool inside = here < limit;
                if (here == w.order.no_row) continue;
                float value[SPAN];
                if constexpr (GRADIENT)
                    function.values(now[r], value);
                else
                    function.multiplied(now[r], reciprocal, value);
                if constexpr (GRADIENT) {
#pragma unroll
                    for (int i = 0; i < SPAN; i++) sum[i] += inside ? value[i] : 0.0f;
                }
                char *const to = (w.out.plain + column * (F == FMT_BF16 ? 2 : 1)) + (int64_t)here * w.out.plain_bytes;
                if constexpr (F == FMT_BF16) {
                    if (GRADIENT && inside) store((bf16 *)to, packed<bf16, SPAN>(value));
                } else {
                    Pack<uint32_t, SPAN / 4> words;
                    encode<F, SPAN>(value, GRADIENT ? reciprocal : 1.0f, words.value);
                    if constexpr (F == T)
                        memcpy(code[first + r], words.value, SPAN);
                    else
                        encode<T, SPAN>(value, reciprocal_t, code[first + r]);
                    if (GRADIENT && inside) store((uint32_t *)to, words);
                }
            }
        }
        if constexpr (TRANSPOSE) {
            tile_put(tile, code);
            __syncthreads();
            tile_write(tile, w.out.transposed, w.out.transposed_bytes, first_row, first_column, w.rows, w.cols);
            tile += flip, flip = -flip;
        }
    }
    if constexpr (GRADIENT) {
        if (w.out.sums)
            tile_sums(&tiles[0], sum, w.out.sums + (int64_t)blockIdx.y * w.cols + first_column, w.cols - first_column);
    }
}

// Runs the activation pass over tiles. If dbias has data, dbias (1, cols) FP32 = (accumulate ? dbias : 0) + column
// sums. An FP8 gradient's kernel follows the pass that computes the gradient's amaxes. The kernel may start before that
// pass ends, because that pass writes nothing that the function object reads.
template <Format F, Format T, bool GRADIENT, typename Function>
void act_tiles_run(Exec *exec, const char *operation, const Function &function, Tensor plain, Tensor transposed,
                   int64_t rows, int64_t cols, Tensor dbias = Tensor{}, bool accumulate = false) {
    if (rows == 0 || cols == 0) return;
    TileWalk w = {tile_out(plain, transposed), (int)rows, (int)cols, LOAD_ORDER};
    const bool sums = GRADIENT && dbias.data;
    const int64_t across = ceil_div(cols, ACT_COLUMNS), down = ceil_div(rows, TILE_ROWS);
    int64_t splits = down < 65535 ? down : 65535; // one block per tile; an SM starts the next block when one ends
    if (sums) {
        splits = tile_splits(across, down, (int64_t)cuda_backend(exec)->sm_count * ACT_BLOCKS<GRADIENT>,
                             tile_sum_parts(exec, operation, cols));
        w.out.sums = (float *)exec->workspace;
    }
    launch_after(exec, "launching the kernel act_tile_kernel", act_tile_kernel<F, T, GRADIENT, Function>,
                 dim3((unsigned)across, (unsigned)splits), TILE_THREADS<ACT_COLUMNS>, GRADIENT && F != FMT_BF16,
                 function, w);
    if (sums) partials_sum(exec, (float *)dbias.data, w.out.sums, (int)splits, cols, accumulate);
}

} // namespace
