// Combines the softmax statistics of a row of logits over a block, or over several blocks that share the row. A row is
// read once if the row fits in shared memory. Several blocks must fit in an SM, so that one computes while another
// block's row is being copied. Therefore, on Hopper and later, the blocks of a cluster share a long row: each block
// processes a part, and each warp sends its statistics to all blocks.
#pragma once
#include "cuda/common/barriers.h"
#include "cuda/common/cuda_kernels.h"

#include <float.h>

namespace {

// Softmax statistics of some logits: their maximum, and the sum of exp(logit - max). A thread without logits has sum 0
// and max NOTHING, the lowest finite value, so that no inf - inf occurs. A NaN logit does not change max but makes sum
// NaN.
struct alignas(8) SoftmaxSum {
    float max, sum;
};

constexpr float NOTHING = -FLT_MAX;

__device__ inline SoftmaxSum softmax_join(SoftmaxSum a, SoftmaxSum b) {
    float max = fmaxf(a.max, b.max);
    // No FMA is used, so that joining a with b or b with a gives identical bits and all threads agree.
    return {max, __fadd_rn(__fmul_rn(a.sum, fast_exp(a.max - max)), __fmul_rn(b.sum, fast_exp(b.max - max)))};
}

__device__ inline SoftmaxSum softmax_exchange(SoftmaxSum mine, int mask) {
    return softmax_join(mine, {__shfl_xor_sync(ALL_LANES, mine.max, mask), __shfl_xor_sync(ALL_LANES, mine.sum, mask)});
}

// Exchange of softmax statistics between the blocks that share a row, in shared memory. Stores the statistics of all
// warps of these blocks for two rows, the current and the next, because some blocks run ahead. Each of the two rows has
// a barrier that counts received bytes.
struct RowParts {
    uint64_t *barriers; // (2) one barrier for each of the two rows
    SoftmaxSum *places; // (2, parts * warps) statistics of each warp
    // number of this block's part, parts per row, and warps per block; parts and warps are powers of two
    int part, parts, warps;

    __host__ __device__ static size_t bytes(int parts, int warps) {
        return 2 * sizeof(uint64_t) + 2 * (size_t)(parts * warps) * sizeof(SoftmaxSum);
    }

    // Initializes the barriers that the blocks of a row use to exchange their sums, and waits until all these blocks
    // have started. All threads of a block must call this function before the first row. Does nothing if parts is 1.
    __device__ void open() const {
#if __CUDA_ARCH__ >= 900
        if (parts == 1) return;
        if (threadIdx.x == 0) {
            barrier_init(barriers, 1);
            barrier_init(barriers + 1, 1);
            barrier_init_fence();
        }
        // Waits until all blocks of the cluster have started.
        asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#endif
    }

    // Combines the softmax statistics of a row's logits over all threads of the blocks that share the row. All these
    // threads get bit-identical results. row: number of rows that these blocks have processed before this one.
    // `places` needs buffers for only two rows, because a warp sends its statistics of a row after it has read all
    // statistics of the previous row.
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
    // Writes x to the shared memory of block `other`, at the address that `to` has in this block. That block's barrier
    // counts the bytes of x.
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

    // Waits until the row's blocks, including this block, have written `bytes` bytes to this block's shared memory. The
    // barrier counts these bytes. parity: the barrier's phase parity. All threads of the block must call this function.
    __device__ static void receive(uint64_t *barrier, uint32_t bytes, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) barrier_arrive_expect(barrier, bytes);
        barrier_wait(barrier, parity);
#endif
    }
};

} // namespace
