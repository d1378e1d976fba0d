// Tests of the values that announce the failure of a training run: their measurement, their notes, and docs/log.md.
#include "health_fixture.h"

#include "coat/numerics/moments.h"
#include "coat/numerics/moments_host.h"
#include "dev/test/unit.h"

// --- sums of outliers ------------------------------------------------------------------------------------------------

// Returns 8-bit second moments with the shape of x: values from 2^-12 to 1, and 0 in the last 100 elements.
static Tensor eight_bit_moments(Fixture *f, Tensor x) {
    const int64_t count = tensor_elements(x), groups = (count + 127) / 128;
    Tensor v = poisoned(f, FMT_E4M3, x.rows, x.cols);
    real *values = (real *)xcalloc((size_t)count, sizeof *values);
    v.granularity = SCALE_EXPAND;
    v.group = 128;
    v.scale = poisoned(f, FMT_FP32, 1, groups).data;
    v.exponent = (uint8_t *)poisoned(f, FMT_FP32, 1, groups).data;
    for (int64_t i = 0; i < count - 100; i++) values[i] = (real)exp2(6 * draw(f) - 6);
    moments_store(v, 0, count, values, &(MomentStore){true, true});
    free(values);
    return v;
}

// Compares the sums of outliers() with the same sums, added in another order in double precision.
static void assert_outliers(Fixture *f, Tensor x, Tensor v) {
    const int64_t count = tensor_elements(x);
    real *moments = (real *)xcalloc((size_t)count, sizeof *moments);
    double sum = 0, squares = 0;
    float amax = 0;
    Outliers *found = (Outliers *)poisoned(f, FMT_FP32, 1, 16).data;
    if (v.granularity == SCALE_EXPAND) moments_load(v, 0, count, moments);
    for (int64_t j = 0; j < x.cols; j++) {
        for (int64_t i = 0; i < x.rows; i++) {
            const double a = (double)element(x, i, j);
            const double b = v.granularity == SCALE_EXPAND ? (double)moments[i * x.cols + j]
                             : v.data                      ? value(v, i, j)
                                                           : 1;
            const double z = b > 0 ? a * a / b : 0;
            sum += z;
            squares += z * z;
            amax = fmaxf(amax, fabsf((float)a));
        }
    }
    f->exec.ops->outliers(&f->exec, x, v, found);
    assert_true(fabs(found->sums.ab - sum) < 1e-12 * sum && fabs(found->sums.aa - squares) < 1e-12 * squares);
    assert_true(found->sums.bb == (double)count && found->amax == float_bits(amax));
    free(moments);
}

TEST_EVERYWHERE(sums_of_outliers_equal_an_independent_computation) {
    Tensor x = random_tensor(f, f->format, 37, 272, 3), v = random_tensor(f, FMT_FP32, 37, 272, 1);
    assert_outliers(f, x, no_tensor());
    for (int64_t i = 0; i < tensor_elements(v); i++) set_value(v, 0, i, i % 5 ? fabs(value(v, 0, i)) : 0);
    assert_outliers(f, x, v);
    assert_outliers(f, x, eight_bit_moments(f, x));
    Tensor coat[3] = {coded(f, FMT_E5M2, 37, 272), coded_rows(f, FMT_E4M3, 37, 272), grouped(f, 37, 272, 32)};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 37 * 272; i++) ((uint8_t *)coat[k].data)[i] = (uint8_t)(60 + 60 * draw(f));
        for (int i = 0; i < 37; i++) ((float *)coat[k].scale)[k == 1 ? i : 0] = (float)exp2(floor(5 * draw(f)));
        for (int i = 0; i < 37 * 9 && k == 2; i++) ((uint16_t *)coat[2].scale)[i] = bf16_encode((float)(2 + draw(f)));
        assert_outliers(f, coat[k], no_tensor());
    }
}

// -- values in the log and their notes --------------------------------------------------------------------------------

typedef char *HealthJson(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// Calls a function of health.h once without and twice with notes enabled. Asserts that only the second call writes a
// note, and that it contains `note`. If `note` is empty, no call may write a note. Returns the last JSON object.
static json_t *measure(Run *run, HealthJson *health, const char *note) {
    char warning[HEALTH_WARNING];
    json_t *found = NULL;
    memset(run->warned.bound, 0, sizeof run->warned.bound);
    for (int i = 0; i < 3; i++) {
        char *text = health(&run->arena, &run->exec, i ? &run->warned : NULL, warning);
        json_decref(found);
        found = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        free(text);
        if ((warning[0] != 0) != (i == 1 && note[0]) || !strstr(warning, i == 1 ? note : ""))
            fail_msg("call %d: '%s' instead of '%s'", i, warning, note);
    }
    return found;
}

static Outliers *outliers_of(Run *run, int layer) {
    return (Outliers *)arena_tensor(&run->arena, OUTLIERS, VALUE, 0).data + layer;
}

// Tests that outliers of the activation function's output are in the log, and that only large ones cause a note.
UNIT_TEST(activation_outliers_are_logged_and_large_ones_noted) {
    Run run;
    run_begin(&run, RECIPE_COAT, HEAD_BF16, 1);
    Tensor g = arena_tensor(&run.arena, G, VALUE, 2);
    uint8_t *codes = (uint8_t *)g.data;
    assert_true(g.granularity == SCALE_ROW && tensor_elements(g) == 32 * 128);
    for (int i = 0; i < 32; i++) ((float *)g.scale)[i] = 0.5f;
    memset(codes, 0x38, 32 * 128); // all values are 1
    for (int layer = 0; layer < 3; layer++) run.exec.ops->outliers(&run.exec, g, no_tensor(), outliers_of(&run, layer));
    json_t *found = measure(&run, health_activation_json, "");
    assert_true(figure(found, "g", "outlier", 3, 2) == 1 && figure(found, "g", "kurtosis", 3, 0) == 1);
    json_decref(found);

    codes[77] = 0x7e; // one of 4096 values is 448 times as large as the others
    run.exec.ops->outliers(&run.exec, g, no_tensor(), outliers_of(&run, 1));
    found = measure(&run, health_activation_json, "");
    assert_true(fabs(figure(found, "g", "outlier", 3, 1) - 63.36) < 0.01);
    assert_true(fabs(figure(found, "g", "kurtosis", 3, 1) - 3934) < 1);
    json_decref(found);

    *outliers_of(&run, 1) = (Outliers){{4e6, 4.004e11, 4e6}, float_bits(999)};
    found = measure(&run, health_activation_json, "activation: g of layer 1 has kurtosis 1.001e+05, above 100000");
    json_decref(found);

    *outliers_of(&run, 1) = *outliers_of(&run, 0);
    *outliers_of(&run, 2) = (Outliers){{4e6, 8e6, 4e6}, float_bits(1001)};
    *outliers_of(&run, 0) = (Outliers){{NAN, NAN, 4e6}, 0x7fc00000u};
    found = measure(&run, health_activation_json, "activation: g of layer 2 has outlier 1001, above 1000");
    assert_true(isnan(figure(found, "g", "outlier", 3, 0)) && isnan(figure(found, "g", "kurtosis", 3, 0)));
    json_decref(found);
    run_end(&run);
}

typedef struct {
    StepState state;
    Parameter parameters[64];
    int count;
} Updates;

static void updates_begin(Run *run, Updates *u, float beta2) {
    memset(u, 0, sizeof *u);
    u->state = (StepState){.lr = 1e-6f, .beta1 = 0.9f, .beta2 = beta2, .eps = 1e-8f, .grad_norm = 1};
    u->count = arena_parameters(&run->arena, u->parameters, NULL, NULL);
    run->exec.state = &u->state;
}

// Runs updates with noise as gradients. The noise of an element has a fixed scale between `size` / 4 and 4 `size`.
static void update(Run *run, Updates *u, int updates, double size) {
    Fixture noise = {0};
    noise.draws = (uint64_t)u->state.t;
    for (int k = 0; k < updates; k++) {
        for (int p = 0; p < u->count; p++) {
            const Tensor grad = u->parameters[p].grad;
            for (int64_t i = 0; i < tensor_elements(grad); i++)
                set_value(grad, 0, i, draw(&noise) * size * exp2((double)(i * 37 % 101) / 25 - 2));
        }
        run->exec.ops->adamw_update(&run->exec, u->parameters, u->count, &u->state);
    }
}

// Tests that v has a lag after the gradient has grown, and none before, with every format of v.
UNIT_TEST(second_moments_lag_after_the_gradient_has_grown) {
    static const MomentsKind formats[] = {MOMENTS_FP32, MOMENTS_BF16, MOMENTS_COAT};
    for (int k = 0; k < 3; k++) {
        Run run;
        Updates u;
        run_begin(&run, RECIPE_COAT, HEAD_BF16, 1);
        run.config.recipe.moments = formats[k];
        run.exec.ops->close(&run.exec);
        Error err;
        assert_true(run.exec.ops->open(&run.exec, &run.config, &err));
        run_plan(&run, 1);
        updates_begin(&run, &u, 0.95f);
        char warning[HEALTH_WARNING];
        assert_null(health_optimizer_json(&run.arena, &run.exec, &run.warned, warning));
        update(&run, &u, 3, 1e-3); // after only 3 updates, the lag must include the bias correction of v
        json_t *found = measure(&run, health_optimizer_json, "");
        assert_true(fabs(figure(found, "wte", "lag", 1, 0) - 1) < 0.1 &&
                    fabs(figure(found, "fcw", "lag", 3, 2) - 1) < 0.1);
        assert_null(json_object_get(found, "ln1w"));
        json_decref(found);
        update(&run, &u, 60, 1e-3);
        json_decref(measure(&run, health_optimizer_json, ""));
        update(&run, &u, 1, 1e-2);
        found = measure(&run, health_optimizer_json, "optimizer: wte of layer 0 has lag");
        assert_true(figure(found, "qkvw", "lag", 3, 1) > 3 && figure(found, "qkvw", "lag", 3, 1) < sqrt(20));
        json_decref(found);
        u.state.grad_clip = 0.25f; // gradients are divided by 4
        json_decref(measure(&run, health_optimizer_json, ""));
        run_end(&run);
    }
}

// Returns the fraction of v's FP8 values that an update with this beta2 leaves unchanged, after 60 updates with beta2
// 0.95 and 20 with this beta2. Asserts that a note is written if and only if `notes`.
static double unchanged(float beta2, bool notes) {
    Run run;
    Updates u;
    char warning[HEALTH_WARNING];
    run_begin(&run, RECIPE_COAT, HEAD_BF16, 1);
    updates_begin(&run, &u, 0.95f);
    update(&run, &u, 60, 1e-3);
    u.state.beta2 = beta2;
    update(&run, &u, 20, 1e-3);
    json_t *found = object_of(&run, warning);
    assert_keys(found, "qkvw.v", 4); // 4 keys: without health_sample(), the key "unchanged" is absent
    json_decref(found);
    health_sample(&run.arena, &run.exec, &run.warned);
    update(&run, &u, 1, 1e-3);
    found = object_of(&run, warning);
    if (notes != (strncmp(warning, "fp8: qkvw.v of layer ", 21) == 0 && strstr(warning, " has unchanged ") != NULL) ||
        (!notes && warning[0]))
        fail_msg("beta2 %g: '%s' %g", (double)beta2, warning, figure(found, "qkvw.v", "unchanged", 3, 1));
    const double share = figure(found, "qkvw.v", "unchanged", 3, 1);
    assert_true(figure(found, "qkvw.m", "unchanged", 3, 1) < 0.3);
    assert_keys(found, "qkvw.v", 5);
    assert_keys(found, "x_in", 3);
    assert_null(run.warned.sample);
    json_decref(found);
    health_sample(&run.arena, &run.exec, &run.warned);
    json_decref(object_of(&run, warning)); // no update: nothing has changed
    assert_true(!notes || !warning[0]);    // one note per run
    run_end(&run);
    return share;
}

// Tests that 8-bit second moments follow the gradient with beta2 0.95, and do not with 0.9999.
UNIT_TEST(moments_with_a_large_beta2_stay_unchanged) {
    assert_true(unchanged(0.95f, false) < 0.6);
    assert_true(unchanged(0.9999f, true) > 0.97);
}

UNIT_TEST(docs_log_md_lists_every_bound) {
    static char text[1 << 16];
    FILE *in = fopen("docs/log.md", "rb");
    assert_non_null(in);
    text[fread(text, 1, sizeof text - 1, in)] = '\0';
    fclose(in);
    for (int id = 0; id < BOUND_COUNT; id++) {
        const HealthBound *b = &health_bounds[id];
        const char *row =
            formatted("| `%s.%s.%s` | %g | %s | %s |", b->line, b->tensor, b->figure, b->bound, b->meaning, b->remedy);
        if (!strstr(text, row)) fail_msg("docs/log.md lacks the row %s", row);
    }
}

RUN_TESTS(NULL, NULL, NULL)
