// Tests of FP8 operations on the CPU with one scale per row, bit for bit against formats.h and the definition of the
// scale. Covers quantization in one pass, matmuls whose outputs carry row scales, the operations that read those
// outputs, and transposes, which have one scale per tensor.
#include "fp8_fixture.h"

// Returns a random tensor like a matmul's output with row scales: BF16 values and a power of two per row. A fifth of
// the rows have the smallest scale.
static Tensor carried(Fixture *f, int64_t rows, int64_t cols, double size) {
    Tensor t = random_tensor(f, FMT_BF16, rows, cols, 1);
    t.granularity = SCALE_ROW;
    t.scale = poisoned(f, FMT_FP32, rows, 1).data;
    for (int64_t i = 0; i < rows; i++)
        ((float *)t.scale)[i] = draw(f) < -0.6 ? SCALE_MIN : (float)exp2(floor(log2(size) + 4 * draw(f)));
    return t;
}

// Fails unless q_t is the transpose of q's decoded values, quantized with one scale.
static void assert_rescaled(Fixture *f, Tensor q_t, Tensor q) {
    assert_scale_over_rows(q_t, q, decoded(f, q));
}

static Tensor without_codes(Tensor t) {
    t.data = NULL;
    return t;
}

static void assert_column_sums(Tensor sums, Tensor x) {
    for (int64_t j = 0; j < x.cols; j++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < x.rows; i++) {
            sum += value(x, i, j);
            size += fabs(value(x, i, j));
        }
        assert_value(sums, 0, j, sum, size);
    }
}

static void check_quantize(Fixture *f, Tensor x) {
    const Ops *ops = f->exec.ops;
    watch(f);
    for (int i = 0; i < 2; i++) {
        Tensor q = coded_rows(f, i ? FMT_E5M2 : FMT_E4M3, x.rows, x.cols), q_t = coded_rows_transpose(f, q);
        ops->quantize_forward(&f->exec, q, x);
        assert_quantised_rows(q, x);
        ops->quantize_recompute(&f->exec, q_t, q, x);
        assert_scale_over_rows(q_t, q, x);
        memset(q_t.data, 0xff, (size_t)(q_t.cols * q_t.stride));
        ops->quantize_recompute(&f->exec, q_t, without_codes(q), x);
        assert_scale_over_rows(q_t, q, x);
        Tensor part = tensor_rows(q, x.rows / 2, x.rows - x.rows / 2), of = tensor_rows(x, x.rows / 2, part.rows);
        memset(part.scale, 0xff, (size_t)part.rows * sizeof(float));
        // Quantizing a range of rows must give the row scales that these rows have in the whole tensor.
        ops->quantize_forward(&f->exec, part, of);
        assert_quantised_rows(q, x);
    }
    assert_int_equal(f->state.nonfinite, 0);
}

static void tensors_of_all_sizes(Fixture *f) {
    Tensor x = uneven_tensor(f, 3 * 33, 100, 1), single = uneven_tensor(f, 1, 1, 1e-20);
    for (int64_t j = 0; j < x.cols; j++) { // Sets the first row, the last row and row 17 to 0.
        set_value(x, 0, j, 0);
        set_value(x, 17, j, -0.0);
        set_value(x, 98, j, 0);
    }
    check_quantize(f, x);
    check_quantize(f, single);
    check_quantize(f, uneven_tensor(f, 17, 1, 1e4));
}

static void tensors_at_the_limits(Fixture *f) {
    check_quantize(f, random_tensor(f, f->format, 17, 48, 0));
    Tensor huge = random_tensor(f, f->format, 65, 160, 1), edge = random_tensor(f, f->format, 5, 31, 100);
    set_value(huge, 64, 159, -3e38);
    set_value(edge, 0, 30, 448); // 448 is the largest E4M3 value, so the scale is 1.
    set_value(edge, 1, 0, -450);
    set_value(edge, 2, 3, 57344);
    set_value(edge, 3, 4, 57600);
    check_quantize(f, huge);
    check_quantize(f, edge);
    check_quantize(f, random_tensor(f, f->format, 3, 100, 1e-39)); // the amax is so small that the scale is SCALE_MIN
}

TEST_EVERYWHERE(quantization_with_one_scale_per_row) {
    tensors_of_all_sizes(f);
    tensors_at_the_limits(f);
}

// Checks the norm of r_in + y + bias, its recomputation, and its gradient. group: group size of the FP8 values in which
// the norm's input is saved; 0: the input is not quantized.
static void check_norm(Fixture *f, int64_t M, int64_t C, int group) {
    const Ops *ops = f->exec.ops;
    watch(f);
    Tensor r_in = random_tensor(f, f->format, M, C, 3), y = carried(f, M, C, 1), r = poisoned(f, f->format, M, C);
    Tensor bias = random_tensor(f, f->format, 1, C, 1), x = group ? grouped(f, M, C, group) : r;
    Tensor n = coded_rows(f, FMT_E4M3, M, C), n_t = coded_rows_transpose(f, n);
    Norm norm = make_norm(f, x, false);
    ops->residual_norm_forward(&f->exec, n, norm, r, r_in, y, bias);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < C; j++)
            assert_true(element(r, i, j) == stored_as(r, element(r_in, i, j) + element(y, i, j) + element(bias, 0, j)));
    if (group) assert_quantised_groups(x, r);
    assert_quantised_rows(n, normalised(f, norm, r));

    // Computes the transpose n_t: first from the saved x, as if the FP8 values of n had not been saved, then from the
    // FP8 values of n.
    Norm of_saved = norm;
    of_saved.x = decoded(f, x);
    Tensor again = poisoned(f, FMT_FP32, M, C);
    ops->norm_recompute(&f->exec, again, no_tensor(), of_saved);
    ops->norm_recompute(&f->exec, n_t, without_codes(n), norm);
    assert_scale_over_rows(n_t, n, again);
    memset(n_t.data, 0xff, (size_t)(C * n_t.stride));
    *(float *)n_t.scale = NAN;
    ops->norm_recompute(&f->exec, n_t, n, norm);
    assert_rescaled(f, n_t, n);

    // norm_backward multiplies dn, which is a matmul's output, by its row scales.
    Tensor dn = carried(f, M, C, 1e-4), g = random_tensor(f, f->format, M, C, 1e-4), h = copy_of(f, g);
    Tensor sums[4];
    for (int i = 0; i < 4; i++) sums[i] = poisoned(f, FMT_FP32, 1, C);
    ops->norm_backward(&f->exec, g, sums[0], sums[1], dn, norm, true, false);
    ops->norm_backward(&f->exec, h, sums[2], sums[3], decoded(f, dn), norm, true, false);
    assert_true(same_bits(g, h) && same_bits(sums[0], sums[2]) && same_bits(sums[1], sums[3]));
    assert_int_equal(f->state.nonfinite, 0);
}

// In the first blocks (--bf16-blocks), forward matmuls read n and o in BF16, and wgrad reads them in FP8. Forward
// stores their amax, with which backward quantizes them.
static void check_stored_amax(Fixture *f, int64_t M, int64_t C) {
    const Ops *ops = f->exec.ops;
    Tensor r = random_tensor(f, f->format, M, C, 3), x = grouped(f, M, C, 16), n = poisoned(f, f->format, M, C);
    Tensor n_t = coded_rows_transpose(f, coded_rows(f, FMT_E4M3, M, C)), o_t;
    n.amax = (uint32_t *)poisoned(f, FMT_FP32, M, 1).data;
    Norm norm = make_norm(f, x, true);
    ops->residual_norm_forward(&f->exec, n, norm, r, r, no_tensor(), no_tensor());
    const Tensor expected = normalised(f, norm, x);
    ops->norm_recompute(&f->exec, n_t, without_codes(n), norm);
    n_t.amax = n.amax;
    assert_quantised(n_t, expected);
    Tensor o = random_tensor(f, f->format, M, C, 3);
    o.amax = (uint32_t *)poisoned(f, FMT_FP32, M, 1).data;
    o_t = coded_rows_transpose(f, coded_rows(f, FMT_E4M3, M, C));
    ops->quantize_forward(&f->exec, o, o);
    ops->quantize_recompute(&f->exec, o_t, o, o);
    o_t.amax = o.amax;
    assert_quantised(o_t, o);
}

// The RMS norm of a row of zeros is 0.
static void norm_of_zeros(Fixture *f) {
    Tensor r = random_tensor(f, f->format, 3, 48, 1), n = coded_rows(f, FMT_E4M3, 3, 48);
    for (int64_t j = 0; j < 48; j++) set_value(r, 1, j, 0);
    Norm norm = make_norm(f, r, true);
    norm.bias = norm.mean = no_tensor();
    f->exec.ops->residual_norm_forward(&f->exec, n, norm, r, r, no_tensor(), no_tensor());
    assert_true(row_scale(n, 1) == SCALE_MIN && row_scale(n, 0) > SCALE_MIN);
    for (int64_t j = 0; j < 48; j++) assert_int_equal(code_at(n, 1, j) & 0x7f, 0);
}

TEST_EVERYWHERE(norms_with_row_scales) {
    check_norm(f, 33, 48, 16);
    check_norm(f, 7, 160, 0);
    check_norm(f, 3 * 17, 100, 16);
    check_norm(f, 1, 48, 32);
    norm_of_zeros(f);
    check_stored_amax(f, 33, 48);
}

// Checks GELU. group: group size of the saved activation h; 0: h is not quantized and shares memory with y.
static void check_gelu(Fixture *f, int64_t M, int64_t F, int group, ActivationKind kind) {
    const Ops *ops = f->exec.ops;
    watch(f);
    Tensor y = group ? carried(f, M, F, 2) : random_tensor(f, f->format, M, F, 6);
    Tensor bias = group ? random_tensor(f, f->format, 1, F, 1) : no_tensor(), h = group ? grouped(f, M, F, group) : y;
    Tensor g = coded_rows(f, FMT_E4M3, M, F), g_t = coded_rows_transpose(f, g);
    ops->activation_forward(&f->exec, g, h, y, bias, false, kind);
    Tensor sum = group ? poisoned(f, FMT_FP32, M, F) : h;
    if (group) {
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < F; j++) set_value(sum, i, j, (double)(element(y, i, j) + element(bias, 0, j)));
        assert_quantised_groups(h, sum);
    }
    assert_quantised_rows(g, plain_gelu(f, sum, kind));
    ops->activation_recompute(&f->exec, g_t, without_codes(g), h, kind);
    assert_scale_over_rows(g_t, g, plain_gelu(f, h, kind));
    memset(g_t.data, 0xff, (size_t)(F * g_t.stride));
    *(float *)g_t.scale = NAN;
    ops->activation_recompute(&f->exec, g_t, g, h, kind);
    assert_rescaled(f, g_t, g);

    Tensor dg = uneven_tensor(f, M, F, 1e-6), dbias = poisoned(f, FMT_FP32, 1, F);
    for (int64_t j = 0; j < F; j++) set_value(dg, M - 1, j, 0);
    Tensor dh = plain_gelu_gradient(f, dg, h, kind);
    Tensor dh_q = coded_rows(f, FMT_E4M3, M, F), dh_qt = coded_transpose_in(f, FMT_E5M2, dh_q);
    ops->activation_backward(&f->exec, dh_q, dh_qt, dbias, dg, h, false, kind);
    assert_quantised_rows(dh_q, dh);
    assert_rescaled(f, dh_qt, dh_q);
    assert_column_sums(dbias, dh);
    assert_int_equal(f->state.nonfinite, 0);
}

// Checks activation_backward_recompute with GELU or SwiGLU. The scale of dh follows from an upper bound of |dg| = |dy
// w|, so no value of dh may saturate.
static void check_bounded(Fixture *f, int64_t M, int64_t F, int64_t C, int group, ActivationKind kind) {
    const Ops *ops = f->exec.ops;
    const bool gated = kind == ACT_SWIGLU;
    const int64_t H = gated ? 2 * F : F;
    watch(f);
    Tensor y = gated ? random_tensor(f, f->format, M, H, 3) : carried(f, M, H, 2);
    for (int64_t i = 0; gated && i < M; i++) // sets a group of each row to 0; the scale of such a group is 1
        for (int64_t j = 0; j < group; j++) set_value(y, i, j, 0);
    Tensor bias = gated ? no_tensor() : random_tensor(f, f->format, 1, F, 1);
    Tensor h = grouped(f, M, H, group);
    Tensor g = coded_rows(f, FMT_E4M3, M, F), g_t = coded_rows_transpose(f, g), again = coded_rows_transpose(f, g);
    ops->activation_forward(&f->exec, g, h, y, bias, false, kind);
    ops->activation_recompute(&f->exec, g_t, without_codes(g), h, kind);
    Weight w = {.codes = whole_codes(f, FMT_E4M3, C, F, 0x1p-6f)};
    Tensor dy = whole_codes(f, FMT_E4M3, M, C, 0x1p-11f), dg = poisoned(f, f->format, M, F);
    memset((uint8_t *)dy.data + (M - 1) * C, 0, (size_t)C); // sets a row of the gradient to 0
    w.codes_t = coded_transpose(f, w.codes);
    transpose_into(w.codes_t, w.codes);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < F; j++) {
            double sum = 0;
            for (int64_t k = 0; k < C; k++) sum += (double)element(dy, i, k) * (double)element(w.codes, k, j);
            set_value(dg, i, j, sum);
        }
    Tensor dh = poisoned(f, FMT_FP32, M, H), dbias = gated ? no_tensor() : poisoned(f, FMT_FP32, 1, F);
    ops->activation_backward(&f->exec, dh, dh, no_tensor(), decoded(f, dg), decoded(f, h), false, kind);
    Tensor dh_q = coded_rows(f, FMT_E4M3, M, H), dh_qt = coded_transpose_in(f, FMT_E5M2, dh_q);
    ops->activation_bound(&f->exec, dh_q, dy, w, h, kind);
    ops->activation_backward_recompute(&f->exec, dh_q, dh_qt, dbias, again, without_codes(g), dg, h, false, kind);
    for (int64_t i = 0; i < M; i++) {
        const float scale = ((const float *)dh_q.scale)[i];
        float largest = 0;
        for (int64_t j = 0; j < H; j++) {
            largest = fmaxf(largest, fabsf(element(dh, i, j)));
            assert_int_equal(code_at(dh_q, i, j), fp8_encode(FMT_E4M3, element(dh, i, j) / scale));
        }
        assert_true(largest <= format_max(FMT_E4M3) * scale);
        if (i == M - 1) assert_true(largest == 0 && scale == SCALE_MIN);
        if (largest > 0) assert_true(largest * 0x1p8f > format_max(FMT_E4M3) * scale);
    }
    assert_rescaled(f, dh_qt, dh_q);
    assert_int_equal(float_bits(*(const float *)again.scale), float_bits(*(const float *)g_t.scale));
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < F; j++) assert_int_equal(code_at(again, i, j), code_at(g_t, i, j));
    if (!gated) assert_column_sums(dbias, dh);
    assert_int_equal(f->state.nonfinite, 0);
}

TEST_EVERYWHERE(activations_with_row_scales) {
    static const ActivationKind kinds[] = {ACT_GELU_TANH, ACT_GELU_QUICK, ACT_GELU_ERF};
    for (int i = 0; i < 3; i++) {
        check_gelu(f, 3 * 33, 100, 16, kinds[i]);
        check_gelu(f, 17, 160, 128, kinds[i]);
        check_gelu(f, 71, 48, 0, kinds[i]);
        check_gelu(f, 1, 160, 32, kinds[i]);
        check_bounded(f, 3 * 33, 100, 40, 16, kinds[i]);
        check_bounded(f, 17, 160, 23, 128, kinds[i]);
    }
    check_bounded(f, 3 * 33, 100, 40, 16, ACT_SWIGLU); // One group contains the end of gate and the start of up.
    check_bounded(f, 17, 128, 23, 32, ACT_SWIGLU);
}

// Returns a tensor of whole numbers in FP8, with a random power of two per row as scale.
static Tensor whole_rows(Fixture *f, int64_t rows, int64_t cols) {
    Tensor t = whole_codes(f, FMT_E4M3, rows, cols, 1);
    t.granularity = SCALE_ROW;
    t.scale = poisoned(f, FMT_FP32, rows, 1).data;
    for (int64_t i = 0; i < rows; i++) ((float *)t.scale)[i] = (float)exp2(floor(20 * draw(f)));
    return t;
}

// Returns a BF16 tensor for the output of a matmul with x. Its row scales are those of x.
static Tensor matmul_of(Fixture *f, Tensor x, int64_t cols) {
    Tensor t = poisoned(f, FMT_BF16, x.rows, cols);
    t.granularity = SCALE_ROW;
    t.scale = x.scale;
    return t;
}

// The stored y and dx must be the matmuls of FP8 values and the weight's scale, without row scales. Multiplied by the
// row scales, they must be the exact matmuls, rounded once.
static void check_matmuls(Fixture *f, int64_t M, int64_t in, int64_t out, bool cached) {
    ((Cpu *)f->exec.backend)->recipe.cache_transposed = cached;
    const float scale = 0.00123f;
    Tensor x = whole_rows(f, M, in), dy = whole_rows(f, M, out);
    Tensor y = matmul_of(f, x, out), dx = matmul_of(f, dy, in);
    Weight w = {.value = poisoned(f, f->format, out, in), .codes = whole_codes(f, FMT_E4M3, out, in, scale)};
    w.codes_t = coded_transpose(f, w.codes);
    if (cached) transpose_into(w.codes_t, w.codes);
    f->exec.ops->linear_forward(&f->exec, y, x, w, no_tensor());
    f->exec.ops->linear_backward_data(&f->exec, dx, dy, w);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < out; j++) {
            float sum = 0;
            for (int64_t k = 0; k < in; k++) sum += code_value(x, i, k) * code_value(w.codes, j, k);
            assert_true((float)value(y, i, j) == stored_as(y, sum * scale));
            assert_true(element(y, i, j) == stored_as(y, sum * (row_scale(x, i) * scale)));
        }
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < in; j++) {
            float sum = 0;
            for (int64_t k = 0; k < out; k++) sum += code_value(dy, i, k) * code_value(w.codes, k, j);
            assert_true((float)value(dx, i, j) == stored_as(dx, sum * scale));
            assert_true(element(dx, i, j) == stored_as(dx, sum * (row_scale(dy, i) * scale)));
        }
}

TEST_EVERYWHERE(matmuls_with_row_scales) {
    check_matmuls(f, 3 * 17, 48, 160, true);
    check_matmuls(f, 131, 150, 100, false);
}

// One NaN or inf in the last row must set state->nonfinite, and must not change scales and FP8 values of other rows.
static void check_flags(Fixture *f) {
    const Ops *ops = f->exec.ops;
    const int64_t M = 17, C = 100;
    watch(f);
    Tensor good = random_tensor(f, f->format, M, C, 1), x = copy_of(f, good), dbias = poisoned(f, FMT_FP32, 1, C);
    Tensor q = coded_rows(f, FMT_E4M3, M, C), d = coded_rows(f, FMT_E4M3, M, C),
           d_t = coded_transpose_in(f, FMT_E5M2, d);
    Tensor h = grouped(f, M, C, 16), r = poisoned(f, f->format, M, C);
    set_value(x, M - 1, C - 1, f->bad);
    ops->quantize_forward(&f->exec, q, x);
    expect_flag(f);
    assert_true(row_scale(q, M - 1) == 0x1p120f);
    assert_quantised_rows(tensor_rows(q, 0, M - 1), tensor_rows(x, 0, M - 1));
    ops->activation_forward(&f->exec, q, x, x, no_tensor(), false, ACT_GELU_TANH);
    expect_flag(f);
    assert_quantised_rows(tensor_rows(q, 0, M - 1), plain_gelu(f, tensor_rows(x, 0, M - 1), ACT_GELU_TANH));
    ops->activation_forward(&f->exec, q, h, good, no_tensor(), false, ACT_GELU_TANH);
    assert_int_equal(f->state.nonfinite, 0);
    ops->activation_backward(&f->exec, d, d_t, dbias, x, h, false, ACT_GELU_TANH);
    expect_flag(f);
    Norm norm = make_norm(f, r, true);
    ops->residual_norm_forward(&f->exec, q, norm, r, good, no_tensor(), no_tensor());
    assert_int_equal(f->state.nonfinite, 0);
    set_value(norm.weight, 0, C - 1, f->bad);
    ops->residual_norm_forward(&f->exec, q, norm, r, good, no_tensor(), no_tensor());
    expect_flag(f);
    // NaN or inf in the outputs of matmuls
    Tensor y = carried(f, M, C, 1);
    set_value(y, 3, 5, f->bad);
    ops->activation_forward(&f->exec, q, h, y, no_tensor(), false, ACT_GELU_TANH);
    expect_flag(f);
    norm = make_norm(f, h, false);
    ops->residual_norm_forward(&f->exec, q, norm, r, good, y, no_tensor());
    expect_flag(f);
}

UNIT_TEST(nan_and_inf_are_reported_with_row_scales) {
    run_with_nonfinite(check_flags);
}

RUN_TESTS(NULL, NULL, NULL)
