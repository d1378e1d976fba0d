// One tile of a pass that makes values, casts them and writes them as they are, transposed, or both (COAT: saved
// activations, FP8 flow), and what passes read.
#pragma once
#include "fp8_readers.h"
#include "fp8_tile.h"

// --- sources of a pass --------------------------------------------------------------------------------------
// A source makes the values of 16 columns of a row: begin(column) once per thread, load(row, column), then
// values(loaded, out). Values that are made twice (for the maximum and for the cast, in forward and again in
// backward) are the same bits.
template <typename S> struct ValuesOf {
    typedef typename S::Loaded Loaded;
    S x;

    __device__ void begin(int) {}
    __device__ Loaded load(int row, int column) const { return x.load(row, column); }
    __device__ void values(const Loaded &loaded, float out[SPAN]) const { S::values(loaded, out); }
};

// Codes that are only moved.
struct CodesOf {
    typedef Pack<uint32_t, SPAN / 4> Loaded;
    const uint8_t *codes;
    int row_bytes;

    __device__ void begin(int) {}
    __device__ Loaded load(int row, int column) const {
        return ::load<SPAN / 4, CACHE_STREAM>((const uint32_t *)((codes + column) + (int64_t)row * row_bytes));
    }
};

// Codes in F with a scale per row, which become codes in TO with one scale.
template <Format F, Format TO> struct RescaledCodes {
    struct Loaded {
        Pack<uint32_t, SPAN / 4> codes;
        float scale;
    };
    const uint8_t *codes;
    const float *scales;
    int row_bytes;

    __device__ void begin(int) {}
    __device__ Loaded load(int row, int column) const {
        return {::load<SPAN / 4, CACHE_STREAM>((const uint32_t *)((codes + column) + (int64_t)row * row_bytes)),
                scales[row]};
    }
    __device__ static void convert(const Loaded &loaded, float reciprocal, uint32_t code[SPAN / 4]) {
        rescale_codes<F, TO, SPAN>(loaded.codes.value, loaded.scale * reciprocal, code);
    }
};

template <typename Source> constexpr bool moves_codes = false;
template <> constexpr bool moves_codes<CodesOf> = true;
template <typename Source> constexpr bool rescales = false;
template <Format F, Format TO> constexpr bool rescales<RescaledCodes<F, TO>> = true;

// --- the pass over tiles ------------------------------------------------------------------------------------
struct TileOut {
    void *plain;                   // (rows, cols) codes or BF16; may be NULL
    uint8_t *transposed;           // (cols, rows) codes
    float *sums;                   // (gridDim.y, cols) partial sums of the columns; may be NULL
    const float *scale;            // of the codes, made before
    const float *scale_transposed; // of the transposed ones
    int64_t plain_stride;          // in elements
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

// 16 values of a row: stored as they are, in F, where `plain` is given, and the codes of their transpose, in TRANSPOSED.
template <Format F, Format TRANSPOSED, typename Source>
__device__ static inline void tile_convert(const Source &source, const typename Source::Loaded &loaded,
                                           float reciprocal, float reciprocal_transposed, void *plain,
                                           uint32_t code[SPAN / 4], float sum[SPAN], bool sums) {
    uint32_t own[SPAN / 4];
    if constexpr (moves_codes<Source>) {
        memcpy(code, loaded.value, SPAN);
    } else if constexpr (rescales<Source>) {
        source.convert(loaded, reciprocal_transposed, code);
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
            tile_convert<F, F>(source, loaded[r % AHEAD], reciprocal, reciprocal, plain, code[r], sum, SUMS);
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

// Where a pass writes: either may be absent; where both are there in one format, they share one scale.
static inline TileOut tile_out(Tensor plain, Tensor transposed) {
    const void *const scale = plain.data ? plain.scale : transposed.scale;
    const void *const scale_transposed = transposed.data ? transposed.scale : scale;
    return {plain.data,   (uint8_t *)transposed.data, NULL, (const float *)scale, (const float *)scale_transposed,
            plain.stride, transposed.stride};
}
