// Tests of the AdamW step with 8-bit states, with BF16 states and without master weights, and of stochastic rounding to
// BF16.
#include "dev/test/unit.h"
#include "moment_groups.h"

UNIT_TEST(stochastic_rounding_to_bf16_is_unbiased) {
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

enum { COUNT = 3 * 4096 + 1000, GROUPS = (COUNT + GROUP - 1) / GROUP }; // COUNT: several full kernel blocks, and a tail

// A parameter with its gradient and optimizer states.
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
    Tensor t = {o->memory->codes[which],
                o->memory->a[which],
                o->memory->k[which],
                NULL,
                1,
                COUNT,
                COUNT,
                FMT_E4M3,
                SCALE_EXPAND,
                GROUP,
                false};
    return t;
}

static Recipe recipe_of(MomentsKind moments, MasterKind master) {
    Recipe r;
    recipe_apply(&r, RECIPE_BF16);
    r.moments = moments;
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
    StepState state = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .seed = 77};
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

// The first step from states of 0 gives the states and values that first_step_follows() defines. The moments of
// elements without a gradient stay 0.
UNIT_TEST(first_adamw_step_from_zero_states) {
    static const MomentsKind kinds[] = {MOMENTS_FP32, MOMENTS_BF16, MOMENTS_FP8, MOMENTS_COAT};
    for (int kind = 0; kind < 4; kind++) {
        Optimizer o;
        open_optimizer(&o, recipe_of(kinds[kind], MASTER_FP32), 2);
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

UNIT_TEST(number_of_threads_changes_no_bit) {
    compare_runs(recipe_of(MOMENTS_COAT, MASTER_NONE), 1, 3);
    compare_runs(recipe_of(MOMENTS_COAT, MASTER_FP32), 1, 2);
    compare_runs(recipe_of(MOMENTS_FP8, MASTER_NONE), 2, 5);
}

// After 50 steps, weights trained with 8-bit states differ from those trained with FP32 states by a few percent of the
// distance that the weights moved.
UNIT_TEST(eight_bit_states_train_like_fp32_states) {
    static const struct {
        MomentsKind moments;
        MasterKind master;
        double limit;
    } ways[] = {{MOMENTS_BF16, MASTER_FP32, 0.01},
                {MOMENTS_COAT, MASTER_FP32, 0.06},
                {MOMENTS_FP8, MASTER_FP32, 0.08},
                {MOMENTS_FP32, MASTER_NONE, 0.08}};
    Optimizer exact;
    open_optimizer(&exact, recipe_of(MOMENTS_FP32, MASTER_FP32), 2);
    for (int t = 0; t < 50; t++) step(&exact);
    for (int w = 0; w < 4; w++) {
        Optimizer o;
        open_optimizer(&o, recipe_of(ways[w].moments, ways[w].master), 2);
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
        assert_true(fabs(drift) < 4 * sqrt(error)); // the differences have no bias
        close_optimizer(&o);
    }
    close_optimizer(&exact);
}

// If a finite gradient's square overflows, adamw_update sets state->nonfinite and stores inf in the second moment.
UNIT_TEST(an_overflowing_squared_gradient_is_reported) {
    Optimizer o;
    open_optimizer(&o, recipe_of(MOMENTS_COAT, MASTER_FP32), 1);
    o.memory->grad[300] = 1e30f;
    o.exec.ops->adamw_update(&o.exec, &o.parameter, 1, &o.state);
    assert_int_equal(o.state.nonfinite, 1);
    assert_true(isinf(o.memory->a[1][300 / GROUP]));
    // A skipped step must not change any byte of the parameter or its states.
    Memory *before = (Memory *)xmalloc(sizeof *before);
    memcpy(before, o.memory, sizeof *before);
    o.exec.ops->adamw_update(&o.exec, &o.parameter, 1, &o.state);
    assert_memory_equal(before, o.memory, sizeof *before);
    assert_true(o.state.t == 1 && o.state.skipped == 1);
    free(before);
    close_optimizer(&o);
}

RUN_TESTS(NULL, NULL, NULL)
