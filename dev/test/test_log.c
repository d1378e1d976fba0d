// Tests of a run's log (coat/log/log.h): the lines in log.jsonl and on the terminal.
#include "dev/test/log_run.h"

UNIT_TEST(log_jsonl_has_a_line_per_step_and_validation) {
    run(STDOUT_FILENO, 0, 1, 0);
    assert_string_equal(contents(path), expected);
}

// log_object() writes a line to log.jsonl on rank 0 only. A run resumed from an earlier step removes that line.
UNIT_TEST(objects_are_logged_by_rank_0_only) {
    const char *const line = "{\"step\":2,\"fp8\":{\"h\":{\"amax\":[1,2]}}}\n";
    for (int rank = 0; rank < 2; rank++) {
        capture(STDOUT_FILENO);
        Log *log = log_open(&config, rank, 4, 1, 0, &err);
        log_step(log, 1, 3, 0.5, 0.25, 10, 1000, 1000, 0, 0);
        log_object(log, 2, "fp8", "{\"h\":{\"amax\":[1,2]}}");
        assert_null(strstr(log_end(log), "amax"));
        if (rank == 0) assert_string_equal(strchr(contents(path), '\n') + 1, line);
    }
    for (int64_t first = 3; first >= 2; first--) {
        log_end(log_begin(STDOUT_FILENO, first, 4));
        assert_true((strstr(contents(path), line) != NULL) == (first == 3));
    }
}

// When log_step() returns, its line is in the file log.jsonl.
UNIT_TEST(lines_are_written_at_once) {
    Log *log = log_begin(STDOUT_FILENO, 1, 4);
    log_step(log, 1, 3, 0.5, 0.25, 10, 1000, 1000, 0, 0);
    captured();
    assert_int_equal(strlen(contents(path)), strchr(expected, '\n') + 1 - expected);
    capture(STDOUT_FILENO);
    log_end(log);
}

UNIT_TEST(other_ranks_print_and_write_nothing) {
    assert_string_equal(run(STDOUT_FILENO, 1, 1, 0), "");
    assert_int_equal(access(path, F_OK), -1);
}

UNIT_TEST(without_out_no_file_is_written) {
    char out[sizeof config.out];
    memcpy(out, config.out, sizeof out);
    config.out[0] = '\0';
    assert_non_null(strstr(run(STDOUT_FILENO, 0, 1, 0), "step 4/4"));
    memcpy(config.out, out, sizeof out);
    assert_int_equal(access(path, F_OK), -1);
}

// Returns the step numbers in the terminal's output, separated by spaces. Steps of validations are in brackets.
static const char *shown(const char *text) {
    static char numbers[256];
    numbers[0] = '\0';
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        int64_t step;
        size_t used = strlen(numbers);
        if (sscanf(line, "step %" SCNd64 "/", &step) == 1)
            snprintf(numbers + used, sizeof numbers - used, "%" PRId64 " ", step);
        else if (sscanf(line, "val loss %*f after %" SCNd64 " steps", &step) == 1)
            snprintf(numbers + used, sizeof numbers - used, "(%" PRId64 ") ", step);
    }
    return numbers;
}

// With --log-every 10, the terminal shows the first, the last, every tenth and each skipped step, and each step before
// a validation or a call of log_show_step(). log.jsonl contains all steps.
UNIT_TEST(log_every_selects_the_printed_steps) {
    for (int json = 0; json < 2; json++) {
        config.log_every = 10;
        config.json = json;
        Log *log = log_begin(STDOUT_FILENO, 1, 40);
        for (int64_t s = 1; s <= 34; s++) {
            log_step(log, s, s == 7 ? NAN : 2, 0.5, 0.25, 10, s * 1000, 1000, 0, s >= 7);
            if (s == 12 || s == 20) log_val(log, s, 1.5, NAN);
            if (s == 25) log_show_step(log);
            if (s == 26) log_text(log, "saved");
        }
        const char *text = log_end(log);
        if (!json) {
            assert_string_equal(shown(text), "1 7 10 12 (12) 20 (20) 25 30 34 ");
            assert_non_null(strstr(text, "saved\n"));
        }
        if (json) assert_string_equal(text, contents(path)); // --json prints every line of log.jsonl
        assert_int_equal(occurrences(contents(path), "\"loss\""), 34);
    }
    capture(STDOUT_FILENO);
    config.json = false;
    config.log_every = 1000;
    Log *log = log_open(&config, 0, 40, 38, 0, &err);
    for (int64_t s = 38; s <= 40; s++) log_step(log, s, 2, 0.5, 0.25, 10, s * 1000, 1000, 0, 1);
    assert_string_equal(shown(log_end(log)), "38 40 "); // A resumed run prints its first and last step.
}

// NaN and inf become null in log.jsonl. The line of a skipped update is printed and has the key "skipped".
UNIT_TEST(nan_and_inf_are_logged_as_null) {
    Log *log = log_begin(STDOUT_FILENO, 1, 4);
    log_step(log, 1, NAN, INFINITY, 0.25, 10, 1000, 1000, 0, 1);
    log_val(log, 1, -INFINITY, NAN);
    log_step(log, 2, 2, 1, 0.25, 10, 2000, 1000, 0, 1);
    const char *text = log_end(log);
    assert_non_null(strstr(text, "update skipped (1 so far)"));
    assert_null(strstr(strstr(text, "step 2/4"), "update skipped ("));
    text = contents(path);
    assert_non_null(
        strstr(text, "{\"step\":1,\"loss\":null,\"grad_norm\":null,\"lr\":0.25,\"tokens\":1000,\"skipped\":1,"));
    assert_non_null(strstr(text, "{\"step\":1,\"val_loss\":null}\n"));
    assert_null(strstr(strstr(text, "\"step\":2"), "skipped"));
}

// If a validation has an accuracy, its line has the key "val_accuracy", and the terminal shows it.
UNIT_TEST(validation_accuracy_is_logged) {
    Log *log = log_begin(STDOUT_FILENO, 1, 4);
    log_val(log, 1, 0.25, 0.96875);
    log_val(log, 2, 0.25, NAN);
    assert_non_null(strstr(log_end(log), "val loss 0.250000, 96.9 % of answers right after 1 step\n"));
    assert_non_null(strstr(contents(path), "{\"step\":1,\"val_loss\":0.25,\"val_accuracy\":0.96875}\n"));
    assert_non_null(strstr(contents(path), "{\"step\":2,\"val_loss\":0.25}\n"));
}

// log_counted() adds the key "counted", the fraction of unmasked targets, to the line of the next step.
UNIT_TEST(the_fraction_of_unmasked_targets_is_logged) {
    Log *log = log_begin(STDOUT_FILENO, 1, 4);
    log_step(log, 1, 3, 0.5, 0.25, 10, 1000, 1000, 0, 0);
    log_counted(log, 0.375);
    log_step(log, 2, 3, 0.5, 0.25, 10, 2000, 1000, 0, 0);
    log_end(log);
    const char *text = contents(path), *second = strchr(text, '\n');
    assert_non_null(strstr(second, "\"tokens\":2000,\"counted\":0.375,\"ms\":10"));
    assert_true(strstr(text, "counted") > second);
}

UNIT_TEST(logged_floats_keep_their_bits) {
    const float loss = 3.14159274f, lr = 6.0e-4f;
    Log *log = log_begin(STDOUT_FILENO, 1, 4);
    log_step(log, 1, loss, 1e-30f, lr, 10, 9007199254740993, 1000, 0, 0);
    log_end(log);
    float loss_read = 0, norm_read = 0, lr_read = 0;
    assert_int_equal(
        sscanf(contents(path), "{\"step\":1,\"loss\":%g,\"grad_norm\":%g,\"lr\":%g", &loss_read, &norm_read, &lr_read),
        3);
    assert_true(loss_read == loss && norm_read == 1e-30f && lr_read == lr);
}

// The first line of a resumed run has the key "skipped" only if the update of that step was skipped.
UNIT_TEST(a_resumed_run_marks_only_skipped_updates) {
    for (int64_t skipped = 4; skipped <= 5; skipped++) {
        write_log("");
        Log *log = log_begin(STDOUT_FILENO, 3, 9);
        log_resume(log, 4);
        log_step(log, 3, 2, 1, 0.25, 10, 3000, 1000, 0, skipped);
        log_end(log);
        assert_int_equal(strstr(contents(path), "\"skipped\":5") != NULL, skipped == 5);
    }
}

UNIT_TEST(the_terminal_shows_steps_and_validations) {
    const char *text = run(STDOUT_FILENO, 0, 1, 0);
    assert_non_null(strstr(text, "hello 5\n"));
    assert_non_null(strstr(text, "step 1/4 | loss 3.000000 | norm  0.5000 | lr 2.50e-01 | 10.0 ms | 100,000 tok/s | "
                                 "0:00:00 left\n"));
    assert_non_null(strstr(text, "val loss 1.750000 after 2 steps\n"));
    assert_non_null(
        strstr(text, "done: 4 of 4 steps, loss 0.750000, val loss 1.750000 of step 2, 0:00:00 of training\n"));
    assert_null(strstr(text, "peak"));
    assert_null(strchr(text, '\033')); // no colors, because the output is a file
}

// At the end, a warning is printed if the loss is higher than the first finite loss in the log, which may be of an
// earlier run. Another warning is printed if weights are NaN or inf.
UNIT_TEST(a_risen_loss_or_nonfinite_weights_cause_a_final_warning) {
    write_log("{\"step\":1,\"loss\":null}\n{\"step\":2,\"val_loss\":9}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,"
              "\"loss\":0.5}\n{\"step\":4,\"loss\":0.5}\n{\"step\":5,\"loss\":9}\n");
    Log *level = log_begin(STDOUT_FILENO, 5, 7);
    for (int s = 5; s <= 7; s++) log_step(level, s, 0.5, 1, 1, 1, 1, 1, 0, 0);
    assert_null(strstr(log_end(level), "\nwarning: "));
    write_log("{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,\"loss\":0.5}\n");
    Log *risen = log_begin(STDOUT_FILENO, 4, 6);
    for (int s = 4; s <= 6; s++) log_step(risen, s, 2.0, 1, 1, 1, 1, 1, 0, 0);
    assert_non_null(strstr(log_end(risen), "\nwarning: the loss has risen, from 0.5000 in the first step to 2.0000 "));
    capture(STDERR_FILENO);
    config.json = true;
    Log *log = log_open(&config, 0, 4, 4, 0, &err);
    log_step(log, 4, 0.25, 1, 1, 1, 1, 1, 0, 0);
    const char name[] = "vision_tower.vision_model.encoder.layers.23.self_attn.q_proj.weight";
    log_saved(log, 1, name);
    const char *warning = log_end(log);
    assert_true(strncmp(warning, "warning: ", 9) == 0 && strstr(warning, name));
    assert_true(strchr(warning, '\n')[1] == '\0'); // one line
}

UNIT_TEST(the_percentage_of_the_peak_rate_is_shown) {
    // each step takes 10 ms
    assert_non_null(strstr(run(STDOUT_FILENO, 0, 1, 4 * STEP_FLOPS / 10e-3), "| 25.0% of peak |"));
    const double unknown[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) { assert_null(strstr(run(STDOUT_FILENO, 0, 1, unknown[i]), "peak")); }
}

UNIT_TEST(speed_and_time_left_are_shown) {
    Log *log = log_begin(STDOUT_FILENO, 1, 10001);
    log_step(log, 1, 1, 1, 1, 60000, 1000, 1000, 0, 0); // The estimate of the time left ignores this warm-up step.
    for (int64_t s = 2; s <= 5; s++) log_step(log, s, 1, 1, 1, 500, s * 1000, 1000, 0, 0);
    const char *text = log_end(log);
    assert_non_null(strstr(text, "step     5/10001 |"));
    assert_non_null(strstr(strstr(text, "    5/10001"), "| 2,000 tok/s | 1:23:18 left"));
    assert_non_null(strstr(text, "stopped: 5 of 10001 steps"));
    // The expected time is printed once, after step 3, and follows from steps 2 and 3.
    const char *said = strstr(text, "expected    1:23:19 more, until 20");
    assert_non_null(said);
    assert_true(said > strstr(text, "    3/10001") && said < strstr(text, "    4/10001"));
    assert_null(strstr(said + 1, "expected"));
}

UNIT_TEST(quiet_prints_only_the_last_line) {
    config.quiet = true;
    const char *text = run(STDOUT_FILENO, 0, 1, 0);
    assert_true(strncmp(text, "done: 4 of 4 steps", 18) == 0);
    assert_true(strchr(text, '\n')[1] == '\0');
    assert_string_equal(contents(path), expected);
}

UNIT_TEST(json_mode_prints_the_lines_of_log_jsonl) {
    config.json = true;
    assert_string_equal(run(STDOUT_FILENO, 0, 1, 0), expected);
    assert_string_equal(run(STDERR_FILENO, 0, 1, 0), "hello 5\n"); // text goes to stderr
}

RUN_TESTS(test_folder_make, test_folder_remove, fresh_config)
