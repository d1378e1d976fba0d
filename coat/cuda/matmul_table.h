// Which algorithm a product takes: rows of text, one per GPU, cuBLAS version and shape, as `--autotune` finds and
// writes them. There is a committed table (matmul_table_rows.h), and one in the folder of a run that was tuned,
// which a resumed run goes on with. A shape in neither gets the library's first choice. So only --autotune times
// anything, and otherwise the same command gives the same bits.
#pragma once
#include "formats.h"

#include <stdio.h>

// D (m, n) = op(A) (m, k) * op(B) (k, n), column-major as the library counts. Accumulating into D takes the same
// algorithm as overwriting it.
typedef struct {
    int64_t m, n, k;
    Format a, b, d, bias; // bias FMT_NONE: none
    bool transpose_a, transpose_b;
    bool fast; // FP8: the tensor cores' fast accumulation
} MatmulShape;

typedef struct {
    MatmulShape shape;
    uint64_t algorithm[8]; // cublasLtMatmulAlgo_t, valid for one version of the library
} MatmulChoice;

static inline bool matmul_same_shape(const MatmulShape *x, const MatmulShape *y) {
    return x->m == y->m && x->n == y->n && x->k == y->k && x->a == y->a && x->b == y->b && x->d == y->d &&
           x->bias == y->bias && x->transpose_a == y->transpose_a && x->transpose_b == y->transpose_b &&
           x->fast == y->fast;
}

// Reads the rows for a GPU and cuBLAS version out of the committed table (path NULL) or a file; returns how many
// were kept of at most `most`. A missing file has none; rows that cannot be read are passed over.
int matmul_table_read(const char *path, const char *gpu, size_t cublas_version, MatmulChoice choices[], int most);

void matmul_table_write(FILE *out, const char *gpu, size_t cublas_version, const MatmulChoice *choice);
