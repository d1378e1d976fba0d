// Element-wise checks of GPU operations against the CPU backend. test_gpt2 runs all checks; a benchmark runs those of
// its operations. A check opens the GPU, prints failed comparisons and a TAP line, and returns the number of failures.
//   small: true: runs a few small shapes that still reach every kernel, for compute-sanitizer
#pragma once
#include <stdio.h>

int check_kernels(bool small);          // checks memory-bound operations in BF16 and FP32
int check_fp8(bool small);              // checks FP8 quantization, norms and activations
int check_optimizer_states(bool small); // checks AdamW with every storage format of its states
int check_muon(bool small);             // checks Muon's operations
int check_matmul(bool small);           // checks that training's FP8 matmul algorithms accumulate in FP32

// Prints the TAP line of a check with `wrong` failed comparisons. A check without comparisons fails. Returns the number
// of failures.
static inline int check_report(const char *name, int comparisons, int wrong) {
    const int failed = comparisons > 0 ? wrong : 1;
    printf("%s - GPU against CPU: %s: %d of %d comparisons\n", failed ? "not ok" : "ok", name, comparisons - wrong,
           comparisons);
    fflush(stdout);
    return failed;
}
