// Rows of logits are read once where they fit shared memory, and several blocks are needed on a multiprocessor, so that
// one computes while another's row is on its way. So on devices that can, the blocks of a cluster share a longer row:
// each has a part, and all learn its softmax from what their warps send to each.
#pragma once
#include "cuda/common/barriers.h"
#include "cuda/common/cuda_kernels.h"

#include <float.h>

namespace {

// A maximum with the sum of the exponentials below it. A thread that has no value has NOTHING, the lowest finite one,
// so that no difference of two infinities arises, and a sum of 0. A maximum passes NaN over, a sum does not.
struct alignas(8) SoftmaxSum {
    float max, sum;
};

constexpr float NOTHING = -FLT_MAX;

__device__ inline SoftmaxSum softmax_join(SoftmaxSum a, SoftmaxSum b) {
    float max = fmaxf(a.max, b.max);
    // not fused: joining b with a gives the same bits as joining a with b, so all threads agree
    return {max, __fadd_rn(__fmul_rn(a.sum, fast_exp(a.max - max)), __fmul_rn(b.sum, fast_exp(b.max - max)))};
}

__device__ inline SoftmaxSum softmax_exchange(SoftmaxSum mine, int mask) {
    return softmax_join(mine, {__shfl_xor_sync(ALL_LANES, mine.max, mask), __shfl_xor_sync(ALL_LANES, mine.sum, mask)});
}

// What the blocks of a row know of each other, in shared memory: places for all their warps' sums, of this row and, as
// some are ahead, of the next, and for each of the two a barrier that counts the bytes which have come.
struct RowParts {
    uint64_t *barriers;
    SoftmaxSum *places;
    int part, parts, warps; // parts and warps are powers of two

    __host__ __device__ static size_t bytes(int parts, int warps) {
        return 2 * sizeof(uint64_t) + 2 * (size_t)(parts * warps) * sizeof(SoftmaxSum);
    }

    // All threads, before the first row.
    __device__ void open() const {
#if __CUDA_ARCH__ >= 900
        if (parts == 1) return;
        if (threadIdx.x == 0) {
            barrier_init(barriers, 1);
            barrier_init(barriers + 1, 1);
            barrier_init_fence();
        }
        asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory"); // all are there
#endif
    }

    // Joins what all threads of these blocks have of their row-th row, counted from 0: the same bits in each. A block
    // that sends of a row has read those of the one before, so two sets of places are enough.
    __device__ SoftmaxSum join(SoftmaxSum mine, int row) const {
        const int lane = (int)threadIdx.x % WARP, count = parts * warps, set = row & 1;
        SoftmaxSum *const here = places + set * count, *const to = here + part * warps + threadIdx.x / WARP;
#pragma unroll
        for (int mask = WARP / 2; mask > 0; mask /= 2) mine = softmax_exchange(mine, mask);
        if (parts == 1) {
            if (lane == 0) *to = mine;
            __syncthreads();
        } else {
            if (lane < parts) send(to, barriers + set, lane, mine);
            receive(barriers + set, (uint32_t)count * sizeof mine, (uint32_t)(row >> 1) & 1);
        }
        mine = here[lane & (count - 1)];
        if (count > WARP) mine = softmax_join(mine, here[WARP + lane]);
        for (int mask = min(count, WARP) / 2; mask > 0; mask /= 2) mine = softmax_exchange(mine, mask);
        return mine;
    }

  private:
    // To the place in block `other` that has this address here; its barrier counts the bytes.
    __device__ static void send(SoftmaxSum *to, uint64_t *barrier, int other, SoftmaxSum x) {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{ .reg .b32 place, barrier; mapa.shared::cluster.u32 place, %0, %4;"
            "mapa.shared::cluster.u32 barrier, %1, %4;"
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [place], {%2, %3}, [barrier]; }" ::"r"(
                shared_address(to)),
            "r"(shared_address(barrier)), "f"(x.max), "f"(x.sum), "r"(other)
            : "memory");
#endif
    }

    __device__ static void receive(uint64_t *barrier, uint32_t bytes, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) barrier_arrive_expect(barrier, bytes);
        barrier_wait(barrier, parity);
#endif
    }
};

} // namespace
