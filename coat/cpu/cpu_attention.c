// Causal self-attention in tiles of query rows: scores of a tile against all keys up to its last row, softmax,
// and the product with the values. Backward makes the probabilities again from the saved log-sum-exp.
#include "cpu_internal.h"

#include <math.h>
#include <string.h>

// The tokens of sequence b and the columns of one head, as a (T, head_dim) matrix.
static Tensor head_view(Tensor t, AttentionShape shape, int64_t b, int64_t head) {
    return tensor_cols(tensor_rows(t, b * shape.T, shape.T), head * shape.head_dim, shape.head_dim);
}

static real score_scale(AttentionShape shape) {
    return 1 / (real)sqrt((double)shape.head_dim);
}

static void store_block(const Cpu *cpu, Tensor t, int64_t row, int64_t rows, const real *values) {
    for (int64_t i = 0; i < rows; i++) row_store(cpu, t, row + i, 0, t.cols, values + i * t.cols);
}

// Turns the scores of queries [begin, begin + rows) into probabilities, zero above the diagonal.
static void softmax_tile(const Cpu *cpu, real *scores, int64_t begin, int64_t rows, int64_t keys, real scale,
                         real *sums, real *lse) {
    for (int64_t i = 0; i < rows; i++) {
        real *row = scores + i * keys;
        int64_t visible = begin + i + 1;
        real highest = scale * cpu->kernels->maximum(row, visible);
        sums[i] = cpu->kernels->exponentials(row, row, scale, highest, visible);
        lse[begin + i] = highest + (real)log((double)sums[i]);
        memset(row + visible, 0, (size_t)(keys - visible) * sizeof(real));
    }
}

static void forward_head(const Cpu *cpu, Scratch slot, Tensor o, real *lse, Tensor q, Tensor k, Tensor v, real scale) {
    int64_t T = q.rows, D = q.cols, ldq, ldk, ldv;
    const real *keys = block_load(cpu, k, 0, T, 0, D, scratch_take(&slot, T * D), &ldk);
    const real *values = block_load(cpu, v, 0, T, 0, D, scratch_take(&slot, T * D), &ldv);
    real *scores = scratch_take(&slot, CPU_QUERY_ROWS * T), *sums = scratch_take(&slot, CPU_QUERY_ROWS);
    real *q_buffer = scratch_take(&slot, CPU_QUERY_ROWS * D), *out = scratch_take(&slot, CPU_QUERY_ROWS * D);
    for (int64_t begin = 0; begin < T; begin += CPU_QUERY_ROWS) {
        int64_t rows = smaller(CPU_QUERY_ROWS, T - begin), seen = begin + rows;
        const real *queries = block_load(cpu, q, begin, rows, 0, D, q_buffer, &ldq);
        gemm_block(false, true, rows, seen, D, queries, ldq, keys, ldk, 0, scores, seen);
        softmax_tile(cpu, scores, begin, rows, seen, scale, sums, lse);
        gemm_block(false, false, rows, D, seen, scores, seen, values, ldv, 0, out, D);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t d = 0; d < D; d++) out[i * D + d] /= sums[i];
        store_block(cpu, o, begin, rows, out);
    }
}

void cpu_attention_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, AttentionShape shape) {
    require_plain("attention_forward", o);
    require_plain("attention_forward", q);
    const Cpu *cpu = cpu_of(exec);
    int64_t heads = shape.heads, group = heads / shape.kv_heads, tasks = shape.B * heads;
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_attention_slot(shape.T, shape.head_dim));
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t b = task / heads, head = task % heads;
        forward_head(cpu, scratch_slot(&scratch), head_view(o, shape, b, head), (real *)row_address(lse, task),
                     head_view(q, shape, b, head), head_view(k, shape, b, head / group),
                     head_view(v, shape, b, head / group), score_scale(shape));
    }
}

// What backward keeps for one key/value head: its keys and values and the sums of their gradients, (T, D).
typedef struct {
    const real *k, *v;
    real *dk, *dv;
    int64_t ldk, ldv;
    real scale;
} KeyValueHead;

// Adds what one query head contributes to dk and dv, and writes its dq. With P the probabilities,
// dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(dO O)) scale, dQ = dS K, dK = dS^T Q.
static void backward_head(const Cpu *cpu, Scratch slot, const KeyValueHead *kv, Tensor dq, Tensor d_o, Tensor o,
                          const real *lse, Tensor q) {
    int64_t T = q.rows, D = q.cols, ldq, ldo, lddo;
    real *p = scratch_take(&slot, CPU_QUERY_ROWS * T), *dp = scratch_take(&slot, CPU_QUERY_ROWS * T);
    real *q_buffer = scratch_take(&slot, CPU_QUERY_ROWS * D), *o_buffer = scratch_take(&slot, CPU_QUERY_ROWS * D);
    real *do_buffer = scratch_take(&slot, CPU_QUERY_ROWS * D), *out = scratch_take(&slot, CPU_QUERY_ROWS * D);
    for (int64_t begin = 0; begin < T; begin += CPU_QUERY_ROWS) {
        int64_t rows = smaller(CPU_QUERY_ROWS, T - begin), seen = begin + rows;
        const real *qs = block_load(cpu, q, begin, rows, 0, D, q_buffer, &ldq);
        const real *os = block_load(cpu, o, begin, rows, 0, D, o_buffer, &ldo);
        const real *dos = block_load(cpu, d_o, begin, rows, 0, D, do_buffer, &lddo);
        gemm_block(false, true, rows, seen, D, qs, ldq, kv->k, kv->ldk, 0, p, seen);
        gemm_block(false, true, rows, seen, D, dos, lddo, kv->v, kv->ldv, 0, dp, seen);
        for (int64_t i = 0; i < rows; i++) {
            real *row = p + i * seen;
            int64_t visible = begin + i + 1;
            cpu->kernels->exponentials(row, row, kv->scale, lse[begin + i], visible);
            memset(row + visible, 0, (size_t)(seen - visible) * sizeof(real));
        }
        gemm_block(true, false, seen, D, rows, p, seen, dos, lddo, 1, kv->dv, D);
        for (int64_t i = 0; i < rows; i++) {
            real delta = cpu->kernels->sum_of_products(dos + i * lddo, os + i * ldo, D);
            cpu->kernels->score_gradient(p + i * seen, dp + i * seen, delta, kv->scale, begin + i + 1);
        }
        gemm_block(false, false, rows, D, seen, p, seen, kv->k, kv->ldk, 0, out, D);
        gemm_block(true, false, seen, D, rows, p, seen, qs, ldq, 1, kv->dk, D);
        store_block(cpu, dq, begin, rows, out);
    }
}

void cpu_attention_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                            Tensor k, Tensor v, AttentionShape shape) {
    require_plain("attention_backward", dq);
    require_plain("attention_backward", d_o);
    require_plain("attention_backward", q);
    const Cpu *cpu = cpu_of(exec);
    int64_t T = shape.T, D = shape.head_dim, group = shape.heads / shape.kv_heads, tasks = shape.B * shape.kv_heads;
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_attention_slot(T, D));
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t b = task / shape.kv_heads, kv_head = task % shape.kv_heads;
        Scratch slot = scratch_slot(&scratch);
        KeyValueHead kv = {.scale = score_scale(shape)};
        kv.k = block_load(cpu, head_view(k, shape, b, kv_head), 0, T, 0, D, scratch_take(&slot, T * D), &kv.ldk);
        kv.v = block_load(cpu, head_view(v, shape, b, kv_head), 0, T, 0, D, scratch_take(&slot, T * D), &kv.ldv);
        kv.dk = scratch_take(&slot, T * D);
        kv.dv = scratch_take(&slot, T * D);
        memset(kv.dk, 0, (size_t)(T * D) * sizeof(real));
        memset(kv.dv, 0, (size_t)(T * D) * sizeof(real));
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            backward_head(cpu, slot, &kv, head_view(dq, shape, b, head), head_view(d_o, shape, b, head),
                          head_view(o, shape, b, head), (const real *)row_address(lse, b * shape.heads + head),
                          head_view(q, shape, b, head));
        store_block(cpu, head_view(dk, shape, b, kv_head), 0, T, kv.dk);
        store_block(cpu, head_view(dv, shape, b, kv_head), 0, T, kv.dv);
    }
}
