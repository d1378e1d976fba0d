// Tests of the CPU backend's operations against their formulas in double precision.
#include "ops_fixture.h"

static void check_matmuls(Fixture *f, int64_t M, int64_t in, int64_t out) {
    const Ops *ops = f->exec.ops;
    Weight w = {0};
    w.value = random_tensor(f, f->format, out, in, 1);
    Tensor x = random_tensor(f, f->format, M, in, 1), bias = random_tensor(f, f->format, 1, out, 1);
    Tensor dy = random_tensor(f, f->format, M, out, 1);
    Tensor y = poisoned(f, f->format, M, out), plain = poisoned(f, FMT_FP32, M, out);
    Tensor dx = poisoned(f, f->format, M, in), dw = poisoned(f, f->format, out, in);
    Tensor dw_sum = random_tensor(f, FMT_FP32, out, in, 1), before = copy_of(f, dw_sum);
    ops->linear_forward(&f->exec, y, x, w, bias);
    ops->linear_forward(&f->exec, plain, x, w, no_tensor());
    ops->linear_backward_data(&f->exec, dx, dy, w);
    ops->linear_backward_weight(&f->exec, dw, dy, x, false);
    ops->linear_backward_weight(&f->exec, dw_sum, dy, x, true);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < out; j++) {
            double sum = 0;
            for (int64_t k = 0; k < in; k++) sum += value(x, i, k) * value(w.value, j, k);
            assert_value(y, i, j, sum + value(bias, 0, j), sqrt((double)in));
            assert_value(plain, i, j, sum, sqrt((double)in));
        }
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < in; j++) {
            double sum = 0;
            for (int64_t k = 0; k < out; k++) sum += value(dy, i, k) * value(w.value, k, j);
            assert_value(dx, i, j, sum, sqrt((double)out));
        }
    for (int64_t i = 0; i < out; i++)
        for (int64_t j = 0; j < in; j++) {
            double sum = 0;
            for (int64_t k = 0; k < M; k++) sum += value(dy, k, i) * value(x, k, j);
            assert_value(dw, i, j, sum, sqrt((double)M));
            assert_value(dw_sum, i, j, sum + value(before, i, j), sqrt((double)M));
        }
}

TEST_EVERYWHERE(matmuls_and_their_gradients) {
    check_matmuls(f, 1, 1, 1);
    check_matmuls(f, 37, 100, 160);
    check_matmuls(f, 261, 300, 291);
    check_matmuls(f, 5, 1100, 7);
    check_matmuls(f, 1050, 9, 20);
}

// Computes the mean and 1 / deviation of row i in double precision. If `centred` is false (RMSNorm), the mean is 0.
static void row_statistics(Tensor x, int64_t i, bool centred, double eps, double *mean, double *rstd) {
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < x.cols; j++) sum += value(x, i, j);
    *mean = centred ? sum / (double)x.cols : 0;
    for (int64_t j = 0; j < x.cols; j++) squares += pow(value(x, i, j) - *mean, 2);
    *rstd = 1 / sqrt(squares / (double)x.cols + eps);
}

static Norm make_norm(Fixture *f, int64_t M, int64_t C, bool centred) {
    Norm norm = {0};
    if (centred) norm.mean = poisoned(f, FMT_FP32, M, 1);
    norm.rstd = poisoned(f, FMT_FP32, M, 1);
    norm.weight = random_tensor(f, f->format, 1, C, 1);
    if (centred) norm.bias = random_tensor(f, f->format, 1, C, 1);
    norm.eps = 1e-5f;
    return norm;
}

static void check_norm(Tensor n, Norm norm, Tensor r) {
    for (int64_t i = 0; i < r.rows; i++) {
        double mean, rstd;
        row_statistics(r, i, norm.mean.data != NULL, (double)norm.eps, &mean, &rstd);
        if (norm.mean.data) assert_value(norm.mean, i, 0, mean, 1);
        assert_value(norm.rstd, i, 0, rstd, 1);
        for (int64_t j = 0; n.data && j < r.cols; j++)
            assert_value(n, i, j,
                         (value(r, i, j) - mean) * rstd * value(norm.weight, 0, j) +
                             (norm.bias.data ? value(norm.bias, 0, j) : 0),
                         4);
    }
}

// Checks residual_norm_forward with separate, in-place and absent outputs, then norm_recompute.
static void check_residual_norm(Fixture *f, int64_t M, int64_t C, bool centred) {
    const Ops *ops = f->exec.ops;
    Tensor r_in = random_tensor(f, f->format, M, C, 3), y = random_tensor(f, f->format, M, C, 1);
    Tensor bias = random_tensor(f, f->format, 1, C, 1);
    Tensor r_out = poisoned(f, f->format, M, C), n = poisoned(f, f->format, M, C);
    Norm norm = make_norm(f, M, C, centred);
    norm.x = r_out;
    ops->residual_norm_forward(&f->exec, n, norm, r_out, r_in, y, bias);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < C; j++)
            assert_value(r_out, i, j, value(r_in, i, j) + value(y, i, j) + value(bias, 0, j), 4);
    check_norm(n, norm, r_out);

    // r_out shares memory with r_in; norm.x, the copy saved for backward, is in other memory.
    Tensor r = copy_of(f, r_in), x = poisoned(f, f->format, M, C), n2 = poisoned(f, f->format, M, C);
    norm.x = x;
    ops->residual_norm_forward(&f->exec, n2, norm, r, r, y, bias);
    assert_true(same_bits(r, r_out) && same_bits(x, r_out) && same_bits(n2, n));

    // norm_recompute gives the bits of n from the saved x, also if its output shares memory with n.
    Tensor n3 = poisoned(f, f->format, M, C), n4 = poisoned(f, f->format, M, C);
    ops->norm_recompute(&f->exec, n3, no_tensor(), norm);
    assert_true(same_bits(n3, n));
    ops->norm_recompute(&f->exec, n4, n, norm);
    assert_true(same_bits(n4, n));
    ops->norm_recompute(&f->exec, n, n, norm);
    assert_true(same_bits(n4, n));

    // Without y, r_out is a copy of r_in, or r_in itself if they share memory. n is optional.
    Tensor copy = poisoned(f, f->format, M, C);
    norm.x = copy;
    ops->residual_norm_forward(&f->exec, no_tensor(), norm, copy, r_in, no_tensor(), no_tensor());
    assert_true(same_bits(copy, r_in));
    check_norm(no_tensor(), norm, r_in);
    ops->residual_norm_forward(&f->exec, n, norm, copy, copy, no_tensor(), no_tensor());
    assert_true(same_bits(copy, r_in));
    check_norm(n, norm, r_in);
}

static void check_norm_backward(Fixture *f, int64_t M, int64_t C, bool centred, bool add) {
    Tensor dn = random_tensor(f, f->format, M, C, 1), n = poisoned(f, f->format, M, C);
    Tensor g = add ? random_tensor(f, f->format, M, C, 1) : poisoned(f, f->format, M, C), before = copy_of(f, g);
    Tensor dweight = add ? random_tensor(f, FMT_FP32, 1, C, 1) : poisoned(f, FMT_FP32, 1, C);
    Tensor dbias = add ? random_tensor(f, FMT_FP32, 1, C, 1) : poisoned(f, FMT_FP32, 1, C);
    Tensor dweight_before = copy_of(f, dweight), dbias_before = copy_of(f, dbias);
    Tensor amax = poisoned(f, FMT_FP32, M, 1);
    Norm norm = make_norm(f, M, C, centred);
    norm.x = random_tensor(f, f->format, M, C, 2);
    f->exec.ops->residual_norm_forward(&f->exec, n, norm, norm.x, norm.x, no_tensor(), no_tensor());
    g.amax = (uint32_t *)amax.data;
    f->exec.ops->norm_backward(&f->exec, g, dweight, centred ? dbias : no_tensor(), dn, norm, add, add);
    double *dw = xcalloc((size_t)C, sizeof *dw), *db = xcalloc((size_t)C, sizeof *db);
    for (int64_t i = 0; i < M; i++) {
        double mean, rstd, sum = 0, dot = 0, highest = 0;
        row_statistics(norm.x, i, centred, (double)norm.eps, &mean, &rstd);
        for (int64_t j = 0; j < C; j++) {
            double d = value(dn, i, j) * value(norm.weight, 0, j), xhat = (value(norm.x, i, j) - mean) * rstd;
            sum += centred ? d / (double)C : 0;
            dot += d * xhat / (double)C;
            dw[j] += value(dn, i, j) * xhat;
            db[j] += value(dn, i, j);
        }
        for (int64_t j = 0; j < C; j++) {
            double d = value(dn, i, j) * value(norm.weight, 0, j), xhat = (value(norm.x, i, j) - mean) * rstd;
            assert_value(g, i, j, (add ? value(before, i, j) : 0) + rstd * (d - sum - xhat * dot), 4);
            highest = fmax(highest, fabs(value(g, i, j)));
        }
        assert_true(float_bits((float)highest) == g.amax[i]);
    }
    for (int64_t j = 0; j < C; j++) {
        assert_value(dweight, 0, j, dw[j] + (add ? value(dweight_before, 0, j) : 0), sqrt((double)M));
        if (centred) assert_value(dbias, 0, j, db[j] + (add ? value(dbias_before, 0, j) : 0), sqrt((double)M));
    }
    free(dw);
    free(db);
}

TEST_EVERYWHERE(norms_and_their_gradients) {
    check_residual_norm(f, 3 * 17, 100, true);
    check_residual_norm(f, 33, 48, false);
    check_norm_backward(f, 3 * 33, 100, true, false);
    check_norm_backward(f, 17, 160, true, true);
    check_norm_backward(f, 33, 48, false, true);
}

static double gelu(double h, ActivationKind kind) {
    if (kind == ACT_GELU_QUICK) return h / (1 + exp(-1.702 * h));
    if (kind == ACT_GELU_ERF) return h * (1 + erf(h / sqrt(2))) / 2;
    return 0.5 * h * (1 + tanh(sqrt(2 / M_PI) * (h + 0.044715 * h * h * h)));
}

static double gelu_slope(double h, ActivationKind kind) {
    if (kind == ACT_GELU_QUICK) {
        double gate = 1 / (1 + exp(-1.702 * h));
        return gate + 1.702 * h * gate * (1 - gate);
    }
    if (kind == ACT_GELU_ERF) return (1 + erf(h / sqrt(2))) / 2 + h * exp(-h * h / 2) / sqrt(2 * M_PI);
    double t = tanh(sqrt(2 / M_PI) * (h + 0.044715 * h * h * h));
    return 0.5 * (1 + t) + 0.5 * h * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * h * h);
}

static void check_gelu(Fixture *f, ActivationKind kind) {
    const Ops *ops = f->exec.ops;
    const int64_t M = 3 * 33, F = 100;
    Tensor y = random_tensor(f, f->format, M, F, 6), bias = random_tensor(f, f->format, 1, F, 1);
    Tensor h = poisoned(f, f->format, M, F), g = poisoned(f, f->format, M, F);
    ops->activation_forward(&f->exec, g, h, y, bias, true, kind);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < F; j++) {
            assert_value(h, i, j, value(y, i, j) + value(bias, 0, j), 4);
            assert_value(g, i, j, gelu(value(h, i, j), kind), 1);
        }
    // Checks activation_forward in place (with and without bias) and without the output g, then activation_recompute.
    Tensor in_place = copy_of(f, y), g2 = poisoned(f, f->format, M, F), h2 = poisoned(f, f->format, M, F);
    ops->activation_forward(&f->exec, g2, in_place, in_place, bias, true, kind);
    assert_true(same_bits(in_place, h) && same_bits(g2, g));
    ops->activation_forward(&f->exec, no_tensor(), h2, h, no_tensor(), true, kind);
    assert_true(same_bits(h2, h));
    ops->activation_forward(&f->exec, g2, h2, h2, no_tensor(), true, kind);
    assert_true(same_bits(h2, h) && same_bits(g2, g));
    Tensor g3 = poisoned(f, f->format, M, F), saved = copy_of(f, g);
    ops->activation_recompute(&f->exec, g3, no_tensor(), h, kind);
    ops->activation_recompute(&f->exec, g, g, h, kind);
    assert_true(same_bits(g3, saved) && same_bits(g, saved));

    Tensor dg = random_tensor(f, f->format, M, F, 1), given = copy_of(f, dg);
    Tensor dbias = random_tensor(f, FMT_FP32, 1, F, 1), before = copy_of(f, dbias);
    ops->activation_backward(&f->exec, dg, dg, dbias, dg, h, true, kind);
    for (int64_t j = 0; j < F; j++) {
        double sum = value(before, 0, j);
        for (int64_t i = 0; i < M; i++) {
            double expected = value(given, i, j) * gelu_slope(value(h, i, j), kind);
            assert_value(dg, i, j, expected, 1);
            sum += expected;
        }
        assert_value(dbias, 0, j, sum, 20);
    }
}

static void bias_gradients(Fixture *f) {
    const Ops *ops = f->exec.ops;
    const int64_t M = 77 * 17, N = 48;
    Tensor dy = random_tensor(f, f->format, M, N, 1), given = copy_of(f, dy), dbias = poisoned(f, FMT_FP32, 1, N);
    ops->grad_quantize(&f->exec, dy, dy, dbias, dy, false);
    Tensor twice = copy_of(f, dbias);
    ops->grad_quantize(&f->exec, dy, dy, twice, dy, true);
    ops->grad_quantize(&f->exec, dy, dy, no_tensor(), dy, false);
    ops->quantize_forward(&f->exec, dy, dy);
    ops->quantize_recompute(&f->exec, dy, dy, dy);
    assert_true(same_bits(dy, given));
    for (int64_t j = 0; j < N; j++) {
        double sum = 0;
        for (int64_t i = 0; i < M; i++) sum += value(dy, i, j);
        assert_value(dbias, 0, j, sum, sqrt((double)M));
        assert_value(twice, 0, j, 2 * sum, sqrt((double)M));
    }
}

TEST_EVERYWHERE(activations_and_their_gradients) {
    check_gelu(f, ACT_GELU_TANH);
    check_gelu(f, ACT_GELU_QUICK);
    check_gelu(f, ACT_GELU_ERF);
    bias_gradients(f);
}

// Checks that gelu(x) is x or 0 for large |x|, and that NaN and inf remain NaN and inf.
static void check_gelu_limits(ActivationKind kind) {
    Fixture f;
    fixture_begin(&f, FMT_FP32, 1);
    const float at[8] = {0, 100, -100, 3e38f, -3e38f, INFINITY, NAN, 1e-30f};
    Tensor h = poisoned(&f, FMT_FP32, 1, 8), g = poisoned(&f, FMT_FP32, 1, 8), dg = poisoned(&f, FMT_FP32, 1, 8);
    for (int64_t j = 0; j < 8; j++) {
        set_value(h, 0, j, (double)at[j]);
        set_value(dg, 0, j, 1);
    }
    f.exec.ops->activation_forward(&f.exec, g, h, h, no_tensor(), true, kind);
    f.exec.ops->activation_backward(&f.exec, dg, dg, no_tensor(), dg, h, false, kind);
    const double expected[5] = {0, 100, 0, (double)3e38f, 0}, slope[3] = {0.5, 1, 0};
    for (int64_t j = 0; j < 5; j++) assert_true(fabs(value(g, 0, j) - expected[j]) <= 1e-6 * fabs(expected[j]) + 1e-30);
    for (int64_t j = 0; j < 3; j++) assert_true(fabs(value(dg, 0, j) - slope[j]) <= 1e-6);
    assert_true(!isfinite(value(g, 0, 5)) && isnan(value(g, 0, 6)) && isnan(value(dg, 0, 6)));
    assert_true(fabs(value(g, 0, 7) / 5e-31 - 1) < 1e-6);
    fixture_end(&f);
}

UNIT_TEST(gelu_of_large_values_nan_and_inf) {
    check_gelu_limits(ACT_GELU_TANH);
    check_gelu_limits(ACT_GELU_QUICK);
    check_gelu_limits(ACT_GELU_ERF);
}

// Attention of one batch element and head in double precision: probabilities p (T, T) and output o (T, D).
typedef struct {
    double *p, *o;
} HeadReference;

static int64_t kv_column(AttentionShape s, int64_t head) {
    return head / (s.heads / s.kv_heads) * s.head_dim;
}

// True if query i attends to key j.
static bool attends(AttentionShape s, int64_t i, int64_t j) {
    return s.bidirectional || j <= i;
}

static void attention_reference(HeadReference r, Tensor q, Tensor k, Tensor v, Tensor lse, AttentionShape s, int64_t b,
                                int64_t head) {
    int64_t T = s.T, D = s.head_dim, row = b * T, kv = kv_column(s, head);
    for (int64_t i = 0; i < T; i++) {
        double sum = 0;
        for (int64_t j = 0; j < T; j++) {
            double score = 0;
            for (int64_t d = 0; d < D; d++) score += value(q, row + i, head * D + d) * value(k, row + j, kv + d);
            r.p[i * T + j] = attends(s, i, j) ? exp(score / sqrt((double)D)) : 0;
            sum += r.p[i * T + j];
        }
        assert_value(lse, b * s.heads + head, i, log(sum), 1);
        for (int64_t j = 0; j < T; j++) r.p[i * T + j] /= sum;
        for (int64_t d = 0; d < D; d++) {
            r.o[i * D + d] = 0;
            for (int64_t j = 0; j < T; j++) r.o[i * D + d] += r.p[i * T + j] * value(v, row + j, kv + d);
        }
    }
}

// Adds the gradients of one attention head to ref_dk and ref_dv (T, D), and compares the head's dq with its formula.
static void attention_gradients(HeadReference r, Tensor q, Tensor k, Tensor v, Tensor o, Tensor d_o, Tensor dq,
                                double *ref_dk, double *ref_dv, AttentionShape s, int64_t b, int64_t head) {
    int64_t T = s.T, D = s.head_dim, row = b * T, kv = kv_column(s, head);
    double *ref_dq = (double *)xmalloc((size_t)D * sizeof *ref_dq);
    for (int64_t i = 0; i < T; i++) {
        double delta = 0; // sum of d_o * o over the head, with the stored o
        for (int64_t d = 0; d < D; d++) delta += value(d_o, row + i, head * D + d) * value(o, row + i, head * D + d);
        memset(ref_dq, 0, (size_t)D * sizeof *ref_dq);
        for (int64_t j = 0; j < T; j++) {
            double p = r.p[i * T + j], dp = 0;
            for (int64_t d = 0; d < D; d++) dp += value(d_o, row + i, head * D + d) * value(v, row + j, kv + d);
            double ds = p * (dp - delta) / sqrt((double)D);
            for (int64_t d = 0; d < D; d++) {
                ref_dq[d] += ds * value(k, row + j, kv + d);
                ref_dk[j * D + d] += ds * value(q, row + i, head * D + d);
                ref_dv[j * D + d] += p * value(d_o, row + i, head * D + d);
            }
        }
        for (int64_t d = 0; d < D; d++) assert_value(dq, row + i, head * D + d, ref_dq[d], 2);
    }
    free(ref_dq);
}

static void check_attention(Fixture *f, AttentionShape s) {
    const Ops *ops = f->exec.ops;
    int64_t T = s.T, D = s.head_dim, M = s.B * T, wide = (s.heads + 2 * s.kv_heads) * D;
    int64_t k_at = s.heads * D, v_at = k_at + s.kv_heads * D, group = s.heads / s.kv_heads;
    Tensor qkv = random_tensor(f, f->format, M, wide, 2), dqkv = poisoned(f, f->format, M, wide);
    Tensor o = poisoned(f, f->format, M, k_at), lse = poisoned(f, FMT_FP32, s.B * s.heads, T);
    Tensor d_o = random_tensor(f, f->format, M, k_at, 1);
    Tensor q = tensor_cols(qkv, 0, k_at), k = tensor_cols(qkv, k_at, s.kv_heads * D);
    Tensor v = tensor_cols(qkv, v_at, s.kv_heads * D), dq = tensor_cols(dqkv, 0, k_at);
    Tensor dk = tensor_cols(dqkv, k_at, s.kv_heads * D), dv = tensor_cols(dqkv, v_at, s.kv_heads * D);
    ops->attention_forward(&f->exec, o, lse, q, k, v, no_tensor(), s);
    ops->attention_backward(&f->exec, dq, dk, dv, d_o, o, lse, q, k, v, no_tensor(), no_tensor(), s);
    HeadReference r = {(double *)xmalloc((size_t)(T * T) * sizeof(double)),
                       (double *)xmalloc((size_t)(T * D) * sizeof(double))};
    for (int64_t b = 0; b < s.B; b++)
        for (int64_t kv = 0; kv < s.kv_heads; kv++) {
            double *ref_dk = (double *)xcalloc((size_t)(T * D), sizeof(double));
            double *ref_dv = (double *)xcalloc((size_t)(T * D), sizeof(double));
            for (int64_t head = kv * group; head < (kv + 1) * group; head++) {
                attention_reference(r, q, k, v, lse, s, b, head);
                for (int64_t i = 0; i < T; i++)
                    for (int64_t d = 0; d < D; d++) assert_value(o, b * T + i, head * D + d, r.o[i * D + d], 2);
                attention_gradients(r, q, k, v, o, d_o, dq, ref_dk, ref_dv, s, b, head);
            }
            for (int64_t j = 0; j < T; j++)
                for (int64_t d = 0; d < D; d++) {
                    assert_value(dk, b * T + j, kv * D + d, ref_dk[j * D + d], 10);
                    assert_value(dv, b * T + j, kv * D + d, ref_dv[j * D + d], 10);
                }
            free(ref_dk);
            free(ref_dv);
        }
    free(r.p);
    free(r.o);
}

// Checks attention of a sequence's last `queries` tokens with the keys and values of earlier tokens in a KV cache. The
// results must be bit-identical to attention of the whole sequence, or with OpenBLAS equal up to rounding.
static void check_cached_attention(Fixture *f, AttentionShape s, int64_t queries) {
    const int64_t D = s.head_dim, k_at = s.heads * D, kv = s.kv_heads * D, before = s.T - queries;
    Tensor qkv = random_tensor(f, f->format, s.T, k_at + 2 * kv, 2), o = poisoned(f, f->format, s.T, k_at);
    Tensor lse = poisoned(f, FMT_FP32, s.heads, s.T), few_lse = poisoned(f, FMT_FP32, s.heads, queries);
    Tensor few = poisoned(f, f->format, queries, k_at);
    Tensor q = tensor_cols(qkv, 0, k_at), k = tensor_cols(qkv, k_at, kv), v = tensor_cols(qkv, k_at + kv, kv);
    f->exec.ops->attention_forward(&f->exec, o, lse, q, k, v, no_tensor(), s);
    s.T = (int)queries;
    f->exec.ops->attention_forward(&f->exec, few, few_lse, tensor_rows(q, before, queries), k, v, no_tensor(), s);
    for (int64_t i = 0; i < queries; i++) {
        for (int64_t j = 0; j < k_at; j++) assert_rounded(few, i, j, value(o, before + i, j), 2, 2);
        for (int64_t head = 0; head < s.heads; head++) assert_value(few_lse, head, i, value(lse, head, before + i), 1);
    }
    if (!cpu_of(&f->exec)->blas) assert_true(same_bits(few, tensor_rows(o, before, queries)));
}

TEST_EVERYWHERE(attention_and_its_gradients) {
    const AttentionShape shapes[] = {{3, 17, 2, 2, 16, false}, {1, 100, 4, 2, 24, false}, {1, 65, 3, 1, 8, false},
                                     {2, 1, 1, 1, 4, false},   {3, 17, 2, 2, 16, true},   {1, 100, 4, 2, 24, true},
                                     {2, 65, 2, 1, 24, true},  {2, 5, 2, 1, 8, true}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_attention(f, shapes[i]);
    for (int64_t queries = 1; queries <= 90; queries += 15)
        check_cached_attention(f, (AttentionShape){1, 100, 4, 2, 24, false}, queries);
}

RUN_TESTS(NULL, NULL, NULL)
