// Tests of the CPU backend's FP8 operations: conversions, norms and activation. Checks that forward results, and the
// values that backward recomputes from them, are bit-identical to the definition.
#include "fp8_fixture.h"

static void assert_encodes(const CpuKernels *kernels, Format format, const real *x, int64_t n) {
    uint8_t codes[4096];
    kernels->encode_fp8(codes, x, n, 1.0f, format);
    for (int64_t i = 0; i < n; i++) assert_int_equal(codes[i], fp8_encode(format, (float)x[i]));
}

// Converts 4096 values with random bytes.
static void assert_encodes_stochastically(const CpuKernels *kernels, const real *x) {
    uint8_t codes[4096], random[4096];
    for (uint32_t i = 0; i < 4096; i++) random[i] = (uint8_t)(i * 2654435761u >> 24);
    kernels->encode_stochastic(codes, x, random, 4096, 1.0f);
    for (int i = 0; i < 4096; i++) assert_int_equal(codes[i], e5m2_encode_stochastic((float)x[i], random[i]));
}

static void check_codes(const CpuKernels *kernels, Format format) {
    uint8_t codes[256];
    real x[4096];
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    kernels->decode_fp8(x, codes, 256, 1.0f, format);
    for (int i = 0; i < 256; i++) {
        float expected = fp8_decode(format, (uint8_t)i), found = (float)x[i];
        assert_true(isnan(expected) ? isnan(found) : float_bits(found) == float_bits(expected));
    }
    // Converts every FP8 value, every midpoint between neighboring values, and the FP32 numbers next to both.
    for (int i = 0; i < 255; i++) {
        float low = fp8_decode(format, (uint8_t)i), high = fp8_decode(format, (uint8_t)(i + 1));
        const float around[3] = {low, 0.5f * (low + high), high};
        for (int j = 0; j < 9; j++) x[j] = (real)bits_float(float_bits(around[j / 3]) + (uint32_t)(j % 3) - 1u);
        assert_encodes(kernels, format, x, 9);
    }
    // Converts every BF16 value with random lower bits.
    for (uint32_t high = 0; high < 65536; high += 2048) {
        for (uint32_t i = 0; i < 4096; i++)
            x[i] = (real)bits_float((high + i / 2) << 16 | (i % 2) * (i * 2654435761u >> 16));
        assert_encodes(kernels, format, x, 4096);
        assert_encodes_stochastically(kernels, x);
    }
}

UNIT_TEST(fp8_conversions_equal_the_definition) {
    const CpuKernels *kernels[CPU_VARIANTS];
    int count = cpu_kernels_supported(kernels);
    for (int i = 0; i < count; i++) {
        check_codes(kernels[i], FMT_E4M3);
        check_codes(kernels[i], FMT_E5M2);
    }
}

// Checks the norm n of r_in + y + bias, and that n can be recomputed from the saved x. codes: n is FP8. group: group
// size of an FP8 x; 0: x is not quantized. from_saved: forward computes n from x instead of the residual.
static void check_norm(Fixture *f, int64_t M, int64_t C, int group, bool codes, bool from_saved) {
    const Ops *ops = f->exec.ops;
    watch(f);
    Tensor r_in = random_tensor(f, f->format, M, C, 3), y = random_tensor(f, f->format, M, C, 1);
    Tensor bias = random_tensor(f, f->format, 1, C, 1), r = poisoned(f, f->format, M, C);
    Tensor x = group ? grouped(f, M, C, group) : r;
    Tensor n = codes ? coded(f, FMT_E4M3, M, C) : poisoned(f, f->format, M, C);
    Norm norm = make_norm(f, x, from_saved);
    ops->residual_norm_forward(&f->exec, n, norm, r, r_in, y, bias);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < C; j++) {
            float sum = element(r_in, i, j) + element(y, i, j) + element(bias, 0, j);
            assert_true(element(r, i, j) == (f->format == FMT_BF16 ? bf16_decode(bf16_encode(sum)) : sum));
        }
    if (group) assert_quantised_groups(x, r);
    Tensor expected = normalised(f, norm, from_saved ? x : r);
    if (codes)
        assert_quantised(n, expected);
    else
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < C; j++) assert_value(n, i, j, value(expected, i, j), 0);
    assert_int_equal(f->state.nonfinite, 0);

    // Recomputes n from the saved x, with the scale of n. The bits of n are the same if forward computed it from the
    // saved x.
    Tensor unsaved = n, n_t = codes ? coded_transpose(f, n) : poisoned(f, f->format, M, C);
    float scale = codes ? *(const float *)n.scale : 0;
    unsaved.data = NULL;
    ops->norm_recompute(&f->exec, n_t, unsaved, norm);
    bool same = from_saved || !group;
    if (codes) {
        if (same) assert_same_codes(n_t, n);
        assert_true(*(const float *)n.scale == scale);
        for (int64_t i = 0; i < M && !same; i++)
            for (int64_t j = 0; j < C; j++) {
                float m = (float)value(norm.mean, i, 0), rstd = (float)value(norm.rstd, i, 0);
                float v = (element(x, i, j) - m) * rstd * element(norm.weight, 0, j) + element(norm.bias, 0, j);
                assert_int_equal(code_at(n_t, i, j), e4m3_encode(v * scale_reciprocal(scale)));
            }
        Tensor from_codes = coded_transpose(f, n);
        ops->norm_recompute(&f->exec, from_codes, n, norm);
        assert_same_codes(from_codes, n);
    } else if (same) {
        assert_true(same_bits(n_t, n));
    }
}

// norm_backward gives the same bits with the saved x in FP8 and with its decoded values.
static void norm_gradients(Fixture *f) {
    const int64_t M = 3 * 33, C = 100;
    Tensor r = random_tensor(f, f->format, M, C, 2), x = grouped(f, M, C, 16);
    Norm norm = make_norm(f, x, true);
    f->exec.ops->residual_norm_forward(&f->exec, no_tensor(), norm, r, r, no_tensor(), no_tensor());
    assert_quantised_groups(x, r);
    Tensor dn = random_tensor(f, f->format, M, C, 1), g = random_tensor(f, f->format, M, C, 1), h = copy_of(f, g);
    Tensor dw = poisoned(f, FMT_FP32, 1, C), db = poisoned(f, FMT_FP32, 1, C);
    Tensor dw2 = poisoned(f, FMT_FP32, 1, C), db2 = poisoned(f, FMT_FP32, 1, C);
    f->exec.ops->norm_backward(&f->exec, g, dw, db, dn, norm, true, false);
    norm.x = decoded(f, x);
    f->exec.ops->norm_backward(&f->exec, h, dw2, db2, dn, norm, true, false);
    assert_true(same_bits(g, h) && same_bits(dw, dw2) && same_bits(db, db2));
}

// Decodes ranges of a row of FP8 values that begin and end inside a group.
static void parts_of_rows(Fixture *f) {
    const int64_t C = 100;
    Tensor r = random_tensor(f, f->format, 3, C, 2), x = grouped(f, 3, C, 32);
    Norm norm = make_norm(f, x, true);
    f->exec.ops->residual_norm_forward(&f->exec, no_tensor(), norm, r, r, no_tensor(), no_tensor());
    for (int64_t begin = 0; begin < C; begin += 5) {
        real part[100];
        row_load(cpu_of(&f->exec), x, 2, begin, (C - begin + 1) / 2, part);
        for (int64_t j = 0; j < (C - begin + 1) / 2; j++) assert_true((float)part[j] == element(x, 2, begin + j));
    }
}

TEST_EVERYWHERE(norms_with_fp8_inputs_and_outputs) {
    check_norm(f, 33, 48, 16, true, true);
    check_norm(f, 3 * 17, 100, 16, true, true);
    check_norm(f, 5, 160, 32, true, false);
    check_norm(f, 65, 100, 0, true, true); // FP8 output with an unquantized residual stream, as in fp8-linear
    check_norm(f, 7, 160, 128, false, true);
    check_norm(f, 7, 100, 32, false, false);
    norm_gradients(f);
    parts_of_rows(f);
}

static void check_gelu(Fixture *f, int64_t M, int64_t F, int group, bool codes) {
    const Ops *ops = f->exec.ops;
    watch(f);
    Tensor y = random_tensor(f, f->format, M, F, 6), bias = random_tensor(f, f->format, 1, F, 1);
    Tensor h = group ? grouped(f, M, F, group) : poisoned(f, f->format, M, F);
    Tensor g = codes ? coded(f, FMT_E4M3, M, F) : poisoned(f, f->format, M, F);
    ops->activation_forward(&f->exec, g, h, y, bias, true, ACT_GELU_TANH);
    if (group) {
        Tensor sum = poisoned(f, FMT_FP32, M, F);
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < F; j++) set_value(sum, i, j, (double)(element(y, i, j) + element(bias, 0, j)));
        assert_quantised_groups(h, sum);
        if (!codes) { // with from_saved false, g must be computed from the matmul's output, not from the saved h
            Tensor other = poisoned(f, f->format, M, F), of_sum = plain_gelu(f, sum, ACT_GELU_TANH);
            ops->activation_forward(&f->exec, other, h, y, bias, false, ACT_GELU_TANH);
            for (int64_t i = 0; i < M; i++)
                for (int64_t j = 0; j < F; j++) assert_value(other, i, j, value(of_sum, i, j), 0);
        }
    }
    Tensor expected = plain_gelu(f, h, ACT_GELU_TANH);
    if (codes) assert_quantised(g, expected);
    for (int64_t i = 0; i < M && !codes; i++)
        for (int64_t j = 0; j < F; j++) assert_value(g, i, j, value(expected, i, j), 0);

    Tensor unsaved = g, g_t = codes ? coded_transpose(f, g) : poisoned(f, f->format, M, F);
    unsaved.data = NULL;
    ops->activation_recompute(&f->exec, g_t, unsaved, h, ACT_GELU_TANH);
    if (codes) {
        assert_same_codes(g_t, g);
        Tensor from_codes = coded_transpose(f, g);
        ops->activation_recompute(&f->exec, from_codes, g, h, ACT_GELU_TANH);
        assert_same_codes(from_codes, g);
    } else {
        assert_true(same_bits(g_t, g));
    }

    // activation_backward stores the gradient of GELU's input in FP8 or unquantized.
    Tensor dg = uneven_tensor(f, M, F, 1e-6), dh = plain_gelu_gradient(f, dg, h, ACT_GELU_TANH);
    Tensor dbias = poisoned(f, FMT_FP32, 1, F);
    if (codes) {
        Tensor dh_q = coded(f, FMT_E5M2, M, F), dh_qt = coded_transpose(f, dh_q);
        ops->activation_backward(&f->exec, dh_q, dh_qt, dbias, dg, h, false, ACT_GELU_TANH);
        assert_quantised(dh_q, dh);
        assert_quantised(dh_qt, dh);
    } else {
        ops->activation_backward(&f->exec, dg, dg, dbias, dg, h, false, ACT_GELU_TANH);
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < F; j++) assert_value(dg, i, j, value(dh, i, j), 0);
    }
    for (int64_t j = 0; j < F; j++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < M; i++) {
            sum += value(dh, i, j);
            size += fabs(value(dh, i, j));
        }
        assert_value(dbias, 0, j, sum, size);
    }
    assert_int_equal(f->state.nonfinite, 0);
}

TEST_EVERYWHERE(activations_with_fp8_inputs_and_outputs) {
    check_gelu(f, 3 * 33, 100, 16, true);
    check_gelu(f, 17, 160, 128, true);
    check_gelu(f, 70, 48, 0, true);
    check_gelu(f, 70, 48, 32, false);
}

RUN_TESTS(NULL, NULL, NULL)
