// Tests of the learning-rate schedules. Compares learning rates with values computed by hand.
#include "coat/model/schedule.h"
#include "dev/test/unit.h"

static Config make(ScheduleKind schedule, float lr, float lr_final, int64_t warmup) {
    Config config;
    memset(&config, 0, sizeof config);
    config.schedule = schedule;
    config.lr = lr;
    config.lr_final = lr_final;
    config.warmup = warmup;
    config.decay_fraction = 0.2f;
    return config;
}

static void near(const Config *config, int64_t step, int64_t total, double expected) {
    double rate = schedule_lr(config, step, total);
    if (!(fabs(rate - expected) <= 1e-6 * fabs(expected) + 1e-12))
        fail_msg("step %d: %.9g, not %.9g", (int)step, rate, expected);
}

UNIT_TEST(warm_up_is_linear) {
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_CONSTANT; kind++) {
        Config c = make((ScheduleKind)kind, 1.0f, 0.0f, 10);
        near(&c, 0, 100, 0.1);
        near(&c, 4, 100, 0.5);
        near(&c, 9, 100, 1.0);
        near(&c, 10, 100, 1.0);
        near(&c, 3, 5, 0.4); // The run ends before the warm-up is complete.
        near(&c, 4, 5, 0.5);
    }
}

UNIT_TEST(cosine_schedule) {
    Config c = make(SCHEDULE_COSINE, 6e-4f, 0.1f, 20);
    near(&c, 20, 120, 6e-4);
    near(&c, 70, 120, 3.3e-4); // This step is halfway through the decay from 6e-4 to 6e-5.
    near(&c, 45, 120, 6e-5 + 5.4e-4 * 0.5 * (1.0 + sqrt(0.5))); // after a quarter of the cosine decay
    near(&c, 120, 120, 6e-5);
    near(&c, 500, 120, 6e-5);
    Config flat = make(SCHEDULE_COSINE, 3e-4f, 1.0f, 0);
    near(&flat, 7, 10, 3e-4);
}

UNIT_TEST(linear_schedule) {
    Config c = make(SCHEDULE_LINEAR, 1.0f, 0.2f, 0);
    near(&c, 0, 100, 1.0);
    near(&c, 25, 100, 0.8);
    near(&c, 75, 100, 0.4);
    near(&c, 100, 100, 0.2);
}

UNIT_TEST(warmup_stable_decay_schedule) {
    Config c = make(SCHEDULE_WSD, 1.0f, 0.0f, 10);
    near(&c, 50, 100, 1.0);
    near(&c, 80, 100, 1.0); // first step of the decay of the rate
    near(&c, 85, 100, 0.5); // 5 of the 20 steps of the decay: 1 - sqrt(5 / 20)
    near(&c, 96, 100, 1.0 - sqrt(0.8));
    near(&c, 100, 100, 0.0);
    c.warmup = 90; // The decay does not start before the warm-up has ended.
    near(&c, 89, 100, 1.0);
    near(&c, 90, 100, 1.0);
    c.warmup = 0;
    c.decay_fraction = 0.0f;
    near(&c, 99, 100, 1.0);
    c.decay_fraction = 1.0f;
    near(&c, 25, 100, 0.5);
    c.decay_fraction = 0.1f; // 1.0f - 0.1f is below 0.9, but the decay has 10 of the 100 steps, not 11
    near(&c, 90, 100, 1.0);
    near(&c, 91, 100, 1.0 - sqrt(0.1));
}

UNIT_TEST(constant_schedule) {
    Config c = make(SCHEDULE_CONSTANT, 0.5f, 0.0f, 0);
    near(&c, 0, 10, 0.5);
    near(&c, 9, 10, 0.5);
    near(&c, 99, 10, 0.5);
}

UNIT_TEST(schedules_of_very_short_runs) {
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_CONSTANT; kind++) {
        Config c = make((ScheduleKind)kind, 1.0f, 0.5f, 0);
        for (int64_t total = 0; total < 4; total++)
            for (int64_t step = 0; step <= total; step++) {
                float rate = schedule_lr(&c, step, total);
                assert_true(rate >= 0.5f && rate <= 1.0f); // also fails if the learning rate is NaN
            }
        assert_true(schedule_lr(&c, INT64_C(1) << 40, INT64_C(1) << 41) > 0.5f);
    }
}

RUN_TESTS(NULL, NULL, NULL)
