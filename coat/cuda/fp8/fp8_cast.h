// Cast pass over a tensor: computes values, casts them to FP8 or BF16 and writes them untransposed, transposed, or
// both. The pass may start before the kernel that computes the scale has finished. A block usually processes one tile,
// or a few tiles if the partial sums of more blocks would not fit in the workspace. A transposing pass whose source
// computes factors of the columns uses persistent blocks, which loop over tiles and load the next tile's rows in
// advance.
#pragma once
#include "fp8_readers.h"
#include "fp8_tile.h"

constexpr int CAST_COLUMNS = 64; // width of a tile; more models' widths are multiples of 64 than of 128

// --- sources: readers that supply the values of a cast pass ----------------------------------------------------------
// A source has begin(column), called once per thread, load(row, column) -> Loaded, and one of
//   codes(loaded, reciprocal, out)   16 FP8 values, if makes_codes is true
//   values(loaded, out)              16 values; if scaled is true, times the reciprocal given to scale_by()
// A source must compute the same bits each time: for the amax, for the cast, and when backward recomputes the tensor.
template <typename Reader> struct ValuesOf : Reader {
    static constexpr bool makes_codes = false, scaled = false;
    __device__ void begin(int) {}
};

// Source of a cast pass that copies FP8 values.
struct CodesOf {
    static constexpr bool makes_codes = true, scaled = false;
    typedef Pack<uint32_t, SPAN / 4> Loaded;
    const uint8_t *data;
    int row_bytes;

    __device__ void begin(int) {}
    __device__ Loaded load(int row, int column) const {
        return load_streaming<SPAN / 4>((const uint32_t *)((data + column) + (int64_t)row * row_bytes));
    }
    __device__ static void codes(const Loaded &loaded, float, uint32_t out[SPAN / 4]) {
        memcpy(out, loaded.value, SPAN);
    }
};

// Source of a cast pass that decodes FP8 values with a scale per row or per tensor.
struct DecodedCodes {
    static constexpr bool makes_codes = false, scaled = false;
    struct Loaded {
        Pack<uint32_t, SPAN / 4> codes;
        float scale;
    };
    CodesOf from;
    const float *scales;
    bool by_row;

    __device__ void begin(int) {}
    __device__ Loaded load(int row, int column) const { return {from.load(row, column), scales[by_row ? row : 0]}; }
    __device__ static void values(const Loaded &loaded, float out[SPAN]) {
        decode<SPAN>(loaded.codes.value, loaded.scale, out);
    }
};

// Source of a cast pass that converts E4M3 values with a scale per row to format TO with one scale.
template <Format TO> struct RescaledCodes {
    static constexpr bool makes_codes = true, scaled = false;
    struct Loaded {
        Pack<uint32_t, SPAN / 4> codes;
        float scale;
    };
    CodesOf from;
    const float *scales;

    __device__ void begin(int) {}
    __device__ Loaded load(int row, int column) const { return {from.load(row, column), scales[row]}; }
    __device__ static void codes(const Loaded &loaded, float reciprocal, uint32_t out[SPAN / 4]) {
        rescale_codes<TO, SPAN>(loaded.codes.value, loaded.scale * reciprocal, out);
    }
};

// True if the cast pass uses persistent blocks. The norm's transposing pass does, because computing the factors of the
// columns (NormOf) takes longer than converting a tile.
template <typename Source, bool TRANSPOSE> constexpr bool cast_stays = TRANSPOSE &&Source::scaled;

// Distribution of a tensor's rows over blocks: each block gets the same number of full tiles. The remaining rows are
// divided into equal parts of a multiple of 32 rows; the last parts may be shorter or empty.
struct CastRows {
    int whole; // number of full tiles per block
    int rest;  // maximum number of rows in a block's last tile
};

// Converts 16 values of a row. Stores the values in format F at `plain` unless `plain` is NULL. Returns the values in
// format TRANSPOSED in `code`, for the transposed copy. If `sums` is true, adds the values to `sum`.
template <Format F, Format TRANSPOSED, typename Source>
__device__ static inline void tile_convert(const Source &source, const typename Source::Loaded &loaded,
                                           float reciprocal, float reciprocal_transposed, void *plain,
                                           uint32_t code[SPAN / 4], float sum[SPAN], bool sums) {
    uint32_t own[SPAN / 4];
    if constexpr (Source::makes_codes) {
        source.codes(loaded, reciprocal_transposed, code);
    } else {
        float value[SPAN];
        source.values(loaded, value);
        if (sums) {
#pragma unroll
            for (int i = 0; i < SPAN; i++) sum[i] += value[i];
        }
        if constexpr (F == FMT_BF16) {
            if (plain) store((bf16 *)plain, packed<bf16, SPAN>(value));
            return;
        }
        encode<TRANSPOSED == FMT_E5M2 ? FMT_E5M2 : FMT_E4M3, SPAN>(value, reciprocal_transposed, code);
        if constexpr (F != TRANSPOSED) encode<F == FMT_E5M2 ? FMT_E5M2 : FMT_E4M3, SPAN>(value, reciprocal, own);
    }
    if (plain) {
        Pack<uint32_t, SPAN / 4> words;
        memcpy(words.value, F == TRANSPOSED ? code : own, SPAN);
        store((uint32_t *)plain, words);
    }
}

// Kernel of the cast pass. F: format of the untransposed output. T: format of the transposed output.
template <Format F, Format T, bool TRANSPOSE, bool SUMS, int BLOCKS, typename Source>
__global__ __launch_bounds__(TILE_THREADS<CAST_COLUMNS>, BLOCKS) void cast_kernel(Source source,
                                                                                  const __grid_constant__ TileOut out,
                                                                                  CastRows deal, int rows, int cols) {
    __shared__ Tile<CAST_COLUMNS> tiles[TRANSPOSE ? 2 : 1]; // double buffer
    if constexpr (SUMS) second_stage_allow();
    const int first_column = (int)blockIdx.x * CAST_COLUMNS, row_group = (int)threadIdx.x / TILE_LANES<CAST_COLUMNS>;
    const int column = first_column + (int)threadIdx.x % TILE_LANES<CAST_COLUMNS> * SPAN;
    const bool inside = column < cols;
    // begin_of returns the first row of this block's tile `index`; end_of returns the row after the tile's last row.
    const auto begin_of = [&](int index) {
        return index < deal.whole ? (index * (int)gridDim.y + (int)blockIdx.y) * TILE_ROWS
                                  : deal.whole * (int)gridDim.y * TILE_ROWS + (int)blockIdx.y * deal.rest;
    };
    const auto end_of = [&](int index, int begin) {
        const int end = begin + (index < deal.whole ? TILE_ROWS : deal.rest);
        return index > deal.whole ? 0 : end < rows ? end : rows;
    };
    int begin = begin_of(0), end = end_of(0, begin);
    typename Source::Loaded loaded[THREAD_ROWS];
    // Loads the THREAD_ROWS rows that this thread processes in a tile. Loads the tile's last row instead of rows that
    // the tile does not have.
    const auto load_rows = [&](int row, int behind) {
        if (!inside || row >= behind) return;
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++) loaded[r] = source.load(min(row + r, behind - 1), column);
    };
    load_rows(begin + row_group * THREAD_ROWS, end);
    if (inside) source.begin(column);
    first_stage_wait();
    float reciprocal = 1.0f, reciprocal_t = 1.0f;
    if constexpr (F != FMT_BF16) reciprocal_t = reciprocal = scale_reciprocal(*out.scale);
    if constexpr (F != T) reciprocal_t = scale_reciprocal(*out.scale_transposed);
    if constexpr (Source::scaled) {
        source.scale_by(reciprocal);
        reciprocal = reciprocal_t = 1.0f;
    }

    float sum[SPAN] = {};
    for (int index = 0; begin < end; index++) {
        Tile<CAST_COLUMNS> *const tile = &tiles[TRANSPOSE ? index % 2 : 0];
        const int next = begin_of(index + 1), next_end = end_of(index + 1, next);
        uint32_t code[THREAD_ROWS][SPAN / 4];
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++) {
            const int row = begin + row_group * THREAD_ROWS + r;
            if (inside && row < end) {
                char *plain = out.plain;
                if (plain) plain += column * (F == FMT_BF16 ? 2 : 1) + (int64_t)row * out.plain_bytes;
                tile_convert<F, T>(source, loaded[r], reciprocal, reciprocal_t, plain, code[r], sum, SUMS);
            }
        }
        if constexpr (TRANSPOSE) tile_put(tile, code);
        load_rows(next + row_group * THREAD_ROWS, next_end); // starts loading the next tile while this tile is written
        if constexpr (TRANSPOSE) {
            __syncthreads(); // one barrier per tile suffices because the tiles are double-buffered
            tile_write(tile, out.transposed, out.transposed_bytes, begin, first_column, end, cols);
        }
        begin = next, end = next_end;
    }
    if constexpr (SUMS) {
        if (out.sums)
            tile_sums(&tiles[0], sum, out.sums + (int64_t)blockIdx.y * cols + first_column, cols - first_column);
    }
}

// Runs the cast pass over tensor x, which `source` reads. If dbias has data, dbias (1, cols) FP32 = (accumulate ?
// dbias : 0) + column sums. The distribution of rows over blocks depends on the shape and, with column sums, on the
// workspace size. With persistent blocks, BLOCKS of which run per SM, it also depends on the number of SMs. If
// `overlaps`, the cast may start before the previous kernel, which computes the scale, ends.
template <Format F, Format T, bool TRANSPOSE, bool SUMS, int BLOCKS, typename Source>
static void cast_run(Exec *exec, const char *operation, const Source &source, TileOut out, Tensor x, bool overlaps,
                     Tensor dbias = Tensor{}, bool accumulate = false) {
    const int64_t rows = x.rows, cols = x.cols;
    if (rows == 0 || cols == 0) return;
    const int64_t across = ceil_div(cols, CAST_COLUMNS), tiles = ceil_div(rows, TILE_ROWS);
    int64_t splits = tiles, most = 65535;
    if (cast_stays<Source, TRANSPOSE>) most = cuda_backend(exec)->sm_count * BLOCKS / across;
    const bool sums = SUMS && dbias.data;
    if (sums) {
        const int64_t parts = tile_sum_parts(exec, operation, cols);
        if (most > parts) most = parts;
        out.sums = (float *)exec->workspace;
    }
    if (splits > most) splits = most;
    if (splits < 1) splits = 1;
    const int64_t whole = rows / (splits * TILE_ROWS), left = rows - whole * splits * TILE_ROWS;
    const CastRows deal = {(int)whole, (int)(ceil_div(ceil_div(left, splits), 32) * 32)};
    const dim3 grid((unsigned)across, (unsigned)splits);
    launch_after(exec, "launching the kernel cast_kernel", cast_kernel<F, T, TRANSPOSE, SUMS, BLOCKS, Source>, grid,
                 TILE_THREADS<CAST_COLUMNS>, overlaps, source, out, deal, (int)rows, (int)cols);
    if (sums) partials_sum(exec, (float *)dbias.data, out.sums, (int)splits, cols, accumulate);
}
