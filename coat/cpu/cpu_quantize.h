// Quantisation to one scale per tensor by Group Scaling (COAT: FP8 matmuls): the maxima of the rows, from them the
// tensor's scale, and in a second pass the codes and their transpose.
#pragma once
#include "cpu_internal.h"

// Buffers of a thread, each `cols` wide: for what a row is made from, and for the row.
typedef struct {
    real *x, *dy, *out;
} RowBuffers;

RowBuffers row_buffers(Scratch *slot, int64_t cols);

// The rows of a matrix that is to be quantised. They are not stored in FP32: `make` gives a row again in every pass,
// with the same bits.
typedef struct {
    const real *(*make)(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers);
    const void *from;
    int64_t rows, cols;
    int64_t widest; // of what a row is made from, and of the row: the width of the buffers
} RowSource;

// Below, `scratch` is what an operation has left of the workspace.

// Raises the step's flag if a maximum of what is to be quantised is not finite.
void note_maximum(Exec *exec, uint32_t maximum);

// Writes q's scale for the maximum of what q is made from, and raises the flag where it is not finite.
void write_scale(Exec *exec, Tensor q, uint32_t maximum);

// codes = cast(row * (1 / scale)) to q and, transposed, to q_t, with the scale that they have. Either may be absent.
void quantize_rows(Exec *exec, Scratch scratch, const RowSource *source, Tensor q, Tensor q_t);

// The same row by row, to a tensor with a scale per row: that of this row, and its codes. Returns its maximum.
uint32_t store_scaled_row(const Cpu *cpu, Tensor q, int64_t row, const real *values);

// Whether q's codes wait for their one scale, which a first pass over the rows finds and a second has.
static inline bool has_second_pass(Tensor q) {
    return q.data && format_is_fp8(q.format) && q.granularity == SCALE_TENSOR;
}

// What the first, or only, pass leaves of a row: in q.amax, where present, its maximum; and, where q's codes have no
// second pass, the row itself, plain or as codes. Returns its maximum, 0 of a plain one.
uint32_t store_row(const Cpu *cpu, Tensor q, int64_t row, const real *values);

// The scale of q_t, for matmuls over the rows: where q has a scale per row, the largest of them; where q is plain,
// that of the maxima that lie with it; else they share one.
void scale_over_rows(Exec *exec, Tensor q_t, Tensor q);

// q_t = the transpose of q's codes, in q_t's scale, which scale_over_rows() has made.
void transpose_codes(Exec *exec, Tensor q_t, Tensor q);
