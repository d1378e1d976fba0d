// Which algorithm each matmul takes, as rows of text: one per GPU, cuBLAS version, shape and memory. There is a
// committed table (cuda/matmul/matmul_table_rows.h); a run may be given another one (--matmul-table FILE), --autotune
// leaves one in the run's folder; and a checkpoint holds the choices of the run that wrote it, which go on to hold for
// those that are resumed from it. What is in none of them gets the library's first choice (cuda/matmul/matmul_plan.h).
// So only --autotune times anything, and otherwise the same command gives the same bits.
//
// A row: cuBLAS version; m n k; formats of A, B, D and the bias; A, B transposed; fast accumulation; in parentheses the
// strides of A, B, D, their alignments in bytes, and whether it adds to D; the algorithm; the GPU:
//   130100 768 1024 768 bf16 bf16 bf16 none 0 0 0 (768 768 768 256 256 256 0) 1d00000042 ... 44000e000e 0 NVIDIA H200
// The parentheses may be left out: then the row is for all memory.
#pragma once
#include "base/error.h"
#include "numerics/formats.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MATMUL_TABLE_NAME "matmul_table.txt" // in a checkpoint; and in the folder of a run with --autotune
#define MATMUL_TABLE_LIMIT ((size_t)4 << 20) // bytes of such a file

// D (m, n) = op(A) (m, k) * op(B) (k, n), column-major as the library counts.
typedef struct {
    int64_t m, n, k;
    Format a, b, d, bias; // bias FMT_NONE: none
    bool transpose_a, transpose_b;
    bool fast; // FP8: the tensor cores' fast accumulation
} MatmulShape;

// All that an algorithm is chosen by.
typedef struct {
    MatmulShape shape;
    int64_t lda, ldb, ldd;
    int align_a, align_b, align_d; // bytes: powers of two up to 256
    bool accumulate;               // adds to D
} MatmulKey;

typedef struct {
    MatmulKey key;
    bool any_memory;       // of the key only the shape is said
    uint64_t algorithm[8]; // cublasLtMatmulAlgo_t, valid for one version of the library
} MatmulChoice;

typedef struct {
    MatmulChoice *rows; // malloc'ed
    int count;
} MatmulChoices;

static inline bool matmul_same_shape(const MatmulShape *x, const MatmulShape *y) {
    return x->m == y->m && x->n == y->n && x->k == y->k && x->a == y->a && x->b == y->b && x->d == y->d &&
           x->bias == y->bias && x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b &&
           x->fast == y->fast;
}

bool matmul_same_key(const MatmulKey *x, const MatmulKey *y);

// Whether a row is this matmul's own; or, not `exact`, of its shape and of memory that is aligned no better.
bool matmul_choice_fits(const MatmulChoice *choice, const MatmulKey *key, bool exact);

// The rows of a text for this GPU and cuBLAS version, in its order. Others, and lines that are no rows, are ignored.
MatmulChoices matmul_choices_read(const char *text, const char *gpu, size_t cublas_version);
// The rows of a text for another GPU, behind those that are there: where both have a shape, the first holds.
void matmul_choices_add(MatmulChoices *choices, const char *text, const char *gpu, size_t cublas_version);
// matmul_choices_read() of a file, which must be there.
bool matmul_choices_read_file(const char *path, const char *gpu, size_t cublas_version, MatmulChoices *choices,
                              Error *err);

// The rows as text, sorted, so that it does not depend on which matmul came first; malloc'ed. NULL: there are none.
char *matmul_choices_text(const MatmulChoice rows[], int count, const char *gpu, size_t cublas_version);

#ifdef __cplusplus
}
#endif
