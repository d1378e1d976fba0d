// Functions that attention's portable forward and backward share: tiles in shared memory, matmuls by mma.sync, and the
// range of tokens that a row sees.
//
// A block owns rows of one head (queries, or keys with their values) and streams tiles of the other operand. Each of
// its WARPS warps owns M * 16 rows. A matmul's result (16, 8) is distributed over the 32 lanes. Lane 4 g + t (g < 8, t
// < 4) holds the elements (g, 2t), (g, 2t + 1), (g + 8, 2t) and (g + 8, 2t + 1). Two such results for adjacent columns,
// packed to BF16, have the layout of A (16, 16) in A * B. So results can be A of the next matmul.
#pragma once
#include "attention_hopper.h"
#include "attention_portable.h"
#include "cuda/common/cuda_kernels.h"

constexpr int WARPS = 4, THREADS = WARPS * WARP;
constexpr int CHUNK = 8; // number of BF16 values in a 16-byte chunk, the unit of copies and of ldmatrix

// MAX_SHARED_BYTES: maximum shared memory of a block that is alone on an SM. PAIR_BYTES: maximum per block if two
// blocks run on an SM. Both are for the GPUs with the least shared memory, whose SMs have 100 KiB and reserve 1 KiB per
// block.
constexpr int MAX_SHARED_BYTES = 99 * 1024, PAIR_BYTES = 49 * 1024;
constexpr float LOG2_E = 1.4426950408889634f;

// --- instructions ----------------------------------------------------------------------------------------------------
// Loads four 8 x 8 blocks of BF16 values. Lane 8 i + r (r < 8) passes the shared-memory address of row r of block i.
// Lane 4 g + t (t < 4) receives elements (g, 2t) and (g, 2t + 1) of each block.
__device__ static inline void blocks_load(uint32_t (&block)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(block[0]), "=r"(block[1]), "=r"(block[2]), "=r"(block[3])
                 : "r"(row)
                 : "memory");
}

// Loads four 8 x 8 blocks as blocks_load() does, but transposed: lane 4 g + t receives elements (2t, g) and (2t + 1,
// g) of each block.
__device__ static inline void blocks_load_transposed(uint32_t (&block)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(block[0]), "=r"(block[1]), "=r"(block[2]), "=r"(block[3])
                 : "r"(row)
                 : "memory");
}

// Computes d (16, 8) += a (16, 16) b (16, 8). b0 and b1 are the transposes of b's upper and lower 8 x 8 block, in the
// layout of blocks_load().
__device__ static inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Starts an asynchronous copy of BYTES (8 or 16) from global to shared memory. If `exists` is false, writes zeros and
// does not read `from`.
template <int BYTES> __device__ static inline void copy_or_zero(void *to, const void *from, bool exists) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to), size = exists ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(size) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address), "l"(from), "r"(size) : "memory");
}

// --- tiles in shared memory ------------------------------------------------------------------------------------------
// XOR swizzle, which avoids bank conflicts in a tile whose rows are HEAD values wide. Without the swizzle, chunk c of
// row r would be in bank group (r * HEAD / 8 + c) % 8. Then reading chunk c of 8 consecutive rows would access each
// bank group involved PERMUTED + 1 times. chunk_at() therefore XORs the chunk index with bits of the row index.
// PERMUTED is the mask of the bits of the chunk index that this XOR can change.
template <int HEAD> constexpr int PERMUTED = HEAD % 64 == 0 ? 7 : HEAD % 32 == 0 ? 3 : HEAD % 16 == 0 ? 1 : 0;

// Returns the index in a tile (in values, not bytes) of the first value of chunk `chunk` of row `row`.
template <int HEAD> __device__ static inline int chunk_at(int row, int chunk) {
    return row * HEAD + (chunk ^ (row % 8 / (8 / (PERMUTED<HEAD> + 1)))) * CHUNK;
}

// Returns the shared-memory address of a chunk of a tile. The tile must be aligned to 128 bytes.
template <int HEAD> __device__ static inline uint32_t chunk_address(const bf16 *tile, int row, int chunk) {
    return (uint32_t)__cvta_generic_to_shared(tile + chunk_at<HEAD>(row, chunk));
}

// Returns the address of chunk 2 k + c of a row, given the address of the row's chunk c. c is 0 or 1.
template <int HEAD> __device__ static inline uint32_t chunk_next(uint32_t address, int k) {
    constexpr uint32_t bytes = CHUNK * sizeof(bf16);
    return (address ^ (2 * (uint32_t)k & PERMUTED<HEAD>)*bytes) + (2 * (uint32_t)k & ~(uint32_t)PERMUTED<HEAD>)*bytes;
}
template <int HEAD> constexpr uint32_t NEXT_ROWS = 16 * HEAD * sizeof(bf16); // distance of rows r and r + 16 in bytes

// Starts asynchronous copies of ROWS rows of a head, starting at token `first`, to a tile. Rows of tokens from T on and
// columns from head_dim on become zeros. from: matrix that begins at the first row of the sequence and the first column
// of the head.
template <int HEAD, int ROWS>
__device__ static inline void tile_copy(bf16 *tile, Matrix<const bf16> from, int first, int T, int head_dim) {
    constexpr int step = THREADS / 8; // eight threads copy 64 columns of a row
    const int row = (int)thread_get() / 8, chunk = (int)thread_get() % 8;
    const bf16 *source = from.at(first + row, chunk * CHUNK);
    tile += chunk_at<HEAD>(row, chunk);
#pragma unroll
    for (int i = 0; i < ROWS; i += step, source += step * from.stride)
#pragma unroll
        for (int column = 0; column < HEAD; column += 64)
            if (column + 64 <= HEAD || column + chunk * CHUNK < HEAD)
                copy_or_zero<16>(tile + i * HEAD + column, source + column,
                                 first + row + i < T && column + chunk * CHUNK < head_dim);
}

// Returns the index, within the block's rows, of the first of the M * 16 rows that this warp owns.
template <int M> __device__ static inline int own_row() {
    return (int)thread_get() / WARP * M * 16;
}

// Returns the address that this lane passes to operand_load(): a chunk of one of the rows of a tile that the warp owns.
template <int HEAD, int M> __device__ static inline uint32_t own_address(const bf16 *tile) {
    const int lane = (int)thread_get() % WARP;
    return chunk_address<HEAD>(tile, own_row<M>() + lane % 16, lane / 16);
}

// Loads columns 16 k to 16 k + 15 of the warp's rows of a tile as operand A of mma(). address: from own_address().
template <int HEAD, int M> __device__ static inline void operand_load(uint32_t (&a)[M][4], uint32_t address, int k) {
#pragma unroll
    for (int m = 0; m < M; m++) blocks_load(a[m], chunk_next<HEAD>(address, k) + (uint32_t)m * NEXT_ROWS<HEAD>);
}

// The warp's M * 16 rows of a tile. KEPT: the rows stay in registers; otherwise each matmul loads them from `tile` in
// shared memory.
template <int HEAD, int M, bool KEPT> struct OwnRows {
    const bf16 *tile;
    uint32_t kept[KEPT ? HEAD / 16 : 1][M][4];
};

template <int HEAD, int M, bool KEPT>
__device__ static inline void own_load(OwnRows<HEAD, M, KEPT> &own, const bf16 *tile) {
    own.tile = tile;
    if constexpr (KEPT)
#pragma unroll
        for (int k = 0; k < HEAD / 16; k++) operand_load<HEAD, M>(own.kept[k], own_address<HEAD, M>(tile), k);
}

// Computes d = (owned rows) * (the N rows of tile `other`)^T.
template <int HEAD, int M, bool KEPT, int N>
__device__ static inline void multiply_rows(float (&d)[M][N / 8][4], const OwnRows<HEAD, M, KEPT> &own,
                                            const bf16 *other) {
    const int lane = (int)thread_get() % WARP;
    const uint32_t rows = chunk_address<HEAD>(other, lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const uint32_t own_rows = KEPT ? 0 : own_address<HEAD, M>(own.tile);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < N / 2; i++) d[m][i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++) {
        uint32_t a[M][4];
        if constexpr (KEPT)
            memcpy(a, own.kept[k], sizeof a);
        else
            operand_load<HEAD, M>(a, own_rows, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t b[4];
            blocks_load(b, chunk_next<HEAD>(rows, k) + (uint32_t)n * NEXT_ROWS<HEAD>);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(d[m][2 * n], a[m], b[0], b[1]);
                mma(d[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// Computes sum += weights (M * 16, N) * (the N rows of a tile).
template <int HEAD, int M, int N>
__device__ static inline void multiply_columns(float (&sum)[M][HEAD / 8][4], const uint32_t (&weights)[M][N / 16][4],
                                               const bf16 *tile) {
    const int lane = (int)thread_get() % WARP;
    const uint32_t rows = chunk_address<HEAD>(tile, lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int n = 0; n < HEAD / 16; n++) {
            uint32_t b[4];
            blocks_load_transposed(b, chunk_next<HEAD>(rows, n) + (uint32_t)k * NEXT_ROWS<HEAD>);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(sum[m][2 * n], weights[m][k], b[0], b[1]);
                mma(sum[m][2 * n + 1], weights[m][k], b[2], b[3]);
            }
        }
}

// Rounds a matmul's result s (M * 16, N) to BF16 and packs it as the weights of multiply_columns().
template <int M, int N>
__device__ static inline void operand_pack(uint32_t (&a)[M][N / 16][4], const float (&s)[M][N / 8][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            a[m][i / 4][i % 4] = bf16_pair(s[m][i / 2][i % 2 * 2], s[m][i / 2][i % 2 * 2 + 1]);
}

// Multiplies a warp's sums by `factor`, one factor per row, and stores the results as BF16 in `to`. The block's rows
// start at row `first` of `to`. Rows from T on and columns from head_dim on are not stored. Copies the values through
// the warp's rows of `tile` in shared memory, so that each row is written in 16-byte chunks.
template <int HEAD, int M>
__device__ static inline void rows_store(const float (&sum)[M][HEAD / 8][4], const float (&factor)[M][2], bf16 *tile,
                                         Matrix<bf16> to, int first, int T, int head_dim) {
    const int lane = (int)thread_get() % WARP, own = own_row<M>();
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < HEAD / 4; i++) {
            const float *from = &sum[m][i / 2][i % 2 * 2], by = factor[m][i % 2];
            bf16 *const at = tile + chunk_at<HEAD>(own + m * 16 + i % 2 * 8 + lane / 4, i / 2);
            ((uint32_t *)at)[lane % 4] = bf16_pair(from[0] * by, from[1] * by);
        }
    __syncwarp();
    const int row = own + lane / 8, chunk = lane % 8;
#pragma unroll
    for (int i = 0; i < M * 16; i += 4)
#pragma unroll
        for (int column = 0; column < HEAD; column += 64)
            if (first + row + i < T && column + chunk * CHUNK < head_dim)
                *(uint4 *)to.at(first + row + i, column + chunk * CHUNK) =
                    *(const uint4 *)(tile + chunk_at<HEAD>(row + i, column / CHUNK + chunk));
}

// --- tokens that a row sees ------------------------------------------------------------------------------------------
struct Range {
    int begin, end; // tokens begin to end - 1
};

// Masks and length of a sequence, which determine the tokens that each row sees.
struct Sequence {
    const int32_t *positions; // position of each token in its document; NULL: no document masking
    int T;
    bool bidirectional;
};

// Returns the first token of the document of token t. Returns 0 if the document starts before the sequence or if
// documents are not masked.
__device__ static inline int document_begin(const Sequence &x, int t) {
    return x.positions ? max(t - x.positions[t], 0) : 0;
}

// Returns the index after the last token of the document of token t, found by bisection; T if documents are not masked.
__device__ static inline int document_end(const Sequence &x, int t) {
    int last = t, end = x.T; // invariant: token `last` is in the document, token `end` is not
    while (x.positions && end - last > 1) {
        const int middle = (last + end) / 2;
        if (document_begin(x, middle) <= t)
            last = middle;
        else
            end = middle;
    }
    return end;
}

// Returns one bound of the tokens that row t sees. If rows are queries, this is the first token of t's document. With
// KEYS (rows are keys), this is the index after the last token of t's document. If t >= T, returns the bound of the
// last token.
template <bool KEYS> __device__ static inline int edge_of(const Sequence &x, int t) {
    return KEYS ? document_end(x, min(t, x.T - 1)) : document_begin(x, min(t, x.T - 1));
}

// Returns the keys that query t sees or, with KEYS, the queries that see key t. Neither begin nor end decreases when t
// grows. edge: edge_of(x, t).
template <bool KEYS> __device__ static inline Range range_of(const Sequence &x, int t, int edge) {
    if (KEYS) return {x.bidirectional ? 0 : min(t, x.T - 1), edge};
    return {edge, x.bidirectional ? x.T : min(t, x.T - 1) + 1};
}

// Tokens that at least one row of this warp sees (some), and tokens that all its rows see (all).
struct Visible {
    Range some, all;
};

// Returns the tokens that the rows of this warp see. edges: edge_of() of each row of the block, in shared memory. row:
// token of the block's first row. To save registers, callers recompute the result instead of keeping it.
template <bool KEYS, int M> __device__ static inline Visible visible_of(const Sequence &x, const int *edges, int row) {
    const int first = own_row<M>(), last = first + M * 16 - 1;
    const Range low = range_of<KEYS>(x, row + first, edges[first]), high = range_of<KEYS>(x, row + last, edges[last]);
    return {{low.begin, high.end}, {high.begin, low.end}};
}

// True if some row of the warp sees one of the `count` tokens starting at `token`.
template <bool KEYS, int M>
__device__ static inline bool sees(const Sequence &x, const int *edges, int row, int token, int count) {
    const Range some = visible_of<KEYS, M>(x, edges, row).some;
    return token < some.end && token + count > some.begin;
}

// Sets to -inf, in each row of the warp's scores s, the scores of tokens that the row does not see. token: token of
// column 0 of s.
template <bool KEYS, int M, int N>
__device__ static inline void mask(float (&s)[M][N / 8][4], const Sequence &x, const int *edges, int row, int token) {
    const Range all = visible_of<KEYS, M>(x, edges, row).all;
    if (token >= all.begin && token + N <= all.end) return;
    const int lane = (int)thread_get() % WARP, column = token + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int own = own_row<M>() + m * 16 + half * 8 + lane / 4;
            const Range range = range_of<KEYS>(x, row + own, edges[own]);
            const unsigned ahead = (unsigned)(column - range.begin), count = (unsigned)(range.end - range.begin);
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                float &score = s[m][i / 2][half * 2 + i % 2];
                if (ahead + (unsigned)(i / 2 * 8 + i % 2) >= count) score = -INFINITY;
            }
        }
}

// --- division into thread blocks -------------------------------------------------------------------------------------
struct Work {
    int block, head, sequence; // block of rows of a head (a key/value head if the rows are keys) of a sequence
};

// Returns the work of this thread block: one of `blocks` blocks of rows of one of `heads` heads per sequence.
// all_heads: number of heads of all sequences. Thread blocks process sets of `together` heads one after the other, so
// that a set's operands stay in the L2 cache. Within a set, the blocks that see the most tokens come first. These are
// the first blocks of a head if `first` is true (rows are keys), otherwise the last blocks.
__device__ static inline Work work_of(int blocks, int heads, int all_heads, int together, bool first) {
    unsigned block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const int group = (int)block / (together * blocks) * together, index = (int)block - group * blocks;
    const int count = min(together, all_heads - group), rank = index / count, head = group + index % count;
    return {first ? rank : blocks - 1 - rank, head % heads, head / heads};
}

// --- host code -------------------------------------------------------------------------------------------------------
// Calls fatal() unless the kernels can read and write the view: BF16, rows aligned to 16 bytes, heads of a multiple of
// 8 up to 128 columns.
static inline void require_view(const char *operation, Tensor view, AttentionShape shape) {
    require_format(operation, "an operand", view, FMT_BF16);
    if (shape.head_dim % CHUNK || shape.head_dim > 128 || view.stride % CHUNK || (uintptr_t)view.data % 16)
        fatal(EXIT_DEVICE,
              "internal error: %s on the GPU: heads of width %d in rows of %lld values at %p; the width must be a "
              "multiple of 8 up to 128, and rows aligned to 16 bytes",
              operation, shape.head_dim, (long long)view.stride, view.data);
}

// Calls run(std::integral_constant<int, HEAD>()). HEAD is the smallest width that is at least head_dim and for which
// the kernels are compiled.
template <typename Run> static void for_head(int head_dim, Run run) {
    if (head_dim <= 64)
        run(std::integral_constant<int, 64>());
    else if (head_dim <= 80)
        run(std::integral_constant<int, 80>());
    else if (head_dim <= 96)
        run(std::integral_constant<int, 96>());
    else
        run(std::integral_constant<int, 128>());
}
