// Hopper's instructions that a product of our own needs beside those of attention (coat/cuda/attention/hopper.h):
// clusters, copies to all of their blocks, and products of E4M3. For bench_fused_kernel.h.
#pragma once
#include "coat/cuda/attention/hopper.h"

namespace {

constexpr int64_t STUCK_CLOCKS = 4000000000; // two seconds: a barrier that waits longer ends the kernel

__device__ inline uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all blocks of the cluster.
__device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// Where this address of shared memory is in another block of the cluster.
__device__ inline uint32_t address_in_block(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// For what the tensor cores have read, whose products are complete: of scope .cluster it would wait for all of the
// thread's stores to memory.
__device__ inline void arrive_if_in_block(uint32_t address_there, bool signals) {
    asm volatile("{ .reg .pred signals; setp.ne.u32 signals, %1, 0;"
                 "@signals mbarrier.arrive.shared::cluster.b64 _, [%0]; }" ::"r"(address_there),
                 "r"((uint32_t)signals)
                 : "memory");
}

// Whether the barrier's phase of this parity is complete, after a while at most.
__device__ inline bool barrier_test(uint64_t *barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;"
                 "selp.u32 %0, 1, 0, done; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return done;
}

__device__ inline void barrier_wait_limited(uint64_t *barrier, uint32_t parity) {
    if (barrier_test(barrier, parity)) return;
    const int64_t begin = clock64();
    while (!barrier_test(barrier, parity))
        if (clock64() - begin > STUCK_CLOCKS) __trap();
}

// To this block.
__device__ inline void copy_rows(void *to, const CUtensorMap *from, int column, int row, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(from), "r"(column), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}

// To the same place in all blocks of `mask`, whose own barriers count the bytes.
__device__ inline void copy_rows_to_all(void *to, const CUtensorMap *from, int column, int row, uint64_t *barrier,
                                        uint16_t mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                 "l"(from), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(mask)
                 : "memory");
}

// A warpgroup's turn at the tensor cores, which the other hands on: barriers 1 and 2 of the block.
__device__ inline void turn_wait(int warpgroup) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + warpgroup) : "memory");
}

__device__ inline void turn_hand_on(int warpgroup) {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - warpgroup) : "memory");
}

#define WGMMA_NAMES_128                                                                                                \
    WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                \
                   "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
                   "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
                   "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d (64, 256) += a (64, 32) b^T in E4M3, both operands in shared memory, rows being b's columns.
__device__ inline void wgmma_codes(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile("{ .reg .pred accumulate; setp.eq.b32 accumulate, 0, 0;"
                 "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 "
                 "{" WGMMA_NAMES_128 "},"
                 "%128, %129, accumulate, 1, 1; }"
                 : WGMMA_REGISTERS_16(d, 0), WGMMA_REGISTERS_16(d, 16), WGMMA_REGISTERS_16(d, 32),
                   WGMMA_REGISTERS_16(d, 48), WGMMA_REGISTERS_16(d, 64), WGMMA_REGISTERS_16(d, 80),
                   WGMMA_REGISTERS_16(d, 96), WGMMA_REGISTERS_16(d, 112)
                 : "l"(a), "l"(b));
}

} // namespace
