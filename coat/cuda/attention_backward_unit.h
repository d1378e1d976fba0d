// The units of work of attention's backward on Hopper and how a warpgroup computes one; attention_backward.cu says what
// they are for, and includes this alone.
#pragma once
#include "attention_backward.h"
#include "cuda_internal.h"
#include "hopper.h"

typedef __nv_bfloat16 bf16;

constexpr int HEAD = 64;                      // columns of a head
constexpr int TILE = ATTENTION_BACKWARD_TILE; // rows of a tile
constexpr int HALF = TILE / 2;                // rows of a warpgroup
constexpr int STAGES = 4;                     // pairs of tiles in the ring
constexpr int COMPUTING = 2;                  // warpgroups
constexpr int THREADS = (COMPUTING + 1) * 128;
constexpr int COPYING_REGISTERS = 40, COMPUTING_REGISTERS = 232;
constexpr float LOG2_E = 1.4426950408889634f;

struct Problem {
    CUtensorMap q, k, v, d_o; // (B, T, heads * HEAD), read in tiles of (1, TILE, HEAD)
    const float *statistics;  // (B * heads, blocks, 2, TILE): lse in units of log 2, and delta
    unsigned *next_unit;
    bf16 *dq, *dk, *dv;
    uint32_t *amax; // (B * T) maxima of dq, dk and dv, one for 16 rows; may be NULL
    int64_t dq_stride, dk_stride, dv_stride;
    int heads, sequence_heads, T, blocks; // heads of all sequences, of one
    float scale;                          // of the scores
    AttentionBackwardTuning tuning;
};

// --- units of work ------------------------------------------------------------------------------------------------
struct Unit {
    bool keys;
    int head, block, tiles; // the own block; how many tiles stream by, the diagonal one first
};

__device__ static inline int unit_count(const Problem &x) {
    return 2 * x.heads * x.blocks;
}

__device__ static inline Unit unit_get(const Problem &x, int index) {
    int together = 2 * x.tuning.heads_together * x.blocks, first = index / together * x.tuning.heads_together;
    int heads = min(x.tuning.heads_together, x.heads - first), within = index % together, rank = within / (2 * heads);
    Unit unit;
    unit.keys = within % (2 * heads) < heads;
    unit.head = first + within % heads;
    unit.block = unit.keys ? rank : x.blocks - 1 - rank;
    unit.tiles = x.blocks - rank;
    return unit;
}

// --- shared memory ------------------------------------------------------------------------------------------------
struct Pair {
    bf16 first[TILE * HEAD], second[TILE * HEAD]; // k and v, or q and do
};

struct Shared {
    Pair own[2], streamed[STAGES];
    float own_statistics[2][2 * TILE], streamed_statistics[STAGES][2 * TILE]; // beside q and do
    uint64_t own_full[2], own_empty[2], streamed_full[STAGES], streamed_empty[STAGES];
    int unit[2]; // of the own tiles; -1: no more
};
static_assert(sizeof(Pair) % 1024 == 0, "tiles begin at units of the swizzle");
constexpr size_t SHARED_BYTES = sizeof(Shared) + 1024;

// A position in a ring of buffers: a barrier's phase changes with every round.
template <int SIZE> struct Ring {
    int index;
    uint32_t phase;
};

template <int SIZE> __device__ static inline void ring_next(Ring<SIZE> &ring) {
    ring.index = ring.index + 1 == SIZE ? 0 : ring.index + 1;
    ring.phase ^= ring.index == 0;
}

// --- computing ----------------------------------------------------------------------------------------------------
// A thread of a computing warpgroup, and its place in the fragments of hopper.h.
struct Place {
    int half;               // which rows of the own tile: HALF * half ...
    int row, pair;          // of the own tile: row and row + 8; columns pair, pair + 1 of each block of 8
    bool signals;           // one thread per warp tells the copying thread that a buffer is free
    bool alternate;         // see AttentionBackwardTuning
    uint64_t own[2];        // operands
    float lse[2], delta[2]; // of the own rows, if they are queries
};

struct Sums {
    float first[HALF * HEAD / 128], second[HALF * HEAD / 128]; // dk and dv, or dq and nothing
};

struct Weights {
    uint32_t p[HALF * TILE / 256], ds[HALF * TILE / 256]; // BF16 pairs: the first operand of the next products
};

__device__ static inline void release(const Place &place, uint64_t *empty) {
    __syncwarp();
    if (place.signals) barrier_arrive(empty);
}

// Turns at the tensor cores: each warpgroup has one for every streamed tile.
__device__ static inline void turn_wait(const Place &place) {
    if (place.alternate) named_barrier_wait(1 + place.half, COMPUTING * 128);
}

__device__ static inline void turn_pass(const Place &place) {
    if (place.alternate) named_barrier_tell(1 + (place.half ^ 1), COMPUTING * 128);
}

// d = own rows times the rows of a streamed tile.
template <int COLUMNS>
__device__ static inline void multiply_rows(float (&d)[COLUMNS / 2], uint64_t own, const bf16 *tile) {
    uint64_t other = wgmma_operand(tile);
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++)
        wgmma_rows(d, own + k * WGMMA_NEXT_COLUMNS, other + k * WGMMA_NEXT_COLUMNS, k > 0);
    wgmma_commit();
}

// The sums of COLUMNS rows of a streamed pair.
template <bool KEYS, int COLUMNS>
__device__ static inline void add_products(Sums &sums, const Weights &weights, const Pair &pair, int from) {
    uint64_t first = wgmma_operand(pair.first + from * HEAD), second = wgmma_operand(pair.second + from * HEAD);
    if constexpr (KEYS) {
#pragma unroll
        for (int k = 0; k < COLUMNS / 16; k++)
            wgmma_columns(sums.second, weights.p + 4 * k, second + k * WGMMA_NEXT_ROWS);
    }
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++) wgmma_columns(sums.first, weights.ds + 4 * k, first + k * WGMMA_NEXT_ROWS);
    wgmma_commit();
}

// What add_products reads and continues is complete.
template <bool KEYS> __device__ static inline void products_hold(Sums &sums, Weights &weights) {
    wgmma_hold(sums.first);
    wgmma_hold(weights.ds);
    if constexpr (KEYS) {
        wgmma_hold(sums.second);
        wgmma_hold(weights.p);
    }
}

// Scores that no query may see become -inf; `from` is the first streamed row.
template <bool KEYS, int COLUMNS>
__device__ static inline void mask(float (&s)[COLUMNS / 2], const Place &place, int from) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        int own = place.row + i / 2 % 2 * 8, other = from + i / 4 * 8 + place.pair + i % 2;
        if (KEYS ? other < own : other > own) s[i] = -INFINITY;
    }
}

// s becomes p.
template <bool KEYS, int COUNT>
__device__ static inline void probabilities(float (&s)[COUNT], const Place &place, const float *lse, float scale) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        float2 column = KEYS ? *(const float2 *)(lse + i / 4 * 8 + place.pair) : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float row_lse = KEYS ? (j % 2 ? column.y : column.x) : place.lse[j / 2];
            s[i + j] = exp2_fast(fmaf(s[i + j], scale, -row_lse));
        }
    }
    wgmma_hold(s);
}

template <bool KEYS, int COUNT>
__device__ static inline void weights_from(Weights &weights, const float (&p)[COUNT], const float (&dp)[COUNT],
                                           const Place &place, const float *delta) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        float2 column = KEYS ? *(const float2 *)(delta + i / 4 * 8 + place.pair) : make_float2(0.0f, 0.0f);
        float ds[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float row_delta = KEYS ? (j % 2 ? column.y : column.x) : place.delta[j / 2];
            ds[j] = p[i + j] * (dp[i + j] - row_delta);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            weights.ds[i / 2 + j] = bf16_pair(ds[2 * j], ds[2 * j + 1]);
            if constexpr (KEYS) weights.p[i / 2 + j] = bf16_pair(p[i + 2 * j], p[i + 2 * j + 1]);
        }
    }
}

// One streamed tile, rows `from` to from + COLUMNS of it, up to its weights. With PREVIOUS the sums of the tile before
// it come first, and its buffer is free then.
template <bool KEYS, int COLUMNS, bool PREVIOUS>
__device__ static inline void tile_run(Shared *shared, const Place &place, Sums &sums, Weights &weights,
                                       Ring<STAGES> stage, int previous, int from, bool diagonal, float scale) {
    const Pair &pair = shared->streamed[stage.index];
    const float *lse = shared->streamed_statistics[stage.index] + from, *delta = lse + TILE;
    float s[COLUMNS / 2], dp[COLUMNS / 2];
    barrier_wait(&shared->streamed_full[stage.index], stage.phase);
    turn_wait(place);
    if constexpr (PREVIOUS) products_hold<KEYS>(sums, weights);
    wgmma_fence();
    if constexpr (PREVIOUS) add_products<KEYS, TILE>(sums, weights, shared->streamed[previous], 0);
    multiply_rows<COLUMNS>(s, place.own[0], pair.first + from * HEAD);
    if constexpr (PREVIOUS) {
        wgmma_wait<1>();
        release(place, &shared->streamed_empty[previous]);
        wgmma_fence();
    }
    multiply_rows<COLUMNS>(dp, place.own[1], pair.second + from * HEAD);
    turn_pass(place);
    wgmma_wait<1>();
    wgmma_hold(s);
    if (!PREVIOUS && diagonal) mask<KEYS, COLUMNS>(s, place, from);
    probabilities<KEYS>(s, place, lse, scale);
    // Complete already. The compiler moves the exponentials beyond the next wait, where nothing runs beside them, but
    // not across a loop.
    if constexpr (PREVIOUS) barrier_wait(&shared->streamed_full[stage.index], stage.phase);
    wgmma_wait<0>();
    wgmma_hold(dp);
    weights_from<KEYS>(weights, s, dp, place, delta);
}

// The sums of the tile that tile_run left behind.
template <bool KEYS, int COLUMNS>
__device__ static inline void tile_finish(Shared *shared, const Place &place, Sums &sums, Weights &weights, int stage,
                                          int from) {
    products_hold<KEYS>(sums, weights);
    wgmma_fence();
    add_products<KEYS, COLUMNS>(sums, weights, shared->streamed[stage], from);
    wgmma_wait<0>();
    release(place, &shared->streamed_empty[stage]);
}

__device__ static inline uint32_t choose(const uint32_t (&word)[4], int i) {
    uint32_t low = i & 1 ? word[1] : word[0], high = i & 1 ? word[3] : word[2];
    return i & 2 ? high : low;
}

// A warpgroup's sum, scaled, to BF16 rows of a head at `to`; of its first `rows` rows. Four neighbouring threads
// swap their pairs, so that each has 8 consecutive columns. Returns the larger of `largest` and what this thread stored:
// the maxima of a pair's first and second magnitudes, as bits.
__device__ static inline uint32_t sum_store(float (&sum)[32], float scale, bf16 *to, int64_t stride, int rows,
                                            const Place &place, uint32_t largest) {
    wgmma_hold(sum);
    int quarter = place.pair / 2;
#pragma unroll
    for (int lower = 0; lower < 2; lower++) {
        int row = place.row - place.half * HALF + lower * 8;
#pragma unroll
        for (int side = 0; side < 2; side++) {
            uint32_t word[4], swapped[4], mine[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *from = sum + (side * 4 + i) * 4 + lower * 2;
                word[i] = bf16_pair(from[0] * scale, from[1] * scale);
            }
            swapped[0] = choose(word, quarter);
#pragma unroll
            for (int i = 1; i < 4; i++) swapped[i] = __shfl_xor_sync(0xffffffffu, choose(word, quarter ^ i), i);
#pragma unroll
            for (int i = 0; i < 4; i++) mine[i] = choose(swapped, quarter ^ i);
            if (row >= rows) continue;
            *(uint4 *)(to + row * stride + side * 32 + quarter * 8) = make_uint4(mine[0], mine[1], mine[2], mine[3]);
#pragma unroll
            for (int i = 0; i < 4; i++) largest = __vmaxu2(largest, mine[i] & 0x7fff7fffu);
        }
    }
    return largest;
}

// The maximum of what a warp stored, in the place of its first row. Maxima do not depend on their order.
__device__ static inline void maximum_store(const Problem &x, int64_t token, uint32_t largest) {
    largest = __reduce_max_sync(0xffffffffu, max(largest << 16, largest & 0xffff0000u));
    if (threadIdx.x % 32 == 0) atomicMax(x.amax + token, largest);
}

template <bool KEYS>
__device__ static inline void unit_run(const Problem &x, Shared *shared, Place &place, Unit unit, int own,
                                       Ring<STAGES> &stage) {
    const Pair &pair = shared->own[own];
    const float *statistics = shared->own_statistics[own];
    place.own[0] = wgmma_operand(pair.first + place.half * HALF * HEAD);
    place.own[1] = wgmma_operand(pair.second + place.half * HALF * HEAD);
    if constexpr (!KEYS)
        for (int i = 0; i < 2; i++) {
            place.lse[i] = statistics[place.row + i * 8];
            place.delta[i] = statistics[TILE + place.row + i * 8];
        }
    // Half of the diagonal tile is out of sight for one of the warpgroups: the first queries for the last keys, the
    // last keys for the first queries.
    constexpr int half_seen = KEYS ? 1 : 0, half_from = KEYS ? HALF : 0;
    float scale = x.scale * LOG2_E;
    Sums sums = {};
    Weights weights;
    int j = 0;
    if (place.half == half_seen) {
        tile_run<KEYS, HALF, false>(shared, place, sums, weights, stage, 0, half_from, true, scale);
        tile_finish<KEYS, HALF>(shared, place, sums, weights, stage.index, half_from);
        ring_next(stage);
        j = 1;
    }
    if (j < unit.tiles) {
        tile_run<KEYS, TILE, false>(shared, place, sums, weights, stage, 0, 0, j == 0, scale);
        int previous = stage.index;
        ring_next(stage);
        for (j++; j < unit.tiles; j++) {
            tile_run<KEYS, TILE, true>(shared, place, sums, weights, stage, previous, 0, false, scale);
            previous = stage.index;
            ring_next(stage);
        }
        tile_finish<KEYS, TILE>(shared, place, sums, weights, previous, 0);
    }
    release(place, &shared->own_empty[own]);
    int t = unit.block * TILE + place.half * HALF;
    int64_t token = (int64_t)(unit.head / x.sequence_heads) * x.T + t, column = unit.head % x.sequence_heads * HEAD;
    uint32_t largest = 0;
    if constexpr (KEYS) {
        largest = sum_store(sums.first, x.scale, x.dk + token * x.dk_stride + column, x.dk_stride, x.T - t, place, 0);
        largest =
            sum_store(sums.second, 1.0f, x.dv + token * x.dv_stride + column, x.dv_stride, x.T - t, place, largest);
    } else {
        largest = sum_store(sums.first, x.scale, x.dq + token * x.dq_stride + column, x.dq_stride, x.T - t, place, 0);
    }
    int warp_row = (int)threadIdx.x / 32 % 4 * 16;
    if (x.amax && t + warp_row < x.T) maximum_store(x, token + warp_row, largest);
}

__device__ static inline void compute_units(const Problem &x, Shared *shared, int warpgroup) {
    int warp = (int)threadIdx.x / 32 % 4, lane = (int)threadIdx.x % 32;
    Place place = {};
    place.half = warpgroup;
    place.row = warpgroup * HALF + warp * 16 + lane / 4;
    place.pair = lane % 4 * 2;
    place.signals = lane == 0;
    place.alternate = x.tuning.alternate;
    if (warpgroup == 1) turn_pass(place);
    Ring<2> own = {};
    Ring<STAGES> stage = {};
    for (;; ring_next(own)) {
        barrier_wait(&shared->own_full[own.index], own.phase);
        int index = lane == 0 ? shared->unit[own.index] : 0; // the thread that will release it
        index = warp_uniform(index);
        if (index < 0) return;
        Unit unit = unit_get(x, index);
        if (unit.keys)
            unit_run<true>(x, shared, place, unit, own.index, stage);
        else
            unit_run<false>(x, shared, place, unit, own.index, stage);
    }
}
