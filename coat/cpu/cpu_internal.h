// Declarations that the files of the CPU backend share: the backend's state, access to tensor rows, the workspace
// allocator, matmuls, and one function per operation.
#pragma once
#include "cpu_kernels.h"
#include "cpu_workspace.h"
#include "ops.h"

#include <omp.h>

#define MAX_CPU_NAME 96

// State of the CPU backend, to which Exec.backend points.
typedef struct {
    int threads;
    const CpuKernels *kernels;
    bool blas;         // true: matmuls call OpenBLAS; false: they use the panel kernels
    Recipe recipe;     // the run's recipe, for settings that tensor descriptors do not contain
    bool amaxes_valid; // true: adamw_update() has written the weights' amaxes, and weights_quantize() has not run since
    char processor[MAX_CPU_NAME];
} Cpu;

static inline const Cpu *cpu_of(const Exec *exec) {
    return (const Cpu *)exec->backend;
}

static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// --- access to tensor rows, which converts between storage formats and real ------------------------------

// Checks that t is unscaled FP32 or BF16 and not transposed, or has no data; otherwise calls fatal(). operation: the
// caller's name.
void require_plain(const char *operation, Tensor t);
// Checks that t passes require_plain(), or is BF16 with one scale per row (SCALE_ROW); otherwise calls fatal().
void require_matmul(const char *operation, Tensor t);
// Checks that row_load() can read t: t passes require_matmul(), or is FP8 with scales and not transposed. Otherwise
// calls fatal().
void require_readable(const char *operation, Tensor t);

static inline uint32_t larger_bits(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static inline void *row_address(Tensor t, int64_t row) {
    return (char *)t.data + (size_t)(row * t.stride) * format_bytes(t.format);
}

// Returns columns [begin, begin + count) of a row as reals: FP32 rows in place, other formats decoded into `buffer`.
// FP8 values, and BF16 SCALE_ROW values, are multiplied by their scale.
const real *row_load(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, real *buffer);
// Writes values to columns [begin, begin + count) of a row, rounded to t's format (FP32 or BF16). Does nothing if
// `values` points to these columns.
void row_store(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, const real *values);
// Quantizes `values` to a row of an E4M3 SCALE_GROUP tensor, and writes the row's group scales. Returns the amax of
// `values` as FP32 bits.
uint32_t row_store_groups(const Cpu *cpu, Tensor t, int64_t row, const real *values);
// Returns the memory in which to compute a row's columns from `begin` on, to be passed to row_store(): the row itself
// if t is FP32, otherwise `buffer`.
static inline real *row_target(Tensor t, int64_t row, int64_t begin, real *buffer) {
    return t.format == FMT_FP32 ? (real *)row_address(t, row) + begin : buffer;
}

// --- allocation of an operation's scratch memory in Exec.workspace ---------------------------------------

// Allocator of memory in Exec.workspace. Blocks that are allocated before scratch_slots() are shared by all threads;
// scratch_slots() divides the rest of the workspace into one slot per thread.
typedef struct {
    char *next;
    size_t left, slot_bytes;
} Scratch;

// Returns an allocator for the entire workspace.
Scratch scratch_begin(Exec *exec);
// Allocates `count` reals with undefined values. Calls fatal() if the workspace is too small.
real *scratch_take(Scratch *s, int64_t count);
// Returns the n values of a (1, n) tensor as reals; NULL if t has no data.
const real *scratch_vector(Scratch *s, const Cpu *cpu, Tensor t);
// Divides the remaining workspace into slots of slot_bytes, at most one per thread. Returns the number of slots; the
// operation must not use more threads. Calls fatal() if not even one slot fits.
int scratch_slots(Scratch *s, const Cpu *cpu, size_t slot_bytes);
// Returns an allocator for the slot of the calling OpenMP thread.
Scratch scratch_slot(const Scratch *s);

// --- sums over rows, in an order that does not depend on the number of threads ---------------------------

// Returns the number of rows that one partial sum covers. A sum over rows is split into blocks of rows. The sums of the
// blocks are added in order, so the result does not depend on the number of threads.
static inline int64_t reduction_rows(int64_t rows) {
    int64_t share = (rows + CPU_REDUCTION_BLOCKS - 1) / CPU_REDUCTION_BLOCKS;
    return share < 16 ? 16 : share;
}

// Computes out (1, n) FP32 = (accumulate ? out : 0) + the sum of (blocks, n) partial sums, in the order of the blocks.
// Overwrites partials. Does nothing if out has no data.
void reduce_partials(const Cpu *cpu, Tensor out, real *partials, int64_t blocks, bool accumulate);

// --- matmuls with OpenBLAS or the panel kernels ---------------------------------------------------------

// Operand of a matmul. Its element (i, k) is tensor[i][k] if k_is_column, else tensor[k][i]. k is the summation index.
typedef struct {
    Tensor tensor;
    bool k_is_column;
} Operand;

// A matmul: c (m, n) = (accumulate ? c : 0) + bias + beta * addend + alpha * sum over k of a (m, k) b (n, k). If a or b
// is FP8 with one scale per tensor, the sum is over the FP8 values without the scale. The sum is then multiplied by the
// scale.
typedef struct {
    Operand a, b;
    Tensor c;
    const real *bias; // (n) bias; NULL: none
    int64_t m, n, k;
    bool accumulate;
    real alpha;    // 0 means 1
    Tensor addend; // (m, n) in c's format; data is NULL: none. Must not share memory with c
    real beta;
    // fields that matmul_on_thread() and matmul_on_all() set
    real scale; // factor that multiplies the sum: alpha times scale of a times scale of b
    int64_t tile_m, tile_n;
} Matmul;

// Runs a matmul on the calling thread. `slot` must have at least cpu_matmul_slot() bytes.
void matmul_on_thread(const Cpu *cpu, Scratch slot, Matmul p);
// Runs a matmul on all threads. Takes one slot of cpu_matmul_slot() bytes per thread from `scratch`.
void matmul_on_all(const Cpu *cpu, Scratch scratch, Matmul p);

// Makes OpenBLAS use one thread per call. Returns false if the program is built without OpenBLAS.
bool blas_open(void);
// Returns the name of the core type whose kernels OpenBLAS uses, such as "SkylakeX"; "none" without OpenBLAS.
const char *blas_core(void);
// Makes OpenBLAS allocate its buffers for matmuls on `threads` threads. Returns false if there is too little memory;
// true without OpenBLAS.
bool blas_reserve(int threads);
// Returns the bytes of address space that blas_reserve(threads) needs; 0 without OpenBLAS.
int64_t blas_bytes(int threads);
// Computes c (m, n) = (add ? c : 0) + a b on the calling thread with OpenBLAS. a is (m, k), or (k, m) if trans_a; b is
// (k, n), or (n, k) if trans_b.
void blas_matmul(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda, const real *b,
                 int64_t ldb, bool add, real *c, int64_t ldc);

// Returns the block of `rows` rows and `cols` columns at (row, col) of a tensor as reals, and sets *ld to the distance
// between the block's rows in elements. If t is FP32, returns t's memory; otherwise decodes the block into `buffer`.
const real *block_load(const Cpu *cpu, Tensor t, int64_t row, int64_t rows, int64_t col, int64_t cols, real *buffer,
                       int64_t *ld);

// --- declarations of the CPU backend's operations --------------------------------------------------------

#define DEVICE_FUNCTION(name, result, parameters) result cpu_##name parameters;
#define DEVICE_FUNCTION_OF_GPU(name, result, parameters)
#include "device_functions.h"
#undef DEVICE_FUNCTION

#define OPERATION(name, parameters) void cpu_##name parameters;
#include "operations.h"
#undef OPERATION
