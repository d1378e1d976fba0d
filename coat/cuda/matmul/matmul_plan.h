// Plans of matmuls by cuBLASLt: the library's description of a matmul and the algorithm that it takes. A plan
// is made when a shape is first met, and kept.
//
// The algorithm comes from the checkpoint that the run continues from, from --matmul-table, or from the committed
// table; else it is the library's first choice. --autotune times the library's candidates instead of taking the
// committed one. Of an FP8 matmul that is asked to add up in FP32 it is the first, or the fastest, that does: samples
// of its result are compared with sums in FP64 (matmul_samples.h). A matmul that adds takes that of the one that
// overwrites. Algorithms of a checkpoint and of tables are taken as they are: those of the committed table are checked
// by `./test_gpt2 products`.
#pragma once
#include "cuda/common/cuda_internal.h"
#include "matmul_algos.h"
#include "matmul_samples.h"

#include <cublasLt.h>

#define MAX_PLANS 512
#define FIND_CANDIDATES 16 // algorithms that are compared or tried, at most

typedef struct {
    MatmulKey key;
    bool trained; // a matmul of training: checkpoints record its algorithm
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

// For tests: gets the error of every algorithm that an FP8 matmul could take, when its shape is first met. `index` is
// -1 for that of a table, else the library's order.
typedef struct {
    void (*report)(void *context, const MatmulKey *key, int index, MatmulError error);
    void *context;
} MatmulVisitor;

struct MatmulState {
    cublasLtHandle_t handle;
    size_t cublas_version;
    char gpu[256];
    bool fast_data, autotune;
    MatmulAlgos resumed, given, committed; // of the checkpoint, of --matmul-table, of the program: in this order
    MatmulSamples *samples;
    MatmulVisitor visitor; // report NULL: none
    Plan plans[MAX_PLANS];
    int count;
};

// One matmul to be made: its plan's key and the memory.
typedef struct {
    const char *name;
    MatmulKey key;
    const void *a, *b, *bias;
    const void *scale_a, *scale_b; // FP8: one FP32 each, 16-byte aligned; scale_b NULL: the rows' scales are left out
    void *d;
} Matmul;

[[noreturn]] void matmul_fail(const Matmul *p, const char *why);

void matmul_visit(Exec *exec, MatmulVisitor visitor);

// Makes the matmul, by the plan of its shape. The first time it may be made several times.
void matmul_launch(Exec *exec, const Matmul *p);
