// What attention's backward on Hopper is given, its units of work, and the shared memory that its copying thread and
// its computing warpgroups share; attention_backward.cu says what they are for.
//
// Buffers hold the same number of bytes for both widths of a head, and so:
//
//                      HEAD 64                                HEAD 128
//   own, a buffer      128 rows of a pair, for both           64 rows of a pair, for one warpgroup
//                      warpgroups; two, used in turns         each; the next unit's come early, see copy_units
//   streamed, a slot   128 rows of a pair                     64 rows of q and do, for keys;
//                                                             128 rows of k, the next slot those of v, for queries
//
// Queries keep one sum beside their scores, so that 128 of these fit; the two sums of keys with heads of 128 take 128
// registers, which leaves room for 64 scores per row, of the 192 in all that sums, scores and weights take at most.
#pragma once
#include "attention_fragments.h"

constexpr int STAGES = 4; // slots in the ring
template <int HEAD> constexpr int OWN_BUFFERS = PAIR_ROWS<HEAD> == TILE ? 2 : 1;

struct Problem {
    CUtensorMap q, d_o;      // (B, T, heads * HEAD), read in tiles of (1, PAIR_ROWS, PANEL)
    CUtensorMap k, v;        // (B, T, kv heads * HEAD), likewise
    const float *statistics; // (B * heads, T in PAIR_ROWS, 2, PAIR_ROWS): lse in units of log 2, and delta
    unsigned *next_unit;
    bf16 *dq, *dk, *dv;
    const int32_t *positions; // (B * T), of documents that are apart; NULL: none are
    const int *tiles;         // (B, 2, blocks), with positions: the tiles of a unit of queries, of keys
    uint32_t *amax;           // (B * T) maxima of dq, dk and dv, one for 16 rows; may be NULL
    int64_t dq_stride, dk_stride, dv_stride;
    int heads, sequence_heads, T, blocks; // query heads of all sequences, of one; units in T, for either kind
    int group;                            // query heads that read one key/value head
    int heads_together;                   // whose units are handed out together
    int kv_heads_together;                // the same of units of keys, where heads are grouped
    float scale;                          // of the scores
};

// --- units of work ------------------------------------------------------------------------------------------------
// Key/value head h is read by query heads group * h to group * h + group - 1, both counted over all sequences.
struct Unit {
    bool keys;
    int head, block; // the own ones; a key/value head for keys
    int tiles;       // of each head that streams by: how many blocks, the diagonal one first
};

__device__ static inline int unit_count(const Problem &x) {
    return (x.heads + x.heads / x.group) * x.blocks;
}

// Units of keys and of queries in turns, longest first, of a few heads at a time.
__device__ static inline Unit unit_of_heads(const Problem &x, int index) {
    int together = 2 * x.heads_together * x.blocks, first = index / together * x.heads_together;
    int heads = min(x.heads_together, x.heads - first), within = index % together, rank = within / (2 * heads);
    Unit unit;
    unit.keys = within % (2 * heads) < heads;
    unit.head = first + within % heads;
    unit.block = unit.keys ? rank : x.blocks - 1 - rank;
    unit.tiles = x.blocks - rank;
    return unit;
}

// With grouped heads a unit of keys is `group` times as long. All of them come before those of queries, which fill up
// what is left at the end.
__device__ static inline Unit unit_of_groups(const Problem &x, int index) {
    const int kv_heads = x.heads / x.group, key_units = kv_heads * x.blocks;
    Unit unit;
    unit.keys = index < key_units;
    if (!unit.keys) index -= key_units;
    int most = unit.keys ? x.kv_heads_together : x.heads_together, together = most * x.blocks;
    int first = index / together * most, heads = min(most, (unit.keys ? kv_heads : x.heads) - first);
    int within = index % together, rank = within / heads;
    unit.head = first + within % heads;
    unit.block = unit.keys ? rank : x.blocks - 1 - rank;
    unit.tiles = x.blocks - rank;
    return unit;
}

__device__ static inline int unit_sequence(const Problem &x, Unit unit) {
    return unit.head / (unit.keys ? x.sequence_heads / x.group : x.sequence_heads);
}

__device__ static inline Unit unit_get(const Problem &x, int index) {
    Unit unit = x.group > 1 ? unit_of_groups(x, index) : unit_of_heads(x, index);
    if (x.tiles) unit.tiles = x.tiles[(unit_sequence(x, unit) * 2 + unit.keys) * x.blocks + unit.block];
    return unit;
}

// The next unit to be computed, or a number beyond the last.
__device__ static inline int unit_next(const Problem &x) {
    return (int)atomicAdd(x.next_unit, 1u);
}

// What streams by in a unit, a block after the other.
struct Streamed {
    int head, heads, tile; // a key/value head for queries; how many heads are left with this one
};

__device__ static inline Streamed streamed_begin(const Problem &x, Unit unit) {
    if (!unit.keys) return {unit.head / x.group, 1, 0};
    return {unit.head * x.group, x.group, 0};
}

__device__ static inline void streamed_next(Streamed &at, Unit unit) {
    if (++at.tile < unit.tiles) return;
    at.tile = 0;
    at.head++;
    at.heads--;
}

__device__ static inline int streamed_row(Streamed at, Unit unit) {
    return (unit.keys ? unit.block + at.tile : unit.block - at.tile) * TILE;
}

// --- shared memory ------------------------------------------------------------------------------------------------
struct Pair {
    bf16 first[PAIR_VALUES], second[PAIR_VALUES]; // k and v, or q and do
};

struct Shared {
    Pair own[2], streamed[STAGES];
    float own_statistics[2][2 * TILE], streamed_statistics[STAGES][2 * TILE]; // beside q and do: lse, then delta
    uint64_t own_full[2], own_empty[2], streamed_full[STAGES], streamed_empty[STAGES];
    int unit[2]; // of the own tiles; -1: no more
};
static_assert(sizeof(Pair) % 1024 == 0, "tiles begin at units of the swizzle");
constexpr size_t SHARED_BYTES = sizeof(Shared) + 1024;

// The tiles that stream by from a slot on: k or q, and v or do.
template <int HEAD, bool KEYS> __device__ static inline const bf16 *streamed_first(const Shared *shared, int slot) {
    return shared->streamed[slot].first;
}

template <int HEAD, bool KEYS> __device__ static inline const bf16 *streamed_second(const Shared *shared, int slot) {
    if constexpr (TILE_SLOTS<HEAD, KEYS> == 2) return shared->streamed[slot + 1].first;
    return shared->streamed[slot].second;
}
