// Quantisation to one scale per tensor by Group Scaling (COAT section 1): the maxima of the rows, from them the
// tensor's scale, and in a second pass the codes and their transpose.
#pragma once
#include "cpu_internal.h"

// The rows of a matrix that is to be quantised. They are not stored in FP32: `make` gives a row again in every pass,
// with the same bits. It may use both buffers, each a row wide.
typedef struct {
    const real *(*make)(const Cpu *cpu, const void *from, int64_t row, real *buffer, real *other);
    const void *from;
    int64_t rows, cols;
} RowSource;

// The rows of a tensor, which is `from`.
RowSource source_of_tensor(const Tensor *tensor);

// Raises the step's flag if a maximum of what is to be quantised is not finite.
void note_maximum(Exec *exec, uint32_t maximum);

// The maximum over all rows; those of the rows go to amax (rows), where present.
uint32_t source_maximum(Exec *exec, const RowSource *source, uint32_t *amax);

// Writes q's scale for this maximum, and raises the flag where it is not finite. Returns the scale.
float write_scale(Exec *exec, Tensor q, uint32_t maximum);

// codes = cast(row * (1 / scale)) to q and, transposed, to q_t; either may be absent.
void quantize_rows(Exec *exec, const RowSource *source, Tensor q, Tensor q_t, float scale);

// q_t = the transpose of q's codes, which have the same scale.
void transpose_codes(Exec *exec, Tensor q_t, Tensor q);
