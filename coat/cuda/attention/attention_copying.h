// Two threads of a block copy, of two warps: one finds out the units of work and has their own rows copied, the other has
// copied what streams by. Of a single thread, which issues a copy in about a hundred instructions that wait for each other,
// and in as many for each division that says what a unit is, the tensor cores would have to wait.
#pragma once
#include "attention_fragments.h"

// Units that the first thread hands on to the second.
constexpr int HANDED = 2; // how many it may be ahead
template <typename Unit> struct Handover {
    Unit unit[HANDED];
    uint64_t full[HANDED], empty[HANDED];
};

template <typename Unit> __device__ static inline void handover_init(Handover<Unit> &x) {
    for (int i = 0; i < HANDED; i++) {
        barrier_init(&x.full[i], 1);
        barrier_init(&x.empty[i], 1);
    }
}

// number: how many were handed on before.
template <typename Unit>
__device__ static inline void hand_on(Handover<Unit> &x, int number, const Unit &unit) {
    const int i = number % HANDED;
    barrier_wait(&x.empty[i], (uint32_t)(number / HANDED % 2) ^ 1);
    x.unit[i] = unit;
    barrier_arrive(&x.full[i]);
}

template <typename Unit> __device__ static inline Unit take_over(Handover<Unit> &x, int number) {
    const int i = number % HANDED;
    barrier_wait(&x.full[i], (uint32_t)(number / HANDED % 2));
    const Unit unit = x.unit[i];
    barrier_arrive(&x.empty[i]);
    return unit;
}

// The next unit that no block has taken, or a number beyond the last. Whoever asks a unit ahead does not wait for it: the
// compiler's own atomics would hand the result from lane to lane, at once.
__device__ static inline int unit_next(unsigned *counter) {
    int unit;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(unit) : "l"(__cvta_generic_to_global(counter)));
    return unit;
}
