// Tests of outlier detection (coat/model/guard.h), and of its window of past steps in checkpoints.
#include "dev/test/checkpoint_run.h"

#include "coat/model/guard.h"

// Records `count` steps with losses of 3 +- 0.1 and gradient norms of 1 +- 0.1.
static void accept_steps(Guard *guard, int count) {
    for (int i = 0; i < count; i++) outlier_record(guard, 3 + (i % 2 ? 0.1 : -0.1), 1 + (i % 2 ? 0.1 : -0.1));
}

UNIT_TEST(outliers_are_measured_in_standard_deviations) {
    Guard guard;
    memset(&guard, 0, sizeof guard);
    accept_steps(&guard, GUARD_WINDOW - 1);
    assert_true(guard_z(&guard.loss, 1e9) == 0); // 0, because nothing is an outlier until the window is full
    assert_false(outlier_should_skip(&guard, 1e9, 1e9, 2, 2));
    accept_steps(&guard, 1);
    accept_steps(&guard, GUARD_WINDOW); // replaces all losses and norms in the window
    assert_int_equal(guard.loss.count, GUARD_WINDOW);
    assert_true(fabs(guard_z(&guard.loss, 3.5) - 5) < 1e-6);
    assert_true(fabs(guard_z(&guard.loss, 2.5) + 5) < 1e-6);
    assert_true(fabs(guard_z(&guard.grad_norm, 1.3) - 3) < 1e-6);
    assert_false(outlier_should_skip(&guard, 3.5, 1, 5.01, 0));
    assert_true(outlier_should_skip(&guard, 3.5, 1, 4.99, 0));
    assert_false(outlier_should_skip(&guard, 2, 0, 4.99, 4.99)); // losses and norms below the mean are never outliers
    assert_true(outlier_should_skip(&guard, 3, 1.5, 0, 4.99));
    assert_false(outlier_should_skip(&guard, 3.5, 1.5, 0, 0)); // a limit of 0 disables outlier detection
    // New steps replace the oldest steps in the window.
    for (int i = 0; i < GUARD_WINDOW; i++) outlier_record(&guard, 7, 7);
    assert_true(guard_z(&guard.loss, 9) == 0); // 0, because all losses in the window are equal
    outlier_record(&guard, 8, 8);
    assert_true(guard.loss.values[GUARD_WINDOW - 1] == 8 && guard.loss.values[0] == 7);
    assert_true(guard_z(&guard.loss, 9) > 5);
}

// Tests that NaN and inf are always outliers and are never recorded in the window.
UNIT_TEST(nan_and_inf_are_always_outliers) {
    Guard guard, before;
    memset(&guard, 0, sizeof guard);
    for (int full = 0; full <= 1; full++) {
        assert_true(outlier_should_skip(&guard, NAN, 1, 5, 0));
        assert_true(outlier_should_skip(&guard, INFINITY, 1, 5, 0));
        assert_true(outlier_should_skip(&guard, -INFINITY, 1, 5, 0));
        assert_true(outlier_should_skip(&guard, 3, NAN, 0, 5));
        assert_true(outlier_should_skip(&guard, 3, NAN, 5, 5));
        assert_true(isinf(guard_z(&guard.loss, NAN)));
        accept_steps(&guard, GUARD_WINDOW);
    }
    before = guard;
    outlier_record(&guard, NAN, INFINITY);
    assert_memory_equal(&guard, &before, sizeof guard);
}

static Guard load_guard(Run *run, const char *folder) {
    RunState got;
    load_checkpoint(run, folder, &got);
    return got.guard;
}

UNIT_TEST(checkpoints_save_the_window_of_losses_and_norms) {
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1);
    const char *folder = NULL;
    const Guard none = {{0, {0}}, {0, {0}}};
    for (int count = 0; count <= GUARD_WINDOW; count += 64) {
        run->config.skip_loss_z = 5;
        memset(&rs.guard, 0, sizeof rs.guard);
        for (int i = 0; i < count; i++) outlier_record(&rs.guard, 10.0 / (i + 3), 1 + i * 1e-7);
        folder = save(run, "guard", &rs);
        Guard got = load_guard(run, folder);
        assert_memory_equal(&got, &rs.guard, sizeof got);
    }
    // Without --skip-loss-z and --skip-grad-z, a run neither reads nor saves the window. With one of these flags, it
    // starts with an empty window if the checkpoint has none.
    run->config.skip_loss_z = 0;
    Guard got = load_guard(run, folder);
    assert_memory_equal(&got, &none, sizeof got);
    folder = save(run, "plain", &rs);
    run->config.skip_grad_z = 5;
    got = load_guard(run, folder);
    assert_memory_equal(&got, &none, sizeof got);
    run_close(run);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
