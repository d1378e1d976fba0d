// Plans of cuBLASLt matmuls. A plan contains cuBLASLt's description of a matmul and the chosen algorithm. It is created
// when a matmul with its key (shape, formats and memory layout) first runs, and exists until the run ends.
//
// Sources of the algorithm, in this order: the checkpoint that the run resumes from; --matmul-table; the committed
// table; cuBLASLt's first choice. The committed table is matmul_table_rows.h. With --autotune, matmuls of training do
// not use the committed table; their algorithm is the fastest of cuBLASLt's algorithms.
// An FP8 matmul that must accumulate in FP32 uses the first (with --autotune, the fastest) algorithm that does so. To
// check an algorithm, samples of its result are compared with FP64 sums (matmul_samples.h). Algorithms from a
// checkpoint or table are not checked at run time; test_gpt2 checks those of the committed table.
// A matmul that adds to D and has no table row uses the algorithm of the matmul of the same shape that overwrites D.
#pragma once
#include "cuda/common/cuda_internal.h"
#include "matmul_algos.h"
#include "matmul_samples.h"

#include <cublasLt.h>

#define MAX_PLANS 2048     // maximum number of different matmuls in a run
#define FIND_CANDIDATES 16 // maximum number of algorithms that are timed or checked for a matmul

typedef struct {
    MatmulKey key;
    bool trained; // true: training uses this plan, so checkpoints record its algorithm
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

// Test hook. When the plan of an FP8 matmul is created, report() is called with the error of every algorithm that the
// matmul could use. index: the algorithm's position in cuBLASLt's list; -1: the committed table's algorithm. For a
// matmul that adds to D, report() is called at most once: for the committed table's algorithm (index -1) or, without a
// row, for the algorithm of the matmul that overwrites D (index 0).
typedef struct {
    void (*report)(void *context, const MatmulKey *key, int index, MatmulError error);
    void *context;
} MatmulVisitor;

struct MatmulState {
    cublasLtHandle_t handle;
    size_t cublas_version;
    char gpu[256];
    bool fast_data, autotune;
    // algorithm tables in order of search: the checkpoint's, --matmul-table's, the committed table's rows
    MatmulAlgos resumed, given, committed;
    MatmulSamples *samples;
    MatmulVisitor visitor; // receives errors of algorithms for tests; visitor.report is NULL if there is none
    Plan plans[MAX_PLANS];
    int count;
};

// A matmul to run: the shape that selects its plan, and the addresses of its operands.
typedef struct {
    const char *name;
    MatmulKey key;
    const void *a, *b, *bias;
    // FP32 scales of FP8 operands, 16-byte aligned; scale_b is NULL if the matmul ignores b's row scales
    const void *scale_a, *scale_b;
    // The result is D = alpha * A * B + beta * C. c has D's layout and may be d. key.accumulate: c is d, and beta is 1
    const void *c;
    void *d;
    float alpha, beta;
    // count: number of matmuls of this shape in a batch. distance_a, distance_b, distance_d: elements between
    // consecutive matrices; c has d's distance
    int count;
    int64_t distance_a, distance_b, distance_d;
} Matmul;

// Ends the process with an internal error that describes the matmul.
[[noreturn]] void matmul_fail(const Matmul *p, const char *why);

// Installs a visitor that receives the errors of all FP8 algorithms, for tests.
void matmul_visit(Exec *exec, MatmulVisitor visitor);

// Runs a matmul with the algorithm of its plan. When a matmul's key first occurs, this function may run the matmul
// several times and wait for the GPU, to choose the algorithm.
void matmul_launch(Exec *exec, const Matmul *p);
