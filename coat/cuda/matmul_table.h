// The table of product algorithms: what `bench_matmul --autotune` found fastest, per GPU, cuBLAS version and shape.
// A shape that is not here gets the library's first choice. Either way a run never times anything, so that the
// same command gives the same bits.
#pragma once
#include "formats.h"

// D (m, n) = op(A) (m, k) * op(B) (k, n), column-major as the library counts. Accumulating into D uses the same
// algorithm as overwriting it.
typedef struct {
    int64_t m, n, k;
    Format a, b, d, bias; // bias FMT_NONE: none
    bool transpose_a, transpose_b;
    bool fast; // FP8: the tensor cores' fast accumulation
} MatmulShape;

typedef struct {
    const char *gpu;       // as the driver names it; NULL ends the table
    size_t cublas_version; // an algorithm is valid for this version of the library only
    MatmulShape shape;
    uint64_t algorithm[8]; // cublasLtMatmulAlgo_t
} MatmulChoice;

static const MatmulChoice matmul_table[] = {
    {NULL, 0, {0, 0, 0, FMT_NONE, FMT_NONE, FMT_NONE, FMT_NONE, false, false, false}, {0}},
};
