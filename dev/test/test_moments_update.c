// Tests of stochastic rounding, and of the AdamW step on 8-bit states, on BF16 states and on weights without masters.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "moment_groups.h"

static void stochastic_rounding_is_unbiased(void **state) {
    (void)state;
    enum { STEPS = 4000 };
    static const double spreads[] = {0.3, 1, 3};
    for (int d = 0; d < 3; d++) {
        float v[GROUP], y[GROUP], low[GROUP], high[GROUP];
        double sum[GROUP] = {0};
        Stored s;
        lognormal(v, GROUP, spreads[d], false, 77);
        v[3] = 0.0f;
        for (int t = 1; t <= STEPS; t++) {
            MomentStore how = {true, true, true, 42, t};
            store(&s, v, GROUP, FMT_E4M3, &how);
            load(&s, y, GROUP, FMT_E4M3);
            for (int i = 0; i < GROUP; i++) {
                sum[i] += (double)y[i] - (double)v[i];
                low[i] = t == 1 ? y[i] : fminf(low[i], y[i]);
                high[i] = t == 1 ? y[i] : fmaxf(high[i], y[i]);
            }
        }
        // each mean within five of its deviations, their squares together as chance has them, and no common drift
        double chi2 = 0, drift = 0;
        int random = 0;
        for (int i = 0; i < GROUP; i++) {
            if (low[i] == high[i]) {
                assert_true(fabs(sum[i]) <= 1e-3 * STEPS * (double)v[i]); // on a code, nearly
                continue;
            }
            double step = (double)high[i] - (double)low[i], share = ((double)v[i] - (double)low[i]) / step;
            if (share < 0.01 || share > 0.99) continue; // too few of one kind for the normal distribution
            double z = sum[i] / (step * sqrt(STEPS * share * (1 - share)));
            if (fabs(z) > 5) fail_msg("element %d of spread %g: %.2f deviations", i, spreads[d], z);
            chi2 += z * z;
            drift += z;
            random++;
        }
        assert_true(random > 100);
        assert_true(fabs(chi2 - random) < 5 * sqrt(2.0 * random));
        assert_true(fabs(drift) < 4 * sqrt((double)random));
    }
}

static void stochastic_rounding_depends_on_seed_step_and_index(void **state) {
    (void)state;
    float v[GROUP];
    Stored s, other;
    lognormal(v, GROUP, 1, false, 78);
    MomentStore how = {true, true, true, 42, 5};
    store(&s, v, GROUP, FMT_E4M3, &how);
    store(&other, v, GROUP, FMT_E4M3, &how);
    assert_memory_equal(&s, &other, sizeof s);
    MomentStore seed = how, step = how;
    seed.seed++;
    step.t++;
    store(&other, v, GROUP, FMT_E4M3, &seed);
    assert_memory_not_equal(s.codes, other.codes, GROUP);
    store(&other, v, GROUP, FMT_E4M3, &step);
    assert_memory_not_equal(s.codes, other.codes, GROUP);
    moments_store(tensor_of(&other, GROUP, FMT_E4M3), 0, GROUP, v, &how, 1);
    assert_memory_not_equal(s.codes, other.codes, GROUP);
    MomentGroup group = moment_group(s.a, s.k, FMT_E4M3);
    for (int i = 0; i < GROUP; i++)
        assert_int_equal(s.codes[i],
                         moment_encode_stochastic(v[i], group, FMT_E4M3, moment_uniform(42, 5, (uint64_t)i)));
}

static void stochastic_bf16(void **state) {
    (void)state;
    static const float values[] = {0.0f, 1.0f, 1.001f, -0.7531f, 3.14159f, 1e-39f, -2.9e38f, 0.1f};
    for (int i = 0; i < 8; i++) {
        float x = values[i];
        double sum = 0, low = (double)bf16_decode((uint16_t)(float_bits(x) >> 16));
        double high = (double)bf16_decode((uint16_t)((float_bits(x) >> 16) + 1));
        enum { DRAWS = 100000 };
        for (int t = 0; t < DRAWS; t++) {
            double y = (double)bf16_decode(bf16_encode_stochastic(x, 9, t, 1234));
            assert_true(y == low || y == high);
            sum += y;
        }
        double share = ((double)x - low) / (high - low), deviation = sqrt(share * (1 - share) / DRAWS);
        assert_true(fabs(sum / DRAWS - (double)x) <= 4.5 * deviation * fabs(high - low) + 1e-9 * fabs((double)x));
    }
    assert_true(isnan(bf16_decode(bf16_encode_stochastic(bits_float(0x7f800001u), 1, 1, 1))));
    assert_true(bf16_decode(bf16_encode_stochastic(-INFINITY, 1, 1, 1)) == -INFINITY);
}

// --- the update ----------------------------------------------------------------------------------------------------

enum { COUNT = 3 * 4096 + 1000, GROUPS = (COUNT + GROUP - 1) / GROUP }; // several blocks, and a tail

// One parameter with all that it may have.
typedef struct {
    float grad[COUNT], master[COUNT], moments[2][COUNT], a[2][GROUPS];
    uint16_t value[COUNT], bf16[2][COUNT];
    uint8_t codes[2][COUNT], k[2][GROUPS];
} Memory;

typedef struct {
    Exec exec;
    StepState state;
    Parameter parameter;
    Memory *memory;
} Optimizer;

static Tensor plain(void *data, Format format) {
    Tensor t = {data, NULL, NULL, NULL, 1, COUNT, COUNT, format, SCALE_NONE, 0, false};
    return t;
}

static Tensor moment_of(Optimizer *o, const Recipe *r, int which) {
    if (r->moments == MOMENTS_FP32) return plain(o->memory->moments[which], FMT_FP32);
    if (r->moments == MOMENTS_BF16) return plain(o->memory->bf16[which], FMT_BF16);
    Format format = which ? r->second_moment : FMT_E4M3;
    Tensor t = {o->memory->codes[which],
                o->memory->a[which],
                o->memory->k[which],
                NULL,
                1,
                COUNT,
                COUNT,
                format,
                SCALE_EXPAND,
                GROUP,
                false};
    return t;
}

static Recipe recipe_of(MomentsKind moments, RoundingKind rounding, MasterKind master) {
    Recipe r;
    recipe_apply(&r, RECIPE_BF16);
    r.moments = moments;
    r.second_moment = FMT_E4M3;
    r.second_moment_round = rounding;
    r.master = master;
    return r;
}

static void open_optimizer(Optimizer *o, Recipe recipe, int threads) {
    Config config;
    Error err;
    config_defaults(&config);
    config.recipe = recipe;
    config.threads = threads;
    memset(o, 0, sizeof *o);
    o->exec.ops = cpu_ops();
    assert_true(o->exec.ops->open(&o->exec, &config, &err));
    o->memory = (Memory *)xcalloc(1, sizeof *o->memory);
    Memory *m = o->memory;
    for (int i = 0; i < COUNT; i++) {
        m->master[i] = update_start(i);
        m->value[i] = recipe.master == MASTER_NONE ? bf16_encode(m->master[i]) : master_bf16(m->master[i]);
    }
    memset(m->k, 16, sizeof m->k);
    o->parameter.weight.value = plain(m->value, FMT_BF16);
    o->parameter.grad = plain(m->grad, FMT_FP32);
    o->parameter.m = moment_of(o, &recipe, 0);
    o->parameter.v = moment_of(o, &recipe, 1);
    if (recipe.master == MASTER_FP32) o->parameter.master = plain(m->master, FMT_FP32);
    o->parameter.decay = true;
    o->parameter.index = 1000;
    StepState state = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0, 1.0f, 77, 0, 0, 0, 0, 0, 0, 0};
    o->state = state;
}

static void close_optimizer(Optimizer *o) {
    o->exec.ops->close(&o->exec);
    free(o->memory);
}

static void step(Optimizer *o) {
    uint64_t t = (uint64_t)o->state.t;
    for (int i = 0; i < COUNT; i++) o->memory->grad[i] = update_gradient(t, i);
    o->exec.ops->adamw_update(&o->exec, &o->parameter, 1, &o->state);
}

// As first_step_follows() says; and where the gradient is zero the states stay zero.
static void first_step_from_zero(void **unused) {
    (void)unused;
    static const MomentsKind kinds[] = {MOMENTS_FP32, MOMENTS_BF16, MOMENTS_FP8, MOMENTS_COAT};
    for (int kind = 0; kind < 4; kind++) {
        Optimizer o;
        open_optimizer(&o, recipe_of(kinds[kind], ROUND_STOCHASTIC, MASTER_FP32), 2);
        step(&o);
        assert_int_equal(o.state.t, 1);
        assert_int_equal(o.state.nonfinite, 0);
        for (int i = 0; i < COUNT; i++) {
            float g = o.memory->grad[i];
            assert_true(first_step_follows(update_start(i), g, o.memory->master[i]));
            if (kinds[kind] < MOMENTS_FP8) continue;
            assert_int_equal(o.memory->codes[1][i] == 0, g == 0.0f);
            if (g == 0.0f) assert_int_equal(o.memory->codes[0][i], 0);
        }
        assert_true(kinds[kind] < MOMENTS_FP8 || (o.memory->a[0][0] == 0.0f && o.memory->k[0][0] == 16));
        close_optimizer(&o);
    }
}

static void compare_runs(Recipe recipe, int threads_a, int threads_b) {
    Optimizer a, b;
    open_optimizer(&a, recipe, threads_a);
    open_optimizer(&b, recipe, threads_b);
    for (int t = 0; t < 5; t++) {
        step(&a);
        step(&b);
        assert_memory_equal(a.memory, b.memory, sizeof *a.memory);
    }
    close_optimizer(&a);
    close_optimizer(&b);
}

static void threads_do_not_matter(void **unused) {
    (void)unused;
    compare_runs(recipe_of(MOMENTS_COAT, ROUND_STOCHASTIC, MASTER_NONE), 1, 3);
    compare_runs(recipe_of(MOMENTS_COAT, ROUND_NEAREST, MASTER_FP32), 1, 2);
    compare_runs(recipe_of(MOMENTS_FP8, ROUND_NEAREST, MASTER_NONE), 2, 5);
}

// After 50 steps the weights stand where FP32 states would have put them, within a few percent of the way.
static void states_train_alike(void **unused) {
    (void)unused;
    static const struct {
        MomentsKind moments;
        MasterKind master;
        double limit;
    } ways[] = {{MOMENTS_BF16, MASTER_FP32, 0.01},
                {MOMENTS_COAT, MASTER_FP32, 0.06},
                {MOMENTS_FP8, MASTER_FP32, 0.08},
                {MOMENTS_FP32, MASTER_NONE, 0.08}};
    Optimizer exact;
    open_optimizer(&exact, recipe_of(MOMENTS_FP32, ROUND_NEAREST, MASTER_FP32), 2);
    for (int t = 0; t < 50; t++) step(&exact);
    for (int w = 0; w < 4; w++) {
        Optimizer o;
        open_optimizer(&o, recipe_of(ways[w].moments, ROUND_NEAREST, ways[w].master), 2);
        for (int t = 0; t < 50; t++) step(&o);
        double error = 0, way = 0, drift = 0;
        for (int i = 0; i < COUNT; i++) {
            double now =
                ways[w].master == MASTER_NONE ? (double)bf16_decode(o.memory->value[i]) : (double)o.memory->master[i];
            double difference = now - (double)exact.memory->master[i];
            double moved = (double)exact.memory->master[i] - (double)update_start(i);
            error += difference * difference;
            drift += difference;
            way += moved * moved;
        }
        print_message("# moments %d, masters %d: %.2f %% of the way\n", (int)ways[w].moments, (int)ways[w].master,
                      100 * sqrt(error / way));
        assert_true(sqrt(error / way) < ways[w].limit);
        assert_true(fabs(drift) < 4 * sqrt(error)); // rounding takes no side
        close_optimizer(&o);
    }
    close_optimizer(&exact);
}

// A gradient whose square is not finite although it is: reported, and the states keep it.
static void overflow_is_reported(void **unused) {
    (void)unused;
    Optimizer o;
    open_optimizer(&o, recipe_of(MOMENTS_COAT, ROUND_NEAREST, MASTER_FP32), 1);
    o.memory->grad[300] = 1e30f;
    o.exec.ops->adamw_update(&o.exec, &o.parameter, 1, &o.state);
    assert_int_equal(o.state.nonfinite, 1);
    assert_true(isinf(o.memory->a[1][300 / GROUP]));
    // and a step that is to be skipped touches nothing
    Memory *before = (Memory *)xmalloc(sizeof *before);
    memcpy(before, o.memory, sizeof *before);
    o.exec.ops->adamw_update(&o.exec, &o.parameter, 1, &o.state);
    assert_memory_equal(before, o.memory, sizeof *before);
    assert_true(o.state.t == 1 && o.state.skipped == 1);
    free(before);
    close_optimizer(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stochastic_rounding_is_unbiased),
        cmocka_unit_test(stochastic_rounding_depends_on_seed_step_and_index),
        cmocka_unit_test(stochastic_bf16),
        cmocka_unit_test(first_step_from_zero),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(states_train_alike),
        cmocka_unit_test(overflow_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
