// Register fragments in which a warpgroup holds attention tiles on Hopper (layout: hopper.h). Heads are HEAD = 64 or
// 128 columns wide. A tile in shared memory is a sequence of panels of 64 columns.
#pragma once
#include "attention_hopper.h"
#include "cuda/common/cuda_internal.h"
#include "hopper.h"

typedef __nv_bfloat16 bf16;

constexpr int TILE = ATTENTION_TILE; // query or key rows that one unit of work owns (attention_copying.h)
constexpr int HALF = TILE / 2;       // rows per warpgroup; also the rows per tile that attention's backward streams
constexpr int PANEL = 64;            // columns per panel of a tile
constexpr int COMPUTING = 2;         // number of computing warpgroups per thread block; a third warpgroup copies
constexpr int WARP_ROWS = 16;        // owned rows of a unit of work that one warp computes
constexpr int STORED = WARP_ROWS * PANEL; // number of values in one panel of a warp's rows
constexpr int THREADS = (COMPUTING + 1) * 128;
constexpr int COPYING_REGISTERS = 40, COMPUTING_REGISTERS = 232;
constexpr float LOG2_E = 1.4426950408889634f;

// Number of lanes per warp that signal when the warp no longer reads a buffer. After __syncwarp(), one lane suffices.
// compute-sanitizer's racecheck does not see that the other lanes' reads precede this signal. Therefore, in builds for
// racecheck (RACECHECK), every lane signals.
#ifdef RACECHECK
constexpr int SIGNALLING = 32;
#else
constexpr int SIGNALLING = 1;
#endif
constexpr int WARPGROUP_SIGNALS = 4 * SIGNALLING;

// distance in bytes between two panels of a tile of ROWS rows
template <int ROWS> constexpr int PANEL_BYTES = ROWS *PANEL *(int)sizeof(bf16);

// Position of a thread within its warpgroup: the rows and columns of its fragments (layout: hopper.h), and the operands
// that the warpgroup owns.
struct Place {
    int half; // the warpgroup owns rows HALF * half to HALF * half + HALF - 1 of the unit of work
    // this thread computes rows `row` and `row + 8` of the unit of work and, in every 8-column block, columns `pair`
    // and `pair + 1`
    int row, pair;
    bool signals;           // true if this thread signals for its warp that a buffer is free
    uint64_t own[2];        // wgmma descriptors of the two operands that the warpgroup owns
    float lse[2], delta[2]; // lse and delta of this thread's two rows; used if the rows are queries
};

// Position in a ring of SIZE buffers. phase: parity of the buffers' barriers; it flips after each round.
template <int SIZE> struct Ring {
    int index;
    uint32_t phase;
};

template <int SIZE> __device__ static inline void ring_next(Ring<SIZE> &ring) {
    ring.index = ring.index + 1 == SIZE ? 0 : ring.index + 1;
    ring.phase ^= ring.index == 0;
}

// Signals, on the buffer's barrier `empty`, that the calling warp no longer reads the buffer. A copying thread refills
// the buffer when all warps have signalled.
__device__ static inline void release(const Place &place, uint64_t *empty) {
    __syncwarp();
    barrier_arrive_if(empty, place.signals);
}

// Computes this thread's Place.
__device__ static inline Place place_get(int warpgroup) {
    const unsigned thread = thread_get(), warp = thread / 32 % 4, lane = thread % 32;
    Place place = {};
    place.half = warpgroup;
    place.row = warpgroup * HALF + (int)(warp * WARP_ROWS + lane / 4);
    place.pair = (int)(lane % 4 * 2);
    place.signals = lane < SIGNALLING;
    return place;
}

// Starts the matmul d = (owned rows) * (first COLUMNS rows of another tile)^T. The other tile has ROWS rows. One wgmma
// instruction multiplies 16 columns of the head.
template <int HEAD, int ROWS, int COLUMNS>
__device__ static inline void multiply_rows(float (&d)[COLUMNS / 2], uint64_t own, uint64_t other) {
    constexpr int own_panel = PANEL_BYTES<HALF> / 16, panel = PANEL_BYTES<ROWS> / 16;
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++)
        wgmma_rows(d, own + k / 4 * own_panel + k % 4 * WGMMA_NEXT_COLUMNS,
                   other + k / 4 * panel + k % 4 * WGMMA_NEXT_COLUMNS, k > 0);
    wgmma_commit();
}

// Starts the matmul d = (owned rows) * (HALF rows of another tile)^T. The owned rows are in registers.
template <int COUNT>
__device__ static inline void multiply_rows(float (&d)[HALF / 2], const uint32_t (&own)[COUNT], uint64_t other) {
#pragma unroll
    for (int k = 0; k < COUNT / 4; k++)
        wgmma_rows(d, own + 4 * k, other + k / 4 * (PANEL_BYTES<HALF> / 16) + k % 4 * WGMMA_NEXT_COLUMNS, k > 0);
    wgmma_commit();
}

// Loads a warp's 16 rows of a tile of HALF rows into registers, for multiply_rows() with owned rows in registers.
template <int COUNT> __device__ static inline void own_load(uint32_t (&own)[COUNT], const bf16 *tile) {
    const unsigned thread = thread_get(), row = thread / 32 % 4 * WARP_ROWS + thread % 16, chunk = thread / 16 % 2;
#pragma unroll
    for (int k = 0; k < COUNT / 4; k++)
        wgmma_operand_load(own + 4 * k, tile + (k / 4 * HALF + row) * PANEL + (k % 4 * 2 + chunk ^ row % 8) * 8);
}

// Applies the causal mask: sets to -inf the score of each query and key for which the key comes after the query. With
// KEYS, the owned rows are keys and the streamed rows are queries. from: first streamed row, relative to the start of
// the unit of work.
template <bool KEYS, int COLUMNS>
__device__ static inline void mask(float (&s)[COLUMNS / 2], const Place &place, int from) {
    const int ahead = place.row - place.pair - from; // owned row minus streamed row, for this thread's first score
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        const int other_ahead = i / 4 * 8 + i % 2 - i / 2 % 2 * 8;
        if (KEYS ? ahead > other_ahead : ahead < other_ahead) s[i] = -INFINITY;
    }
}

// Returns the first token of the document of query t. positions: for each token of the sequence, its position within
// its document. If the document starts before the sequence, returns 0.
__device__ static inline int document_begin(const int32_t *positions, int t) {
    return max(t - positions[t], 0);
}

// State for document masking. `own` and `streamed` are the first tokens of the owned rows and of the streamed tile. If
// the owned rows are queries, begin[2] and last_begin are the first tokens that this thread's two queries and the
// warpgroup's last query can see.
struct Documents {
    const int32_t *positions;
    int T, own, streamed;
    int begin[2], last_begin;
};

__device__ static inline Documents documents_of(const int32_t *positions, int T, const Place &place, int own) {
    Documents x = {positions, T, own, own};
    for (int i = 0; i < 2; i++) x.begin[i] = document_begin(positions, min(own + place.row + 8 * i, T - 1));
    x.last_begin = document_begin(positions, min(own + place.half * HALF + HALF - 1, T - 1));
    return x;
}

// Sets to -inf the scores of queries and keys in different documents. Returns at once if the last query of the tile of
// scores is in the document of the tile's first key. Documents are contiguous, so all queries and keys of the tile are
// then in one document.
template <bool KEYS, int COLUMNS>
__device__ static inline void mask_documents(float (&s)[COLUMNS / 2], const Place &place, const Documents &x) {
    if constexpr (KEYS) {
        const int own = x.own + place.row;
        const int last = min(x.streamed + COLUMNS - 1, x.T - 1);
        if (document_begin(x.positions, last) <= x.own + place.half * HALF) return;
        // first tokens that queries see; each lane loads COLUMNS / 32 of them for the whole warp
        int begins[COLUMNS / 32];
#pragma unroll
        for (int i = 0; i < COLUMNS / 32; i++)
            begins[i] = document_begin(x.positions, min(x.streamed + i * 32 + (int)(thread_get() % 32), x.T - 1));
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i += 4)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int begin = __shfl_sync(0xffffffffu, begins[i / 16], i / 4 * 8 % 32 + place.pair + j);
                if (own < begin) s[i + j] = -INFINITY;
                if (own + 8 < begin) s[i + 2 + j] = -INFINITY;
            }
    } else {
        const int other = x.streamed + place.pair;
        if (x.last_begin <= x.streamed) return;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++)
            if (other + i / 4 * 8 + i % 2 < x.begin[i / 2 % 2]) s[i] = -INFINITY;
    }
}

// Multiplies a warpgroup's result by scale, rounds the values to BF16 and stores the first `rows` rows at `to`. Copies
// the rows through `stored` (STORED values in shared memory for this warp), so that eight threads write each row
// contiguously. Returns two BF16 magnitudes as bits: the largest of this thread's values in even columns (lower half)
// and in odd columns (upper half). `largest` is an earlier result to include, or 0.
template <int COUNT>
__device__ static inline uint32_t sum_store(float (&sum)[COUNT], float scale, bf16 *to, int64_t stride, int rows,
                                            bf16 *stored, uint32_t largest) {
    wgmma_hold(sum);
    const unsigned thread = thread_get(), lane = thread % 32, chunk = lane % 8;
    const unsigned row = lane / 8, warp_row = thread / 32 % 4 * WARP_ROWS + row; // first row that this lane writes
    bf16 *const block_row = stored + lane % WARP_ROWS * PANEL;
    to += (int64_t)warp_row * stride + chunk * 8;
    asm volatile("" : "+l"(to)); // prevents the compiler from recomputing the address of each row
#pragma unroll
    for (int panel = 0; panel < COUNT / 32; panel++) {
        __syncwarp();
#pragma unroll
        for (int k = 0; k < PANEL / 16; k++) {
            uint32_t block[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *from = sum + panel * 32 + k * 8 + i * 2;
                block[i] = bf16_pair(from[0] * scale, from[1] * scale);
                largest = __vmaxu2(largest, block[i] & 0x7fff7fff);
            }
            blocks_store(block_row + (lane / 16 ^ chunk ^ 2 * k) * 8, block);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < WARP_ROWS; i += 4) {
            const uint4 x = *(const uint4 *)(stored + (i + row) * PANEL + (chunk ^ row ^ i % 8) * 8);
            store_if(to + i * stride + panel * PANEL, x, (int)warp_row + i < rows);
        }
    }
    return largest;
}
