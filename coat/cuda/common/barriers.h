// Shared-memory barriers (mbarrier, Hopper and later). A phase of a barrier completes when the expected number of
// arrivals has occurred and asynchronous copies (TMA) or stores have written the expected number of bytes.
#pragma once
#include <stdint.h>

__device__ static inline uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// Initializes a barrier, each of whose phases expects the given number of arrivals.
__device__ static inline void barrier_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Orders this thread's earlier accesses of shared memory before later TMA copies. This includes copies that another
// thread starts after this thread has signalled that thread.
__device__ static inline void copies_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Makes mbarriers that this thread initialized visible to TMA. Other threads may use these mbarriers after the next
// __syncthreads() (or cluster barrier).
__device__ static inline void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    copies_fence();
}

__device__ static inline void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives at the barrier if `signals` is true. Uses a predicated instruction, because the compiler would surround a
// branch with warp votes.
__device__ static inline void barrier_arrive_if(uint64_t *barrier, bool signals) {
    asm volatile("{ .reg .pred signals; setp.ne.u32 signals, %1, 0;"
                 "@signals mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(shared_address(barrier)),
                 "r"((uint32_t)signals)
                 : "memory");
}

// Arrives at the barrier and adds `bytes` to the bytes that must be written before the phase completes.
__device__ static inline void barrier_arrive_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Waits until the barrier's phase of the given parity completes. Phases have parities 0, 1, 0 and so on. On a new
// barrier, a wait for parity 1 returns at once.
__device__ static inline void barrier_wait(uint64_t *barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;"
                     "selp.u32 %0, 1, 0, done; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!done);
}
