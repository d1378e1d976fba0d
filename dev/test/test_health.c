// Tests of FP8 health in the log: counts (compared with an independent implementation), JSON object and warnings.
#include "health_fixture.h"

#include "coat/numerics/moments.h"
#include "dev/test/unit.h"

// --- counts of saturated, zero and clamped FP8 values, and amax ----------------------------------------------------

// Fills t with random FP8 values. Some are 0, and some have the format's largest magnitude.
static void random_codes(Fixture *f, Tensor t) {
    const int top = t.format == FMT_E4M3 ? 0x7e : 0x7b;
    for (int64_t i = 0; i < t.rows * t.cols; i++) {
        double x = draw(f);
        int code = x < -0.8 ? 0 : x > 0.7 ? top : (int)(fabs(draw(f)) * top);
        ((uint8_t *)t.data)[i] = (uint8_t)(code | (draw(f) > 0 ? 0x80 : 0));
    }
}

// Adds to *h the counts of FP8 values begin to end - 1, which share a scale. is_maximum: the scale is the amax itself.
static void count(Health *h, Tensor t, int64_t begin, int64_t end, float scale, bool is_maximum) {
    const uint8_t *codes = (const uint8_t *)t.data;
    uint64_t at_top = 0;
    float amax = 0;
    for (int64_t i = begin; i < end; i++) {
        float x = fabsf(fp8_decode(t.format, codes[i]));
        h->zero += x == 0;
        at_top += x == format_max(t.format);
        amax = fmaxf(amax, x * scale);
        h->largest = (codes[i] & 0x7fu) > h->largest ? codes[i] & 0x7fu : h->largest;
    }
    if (is_maximum && amax > 0) amax = scale;
    h->amax = float_bits(fmaxf(bits_float(h->amax), amax));
    h->saturated += at_top > 0 ? at_top - 1 : 0;
}

static void assert_health(Fixture *f, Tensor t, Health expected) {
    Health found;
    f->exec.ops->health(&f->exec, &t, 1, &found);
    assert_int_equal(found.saturated, expected.saturated);
    assert_int_equal(found.zero, expected.zero);
    assert_int_equal(found.clamped, expected.clamped);
    assert_int_equal(found.amax, expected.amax);
    assert_int_equal(found.largest, expected.largest);
}

static void one_scale(Fixture *f) {
    for (int i = 0; i < 2; i++) {
        Tensor t = coded(f, i ? FMT_E5M2 : FMT_E4M3, 37, 272);
        Health h = {0};
        random_codes(f, t);
        *(float *)t.scale = 0.37f;
        count(&h, t, 0, t.rows * t.cols, 0.37f, false);
        assert_true(h.saturated > 100 && h.zero > 100);
        assert_health(f, t, h);
        memset(t.data, 0, (size_t)(t.rows * t.cols));
        assert_health(f, t, (Health){.zero = (uint64_t)(t.rows * t.cols)});
        t.data = NULL; // a tensor whose scale is stored, but not its FP8 values
        assert_health(f, t, (Health){.amax = float_bits(0.37f * format_max(t.format))});
        *(float *)t.scale = 1.0f;
        assert_health(f, t, (Health){0});
    }
}

static void scale_per_row(Fixture *f) {
    for (int i = 0; i < 2; i++) {
        Tensor t = coded_rows(f, i ? FMT_E5M2 : FMT_E4M3, 37, 271);
        Health h = {0};
        float largest = 0;
        random_codes(f, t);
        memset(t.data, 0, 271); // sets one row of FP8 values to 0
        for (int64_t row = 0; row < t.rows; row++) {
            float scale = row ? (float)exp2(floor(20 * draw(f))) : SCALE_MIN;
            ((float *)t.scale)[row] = scale;
            largest = fmaxf(largest, scale);
            count(&h, t, row * t.cols, (row + 1) * t.cols, scale, false);
        }
        assert_true(h.saturated > 100 && h.zero > 271);
        assert_health(f, t, h);
        t.data = NULL; // a tensor whose row scales are stored, but not its FP8 values
        assert_health(f, t, (Health){.amax = float_bits(largest * format_max(t.format))});
        for (int64_t row = 0; row < t.rows; row++) ((float *)t.scale)[row] = SCALE_MIN;
        assert_health(f, t, (Health){0});
    }
}

static void scale_per_group(Fixture *f) {
    const int groups[3] = {16, 32, 128};
    for (int i = 0; i < 3; i++) {
        // Groups of 32 and 128 end with a shorter group in each row of 336 values.
        Tensor t = grouped(f, 9, 336, groups[i]);
        Health h = {0};
        random_codes(f, t);
        memset(t.data, 0, 16);
        for (int64_t row = 0; row < t.rows; row++)
            for (int64_t begin = 0; begin < t.cols; begin += t.group) {
                float scale = bf16_decode(bf16_encode((float)exp2(8 * draw(f))));
                int64_t end = begin + t.group < t.cols ? begin + t.group : t.cols;
                ((uint16_t *)t.scale)[row * ((t.cols + t.group - 1) / t.group) + begin / t.group] = bf16_encode(scale);
                count(&h, t, row * t.cols + begin, row * t.cols + end, scale, false);
            }
        assert_true(h.saturated > 100);
        assert_health(f, t, h);
    }
}

static void moments(Fixture *f) {
    const Format formats[2] = {FMT_E4M3, FMT_E5M2};
    for (int i = 0; i < 2; i++) {
        // Groups of moments ignore the ends of rows. The last group has 9 elements.
        Tensor t = poisoned(f, formats[i], 7, 111);
        Health h = {0};
        t.granularity = SCALE_EXPAND;
        t.group = 128;
        t.scale = poisoned(f, FMT_FP32, 1, 7).data;
        t.exponent = (uint8_t *)poisoned(f, FMT_FP32, 1, 7).data;
        random_codes(f, t);
        for (int g = 0; g < 7; g++) {
            static const uint8_t k[7] = {16, 1, 255, 2, 254, 255, 17};
            ((float *)t.scale)[g] = (float)exp2(20 * draw(f));
            t.exponent[g] = k[g];
            count(&h, t, 128 * g, g < 6 ? 128 * (g + 1) : 777, ((float *)t.scale)[g], true);
        }
        h.clamped = 3;
        assert_health(f, t, h);
    }
}

TEST_EVERYWHERE(counts_of_fp8_values_equal_an_independent_computation) {
    one_scale(f);
    scale_per_row(f);
    scale_per_group(f);
    moments(f);
}

// --- logged JSON object --------------------------------------------------------------------------------------------

// Checks the JSON object that health_json() makes from tensors with known values.
static void check_object(RecipeKind recipe) {
    Run run;
    char warning[HEALTH_WARNING];
    run_begin(&run, recipe, HEAD_FP8, 1);
    const int64_t last = recipe == RECIPE_COAT ? 31 : 0; // index of the largest scale: row 31 if there are row scales
    const double most = format_max(recipe_gradient_format(&run.config.recipe));
    ((float *)arena_tensor(&run.arena, DH_Q, VALUE, 2).scale)[last] = 2;
    ((float *)arena_tensor(&run.arena, DH_Q, VALUE, 1).scale)[last] = 0.5f;
    Tensor h = arena_tensor(&run.arena, H, VALUE, 1), m = arena_tensor(&run.arena, FCW, MOMENT_M, 2);
    for (int i = 0; i < 16; i++) ((uint8_t *)h.data)[i] = 0x7e;
    ((uint16_t *)h.scale)[0] = bf16_encode(0.25f);
    memset(m.exponent, 16, 32);
    memset(m.exponent, 255, 8); // exponents of 8 of the 32 groups are at the limit
    json_t *found = object_of(&run, warning);
    assert_string_equal(warning, "");
    // numbers of keys for: weights, moments, saved tensors, recomputed tensors, gradients
    assert_int_equal(json_object_size(found), 5 + 2 * 5 + 3 + 5 + 3);
    assert_keys(found, "wte.codes", 3);
    assert_keys(found, "qkvw.m", 4);
    assert_keys(found, "x_in", 3);
    assert_keys(found, "n1", 1);
    assert_keys(found, "dqkv_q", 1);
    assert_true(!json_object_get(found, "dlogits_q") && !json_object_get(found, "wpe.m"));
    assert_true(fabs(figure(found, "dh_q", "amax", 3, 2) / (2 * most) - 1) < 1e-3);
    assert_true(fabs(figure(found, "dh_q", "amax", 3, 1) / (0.5 * most) - 1) < 1e-3);
    assert_true(figure(found, "h", "amax", 3, 1) == 112 && figure(found, "h", "amax", 3, 0) == 0);
    assert_true(fabs(figure(found, "h", "saturated", 3, 1) - 15.0 / (32 * 128)) < 1e-6);
    assert_true(fabs(figure(found, "h", "zero", 3, 1) - (1 - 16.0 / (32 * 128))) < 1e-4);
    assert_true(figure(found, "fcw.m", "clamped", 3, 2) == 8.0 / 32);
    assert_true(figure(found, "wte.codes", "zero", 1, 0) == 1);
    json_decref(found);
    run_end(&run);

    run_begin(&run, RECIPE_FP8_LINEAR, HEAD_BF16, 1);
    found = object_of(&run, warning);
    assert_keys(found, "n1", 3); // recipe fp8-linear saves the norm output n1
    assert_true(!json_object_get(found, "x_in") && !json_object_get(found, "qkvw.m"));
    json_decref(found);
    run_end(&run);
    run_begin(&run, RECIPE_BF16, HEAD_BF16, 1);
    assert_null(object_of(&run, warning));
    run_end(&run);
}

UNIT_TEST(json_object_has_the_counts_of_known_tensors) {
    check_object(RECIPE_COAT_PAPER);
    check_object(RECIPE_COAT);
}

UNIT_TEST(counts_cover_only_this_ranks_shards_of_moments) {
    Run run;
    char warning[HEALTH_WARNING];
    run_begin(&run, RECIPE_COAT_PAPER, HEAD_BF16, 2);
    const TensorLayout *t = &run.arena.layout[QKVW][MOMENT_M];
    assert_int_equal(t->shard_elements, 96 * 32 / 2);
    for (int layer = 0; layer < 3; layer++) {
        Tensor m = arena_tensor(&run.arena, QKVW, MOMENT_M, layer);
        memset(m.data, 0x11, 96 * 32 / 4);
        memset(m.exponent, 16, 12);
        memset(m.exponent, 255, 3);
    }
    json_t *found = object_of(&run, warning);
    for (size_t layer = 0; layer < 3; layer++) {
        assert_true(figure(found, "qkvw.m", "zero", 3, layer) == 0.5);
        assert_true(figure(found, "qkvw.m", "clamped", 3, layer) == 0.25);
    }
    json_decref(found);
    run_end(&run);
}

UNIT_TEST(saturated_tensors_cause_a_warning) {
    Run run;
    char warning[HEALTH_WARNING];
    run_begin(&run, RECIPE_COAT_PAPER, HEAD_BF16, 1);
    Tensor w = arena_tensor(&run.arena, PROJW, CODES, 1), m = arena_tensor(&run.arena, QKVW, MOMENT_V, 0);
    memset(w.data, 0xfe, 100); // 100 of 1024 values are at the format's limit
    json_decref(object_of(&run, warning));
    assert_string_equal(warning, "fp8: projw.codes of layer 1 has 9.7 % of its FP8 values saturated");
    ((float *)m.scale)[3] = INFINITY;
    ((uint8_t *)m.data)[3 * 128] = 5;
    json_t *found = object_of(&run, warning);
    assert_string_equal(warning,
                        "fp8: qkvw.v of layer 0 has an infinity or NaN; see log.jsonl for more such tensors (1)");
    assert_true(isnan(figure(found, "qkvw.v", "amax", 3, 0)));
    json_decref(found);
    run_end(&run);
}

// Tests the largest log-sum-exp of each layer, a NaN, and the warning about large logits, which is printed once.
UNIT_TEST(large_attention_logits_cause_one_warning) {
    Run run;
    char warning[HEALTH_WARNING];
    run_begin(&run, RECIPE_BF16, HEAD_BF16, 1);
    const Tensor first = arena_tensor(&run.arena, LSE, VALUE, 0), last = arena_tensor(&run.arena, LSE, VALUE, 2);
    ((float *)first.data)[tensor_elements(first) - 1] = 99;
    ((float *)last.data)[3] = -2;
    char *json = health_attention_json(&run.arena, &run.exec, &run.warned, warning);
    assert_string_equal(json, "{\"lse\":{\"max\":[99,0,0]}}");
    assert_string_equal(warning, "");
    free(json);
    ((float *)last.data)[3] = 250;
    ((float *)first.data)[5] = NAN;
    for (int i = 0; i < 3; i++) {
        json = health_attention_json(&run.arena, &run.exec, i ? &run.warned : NULL, warning);
        assert_string_equal(json, "{\"lse\":{\"max\":[null,0,250]}}");
        assert_true(strncmp(warning, "attention: lse of layer 2 has max 250, above 100: ", i == 1 ? 50 : 0) == 0);
        assert_true((warning[0] != 0) == (i == 1));
        free(json);
    }
    run_end(&run);
}

RUN_TESTS(NULL, NULL, NULL)
