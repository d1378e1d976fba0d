// Computes self-attention on the CPU, in tiles of CPU_QUERY_ROWS queries. For each tile, forward computes the scores
// with all visible keys, the softmax of the scores, and the matmul with v. Backward recomputes the probabilities from
// the saved log-sum-exp.
#include "cpu_internal.h"

#include <math.h>
#include <string.h>

// Returns the end (exclusive) of the document that starts at token `begin` of sequence b.
static int64_t document_end(Tensor positions, AttentionShape shape, int64_t b, int64_t begin) {
    int64_t end = positions.data ? begin + 1 : shape.T;
    while (end < shape.T && row_position(positions, b * shape.T + end, shape.T) != 0) end++;
    return end;
}

// Returns one head of sequence b as a (rows, head_dim) matrix. If t has a KV cache, the matrix includes the cached
// rows, which precede those of the T new tokens.
static Tensor head_view(Tensor t, AttentionShape shape, int64_t b, int64_t head) {
    const int64_t before = t.rows - (int64_t)shape.B * shape.T;
    return tensor_cols(tensor_rows(t, b * shape.T, before + shape.T), head * shape.head_dim, shape.head_dim);
}

static real score_scale(AttentionShape shape) {
    return 1 / (real)sqrt((double)shape.head_dim);
}

// Returns how many of `keys` keys a query attends to. query: index of the query's token among the keys' tokens.
static int64_t visible_keys(AttentionShape shape, int64_t query, int64_t keys) {
    return shape.bidirectional ? keys : query + 1;
}

// Replaces the scores of `rows` queries with unnormalized probabilities, 0 for keys that a query does not attend to.
// `keys` must be the number of keys that the last query attends to. Writes each row's sum of unnormalized probabilities
// and the log-sum-exp of the row's scores.
static void softmax_tile(const Cpu *cpu, real *scores, int64_t rows, int64_t keys, AttentionShape shape, real *sums,
                         real *lse) {
    const real scale = score_scale(shape);
    for (int64_t i = 0; i < rows; i++) {
        real *row = scores + i * keys;
        int64_t visible = visible_keys(shape, keys - rows + i, keys);
        real highest = scale * cpu->kernels->maximum(row, visible);
        sums[i] = cpu->kernels->exponentials(row, row, scale, highest, visible);
        lse[i] = highest + (real)log((double)sums[i]);
        memset(row + visible, 0, (size_t)(keys - visible) * sizeof(real));
    }
}

// Computes attention's forward for one query head and one document. k and v may start with the rows of a KV cache.
static void forward_head(const Cpu *cpu, Scratch slot, AttentionShape shape, Tensor o, real *lse, Tensor q, Tensor k,
                         Tensor v) {
    int64_t T = q.rows, D = q.cols, before = k.rows - T;
    real *scores = scratch_take(&slot, CPU_QUERY_ROWS * k.rows), *sums = scratch_take(&slot, CPU_QUERY_ROWS);
    real *out = scratch_take(&slot, CPU_QUERY_ROWS * D);
    for (int64_t begin = 0; begin < T; begin += CPU_QUERY_ROWS) {
        int64_t rows = smaller(CPU_QUERY_ROWS, T - begin),
                seen = visible_keys(shape, before + begin + rows - 1, k.rows);
        Tensor queries = tensor_rows(q, begin, rows), p = tensor_of(scores, rows, seen, FMT_FP32);
        Tensor sum = tensor_of(out, rows, D, FMT_FP32);
        matmul_on_thread(cpu, slot,
                         (Matmul){.a = {queries, true}, .b = {k, true}, .c = p, .m = rows, .n = seen, .k = D});
        softmax_tile(cpu, scores, rows, seen, shape, sums, lse + begin);
        matmul_on_thread(cpu, slot, (Matmul){.a = {p, true}, .b = {v, false}, .c = sum, .m = rows, .n = D, .k = seen});
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t d = 0; d < D; d++) out[i * D + d] /= sums[i];
            row_store(cpu, o, begin + i, 0, D, out + i * D);
        }
    }
}

void cpu_attention_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                           AttentionShape shape) {
    require_plain("attention_forward", o);
    require_plain("attention_forward", q);
    const Cpu *cpu = cpu_of(exec);
    int64_t heads = shape.heads, group = heads / shape.kv_heads, tasks = shape.B * heads, before = k.rows - q.rows;
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_attention_slot(before + shape.T, shape.head_dim));
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t b = task / heads, head = task % heads;
        const Tensor os = head_view(o, shape, b, head), qs = head_view(q, shape, b, head);
        const Tensor ks = head_view(k, shape, b, head / group), vs = head_view(v, shape, b, head / group);
        for (int64_t at = 0, end; at < shape.T; at = end) {
            end = document_end(positions, shape, b, at);
            forward_head(cpu, scratch_slot(&scratch), shape, tensor_rows(os, at, end - at),
                         (real *)row_address(lse, task) + at, tensor_rows(qs, at, end - at),
                         tensor_rows(ks, at, before + end - at), tensor_rows(vs, at, before + end - at));
        }
    }
}

// Keys and values of one head within a document, and their gradients, each (tokens, head_dim).
typedef struct {
    Tensor k, v;   // keys and values in their storage format
    Tensor dk, dv; // FP32 gradients of k and v in the thread's workspace slot
    AttentionShape shape;
} KeyValueHead;

// Replaces a tile's scores S with the probabilities P = exp(S * scale - lse). P is 0 for keys that a query does not
// attend to.
static void probabilities(const Cpu *cpu, Tensor p, const real *lse, int64_t begin, AttentionShape shape) {
    for (int64_t i = 0; i < p.rows; i++) {
        real *row = (real *)row_address(p, i);
        int64_t visible = visible_keys(shape, begin + i, p.cols);
        cpu->kernels->exponentials(row, row, score_scale(shape), lse[begin + i], visible);
        memset(row + visible, 0, (size_t)(p.cols - visible) * sizeof(real));
    }
}

// Replaces the probabilities P with the gradient of the attention scores S: dS = P * (dP - rowsum(dO * O)) * scale.
static void score_gradients(const Cpu *cpu, Tensor p, Tensor dp, Tensor d_o, Tensor o, int64_t begin,
                            AttentionShape shape, real *buffer) {
    int64_t D = o.cols;
    for (int64_t i = 0; i < p.rows; i++) {
        real delta = cpu->kernels->dot(row_load(cpu, d_o, i, 0, D, buffer), row_load(cpu, o, i, 0, D, buffer + D), D);
        cpu->kernels->score_gradient((real *)row_address(p, i), (const real *)row_address(dp, i), delta,
                                     score_scale(shape), visible_keys(shape, begin + i, p.cols));
    }
}

// Computes one query head's dQ and adds its part to dK and dV: dV += P^T dO, dP = dO V^T, dQ = dS K, dK += dS^T Q.
static void backward_head(const Cpu *cpu, Scratch slot, const KeyValueHead *kv, Tensor dq, Tensor d_o, Tensor o,
                          const real *lse, Tensor q) {
    int64_t T = q.rows, D = q.cols;
    real *p_data = scratch_take(&slot, CPU_QUERY_ROWS * T), *dp_data = scratch_take(&slot, CPU_QUERY_ROWS * T);
    real *buffer = scratch_take(&slot, 2 * D);
    for (int64_t begin = 0; begin < T; begin += CPU_QUERY_ROWS) {
        int64_t rows = smaller(CPU_QUERY_ROWS, T - begin), seen = visible_keys(kv->shape, begin + rows - 1, T);
        Tensor p = tensor_of(p_data, rows, seen, FMT_FP32), dp = tensor_of(dp_data, rows, seen, FMT_FP32);
        Operand qs = {tensor_rows(q, begin, rows), true}, dos = {tensor_rows(d_o, begin, rows), true};
        Operand p_rows = {p, true}, p_columns = {p, false};
        Operand qs_columns = {qs.tensor, false}, dos_columns = {dos.tensor, false};
        Matmul scores = {.a = qs, .b = {kv->k, true}, .c = p, .m = rows, .n = seen, .k = D};
        Matmul dprobabilities = {.a = dos, .b = {kv->v, true}, .c = dp, .m = rows, .n = seen, .k = D};
        Matmul values = {.a = p_columns, .b = dos_columns, .c = kv->dv, .m = seen, .n = D, .k = rows};
        Matmul keys = {.a = p_columns, .b = qs_columns, .c = kv->dk, .m = seen, .n = D, .k = rows};
        Matmul queries = {.a = p_rows, .b = {kv->k, false}, .c = tensor_rows(dq, begin, rows)};
        queries.m = rows, queries.n = D, queries.k = seen;
        values.accumulate = keys.accumulate = true;
        matmul_on_thread(cpu, slot, scores);
        matmul_on_thread(cpu, slot, dprobabilities);
        probabilities(cpu, p, lse, begin, kv->shape);
        matmul_on_thread(cpu, slot, values);
        score_gradients(cpu, p, dp, dos.tensor, tensor_rows(o, begin, rows), begin, kv->shape, buffer);
        matmul_on_thread(cpu, slot, queries);
        matmul_on_thread(cpu, slot, keys);
    }
}

static Tensor zeroed_matrix(Scratch *slot, int64_t rows, int64_t cols) {
    Tensor t = tensor_of(scratch_take(slot, rows * cols), rows, cols, FMT_FP32);
    memset(t.data, 0, (size_t)(rows * cols) * sizeof(real));
    return t;
}

static void store_matrix(const Cpu *cpu, Tensor to, Tensor from) {
    for (int64_t i = 0; i < to.rows; i++) row_store(cpu, to, i, 0, to.cols, (const real *)row_address(from, i));
}

// Writes the row amaxes of the tensor that consists of the column ranges parts[0] to parts[2] to `amax`. Reads `width`
// columns at a time.
static void store_amaxes(const Cpu *cpu, Scratch *scratch, int threads, uint32_t *amax, const Tensor parts[3],
                         int64_t width) {
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(scratch);
        real *buffer = scratch_take(&slot, width);
#pragma omp for
        for (int64_t row = 0; row < parts[0].rows; row++) {
            amax[row] = 0;
            for (int i = 0; i < 3; i++) {
                for (int64_t begin = 0; begin < parts[i].cols; begin += width) {
                    uint32_t bits = cpu->kernels->amax_bits(row_load(cpu, parts[i], row, begin, width, buffer), width);
                    amax[row] = larger_bits(amax[row], bits);
                }
            }
        }
    }
}

// Computes attention's backward for one document, tokens [at, at + count) of sequence b, and for all query heads that
// share one key/value head. gradients: dq, dk, dv. values: q, k, v.
static void backward_document(const Cpu *cpu, Scratch slot, const Tensor gradients[3], Tensor d_o, Tensor o, Tensor lse,
                              const Tensor values[3], AttentionShape shape, int64_t b, int64_t kv_head, int64_t at,
                              int64_t count) {
    const int64_t group = shape.heads / shape.kv_heads;
    KeyValueHead kv;
    kv.k = tensor_rows(head_view(values[1], shape, b, kv_head), at, count);
    kv.v = tensor_rows(head_view(values[2], shape, b, kv_head), at, count);
    kv.dk = zeroed_matrix(&slot, count, shape.head_dim);
    kv.dv = zeroed_matrix(&slot, count, shape.head_dim);
    kv.shape = shape;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        backward_head(cpu, slot, &kv, tensor_rows(head_view(gradients[0], shape, b, head), at, count),
                      tensor_rows(head_view(d_o, shape, b, head), at, count),
                      tensor_rows(head_view(o, shape, b, head), at, count),
                      (const real *)row_address(lse, b * shape.heads + head) + at,
                      tensor_rows(head_view(values[0], shape, b, head), at, count));
    store_matrix(cpu, tensor_rows(head_view(gradients[1], shape, b, kv_head), at, count), kv.dk);
    store_matrix(cpu, tensor_rows(head_view(gradients[2], shape, b, kv_head), at, count), kv.dv);
}

void cpu_attention_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse, Tensor q,
                            Tensor k, Tensor v, Tensor positions, Tensor rope_table, AttentionShape shape) {
    require_plain("attention_backward", dq);
    require_plain("attention_backward", d_o);
    require_plain("attention_backward", q);
    const Cpu *cpu = cpu_of(exec);
    const int64_t T = shape.T, D = shape.head_dim, tasks = (int64_t)shape.B * shape.kv_heads;
    const Tensor gradients[3] = {dq, dk, dv}, values[3] = {q, k, v};
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_attention_slot(T, D));
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t b = task / shape.kv_heads, kv_head = task % shape.kv_heads;
        for (int64_t at = 0, end; at < T; at = end) {
            end = document_end(positions, shape, b, at);
            backward_document(cpu, scratch_slot(&scratch), gradients, d_o, o, lse, values, shape, b, kv_head, at,
                              end - at);
        }
    }
    qk_norm_rope_rotate_back(exec, dq, shape.heads, positions, rope_table, shape);
    qk_norm_rope_rotate_back(exec, dk, shape.kv_heads, positions, rope_table, shape);
    if (dq.amax) store_amaxes(cpu, &scratch, threads, dq.amax, gradients, D);
}
