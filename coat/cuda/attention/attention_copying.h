// A thread block has two copying threads, because one thread would issue copies too slowly for the tensor cores. They
// are in different warps, so that a wait of one for a free buffer does not delay the other. The owner thread claims
// units of work and copies the rows that the warpgroups own. The streaming thread copies the tiles of the other
// operand.
//
// A unit of work is one block of TILE rows of one head, with all tiles of the other operand that these rows need. In
// the forward, the rows are queries (Work in attention_forward.cu). In the backward, they are queries, or keys with
// their values (Unit in attention_backward_work.h). A unit with tiles = 0 ends the loops of the threads that receive
// it.
#pragma once
#include "attention_fragments.h"

constexpr int COPYING_THREAD = COMPUTING * 128, STREAMING_THREAD = COPYING_THREAD + 32;

struct Divided {
    int quotient, remainder;
};

// Divides x >= 0 by a positive number. Unsigned division takes half the instructions of signed division.
__device__ static inline Divided divide(int x, int by) {
    const unsigned quotient = (unsigned)x / (unsigned)by;
    return {(int)quotient, (int)((unsigned)x - quotient * (unsigned)by)};
}

// The streaming thread requests the next unit when REQUEST_AT blocks of TILE rows of the current unit follow the block
// that it copies next.
constexpr int REQUEST_AT = 1;

// Mailbox in shared memory through which the owner thread passes units of work, one at a time, to the streaming thread.
template <typename Unit> struct Handover {
    Unit unit;
    uint64_t full, empty;
};

template <typename Unit> __device__ static inline void handover_init(Handover<Unit> &x) {
    barrier_init(&x.full, 1);
    barrier_init(&x.empty, 1);
}

// Claims the next unit of work and returns its index. If no unit is left, the index is at least the number of units.
// First waits for the streaming thread's request, because a thread block that claims too early keeps the unit from an
// idle block. units: number of units that this thread block claimed before.
template <typename Unit> __device__ static inline int unit_claim(Handover<Unit> &x, int units, unsigned *counter) {
    barrier_wait(&x.empty, (uint32_t)(units % 2) ^ 1);
    return units == 0 ? (int)blockIdx.x : (int)(gridDim.x + atomicAdd(counter, 1u));
}

// Passes the claimed unit of work, or a unit with tiles = 0 if none is left, to the streaming thread. Called by the
// owner thread.
template <typename Unit> __device__ static inline void unit_pass(Handover<Unit> &x, const Unit &unit) {
    x.unit = unit;
    barrier_arrive(&x.full);
}

// Waits for the unit of work that the owner thread passes and returns it; tiles = 0: there are no more units. Called by
// the streaming thread. units: number of units that this thread received before.
template <typename Unit> __device__ static inline Unit unit_receive(Handover<Unit> &x, int units) {
    barrier_wait(&x.full, (uint32_t)(units % 2));
    return x.unit;
}

// Allows the owner thread to claim the next unit of work. The streaming thread calls this once per unit, shortly before
// it has copied all of the unit's tiles (REQUEST_AT).
template <typename Unit> __device__ static inline void unit_request(Handover<Unit> &x) {
    barrier_arrive(&x.empty);
}
