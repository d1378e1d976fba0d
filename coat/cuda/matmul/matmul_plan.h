// Plans of cuBLASLt matmuls: cuBLASLt's description of a matmul and the chosen algorithm. A plan is created when its
// key (shape, formats and memory layout) first occurs, and is kept for the run.
//
// Sources of the algorithm, in this order: the checkpoint that the run resumes from; --matmul-table; the committed
// table; cuBLASLt's first choice. With --autotune, cuBLASLt's algorithms are timed instead of using the committed
// table.
// An FP8 matmul that must accumulate in FP32 uses the first (or fastest) algorithm that does so: samples of its result
// are compared with FP64 sums (matmul_samples.h). Algorithms from a checkpoint or table are not checked at run time;
// test_gpt2 checks those of the committed table.
// A matmul that adds to D, and is in none of the tables, uses the algorithm of the matmul that overwrites D.
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

// Test hook that receives the error of every algorithm that an FP8 matmul could use, when its plan is created. index:
// the algorithm's position in cuBLASLt's list; -1: the committed table's algorithm. For a matmul that adds to D,
// receives only the algorithm of the table or, as index 0, that of the matmul that overwrites D.
typedef struct {
    void (*report)(void *context, const MatmulKey *key, int index, MatmulError error);
    void *context;
} MatmulVisitor;

struct MatmulState {
    cublasLtHandle_t handle;
    size_t cublas_version;
    char gpu[256];
    bool fast_data, autotune;
    // algorithm tables, searched in this order: of the checkpoint, of --matmul-table, of the program
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
    // number of matmuls of this shape, and the distances in elements between their operands; c has d's distance
    int count;
    int64_t distance_a, distance_b, distance_d;
} Matmul;

// Ends the process with an internal error that describes the matmul.
[[noreturn]] void matmul_fail(const Matmul *p, const char *why);

// Installs a visitor that receives the errors of all FP8 algorithms, for tests.
void matmul_visit(Exec *exec, MatmulVisitor visitor);

// Runs a matmul with the algorithm of its plan. When a matmul first occurs, it may run several times, and wait for the
// GPU, to choose the algorithm.
void matmul_launch(Exec *exec, const Matmul *p);
