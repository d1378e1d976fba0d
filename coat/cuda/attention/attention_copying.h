// Two threads of a block copy, of two warps, so that neither waits for the other: one claims units of
// work and has their own rows copied, the other has copied what streams by. A single one issues copies
// too slowly for the tensor cores.
#pragma once
#include "attention_fragments.h"

constexpr int COPYING_THREAD = COMPUTING * 128, STREAMING_THREAD = COPYING_THREAD + 32;

// A share of two numbers of which neither is negative, and what is left: half of the instructions of signed ones.
struct Divided {
    int share, rest;
};

__device__ static inline Divided divide(int x, int by) {
    const unsigned share = (unsigned)x / (unsigned)by;
    return {(int)share, (int)((unsigned)x - share * (unsigned)by)};
}

constexpr int ASKING = 1; // tiles of TILE rows that are left of a unit when the next one is asked for

// How the first thread hands on a unit to the second.
template <typename Unit> struct Handover {
    Unit unit;
    uint64_t full, empty;
};

template <typename Unit> __device__ static inline void handover_init(Handover<Unit> &x) {
    barrier_init(&x.full, 1);
    barrier_init(&x.empty, 1);
}

// Claims a unit, the next that no block has, or a number beyond the last; units: how many the block had before. Not
// before the second thread asks for it: at the end what is claimed early is missing to others.
template <typename Unit> __device__ static inline int unit_claim(Handover<Unit> &x, int units, unsigned *counter) {
    barrier_wait(&x.empty, (uint32_t)(units % 2) ^ 1);
    return units == 0 ? (int)blockIdx.x : (int)(gridDim.x + atomicAdd(counter, 1u));
}

template <typename Unit> __device__ static inline void hand_on(Handover<Unit> &x, const Unit &unit) {
    x.unit = unit;
    barrier_arrive(&x.full);
}

template <typename Unit> __device__ static inline Unit take_over(Handover<Unit> &x, int units) {
    barrier_wait(&x.full, (uint32_t)(units % 2));
    return x.unit;
}

// Once per unit, near its end: the next may be claimed.
template <typename Unit> __device__ static inline void ask_next(Handover<Unit> &x) {
    barrier_arrive(&x.empty);
}
