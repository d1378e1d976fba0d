// The activation function, and what the FP8 recipes will hang on it: quantised copies of the inputs and
// gradients of products. In plain recipes those copies are the tensors themselves.
#include "cpu_internal.h"

#include <string.h>

void cpu_gelu_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias) {
    require_plain("gelu_forward", g);
    require_plain("gelu_forward", h);
    require_plain("gelu_forward", y);
    const Cpu *cpu = cpu_of(exec);
    int64_t M = y.rows, F = y.cols;
    bool complete = h.data == y.data && !bias.data;
    if (complete && !g.data) return;
    Scratch scratch = scratch_begin(exec);
    const real *added = scratch_vector(&scratch, cpu, bias);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(F));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *h_buffer = scratch_take(&slot, F), *g_buffer = scratch_take(&slot, F);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < M; row++) {
            const real *value = row_load(cpu, y, row, 0, F, h_buffer);
            if (!complete) {
                real *sum = h.data ? row_target(h, row, 0, h_buffer) : h_buffer;
                if (sum != value) memcpy(sum, value, (size_t)F * sizeof(real));
                if (added) cpu->kernels->add(sum, added, F);
                value = sum;
                if (h.data) {
                    row_store(cpu, h, row, 0, F, value);
                    value = row_load(cpu, h, row, 0, F, h_buffer); // gelu reads what is stored
                }
            }
            if (!g.data) continue;
            real *out = row_target(g, row, 0, g_buffer);
            cpu->kernels->gelu(out, value, F);
            row_store(cpu, g, row, 0, F, out);
        }
    }
}

void cpu_gelu_rebuild(Exec *exec, Tensor g_t, Tensor g, Tensor h) {
    if (!g_t.data || g_t.data == g.data) return;
    Tensor none = {0};
    cpu_gelu_forward(exec, g_t, h, h, none); // h is complete: only g is made
}

void cpu_gelu_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h, bool accumulate) {
    require_plain("gelu_backward", dh_q);
    require_plain("gelu_backward", dh_qt);
    require_plain("gelu_backward", dg);
    require_plain("gelu_backward", h);
    const Cpu *cpu = cpu_of(exec);
    int64_t M = dg.rows, F = dg.cols, step = reduction_rows(M), blocks = (M + step - 1) / step;
    int64_t stride = (int64_t)(cpu_piece(F) / sizeof(real));
    Scratch scratch = scratch_begin(exec);
    real *sums = dbias.data ? scratch_take(&scratch, CPU_REDUCTION_BLOCKS * stride) : NULL;
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(F));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *h_buffer = scratch_take(&slot, F), *dg_buffer = scratch_take(&slot, F), *buffer = scratch_take(&slot, F);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            real *sum = sums ? sums + b * stride : NULL;
            if (sum) memset(sum, 0, (size_t)F * sizeof(real));
            for (int64_t row = b * step; row < smaller(M, (b + 1) * step); row++) {
                cpu->kernels->gelu_gradient(buffer, row_load(cpu, dg, row, 0, F, dg_buffer),
                                            row_load(cpu, h, row, 0, F, h_buffer), F);
                if (sum) cpu->kernels->add(sum, buffer, F);
                if (dh_q.data) row_store(cpu, dh_q, row, 0, F, buffer);
                if (dh_qt.data && dh_qt.data != dh_q.data) row_store(cpu, dh_qt, row, 0, F, buffer);
            }
        }
    }
    reduce_partials(cpu, dbias, sums, blocks, accumulate);
}

// Copies x to q in q's plain format, row by row.
static void copy_plain(Exec *exec, const char *operation, Tensor q, Tensor x) {
    if (!q.data || q.data == x.data) return;
    require_plain(operation, q);
    require_plain(operation, x);
    const Cpu *cpu = cpu_of(exec);
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(x.cols));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *buffer = scratch_take(&slot, x.cols);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < x.rows; row++)
            row_store(cpu, q, row, 0, x.cols, row_load(cpu, x, row, 0, x.cols, buffer));
    }
}

void cpu_quantize_forward(Exec *exec, Tensor q, Tensor x) {
    copy_plain(exec, "quantize_forward", q, x);
}

void cpu_quantize_rebuild(Exec *exec, Tensor q_t, Tensor q, Tensor x) {
    if (q_t.data != q.data) copy_plain(exec, "quantize_rebuild", q_t, x);
}

// dbias (1, N) = column sums of dy (M, N).
static void column_sums(Exec *exec, Tensor dbias, Tensor dy, bool accumulate) {
    const Cpu *cpu = cpu_of(exec);
    int64_t M = dy.rows, N = dy.cols, step = reduction_rows(M), blocks = (M + step - 1) / step;
    int64_t stride = (int64_t)(cpu_piece(N) / sizeof(real));
    Scratch scratch = scratch_begin(exec);
    real *sums = scratch_take(&scratch, CPU_REDUCTION_BLOCKS * stride);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(N));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *buffer = scratch_take(&slot, N);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            real *sum = sums + b * stride;
            memset(sum, 0, (size_t)N * sizeof(real));
            for (int64_t row = b * step; row < smaller(M, (b + 1) * step); row++)
                cpu->kernels->add(sum, row_load(cpu, dy, row, 0, N, buffer), N);
        }
    }
    reduce_partials(cpu, dbias, sums, blocks, accumulate);
}

void cpu_grad_quantize(Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate) {
    require_plain("grad_quantize", dy);
    if (dbias.data) column_sums(exec, dbias, dy, accumulate);
    copy_plain(exec, "grad_quantize", dy_q, dy);
    if (dy_qt.data != dy_q.data) copy_plain(exec, "grad_quantize", dy_qt, dy);
}
