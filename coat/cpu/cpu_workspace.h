// How the CPU backend uses Exec.workspace: first what all threads of an operation share, then one slot per
// thread. The sizes are plain arithmetic, so that the memory plan can ask for them without the backend.
#pragma once
#include "config/config.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Reductions over rows have at most this many partial sums, whatever the number of threads, so that the order
// of addition depends on the shape alone.
#define CPU_REDUCTION_BLOCKS 64

// Tiles of a matmul C (M, N): at most this many rows and columns of C, summed in steps of TILE_K, so that the
// packed panels of A and B and the tile stay in the second-level cache. TILE_M is a multiple of the rows of
// every panel, TILE_N of its columns, and PANEL_WIDTH the most that a panel has of either.
#define CPU_TILE_M 240
#define CPU_TILE_N 512
#define CPU_TILE_K 256
#define CPU_PANEL_WIDTH 32
#define CPU_PACKED(size) ((size) * (CPU_TILE_K + 4)) // panels of at least 4, with gaps of 16 elements
#define CPU_QUERY_ROWS 64                            // query rows of an attention tile

// Threads an operation uses.
static inline int cpu_threads(const Config *config) {
    if (config->threads > 0) return config->threads;
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Bytes of `count` values as every piece of the workspace is rounded: whole cache lines.
static inline size_t cpu_piece(int64_t count) {
    return ((size_t)count * sizeof(real) + 63) / 64 * 64;
}

static inline size_t cpu_matmul_slot(void) {
    return cpu_piece(CPU_PACKED(CPU_TILE_M)) + cpu_piece(CPU_PACKED(CPU_TILE_N)) + cpu_piece(CPU_TILE_M * CPU_TILE_N) +
           cpu_piece(CPU_PANEL_WIDTH * CPU_TILE_K);
}

// dk, dv of a head; scores and their gradient of a tile of queries; rows of o and do; a matmul's buffers.
static inline size_t cpu_attention_slot(int64_t T, int64_t head_dim) {
    return 2 * cpu_piece(T * head_dim) + 2 * cpu_piece(CPU_QUERY_ROWS * T) + cpu_piece(CPU_QUERY_ROWS * head_dim) +
           cpu_piece(CPU_QUERY_ROWS) + cpu_piece(2 * head_dim) + cpu_matmul_slot();
}

// Row buffers of the element-wise operations, `columns` wide.
#define CPU_ROW_BUFFERS 4
static inline size_t cpu_row_slot(int64_t columns) {
    return CPU_ROW_BUFFERS * cpu_piece(columns);
}

// Codes of that many rows are collected before they are written transposed: one whole cache line at a time.
#define CPU_CODE_ROWS 64
static inline int64_t cpu_code_block(int64_t columns) {
    return CPU_CODE_ROWS * columns / (int64_t)sizeof(real);
}

static inline size_t cpu_quantize_slot(int64_t columns) {
    return cpu_row_slot(columns) + cpu_piece(cpu_code_block(columns));
}

// Shared part of the element-wise operations: up to three row vectors, and two sets of partial column sums.
static inline size_t cpu_row_shared(int64_t columns) {
    return (3 + 2 * CPU_REDUCTION_BLOCKS) * cpu_piece(columns);
}

#ifdef __cplusplus
}
#endif
