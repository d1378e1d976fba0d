// Tests of the measurements of dev/tools/gradient_stats.cu, on gradients with known results and against an independent
// computation.
#include "ops_fixture.h"

#include "dev/tools/gradient_accumulation.h"

enum { TOKENS = 256, OUT = 48, IN = 64 };

typedef struct {
    Fixture f;
    Meter meter;
    Tensor dy, x, w; // BF16: dy (TOKENS, OUT), initially 0; random x (TOKENS, IN) and w (OUT, IN)
    GradientStats stats;
} Case;

static void case_begin(Case *c) {
    const MeterSize size = {TOKENS * OUT, TOKENS * IN, OUT * IN, TOKENS};
    Error err;
    fixture_begin(&c->f, FMT_BF16, 2);
    assert_true(meter_open(&c->meter, &c->f.exec, c->f.exec.ops, &size, &err));
    c->dy = random_tensor(&c->f, FMT_BF16, TOKENS, OUT, 0);
    c->x = random_tensor(&c->f, FMT_BF16, TOKENS, IN, 1);
    c->w = random_tensor(&c->f, FMT_BF16, OUT, IN, 1);
}

static void case_measure(Case *c, Parts parts) {
    measure_gradient(&c->meter, c->dy, c->x, c->w, parts, &c->stats);
    assert_int_equal(c->stats.nonfinite, 0);
}

static void case_end(Case *c) {
    meter_close(&c->meter);
    fixture_end(&c->f);
}

static void set_rows(Tensor t, int64_t begin, int64_t end, int64_t first_col, int64_t end_col, double x) {
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = first_col; j < end_col; j++) set_value(t, i, j, x);
}

static const VariantStats *variant(const Case *c, Format format, const char *rule) {
    for (int f = 0; f < GRADIENT_FORMATS; f++)
        for (int r = 0; r < SCALE_RULES; r++)
            if (gradient_formats[f] == format && strcmp(scale_rules[r].name, rule) == 0) return &c->stats.variant[f][r];
    fail_msg("no result for format %s and scale %s", format_name(format), rule);
    return NULL;
}

static void assert_near(double x, double expected, double slack) {
    if (fabs(x - expected) > slack) fail_msg("%.12g, expected %.12g", x, expected);
}

// Tests that a gradient whose elements are all equal has no error, whatever the rule for scales.
UNIT_TEST(a_constant_gradient_has_no_error) {
    Case c;
    case_begin(&c);
    set_rows(c.dy, 0, TOKENS, 0, OUT, -0.00390625);
    case_measure(&c, one_part(OUT));
    for (int f = 0; f < GRADIENT_FORMATS; f++) {
        for (int r = 0; r < SCALE_RULES; r++) {
            const VariantStats *v = &c.stats.variant[f][r];
            assert_int_equal(v->measured, !scale_rules[r].by_parts);
            if (!v->measured) continue;
            assert_true(v->flushed == 0 && v->flushed_squares == 0 && v->subnormal == 0);
            assert_near(v->data.error, 0, 1e-6); // about 0, because a tensor scale is rounded to FP32
            assert_near(v->data.bias, 0, 1e-6);
            assert_near(v->weight.error, 0, 1e-6);
            assert_near(v->worst_row, 0, 1e-6);
        }
    }
    assert_true(c.stats.largest == 0.00390625 && c.stats.rms == 0.00390625);
    assert_true(c.stats.above == 0 && c.stats.below == 0);
    case_end(&c);
}

// Tests a token whose gradient is 2^19 times that of other tokens. E4M3 rounds values below 2^-18.8 times its largest
// value to 0, so tokens that share the large token's scale become 0. E5M2 rounds only values below 2^-32.8 times its
// largest value to 0.
UNIT_TEST(an_outlier_token_flushes_other_tokens_in_e4m3_only) {
    Case c;
    case_begin(&c);
    set_rows(c.dy, 0, TOKENS, 0, OUT, 1);
    set_rows(c.dy, 130, 131, 0, OUT, 0x1p19);
    case_measure(&c, one_part(OUT));
    const double all = TOKENS, square = 0x1p38;
    const VariantStats *v = variant(&c, FMT_E4M3, "tensor");
    assert_near(v->flushed, (all - 1) / all, 1e-12);
    assert_near(v->flushed_squares, (all - 1) / (all - 1 + square), 1e-20);
    v = variant(&c, FMT_E4M3, "128"); // the large token is in the second block of 128 tokens
    assert_near(v->flushed, 127 / all, 1e-12);
    assert_near(v->flushed_squares, 127 / (all - 1 + square), 1e-20);
    v = variant(&c, FMT_E4M3, "token");
    assert_true(v->flushed == 0 && v->subnormal == 0 && v->data.error == 0 && v->weight.error == 0);
    // E5M2's largest value is 57344. Other tokens become 57344 / 2^19 = 2^-3.2, a normal number.
    v = variant(&c, FMT_E5M2, "tensor");
    assert_true(v->flushed == 0 && v->subnormal == 0);
    assert_near(c.stats.above, 19, 1e-12);
    assert_near(c.stats.below, 0, 1e-12);

    set_rows(c.dy, 130, 131, 0, OUT, 0x1p16); // other tokens become 448 / 2^16 = 2^-7.2, an E4M3 subnormal
    case_measure(&c, one_part(OUT));
    v = variant(&c, FMT_E4M3, "tensor");
    assert_true(v->flushed == 0);
    assert_near(v->subnormal, (all - 1) / all, 1e-12);
    case_end(&c);
}

// Tests the bias of a gradient of 33/32, which both formats round to 1 if scales are powers of two.
UNIT_TEST(the_bias_of_rounding_to_nearest_is_measured) {
    Case c;
    case_begin(&c);
    for (int64_t i = 0; i < TOKENS; i++)
        for (int64_t j = 0; j < OUT; j++) set_value(c.dy, i, j, (i + j) % 3 ? 33.0 / 32 : -33.0 / 32);
    case_measure(&c, one_part(OUT));
    for (int f = 0; f < GRADIENT_FORMATS; f++) {
        const VariantStats *v = variant(&c, gradient_formats[f], "token");
        assert_near(v->data.bias, 32.0 / 33 - 1, 1e-6);
        assert_near(v->data.error, 1.0 / 33, 1e-6);
        assert_near(v->weight.bias, 32.0 / 33 - 1, 1e-6);
        assert_near(v->weight.error, 1.0 / 33, 1e-6);
        assert_near(v->worst_row, 1.0 / 33, 1e-6);
        v = variant(&c, gradient_formats[f], "tensor"); // the tensor scale maps 33/32 to the largest FP8 value
        assert_near(v->data.bias, 0, 1e-6);
    }
    case_end(&c);
}

// Tests the worst output feature: feature 7 is rounded, feature 9 is too small to be included, others are exact.
UNIT_TEST(the_output_feature_with_the_largest_error_is_found) {
    Case c;
    case_begin(&c);
    set_rows(c.dy, 0, TOKENS, 0, OUT, 1);
    set_rows(c.dy, 0, TOKENS, 7, 8, 33.0 / 32);
    set_rows(c.dy, 0, TOKENS, 9, 10, 33 * 0x1p-16);
    case_measure(&c, one_part(OUT));
    const VariantStats *v = variant(&c, FMT_E4M3, "token");
    assert_near(v->worst_row, 1.0 / 33, 1e-6);
    assert_int_equal(v->worst_row_index, 7);
    assert_int_equal(c.stats.small_rows, 1);
    case_end(&c);
}

// Tests a scale for each of three column ranges, whose magnitudes differ.
UNIT_TEST(q_k_and_v_may_have_separate_scales) {
    const Parts thirds = {3, {OUT / 3, 2 * OUT / 3, OUT}};
    Case c;
    case_begin(&c);
    set_rows(c.dy, 0, TOKENS, 0, OUT / 3, 0x1p20);
    set_rows(c.dy, 0, TOKENS, OUT / 3, 2 * OUT / 3, 0x1p5);
    set_rows(c.dy, 0, TOKENS, 2 * OUT / 3, OUT, -1);
    case_measure(&c, thirds);
    assert_near(variant(&c, FMT_E4M3, "tensor")->flushed, 1.0 / 3, 1e-12);
    assert_near(variant(&c, FMT_E4M3, "tensor")->subnormal, 1.0 / 3, 1e-12);
    assert_near(variant(&c, FMT_E4M3, "token")->flushed, 1.0 / 3, 1e-12);
    const VariantStats *v = variant(&c, FMT_E4M3, "part");
    assert_true(v->measured && v->flushed == 0 && v->subnormal == 0);
    assert_near(v->weight.error, 0, 1e-6);
    assert_near(v->worst_row, 0, 1e-6);
    case_end(&c);
}

// Tests statistics of the tokens' amax values, which are powers of two from 2^-99 to 1.
UNIT_TEST(statistics_of_the_amax_per_token) {
    Case c;
    case_begin(&c);
    for (int64_t i = 0; i < TOKENS; i++) set_value(c.dy, i, i % OUT, ldexp(i % 2 ? 1 : -1, -(int)(i % 100)));
    case_measure(&c, one_part(OUT));
    // Exponents 0 to -55 occur three times, -56 to -99 twice. In ascending order, the median is the amax with index
    // 128, 2^-42, and the first percentile is the amax with index 3, 2^-98. Both indices count from 0.
    assert_near(c.stats.above, 42, 1e-12);
    assert_near(c.stats.below, 98 - 42, 1e-12);
    assert_true(c.stats.largest == 1);
    case_end(&c);
}

// Tests that NaN and inf in dy are counted and that nothing else is then measured.
UNIT_TEST(nan_and_inf_in_a_gradient_are_counted) {
    Case c;
    case_begin(&c);
    set_value(c.dy, 3, 5, INFINITY);
    set_value(c.dy, 4, 5, NAN);
    measure_gradient(&c.meter, c.dy, c.x, c.w, one_part(OUT), &c.stats);
    assert_int_equal(c.stats.nonfinite, 2);
    assert_false(c.stats.variant[0][0].measured);
    case_end(&c);
}

// --- independent computation of the expected errors ---------------------------------------------------------

// Returns the relative error |q w - dy w| / |dy w| of dgrad with q instead of dy, and its bias, in double precision.
static Deviation data_otherwise(const Case *c, double q[TOKENS][OUT]) {
    double difference = 0, exact = 0, cross = 0;
    for (int64_t i = 0; i < TOKENS; i++) {
        for (int64_t k = 0; k < IN; k++) {
            double p = 0, e = 0;
            for (int64_t j = 0; j < OUT; j++) {
                p += q[i][j] * value(c->w, j, k);
                e += value(c->dy, i, j) * value(c->w, j, k);
            }
            difference += (p - e) * (p - e), exact += e * e, cross += p * e;
        }
    }
    const Deviation d = {sqrt(difference / exact), cross / exact - 1};
    return d;
}

static Deviation weight_otherwise(const Case *c, double q[TOKENS][OUT], double *worst) {
    double difference = 0, exact = 0, cross = 0;
    *worst = 0;
    for (int64_t j = 0; j < OUT; j++) {
        double row_difference = 0, row_exact = 0;
        for (int64_t k = 0; k < IN; k++) {
            double p = 0, e = 0;
            for (int64_t i = 0; i < TOKENS; i++) {
                p += q[i][j] * value(c->x, i, k);
                e += value(c->dy, i, j) * value(c->x, i, k);
            }
            row_difference += (p - e) * (p - e), row_exact += e * e, cross += p * e;
        }
        *worst = fmax(*worst, sqrt(row_difference / row_exact));
        difference += row_difference, exact += row_exact;
    }
    const Deviation d = {sqrt(difference / exact), cross / exact - 1};
    return d;
}

static void random_gradient(Case *c) {
    for (int64_t i = 0; i < TOKENS; i++)
        for (int64_t j = 0; j < OUT; j++) set_value(c->dy, i, j, ldexp(pow(draw(&c->f), 5), -(int)(i * 7 % 20)));
}

UNIT_TEST(errors_equal_an_independent_computation) {
    static double q[TOKENS][OUT];
    Case c;
    case_begin(&c);
    random_gradient(&c);
    case_measure(&c, one_part(OUT));
    double largest = 0, worst;
    for (int64_t i = 0; i < TOKENS; i++)
        for (int64_t j = 0; j < OUT; j++) largest = fmax(largest, fabs(value(c.dy, i, j)));
    // way 0: E4M3 with one scale. way 1: E5M2 with a scale per token, the smallest power of two for which the token's
    // values are at most 57344. The measured errors must equal the errors computed in double precision.
    for (int way = 0; way < 2; way++) {
        int64_t flushed = 0, nonzero = 0;
        for (int64_t i = 0; i < TOKENS; i++) {
            double of_row = 0;
            for (int64_t j = 0; j < OUT; j++) of_row = fmax(of_row, fabs(value(c.dy, i, j)));
            const double scale = way ? exp2(ceil(log2(of_row / 57344))) : (float)largest / 448.0f;
            for (int64_t j = 0; j < OUT; j++) {
                const double x = value(c.dy, i, j);
                const float code = (float)x * (1.0f / (float)scale);
                q[i][j] = (way ? e5m2_decode(e5m2_encode(code)) : e4m3_decode(e4m3_encode(code))) * scale;
                flushed += x != 0 && q[i][j] == 0;
                nonzero += x != 0;
            }
        }
        const VariantStats *v = way ? variant(&c, FMT_E5M2, "token") : variant(&c, FMT_E4M3, "tensor");
        const Deviation data = data_otherwise(&c, q), weight = weight_otherwise(&c, q, &worst);
        assert_true(way || flushed > 0);
        assert_near(v->flushed, (double)flushed / (double)nonzero, 1e-12);
        assert_near(v->data.error, data.error, 1e-4 * data.error);
        assert_near(v->data.bias, data.bias, 1e-5);
        assert_near(v->weight.error, weight.error, 1e-4 * weight.error);
        assert_near(v->weight.bias, weight.bias, 1e-5);
        assert_near(v->worst_row, worst, 1e-4 * worst);
    }
    case_end(&c);
}

// --- accumulation error of FP8 matmuls ----------------------------------------------------------------------

// Tests that FP8 matmuls on the CPU show no accumulation error, because they accumulate in FP32. The backend must
// quantize the gradient to the FP8 values that were measured.
UNIT_TEST(cpu_fp8_matmuls_have_no_accumulation_error) {
    Case c;
    Accumulation a;
    float *codes = (float *)xmalloc(TOKENS * OUT * sizeof *codes);
    case_begin(&c);
    random_gradient(&c);
    case_measure(&c, one_part(OUT));
    for (int f = 0; f < GRADIENT_FORMATS; f++) {
        measure_accumulation(&c.meter, c.dy, c.x, c.w, gradient_formats[f], &c.stats, &a);
        assert_true(a.measured);
        memcpy(codes, c.meter.dy_quantised, TOKENS * OUT * sizeof *codes);
        for (int adds = 0; adds < 2; adds++) {
            assert_near(a.weight[OUTPUT_FP32][adds].error, 0, 2e-6);
            assert_near(a.weight[OUTPUT_FP32][adds].bias, 0, 1e-6);
            assert_near(a.weight[OUTPUT_BF16][adds].error, 2e-3, 1.5e-3);
        }
        assert_near(a.data[OUTPUT_FP32].error, 0, 2e-6);
        assert_near(a.data[OUTPUT_BF16].error, 2e-3, 1.5e-3);

        VariantStats v;
        read_all(&c.meter, c.meter.dy, c.dy, one_part(OUT));
        measure_rows(&c.meter, &c.stats);
        quantise(&c.meter, &c.stats, &scale_rules[0], gradient_formats[f], one_part(OUT), 1, 1, &v);
        assert_memory_equal(codes, c.meter.dy_quantised, TOKENS * OUT * sizeof *codes);
    }
    c.stats.tokens = TOKENS - 1;
    measure_accumulation(&c.meter, tensor_rows(c.dy, 0, TOKENS - 1), tensor_rows(c.x, 0, TOKENS - 1), c.w, FMT_E4M3,
                         &c.stats, &a);
    assert_false(a.measured);
    free(codes);
    case_end(&c);
}

RUN_TESTS(NULL, NULL, NULL)
