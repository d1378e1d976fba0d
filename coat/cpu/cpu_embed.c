// Computes token and position embeddings and their gradients on the CPU.
#include "cpu_internal.h"

#include <string.h>

#define STRIP 32 // number of columns of a table's gradient that a task of add_rows() processes

void cpu_embed_forward(Exec *exec, Tensor r, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe, int T) {
    require_plain("embed_forward", r);
    const Cpu *cpu = cpu_of(exec);
    const int32_t *token = (const int32_t *)tokens.data;
    int64_t C = r.cols;
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *sum = scratch_take(&slot, C), *buffer = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < r.rows; row++) {
            const real *value = row_load(cpu, wte, token[row], 0, C, sum);
            if (wpe.data) {
                if (value != sum) memcpy(sum, value, (size_t)C * sizeof(real));
                cpu->kernels->add(sum, row_load(cpu, wpe, row_position(positions, row, T), 0, C, buffer), C);
                value = sum;
            }
            row_store(cpu, r, row, 0, C, value);
        }
    }
}

// Computes dw[of[row]] += g[row] for every row of g. Each task adds STRIP columns of all rows, in the order of the
// rows, so that the sums do not depend on timing.
static void add_rows(const Cpu *cpu, Tensor dw, Tensor g, const int32_t *of) {
    int64_t strips = (g.cols + STRIP - 1) / STRIP;
#pragma omp parallel for num_threads(cpu->threads) schedule(dynamic)
    for (int64_t s = 0; s < strips; s++) {
        real buffer[STRIP];
        int64_t begin = s * STRIP, count = smaller(STRIP, g.cols - begin);
        for (int64_t row = 0; row < g.rows; row++)
            cpu->kernels->add((real *)row_address(dw, of[row]) + begin, row_load(cpu, g, row, begin, count, buffer),
                              count);
    }
}

// Computes dwpe[t] = (accumulate ? dwpe[t] : 0) + the sum of g over the tokens at position t of all sequences. For t >=
// T, the sum is 0.
static void add_position_rows(Exec *exec, Tensor dwpe, Tensor g, int T, bool accumulate) {
    const Cpu *cpu = cpu_of(exec);
    int64_t C = g.cols;
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *buffer = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t t = 0; t < dwpe.rows; t++) {
            real *sum = (real *)row_address(dwpe, t);
            if (!accumulate) memset(sum, 0, (size_t)C * sizeof(real));
            if (t >= T) continue;
            for (int64_t row = t; row < g.rows; row += T)
                cpu->kernels->add(sum, row_load(cpu, g, row, 0, C, buffer), C);
        }
    }
}

void cpu_embed_backward(Exec *exec, Tensor dwte, Tensor dwpe, Tensor g, Tensor tokens, Tensor positions, int T,
                        bool accumulate) {
    require_plain("embed_backward", g);
    if (dwte.data) add_rows(cpu_of(exec), dwte, g, (const int32_t *)tokens.data);
    if (dwpe.data && !positions.data) add_position_rows(exec, dwpe, g, T, accumulate);
    if (!dwpe.data || !positions.data) return;
    if (!accumulate) memset(dwpe.data, 0, (size_t)tensor_elements(dwpe) * sizeof(real));
    add_rows(cpu_of(exec), dwpe, g, (const int32_t *)positions.data);
}
