// Tests of what FP8 health logs about gradients: counts of FP8 values, warnings, and the comparison of FP8 and BF16
// wgrad.
#include "dev/test/unit.h"
#include "health_fixture.h"

// --- counts of saturated, zero and subnormal FP8 values of gradients -------------------------------------------------

static void assert_counts(CodeCounts c, uint64_t codes, uint64_t saturated, uint64_t zero, uint64_t subnormal) {
    assert_int_equal(c.codes, codes);
    assert_int_equal(c.saturated, saturated);
    assert_int_equal(c.zero, zero);
    assert_int_equal(c.subnormal, subnormal);
}

// Tests the counts of a gradient with strided rows, also transposed. Every FP8 magnitude m > 0 occurs exactly m + 1
// times; all other values are 0 or -0. New counts are added to earlier counts.
static void known_codes(Fixture *f) {
    for (int i = 0; i < 2; i++) {
        const Format format = i ? FMT_E5M2 : FMT_E4M3;
        // top: largest finite FP8 magnitude. normal: smallest normal FP8 magnitude
        const int top = i ? 0x7b : 0x7e, normal = i ? 4 : 8;
        Tensor t = coded(f, format, 300, 320);
        uint8_t *code = (uint8_t *)t.data;
        CodeCounts counts = {1, 2, 3, 4};
        memset(code, top, 300 * 320); // also fills the gaps between rows, which must not be counted
        int64_t at = 0, small = 0;
        for (int magnitude = 0; magnitude <= top; magnitude++) {
            for (int n = 0; n <= magnitude; n++, at++)
                code[at / 301 * 320 + at % 301] = (uint8_t)(magnitude | (n % 2 ? 0x80 : 0));
            if (magnitude > 0 && magnitude < normal) small += magnitude + 1;
        }
        const int64_t all = 300 * 301, rest = all - at;
        for (; at < all; at++) code[at / 301 * 320 + at % 301] = 0x80; // an FP8 value of -0 counts as a zero
        t.cols = 301;
        f->exec.ops->codes_count(&f->exec, t, &counts);
        assert_counts(counts, 1 + (uint64_t)all, 2 + (uint64_t)top + 1, 3 + (uint64_t)rest + 1, 4 + (uint64_t)small);
        t.transposed = true;
        t.rows = 301, t.cols = 300;
        memset(&counts, 0, sizeof counts);
        f->exec.ops->codes_count(&f->exec, t, &counts);
        assert_counts(counts, (uint64_t)all, (uint64_t)top + 1, (uint64_t)rest + 1, (uint64_t)small);
    }
}

// Tests the counts of a gradient that grad_quantize() quantizes to known FP8 values.
static void known_values(Fixture *f) {
    Tensor x = poisoned(f, FMT_BF16, 16, 32), q[2] = {coded(f, FMT_E4M3, 16, 32), coded(f, FMT_E5M2, 16, 32)};
    Tensor q_t[2] = {coded_transpose(f, q[0]), coded_transpose_in(f, FMT_E5M2, q[0])};
    for (int64_t i = 0; i < 16 * 32; i++) // the amax 448 gives the scale 1 in E4M3 and 2^-7 in E5M2
        set_value(x, i / 32, i % 32, i < 10 ? -448 : i < 30 ? 0 : i < 60 ? 0x1p-7 : i < 100 ? 0x1p-12 : 1);
    for (int i = 0; i < 2; i++) {
        CodeCounts counts = {0, 0, 0, 0}, transposed = {0, 0, 0, 0};
        f->exec.ops->grad_quantize(&f->exec, q[0], q_t[i], no_tensor(), x, false);
        f->exec.ops->codes_count(&f->exec, q[0], &counts);
        f->exec.ops->codes_count(&f->exec, q_t[i], &transposed);
        assert_counts(counts, 512, 10, 20 + 40, 30);
        if (i == 0) assert_counts(transposed, 512, 10, 20 + 40, 30);
        // The E5M2 transpose has fewer zeros and subnormals than E4M3, because E5M2's range is larger.
        if (i == 1) assert_counts(transposed, 512, 10, 20, 0);
    }
}

TEST_EVERYWHERE(counts_of_gradients_equal_known_values) {
    known_codes(f);
    known_values(f);
}

// --- comparison of FP8 wgrad with BF16 wgrad -------------------------------------------------------------------------

// Tests inner products of a = 1.25 b + e, where e is orthogonal to b. The bias must be exactly 0.25 and the squared
// relative error 0.125.
static void known_error(Fixture *f) {
    Tensor a = poisoned(f, f->format, 70, 48), b = poisoned(f, f->format, 70, 48);
    for (int64_t i = 0; i < 70 * 48; i++) {
        // e = off * |x| is orthogonal to b: both elements of a pair have the same x, and opposite values of off.
        const double x = i % 4 < 2 ? 1 : -2, off = i % 2 ? 0.25 : -0.25;
        set_value(b, i / 48, i % 48, x);
        set_value(a, i / 48, i % 48, 1.25 * x + off * fabs(x));
    }
    InnerProducts *p = (InnerProducts *)poisoned(f, FMT_FP32, 1, 16).data;
    f->exec.ops->inner_products(&f->exec, a, b, p);
    assert_true(p->bb == 70 * 48 * 2.5 && p->ab == 1.25 * p->bb);
    assert_true(p->aa - 2 * p->ab + p->bb == 0.125 * p->bb);
}

// Compares inner_products() with sums in double precision in another order.
static void random_matmuls(Fixture *f) {
    const Tensor a = random_tensor(f, f->format, 131, 80, 3), b = random_tensor(f, f->format, 131, 80, 1e-3);
    InnerProducts *p = (InnerProducts *)poisoned(f, FMT_FP32, 1, 16).data;
    double ab = 0, aa = 0, bb = 0;
    for (int64_t j = 0; j < 80; j++) {
        for (int64_t i = 0; i < 131; i++) {
            ab += value(a, i, j) * value(b, i, j);
            aa += value(a, i, j) * value(a, i, j);
            bb += value(b, i, j) * value(b, i, j);
        }
    }
    f->exec.ops->inner_products(&f->exec, a, b, p);
    assert_true(fabs(p->ab - ab) < 1e-12 * sqrt(aa * bb) && fabs(p->aa - aa) < 1e-12 * aa &&
                fabs(p->bb - bb) < 1e-12 * bb);
}

TEST_EVERYWHERE(error_of_fp8_wgrad_equals_a_known_error) {
    known_error(f);
    random_matmuls(f);
}

// --- saturated, zero and subnormal FP8 gradients: fractions in the log, and warnings ---------------------------------

// Stores the counts of one gradient as a step would. The last layer has 100 more subnormals than other layers.
static void set_counts(Run *run, CountedTensor what, int transposed, uint64_t saturated, uint64_t zero,
                       uint64_t subnormal) {
    CodeCounts *counts = (CodeCounts *)arena_tensor(&run->arena, CODE_COUNTS, VALUE, 0).data;
    for (int layer = 0; layer < 3; layer++)
        counts[code_counts_at(what, layer) + transposed] =
            (CodeCounts){1000, saturated, zero, layer < 2 ? subnormal : subnormal + 100};
}

// Tests that FP8 health's JSON object has, under each gradient's name, the fractions of its saturated, zero and
// subnormal FP8 values.
UNIT_TEST(json_object_has_the_fractions_of_gradients) {
    Run run;
    char warning[HEALTH_WARNING];
    run_begin(&run, RECIPE_COAT, HEAD_FP8, 1);
    for (int what = 0; what < COUNTED_TENSORS; what++)
        set_counts(&run, (CountedTensor)what, 0, 1, 10u * (unsigned)what, 5);
    set_counts(&run, GRADIENT_DH, 1, 2, 20, 7);
    json_t *found = object_of(&run, warning);
    assert_string_equal(warning, "");
    assert_keys(found, "dh_q", 4);
    assert_keys(found, "dqkv_q", 4);
    assert_keys(found, "dresid_q", 1); // dresid_q has only the key amax, because it is not counted
    assert_keys(found, "dresid_q_fcproj", 3);
    assert_keys(found, "dresid_q_proj", 3);
    assert_keys(found, "dh_qt", 3);
    assert_true(!json_object_get(found, "dqkv_qt") && !json_object_get(found, "dresid_qt_fcproj"));
    assert_true(figure(found, "dresid_q_fcproj", "zero", 3, 1) == 0);
    assert_true(figure(found, "dresid_q_proj", "zero", 3, 1) == 0.01);
    assert_true(figure(found, "dqkv_q", "zero", 3, 2) == 0.03 && figure(found, "dqkv_q", "saturated", 3, 0) == 0.001);
    assert_true(figure(found, "dh_qt", "subnormal", 3, 1) == 0.007 &&
                figure(found, "dh_qt", "subnormal", 3, 2) == 0.107);
    assert_true(figure(found, "dlogits_q", "zero", 1, 0) == 0.04);
    json_decref(found);
    run_end(&run);
    run_begin(&run, RECIPE_BF16, HEAD_BF16, 1); // no counts, because a BF16 run has no FP8 gradients
    assert_null(arena_tensor(&run.arena, CODE_COUNTS, VALUE, 0).data);
    run_end(&run);
}

// Asserts that the warning has `lines` lines and contains all of `parts`, which are separated by '&'.
static void assert_warnings(const char *warning, int lines, const char *parts) {
    assert_int_equal((warning[0] != '\0') + occurrences(warning, "\n"), lines);
    const char *missing = missing_part(warning, parts);
    if (missing) fail_msg("'%s' lacks '%s'", warning, missing);
}

static void assert_health_warnings(Run *run, int lines, const char *parts) {
    char warning[HEALTH_WARNING];
    json_decref(object_of(run, warning));
    assert_warnings(warning, lines, parts);
}

// Resets all counts and forgets the printed warnings. uncounted: fraction of targets that are masked.
static void reset_counts(Run *run, double uncounted) {
    memset(&run->warned, 0, sizeof run->warned);
    run->warned.uncounted = uncounted;
    memset(arena_tensor(&run->arena, CODE_COUNTS, VALUE, 0).data, 0, run->arena.layout[CODE_COUNTS][VALUE].data_bytes);
}

// Tests that each gradient that does not fit its FP8 format causes one warning, which names a flag that helps.
UNIT_TEST(a_gradient_outside_its_format_causes_one_warning) {
    Run run;
    run_begin(&run, RECIPE_COAT_PAPER, HEAD_FP8, 1);
    set_counts(&run, GRADIENT_DQKV, 0, 10, 400, 0); // at the limits: 1 % saturated, 50 % zero or subnormal
    set_counts(&run, GRADIENT_DLOGITS, 0, 0, 700, 100);
    assert_health_warnings(&run, 0, "");
    set_counts(&run, GRADIENT_DQKV, 0, 10, 400, 55);
    set_counts(&run, GRADIENT_DH, 0, 11, 0, 0);
    assert_health_warnings(&run, 2, "dh_q of layer 0&1.1 %&dqkv_q of layer 2&55.5 %&--linear bf16");
    set_counts(&run, GRADIENT_DRESID_PROJ, 0, 0, 0, 700);
    // Only the new gradient causes a warning; other warnings are not repeated.
    assert_health_warnings(&run, 1, "dresid_q_proj of layer 2&80.0 %&--linear bf16");
    assert_health_warnings(&run, 0, "");
    run_end(&run);
    run_begin(&run, RECIPE_COAT, HEAD_FP8, 1); // E5M2 transposes of E4M3 gradients have their own counts
    for (int what = 0; what < COUNTED_TENSORS; what++) set_counts(&run, (CountedTensor)what, 0, 0, 0, 0);
    set_counts(&run, GRADIENT_DQKV, 0, 20, 900, 0); // saturated E4M3 values cause a warning; zeros do not
    set_counts(&run, GRADIENT_DH, 0, 0, 900, 0);
    set_counts(&run, GRADIENT_DH, 1, 0, 900, 0);
    set_counts(&run, GRADIENT_DQKV, 1, 0, 0, 0);
    assert_health_warnings(&run, 2,
                           "dh_qt of layer 2&100.0 %&--linear bf16&dqkv_q of layer 0&2.0 %&--recipe coat-paper");
    reset_counts(&run, 0);
    set_counts(&run, GRADIENT_DLOGITS, 0, 20, 0, 0);
    assert_health_warnings(&run, 1, "dlogits_q of layer 0&2.0 %&--head bf16");
    reset_counts(&run, 0);
    set_counts(&run, NORM_N1, 0, 1 + 10, 0, 0); // norm outputs with a scale per tensor: one value and 1 % may saturate
    // Row scales are powers of two, so the amax does not become the largest FP8 value: only 1 % may saturate.
    set_counts(&run, NORM_N2, 0, 10, 0, 0);
    assert_health_warnings(&run, 0, "");
    set_counts(&run, NORM_N2, 0, 20, 0, 0);
    set_counts(&run, NORM_NF, 0, 1 + 30, 0, 0);
    assert_health_warnings(&run, 2, "n2 of layer 0&2.0 %&--linear bf16&nf of layer 0&3.0 %&--head bf16");
    run_end(&run);
    run_begin(&run, RECIPE_COAT_PAPER, HEAD_FP8, 1);
    reset_counts(&run, 0.7); // 70 % masked targets explain 70 % zeros, which cause no warning
    set_counts(&run, GRADIENT_DQKV, 0, 0, 700, 40);
    set_counts(&run, NORM_N1, 0, 0, 0, 350); // 45 % subnormal norm outputs, which masks do not affect
    assert_health_warnings(&run, 0, "");
    set_counts(&run, NORM_N1, 0, 0, 0, 450);
    assert_health_warnings(&run, 1, "n1 of layer 2&55.0 %&--linear bf16");
    set_counts(&run, GRADIENT_DQKV, 0, 0, 700, 80);
    assert_health_warnings(&run, 1, "dqkv_q of layer 2&60.0 %&--linear bf16");
    reset_counts(&run, 0.7);
    set_counts(&run, GRADIENT_DQKV, 0, 0, 900, 0);
    assert_health_warnings(&run, 1, "dqkv_q of layer 2&100.0 %&--linear bf16");
    reset_counts(&run, 0);
    set_counts(&run, GRADIENT_DQKV, 0, 20, 900, 0);
    char warning[HEALTH_WARNING];
    free(health_json(&run.arena, &run.exec, NULL, warning)); // a skipped step causes no warning
    assert_string_equal(warning, "");
    run_end(&run);
}

static void set_matmuls(Run *run, int layer, double bias, double error) {
    const double size = 4; // value of the inner product <b, b>
    InnerProducts *found = (InnerProducts *)arena_tensor(&run->arena, INNER_PRODUCTS, VALUE, 0).data + layer;
    found->bb = size;
    found->ab = (1 + bias) * size;
    found->aa = (error * error + 2 * bias + 1) * size;
}

// Tests that the log has error and bias of wgrad for each layer. A warning is printed once if a limit is exceeded.
UNIT_TEST(log_has_error_and_bias_of_wgrad) {
    Run run;
    char warning[HEALTH_WARNING];
    run_begin(&run, RECIPE_COAT, HEAD_BF16, 1);
    run.config.health_matmuls = 1;
    run_plan(&run, 1);
    for (int turn = 0; turn < 3; turn++) {
        // bias and error just within their limits of 0.02 and 0.2
        for (int layer = 0; layer < 3; layer++) set_matmuls(&run, layer, -0.0199, 0.199);
        if (turn > 0) set_matmuls(&run, 1, -0.03, 0.1);
        if (turn > 0) set_matmuls(&run, 2, 0.01, 0.25);
        if (turn < 2) run.warned.matmuls = false;
        char *text = health_matmuls_json(&run.arena, &run.exec, &run.warned, warning);
        json_t *found = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_keys(found, "qkvw", 2);
        assert_true(fabs(figure(found, "qkvw", "bias", 3, 0) + 0.0199) < 1e-5);
        assert_true(fabs(figure(found, "qkvw", "error", 3, 2) - (turn ? 0.25 : 0.199)) < 1e-4);
        assert_warnings(warning, turn == 1, turn == 1 ? "qkvw in layer 1&10.0 %&-3.0 %&--linear bf16" : "");
        json_decref(found);
        free(text);
    }
    run.warned.matmuls = false;
    set_matmuls(&run, 1, 0, 0);
    InnerProducts *sums = (InnerProducts *)arena_tensor(&run.arena, INNER_PRODUCTS, VALUE, 0).data;
    sums[0] = (InnerProducts){0, 0, 0}; // a weight gradient of zeros has no error
    sums[2] = (InnerProducts){NAN, 1, 1};
    char *text = health_matmuls_json(&run.arena, &run.exec, &run.warned, warning);
    assert_string_equal(text, "{\"qkvw\":{\"error\":[null,0,null],\"bias\":[null,0,null]}}");
    assert_non_null(strstr(warning, "layer 2"));
    free(text);
    run.warned.matmuls = false;
    free(health_matmuls_json(&run.arena, &run.exec, NULL, warning)); // a skipped step causes no warning
    assert_string_equal(warning, "");
    sums[2] = (InnerProducts){.ab = 0, .aa = 1, .bb = 0};
    free(health_matmuls_json(&run.arena, &run.exec, &run.warned, warning));
    assert_warnings(warning, 1, "qkvw in layer 2&not 0&--linear bf16");
    run_end(&run);
}

// Tests that memory for the wgrad comparison is planned only with --health-products, and lives long enough.
UNIT_TEST(memory_for_the_wgrad_comparison_is_planned) {
    Run run;
    run_begin(&run, RECIPE_COAT, HEAD_BF16, 1);
    assert_true(!run.arena.layout[QKVW_REFERENCE][VALUE].exists && !run.arena.layout[INNER_PRODUCTS][VALUE].exists);
    const int64_t before = (int64_t)run.arena.total_bytes;
    run.config.health_matmuls = 100;
    for (int fp32 = 0; fp32 < 2; fp32++) {
        run.config.recipe.grads = fp32 ? FMT_FP32 : FMT_BF16;
        run_plan(&run, 1);
        const TensorLayout *t = &run.arena.layout[QKVW_REFERENCE][VALUE];
        assert_true(t->exists && t->data_bytes == 96 * 32 * format_bytes(run.config.recipe.grads));
        assert_true(run.arena.layout[INNER_PRODUCTS][VALUE].data_bytes == 3 * sizeof(InnerProducts));
        assert_true(run.arena.layout[DQKV][VALUE].last == t->last && run.arena.layout[DN][VALUE].last == t->last);
        assert_true((int64_t)run.arena.total_bytes > before);
    }
    run.config.health_every = 0;
    run_plan(&run, 1);
    assert_false(run.arena.layout[CODE_COUNTS][VALUE].exists);
    run.config.eval_only = true;
    run_plan(&run, 1);
    assert_true(!run.arena.layout[QKVW_REFERENCE][VALUE].exists && !run.arena.layout[INNER_PRODUCTS][VALUE].exists);
    run_end(&run);
}

RUN_TESTS(NULL, NULL, NULL)
