// Hopper instructions as functions: TMA copies and warpgroup matmuls (wgmma). For code compiled for sm_90a only.
//
// A tile in shared memory consists of rows of 64 BF16 values (128 bytes) in TMA's 128-byte swizzle: the 16-byte chunk c
// of row r is stored at the position of chunk c ^ (r % 8). Eight rows (1024 bytes) are one period of the swizzle, so
// tiles must begin at multiples of 1024 bytes.
#pragma once
#include "cuda/common/barriers.h"

#include <cuda.h>

// Returns lane 0's x in every lane, so that the compiler knows that the value is uniform in the warp.
template <typename T> __device__ static inline T warp_uniform(T x) {
    return __shfl_sync(0xffffffffu, x, 0);
}

// --- TMA copies to shared memory; a barrier counts the bytes that have arrived ---------------------------------------
// Starts copying a box of the tensor that `from` describes to shared memory. The box begins at (sequence, row, column).
__device__ static inline void copy_tile(void *to, const CUtensorMap *from, int column, int row, int sequence,
                                        uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(from), "r"(column), "r"(row), "r"(sequence), "r"(shared_address(barrier))
                 : "memory");
}

// Starts an asynchronous copy of bytes from global to shared memory. Size and addresses must be multiples of 16.
__device__ static inline void copy_bytes(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// --- number of registers per thread ----------------------------------------------------------------------------------
// registers_release() lowers the number of registers per thread to COUNT; registers_acquire() raises it to COUNT.
template <int COUNT> __device__ static inline void registers_release() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ static inline void registers_acquire() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// --- matmuls of a warpgroup with wgmma instructions ------------------------------------------------------------------
// wgmma is asynchronous. From the call until wgmma_wait(), operands must not be changed and results must not be read or
// changed.
//
// A result (64, n) is distributed over 128 threads. Thread 32 w + 4 g + t (w, t < 4; g < 8) holds, for each block of 8
// columns, the elements (16 w + g, 2t), (16 w + g, 2t + 1), (16 w + g + 8, 2t) and (16 w + g + 8, 2t + 1). Operand A in
// registers (of A * B) is read 16 columns at a time. These 16 columns have the layout of two such blocks of 8 columns,
// with each pair of adjacent elements packed into one register as BF16. Therefore a packed result can be operand A of
// the next matmul.

// Returns the wgmma descriptor of an operand in shared memory. The descriptor contains the operand's address and the
// distance between periods of the swizzle (8 rows). wgmma_rows() sums over columns of the tile and reads 16 columns of
// one panel of 64 columns. wgmma_columns() sums over rows of the tile and reads all columns of 16 rows. Element (row,
// column) is in period row / 8 of panel column / 64. next_panel: distance between panels in bytes.
__device__ static inline uint64_t wgmma_operand(const void *tile, int next_panel = 1024) {
    const uint64_t swizzle_128 = (uint64_t)1 << 62, distance = 1024 >> 4, panel = (uint64_t)next_panel >> 4;
    return swizzle_128 | distance << 32 | panel << 16 | (uint64_t)(warp_uniform(shared_address(tile)) >> 4 & 0x3fff);
}
// Returns the wgmma operand descriptor advanced by `units` * 16 bytes. Changes only the lower word, which contains the
// address, to save instructions.
__device__ static inline uint64_t wgmma_operand_at(uint64_t operand, uint32_t units) {
    return operand >> 32 << 32 | ((uint32_t)operand + units);
}
constexpr int WGMMA_NEXT_COLUMNS = 16 * 2 >> 4; // addend that advances a wgmma operand descriptor by 16 columns
constexpr int WGMMA_NEXT_ROWS = 16 * 128 >> 4;  // addend that advances a wgmma operand descriptor by 16 rows

// Loads 16 columns of the calling warp's 16 rows of operand A from shared memory into the registers a[0] to a[3]. Lane
// 16 h + r (r < 16) passes the address of columns 8 h to 8 h + 7 (16 bytes) of row r.
__device__ static inline void wgmma_operand_load(uint32_t *a, const void *half_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(half_row))
                 : "memory");
}

// Stores four 8 x 8 blocks of packed BF16 results to shared memory. Lane 8 i + r (r < 8) passes the address of row r
// (16 bytes) of block i.
__device__ static inline void blocks_store(void *row, const uint32_t (&block)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(block[0]), "r"(block[1]), "r"(block[2]), "r"(block[3])
                 : "memory");
}

// Stores 16 bytes to global memory if `stores` is true. Uses a predicated instruction instead of a branch, so that
// stores can be issued back to back.
__device__ static inline void store_if(void *to, uint4 x, bool stores) {
    asm volatile(
        "{ .reg .pred stores; setp.ne.u32 stores, %5, 0; @stores st.global.v4.b32 [%0], {%1, %2, %3, %4}; }" ::"l"(
            __cvta_generic_to_global(to)),
        "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"((uint32_t)stores)
        : "memory");
}

// Makes the following wgmma instructions wait for earlier register accesses of this thread.
__device__ static inline void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Commits the wgmma matmuls since the last commit as a group.
__device__ static inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most UNFINISHED of the committed groups of wgmma matmuls are still running.
template <int UNFINISHED> __device__ static inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(UNFINISHED) : "memory");
}

// Keeps the compiler from moving computations on these registers across this call. Must be called before wgmma_fence()
// for registers that matmuls read or accumulate to, and after wgmma_wait() for registers that matmuls wrote.
template <int COUNT> __device__ static inline void wgmma_hold(float (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int COUNT> __device__ static inline void wgmma_hold(uint32_t (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(registers[i])::"memory");
}

// Text and operand list that an asm statement uses for the 32 or 64 result registers of a wgmma instruction.
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

// d (64, 128) = (accumulate ? d : 0) + a (64, 16) b^T, with a and b in shared memory; b has 128 rows.
__device__ static inline void wgmma_rows(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, %66, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_64 "},"
                 "%64, %65, accumulate, 1, 1, 0, 0; }"
                 : WGMMA_REGISTERS_64(d)
                 : "l"(a), "l"(b), "r"(accumulate));
}

// d (64, 64) = (accumulate ? d : 0) + a (64, 16) b^T, with a and b in shared memory; b has 64 rows.
__device__ static inline void wgmma_rows(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, %34, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_32 "},"
                 "%32, %33, accumulate, 1, 1, 0, 0; }"
                 : WGMMA_REGISTERS_32(d)
                 : "l"(a), "l"(b), "r"(accumulate));
}

// d (64, 64) = (accumulate ? d : 0) + a (64, 16) b^T, with a in registers and b in shared memory; b has 64 rows.
__device__ static inline void wgmma_rows(float (&d)[32], const uint32_t *a, uint64_t b, int accumulate) {
    asm volatile("{ .reg .pred accumulate; setp.ne.b32 accumulate, %37, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_32 "},"
                 "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 0; }"
                 : WGMMA_REGISTERS_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

// d (64, 64) += a (64, 16) b, with a in registers and b (16, 64) in shared memory.
__device__ static inline void wgmma_columns(float (&d)[32], const uint32_t *a, uint64_t b) {
    asm volatile("{ .reg .pred accumulate; setp.eq.b32 accumulate, 0, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_32 "},"
                 "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 1; }"
                 : WGMMA_REGISTERS_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d (64, 128) += a (64, 16) b, with a in registers and b (16, 128) in shared memory, in two panels of 64 columns.
__device__ static inline void wgmma_columns(float (&d)[64], const uint32_t *a, uint64_t b) {
    asm volatile("{ .reg .pred accumulate; setp.eq.b32 accumulate, 0, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{" WGMMA_NAMES_64 "},"
                 "{%64, %65, %66, %67}, %68, accumulate, 1, 1, 1; }"
                 : WGMMA_REGISTERS_64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// True in code compiled for sm_90a, the only target that has wgmma instructions. On Hopper, the driver could also
// launch a kernel compiled for sm_90. HOPPER_CODE is false in that kernel, so the kernel traps instead of returning
// wrong results.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool HOPPER_CODE = true;
#else
constexpr bool HOPPER_CODE = false;
#endif
