// The operands of one model's operations, as bench_kernels.cu has them.
#pragma once
#include "bench_report.h"

typedef struct {
    const char *name;
    int B, T, C, L; // F = 4 C
} Model;

// Everything that the operations of one model take; only what the current operation needs exists.
typedef struct {
    Model model;
    int set; // in use
    Tensor r[SETS], y[SETS], x[SETS], n[SETS];
    Tensor wide[SETS], wide_out[SETS];
    Tensor tokens, wte, wpe, dwte, dwpe, bias, weight, mean, rstd, sums, sums2, losses;
    Heads heads;
    StepState *state;
    Parameter *parameters;
    int count;
} Operands;

// The operands, with the next set in use.
static inline Operands *operands_next(void *context) {
    Operands *o = (Operands *)context;
    o->set = (o->set + 1) % SETS;
    return o;
}
