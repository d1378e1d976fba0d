// What attention's backward on Hopper is given, its units of work, and the shared memory that its copying threads and
// its computing warpgroups share; attention_backward.cu says what they are for.
//
// All comes in pairs of tiles, 64 rows of k and v, or of q and do. A warpgroup has an own pair per unit, in two buffers
// used in turns with heads of 64, in one with heads of 128. The ring that pairs stream through
// has as many slots as then fit.
#pragma once
#include "attention_copying.h"

template <int HEAD> constexpr int STAGES = 512 / HEAD; // slots in the ring; then come those of own pairs
template <int HEAD> constexpr int OWN_BUFFERS = 128 / HEAD;
template <int HEAD> constexpr int SLOTS = STAGES<HEAD> + OWN_BUFFERS<HEAD> *COMPUTING;

struct Problem {
    CUtensorMap q, d_o;      // (B, T, heads * HEAD), read in tiles of (1, HALF, PANEL)
    CUtensorMap k, v;        // (B, T, kv heads * HEAD), likewise
    const float *statistics; // (B * heads, T in HALF, 2, HALF): lse in units of log 2, and delta; by statistic_at
    unsigned *next_unit;
    bf16 *dq, *dk, *dv;
    const int32_t *positions; // (B * T), of documents that are apart; NULL: none are
    const int *tiles;         // (B, 2, blocks), with positions: the tiles of a unit of queries, of keys
    const float *rotations;   // (T, HEAD) of q and k, cosines and sines; NULL: none
    uint32_t *amax;           // (B * T) maxima of dq, dk and dv, one for 16 rows; may be NULL
    int64_t dq_stride, dk_stride, dv_stride;
    int heads, kv_heads;                   // of all sequences: query heads, key/value heads
    int sequence_heads, sequence_kv_heads; // of one
    int group;                             // query heads that read one key/value head
    int T, blocks;                         // units in T, for either kind
    int heads_together;                    // whose units are handed out together
    int kv_heads_together;                 // the same of units of keys, where heads are grouped
    float scale;                           // of the scores
};

// Where a row's value lies among those of its tile: a thread of a fragment has four of 16
// columns, which it reads at once.
__device__ static inline int statistic_at(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

// --- units of work ------------------------------------------------------------------------------------------------
// Key/value head h of a sequence is read by its query heads group * h to group * h + group - 1.
struct Unit {
    bool keys;
    int sequence, head, block; // the own ones; a key/value head for keys
    int tiles;                 // of each head that streams by: how many blocks, the diagonal one first; 0: no unit
    int number;                // of units that the same block of threads has before it
};

__device__ static inline int unit_count(const Problem &x) {
    return (x.heads + x.kv_heads) * x.blocks;
}

// Units of keys and of queries in turns, longest first, of a few heads at a time. Heads are those of all sequences.
__device__ static inline Unit unit_of_heads(const Problem &x, int index) {
    const Divided group = divide(index, 2 * x.heads_together * x.blocks);
    const int first = group.share * x.heads_together, heads = min(x.heads_together, x.heads - first);
    const Divided rank = divide(group.rest, 2 * heads);
    Unit unit;
    unit.keys = rank.rest < heads;
    unit.head = first + rank.rest - (unit.keys ? 0 : heads);
    unit.block = unit.keys ? rank.share : x.blocks - 1 - rank.share;
    unit.tiles = x.blocks - rank.share;
    return unit;
}

// With grouped heads a unit of keys is `group` times as long. All of them come before those of queries, which fill up
// what is left at the end.
__device__ static inline Unit unit_of_groups(const Problem &x, int index) {
    Unit unit;
    unit.keys = index < x.kv_heads * x.blocks;
    if (!unit.keys) index -= x.kv_heads * x.blocks;
    const int most = unit.keys ? x.kv_heads_together : x.heads_together;
    const Divided group = divide(index, most * x.blocks);
    const int first = group.share * most, heads = min(most, (unit.keys ? x.kv_heads : x.heads) - first);
    const Divided rank = divide(group.rest, heads);
    unit.head = first + rank.rest;
    unit.block = unit.keys ? rank.share : x.blocks - 1 - rank.share;
    unit.tiles = x.blocks - rank.share;
    return unit;
}

__device__ static inline Unit unit_get(const Problem &x, int index) {
    Unit unit = x.group > 1 ? unit_of_groups(x, index) : unit_of_heads(x, index);
    const Divided head = divide(unit.head, unit.keys ? x.sequence_kv_heads : x.sequence_heads);
    unit.sequence = head.share;
    unit.head = head.rest;
    if (x.tiles) unit.tiles = x.tiles[(unit.sequence * 2 + unit.keys) * x.blocks + unit.block];
    return unit;
}

// The first row of a tile that streams by, counted from the own block: blocks in turn, away from it.
__device__ static inline int tile_row(bool keys, int tile) {
    return keys ? tile * HALF : tile % 2 * HALF - tile / 2 * TILE;
}

// --- shared memory ------------------------------------------------------------------------------------------------
template <int HEAD> struct Pair {
    bf16 first[HALF * HEAD], second[HALF * HEAD]; // k and v, or q and do
};

template <int HEAD> struct Shared {
    Pair<HEAD> pair[SLOTS<HEAD>];
    bf16 stored[COMPUTING * 4][STORED];      // of a warp, while it stores sums
    float statistics[SLOTS<HEAD>][2 * HALF]; // beside q and do: lse, then delta
    uint64_t full[SLOTS<HEAD>], empty[SLOTS<HEAD>];
    Unit unit[SLOTS<HEAD>]; // of own pairs
    Handover<Unit> next;    // whose other side is to stream by
};
static_assert(sizeof(Pair<64>) % 1024 == 0, "tiles begin at units of the swizzle");

// The first or second tile of a slot of the ring, whose panels are so many bytes apart.
template <int HEAD>
__device__ static inline uint64_t pair_operand(Shared<HEAD> *shared, int slot, bool second, int next_panel = 1024) {
    constexpr uint32_t pair = sizeof(Pair<HEAD>) / 16, tile = sizeof shared->pair->first / 16;
    return wgmma_operand_behind(wgmma_operand(shared->pair, next_panel), (uint32_t)slot * pair + second * tile);
}

// The slot of a warpgroup's own pair, and its barriers' phase, after so many units.
template <int HEAD> __device__ static inline int own_slot(int units, int warpgroup) {
    return STAGES<HEAD> + units % OWN_BUFFERS<HEAD> * COMPUTING + warpgroup;
}

template <int HEAD> __device__ static inline uint32_t own_phase(int units) {
    return (uint32_t)(units / OWN_BUFFERS<HEAD> % 2);
}
