// FP8 copies of the inputs, gradients and weights of products (COAT sections 3 and 4).
#include "cpu_quantize.h"

#include <string.h>

#include "cpu_fp8.h"
#include "quantize.h"

void note_maximum(Exec *exec, uint32_t maximum) {
    if (maximum >= NONFINITE_BITS && exec->state) exec->state->nonfinite = 1;
}

static void require_codes(const char *operation, Tensor t) {
    if (!t.data || (format_is_fp8(t.format) && t.granularity == SCALE_TENSOR && t.scale)) return;
    fatal(EXIT_DEVICE, "the CPU backend's %s cannot write %s codes without a scale", operation, format_name(t.format));
}

static const real *tensor_row_values(const Cpu *cpu, const void *from, int64_t row, real *buffer, real *other) {
    (void)other;
    const Tensor *t = (const Tensor *)from;
    return row_load(cpu, *t, row, 0, t->cols, buffer);
}

RowSource source_of_tensor(const Tensor *tensor) {
    RowSource source = {tensor_row_values, tensor, tensor->rows, tensor->cols};
    return source;
}

uint32_t source_maximum(Exec *exec, const RowSource *source, uint32_t *amax) {
    const Cpu *cpu = cpu_of(exec);
    Scratch scratch = scratch_begin_rows(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(source->cols));
    uint32_t largest = 0;
#pragma omp parallel num_threads(threads) reduction(max : largest)
    {
        Scratch slot = scratch_slot(&scratch);
        real *buffer = scratch_take(&slot, source->cols), *other = scratch_take(&slot, source->cols);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < source->rows; row++) {
            uint32_t bits = maximum_bits(source->make(cpu, source->from, row, buffer, other), source->cols);
            if (amax) amax[row] = bits;
            largest = bits > largest ? bits : largest;
        }
    }
    return largest;
}
