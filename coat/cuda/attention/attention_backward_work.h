// Arguments of attention's backward on Hopper, its units of work, and its shared memory. attention_backward.cu explains
// the algorithm.
//
// Tiles of 64 rows are copied in pairs: k and v, or q and do. For each unit of work, a warpgroup owns one pair. The
// owned pairs have two buffers for head width 64, but only one for head width 128. The remaining shared memory holds
// the ring of streamed pairs.
#pragma once
#include "attention_copying.h"

template <int HEAD> constexpr int STAGES = 512 / HEAD; // number of slots in the ring of streamed tile pairs
template <int HEAD> constexpr int OWN_BUFFERS = 128 / HEAD;
template <int HEAD> constexpr int SLOTS = STAGES<HEAD> + OWN_BUFFERS<HEAD> *COMPUTING;

struct Problem {
    CUtensorMap q, d_o; // TMA maps of (B, T, heads * HEAD) tensors, read in boxes of (1, HALF, PANEL)
    CUtensorMap k, v;   // TMA maps of (B, T, kv heads * HEAD) tensors, read in boxes of (1, HALF, PANEL)
    // lse / ln 2 and delta of each row, (B * heads, tiles of HALF rows, 2, HALF), ordered by statistic_at()
    const float *statistics;
    unsigned *next_unit; // units of work claimed so far, except each thread block's first unit
    bf16 *dq, *dk, *dv;
    const int32_t *positions; // (B * T) token positions for document masking; NULL: no masking
    // Unit.tiles of each unit of work, (B, 2, blocks), units of queries before units of keys; NULL: no document masking
    const int *tiles;
    const float *rope_table; // RoPE table (T, HEAD) for q and k; NULL: no RoPE
    // amax of dq, dk and dv over each 16 tokens, stored at the first of these tokens, (B * T) FP32 bits; NULL: not
    // computed
    uint32_t *amax;
    int64_t dq_stride, dk_stride, dv_stride;
    int heads, kv_heads;                   // numbers of query heads and of key/value heads, summed over all sequences
    int sequence_heads, sequence_kv_heads; // numbers of query heads and of key/value heads of one sequence
    int group;                             // number of query heads per key/value head
    // T: number of tokens of a sequence. blocks: number of units of work per query head and per key/value head.
    int T, blocks;
    int heads_together; // number of query heads whose units of work are claimed before those of the next heads
    // number of key/value heads whose units of keys are claimed before those of the next heads; used only if query
    // heads are grouped
    int kv_heads_together;
    float scale; // factor that multiplies the attention scores
};

// Returns the index of query `row` of a tile in the tile's array of lse or delta. If a unit owns keys, queries are the
// columns of its score tiles. A thread then needs the values of 4 queries of every 16. This order makes these 4 values
// adjacent, so that one load reads them.
__device__ static inline int statistic_at(int row) {
    return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

// --- division of the backward into units of work ------------------------------------------------------------------
// A unit of work: 128 rows of keys and values, or of queries, of one head. Key/value head h of a sequence is used by
// the query heads group * h to group * h + group - 1.
struct Unit {
    bool keys; // true: the unit of work owns keys and values; false: queries
    // sequence, head and block of the rows that the unit owns; head is a key/value head if `keys` is true
    int sequence, head, block;
    // number of blocks of TILE rows to stream per head, the diagonal block first; 0: there are no more units
    int tiles;
    int number; // number of units of work that this thread block computed before this one
};

__device__ static inline int unit_count(const Problem &x) {
    return (x.heads + x.kv_heads) * x.blocks;
}

// Returns the unit of work with this index if query heads are not grouped. Within a set of heads_together heads, units
// come in order of falling length. Of each length, the units of keys of all heads come before the units of queries.
// unit.head counts the heads of all sequences.
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

// Returns the unit of work with this index if query heads are grouped. Units of keys take `group` times as long as
// units of queries. All units of keys therefore come first, and the shorter units of queries fill the SMs that finish
// early.
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

// Returns the unit of work with this index. With document masking, reads unit.tiles from x.tiles.
__device__ static inline Unit unit_get(const Problem &x, int index) {
    Unit unit = x.group > 1 ? unit_of_groups(x, index) : unit_of_heads(x, index);
    const Divided head = divide(unit.head, unit.keys ? x.sequence_kv_heads : x.sequence_heads);
    unit.sequence = head.quotient;
    unit.head = head.remainder;
    if (x.tiles) unit.tiles = x.tiles[(unit.sequence * 2 + unit.keys) * x.blocks + unit.block];
    return unit;
}

// Returns the first row of a streamed tile, relative to the first row that the unit of work owns. A unit of keys
// streams from its own block to the end of the sequence; a unit of queries streams up to its own block.
__device__ static inline int tile_row(bool keys, int tile) {
    return keys ? tile * HALF : tile % 2 * HALF - tile / 2 * TILE;
}

// --- layout of the shared memory of attention's backward -------------------------------------------------------------
template <int HEAD> struct Pair {
    bf16 first[HALF * HEAD], second[HALF * HEAD]; // tiles of k and v, or of q and do
};

template <int HEAD> struct Shared {
    Pair<HEAD> pair[SLOTS<HEAD>];
    bf16 stored[COMPUTING * 4][STORED];      // staging area in which each warp converts results for sum_store()
    float statistics[SLOTS<HEAD>][2 * HALF]; // for each tile of q and do: lse / ln 2 of its rows, then delta
    uint64_t full[SLOTS<HEAD>], empty[SLOTS<HEAD>];
    Unit unit[SLOTS<HEAD>]; // unit of work of the owned tiles in each slot
    Handover<Unit> next;    // passes units of work to the streaming thread
};
static_assert(sizeof(Pair<64>) % 1024 == 0, "tiles must begin at periods of the swizzle");

// Returns the wgmma descriptor of the first tile (k or q) or second tile (v or do) of a slot. next_panel is the
// distance in bytes between panels.
template <int HEAD>
__device__ static inline uint64_t pair_operand(Shared<HEAD> *shared, int slot, bool second, int next_panel = 1024) {
    constexpr uint32_t pair = sizeof(Pair<HEAD>) / 16, tile = sizeof shared->pair->first / 16;
    return wgmma_operand_at(wgmma_operand(shared->pair, next_panel), (uint32_t)slot * pair + second * tile);
}

// own_slot() returns the slot of the tiles that a warpgroup owns in its next unit of work. own_phase() returns the
// parity of the slot's barriers in that unit. units: number of units that the block processed before.
template <int HEAD> __device__ static inline int own_slot(int units, int warpgroup) {
    return STAGES<HEAD> + units % OWN_BUFFERS<HEAD> * COMPUTING + warpgroup;
}

template <int HEAD> __device__ static inline uint32_t own_phase(int units) {
    return (uint32_t)(units / OWN_BUFFERS<HEAD> % 2);
}
