// Tests of FP8 matmuls on the CPU with one scale per tensor: quantization of the operands, the matmuls, and detection
// of NaN and inf.
#include "fp8_fixture.h"

static void check_quantize(Fixture *f, Tensor x) {
    const Ops *ops = f->exec.ops;
    watch(f);
    Tensor q = coded(f, FMT_E4M3, x.rows, x.cols), q_t = coded_transpose(f, q);
    ops->quantize_forward(&f->exec, q, x);
    assert_quantised(q, x);
    ops->quantize_recompute(&f->exec, q_t, q, x);
    assert_same_codes(q_t, q);

    // Quantizes a gradient to E5M2, or to E4M3 with an E5M2 transpose. grad_quantize computes the amax, or uses the
    // amax that is stored with the gradient.
    for (int way = 0; way < 4; way++) {
        const bool given = way % 2, other = way / 2;
        Tensor dy = x, dy_q = coded(f, other ? FMT_E4M3 : FMT_E5M2, x.rows, x.cols);
        Tensor dy_qt = other ? coded_transpose_in(f, FMT_E5M2, dy_q) : coded_transpose(f, dy_q);
        Tensor dbias = poisoned(f, FMT_FP32, 1, x.cols);
        if (given) {
            dy.amax = q.amax;
            dy_q.amax = NULL;
        }
        ops->grad_quantize(&f->exec, dy_q, dy_qt, dbias, dy, false);
        assert_quantised(dy_q, x);
        assert_quantised(dy_qt, x);
        for (int64_t j = 0; j < x.cols; j++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < x.rows; i++) {
                sum += value(x, i, j);
                size += fabs(value(x, i, j));
            }
            assert_value(dbias, 0, j, sum, size);
        }
    }
    assert_int_equal(f->state.nonfinite, 0);
}

static void tensors_at_the_limits(Fixture *f) {
    check_quantize(f, random_tensor(f, f->format, 17, 48, 0)); // a tensor whose elements are all 0
    Tensor huge = random_tensor(f, f->format, 65, 160, 1), tiny = random_tensor(f, f->format, 3, 100, 1e-39);
    set_value(huge, 64, 159, -3e38);
    check_quantize(f, huge);
    check_quantize(f, tiny); // The amax is so small that the scale becomes SCALE_MIN.
}

// grad_quantize uses the amax that is stored with the gradient, without checking it against the values.
static void maxima_are_given(Fixture *f) {
    Tensor dy = random_tensor(f, f->format, 3, 48, 1), dy_q = coded(f, FMT_E5M2, 3, 48);
    uint32_t amax[3] = {float_bits(1.0f), float_bits(5.0f), 0};
    dy.amax = amax;
    f->exec.ops->grad_quantize(&f->exec, dy_q, coded_transpose(f, dy_q), no_tensor(), dy, false);
    assert_true(*(const float *)dy_q.scale == 5.0f / E5M2_MAX);
}

TEST_EVERYWHERE(quantization_with_one_scale_per_tensor) {
    check_quantize(f, uneven_tensor(f, 3 * 33, 100, 1));
    check_quantize(f, uneven_tensor(f, 1, 1, 1e-20));
    tensors_at_the_limits(f);
    maxima_are_given(f);
}

static void check_matmuls(Fixture *f, int64_t M, int64_t in, int64_t out, bool cached) {
    const Ops *ops = f->exec.ops;
    ((Cpu *)f->exec.backend)->recipe.cache_transposed = cached;
    Tensor x = whole_codes(f, FMT_E4M3, M, in, 0.0371f), dy = whole_codes(f, FMT_E5M2, M, out, 3.3e-7f);
    Tensor x_t = coded_transpose(f, x), dy_t = coded_transpose(f, dy), bias = random_tensor(f, f->format, 1, out, 1);
    Weight w = {.value = poisoned(f, f->format, out, in), .codes = whole_codes(f, FMT_E4M3, out, in, 0.00123f)};
    w.codes_t = coded_transpose(f, w.codes);
    transpose_into(x_t, x);
    transpose_into(dy_t, dy);
    if (cached) transpose_into(w.codes_t, w.codes);
    Tensor y = poisoned(f, f->format, M, out), dx = poisoned(f, f->format, M, in);
    Tensor dw = poisoned(f, f->format, out, in), dw_sum = random_tensor(f, FMT_FP32, out, in, 1),
           old = copy_of(f, dw_sum);
    ops->linear_forward(&f->exec, y, x, w, bias);
    ops->linear_backward_data(&f->exec, dx, dy, w);
    ops->linear_backward_weight(&f->exec, dw, dy_t, x_t, false);
    ops->linear_backward_weight(&f->exec, dw_sum, dy_t, x_t, true);
    const float xw = 0.0371f * 0.00123f, dyw = 3.3e-7f * 0.00123f, dyx = 3.3e-7f * 0.0371f;
    assert_same_codes(w.codes_t, w.codes);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < out; j++) {
            float sum = 0;
            for (int64_t k = 0; k < in; k++) sum += code_value(x, i, k) * code_value(w.codes, j, k);
            assert_true(element(y, i, j) == stored_as(y, sum * xw + element(bias, 0, j)));
        }
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < in; j++) {
            float sum = 0;
            for (int64_t k = 0; k < out; k++) sum += code_value(dy, i, k) * code_value(w.codes, k, j);
            assert_true(element(dx, i, j) == stored_as(dx, sum * dyw));
        }
    for (int64_t i = 0; i < out; i++)
        for (int64_t j = 0; j < in; j++) {
            float sum = 0;
            for (int64_t k = 0; k < M; k++) sum += code_value(dy, k, i) * code_value(x, k, j);
            assert_true(element(dw, i, j) == stored_as(dw, sum * dyx));
            assert_true(element(dw_sum, i, j) == sum * dyx + element(old, i, j));
        }
}

// Checks the quantization of a list of weights, and the transposes that are stored if cache_transposed is set.
static void weights(Fixture *f) {
    watch(f);
    for (int cached = 0; cached < 2; cached++) {
        ((Cpu *)f->exec.backend)->recipe.cache_transposed = cached;
        Parameter list[2];
        memset(list, 0, sizeof list);
        list[0].weight.value = random_tensor(f, f->format, 1, 48, 1);
        list[1].weight.value = uneven_tensor(f, 100, 48, 0.02);
        list[1].weight.codes = coded(f, FMT_E4M3, 100, 48);
        list[1].weight.codes.amax = NULL;
        list[1].weight.codes_t = coded_transpose(f, list[1].weight.codes);
        f->exec.ops->weights_quantize(&f->exec, list, 2);
        assert_quantised(list[1].weight.codes, list[1].weight.value);
        if (cached) assert_same_codes(list[1].weight.codes_t, list[1].weight.codes);
    }
    assert_int_equal(f->state.nonfinite, 0);
}

static Tensor zero_tensor(Fixture *f, Format format, int64_t rows, int64_t cols) {
    Tensor t = poisoned(f, format, rows, cols);
    memset(t.data, 0, (size_t)(rows * cols) * format_bytes(format));
    return t;
}

static uint32_t largest_bits(Tensor t) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < t.rows; i++)
        for (int64_t j = 0; j < t.cols; j++) largest = larger_bits(largest, magnitude_bits(element(t, i, j)));
    return largest;
}

// adamw_update stores the amax of each quantized weight's new value. weights_quantize uses a stored amax only once.
static void maxima_from_update(Fixture *f) {
    const Ops *ops = f->exec.ops;
    watch(f);
    f->state.lr = 0.5f, f->state.beta1 = 0.9f, f->state.beta2 = 0.95f, f->state.eps = 1e-8f,
    f->state.weight_decay = 0.1f;
    Parameter list[3];
    memset(list, 0, sizeof list);
    for (int i = 0; i < 3; i++) {
        const int64_t rows = i == 1 ? 1 : 100, cols = 96; // 100 rows need more than one block of the update kernel
        list[i].weight.value = uneven_tensor(f, rows, cols, 0.02);
        list[i].grad = uneven_tensor(f, rows, cols, 1e-3);
        list[i].m = zero_tensor(f, FMT_FP32, rows, cols);
        list[i].v = zero_tensor(f, FMT_FP32, rows, cols);
        if (i == 1) continue; // parameter 1 is not quantized to FP8
        list[i].weight.codes = coded(f, FMT_E4M3, rows, cols);
        list[i].weight.codes.amax = NULL;
        list[i].weight.codes_t = coded_transpose(f, list[i].weight.codes);
        list[i].weight.maximum = (uint32_t *)poisoned(f, FMT_FP32, 1, 1).data;
    }
    for (int t = 0; t < 3; t++) {
        ops->grad_norm(&f->exec, list, 3, &f->state);
        ops->adamw_update(&f->exec, list, 3, &f->state);
        for (int i = 0; i < 3; i += 2) {
            uint32_t *maximum = list[i].weight.maximum;
            Tensor codes = list[i].weight.codes;
            assert_int_equal(*maximum, largest_bits(list[i].weight.value));
            ops->weights_quantize(&f->exec, list, 3);
            assert_quantised(codes, list[i].weight.value);
            ops->adamw_update(&f->exec, list, 3, &f->state);
            // weights_quantize() must use the stored amax, although it differs from the weights' amax.
            *maximum = float_bits(1792.0f);
            ops->weights_quantize(&f->exec, list, 3);
            assert_true(*(const float *)codes.scale == 4.0f);
            // The second call of weights_quantize() computes the amax, because the first call has used up the stored
            // amax.
            ops->weights_quantize(&f->exec, list, 3);
            assert_quantised(codes, list[i].weight.value);
            f->state.nonfinite = 1; // skips the update, so weights_quantize() must then ignore *maximum
            ops->adamw_update(&f->exec, list, 3, &f->state);
            f->state.nonfinite = 0;
            *maximum = float_bits(1792.0f);
            ops->weights_quantize(&f->exec, list, 3);
            assert_quantised(codes, list[i].weight.value);
        }
    }
}

TEST_EVERYWHERE(fp8_matmuls_and_quantized_weights) {
    check_matmuls(f, 3 * 17, 48, 160, true);
    check_matmuls(f, 131, 150, 100, false);
    weights(f);
    maxima_from_update(f);
}

static void spoil(Tensor t, double x) {
    set_value(t, t.rows - 1, t.cols - 1, x);
}

static void check_flags(Fixture *f) {
    const Ops *ops = f->exec.ops;
    const int64_t M = 17, C = 100;
    watch(f);
    Tensor x = random_tensor(f, f->format, M, C, 1), r = poisoned(f, f->format, M, C),
           dbias = poisoned(f, FMT_FP32, 1, C);
    Tensor q = coded(f, FMT_E4M3, M, C), e5 = coded(f, FMT_E5M2, M, C), e5_t = coded_transpose(f, e5);
    Norm norm = make_norm(f, grouped(f, M, C, 16), true);
    Tensor h = grouped(f, M, C, 16), g = poisoned(f, f->format, M, C), good = random_tensor(f, f->format, M, C, 1);
    spoil(x, f->bad);
    // Tests NaN or inf in the residual stream, which is saved in FP8 groups, then in a norm's weight.
    ops->residual_norm_forward(&f->exec, no_tensor(), norm, r, x, no_tensor(), no_tensor());
    expect_flag(f);
    spoil(norm.weight, f->bad);
    ops->residual_norm_forward(&f->exec, q, norm, r, good, no_tensor(), no_tensor());
    expect_flag(f);
    ops->activation_forward(&f->exec, g, h, x, no_tensor(), true, ACT_GELU_TANH);
    expect_flag(f);
    ops->quantize_forward(&f->exec, q, x);
    expect_flag(f);
    ops->grad_quantize(&f->exec, e5, e5_t, dbias, x, false);
    expect_flag(f);
    ops->activation_forward(&f->exec, g, h, good, no_tensor(), true, ACT_GELU_TANH);
    ops->activation_backward(&f->exec, e5, e5_t, dbias, x, h, false, ACT_GELU_TANH);
    expect_flag(f);
    Parameter p;
    memset(&p, 0, sizeof p);
    p.weight.value = x;
    p.weight.codes = q;
    p.weight.codes.amax = NULL; // codes.amax is used for sharded weights only
    ops->weights_quantize(&f->exec, &p, 1);
    expect_flag(f);
    ops->quantize_forward(&f->exec, q, good);
    assert_int_equal(f->state.nonfinite, 0);
}

UNIT_TEST(nan_and_inf_are_reported_by_quantization) {
    run_with_nonfinite(check_flags);
}

RUN_TESTS(NULL, NULL, NULL)
