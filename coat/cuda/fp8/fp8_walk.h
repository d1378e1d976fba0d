// One pass over a tensor in tiles, whose blocks start before the scale that they need is made (COAT: saved activations,
// FP8 flow). A block has one tile, or a few where sums of more blocks would not fit, and multiprocessors take the next
// block as they get free; where a block makes something of its columns first, blocks stay and go from tile to tile,
// with the rows of the next tile already on their way.
#pragma once
#include "fp8_tiles.h"

// Tiles of 128 rows by 64 columns: the widths of models divide by 64 more often than by 128. A warp has 32 rows, a
// thread 4 rows of 16 columns: 4 lanes cover the tile's columns.
constexpr int WALK_ROWS = 128;
constexpr int WALK_COLUMNS = 64;
constexpr int WALK_THREADS = 128;
constexpr int WALK_WARPS = WALK_THREADS / WARP;
constexpr int WALK_LANES = WALK_COLUMNS / SPAN; // side by side
constexpr int WALK_WORDS = WALK_ROWS / THREAD_ROWS;

// Sources that put the reciprocal of the scale into their own factors: scale_by(reciprocal), after begin().
template <typename Source> constexpr bool scales_itself = false;

// Whether blocks stay: in the norm's transposing pass, whose factors of the columns cost more than a tile.
template <typename Source, bool TRANSPOSE> constexpr bool walk_stays = TRANSPOSE &&scales_itself<Source>;

// How the rows are dealt: whole tiles in turn, and what is left in equal shares.
struct WalkRows {
    int whole; // tiles of each block
    int rest;  // rows of each block's last tile, at most
};

// Where a word of 4 rows by one column lies in the shared tile: as tile_word().
__device__ static inline int walk_word(int column, int row_group) {
    return column * WALK_WORDS + ((((row_group >> 2) ^ (column / SPAN * 2)) << 2) | (row_group & 3));
}

// 4 rows of 16 codes into the shared tile, each 4 x 4 block transposed in registers.
__device__ static inline void walk_put(uint32_t *tile, const uint32_t code[THREAD_ROWS][SPAN / 4], int column,
                                       int row_group) {
#pragma unroll
    for (int w = 0; w < SPAN / 4; w++)
        codes_transpose<WALK_WORDS>(tile + walk_word(column + 4 * w, row_group), code, w);
}

// The block's column sums, from those of its threads: over 8 lanes, then over the warps, in a fixed order.
__device__ static inline void walk_sums(float sum[SPAN], float *shared, float *out, int columns) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < SPAN; i++)
        for (int mask = WALK_LANES; mask < WARP; mask *= 2) sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], mask);
    __syncthreads(); // the tile has been read
    if (lane < WALK_LANES) {
#pragma unroll
        for (int i = 0; i < SPAN; i++) shared[warp * WALK_COLUMNS + lane * SPAN + i] = sum[i];
    }
    __syncthreads();
    if ((int)threadIdx.x >= columns) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < WALK_WARPS; w++) total += shared[w * WALK_COLUMNS + threadIdx.x];
    out[threadIdx.x] = total;
}

// F: what is stored as it is; T: the codes of the transpose.
template <Format F, Format T, bool TRANSPOSE, bool SUMS, int BLOCKS, typename Source>
__global__ __launch_bounds__(WALK_THREADS, BLOCKS) void walk_kernel(Source source, const __grid_constant__ TileOut out,
                                                                    WalkRows deal, int rows, int cols) {
    __shared__ uint4 tiles[TRANSPOSE ? 2 : 1][TRANSPOSE || SUMS ? WALK_ROWS * WALK_COLUMNS / sizeof(uint4) : 1];
    if constexpr (SUMS) second_stage_allow();
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int column = lane % WALK_LANES * SPAN, row_group = warp * (WARP / WALK_LANES) + lane / WALK_LANES;
    const int first_column = (int)blockIdx.x * WALK_COLUMNS, at_column = first_column + column;
    const bool inside = at_column < cols;
    // first row of a tile, and the row behind its last
    const auto begin_of = [&](int index) {
        return index < deal.whole ? (index * (int)gridDim.y + (int)blockIdx.y) * WALK_ROWS
                                  : deal.whole * (int)gridDim.y * WALK_ROWS + (int)blockIdx.y * deal.rest;
    };
    const auto end_of = [&](int index, int begin) {
        const int end = begin + (index < deal.whole ? WALK_ROWS : deal.rest);
        return index > deal.whole ? 0 : end < rows ? end : rows;
    };
    int begin = begin_of(0), end = end_of(0, begin);
    typename Source::Loaded loaded[THREAD_ROWS];
    // all of a thread's rows in one go, the last one again where there are fewer
    const auto load_rows = [&](int row, int behind) {
        if (!inside || row >= behind) return;
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++) loaded[r] = source.load(min(row + r, behind - 1), at_column);
    };
    load_rows(begin + row_group * THREAD_ROWS, end);
    if (inside) source.begin(at_column);
    first_stage_wait();
    float reciprocal = 1.0f, reciprocal_t = 1.0f;
    if constexpr (F != FMT_BF16 && !moves_codes<Source>) reciprocal_t = reciprocal = scale_reciprocal(*out.scale);
    if constexpr (F != T) reciprocal_t = scale_reciprocal(*out.scale_transposed);
    if constexpr (scales_itself<Source>) source.scale_by(reciprocal);

    float sum[SPAN] = {};
    for (int index = 0; begin < end; index++) {
        uint32_t *const tile = (uint32_t *)tiles[TRANSPOSE ? index % 2 : 0];
        const int next = begin_of(index + 1), next_end = end_of(index + 1, next);
        uint32_t code[THREAD_ROWS][SPAN / 4];
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++) {
            const int row = begin + row_group * THREAD_ROWS + r;
            if (inside && row < end) {
                char *plain = (char *)out.plain;
                if (plain) plain += (row * out.plain_stride + at_column) * (F == FMT_BF16 ? 2 : 1);
                tile_convert<F, T>(source, loaded[r], scales_itself<Source> ? 1.0f : reciprocal,
                                   scales_itself<Source> ? 1.0f : reciprocal_t, plain, code[r], sum, SUMS);
            }
        }
        if constexpr (TRANSPOSE) walk_put(tile, code, column, row_group);
        load_rows(next + row_group * THREAD_ROWS, next_end); // on their way while this tile is written
        if constexpr (TRANSPOSE) {
            __syncthreads(); // the other tile is free since the barrier before
            constexpr int PIECES = WALK_ROWS / SPAN;
            const int piece = (int)threadIdx.x % PIECES;
            const int out_row = begin + piece * SPAN;
#pragma unroll
            for (int i = 0; i < WALK_ROWS * WALK_COLUMNS / SPAN / WALK_THREADS; i++) {
                const int tile_column = i * (WALK_THREADS / PIECES) + (int)threadIdx.x / PIECES;
                if (first_column + tile_column < cols && out_row < end)
                    *(uint4 *)(out.transposed + (first_column + tile_column) * out.transposed_stride + out_row) =
                        *(const uint4 *)(tile + walk_word(tile_column, piece * (SPAN / THREAD_ROWS)));
            }
        }
        begin = next, end = next_end;
    }
    if constexpr (SUMS) {
        if (out.sums)
            walk_sums(sum, (float *)tiles[0], out.sums + (int64_t)blockIdx.y * cols + first_column,
                      min(WALK_COLUMNS, cols - first_column));
    }
}

// Runs the pass over a whole tensor. dbias (1, cols) FP32 gets or adds the column sums; data NULL: none wanted. How the
// rows are dealt depends on the shape and the workspace, with blocks that stay also on the number of multiprocessors,
// which hold BLOCKS each. `overlaps`: the kernel before is that of the scale.
template <Format F, Format T, bool TRANSPOSE, bool SUMS, int BLOCKS, typename Source>
static void walk_run(Exec *exec, const char *operation, const Source &source, TileOut out, int64_t rows, int64_t cols,
                     Tensor dbias, bool accumulate, bool overlaps) {
    if (rows == 0 || cols == 0) return;
    const int64_t across = ceil_div(cols, WALK_COLUMNS), tiles = ceil_div(rows, WALK_ROWS);
    int64_t splits = tiles, most = 65535;
    if (walk_stays<Source, TRANSPOSE>) most = cuda_backend(exec)->sm_count * BLOCKS / across;
    const bool sums = SUMS && dbias.data;
    if (sums) {
        const int64_t parts = tile_sum_parts(exec, operation, cols);
        if (most > parts) most = parts;
        out.sums = (float *)exec->workspace;
    }
    if (splits > most) splits = most;
    if (splits < 1) splits = 1;
    const int64_t whole = rows / (splits * WALK_ROWS), left = rows - whole * splits * WALK_ROWS;
    const WalkRows deal = {(int)whole, (int)(ceil_div(ceil_div(left, splits), 32) * 32)};
    const dim3 grid((unsigned)across, (unsigned)splits);
    launch_behind(exec, "launching the kernel walk_kernel", walk_kernel<F, T, TRANSPOSE, SUMS, BLOCKS, Source>, grid,
                  WALK_THREADS, 0, overlaps, source, out, deal, (int)rows, (int)cols);
    if (sums) partials_sum(exec, (float *)dbias.data, out.sums, (int)splits, cols, accumulate);
}
