// Converts 8-bit moments (moments.h) in E4M3, E5M2 or INT8 to reals and back, on the host.
#pragma once
#include "tensor.h"

typedef struct {
    // true (--moments coat): a group's exponent k stretches the group's range to the format's range. false (--moments
    // fp8): k is 1. Ignored for INT8, whose k is always 1
    bool expand;
    bool second; // true: second moment, which has no sign; only an exact 0 is stored as 0
} MomentStore;

// Decodes elements [begin, begin + n) of a contiguous SCALE_EXPAND tensor to `values`. The range must consist of entire
// groups; the tensor's last group may have fewer elements than the others.
void moments_load(Tensor moment, int64_t begin, int64_t n, real *values);

// Encodes `values` as elements [begin, begin + n) of a contiguous SCALE_EXPAND tensor. The range must consist of entire
// groups, as in moments_load(). If a value is not finite, stores a non-finite amax for that value's group and returns
// false.
bool moments_store(Tensor moment, int64_t begin, int64_t n, const real *values, const MomentStore *how);
