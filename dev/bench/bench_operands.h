// The operands of one model's operations in bench_kernels.cu.
#pragma once
#include "bench_report.h"

typedef struct {
    const char *name;
    int B, T, C, L; // F = 4 C
} Model;

// Operands of all operations of one model. Only those of the current operation are allocated.
typedef struct {
    Model model;
    int set; // the set in use
    Tensor r[SETS], y[SETS], x[SETS], n[SETS];
    Tensor wide[SETS], wide_out[SETS];
    Tensor tokens, wte, wpe, dwte, dwpe, bias, weight, mean, rstd, sums, sums2, losses;
    QkRope heads;
    StepState *state;
    Parameter *parameters;
    int count;
} Operands;

// Returns the operands after switching to the next set.
static inline Operands *operands_next(void *context) {
    Operands *o = (Operands *)context;
    o->set = (o->set + 1) % SETS;
    return o;
}
