// Rows of FP8 codes as values, and back (COAT section 1). All instruction sets give the same bits, those of
// formats.h and quantize.h.
#pragma once
#include "cpu_internal.h"

// values = code * scale of columns [begin, begin + count) of a row of an FP8 tensor that is not transposed. The codes'
// own values with SCALE_NONE.
void fp8_load(Tensor t, int64_t row, int64_t begin, int64_t count, real *values);

// The largest of the bits of |x| (as FP32).
uint32_t maximum_bits(const real *x, int64_t n);

// codes = cast(x * r) in E4M3 or E5M2.
void fp8_encode_row(uint8_t *codes, const real *x, int64_t n, float r, Format format);

// One row of an E4M3 SCALE_GROUP tensor with its scales. Returns the row's maximum.
uint32_t fp8_store_groups(Tensor t, int64_t row, const real *values);
