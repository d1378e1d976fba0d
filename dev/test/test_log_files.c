// Tests of log.jsonl as a file (coat/log/log.h, coat/log/log_trim.h): what a resumed run keeps of it.
#include "dev/test/log_run.h"

#include "coat/log/log_trim.h"

static void resumed_run_continues(void **state) {
    (void)state;
    capture(STDOUT_FILENO);
    run(0, 1, 4, 0); // killed after step 4, with a checkpoint of step 2
    run(0, 3, 4, 0);
    captured();
    assert_string_equal(contents(path), expected);
    char temporary[640];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    assert_int_equal(access(temporary, F_OK), -1);
}

static void fresh_run_empties(void **state) {
    (void)state;
    for (int64_t first = 0; first <= 1; first++) {
        write_log("{\"step\":1,\"loss\":9}\n{\"step\":0,\"val_loss\":9}\n");
        capture(STDOUT_FILENO);
        run(0, first, 4, 0);
        captured();
        assert_string_equal(contents(path), expected);
    }
}

static void damaged_lines_are_dropped(void **state) {
    (void)state;
    write_log("{\"step\":1,\"loss\":3}\n"
              "\n"
              "{\"step\":\"2\",\"loss\":3}\n"
              "{\"loss\":3}\n"
              "[1]\n"
              "\xff\xfe\n"
              "{\"step\":2,\"loss\":2}\n"
              "{\"step\":7,\"loss\":2}\n"
              "{\"step\":2,\"val_loss\":2}\n"
              "{\"step\":2,\"val");
    capture(STDOUT_FILENO);
    log_close(log_open(&config, 0, 9, 3, 0, 1000, &err));
    captured();
    assert_string_equal(contents(path),
                        "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"val_loss\":2}\n");
    // A last line without its end is not whole, even where it parses.
    write_log("{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}");
    log_close(log_open(&config, 0, 9, 3, 0, 1000, &err));
    assert_string_equal(contents(path), "{\"step\":1,\"loss\":3}\n");
}

// A validation that the file has is not written twice; one that the end of the run before came across is missing.
static void validations_of_a_resumed_run(void **state) {
    (void)state;
    static const char with[] = "{\"step\":2,\"loss\":2}\n{\"step\":2,\"val_loss\":2}\n";
    for (int missing = 0; missing <= 1; missing++) {
        write_log(missing ? "{\"step\":2,\"loss\":2}\n{\"step\":3,\"val_loss\":9}\n" : with);
        capture(STDOUT_FILENO);
        Log *log = log_open(&config, 0, 9, 3, 0, 1000, &err);
        assert_int_equal(log_has_val(log, 2), !missing);
        assert_false(log_has_val(log, 3));
        log_val(log, 2, 2);
        assert_true(log_has_val(log, 2));
        log_close(log);
        assert_non_null(strstr(captured(), "val loss 2.000000"));
        assert_string_equal(contents(path), with);
    }
}

static void hellaswag_of_a_resumed_run(void **state) {
    (void)state;
    static const char with[] = "{\"step\":2,\"loss\":2}\n{\"step\":2,\"hellaswag\":0.25}\n";
    for (int missing = 0; missing <= 1; missing++) {
        write_log(missing ? "{\"step\":2,\"loss\":2}\n{\"step\":3,\"hellaswag\":0.5}\n" : with);
        capture(STDOUT_FILENO);
        Log *log = log_open(&config, 0, 9, 3, 0, 1000, &err);
        assert_int_equal(log_has_hellaswag(log, 2), !missing);
        assert_false(log_has_hellaswag(log, 3));
        log_hellaswag(log, 2, 1, 4);
        assert_true(log_has_hellaswag(log, 2));
        log_close(log);
        assert_non_null(strstr(captured(), "HellaSwag 25.00%"));
        assert_string_equal(contents(path), with);
    }
}

// Lines of an abandoned run are kept beside the log; those that a resumed run comes to again are not.
static void lines_of_the_run_before(void **state) {
    (void)state;
    static const char before[] = "{\"step\":1,\"loss\":3}\n",
                      after[] = "{\"step\":2,\"loss\":2}\n{\"step\":3,\"fp8\":{}}\n";
    static const struct {
        bool resume;
        int64_t resume_step, first_step;
        const char *kept; // where; NULL: nowhere
        const char *text; // what
    } cases[] = {
        {true, -1, 2, NULL, NULL},
        {true, 1, 2, "log-abandoned-00000001.jsonl", after},
        {true, 1, 2, "log-abandoned-00000001-2.jsonl", after}, // the first is still there
        {true, 3, 4, NULL, NULL},                              // nothing is dropped
        {true, -1, 1, "log-abandoned-00000000.jsonl", NULL},   // no checkpoint was there: all of them
        {false, -1, 1, NULL, NULL},
    };
    char whole[256], file[PATH_MAX_LENGTH + 64];
    snprintf(whole, sizeof whole, "%s%s", before, after);
    for (int i = 0; i < 6; i++) {
        char torn[300];
        snprintf(torn, sizeof torn, "%s{\"step\":4,\"lo", whole);
        write_log(torn);
        config.resume = cases[i].resume;
        config.resume_step = cases[i].resume_step;
        capture(STDERR_FILENO);
        assert_true(log_set_aside(&config, cases[i].first_step, false, &err));
        assert_string_equal(contents(path), torn); // the log itself is as it was
        log_close(log_open(&config, 0, 9, cases[i].first_step, 0, 1000, &err));
        const char *said = strstr(captured(), "are kept in ");
        assert_int_equal(said != NULL, cases[i].kept != NULL);
        if (said) assert_non_null(strstr(said, cases[i].kept));
        assert_string_equal(contents(path), cases[i].first_step <= 1 ? "" : cases[i].first_step == 4 ? whole : before);
        if (!cases[i].kept) continue;
        snprintf(file, sizeof file, "%s/%s", config.out, cases[i].kept);
        assert_string_equal(contents(file), cases[i].text ? cases[i].text : whole);
    }
    snprintf(file, sizeof file, "ls %s | grep -vc 'log.jsonl\\|tfevents' | grep -qx 3", config.out);
    assert_int_equal(system(file), 0);
}

// A checkpoint of another run has another loss than the log has for its step, or one that the log does not have.
static void checkpoints_of_other_runs(void **state) {
    (void)state;
    static const struct {
        const char *log;
        int64_t step;
        double loss;
        const char *text;
    } cases[] = {
        {"{\"step\":1,\"loss\":3.5,\"grad_norm\":1}\n{\"step\":2,\"loss\":0.123456789,\"lr\":1}\n", 2, 0.12345678912,
         ""},
        {"{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":0.123456789}\n", 2, 0.1234568,
         "has the loss 0.123456789 for step 2"},
        {"{\"step\":1,\"loss\":3.5}\n", 2, 3.5, "has no line of step 2"},
        {"{\"step\":1,\"loss\":null}\n", 1, NAN, ""},
        {"{\"step\":1,\"loss\":null}\n", 1, 3.5, "has the loss nan for step 1"},
        {"{\"step\":1,\"loss\":3.5}\n", 1, INFINITY, "has the loss 3.5 for step 1"},
        {"{\"step\":0,\"settings\":{\"lr\":1}}\n{\"step\":2,\"val_loss\":3.5}\n", 2, 3.5, ""}, // no step to compare
        {"", 2, 3.5, ""},
    };
    char text[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_log(cases[i].log);
        log_contradiction(path, cases[i].step, cases[i].loss, text, sizeof text);
        if (cases[i].text[0] ? !strstr(text, cases[i].text) : text[0]) fail_msg("case %zu: %s", i, text);
    }
    unlink(path);
    log_contradiction(path, 2, 3.5, text, sizeof text);
    assert_string_equal(text, "");
}

static void resume_without_a_log(void **state) {
    (void)state;
    capture(STDOUT_FILENO);
    run(0, 3, 4, 0);
    captured();
    assert_string_equal(contents(path), strstr(expected, "{\"step\":3"));
}

static void unwritable_folder_is_an_error(void **state) {
    (void)state;
    write_log("");
    config.out[0] = '\0';
    snprintf(config.out, sizeof config.out, "%s/below", path); // below a file
    assert_null(log_open(&config, 0, 4, 1, 0, 1000, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_non_null(strstr(err.text, "log.jsonl"));
    fresh_config(NULL);
}

static void full_disk_does_not_stop_the_run(void **state) {
    (void)state;
    write_log("");
    unlink(path);
    if (symlink("/dev/full", path) != 0) skip();
    capture(STDERR_FILENO);
    run(0, 1, 4, 0);
    const char *text = captured();
    const char *warning = strstr(text, "cannot be written");
    assert_non_null(warning);
    assert_null(strstr(warning + 1, "cannot be written")); // said once
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(resumed_run_continues),           TEST(fresh_run_empties),          TEST(damaged_lines_are_dropped),
        TEST(validations_of_a_resumed_run),    TEST(hellaswag_of_a_resumed_run), TEST(lines_of_the_run_before),
        TEST(checkpoints_of_other_runs),       TEST(resume_without_a_log),       TEST(unwritable_folder_is_an_error),
        TEST(full_disk_does_not_stop_the_run),
    };
    return cmocka_run_group_tests_name("log files", tests, test_folder_make, test_folder_remove);
}
