// Declarations that the files of the CPU backend share: its state, access to tensor rows, the workspace allocator, the
// matmul interface, and one function per operation.
#pragma once
#include "cpu_kernels.h"
#include "cpu_workspace.h"
#include "ops.h"

#include <omp.h>

#define MAX_CPU_NAME 96

// State of the CPU backend, stored in Exec.backend.
typedef struct {
    int threads;
    const CpuKernels *kernels;
    bool blas;     // true: matmuls call OpenBLAS; false: they use the panel kernels
    Recipe recipe; // settings that tensor descriptors do not record, such as the rounding of moments
    // true: adamw_update() has written the weights' amaxes, and weights_quantize() has not read the amaxes yet
    bool amaxes_valid;
    char processor[MAX_CPU_NAME];
} Cpu;

static inline const Cpu *cpu_of(const Exec *exec) {
    return (const Cpu *)exec->backend;
}

static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// --- tensor rows: the only place that converts between storage formats and real --------------------------

// Calls fatal() unless t has no data or is unscaled, not transposed, and FP32 or BF16. `operation` names the caller.
void require_plain(const char *operation, Tensor t);
// Calls fatal() unless t passes require_plain(), or is BF16 with one scale per row (SCALE_ROW).
void require_matmul(const char *operation, Tensor t);
// Calls fatal() unless row_load() can read t: t must pass require_matmul(), or be FP8 with scales and not transposed.
void require_readable(const char *operation, Tensor t);

static inline uint32_t larger_bits(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static inline void *row_address(Tensor t, int64_t row) {
    return (char *)t.data + (size_t)(row * t.stride) * format_bytes(t.format);
}

// Returns columns [begin, begin + count) of a row as reals: FP32 rows in place, other formats decoded into buffer. FP8
// values are multiplied by their scale.
const real *row_load(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, real *buffer);
// Writes values to columns [begin, begin + count) of a row, rounded to t's format (FP32 or BF16). Does nothing if
// `values` points to these columns.
void row_store(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, const real *values);
// Quantizes a row of an E4M3 SCALE_GROUP tensor and writes its group scales. Returns the row's amax as FP32 bits.
uint32_t row_store_groups(const Cpu *cpu, Tensor t, int64_t row, const real *values);
// Returns memory for computing a row that row_store() will write: the row itself if t is FP32, otherwise buffer.
static inline real *row_target(Tensor t, int64_t row, int64_t begin, real *buffer) {
    return t.format == FMT_FP32 ? (real *)row_address(t, row) + begin : buffer;
}

// --- scratch memory of an operation ----------------------------------------------------------------------

// Allocator of Exec.workspace. Blocks allocated from its beginning are shared by all threads. scratch_slots() divides
// the rest into one slot per thread.
typedef struct {
    char *next;
    size_t left, slot_bytes;
} Scratch;

Scratch scratch_begin(Exec *exec);
real *scratch_take(Scratch *s, int64_t count);
// Returns a (1, n) tensor as n reals; NULL if t has no data.
const real *scratch_vector(Scratch *s, const Cpu *cpu, Tensor t);
// Divides the remaining workspace into one slot of slot_bytes per thread. Returns the number of slots, which is the
// number of threads to use.
int scratch_slots(Scratch *s, const Cpu *cpu, size_t slot_bytes);
// Returns an allocator of the calling thread's slot.
Scratch scratch_slot(const Scratch *s);

// --- sums over rows, in an order that does not depend on the number of threads ---------------------------

// Returns how many rows a partial sum covers. Sums over rows are split into fixed blocks of rows and added in the order
// of the blocks, so the result does not depend on the number of threads.
static inline int64_t reduction_rows(int64_t rows) {
    int64_t share = (rows + CPU_REDUCTION_BLOCKS - 1) / CPU_REDUCTION_BLOCKS;
    return share < 16 ? 16 : share;
}

// Computes out (1, n) FP32 = (accumulate ? out : 0) + the sum of (blocks, n) partial sums, in the order of the blocks.
// Overwrites partials. Does nothing if out has no data.
void reduce_partials(const Cpu *cpu, Tensor out, real *partials, int64_t blocks, bool accumulate);

// --- matmuls with BLAS or the built-in code -------------------------------------------------------------

// Operand of a matmul. Its element (i, k), k being the summation index, is tensor[i][k] if k_is_column, else
// tensor[k][i].
typedef struct {
    Tensor tensor;
    bool k_is_column;
} Operand;

// A matmul: c (m, n) = sum over k of a (m, k) b (n, k), plus c if accumulate, plus bias. If a or b is FP8 with one
// scale per tensor, the unscaled FP8 values are multiplied, and the sum is multiplied by the scales.
typedef struct {
    Operand a, b;
    Tensor c;
    const real *bias; // (n) bias; NULL: none
    int64_t m, n, k;
    bool accumulate;
    // fields that matmul_on_thread() and matmul_on_all() set
    real scale; // factor that multiplies the sum: scale of a times scale of b
    int64_t tile_m, tile_n;
} Matmul;

// Runs a matmul on the calling thread. `slot` must have at least cpu_matmul_slot() bytes.
void matmul_on_thread(const Cpu *cpu, Scratch slot, Matmul p);
// Runs a matmul on all threads, with one slot of scratch per thread.
void matmul_on_all(const Cpu *cpu, Scratch scratch, Matmul p);

// Limits OpenBLAS to one thread per call. Returns false if the program is built without OpenBLAS.
bool blas_open(void);
// Returns the name of the processor core for which OpenBLAS selected its kernels; "none" without OpenBLAS.
const char *blas_core(void);
// Makes OpenBLAS allocate its buffers for matmuls on `threads` threads. Returns false if there is too little memory.
bool blas_reserve(int threads);
// Returns the bytes of address space that blas_reserve(threads) needs.
int64_t blas_bytes(int threads);
// Computes c (m, n) = (add ? c : 0) + a b on the calling thread with OpenBLAS. a is (m, k), or (k, m) if trans_a; b is
// (k, n), or (n, k) if trans_b.
void blas_matmul(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda, const real *b,
                 int64_t ldb, bool add, real *c, int64_t ldc);

// Returns a block of a tensor as a matrix of reals with leading dimension *ld: in place if t is FP32, otherwise decoded
// into buffer.
const real *block_load(const Cpu *cpu, Tensor t, int64_t row, int64_t rows, int64_t col, int64_t cols, real *buffer,
                       int64_t *ld);

// --- declarations of the operations ----------------------------------------------------------------------

#define DEVICE_FUNCTION(name, result, parameters) result cpu_##name parameters;
#define DEVICE_FUNCTION_OF_GPU(name, result, parameters)
#include "device_functions.h"
#undef DEVICE_FUNCTION

#define OPERATION(name, parameters) void cpu_##name parameters;
#include "operations.h"
#undef OPERATION
