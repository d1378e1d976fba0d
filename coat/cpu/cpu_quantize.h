// Quantizes to FP8 on the CPU. If a tensor has one scale, a first pass computes the amax of each row, and the largest
// amax determines the scale (COAT's Group Scaling). A second pass computes the FP8 values and their transpose.
#pragma once
#include "cpu_internal.h"

// Row buffers of a thread: two (x, dy) for the inputs of a row, and one (out) for the computed row.
typedef struct {
    real *x, *dy, *out;
} RowBuffers;

RowBuffers row_buffers(Scratch *slot, int64_t cols);

// A matrix to be quantized, which need not be in memory. Each pass over the rows calls make(), which computes a row
// from the operation's inputs (`from`), with identical bits in every pass. make() may compute the row in `buffers`.
typedef struct {
    const real *(*make)(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers);
    const void *from;
    int64_t rows, cols;
    int64_t widest; // width of the row buffers: the maximum of cols and the widths of the inputs
} RowSource;

// RowSource.make for a matrix that is stored in a tensor. from: address of the Tensor.
const real *stored_row(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers);

// Sets exec->state->nonfinite if amax, as FP32 bits, is inf or NaN.
void note_amax(Exec *exec, uint32_t amax);

// Writes q's per-tensor scale for the given amax, and sets exec->state->nonfinite if amax is inf or NaN.
void write_scale(Exec *exec, Tensor q, uint32_t amax);

// Quantizes the matrix `source` to q, and its transpose to q_t. The scales of q and q_t must already be in memory. q or
// q_t may have no data. scratch: the part of the workspace that the caller does not use.
void quantize_rows(Exec *exec, Scratch scratch, const RowSource *source, Tensor q, Tensor q_t);

// True if q is FP8 with one scale for the tensor. Quantizing to q then needs two passes over the rows: the first
// computes the scale, the second quantizes.
static inline bool has_second_pass(Tensor q) {
    return q.data && format_is_fp8(q.format) && q.granularity == SCALE_TENSOR;
}

// If q has a second pass, writes q's scale for the amax that the first pass found, and quantizes the matrix `source` to
// q. Otherwise does nothing.
void second_pass(Exec *exec, Scratch scratch, const RowSource *source, Tensor q, uint32_t amax);

// Stores a computed row to q in the first pass over the rows.
//   unscaled q: writes the row. FP8 SCALE_ROW: quantizes the row, with its own scale.
//   FP8 SCALE_TENSOR: only computes the row's amax, because a second pass quantizes the row.
// Writes the amax to q.amax if that exists, except with SCALE_ROW. Returns the amax as FP32 bits if q is FP8, else 0.
uint32_t store_row(const Cpu *cpu, Tensor q, int64_t row, const real *values);

// Writes the scale of q_t, the transposed copy of q that wgrad reads. If q is SCALE_ROW, the scale is the largest row
// scale. If q is unscaled and q_t is FP8, the scale is computed from q.amax. Otherwise writes nothing, because q_t
// shares q's scale or has none.
void scale_over_rows(Exec *exec, Tensor q_t, Tensor q);

// Writes the transpose of q to q_t, converted from q's scales to q_t's scale. Call scale_over_rows() first.
void transpose_codes(Exec *exec, Tensor q_t, Tensor q);
