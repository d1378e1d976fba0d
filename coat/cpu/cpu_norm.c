// The residual stream and its norms.
#include "cpu_internal.h"

#include <string.h>

static NormStatistics saved_statistics(Norm norm, int64_t row) {
    NormStatistics s = {norm.mean.data ? *(real *)row_address(norm.mean, row) : 0,
                        *(real *)row_address(norm.rstd, row)};
    return s;
}

// One row of r_out = r_in + y + bias. Returns the row as it is stored, so that a norm rebuilt from the saved
// residual is the same bit for bit.
static const real *residual_row(const Cpu *cpu, Tensor r_out, Tensor r_in, Tensor y, const real *y_bias, int64_t row,
                                real *buffer, real *y_buffer) {
    int64_t C = r_in.cols;
    const real *r = row_load(cpu, r_in, row, 0, C, buffer);
    if (y.data) {
        real *sum = r_out.data ? row_target(r_out, row, 0, buffer) : buffer;
        if (sum != r) memcpy(sum, r, (size_t)C * sizeof(real));
        cpu->kernels->add(sum, row_load(cpu, y, row, 0, C, y_buffer), C);
        if (y_bias) cpu->kernels->add(sum, y_bias, C);
        r = sum;
    }
    if (r_out.data && (y.data || r_out.data != r_in.data)) {
        row_store(cpu, r_out, row, 0, C, r);
        if (r_out.format != FMT_FP32) r = row_load(cpu, r_out, row, 0, C, buffer);
    }
    return r;
}

void cpu_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias) {
    require_plain("residual_norm_forward", n);
    require_plain("residual_norm_forward", norm.x);
    const Cpu *cpu = cpu_of(exec);
    int64_t M = r_in.rows, C = r_in.cols;
    Scratch scratch = scratch_begin(exec);
    const real *weight = scratch_vector(&scratch, cpu, norm.weight), *bias = scratch_vector(&scratch, cpu, norm.bias);
    const real *added = scratch_vector(&scratch, cpu, y_bias);
    bool save_x = norm.x.data && norm.x.data != r_out.data;
    if (save_x && !y.data && norm.x.data == r_in.data) save_x = false;
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *r_buffer = scratch_take(&slot, C), *y_buffer = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < M; row++) {
            const real *r = residual_row(cpu, r_out, r_in, y, added, row, r_buffer, y_buffer);
            if (save_x) {
                row_store(cpu, norm.x, row, 0, C, r);
                if (norm.from_saved || !r_out.data) r = row_load(cpu, norm.x, row, 0, C, r_buffer);
            }
            NormStatistics s = cpu->kernels->norm_statistics(r, C, norm.eps, norm.mean.data != NULL);
            if (norm.mean.data) *(real *)row_address(norm.mean, row) = s.mean;
            if (norm.rstd.data) *(real *)row_address(norm.rstd, row) = s.rstd;
            if (!n.data) continue;
            real *out = row_target(n, row, 0, y_buffer);
            cpu->kernels->norm_apply(out, r, s, weight, bias, C);
            row_store(cpu, n, row, 0, C, out);
        }
    }
}

void cpu_norm_rebuild(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
    if (!n_t.data || n_t.data == n.data) return;
    require_plain("norm_rebuild", n_t);
    require_plain("norm_rebuild", n);
    require_plain("norm_rebuild", norm.x);
    const Cpu *cpu = cpu_of(exec);
    int64_t C = n_t.cols;
    Scratch scratch = scratch_begin(exec);
    const real *weight = scratch_vector(&scratch, cpu, norm.weight), *bias = scratch_vector(&scratch, cpu, norm.bias);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *x_buffer = scratch_take(&slot, C), *n_buffer = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < n_t.rows; row++) {
            if (n.data) {
                row_store(cpu, n_t, row, 0, C, row_load(cpu, n, row, 0, C, n_buffer));
                continue;
            }
            const real *x = row_load(cpu, norm.x, row, 0, C, x_buffer);
            real *out = row_target(n_t, row, 0, n_buffer);
            cpu->kernels->norm_apply(out, x, saved_statistics(norm, row), weight, bias, C);
            row_store(cpu, n_t, row, 0, C, out);
        }
    }
}

static uint32_t row_maximum_bits(const real *x, int64_t n) {
    uint32_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = float_bits((float)x[i]) & 0x7fffffffu;
        best = bits > best ? bits : best;
    }
    return best;
}

void cpu_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                       bool accumulate) {
    require_plain("norm_backward", g);
    require_plain("norm_backward", dn);
    require_plain("norm_backward", norm.x);
    const Cpu *cpu = cpu_of(exec);
    int64_t M = g.rows, C = g.cols, step = reduction_rows(M), blocks = (M + step - 1) / step;
    int64_t stride = (int64_t)(cpu_piece(C) / sizeof(real));
    Scratch scratch = scratch_begin(exec);
    const real *weight = scratch_vector(&scratch, cpu, norm.weight);
    real *weight_sums = scratch_take(&scratch, CPU_REDUCTION_BLOCKS * stride);
    real *bias_sums = dbias.data ? scratch_take(&scratch, CPU_REDUCTION_BLOCKS * stride) : NULL;
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *g_buffer = scratch_take(&slot, C), *dn_buffer = scratch_take(&slot, C),
             *x_buffer = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            real *dw = weight_sums + b * stride, *db = bias_sums ? bias_sums + b * stride : NULL;
            memset(dw, 0, (size_t)C * sizeof(real));
            if (db) memset(db, 0, (size_t)C * sizeof(real));
            for (int64_t row = b * step; row < smaller(M, (b + 1) * step); row++) {
                real *sum = row_target(g, row, 0, g_buffer);
                if (add) row_load(cpu, g, row, 0, C, sum);
                cpu->kernels->norm_gradient(sum, dw, db, row_load(cpu, dn, row, 0, C, dn_buffer),
                                            row_load(cpu, norm.x, row, 0, C, x_buffer), saved_statistics(norm, row),
                                            weight, C, norm.mean.data != NULL, add);
                row_store(cpu, g, row, 0, C, sum);
                if (g.amax) g.amax[row] = row_maximum_bits(row_load(cpu, g, row, 0, C, g_buffer), C);
            }
        }
    }
    reduce_partials(cpu, dweight, weight_sums, blocks, accumulate);
    reduce_partials(cpu, dbias, bias_sums, blocks, accumulate);
}
