// Arguments of attention's backward on Hopper, its units of work, and the shared memory of its copying threads and
// computing warpgroups. attention_backward.cu explains the algorithm.
//
// Tiles come in pairs of 64 rows: of k and v, or of q and do. A warpgroup owns one pair per unit, in a double buffer
// with heads of 64 or a single buffer with heads of 128. The ring for streamed pairs has as many slots as then fit in
// shared memory.
#pragma once
#include "attention_copying.h"

template <int HEAD> constexpr int STAGES = 512 / HEAD; // slots of the ring for streamed pairs
template <int HEAD> constexpr int OWN_BUFFERS = 128 / HEAD;
template <int HEAD> constexpr int SLOTS = STAGES<HEAD> + OWN_BUFFERS<HEAD> *COMPUTING;

struct Problem {
    CUtensorMap q, d_o;      // (B, T, heads * HEAD), read in boxes of (1, HALF, PANEL)
    CUtensorMap k, v;        // (B, T, kv heads * HEAD), read in boxes of (1, HALF, PANEL)
    const float *statistics; // (B * heads, T in HALF, 2, HALF): lse / ln 2, then delta, ordered by statistic_at()
    unsigned *next_unit;
    bf16 *dq, *dk, *dv;
    const int32_t *positions; // (B * T) token positions for document masking; NULL: no masking
    const int *tiles;         // (B, 2, blocks) lengths of units of queries, then of keys, with document masking
    const float *rope_table;  // RoPE table (T, HEAD) of q and k; NULL: no RoPE
    uint32_t *amax; // (B * T) amaxes over dq, dk and dv; the amax of 16 rows is stored at the first; may be NULL
    int64_t dq_stride, dk_stride, dv_stride;
    int heads, kv_heads;                   // query heads and key/value heads of all sequences
    int sequence_heads, sequence_kv_heads; // query heads and key/value heads of one sequence
    int group;                             // query heads per key/value head
    int T, blocks;         // blocks: units of queries per head, which is also the number of units of keys
    int heads_together;    // number of heads whose units are claimed before those of other heads
    int kv_heads_together; // the same number of key/value heads, for units of keys with grouped heads
    float scale;           // applied to the scores
};

// Returns the position of a row's value within its tile's statistics: the four values of 16 columns that a thread's
// fragment needs are adjacent, so that one load reads them.
__device__ static inline int statistic_at(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

// --- units of work ------------------------------------------------------------------------------------------------
// A unit of work. Key/value head h of a sequence is read by its query heads group * h to group * h + group - 1.
struct Unit {
    bool keys;                 // true: the unit owns keys and values; false: it owns queries
    int sequence, head, block; // location of own rows; head is a key/value head if keys
    int tiles;                 // blocks of TILE rows streamed per head, the diagonal block first; 0: no more units
    int number;                // number of units that this thread block had before
};

__device__ static inline int unit_count(const Problem &x) {
    return (x.heads + x.kv_heads) * x.blocks;
}

// Returns unit `index` without grouped heads: units of keys and of queries alternate, longest first within
// heads_together heads. Heads are numbered over all sequences.
__device__ static inline Unit unit_of_heads(const Problem &x, int index) {
    const Divided group = divide(index, 2 * x.heads_together * x.blocks);
    const int first = group.quotient * x.heads_together, heads = min(x.heads_together, x.heads - first);
    const Divided rank = divide(group.remainder, 2 * heads);
    Unit unit;
    unit.keys = rank.remainder < heads;
    unit.head = first + rank.remainder - (unit.keys ? 0 : heads);
    unit.block = unit.keys ? rank.quotient : x.blocks - 1 - rank.quotient;
    unit.tiles = x.blocks - rank.quotient;
    return unit;
}

// Returns unit `index` with grouped heads. A unit of keys is then `group` times as long; all of them come before the
// units of queries, which fill the remaining time at the end.
__device__ static inline Unit unit_of_groups(const Problem &x, int index) {
    Unit unit;
    unit.keys = index < x.kv_heads * x.blocks;
    if (!unit.keys) index -= x.kv_heads * x.blocks;
    const int most = unit.keys ? x.kv_heads_together : x.heads_together;
    const Divided group = divide(index, most * x.blocks);
    const int first = group.quotient * most, heads = min(most, (unit.keys ? x.kv_heads : x.heads) - first);
    const Divided rank = divide(group.remainder, heads);
    unit.head = first + rank.remainder;
    unit.block = unit.keys ? rank.quotient : x.blocks - 1 - rank.quotient;
    unit.tiles = x.blocks - rank.quotient;
    return unit;
}

// Returns unit number `index`, with its number of tiles under document masking.
__device__ static inline Unit unit_get(const Problem &x, int index) {
    Unit unit = x.group > 1 ? unit_of_groups(x, index) : unit_of_heads(x, index);
    const Divided head = divide(unit.head, unit.keys ? x.sequence_kv_heads : x.sequence_heads);
    unit.sequence = head.quotient;
    unit.head = head.remainder;
    if (x.tiles) unit.tiles = x.tiles[(unit.sequence * 2 + unit.keys) * x.blocks + unit.block];
    return unit;
}

// Returns the first row of a streamed tile, relative to the unit's first row: with keys, tiles follow the unit's block;
// with queries, blocks precede it.
__device__ static inline int tile_row(bool keys, int tile) {
    return keys ? tile * HALF : tile % 2 * HALF - tile / 2 * TILE;
}

// --- shared memory ------------------------------------------------------------------------------------------------
template <int HEAD> struct Pair {
    bf16 first[HALF * HEAD], second[HALF * HEAD]; // k and v, or q and do
};

template <int HEAD> struct Shared {
    Pair<HEAD> pair[SLOTS<HEAD>];
    bf16 stored[COMPUTING * 4][STORED];      // per warp, for sum_store()
    float statistics[SLOTS<HEAD>][2 * HALF]; // per pair of q and do: lse of its rows, then delta
    uint64_t full[SLOTS<HEAD>], empty[SLOTS<HEAD>];
    Unit unit[SLOTS<HEAD>]; // unit of each own pair
    Handover<Unit> next;    // passes a unit to the thread that streams its other operand
};
static_assert(sizeof(Pair<64>) % 1024 == 0, "tiles must begin at periods of the swizzle");

// Returns the operand for the first or second tile of a slot; next_panel is the distance between its panels in bytes.
template <int HEAD>
__device__ static inline uint64_t pair_operand(Shared<HEAD> *shared, int slot, bool second, int next_panel = 1024) {
    constexpr uint32_t pair = sizeof(Pair<HEAD>) / 16, tile = sizeof shared->pair->first / 16;
    return wgmma_operand_at(wgmma_operand(shared->pair, next_panel), (uint32_t)slot * pair + second * tile);
}

// Return the slot of a warpgroup's own pair, and the phase of its barriers, after `units` units.
template <int HEAD> __device__ static inline int own_slot(int units, int warpgroup) {
    return STAGES<HEAD> + units % OWN_BUFFERS<HEAD> * COMPUTING + warpgroup;
}

template <int HEAD> __device__ static inline uint32_t own_phase(int units) {
    return (uint32_t)(units / OWN_BUFFERS<HEAD> % 2);
}
