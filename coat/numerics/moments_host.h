// The 8-bit moments on the host: pieces of whole groups as FP32, and back (moments.h).
#pragma once
#include "tensor.h"

// How a moment is stored.
typedef struct {
    bool expand; // k fits the group's range (--moments coat), else it is 1 (fp8)
    bool second; // the second moment: no sign, and 0 for zero alone
} MomentStore;

// values = elements [begin, begin + n) of a SCALE_EXPAND tensor, which begin and end with whole groups (the tensor's
// last group may be shorter).
void moments_load(Tensor moment, int64_t begin, int64_t n, real *values);

// Stores values into the same range of elements. False if a value is not finite; its group's a is then not finite
// either.
bool moments_store(Tensor moment, int64_t begin, int64_t n, const real *values, const MomentStore *how);
