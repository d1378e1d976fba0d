// Tables of GEMM algorithms: text with one row for each combination of GPU, cuBLAS version, shape and memory layout. A
// run reads tables from
//   - the program: matmul_table_rows.h;
//   - --matmul-table FILE; --autotune writes such a file to the run's folder;
//   - a checkpoint, which records the algorithms of the run that wrote it, for runs that resume from it.
// matmul_plan.h describes how a GEMM without a row gets its algorithm. Only --autotune chooses algorithms by measured
// times. Without --autotune, the same command therefore gives bit-identical results.
//
// Fields of a row: cuBLAS version; m n k; formats of A, B, D and the bias; three flags (0 or 1): A is transposed, B is
// transposed, fast accumulation. Then, in parentheses: strides of A, B, D in elements; alignments of A, B, D in bytes;
// flag: the GEMM adds to D. Then the algorithm (eight hexadecimal words) and the name of the GPU:
//   130100 768 1024 768 bf16 bf16 bf16 none 0 0 0 (768 768 768 256 256 256 0) 1d00000042 ... 44000e000e 0 NVIDIA H200
// A row without parentheses holds for every memory layout.
#pragma once
#include "base/error.h"
#include "numerics/formats.h"

C_LINKAGE_BEGIN

// Shape and formats of a GEMM: D (m, n) = op(A) (m, k) * op(B) (k, n), column-major.
typedef struct {
    int64_t m, n, k;
    Format a, b, d, bias; // bias is FMT_NONE if the GEMM adds none
    bool transpose_a, transpose_b;
    bool fast; // true: FP8 GEMM with the tensor cores' fast accumulation
} MatmulShape;

// Key of a table of GEMM algorithms: shape, formats and memory layout of a GEMM.
typedef struct {
    MatmulShape shape;
    int64_t lda, ldb, ldd;
    int align_a, align_b, align_d; // alignments of the operands in bytes: powers of two up to 256
    bool accumulate;               // true: the GEMM adds to D
} MatmulKey;

typedef struct {
    MatmulKey key;
    bool any_memory;       // true: the row applies to every memory layout, so only key.shape is set
    uint64_t algorithm[8]; // contents of a cublasLtMatmulAlgo_t, valid for one version of cuBLAS
} MatmulAlgo;

typedef struct {
    MatmulAlgo *rows; // array allocated with malloc()
    int count;
} MatmulAlgos;

static inline bool matmul_same_shape(const MatmulShape *x, const MatmulShape *y) {
    return x->m == y->m && x->n == y->n && x->k == y->k && x->a == y->a && x->b == y->b && x->d == y->d &&
           x->bias == y->bias && x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b &&
           x->fast == y->fast;
}

bool matmul_same_key(const MatmulKey *x, const MatmulKey *y);

// True if the table row `algo` applies to a GEMM. If `exact`, their keys must be equal. Otherwise their shapes must be
// equal, and either algo->any_memory is true or each alignment of the row is at most the GEMM's alignment.
bool algo_matches(const MatmulAlgo *algo, const MatmulKey *key, bool exact);

// Parses a table of algorithms and returns its rows for this GPU and cuBLAS version, in the table's order. Skips rows
// for other GPUs or versions, and lines that are not rows.
MatmulAlgos algos_read(const char *text, const char *gpu, size_t cublas_version);
// Appends to `algos` the rows of table `text` for `gpu` and this cuBLAS version. `gpu` may be another GPU whose
// algorithms also suit this one. If a shape then has several rows, the first usable row is used.
void algos_add(MatmulAlgos *algos, const char *text, const char *gpu, size_t cublas_version);
// Reads a table of algorithms from the file `path`, as algos_read() parses it. Returns false with err (EXIT_DATA) if
// the file cannot be read.
bool algos_read_file(const char *path, const char *gpu, size_t cublas_version, MatmulAlgos *algos, Error *err);

// Returns the rows as text, sorted and without duplicates, so that the text does not depend on the order in which GEMMs
// first ran. The text is allocated with malloc(); NULL if there are no rows.
char *algos_text(const MatmulAlgo rows[], int count, const char *gpu, size_t cublas_version);

C_LINKAGE_END
