// Quantizes to FP8 with one scale per tensor by Group Scaling (COAT: FP8 matmuls). A first pass computes the rows'
// amaxes and from them the scale; a second pass computes the FP8 values and their transpose.
#pragma once
#include "cpu_internal.h"

// Row buffers of a thread, each `cols` wide: two for inputs of a row and one for the row.
typedef struct {
    real *x, *dy, *out;
} RowBuffers;

RowBuffers row_buffers(Scratch *slot, int64_t cols);

// A matrix to be quantized, given by a function that computes its rows. The matrix is not stored in FP32: each pass
// calls `make`, which computes a row from `from` with identical bits every time.
typedef struct {
    const real *(*make)(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers);
    const void *from;
    int64_t rows, cols;
    int64_t widest; // width of the row buffers: the maximum of the row's width and its inputs' widths
} RowSource;

// RowSource.make for a stored tensor: returns its rows. `from` is a pointer to the Tensor.
const real *stored_row(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers);

// The parameter `scratch` of the following functions is the part of the workspace that the caller has not used.

// Sets exec->state->nonfinite if amax, as FP32 bits, is inf or NaN.
void note_amax(Exec *exec, uint32_t amax);

// Writes q's per-tensor scale for the given amax, and sets exec->state->nonfinite if amax is inf or NaN.
void write_scale(Exec *exec, Tensor q, uint32_t amax);

// Quantizes the rows of `source` to q and their transpose to q_t, each with the scale that it already has. q or q_t may
// be absent.
void quantize_rows(Exec *exec, Scratch scratch, const RowSource *source, Tensor q, Tensor q_t);

// Quantizes one row of a SCALE_ROW tensor: computes and writes its scale, then its FP8 values. Returns the row's amax.
uint32_t store_scaled_row(const Cpu *cpu, Tensor q, int64_t row, const real *values);

// True if q is FP8 with one scale for the tensor. Its quantization needs two passes over the rows: the first finds the
// scale, the second quantizes.
static inline bool has_second_pass(Tensor q) {
    return q.data && format_is_fp8(q.format) && q.granularity == SCALE_TENSOR;
}

// Stores the results of the first pass over a row: the row's amax in q.amax if that exists, and the row itself unless
// has_second_pass(q). Returns the row's amax if q is FP8, else 0.
uint32_t store_row(const Cpu *cpu, Tensor q, int64_t row, const real *values);

// Writes the scale of q_t, the transposed copy of q that wgrad reads. If q is SCALE_ROW, the scale is the largest row
// scale. If q is unscaled, the scale is computed from q.amax. Otherwise q_t shares q's scale, and nothing is written.
void scale_over_rows(Exec *exec, Tensor q_t, Tensor q);

// Writes the transpose of q's FP8 values to q_t, converted to q_t's scale, which scale_over_rows() must have written
// before.
void transpose_codes(Exec *exec, Tensor q_t, Tensor q);
