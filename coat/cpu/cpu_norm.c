// Computes norms forward and backward on the CPU. Forward is fused with the residual addition.
#include "cpu_quantize.h"

#include <string.h>

#include "numerics/quantize.h"

// Returns a norm's weight as reals; a vector of ones if the norm has no weight.
static const real *norm_weight(Scratch *scratch, const Cpu *cpu, Norm norm, int64_t cols) {
    if (norm.weight.data) return scratch_vector(scratch, cpu, norm.weight);
    real *ones = scratch_take(scratch, cols);
    for (int64_t i = 0; i < cols; i++) ones[i] = 1;
    return ones;
}

static NormStatistics saved_statistics(Norm norm, int64_t row) {
    NormStatistics s = {norm.mean.data ? *(real *)row_address(norm.mean, row) : 0,
                        *(real *)row_address(norm.rstd, row)};
    return s;
}

// Computes the statistics of x, the norm's input in row `row`, and stores those that the norm saves for backward.
static NormStatistics row_statistics(const Cpu *cpu, Norm norm, int64_t row, const real *x, int64_t cols) {
    const NormStatistics s = cpu->kernels->norm_statistics(x, cols, norm.eps, norm.mean.data != NULL);
    if (norm.mean.data) *(real *)row_address(norm.mean, row) = s.mean;
    if (norm.rstd.data) *(real *)row_address(norm.rstd, row) = s.rstd;
    return s;
}

// Computes one row of r_out = r_in + y + y_bias, and stores the row if r_out has data. Returns the row as stored
// (rounded), because recomputing the norm from the saved residual must give identical bits.
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

// Inputs of norm_row(), which computes a row of norm(x) from x and the saved row statistics. Every pass over the rows
// computes identical bits.
typedef struct {
    Tensor x;
    Norm norm;
    const real *weight, *bias;
} NormRows;

static const real *norm_row(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers) {
    const NormRows *n = (const NormRows *)from;
    const real *x = row_load(cpu, n->x, row, 0, n->x.cols, buffers.x);
    cpu->kernels->norm_apply(buffers.out, x, saved_statistics(n->norm, row), n->weight, n->bias, n->x.cols);
    return buffers.out;
}

// Stores a row of x, the norm's saved input. Returns the row's amax as FP32 bits if x is FP8, else 0.
static uint32_t save_row(const Cpu *cpu, Tensor x, int64_t row, const real *values) {
    if (x.granularity == SCALE_GROUP) return row_store_groups(cpu, x, row, values);
    row_store(cpu, x, row, 0, x.cols, values);
    return 0;
}

void cpu_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias) {
    const char *operation = "residual_norm_forward";
    require_readable(operation, norm.x);
    require_plain(operation, r_out);
    require_plain(operation, r_in);
    require_matmul(operation, y);
    const Cpu *cpu = cpu_of(exec);
    int64_t M = r_in.rows, C = r_in.cols;
    Scratch scratch = scratch_begin(exec);
    const real *weight = norm_weight(&scratch, cpu, norm, C), *bias = scratch_vector(&scratch, cpu, norm.bias);
    const real *added = scratch_vector(&scratch, cpu, y_bias);
    bool save_x = norm.x.data && norm.x.data != r_out.data;
    if (save_x && !y.data && norm.x.data == r_in.data) save_x = false;
    // true if the norm reads its saved input instead of r_out
    bool read_x = save_x && (norm.from_saved || !r_out.data);
    if (!format_is_fp8(n.format)) require_plain(operation, n);
    uint32_t saved_amax = 0, amax = 0;
    Scratch rows = scratch;
    int threads = scratch_slots(&rows, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads) reduction(max : saved_amax, amax)
    {
        Scratch slot = scratch_slot(&rows);
        real *r_buffer = scratch_take(&slot, C), *y_buffer = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < M; row++) {
            const real *r = residual_row(cpu, r_out, r_in, y, added, row, r_buffer, y_buffer);
            if (save_x) saved_amax = larger_bits(saved_amax, save_row(cpu, norm.x, row, r));
            if (read_x) r = row_load(cpu, norm.x, row, 0, C, r_buffer);
            const NormStatistics s = row_statistics(cpu, norm, row, r, C);
            if (!n.data) continue;
            real *out = row_target(n, row, 0, y_buffer);
            cpu->kernels->norm_apply(out, r, s, weight, bias, C);
            amax = larger_bits(amax, store_row(cpu, n, row, out));
        }
    }
    note_amax(exec, larger_bits(saved_amax, amax));
    NormRows from = {read_x ? norm.x : r_out.data ? r_out : r_in, norm, weight, bias};
    RowSource source = {norm_row, &from, M, C, C};
    second_pass(exec, scratch, &source, n, amax);
}

void cpu_postnorm_residual_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y) {
    const char *operation = "postnorm_residual_forward";
    require_readable(operation, norm.x);
    require_plain(operation, r_out);
    require_plain(operation, r_in);
    require_matmul(operation, y);
    const bool store_n = n.data && n.data != r_out.data;
    if (!format_is_fp8(n.format)) require_plain(operation, n);
    if (!y.data && !store_n && r_out.data == r_in.data) return;
    const Cpu *cpu = cpu_of(exec);
    const int64_t M = r_in.rows, C = r_in.cols;
    const bool save_x = norm.x.data && norm.x.data != y.data, read_x = save_x && norm.from_saved;
    Scratch scratch = scratch_begin(exec);
    const real *weight = norm_weight(&scratch, cpu, norm, C), *bias = scratch_vector(&scratch, cpu, norm.bias);
    uint32_t saved_amax = 0, amax = 0;
    Scratch rows = scratch;
    int threads = scratch_slots(&rows, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads) reduction(max : saved_amax, amax)
    {
        Scratch slot = scratch_slot(&rows);
        real *r_buffer = scratch_take(&slot, C), *y_buffer = scratch_take(&slot, C), *out = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < M; row++) {
            const real *r = row_load(cpu, r_in, row, 0, C, r_buffer);
            if (y.data) {
                const real *x = row_load(cpu, y, row, 0, C, y_buffer);
                if (save_x) saved_amax = larger_bits(saved_amax, save_row(cpu, norm.x, row, x));
                if (read_x) x = row_load(cpu, norm.x, row, 0, C, y_buffer);
                cpu->kernels->norm_apply(out, x, row_statistics(cpu, norm, row, x, C), weight, bias, C);
                cpu->kernels->add(out, r, C);
                r = out;
            }
            if (y.data || r_out.data != r_in.data) {
                row_store(cpu, r_out, row, 0, C, r);
                r = row_load(cpu, r_out, row, 0, C, r_buffer);
            }
            if (store_n) amax = larger_bits(amax, store_row(cpu, n, row, r));
        }
    }
    note_amax(exec, larger_bits(saved_amax, amax));
    RowSource source = {stored_row, &r_out, M, C, C};
    second_pass(exec, scratch, &source, n, amax);
}

void cpu_residual_backward(Exec *exec, Tensor g, Tensor dn) {
    require_plain("residual_backward", g);
    require_matmul("residual_backward", dn);
    const Cpu *cpu = cpu_of(exec);
    const int64_t C = g.cols;
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *g_buffer = scratch_take(&slot, C), *dn_buffer = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < g.rows; row++) {
            real *sum = row_target(g, row, 0, g_buffer);
            row_load(cpu, g, row, 0, C, sum);
            cpu->kernels->add(sum, row_load(cpu, dn, row, 0, C, dn_buffer), C);
            row_store(cpu, g, row, 0, C, sum);
        }
    }
}

void cpu_norm_recompute(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
    if (!n_t.data || n_t.data == n.data) return;
    require_readable("norm_recompute", n);
    require_readable("norm_recompute", norm.x);
    const Cpu *cpu = cpu_of(exec);
    int64_t C = n_t.cols;
    Scratch scratch = scratch_begin(exec);
    const real *weight = norm_weight(&scratch, cpu, norm, C), *bias = scratch_vector(&scratch, cpu, norm.bias);
    const NormRows from = {norm.x, norm, weight, bias};
    if (format_is_fp8(n_t.format)) {
        scale_over_rows(exec, n_t, n);
        RowSource source = {norm_row, &from, n_t.rows, C, C};
        if (n.data && format_is_fp8(n.format))
            transpose_codes(exec, n_t, n);
        else
            quantize_rows(exec, scratch, &source, (Tensor){0}, n_t);
        return;
    }
    require_plain("norm_recompute", n_t);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        const RowBuffers buffers = row_buffers(&slot, C);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < n_t.rows; row++)
            row_store(cpu, n_t, row, 0, C,
                      n.data ? row_load(cpu, n, row, 0, C, buffers.x) : norm_row(cpu, &from, row, buffers));
    }
}

void cpu_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                       bool accumulate) {
    require_plain("norm_backward", g);
    require_matmul("norm_backward", dn);
    require_readable("norm_backward", norm.x);
    const Cpu *cpu = cpu_of(exec);
    int64_t M = g.rows, C = g.cols, step = reduction_rows(M), blocks = (M + step - 1) / step;
    int64_t stride = (int64_t)(cpu_piece(C) / sizeof(real));
    Scratch scratch = scratch_begin(exec);
    const real *weight = norm_weight(&scratch, cpu, norm, C);
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
                if (g.amax) g.amax[row] = cpu->kernels->amax_bits(row_load(cpu, g, row, 0, C, g_buffer), C);
            }
        }
    }
    reduce_partials(cpu, dweight, weight_sums, blocks, accumulate);
    reduce_partials(cpu, dbias, bias_sums, blocks, accumulate);
}
