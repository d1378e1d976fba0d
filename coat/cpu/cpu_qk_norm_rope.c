// Clips q, k and v, applies QK-norm and RoPE before attention, and computes the backward of these steps, on the CPU.
#include "cpu_internal.h"

#include <string.h>

// Columns [begin, begin + heads * head_dim) of a packed row of q, k and v: those of q, or those of k.
typedef struct {
    int64_t begin, heads;
    int64_t width;      // number of columns that one QK-norm normalizes together: one head's, or those of all heads
    const real *weight; // weight of the QK-norm; NULL: there is no QK-norm
} HeadColumns;

static HeadColumns head_columns(Scratch *scratch, const Cpu *cpu, int64_t begin, int64_t heads, Tensor weight) {
    HeadColumns c = {begin, heads, weight.cols, scratch_vector(scratch, cpu, weight)};
    return c;
}

// Applies RoPE to one head in place; if sign is -1, applies the inverse. rotation: cosines of head_dim / 2 angles, then
// their sines.
static void rotate(real *x, const real *rotation, int64_t head_dim, real sign) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const real cosine = rotation[i], sine = sign * rotation[half + i], a = x[i], b = x[half + i];
        x[i] = a * cosine - b * sine;
        x[half + i] = b * cosine + a * sine;
    }
}

static void rotate_row(real *row, const HeadColumns *c, const QkRope *rope, int64_t token, real sign) {
    const int64_t D = rope->shape.head_dim;
    if (!rope->rope_table.data) return;
    const real *rotation =
        (const real *)row_address(rope->rope_table, row_position(rope->positions, token, rope->shape.T));
    for (int64_t head = 0; head < c->heads; head++) rotate(row + c->begin + head * D, rotation, D, sign);
}

static void clip_row(real *row, int64_t cols, real clip) {
    for (int64_t i = 0; i < cols; i++) row[i] = row[i] > clip ? clip : row[i] < -clip ? -clip : row[i];
}

static void norm_row(const Cpu *cpu, real *row, const HeadColumns *c, const QkRope *rope, real *buffer) {
    const int64_t end = c->begin + c->heads * rope->shape.head_dim;
    for (int64_t at = c->begin; c->weight && at < end; at += c->width) {
        const NormStatistics s = cpu->kernels->norm_statistics(row + at, c->width, rope->eps, false);
        cpu->kernels->norm_apply(buffer, row + at, s, c->weight, NULL, c->width);
        memcpy(row + at, buffer, (size_t)c->width * sizeof(real));
    }
}

// QK-norm's backward for one row: replaces the gradient of the norms' output with the gradient of their input x, and
// adds the weight's gradient to dweight.
static void norm_gradient_row(const Cpu *cpu, real *gradient, const real *x, const HeadColumns *c, const QkRope *rope,
                              real *dweight, real *buffer) {
    const int64_t end = c->begin + c->heads * rope->shape.head_dim;
    for (int64_t at = c->begin; c->weight && at < end; at += c->width) {
        const NormStatistics s = cpu->kernels->norm_statistics(x + at, c->width, rope->eps, false);
        cpu->kernels->norm_gradient(buffer, dweight, NULL, gradient + at, x + at, s, c->weight, c->width, false, false);
        memcpy(gradient + at, buffer, (size_t)c->width * sizeof(real));
    }
}

static int64_t k_begin(const QkRope *rope) {
    return (int64_t)rope->shape.heads * rope->shape.head_dim;
}

void cpu_qk_norm_rope_forward(Exec *exec, Tensor out, Tensor qkv, QkRope rope) {
    const char *operation = "qk_norm_rope_forward";
    require_plain(operation, out);
    require_plain(operation, qkv);
    const Cpu *cpu = cpu_of(exec);
    const int64_t cols = qkv.cols;
    if (out.data == qkv.data && !qk_norm_rope_active(&rope)) return;
    Scratch scratch = scratch_begin(exec);
    const HeadColumns q = head_columns(&scratch, cpu, 0, rope.shape.heads, rope.q_weight);
    const HeadColumns k = head_columns(&scratch, cpu, k_begin(&rope), rope.shape.kv_heads, rope.k_weight);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(cols));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *x_buffer = scratch_take(&slot, cols), *row_buffer = scratch_take(&slot, cols);
        real *buffer = scratch_take(&slot, cols);
#pragma omp for schedule(static)
        for (int64_t token = 0; token < qkv.rows; token++) {
            const real *x = row_load(cpu, qkv, token, 0, cols, x_buffer);
            real *row = row_target(out, token, 0, row_buffer);
            if (row != x) memcpy(row, x, (size_t)cols * sizeof(real));
            if (rope.clip > 0) clip_row(row, cols, (real)rope.clip);
            norm_row(cpu, row, &q, &rope, buffer);
            norm_row(cpu, row, &k, &rope, buffer);
            rotate_row(row, &q, &rope, token, 1);
            rotate_row(row, &k, &rope, token, 1);
            row_store(cpu, out, token, 0, cols, row);
        }
    }
}

void cpu_qk_norm_rope_backward(Exec *exec, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor qkv, QkRope rope,
                               bool accumulate) {
    const char *operation = "qk_norm_rope_backward";
    require_plain(operation, dqkv);
    require_plain(operation, qkv);
    const Cpu *cpu = cpu_of(exec);
    const int64_t M = dqkv.rows, cols = dqkv.cols, step = reduction_rows(M), blocks = (M + step - 1) / step;
    if (!qk_norm_rope_active(&rope)) return;
    Scratch scratch = scratch_begin(exec);
    const HeadColumns q = head_columns(&scratch, cpu, 0, rope.shape.heads, rope.q_weight);
    const HeadColumns k = head_columns(&scratch, cpu, k_begin(&rope), rope.shape.kv_heads, rope.k_weight);
    const int64_t q_stride = (int64_t)(cpu_piece(q.width) / sizeof(real));
    const int64_t k_stride = (int64_t)(cpu_piece(k.width) / sizeof(real));
    real *q_sums = q.weight ? scratch_take(&scratch, CPU_REDUCTION_BLOCKS * q_stride) : NULL;
    real *k_sums = k.weight ? scratch_take(&scratch, CPU_REDUCTION_BLOCKS * k_stride) : NULL;
    const bool reads_x = q.weight || rope.clip > 0;
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(cols));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *x_row = scratch_take(&slot, cols), *g_buffer = scratch_take(&slot, cols);
        real *buffer = scratch_take(&slot, cols), *x_buffer = scratch_take(&slot, cols);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            real *dq_sum = q_sums ? q_sums + b * q_stride : NULL, *dk_sum = k_sums ? k_sums + b * k_stride : NULL;
            if (dq_sum) memset(dq_sum, 0, (size_t)q.width * sizeof(real));
            if (dk_sum) memset(dk_sum, 0, (size_t)k.width * sizeof(real));
            for (int64_t token = b * step; token < smaller(M, (b + 1) * step); token++) {
                const real *given = row_load(cpu, dqkv, token, 0, cols, g_buffer);
                real *g = row_target(dqkv, token, 0, g_buffer);
                if (g != given) memcpy(g, given, (size_t)cols * sizeof(real));
                rotate_row(g, &q, &rope, token, -1);
                rotate_row(g, &k, &rope, token, -1);
                const real *x = reads_x ? row_load(cpu, qkv, token, 0, cols, x_buffer) : NULL;
                if (x) memcpy(x_row, x, (size_t)cols * sizeof(real));
                if (rope.clip > 0) clip_row(x_row, cols, (real)rope.clip);
                norm_gradient_row(cpu, g, x_row, &q, &rope, dq_sum, buffer);
                norm_gradient_row(cpu, g, x_row, &k, &rope, dk_sum, buffer);
                for (int64_t i = 0; rope.clip > 0 && i < cols; i++)
                    if (x[i] > (real)rope.clip || x[i] < -(real)rope.clip) g[i] = 0;
                row_store(cpu, dqkv, token, 0, cols, g);
                if (dqkv.amax)
                    dqkv.amax[token] = cpu->kernels->amax_bits(row_load(cpu, dqkv, token, 0, cols, g_buffer), cols);
            }
        }
    }
    reduce_partials(cpu, dq_weight, q_sums, blocks, accumulate);
    reduce_partials(cpu, dk_weight, k_sums, blocks, accumulate);
}
