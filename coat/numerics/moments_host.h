// Converts 8-bit moments (moments.h) between their format (E4M3, E5M2 or INT8) and reals, on the host.
#pragma once
#include "tensor.h"

typedef struct {
    // true (--moments coat): k stretches a group's range to the format's; false (--moments fp8): k is 1. INT8: k is 1
    bool expand;
    bool second; // true: second moment, which has no sign and is stored as 0 only if it is 0
} MomentStore;

// Decodes elements [begin, begin + n) of a contiguous SCALE_EXPAND tensor to `values`. The range must begin at a group
// and contain entire groups, except that the tensor's last group may be shorter.
void moments_load(Tensor moment, int64_t begin, int64_t n, real *values);

// Encodes `values` as elements [begin, begin + n) of a contiguous SCALE_EXPAND tensor, a range as in moments_load().
// Returns false if a value is not finite; its group's a is then not finite either.
bool moments_store(Tensor moment, int64_t begin, int64_t n, const real *values, const MomentStore *how);
