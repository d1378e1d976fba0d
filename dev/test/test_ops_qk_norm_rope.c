// Tests of operations that only Llama-like models use, on the CPU: QKV clip, QK norm, RoPE, SwiGLU and norms without
// weights. Compares them with their formulas in double precision.
#include "ops_fixture.h"

typedef struct {
    AttentionShape shape;
    int64_t q_width, k_width; // widths of the QK norms of q and k; 0: no QK norm
    float clip;
    bool rotates;
} HeadCase;

static QkRope heads_of(Fixture *f, HeadCase c) {
    QkRope h;
    memset(&h, 0, sizeof h);
    h.shape = c.shape;
    h.eps = 1e-5f;
    h.clip = c.clip;
    if (c.q_width) h.q_weight = random_tensor(f, f->format, 1, c.q_width, 1);
    if (c.q_width) h.k_weight = random_tensor(f, f->format, 1, c.k_width, 1);
    if (!c.rotates) return h;
    const int64_t half = c.shape.head_dim / 2;
    h.rope_table = poisoned(f, FMT_FP32, c.shape.T, 2 * half);
    for (int64_t t = 0; t < c.shape.T; t++)
        for (int64_t i = 0; i < half; i++) {
            const double angle = (double)t * pow(10000, -(double)i / (double)half);
            set_value(h.rope_table, t, i, cos(angle));
            set_value(h.rope_table, t, half + i, sin(angle));
        }
    return h;
}

static double clip_of(double x, float clip) {
    return clip > 0 ? fmax(-(double)clip, fmin((double)clip, x)) : x;
}

// Applies clip, QK norm and RoPE to one row of q, k and v in double precision. If `given`, the gradient of the output,
// is not NULL, computes the gradient of the row and adds to dq and dk, the gradients of the norm weights.
static void reference_row(const QkRope *h, Tensor qkv, int64_t row, double *out, const double *given, double *gradient,
                          double *dq, double *dk) {
    const int64_t D = h->shape.head_dim, half = D / 2, q_cols = h->shape.heads * D, k_cols = h->shape.kv_heads * D;
    const int64_t position = row % h->shape.T;
    for (int64_t j = 0; j < qkv.cols; j++) {
        out[j] = clip_of(value(qkv, row, j), h->clip);
        if (given) gradient[j] = given[j];
    }
    for (int64_t head = 0; given && h->rope_table.data && head < h->shape.heads + h->shape.kv_heads; head++)
        for (int64_t i = 0; i < half; i++) {
            const double c = value(h->rope_table, position, i), s = value(h->rope_table, position, half + i);
            gradient[head * D + i] = given[head * D + i] * c + given[head * D + half + i] * s;
            gradient[head * D + half + i] = given[head * D + half + i] * c - given[head * D + i] * s;
        }
    for (int part = 0; part < 2 && h->q_weight.data; part++) {
        const Tensor w = part ? h->k_weight : h->q_weight;
        double *dw = part ? dk : dq;
        const int64_t end = part ? q_cols + k_cols : q_cols;
        for (int64_t at = part ? q_cols : 0; at < end; at += w.cols) {
            double squares = 0, dot = 0;
            for (int64_t i = 0; i < w.cols; i++) squares += out[at + i] * out[at + i];
            const double rstd = 1 / sqrt(squares / (double)w.cols + (double)h->eps);
            for (int64_t i = 0; i < w.cols; i++) {
                if (given) dot += gradient[at + i] * value(w, 0, i) * out[at + i] * rstd;
                if (given) dw[i] += gradient[at + i] * out[at + i] * rstd;
            }
            for (int64_t i = 0; i < w.cols; i++) {
                const double hat = out[at + i] * rstd;
                if (given) gradient[at + i] = rstd * (gradient[at + i] * value(w, 0, i) - hat * dot / (double)w.cols);
                out[at + i] = hat * value(w, 0, i);
            }
        }
    }
    for (int64_t j = 0; given && j < qkv.cols; j++)
        if (h->clip > 0 && fabs(value(qkv, row, j)) > (double)h->clip) gradient[j] = 0;
    for (int64_t head = 0; h->rope_table.data && head < h->shape.heads + h->shape.kv_heads; head++)
        for (int64_t i = 0; i < half; i++) {
            const double c = value(h->rope_table, position, i), s = value(h->rope_table, position, half + i);
            const double a = out[head * D + i], b = out[head * D + half + i];
            out[head * D + i] = a * c - b * s;
            out[head * D + half + i] = b * c + a * s;
        }
}

static void check_heads(Fixture *f, HeadCase c) {
    const Ops *ops = f->exec.ops;
    const int64_t M = (int64_t)c.shape.B * c.shape.T, D = c.shape.head_dim;
    const int64_t cols = (c.shape.heads + 2 * c.shape.kv_heads) * D;
    const QkRope h = heads_of(f, c);
    const bool changes = c.q_width || c.clip > 0;
    Tensor qkv = random_tensor(f, f->format, M, cols, 1), kept = copy_of(f, qkv);
    Tensor out = changes ? poisoned(f, f->format, M, cols) : qkv;
    Tensor dqkv = random_tensor(f, f->format, M, cols, 1), given = copy_of(f, dqkv);
    Tensor dq = random_tensor(f, FMT_FP32, 1, c.q_width ? c.q_width : 1, 1), dq_before = copy_of(f, dq);
    Tensor dk = random_tensor(f, FMT_FP32, 1, c.q_width ? c.k_width : 1, 1), dk_before = copy_of(f, dk);
    Tensor maxima = poisoned(f, FMT_I32, M, 1);
    dqkv.amax = (uint32_t *)maxima.data;
    Tensor in_place = copy_of(f, qkv);
    ops->qk_norm_rope_forward(&f->exec, out, qkv, h);
    ops->qk_norm_rope_forward(&f->exec, in_place, in_place, h);
    assert_true(same_bits(in_place, out));
    ops->qk_norm_rope_backward(&f->exec, dqkv, c.q_width ? dq : no_tensor(), c.q_width ? dk : no_tensor(), kept, h,
                               true);
    double *row = (double *)xcalloc(3 * (size_t)cols, sizeof *row), *gradient = row + cols, *before = row + 2 * cols;
    double *dq_sum = (double *)xcalloc(2 * (size_t)cols, sizeof *dq_sum), *dk_sum = dq_sum + cols;
    for (int64_t i = 0; i < M; i++) {
        double largest = 0;
        for (int64_t j = 0; j < cols; j++) before[j] = value(given, i, j);
        reference_row(&h, kept, i, row, before, gradient, dq_sum, dk_sum);
        for (int64_t j = 0; j < cols; j++) {
            assert_value(out, i, j, row[j], 4);
            assert_value(dqkv, i, j, gradient[j], 10);
            largest = fmax(largest, fabs(value(dqkv, i, j)));
        }
        assert_true((double)bits_float(dqkv.amax[i]) == (double)(float)largest);
    }
    for (int64_t j = 0; j < c.q_width; j++) assert_value(dq, 0, j, value(dq_before, 0, j) + dq_sum[j], 40);
    for (int64_t j = 0; j < c.k_width; j++) assert_value(dk, 0, j, value(dk_before, 0, j) + dk_sum[j], 40);
    free(dq_sum);
    free(row);
}

TEST_EVERYWHERE(clip_qk_norm_and_rope) {
    const AttentionShape grouped = {3, 33, 4, 2, 24, false}, one = {1, 17, 3, 1, 10, false};
    const HeadCase cases[] = {
        {grouped, 0, 0, 0, true},    {grouped, 24, 24, 0, true},     {grouped, 96, 48, 0, true},
        {grouped, 0, 0, 0.5f, true}, {grouped, 96, 48, 0.5f, true},  {one, 10, 10, 0.7f, true},
        {one, 0, 0, 0, true},        {grouped, 24, 24, 0.5f, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_heads(f, cases[i]);
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

TEST_EVERYWHERE(swiglu_and_its_gradient) {
    const Ops *ops = f->exec.ops;
    const int64_t M = 3 * 33, F = 100;
    Tensor h = random_tensor(f, f->format, M, 2 * F, 6), g = poisoned(f, f->format, M, F),
           again = poisoned(f, f->format, M, F);
    Tensor dg = random_tensor(f, f->format, M, F, 1), dh = poisoned(f, f->format, M, 2 * F);
    Tensor dbias = random_tensor(f, FMT_FP32, 1, 2 * F, 1), before = copy_of(f, dbias);
    ops->activation_forward(&f->exec, g, h, h, no_tensor(), true, ACT_SWIGLU);
    ops->activation_recompute(&f->exec, again, no_tensor(), h, ACT_SWIGLU);
    assert_true(same_bits(g, again));
    ops->activation_backward(&f->exec, dh, dh, dbias, dg, h, true, ACT_SWIGLU);
    for (int64_t j = 0; j < F; j++) {
        double sum[2] = {value(before, 0, j), value(before, 0, F + j)};
        for (int64_t i = 0; i < M; i++) {
            const double gate = value(h, i, j), up = value(h, i, F + j), s = sigmoid(gate), d = value(dg, i, j);
            const double dgate = d * up * (s + gate * s * (1 - s)), dup = d * gate * s;
            assert_value(g, i, j, gate * s * up, 4);
            assert_value(dh, i, j, dgate, 4);
            assert_value(dh, i, F + j, dup, 4);
            sum[0] += dgate, sum[1] += dup;
        }
        assert_value(dbias, 0, j, sum[0], 100);
        assert_value(dbias, 0, F + j, sum[1], 100);
    }
}

// silu(x) must be x or 0 for large |x|, and NaN and inf must remain NaN and inf.
UNIT_TEST(silu_of_large_values_nan_and_inf) {
    Fixture f;
    fixture_begin(&f, FMT_FP32, 1);
    const float at[5] = {0, 100, -100, -3e38f, NAN};
    Tensor h = poisoned(&f, FMT_FP32, 1, 10), g = poisoned(&f, FMT_FP32, 1, 5), dg = poisoned(&f, FMT_FP32, 1, 5);
    Tensor dh = poisoned(&f, FMT_FP32, 1, 10);
    for (int64_t j = 0; j < 5; j++) {
        set_value(h, 0, j, (double)at[j]);
        set_value(h, 0, 5 + j, 1);
        set_value(dg, 0, j, 1);
    }
    f.exec.ops->activation_forward(&f.exec, g, h, h, no_tensor(), true, ACT_SWIGLU);
    f.exec.ops->activation_backward(&f.exec, dh, dh, no_tensor(), dg, h, false, ACT_SWIGLU);
    const double expected[4] = {0, 100, 0, 0}, slope[4] = {0.5, 1, 0, 0};
    for (int64_t j = 0; j < 4; j++) {
        assert_true(fabs(value(g, 0, j) - expected[j]) <= 1e-6 * fabs(expected[j]) + 1e-30);
        assert_true(fabs(value(dh, 0, j) - slope[j]) <= 1e-6);
    }
    assert_true(isnan(value(g, 0, 4)) && isnan(value(dh, 0, 4)) && isnan(value(dh, 0, 9)));
    fixture_end(&f);
}

// A norm without a weight is bit-identical to a norm whose weight is 1.
TEST_EVERYWHERE(norms_without_weights) {
    const Ops *ops = f->exec.ops;
    const int64_t M = 3 * 33, C = 100;
    for (int centred = 0; centred < 2; centred++) {
        Tensor x = random_tensor(f, f->format, M, C, 2), dn = random_tensor(f, f->format, M, C, 1);
        Tensor ones = poisoned(f, f->format, 1, C), n[2], g[2];
        for (int64_t j = 0; j < C; j++) set_value(ones, 0, j, 1);
        for (int with = 0; with < 2; with++) {
            Norm norm = {.x = x, .rstd = poisoned(f, FMT_FP32, M, 1), .eps = 1e-5f};
            if (centred) norm.mean = poisoned(f, FMT_FP32, M, 1);
            if (with) norm.weight = ones;
            n[with] = poisoned(f, f->format, M, C);
            g[with] = poisoned(f, f->format, M, C);
            ops->residual_norm_forward(&f->exec, n[with], norm, x, x, no_tensor(), no_tensor());
            ops->norm_backward(&f->exec, g[with], no_tensor(), no_tensor(), dn, norm, false, false);
        }
        assert_true(same_bits(n[0], n[1]) && same_bits(g[0], g[1]));
    }
}

RUN_TESTS(NULL, NULL, NULL)
