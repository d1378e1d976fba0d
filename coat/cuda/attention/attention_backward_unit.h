// Computes one unit of work of attention's backward on Hopper, in one warpgroup. attention_backward.cu explains the
// units of work and is the only file that includes this header.
#pragma once
#include "attention_backward_work.h"
#include "cuda/common/rotation.h"

// --- matmuls of attention's backward, on tensor cores --------------------------------------------------------------
// AHEAD is true if there are enough registers to compute the next tile's scores in advance and to hold owned rows of k
// or q. A unit of keys with head width 128 needs 128 registers for dk and dv, so AHEAD is false for such units.
template <int HEAD, bool KEYS> constexpr bool AHEAD = HEAD == 64 || !KEYS;
// BOTH_OWN is true if a thread has enough registers to hold both operands that the warpgroup owns (k and v, or q and
// do). Otherwise v or do is read from shared memory for every tile.
template <int HEAD, bool KEYS> constexpr bool BOTH_OWN = HEAD == 64 && !KEYS;

// Registers of a warpgroup that hold the operands and results of the matmuls of attention's backward.
template <int HEAD> struct Matmuls {
    // results: `first` is dk and `second` is dv if the unit owns keys; `first` is dq if the unit owns queries
    float first[HALF * HEAD / 128], second[HALF * HEAD / 128];
    float s[HALF / 2], dp[HALF / 2];    // s: scores of own rows and a tile; dp: gradient of the probabilities
    uint32_t p[HALF / 4], ds[HALF / 4]; // p and ds packed to BF16 pairs
    uint32_t own[HEAD / 4];             // own rows of k or q; used if AHEAD
    uint32_t own_second[HEAD / 4];      // own rows of v or do; used if BOTH_OWN
};

// Starts the matmul that computes a tile's scores s. `first` is the wgmma descriptor of the tile's k or q.
template <int HEAD, bool KEYS>
__device__ static inline void scores(Matmuls<HEAD> &x, const Place &place, uint64_t first) {
    wgmma_fence();
    if constexpr (AHEAD<HEAD, KEYS>)
        multiply_rows(x.s, x.own, first);
    else
        multiply_rows<HEAD, HALF, HALF>(x.s, place.own[0], first);
}

// Starts the matmul that computes dp, the gradient of a tile's probabilities. slot: slot of the streamed tiles.
template <int HEAD, bool KEYS>
__device__ static inline void score_gradients(Matmuls<HEAD> &x, const Place &place, Shared<HEAD> *shared, int slot) {
    wgmma_fence();
    if constexpr (BOTH_OWN<HEAD, KEYS>)
        multiply_rows(x.dp, x.own_second, pair_operand(shared, slot, true));
    else
        multiply_rows<HEAD, HALF, HALF>(x.dp, place.own[1], pair_operand(shared, slot, true));
}

// Keeps the compiler from moving computations on dk, dv, dq, p and ds across this call. The asynchronous matmuls of
// sums_add() use these registers.
template <bool KEYS, int HEAD> __device__ static inline void sums_hold(Matmuls<HEAD> &x) {
    wgmma_hold(x.first);
    wgmma_hold(x.ds);
    if constexpr (KEYS) {
        wgmma_hold(x.second);
        wgmma_hold(x.p);
    }
}

// Starts the matmuls that add a tile's terms to the results (dk and dv, or dq).
template <bool KEYS, int HEAD>
__device__ static inline void sums_add(Matmuls<HEAD> &x, Shared<HEAD> *shared, int slot) {
    const uint64_t first = pair_operand(shared, slot, false, PANEL_BYTES<HALF>);
    const uint64_t second = pair_operand(shared, slot, true, PANEL_BYTES<HALF>);
    sums_hold<KEYS>(x);
    wgmma_fence();
    if constexpr (KEYS) {
#pragma unroll
        for (int k = 0; k < HALF / 16; k++) wgmma_columns(x.second, x.p + 4 * k, second + k * WGMMA_NEXT_ROWS);
    }
#pragma unroll
    for (int k = 0; k < HALF / 16; k++) wgmma_columns(x.first, x.ds + 4 * k, first + k * WGMMA_NEXT_ROWS);
    wgmma_commit();
}

// --- elementwise steps between the matmuls of attention's backward -------------------------------------------------
// lse or delta of the four streamed queries to which eight consecutive values of a thread's score fragment belong.
struct Columns {
    float value[4];
};

template <bool KEYS> __device__ static inline Columns columns_get(const float *statistics, const Place &place, int i) {
    if constexpr (!KEYS) return {};
    const float4 x = *(const float4 *)(statistics + i / 8 * 16 + place.pair * 2);
    return {x.x, x.y, x.z, x.w};
}

// Replaces the scores s with the probabilities p = 2^(s * scale - lse). scale and lse are already divided by ln 2.
template <bool KEYS, int COUNT>
__device__ static inline void probabilities(float (&s)[COUNT], const Place &place, const float *lse, float scale) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 8) {
        const Columns columns = columns_get<KEYS>(lse, place, i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float row_lse = KEYS ? columns.value[j / 4 * 2 + j % 2] : place.lse[j / 2 % 2];
            s[i + j] = fast_exp2(fmaf(s[i + j], scale, -row_lse));
        }
    }
    wgmma_hold(s);
}

// Computes ds = p (dp - delta) of a tile, and packs p and ds as BF16 operands.
template <bool KEYS, int HEAD, int COUNT>
__device__ static inline void weights(Matmuls<HEAD> &x, const float (&p)[COUNT], const Place &place,
                                      const float *delta) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 8) {
        const Columns columns = columns_get<KEYS>(delta, place, i);
        float ds[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float row_delta = KEYS ? columns.value[j / 4 * 2 + j % 2] : place.delta[j / 2 % 2];
            ds[j] = p[i + j] * (x.dp[i + j] - row_delta);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x.ds[i / 2 + j] = bf16_pair(ds[2 * j], ds[2 * j + 1]);
            if constexpr (KEYS) x.p[i / 2 + j] = bf16_pair(p[i + 2 * j], p[i + 2 * j + 1]);
        }
    }
}

// Returns 0, because probabilities are not negative and the sign bit of the hardware's NaN is 0. The compiler does not
// know this. If this 0 is added to the parity of a barrier wait, the compiler cannot move the wait before the
// exponentials that compute p. The exponentials then overlap with matmuls that are already running.
template <int COUNT> __device__ static inline uint32_t sign_bits(const float (&p)[COUNT]) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) bits |= __float_as_uint(p[i]);
    return bits >> 31;
}

// --- schedule and execution of a unit of work of attention's backward ------------------------------------------------
// Processes tile i of a unit of work. sums(i) are the matmuls that add tile i's terms to dk and dv, or to dq. With
// AHEAD, a warpgroup follows this schedule. The two entries of a column run concurrently:
//
//   tensor cores        dp(i), sums(i - 1)   s(i + 1)   dp(i + 1), sums(i)   s(i + 2)
//   warpgroup           p(i)                 ds(i)      p(i + 1)             ds(i + 1)
//
// p(i) needs s(i), ds(i) needs p(i) and dp(i), and sums(i) needs p(i) and ds(i), all from earlier columns. s(i + 1)
// overwrites s(i), so p(i) needs registers of its own. Without AHEAD, there are no registers for that, and s(i + 1) has
// to wait until ds(i) is computed:
//
//   tensor cores        sums(i - 1), s(i)    dp(i)        sums(i), s(i + 1)    dp(i + 1)
//   warpgroup                                p(i)  ds(i)                       p(i + 1)  ds(i + 1)
//
// previous: slot of tile i - 1, which is released after sums(i - 1); -1 if tile i is the first tile of its head. next:
// slot of the next tile, used only if NEXT is true.
template <int HEAD, bool KEYS, bool NEXT, bool MASKED>
__device__ static inline void unit_tile(Shared<HEAD> *shared, const Place &place, Matmuls<HEAD> &x, int tile,
                                        int previous, Ring<STAGES<HEAD>> stage, Ring<STAGES<HEAD>> next, float scale,
                                        Documents documents) {
    constexpr bool ahead = AHEAD<HEAD, KEYS>;
    const float *lse = shared->statistics[stage.index], *delta = lse + HALF;
    float other[HALF / 2], (&p)[HALF / 2] = ahead ? other : x.s;
    if constexpr (ahead) {
        score_gradients<HEAD, KEYS>(x, place, shared, stage.index);
        if (previous >= 0) {
            sums_add<KEYS>(x, shared, previous);
            wgmma_wait<2>();
        } else {
            wgmma_wait<1>(); // tells the compiler that the matmul into s has finished
        }
        wgmma_hold(x.s);
#pragma unroll
        for (int i = 0; i < HALF / 2; i++) p[i] = x.s[i];
    } else {
        barrier_wait(&shared->full[stage.index], stage.phase);
        if (previous >= 0) sums_add<KEYS>(x, shared, previous);
        scores<HEAD, KEYS>(x, place, pair_operand(shared, stage.index, false));
        wgmma_wait<1>();
        sums_hold<KEYS>(x);
        if (previous >= 0) release(place, &shared->empty[previous]);
        score_gradients<HEAD, KEYS>(x, place, shared, stage.index);
        wgmma_wait<1>();
        wgmma_hold(x.s);
    }
    if (tile == place.half) mask<KEYS, HALF>(p, place_get(place.half), place.half * HALF);
    if constexpr (MASKED) {
        documents.streamed = documents.own + tile_row(KEYS, tile);
        mask_documents<KEYS, HALF>(p, place_get(place.half), documents);
    }
    // Computes the next operand's descriptor before barrier_wait(), in which the threads of a warp may diverge.
    const uint64_t next_first = pair_operand(shared, next.index, false);
    probabilities<KEYS>(p, place, lse, scale);
    if constexpr (ahead) {
        barrier_wait(&shared->full[next.index], next.phase + sign_bits(p));
        if constexpr (NEXT) scores<HEAD, KEYS>(x, place, next_first);
        wgmma_wait<NEXT>();
        sums_hold<KEYS>(x);
        if (previous >= 0) release(place, &shared->empty[previous]);
    } else {
        // This barrier is already complete. Waiting for it again keeps the compiler from moving the exponentials
        // further down.
        barrier_wait(&shared->full[stage.index], stage.phase);
        wgmma_wait<0>();
    }
    wgmma_hold(x.dp);
    weights<KEYS>(x, p, place, delta);
}

// Skips a streamed tile whose scores the causal mask hides from this warpgroup: releases the tile's buffer and advances
// `stage`.
template <int HEAD>
__device__ static inline void tile_skip(Shared<HEAD> *shared, const Place &place, Ring<STAGES<HEAD>> &stage) {
    barrier_wait(&shared->full[stage.index], stage.phase);
    release(place, &shared->empty[stage.index]);
    ring_next(stage);
}

// Raises the amax stored for `token`, the warp's first row, to the largest magnitude that the warp stored. largest:
// this thread's two largest magnitudes, as sum_store() returns them. Units of keys and of queries update the same amax;
// the atomic maximum does not depend on their order.
__device__ static inline void amax_store(const Problem &x, int64_t token, uint32_t largest) {
    largest = __reduce_max_sync(0xffffffffu, max(largest << 16, largest & 0xffff0000u));
    if (threadIdx.x % 32 == 0) atomicMax(x.amax + token, largest);
}

// Processes all tiles of one streamed head: `blocks` blocks of TILE rows, two tiles each. The diagonal block comes
// first. In it, the first 64 queries see only the first 64 keys, and only the last 64 queries see the last 64 keys.
// Returns the slot of the last tile, whose terms the caller must add by head_finish().
template <int HEAD, bool KEYS, bool MASKED>
__device__ static inline int head_run(Shared<HEAD> *shared, const Place &place, Matmuls<HEAD> &x,
                                      Ring<STAGES<HEAD>> &stage, int blocks, float scale, Documents documents) {
    constexpr bool ahead = AHEAD<HEAD, KEYS>;
    const bool first_only = !KEYS && place.half == 0, second_only = KEYS && place.half == 1;
    const int last = first_only && blocks == 1 ? 0 : 2 * blocks - 1;
    int tile = second_only, previous = -1;
    if (second_only) tile_skip(shared, place, stage);
    if constexpr (ahead) {
        barrier_wait(&shared->full[stage.index], stage.phase);
        scores<HEAD, KEYS>(x, place, pair_operand(shared, stage.index, false));
        wgmma_wait<0>();
        wgmma_hold(x.s);
    }
    while (tile < last + !ahead) { // with AHEAD, the last tile is processed after the loop, because no tile follows it
        const bool skips = first_only && tile == 0;
        Ring<STAGES<HEAD>> next = stage;
        ring_next(next);
        if (skips) tile_skip(shared, place, next);
        unit_tile<HEAD, KEYS, true, MASKED>(shared, place, x, tile, previous, stage, next, scale, documents);
        previous = stage.index;
        stage = next;
        tile += 1 + skips;
    }
    if constexpr (ahead) {
        unit_tile<HEAD, KEYS, false, MASKED>(shared, place, x, tile, previous, stage, stage, scale, documents);
        previous = stage.index;
        ring_next(stage);
    }
    if (first_only && blocks == 1) tile_skip(shared, place, stage);
    return previous;
}

// Adds the last tile's terms to dk and dv, or to dq, and waits for these matmuls.
template <int HEAD, bool KEYS>
__device__ static inline void head_finish(Shared<HEAD> *shared, const Place &place, Matmuls<HEAD> &x, int slot) {
    sums_add<KEYS>(x, shared, slot);
    wgmma_wait<0>();
    sums_hold<KEYS>(x);
    release(place, &shared->empty[slot]);
}

// Multiplies a result (dq or dk) by x.scale, rounds the values to BF16 and applies RoPE's backward.
template <int HEAD>
__device__ static inline void sum_rotate_back(float (&sum)[HEAD / 2], const Problem &x, const Place &place,
                                              const Unit &unit) {
    constexpr int half = HEAD / 4; // RoPE pairs this thread's values i and i + half, which are half a head apart
    wgmma_hold(sum);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int t = min(unit.block * TILE + place.row + 8 * row, x.T - 1);
        const int position = x.positions ? x.positions[(int64_t)unit.sequence * x.T + t] : t;
        const float *cosines = x.rope_table + (int64_t)position * HEAD + place.pair, *sines = cosines + HEAD / 2;
#pragma unroll
        for (int i = 0; i < HEAD / 16; i++) {
            const float2 cosine = *(const float2 *)(cosines + 8 * i), sine = *(const float2 *)(sines + 8 * i);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float &low = sum[4 * i + 2 * row + j], &high = sum[4 * i + 2 * row + j + half];
                low = __bfloat162float(__float2bfloat16_rn(low * x.scale));
                high = __bfloat162float(__float2bfloat16_rn(high * x.scale));
                rotate_pair(low, high, j ? cosine.y : cosine.x, -(j ? sine.y : sine.x));
            }
        }
    }
}

// Stores the gradients of a finished unit of work: dk and dv if KEYS, otherwise dq.
template <int HEAD, bool KEYS>
__device__ static inline void unit_store(const Problem &x, Shared<HEAD> *shared, int warpgroup, Matmuls<HEAD> &sums,
                                         Unit unit) {
    const int t = unit.block * TILE + warpgroup * HALF, rows = x.T - t, warp = (int)(thread_get() / 32);
    const int64_t token = (int64_t)unit.sequence * x.T + t, column = unit.head * HEAD;
    bf16 *const stored = shared->stored[warp];
    uint32_t largest = 0;
    if (x.rope_table) sum_rotate_back<HEAD>(sums.first, x, place_get(warpgroup), unit);
    const float scale = x.rope_table ? 1.0f : x.scale;
    if constexpr (KEYS) {
        largest = sum_store(sums.first, scale, x.dk + token * x.dk_stride + column, x.dk_stride, rows, stored, 0);
        largest = sum_store(sums.second, 1.0f, x.dv + token * x.dv_stride + column, x.dv_stride, rows, stored, largest);
    } else {
        largest = sum_store(sums.first, scale, x.dq + token * x.dq_stride + column, x.dq_stride, rows, stored, 0);
    }
    const int warp_row = warp % 4 * WARP_ROWS;
    if (x.amax && warp_row < rows) amax_store(x, token + warp_row, largest);
}

// Computes the unit of work whose owned rows are in slot `own`, and which streams `tiles` blocks of TILE rows per head.
// Returns the number of units that this thread block has computed so far, this unit included.
template <int HEAD, bool KEYS, bool MASKED>
__device__ static inline int unit_run(const Problem &x, Shared<HEAD> *shared, Place place, int tiles, int own,
                                      Ring<STAGES<HEAD>> &stage) {
    // Initializes all matmul registers here, because the compiler would otherwise reserve the accumulators' registers
    // from the start of the kernel.
    Matmuls<HEAD> matmuls = {};
    Documents documents = {};
    if constexpr (AHEAD<HEAD, KEYS>)
        own_load(matmuls.own, shared->pair[own].first);
    else
        place.own[0] = wgmma_operand(shared->pair[own].first);
    if constexpr (BOTH_OWN<HEAD, KEYS>)
        own_load(matmuls.own_second, shared->pair[own].second);
    else
        place.own[1] = wgmma_operand(shared->pair[own].second);
    if constexpr (!KEYS)
        for (int i = 0; i < 2; i++) {
            const float *lse = shared->statistics[own] + statistic_at(place.row % HALF + i * 8);
            place.lse[i] = lse[0];
            place.delta[i] = lse[HALF];
        }
    if constexpr (MASKED) {
        const Unit &unit = shared->unit[own];
        const int32_t *positions = x.positions + (int64_t)unit.sequence * x.T;
        if constexpr (KEYS)
            documents = {positions, x.T, unit.block * TILE, unit.block * TILE};
        else
            documents = documents_of(positions, x.T, place, unit.block * TILE);
    }
    int last;
    for (int heads = KEYS ? x.group : 1;; heads--) {
        last = head_run<HEAD, KEYS, MASKED>(shared, place, matmuls, stage, tiles, x.scale * LOG2_E, documents);
        if (heads == 1) break;
        head_finish<HEAD, KEYS>(shared, place, matmuls, last);
    }
    // Reads the unit of work from shared memory only now, because keeping it during the loop would take registers.
    const Unit unit = shared->unit[own];
    release(place, &shared->empty[own]);
    head_finish<HEAD, KEYS>(shared, place, matmuls, last);
    unit_store<HEAD, KEYS>(x, shared, place.half, matmuls, unit);
    return unit.number + 1;
}

// Computes units of work until a unit with tiles = 0 arrives.
template <int HEAD, bool MASKED>
__device__ static inline void compute_units(const Problem &x, Shared<HEAD> *shared, int warpgroup) {
    Ring<STAGES<HEAD>> stage = {};
    for (int units = 0;;) {
        const int own = own_slot<HEAD>(units, warpgroup);
        barrier_wait(&shared->full[own], own_phase<HEAD>(units));
        const int tiles = warp_uniform(shared->unit[own].tiles);
        if (tiles == 0) return;
        const Place place = place_get(warpgroup);
        if (warp_uniform((int)shared->unit[own].keys))
            units = unit_run<HEAD, true, MASKED>(x, shared, place, tiles, own, stage);
        else
            units = unit_run<HEAD, false, MASKED>(x, shared, place, tiles, own, stage);
    }
}
