// Computes the sizes of the parts of the CPU backend's workspace: memory that all threads of an operation share,
// followed by one slot per thread. The memory plan needs these sizes before the backend is opened.
#pragma once
#include "config/config.h"

#ifdef _OPENMP
#include <omp.h>
#endif

// Maximum number of partial sums of a reduction over rows. The number of partial sums does not depend on the number of
// threads, so that the order of addition depends only on the shape.
#define CPU_REDUCTION_BLOCKS 64

// Largest tile of a matmul C = A B: CPU_TILE_M rows and CPU_TILE_N columns of C, summed in steps of CPU_TILE_K. The
// packed panels of A and B and the tile together take 1.3 MB in FP32, which fits in an L2 cache of 2 MB. For every
// kernel variant, CPU_TILE_M is a multiple of a panel's rows of A, and CPU_TILE_N of a panel's columns of B.
// CPU_PANEL_WIDTH is the maximum of these rows and columns over all variants.
#define CPU_TILE_M 240
#define CPU_TILE_N 512
#define CPU_TILE_K 256
#define CPU_PANEL_WIDTH 32
// Upper bound of the elements of a packed matmul operand with `size` rows or columns. A panel has at least 4 rows or
// columns and is followed by a gap of 16 elements.
#define CPU_PACKED(size) ((size) * (CPU_TILE_K + 4))
#define CPU_QUERY_ROWS 64 // number of query rows of an attention tile

// Returns the number of threads that an operation uses: --threads, or OpenMP's default if --threads is 0.
static inline int cpu_threads(const Config *config) {
    if (config->threads > 0) return config->threads;
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Returns the bytes of a block of `count` reals in the workspace, rounded up to a multiple of 64 (a cache line).
static inline size_t cpu_piece(int64_t count) {
    return ((size_t)count * sizeof(real) + 63) / 64 * 64;
}

// Returns the bytes of a matmul's buffers per thread: packed A, packed B, the tile of C, and one panel before packing.
static inline size_t cpu_matmul_slot(void) {
    return cpu_piece(CPU_PACKED(CPU_TILE_M)) + cpu_piece(CPU_PACKED(CPU_TILE_N)) + cpu_piece(CPU_TILE_M * CPU_TILE_N) +
           cpu_piece(CPU_PANEL_WIDTH * CPU_TILE_K);
}

// Returns the bytes of attention's buffers per thread: dk and dv of a head; scores, score gradients, outputs and sums
// of a tile; one row of o and one of o's gradient; and a matmul's buffers.
static inline size_t cpu_attention_slot(int64_t T, int64_t head_dim) {
    return 2 * cpu_piece(T * head_dim) + 2 * cpu_piece(CPU_QUERY_ROWS * T) + cpu_piece(CPU_QUERY_ROWS * head_dim) +
           cpu_piece(CPU_QUERY_ROWS) + cpu_piece(2 * head_dim) + cpu_matmul_slot();
}

// Number of row buffers, each `columns` wide, that element-wise operations need per thread.
#define CPU_ROW_BUFFERS 4
static inline size_t cpu_row_slot(int64_t columns) {
    return CPU_ROW_BUFFERS * cpu_piece(columns);
}

// Number of rows of FP8 values that a thread collects in a buffer before writing the values transposed: 64, so that
// every write is an entire cache line (64 bytes). cpu_code_block() returns the size of the buffer in reals.
#define CPU_CODE_ROWS 64
static inline int64_t cpu_code_block(int64_t columns) {
    return CPU_CODE_ROWS * columns / (int64_t)sizeof(real);
}

// Returns the bytes per thread of an operation that quantizes: row buffers, and the buffer of CPU_CODE_ROWS rows.
static inline size_t cpu_quantize_slot(int64_t columns) {
    return cpu_row_slot(columns) + cpu_piece(cpu_code_block(columns));
}

// Returns the bytes that all threads of an element-wise operation share: up to 3 vectors (weights and biases) and 2
// sets of partial column sums, each `columns` wide.
static inline size_t cpu_row_shared(int64_t columns) {
    return (3 + 2 * CPU_REDUCTION_BLOCKS) * cpu_piece(columns);
}
