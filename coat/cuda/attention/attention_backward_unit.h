// How a warpgroup computes a unit of work of attention's backward on Hopper; attention_backward.cu says what the units
// are for, and includes this alone.
#pragma once
#include "attention_backward_work.h"

// --- computing ----------------------------------------------------------------------------------------------------
template <int HEAD> struct Sums {
    float first[HALF * HEAD / 128], second[HALF * HEAD / 128]; // dk and dv, or dq and nothing
};

// Of the own rows and ROWS streamed ones, in BF16 pairs: the first operand of the next products.
template <int ROWS> struct Weights { uint32_t p[HALF * ROWS / 256], ds[HALF * ROWS / 256]; };

// The first own row of a warpgroup within the buffer that it reads.
template <int HEAD> __device__ static inline int own_row(const Place &place) {
    return OWN_BUFFERS<HEAD> == 2 ? place.half * HALF : 0;
}

// The sums of COLUMNS rows of a streamed pair of tiles, from a slot on.
template <int HEAD, bool KEYS, int COLUMNS>
__device__ static inline void add_products(Sums<HEAD> &sums, const Weights<TILE_ROWS<HEAD, KEYS>> &weights,
                                           const Shared *shared, int slot, int from) {
    constexpr int panel = PANEL_BYTES<TILE_ROWS<HEAD, KEYS>>;
    uint64_t first = wgmma_operand(streamed_first<HEAD, KEYS>(shared, slot) + from * PANEL, panel);
    uint64_t second = wgmma_operand(streamed_second<HEAD, KEYS>(shared, slot) + from * PANEL, panel);
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
template <bool KEYS, int HEAD, int ROWS>
__device__ static inline void products_hold(Sums<HEAD> &sums, Weights<ROWS> &weights) {
    wgmma_hold(sums.first);
    wgmma_hold(weights.ds);
    if constexpr (KEYS) {
        wgmma_hold(sums.second);
        wgmma_hold(weights.p);
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
            s[i + j] = fast_exp2(fmaf(s[i + j], scale, -row_lse));
        }
    }
    wgmma_hold(s);
}

template <bool KEYS, int ROWS, int COUNT>
__device__ static inline void weights_from(Weights<ROWS> &weights, const float (&p)[COUNT], const float (&dp)[COUNT],
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

// One streamed tile, rows `from` to from + COLUMNS of it, up to its weights; its first row is the own block's row
// `origin` where it is a diagonal one. With PREVIOUS the sums of the tile before it come first, and its slot is free
// then. With APART `documents` has the place of the tile's first row.
template <int HEAD, bool KEYS, int COLUMNS, bool PREVIOUS, bool APART>
__device__ static inline void tile_run(Shared *shared, const Place &place, Sums<HEAD> &sums,
                                       Weights<TILE_ROWS<HEAD, KEYS>> &weights, Ring<STAGES> stage, int previous,
                                       int from, bool diagonal, int origin, float scale, Documents documents) {
    constexpr bool two_slots = TILE_SLOTS<HEAD, KEYS> == 2;
    const float *lse = shared->streamed_statistics[stage.index] + from, *delta = lse + PAIR_ROWS<HEAD>;
    float s[COLUMNS / 2], dp[COLUMNS / 2];
    barrier_wait(&shared->streamed_full[stage.index], stage.phase);
    if constexpr (PREVIOUS) products_hold<KEYS>(sums, weights);
    wgmma_fence();
    if constexpr (PREVIOUS) add_products<HEAD, KEYS, COLUMNS>(sums, weights, shared, previous, 0);
    multiply_rows<HEAD, KEYS, COLUMNS>(s, place.own[0], streamed_first<HEAD, KEYS>(shared, stage.index) + from * PANEL);
    if constexpr (PREVIOUS) {
        wgmma_wait<1>();
        release(place, &shared->streamed_empty[previous]);
    }
    if constexpr (two_slots) barrier_wait(&shared->streamed_full[stage.index + 1], stage.phase);
    if constexpr (PREVIOUS || two_slots) wgmma_fence();
    multiply_rows<HEAD, KEYS, COLUMNS>(dp, place.own[1],
                                       streamed_second<HEAD, KEYS>(shared, stage.index) + from * PANEL);
    wgmma_wait<1>();
    wgmma_hold(s);
    if (!PREVIOUS && diagonal) mask<KEYS, COLUMNS>(s, place, origin);
    if constexpr (APART) {
        documents.streamed += from;
        mask_documents<KEYS, COLUMNS>(s, place, documents);
    }
    probabilities<KEYS>(s, place, lse, scale);
    // Complete already. The compiler moves the exponentials beyond the next wait, where nothing runs beside them, but
    // not across a loop.
    if constexpr (PREVIOUS) barrier_wait(&shared->streamed_full[stage.index], stage.phase);
    wgmma_wait<0>();
    wgmma_hold(dp);
    if constexpr (two_slots) release(place, &shared->streamed_empty[stage.index + 1]);
    weights_from<KEYS>(weights, s, dp, place, delta);
}

// The sums of the tile that tile_run left behind.
template <int HEAD, bool KEYS, int COLUMNS>
__device__ static inline void tile_finish(Shared *shared, const Place &place, Sums<HEAD> &sums,
                                          Weights<TILE_ROWS<HEAD, KEYS>> &weights, int slot, int from) {
    products_hold<KEYS>(sums, weights);
    wgmma_fence();
    add_products<HEAD, KEYS, COLUMNS>(sums, weights, shared, slot, from);
    wgmma_wait<0>();
    release(place, &shared->streamed_empty[slot]);
}

// A tile that is out of the warpgroup's sight.
__device__ static inline void tile_skip(Shared *shared, const Place &place, Ring<STAGES> stage) {
    barrier_wait(&shared->streamed_full[stage.index], stage.phase);
    release(place, &shared->streamed_empty[stage.index]);
}

template <int SLOTS> __device__ static inline void tile_next(Ring<STAGES> &stage) {
#pragma unroll
    for (int i = 0; i < SLOTS; i++) ring_next(stage);
}

// The maximum of what a warp stored, in the place of its first row. Maxima do not depend on their order.
__device__ static inline void maximum_store(const Problem &x, int64_t token, uint32_t largest) {
    largest = __reduce_max_sync(0xffffffffu, max(largest << 16, largest & 0xffff0000u));
    if (threadIdx.x % 32 == 0) atomicMax(x.amax + token, largest);
}

// One head streams by, its diagonal block first. `own_empty`: of the own pair, which is free after the last tile's
// scores; NULL: another head follows.
template <int HEAD, bool KEYS, bool APART>
__device__ static inline void head_run(Shared *shared, Place &place, Sums<HEAD> &sums, Ring<STAGES> &stage, int blocks,
                                       uint64_t *own_empty, float scale, Documents documents) {
    // Half of the diagonal block is out of sight for one of the warpgroups: the first queries for the last keys, the
    // last keys for the first queries. It is half a tile, or a whole one.
    constexpr int ROWS = TILE_ROWS<HEAD, KEYS>, SLOTS = TILE_SLOTS<HEAD, KEYS>;
    constexpr int half_seen = KEYS ? 1 : 0, half_from = KEYS ? HALF : 0;
    constexpr bool skips = ROWS == HALF;
    constexpr int step = KEYS ? ROWS : -ROWS; // from a tile to the next
    Weights<ROWS> weights;
    int j = 0, tiles = blocks * (TILE / ROWS);
    place_hold(place);
    if (place.half == half_seen) {
        if constexpr (skips) {
            tile_skip(shared, place, stage);
        } else {
            tile_run<HEAD, KEYS, HALF, false, APART>(shared, place, sums, weights, stage, 0, half_from, true, half_from,
                                                     scale, documents);
            tile_finish<HEAD, KEYS, HALF>(shared, place, sums, weights, stage.index, half_from);
        }
        tile_next<SLOTS>(stage);
        documents.streamed += step;
        j = 1;
    }
    if (j < tiles) {
        tile_run<HEAD, KEYS, ROWS, false, APART>(shared, place, sums, weights, stage, 0, 0, skips || j == 0,
                                                 skips ? place.half * HALF : 0, scale, documents);
        int previous = stage.index;
        tile_next<SLOTS>(stage);
        for (j++; j < tiles; j++) {
            documents.streamed += step;
            tile_run<HEAD, KEYS, ROWS, true, APART>(shared, place, sums, weights, stage, previous, 0, false, 0, scale,
                                                    documents);
            previous = stage.index;
            tile_next<SLOTS>(stage);
        }
        if (own_empty) release(place, own_empty);
        tile_finish<HEAD, KEYS, ROWS>(shared, place, sums, weights, previous, 0);
    } else if (own_empty) {
        release(place, own_empty);
    }
}

template <int HEAD, bool KEYS, bool APART>
__device__ static inline void unit_run(const Problem &x, Shared *shared, Place &place, Unit unit, int own,
                                       Ring<STAGES> &stage) {
    const Pair &pair = shared->own[own];
    const float *statistics = shared->own_statistics[own];
    place.own[0] = wgmma_operand(pair.first + own_row<HEAD>(place) * PANEL);
    place.own[1] = wgmma_operand(pair.second + own_row<HEAD>(place) * PANEL);
    if constexpr (!KEYS)
        for (int i = 0; i < 2; i++) {
            int row = place.row - place.half * HALF + own_row<HEAD>(place) + i * 8;
            place.lse[i] = statistics[row];
            place.delta[i] = statistics[PAIR_ROWS<HEAD> + row];
        }
    constexpr bool own_early = OWN_BUFFERS<HEAD> == 1;
    const int sequence_heads = KEYS ? x.sequence_heads / x.group : x.sequence_heads;
    const int sequence = unit.head / sequence_heads;
    Documents documents = {};
    if constexpr (APART) {
        const int32_t *positions = x.positions + (int64_t)sequence * x.T;
        if constexpr (KEYS)
            documents = {positions, x.T, unit.block * TILE, unit.block * TILE};
        else
            documents = documents_of(positions, x.T, place, unit.block * TILE);
    }
    uint64_t *const own_empty = &shared->own_empty[own];
    Sums<HEAD> sums = {};
    for (int heads = KEYS ? x.group : 1; heads > 0; heads--)
        head_run<HEAD, KEYS, APART>(shared, place, sums, stage, unit.tiles, own_early && heads == 1 ? own_empty : NULL,
                                    x.scale * LOG2_E, documents);
    if constexpr (!own_early) release(place, own_empty);
    int t = unit.block * TILE + place.half * HALF;
    int64_t token = (int64_t)sequence * x.T + t, column = unit.head % sequence_heads * HEAD;
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

template <int HEAD, bool APART>
__device__ static inline void compute_units(const Problem &x, Shared *shared, int warpgroup) {
    Place place = place_get(warpgroup);
    Ring<OWN_BUFFERS<HEAD>> own = {};
    Ring<STAGES> stage = {};
    for (;; ring_next(own)) {
        int buffer = OWN_BUFFERS<HEAD> == 2 ? own.index : place.half;
        barrier_wait(&shared->own_full[buffer], own.phase);
        int index = place.signals ? shared->unit[buffer] : 0; // the thread that will release it
        index = warp_uniform(index);
        if (index < 0) return;
        Unit unit = unit_get(x, index);
        if (unit.keys)
            unit_run<HEAD, true, APART>(x, shared, place, unit, buffer, stage);
        else
            unit_run<HEAD, false, APART>(x, shared, place, unit, buffer, stage);
    }
}
