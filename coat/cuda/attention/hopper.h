// Hopper's own instructions, as functions: the copy engine and the matmuls of a warpgroup. For
// code compiled for sm_90a alone.
//
// Tiles in shared memory are rows of 64 BF16 values = 128 bytes, in the copy engine's 128-byte swizzle: the 16-byte
// chunk c of row r lies where chunk c ^ (r % 8) would. Eight rows, 1024 bytes, are one unit of that pattern, and
// tiles begin at multiples of it.
#pragma once
#include "cuda/common/barriers.h"

#include <cuda.h>

// A value that is the same in all threads of a warp, so that the compiler knows.
template <typename T> __device__ static inline T warp_uniform(T x) {
    return __shfl_sync(0xffffffffu, x, 0);
}

// --- arithmetic -----------------------------------------------------------------------------------------------------
// Rounded to nearest, the first in the lower half.
__device__ static inline uint32_t bf16_pair(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// --- the copy engine: issued by one thread, its bytes counted by a barrier ----------------------------------------
__device__ static inline void copy_tile(void *to, const CUtensorMap *from, int column, int row, int sequence,
                                        uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(from), "r"(column), "r"(row), "r"(sequence), "r"(shared_address(barrier))
                 : "memory");
}

// Multiples of 16 bytes at addresses that are.
__device__ static inline void copy_bytes(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// --- registers of a warpgroup -------------------------------------------------------------------------------------
template <int COUNT> __device__ static inline void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ static inline void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// --- matmuls of a warpgroup -------------------------------------------------------------------------------
// Asynchronous: operands and sums belong to the tensor cores from the call until wgmma_wait.
//
// A sum (64, n) is spread over the 128 threads: thread 32 w + 4 g + t holds, for each block of 8 columns, the
// elements (16 w + g, 2t), (16 w + g, 2t + 1) and (16 w + g + 8, 2t), (16 w + g + 8, 2t + 1). The first operand in
// registers, (64, 16) at a time, is two such blocks with its pairs packed: a sum packed is an operand.

// How an operand lies in shared memory: its address, and the distance between units of the swizzle, 8 rows. The same
// whether the matmul sums along rows or down columns, which the instruction says. Along rows it reads 16 columns of
// one panel of 64; down columns all columns of 16 rows, element (row, column) in the unit row / 8 of the panel
// column / 64: the second distance in the descriptor is that between panels, in bytes.
__device__ static inline uint64_t wgmma_operand(const void *tile, int next_panel = 1024) {
    const uint64_t swizzle_128 = (uint64_t)1 << 62, distance = 1024 >> 4, panel = (uint64_t)next_panel >> 4;
    return swizzle_128 | distance << 32 | panel << 16 | (uint64_t)(warp_uniform(shared_address(tile)) >> 4 & 0x3fff);
}
// The operand so many units of 16 bytes behind another. The address is in the lower word, so that few instructions do.
__device__ static inline uint64_t wgmma_operand_behind(uint64_t operand, uint32_t units) {
    return operand >> 32 << 32 | ((uint32_t)operand + units);
}
constexpr int WGMMA_NEXT_COLUMNS = 16 * 2 >> 4; // to the next 16 columns, added to an operand
constexpr int WGMMA_NEXT_ROWS = 16 * 128 >> 4;  // to the next 16 rows

// The first operand of a matmul in registers: 16 columns of a warp's 16 rows of a tile in shared memory. Lane
// 16 h + r says where half h of row r lies, 16 bytes.
__device__ static inline void wgmma_operand_load(uint32_t *a, const void *half_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(half_row))
                 : "memory");
}

// Four blocks of 8 x 8 of packed sums to shared memory: lane 8 i + r says where row r of block i goes, 16 bytes.
__device__ static inline void blocks_store(void *row, const uint32_t (&block)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(block[0]), "r"(block[1]), "r"(block[2]), "r"(block[3])
                 : "memory");
}

// 16 bytes to global memory, or nothing: by the instruction's own predicate, so that stores follow each other.
__device__ static inline void store_if(void *to, uint4 x, bool stores) {
    asm volatile(
        "{ .reg .pred stores; setp.ne.u32 stores, %5, 0; @stores st.global.v4.b32 [%0], {%1, %2, %3, %4}; }" ::"l"(
            __cvta_generic_to_global(to)),
        "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"((uint32_t)stores)
        : "memory");
}

// Before matmuls: what was done to their registers comes first.
__device__ static inline void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of matmuls.
__device__ static inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most so many groups are unfinished.
template <int UNFINISHED> __device__ static inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(UNFINISHED) : "memory");
}

// Holds registers in place: the compiler moves no work on them across. Before a fence, for what matmuls read or
// continue; after a wait, for what they wrote.
template <int COUNT> __device__ static inline void wgmma_hold(float (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int COUNT> __device__ static inline void wgmma_hold(uint32_t (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(registers[i])::"memory");
}

// The registers of a matmul's result: their names in the instruction, and the operands.
#define WGMMA_NAMES_32                                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_64                                                                                                 \
    WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                \
                   "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_REGISTERS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_REGISTERS_16(d, i)                                                                                       \
    WGMMA_REGISTERS_4(d, i), WGMMA_REGISTERS_4(d, i + 4), WGMMA_REGISTERS_4(d, i + 8), WGMMA_REGISTERS_4(d, i + 12)
#define WGMMA_REGISTERS_32(d) WGMMA_REGISTERS_16(d, 0), WGMMA_REGISTERS_16(d, 16)
#define WGMMA_REGISTERS_64(d) WGMMA_REGISTERS_32(d), WGMMA_REGISTERS_16(d, 32), WGMMA_REGISTERS_16(d, 48)

// d (64, 128) = (accumulate ? d : 0) + a (64, 16) b^T, both operands in shared memory, rows being b's columns.
__device__ static inline void wgmma_rows(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, %66, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_64 "},"
                 "%64, %65, accumulate, 1, 1, 0, 0; }"
                 : WGMMA_REGISTERS_64(d)
                 : "l"(a), "l"(b), "r"(accumulate));
}

// d (64, 64) = (accumulate ? d : 0) + a (64, 16) b^T, both operands in shared memory, rows being b's columns.
__device__ static inline void wgmma_rows(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, %34, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_32 "},"
                 "%32, %33, accumulate, 1, 1, 0, 0; }"
                 : WGMMA_REGISTERS_32(d)
                 : "l"(a), "l"(b), "r"(accumulate));
}

// The same with a in registers.
__device__ static inline void wgmma_rows(float (&d)[32], const uint32_t *a, uint64_t b, int accumulate) {
    asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, %37, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_32 "},"
                 "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 0; }"
                 : WGMMA_REGISTERS_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

// d (64, 64) += a (64, 16) b, a in registers, b (16, 64) row by row in shared memory.
__device__ static inline void wgmma_columns(float (&d)[32], const uint32_t *a, uint64_t b) {
    asm volatile("{ .reg .pred accumulate; setp.eq.b32 accumulate, 0, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_32 "},"
                 "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 1; }"
                 : WGMMA_REGISTERS_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d (64, 128) += a (64, 16) b, a in registers, b (16, 128) in shared memory, row by row in two panels of 64 columns.
__device__ static inline void wgmma_columns(float (&d)[64], const uint32_t *a, uint64_t b) {
    asm volatile("{ .reg .pred accumulate; setp.eq.b32 accumulate, 0, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_64 "},"
                 "{%64, %65, %66, %67}, %68, accumulate, 1, 1, 1; }"
                 : WGMMA_REGISTERS_64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The instructions exist in code for 9.0a alone. Code for other GPUs has none of this and is never launched; that for
// plain 9.0, which would be, stops rather than leave results as they were.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool HOPPER_CODE = true;
#else
constexpr bool HOPPER_CODE = false;
#endif
