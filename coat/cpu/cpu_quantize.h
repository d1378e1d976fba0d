// FP8 quantization with one scale per tensor by Group Scaling (COAT: FP8 matmuls): first the rows' amaxes and from them
// the scale, then in a second pass the FP8 values and their transpose.
#pragma once
#include "cpu_internal.h"

// A thread's row buffers, each `cols` wide: two inputs of a row and the row itself.
typedef struct {
    real *x, *dy, *out;
} RowBuffers;

RowBuffers row_buffers(Scratch *slot, int64_t cols);

// Rows of a matrix to be quantized. The matrix is not stored in FP32: each pass calls `make`, which computes a row from
// `from` with the same bits every time.
typedef struct {
    const real *(*make)(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers);
    const void *from;
    int64_t rows, cols;
    int64_t widest; // width of the row buffers: the larger of the row's width and its inputs' widths
} RowSource;

// RowSource.make for the rows of a stored tensor; `from` is a Tensor.
const real *stored_row(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers);

// In the functions below, `scratch` is the part of the workspace that the caller has not used.

// Sets exec->state->nonfinite if amax, as FP32 bits, is inf or NaN.
void note_amax(Exec *exec, uint32_t amax);

// Writes q's per-tensor scale for the given amax, and sets exec->state->nonfinite if amax is inf or NaN.
void write_scale(Exec *exec, Tensor q, uint32_t amax);

// q = cast(row / scale) and q_t = its transpose, each with the scale it already has. Either may be absent.
void quantize_rows(Exec *exec, Scratch scratch, const RowSource *source, Tensor q, Tensor q_t);

// Quantizes one row of a SCALE_ROW tensor: computes and writes its scale, then its FP8 values. Returns the row's amax.
uint32_t store_scaled_row(const Cpu *cpu, Tensor q, int64_t row, const real *values);

// True if q is FP8 with one scale for the tensor: a first pass over the rows finds the scale, a second quantizes.
static inline bool has_second_pass(Tensor q) {
    return q.data && format_is_fp8(q.format) && q.granularity == SCALE_TENSOR;
}

// Stores what the first or only pass over the rows produces: the row's amax in q.amax if that exists, and the row
// itself unless has_second_pass(q). Returns the row's amax if q is FP8, else 0.
uint32_t store_row(const Cpu *cpu, Tensor q, int64_t row, const real *values);

// Writes the scale of q_t, the copy of q for matmuls that sum over rows. If q is SCALE_ROW, it is the largest row
// scale. If q is unscaled, it is computed from q.amax. Otherwise q_t shares q's scale, and nothing is written.
void scale_over_rows(Exec *exec, Tensor q_t, Tensor q);

// q_t = transpose of q's FP8 values, converted to q_t's scale, which scale_over_rows() has written before.
void transpose_codes(Exec *exec, Tensor q_t, Tensor q);
