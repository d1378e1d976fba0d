// Plans of matrix products by cuBLASLt: the library's description of a product and the algorithm that it takes. A plan
// is made when a shape is first met, and kept.
//
// The algorithm comes from the checkpoint that the run goes on from, from --matmul-table, or from the committed table;
// else it is the library's first choice. --autotune times the library's candidates instead of taking the committed one.
// Of an FP8 product that is asked to add up in FP32 it is the first, or the fastest, that does: samples of its
// result are held against sums in FP64 (product_samples.h). A product that adds takes that of the one that
// overwrites. Algorithms of a checkpoint and of tables are taken as they are: those of the committed table are
// checked by `./test_gpt2 products`.
#pragma once
#include "cuda/common/cuda_internal.h"
#include "io/matmul_choices.h"
#include "product_samples.h"

#include <cublasLt.h>

#define MAX_PLANS 512
#define FIND_CANDIDATES 16 // algorithms that are compared or tried, at most

typedef struct {
    MatmulKey key;
    bool trained; // a product of training: checkpoints record its algorithm
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

// For tests: gets the error of every algorithm that an FP8 product could take, when its shape is first met. `index` is
// -1 for that of a table, else the library's order.
typedef struct {
    void (*report)(void *context, const MatmulKey *key, int index, ProductError error);
    void *context;
} MatmulVisitor;

struct MatmulState {
    cublasLtHandle_t handle;
    size_t cublas_version;
    char gpu[256];
    bool fast_data, autotune;
    MatmulChoices resumed, given, committed; // of the checkpoint, of --matmul-table, of the program: in this order
    ProductSamples *samples;
    MatmulVisitor visitor; // report NULL: none
    Plan plans[MAX_PLANS];
    int count;
};

// One product to be made: its plan's key and the memory.
typedef struct {
    const char *name;
    MatmulKey key;
    const void *a, *b, *bias;
    const void *scale_a, *scale_b; // FP8: one FP32 each, 16-byte aligned; scale_b NULL: the rows' scales are left out
    void *d;
} Product;

[[noreturn]] void product_fail(const Product *p, const char *why);

void matmul_visit(Exec *exec, MatmulVisitor visitor);

// Makes the product, by the plan of its shape. The first time it may be made several times.
void product_launch(Exec *exec, const Product *p);
