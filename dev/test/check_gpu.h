// The checks of the GPU's operations against the CPU backend's by single values and codes. test_gpt2 runs all of them,
// a benchmark those of what it times. Each opens a GPU for itself, prints the comparisons that failed and a line as
// test_gpt2's tests have it, and returns how many failed. small: few small shapes, which reach every kernel all the
// same, for compute-sanitizer.
#pragma once
#include <stdio.h>

int check_kernels(bool small);          // the memory-bound operations in BF16 and FP32
int check_fp8(bool small);              // the FP8 precision flow's
int check_optimizer_states(bool small); // the AdamW step in every storage of its states
int check_matmul(bool small);           // that FP8 matmuls add up in FP32, by every algorithm they could take

// The line.
static inline int check_report(const char *name, int comparisons, int wrong) {
    printf("%s - GPU against CPU: %s: %d of %d comparisons\n", wrong ? "not ok" : "ok", name, comparisons - wrong,
           comparisons);
    fflush(stdout);
    return wrong;
}
