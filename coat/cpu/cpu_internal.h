// What the files of the CPU backend share: its state, rows by descriptor, pieces of the workspace, and the
// operations that cpu_ops.c collects.
#pragma once
#include "cpu_kernels.h"
#include "cpu_workspace.h"
#include "ops.h"

#include <omp.h>

#define MAX_CPU_NAME 96

// Exec.backend
typedef struct {
    int threads;
    const CpuKernels *kernels;
    bool blas;        // matmuls by OpenBLAS instead of the kernels
    Recipe recipe;    // for what descriptors do not say: how moments are rounded
    bool maxima_left; // adamw_update has left the weights' maxima, and weights_quantize has not yet used them
    char processor[MAX_CPU_NAME];
} Cpu;

static inline const Cpu *cpu_of(const Exec *exec) {
    return (const Cpu *)exec->backend;
}

static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// --- rows by descriptor: the one place where formats become arithmetic -----------------------------------

// Ends the program unless t is absent or stored plainly, or as something that row_load reads.
void require_plain(const char *operation, Tensor t);
void require_matmul(const char *operation, Tensor t); // plain, or BF16 with a scale per row
void require_readable(const char *operation, Tensor t);

static inline uint32_t larger_bits(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static inline void *row_address(Tensor t, int64_t row) {
    return (char *)t.data + (size_t)(row * t.stride) * format_bytes(t.format);
}

// The values of columns [begin, begin + count) of a row that is not transposed: in place where they are stored as
// `real`, else decoded into buffer, codes times their scale.
const real *row_load(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, real *buffer);
// Stores them, rounding to the tensor's plain format. Values that are already in place stay.
void row_store(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, const real *values);
// Stores a row of an E4M3 SCALE_GROUP tensor with its scales; returns the largest of the bits of |values|.
uint32_t row_store_groups(const Cpu *cpu, Tensor t, int64_t row, const real *values);
// Where to compute the columns of a row that is to be stored: in place, or the buffer that row_store then takes.
static inline real *row_target(Tensor t, int64_t row, int64_t begin, real *buffer) {
    return t.format == FMT_FP32 ? (real *)row_address(t, row) + begin : buffer;
}

// --- workspace -------------------------------------------------------------------------------------------

// Pieces taken from the front are shared by the threads; the rest is cut into one slot per thread.
typedef struct {
    char *next;
    size_t left, slot_bytes;
} Scratch;

Scratch scratch_begin(Exec *exec);
real *scratch_take(Scratch *s, int64_t count);
// A (1, n) tensor as a row of real; NULL if there is no such tensor.
const real *scratch_vector(Scratch *s, const Cpu *cpu, Tensor t);
// Ends the shared part; returns how many threads can run, each with a slot of slot_bytes.
int scratch_slots(Scratch *s, const Cpu *cpu, size_t slot_bytes);
// This thread's slot, to take pieces from.
Scratch scratch_slot(const Scratch *s);

// --- reductions over rows --------------------------------------------------------------------------------

// Partial sums are made over fixed blocks of rows and added in the order of the blocks.
static inline int64_t reduction_rows(int64_t rows) {
    int64_t share = (rows + CPU_REDUCTION_BLOCKS - 1) / CPU_REDUCTION_BLOCKS;
    return share < 16 ? 16 : share;
}

// out (1, n) FP32 = (accumulate ? out : 0) + sum of the (blocks, n) partial sums, which are overwritten.
// Nothing without out.data.
void reduce_partials(const Cpu *cpu, Tensor out, real *partials, int64_t blocks, bool accumulate);

// --- matmuls --------------------------------------------------------------------------------------------

// A factor of a matmul: element (i, k), k being summed over, is in row i and column k of the tensor where k_inside,
// else in row k and column i.
typedef struct {
    Tensor tensor;
    bool k_inside;
} Factor;

// c (m, n) = sum over k of a (m, k) b (n, k), plus c where accumulate, plus bias. Of FP8 factors with one scale the
// codes are summed, and the sum multiplied by both scales.
typedef struct {
    Factor a, b;
    Tensor c;
    const real *bias; // (n), or NULL
    int64_t m, n, k;
    bool accumulate;
    real scale; // of the sum, from FP8 factors; and tiles: chosen inside
    int64_t tile_m, tile_n;
} Matmul;

// On the calling thread, with a slot of cpu_matmul_slot() bytes; or on all threads, with the scratch they cut up.
void matmul_on_thread(const Cpu *cpu, Scratch slot, Matmul p);
void matmul_on_all(const Cpu *cpu, Scratch scratch, Matmul p);

bool blas_open(void); // false where OpenBLAS is not linked
const char *blas_core(void);
// Has OpenBLAS take the memory that matmuls in so many threads need; false where there is not so much.
bool blas_reserve(int threads);
int64_t blas_bytes(int threads); // of address space that it reserves
// c (m, n) = (add ? c : 0) + a b on one thread; a (m, k) or stored (k, m), b (k, n) or stored (n, k).
void blas_matmul(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda, const real *b,
                 int64_t ldb, bool add, real *c, int64_t ldc);

// A block of a tensor as a matrix of real: in place, or decoded into buffer with leading dimension `cols`.
const real *block_load(const Cpu *cpu, Tensor t, int64_t row, int64_t rows, int64_t col, int64_t cols, real *buffer,
                       int64_t *ld);

// --- operations ------------------------------------------------------------------------------------------

#define DEVICE_FUNCTION(name, result, parameters) result cpu_##name parameters;
#define DEVICE_FUNCTION_OF_GPU(name, result, parameters)
#include "device_functions.h"
#undef DEVICE_FUNCTION

#define OPERATION(name, parameters) void cpu_##name parameters;
#include "operations.h"
#undef OPERATION
