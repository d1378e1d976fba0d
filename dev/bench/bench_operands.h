// The operands of one model's operations in bench_kernels.cu.
#pragma once
#include "bench_report.h"

typedef struct {
    const char *name;
    int B, T, C, L; // batch, sequence length, channels and layers; the MLP width F is 4 C
} Model;

// Operands of all operations of one model. Only the tensors of the current operation are allocated.
typedef struct {
    Model model;
    int set; // index of the operand set in use
    Tensor r[SETS], y[SETS], x[SETS], n[SETS];
    Tensor wide[SETS], wide_out[SETS];
    Tensor tokens, wte, wpe, dwte, dwpe, bias, weight, mean, rstd, sums, sums2, losses;
    QkRope heads;
    StepState *state;
    Parameter *parameters;
    int count;
} Operands;

// Switches to the next operand set and returns the operands.
static inline Operands *operands_next(void *context) {
    Operands *o = (Operands *)context;
    o->set = (o->set + 1) % SETS;
    return o;
}
