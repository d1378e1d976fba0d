// One pass over a tensor in tiles that makes values, casts them and writes them as they are, transposed, or both
// (COAT: saved activations, FP8 flow), and the pass that finds the maxima of such values.
//
// Order of the passes: one that only finds a maximum goes from the last row to the first, the cast after it from the
// first to the last. So each begins with what the one before it left in the L2 cache.
#pragma once
#include "fp8_tile.h"

// --- what is stored -----------------------------------------------------------------------------------------
// A tensor that a pass reads, 16 columns at a time. LAST: nothing reads it soon again.
template <bool LAST> struct StoredBf16 {
    typedef Bf16Span Loaded;
    const bf16 *data;
    int64_t stride;

    __device__ Loaded load(int64_t row, int64_t column) const {
        constexpr CachePolicy policy = LAST ? CACHE_STREAM : CACHE_DEFAULT;
        return ::load<SPAN, policy>(data + row * stride + column);
    }
    __device__ static void values(const Loaded &loaded, float out[SPAN]) { unpack<SPAN>(loaded, out); }
};

template <bool LAST> struct StoredGroups {
    struct Loaded {
        Pack<uint32_t, SPAN / 4> codes;
        uint16_t scale;
    };
    const uint8_t *codes;
    const uint16_t *scales; // (rows, groups) BF16
    int64_t stride;
    int groups, group_bits; // groups per row; log2 of the group size

    __device__ Loaded load(int64_t row, int64_t column) const {
        constexpr CachePolicy policy = LAST ? CACHE_STREAM : CACHE_DEFAULT;
        Loaded loaded;
        loaded.codes = ::load<SPAN / 4, policy>((const uint32_t *)(codes + row * stride + column));
        loaded.scale = scales[row * groups + (column >> group_bits)];
        return loaded;
    }
    __device__ static void values(const Loaded &loaded, float out[SPAN]) {
        decode<SPAN>(loaded.codes.value, bf16_decode(loaded.scale), out);
    }
};

// --- sources of a pass --------------------------------------------------------------------------------------
// A source makes the values of 16 columns of a row: begin(column) once per thread, load(row, column), then
// values(loaded, out). Values that are made twice (for the maximum and for the cast, in forward and again in
// backward) are the same bits.
template <typename S> struct ValuesOf {
    typedef typename S::Loaded Loaded;
    S x;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const { return x.load(row, column); }
    __device__ void values(const Loaded &loaded, float out[SPAN]) const { S::values(loaded, out); }
};

// Codes that are only moved.
struct CodesOf {
    typedef Pack<uint32_t, SPAN / 4> Loaded;
    const uint8_t *codes;
    int64_t stride;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        return ::load<SPAN / 4, CACHE_STREAM>((const uint32_t *)(codes + row * stride + column));
    }
};

// Codes with a scale per row, which get another.
template <Format F> struct RescaledCodes {
    struct Loaded {
        Pack<uint32_t, SPAN / 4> codes;
        float scale;
    };
    const uint8_t *codes;
    const float *scales;
    int64_t stride;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const {
        return {::load<SPAN / 4, CACHE_STREAM>((const uint32_t *)(codes + row * stride + column)), scales[row]};
    }
    __device__ static void convert(const Loaded &loaded, float reciprocal, uint32_t code[SPAN / 4]) {
        rescale_codes<F, SPAN>(loaded.codes.value, loaded.scale * reciprocal, code);
    }
};

template <typename Source> constexpr bool moves_codes = false;
template <> constexpr bool moves_codes<CodesOf> = true;
template <typename Source> constexpr bool rescales = false;
template <Format F> constexpr bool rescales<RescaledCodes<F>> = true;

// --- the pass over tiles ------------------------------------------------------------------------------------
struct TileOut {
    void *plain;          // (rows, cols) codes or BF16; may be NULL
    uint8_t *transposed;  // (cols, rows) codes
    float *sums;          // (gridDim.y, cols) partial sums of the columns; may be NULL
    const float *scale;   // of the codes, made before
    int64_t plain_stride; // in elements
    int64_t transposed_stride;
};

// Where a word of 4 rows by one column lies in the shared tile. The 16-byte pieces of a column are permuted by the
// column's span, so that neither side meets bank conflicts.
__device__ static inline int tile_word(int column, int row_group) {
    return column * (TILE / 4) + ((((row_group >> 2) ^ (column / SPAN)) << 2) | (row_group & 3));
}

// 4 rows of 16 codes into the shared tile, each 4 x 4 block transposed in registers.
__device__ static inline void tile_put(uint32_t *tile, const uint32_t code[THREAD_ROWS][SPAN / 4], int column,
                                       int row_group) {
#pragma unroll
    for (int w = 0; w < SPAN / 4; w++) codes_transpose<TILE / 4>(tile + tile_word(column + 4 * w, row_group), code, w);
}

template <Format F, typename Source>
__device__ static inline void tile_convert(const Source &source, const typename Source::Loaded &loaded,
                                           float reciprocal, void *plain, uint32_t code[SPAN / 4], float sum[SPAN],
                                           bool sums) {
    if constexpr (moves_codes<Source>) {
        memcpy(code, loaded.value, SPAN);
    } else if constexpr (rescales<Source>) {
        source.convert(loaded, reciprocal, code);
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
        encode<F == FMT_E5M2 ? FMT_E5M2 : FMT_E4M3, SPAN>(value, reciprocal, code);
    }
    if (plain) {
        Pack<uint32_t, SPAN / 4> words;
        memcpy(words.value, code, SPAN);
        store((uint32_t *)plain, words);
    }
}

// One tile, by a whole block; `tile` is TILE x TILE bytes of shared memory. A thread has AHEAD of its rows on their way
// at any time.
template <Format F, bool TRANSPOSE, bool SUMS, int AHEAD, typename Source>
__device__ static inline void tile_pass(const Source &source, const TileOut &out, float reciprocal, int64_t rows,
                                        int64_t cols, int64_t first_row, int64_t first_column, uint32_t *tile,
                                        float sum[SPAN]) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int column = lane % (TILE / SPAN) * SPAN, row_group = warp * (WARP / (TILE / SPAN)) + lane / (TILE / SPAN);
    const int64_t at_column = first_column + column, at_row = first_row + row_group * THREAD_ROWS;
    typename Source::Loaded loaded[AHEAD];
    uint32_t code[THREAD_ROWS][SPAN / 4];
#pragma unroll
    for (int r = 0; r < AHEAD; r++)
        if (at_row + r < rows && at_column < cols) loaded[r] = source.load(at_row + r, at_column);
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; r++) {
        if (at_row + r < rows && at_column < cols) {
            char *plain = (char *)out.plain;
            if (plain) plain += ((at_row + r) * out.plain_stride + at_column) * (F == FMT_BF16 ? 2 : 1);
            tile_convert<F>(source, loaded[r % AHEAD], reciprocal, plain, code[r], sum, SUMS);
        }
        if (r + AHEAD < THREAD_ROWS && at_row + r + AHEAD < rows && at_column < cols)
            loaded[r % AHEAD] = source.load(at_row + r + AHEAD, at_column);
    }
    if constexpr (TRANSPOSE) {
        tile_put(tile, code, column, row_group);
        __syncthreads();
        const int piece = lane % (TILE / SPAN); // 16 rows
        const int64_t out_row = first_row + piece * SPAN;
#pragma unroll
        for (int i = 0; i < TILE * TILE / SPAN / TILE_THREADS; i++) {
            const int tile_column = i * (TILE_THREADS / (TILE / SPAN)) + row_group;
            if (first_column + tile_column < cols && out_row < rows)
                *(uint4 *)(out.transposed + (first_column + tile_column) * out.transposed_stride + out_row) =
                    *(const uint4 *)(tile + tile_word(tile_column, piece * (SPAN / THREAD_ROWS)));
        }
    }
}

template <Format F, bool TRANSPOSE, bool SUMS, int AHEAD, int BLOCKS, typename Source>
__global__ __launch_bounds__(TILE_THREADS, BLOCKS) void tile_kernel(Source source, TileOut out, int64_t rows,
                                                                    int64_t cols) {
    __shared__ uint4 tile[TRANSPOSE || SUMS ? TILE * TILE / sizeof(uint4) : 1];
    if constexpr (SUMS) second_stage_allow();
    const int64_t first_column = (int64_t)blockIdx.x * TILE;
    const int64_t column = first_column + threadIdx.x % (TILE / SPAN) * SPAN;
    if (column < cols) source.begin(column);
    const float reciprocal = F == FMT_BF16 || moves_codes<Source> ? 1.0f : scale_reciprocal(*out.scale);
    float sum[SPAN] = {};
    for (int64_t row = (int64_t)blockIdx.y * TILE; row < rows; row += (int64_t)gridDim.y * TILE) {
        tile_pass<F, TRANSPOSE, SUMS, AHEAD>(source, out, reciprocal, rows, cols, row, first_column, (uint32_t *)tile,
                                             sum);
        if (TRANSPOSE && row + (int64_t)gridDim.y * TILE < rows) __syncthreads();
    }
    if constexpr (SUMS) {
        if (out.sums) tile_sums(sum, (float *)tile, out.sums + blockIdx.y * cols, first_column, cols);
    }
}

// Runs the pass over a whole tensor. dbias (1, cols) FP32 gets or adds the column sums; data NULL: none wanted. The
// split of the rows depends on the shape alone. BLOCKS per multiprocessor and AHEAD weigh registers against loads.
template <Format F, bool TRANSPOSE, bool SUMS, int AHEAD, int BLOCKS, typename Source>
static void tile_run(Exec *exec, const char *operation, const Source &source, TileOut out, int64_t rows, int64_t cols,
                     Tensor dbias, bool accumulate) {
    if (rows == 0 || cols == 0) return;
    int64_t splits = ceil_div(rows, TILE);
    if (splits > 65535) splits = 65535;
    const bool sums = SUMS && dbias.data;
    if (sums) {
        const int64_t most = tile_sum_parts(exec, operation, cols);
        if (splits > most) splits = most;
        out.sums = (float *)exec->workspace;
    }
    const dim3 grid((unsigned)ceil_div(cols, TILE), (unsigned)splits);
    tile_kernel<F, TRANSPOSE, SUMS, AHEAD, BLOCKS>
        <<<grid, TILE_THREADS, 0, cuda_backend(exec)->stream>>>(source, out, rows, cols);
    LAUNCH_CHECK("tile_kernel");
    if (sums) partials_sum(exec, (float *)dbias.data, out.sums, (int)splits, cols, accumulate);
}

// --- maxima of rows -----------------------------------------------------------------------------------------
constexpr int MAXIMUM_WARPS = 8;

// Maxima of the rows of a source's values, a warp per row, the last rows first.
template <int UNROLL, typename Source>
__global__ __launch_bounds__(MAXIMUM_WARPS *WARP) void row_maxima_kernel(Source source, uint32_t *maxima, int64_t rows,
                                                                         int64_t cols) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t row = rows - 1 - ((int64_t)blockIdx.x * MAXIMUM_WARPS + warp);
    if (row < 0) return;
    float maximum = 0.0f;
    for (int64_t first = lane * SPAN; first < cols; first += UNROLL * WARP * SPAN) {
        typename Source::Loaded loaded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WARP * SPAN < cols) loaded[u] = source.load(row, first + u * WARP * SPAN);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (first + u * WARP * SPAN < cols) {
                float value[SPAN];
                source.values(loaded[u], value);
                maximum = largest_magnitude<SPAN>(value, maximum);
            }
        }
    }
    const uint32_t bits = warp_maximum_bits(maximum);
    if (lane == 0) maxima[row] = bits;
}

template <int UNROLL, typename Source>
static void row_maxima_run(Exec *exec, const Source &source, uint32_t *maxima, int64_t rows, int64_t cols) {
    if (rows == 0) return;
    row_maxima_kernel<UNROLL>
        <<<grid_of(ceil_div(rows, MAXIMUM_WARPS)), MAXIMUM_WARPS * WARP, 0, cuda_backend(exec)->stream>>>(
            source, maxima, rows, cols);
    LAUNCH_CHECK("row_maxima_kernel");
}

// --- readers and writers by descriptor -----------------------------------------------------------------------
template <bool LAST> static StoredBf16<LAST> stored_bf16(Tensor t) {
    return {(const bf16 *)t.data, t.stride};
}

template <bool LAST> static StoredGroups<LAST> stored_groups(Tensor t) {
    return {(const uint8_t *)t.data, (const uint16_t *)t.scale, t.stride, (int)ceil_div(t.cols, t.group),
            group_bits_of(t)};
}

// Calls f(stored) with the reader that a plain or grouped tensor needs.
template <bool LAST, typename F> static void for_stored(Tensor t, F f) {
    if (t.granularity == SCALE_GROUP)
        f(stored_groups<LAST>(t));
    else
        f(stored_bf16<LAST>(t));
}

// Where a pass writes: either may be absent; where both are there, they share one scale.
static inline TileOut tile_out(Tensor plain, Tensor transposed) {
    const void *const scale = plain.data ? plain.scale : transposed.scale;
    return {plain.data, (uint8_t *)transposed.data, NULL, (const float *)scale, plain.stride, transposed.stride};
}
