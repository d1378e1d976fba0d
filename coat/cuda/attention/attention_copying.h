// Work of the two copying threads of a block, which are in different warps so that neither waits for the other. The
// owner thread claims units of work and copies the rows that the warpgroups own. The streaming thread copies the tiles
// of the other operand. A single thread would issue copies too slowly for the tensor cores.
#pragma once
#include "attention_fragments.h"

constexpr int COPYING_THREAD = COMPUTING * 128, STREAMING_THREAD = COPYING_THREAD + 32;

// Quotient and remainder of non-negative numbers, computed unsigned, which takes half the instructions.
struct Divided {
    int quotient, remainder;
};

__device__ static inline Divided divide(int x, int by) {
    const unsigned quotient = (unsigned)x / (unsigned)by;
    return {(int)quotient, (int)((unsigned)x - quotient * (unsigned)by)};
}

constexpr int REQUEST_AT = 1; // the streaming thread requests the next unit when this many tiles of TILE rows are left

// Passes a unit from the owner thread to the streaming thread.
template <typename Unit> struct Handover {
    Unit unit;
    uint64_t full, empty;
};

template <typename Unit> __device__ static inline void handover_init(Handover<Unit> &x) {
    barrier_init(&x.full, 1);
    barrier_init(&x.empty, 1);
}

// Claims the next unit that no block has claimed and returns its number; beyond the last unit it returns larger
// numbers. units: number of units this block had before. Waits for the streaming thread's request, because units
// claimed too early would be missing for other blocks at the end.
template <typename Unit> __device__ static inline int unit_claim(Handover<Unit> &x, int units, unsigned *counter) {
    barrier_wait(&x.empty, (uint32_t)(units % 2) ^ 1);
    return units == 0 ? (int)blockIdx.x : (int)(gridDim.x + atomicAdd(counter, 1u));
}

// Owner thread: passes the claimed unit.
template <typename Unit> __device__ static inline void unit_pass(Handover<Unit> &x, const Unit &unit) {
    x.unit = unit;
    barrier_arrive(&x.full);
}

// Streaming thread: waits for a unit and returns it.
template <typename Unit> __device__ static inline Unit unit_receive(Handover<Unit> &x, int units) {
    barrier_wait(&x.full, (uint32_t)(units % 2));
    return x.unit;
}

// Streaming thread, once per unit and near its end: allows the owner thread to claim the next unit.
template <typename Unit> __device__ static inline void unit_request(Handover<Unit> &x) {
    barrier_arrive(&x.empty);
}
