// Tests of the file log.jsonl (coat/log/log.h, coat/log/log_trim.h): the lines that a resumed run retains, and errors.
#include <signal.h>

#include "dev/test/log_run.h"

#include "coat/log/log_trim.h"

UNIT_TEST(resumed_run_appends_to_the_log) {
    run(STDOUT_FILENO, 0, 1, 0); // stands for a run that was killed after step 4 and has a checkpoint of step 2
    run(STDOUT_FILENO, 0, 3, 0);
    assert_string_equal(contents(path), expected);
}

UNIT_TEST(new_run_empties_the_log) {
    for (int64_t first = 0; first <= 1; first++) {
        write_log("{\"step\":1,\"loss\":9}\n{\"step\":0,\"val_loss\":9}\n");
        run(STDOUT_FILENO, 0, first, 0);
        assert_string_equal(contents(path), expected);
    }
}

// A resumed run truncates log.jsonl before the first line of a step that it repeats, and after the last valid line.
UNIT_TEST(a_resumed_run_truncates_the_log) {
    static const char head[] = "{\"step\":0,\"settings\":{}}\n{\"step\":1,\"loss\":3}\n";
    static const char *const tails[] = {
        "{\"step\":3,\"loss\":2}\n{\"step\":4,\"loss\":2}\n",     // later steps
        "{\"step\":7,\"loss\":2}\n{\"step\":2,\"val_loss\":2}\n", // out of order
        "{\"step\":2,\"loss\":2}",                                // valid JSON, but without a newline
        "{\"step\":2,\"val",
        "{\"step\":\"2\",\"loss\":3}\n\n[1]\n\xff\xfe\n{\"loss\":3}\n",
    };
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        for (int damaged = 0; damaged < 2; damaged++) { // A damaged line in front of valid lines is retained.
            const char *before = formatted("%s%s", damaged ? "{\"step\"\n" : "", head);
            write_log(formatted("%s%s", before, tails[i]));
            log_end(log_begin(STDOUT_FILENO, 3, 9));
            assert_string_equal(contents(path), before);
        }
    }
}

// If log.jsonl or its folder was removed, log_reopen() creates a new file. If log.jsonl was replaced (here by sed -i),
// log_reopen() appends to the new file. In both cases it writes a note, which only later lines follow.
UNIT_TEST(a_removed_log_is_created_again) {
    static const char *const commands[] = {"rm -r %s", "rm %s/log.jsonl", "cd %s && sed -i s/loss/lost/ log.jsonl"};
    for (int i = 0; i < 3; i++) {
        Log *log = log_begin(STDERR_FILENO, 1, 4);
        log_step(log, 1, 3, 0.5, 0.25, 10.0, 1000, 1000, 0, 0);
        log_reopen(log); // has no effect
        assert_int_equal(system(formatted(commands[i], config.out)), 0);
        if (i == 0) log_reopen(log); // log_reopen() prints a warning if the folder does not exist
        assert_true(folder_make(config.out, &err));
        for (int k = 0; k < 2; k++) log_reopen(log);
        log_step(log, 2, 3, 0.5, 0.25, 10.0, 2000, 1000, 0, 0);
        assert_int_equal(strncmp(log_end(log), "warning: ", 9) == 0, i == 0);
        const char *text = contents(path), *note = strstr(text, "{\"step\":1,\"note\":");
        assert_int_equal(strstr(text, "\"lost\":3") != NULL, i == 2);
        assert_true(note == (i < 2 ? text : strchr(text, '\n') + 1));
        assert_true(strncmp(strchr(note, '\n'), "\n{\"step\":2,\"loss\":3", 19) == 0);
        assert_int_equal(system(formatted("ls %s/events.* | wc -l | grep -qx 1", config.out)), 0);
        assert_true(folder_remove(config.out, &err));
    }
}

// A resumed run writes an evaluation at its checkpoint's step only if log.jsonl does not contain that evaluation.
UNIT_TEST(a_resumed_run_does_not_log_an_evaluation_twice) {
    static const char *const with[] = {"{\"step\":2,\"loss\":2}\n{\"step\":2,\"val_loss\":2}\n",
                                       "{\"step\":2,\"loss\":2}\n{\"step\":2,\"hellaswag\":0.25}\n"};
    for (int i = 0; i < 4; i++) {
        const bool missing = i % 2, val = i < 2;
        bool (*const has)(const Log *log, int64_t step) = val ? log_has_val : log_has_hellaswag;
        write_log(!missing ? with[!val]
                  : val    ? "{\"step\":2,\"loss\":2}\n{\"step\":3,\"val_loss\":9}\n"
                           : "{\"step\":2,\"loss\":2}\n{\"step\":3,\"hellaswag\":0.5}\n");
        Log *log = log_begin(STDOUT_FILENO, 3, 9);
        assert_int_equal(has(log, 2), !missing);
        assert_false(has(log, 3));
        if (val)
            log_val(log, 2, 2, NAN);
        else
            log_hellaswag(log, 2, 1, 4);
        assert_true(has(log, 2));
        assert_non_null(strstr(log_end(log), val ? "val loss 2.000000" : "HellaSwag 25.00%"));
        assert_string_equal(contents(path), with[!val]);
    }
}

// log_copy_abandoned() copies the lines of first_step and later steps to another file if this run abandons them: after
// --resume=STEP, or after --resume without a checkpoint.
UNIT_TEST(lines_after_an_abandoned_step_are_copied) {
    static const char before[] = "{\"step\":1,\"loss\":3}\n",
                      after[] = "{\"step\":2,\"loss\":2}\n{\"step\":3,\"fp8\":{}}\n";
    static const struct {
        bool resume;
        int64_t resume_step, first_step;
        const char *kept; // name of the copy; NULL: no copy is made
        const char *text; // expected contents of the copied file; NULL: the entire log
    } cases[] = {
        {true, -1, 2, NULL, NULL},
        {true, 1, 2, "log-abandoned-00000001.jsonl", after},
        {true, 1, 2, "log-abandoned-00000001-2.jsonl", after}, // the first copy still exists
        {true, 3, 4, NULL, NULL},                              // no line is dropped
        {true, -1, 1, "log-abandoned-00000000.jsonl", NULL},   // no checkpoint existed: all lines
        {false, -1, 1, NULL, NULL},
    };
    const char *whole = formatted("%s%s", before, after);
    for (int i = 0; i < 6; i++) {
        const char *torn = formatted("%s{\"step\":4,\"lo", whole);
        write_log(torn);
        config.resume = cases[i].resume;
        config.resume_step = cases[i].resume_step;
        capture(STDERR_FILENO);
        assert_true(log_copy_abandoned(&config, cases[i].first_step, false, &err));
        assert_string_equal(contents(path), torn); // the log itself does not change
        log_close(log_open(&config, 0, 9, cases[i].first_step, 0, &err));
        const char *said = strstr(captured(), "are copied to ");
        assert_int_equal(said != NULL, cases[i].kept != NULL);
        if (said) assert_non_null(strstr(said, cases[i].kept));
        assert_string_equal(contents(path), cases[i].first_step <= 1 ? "" : cases[i].first_step == 4 ? whole : before);
        if (!cases[i].kept) continue;
        assert_string_equal(contents(in(config.out, cases[i].kept)), cases[i].text ? cases[i].text : whole);
    }
    assert_int_equal(system(formatted("ls %s | grep -vc 'log.jsonl\\|tfevents' | grep -qx 3", config.out)), 0);
}

// log_contradiction() describes a contradiction if the checkpoint's loss differs from the log's loss at that step, or
// if the log has earlier steps but not that step. Otherwise it sets `text` to "".
UNIT_TEST(a_checkpoint_of_another_run_is_recognized_by_its_loss) {
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
        {"{\"step\":0,\"settings\":{\"lr\":1}}\n{\"step\":2,\"val_loss\":3.5}\n", 2, 3.5,
         ""}, // the log has no step to compare with
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

UNIT_TEST(a_run_without_a_log_can_be_resumed) {
    run(STDOUT_FILENO, 0, 3, 0);
    assert_string_equal(contents(path), strstr(expected, "{\"step\":3"));
}

UNIT_TEST(unwritable_folder_is_an_error) {
    write_log("");
    config.out[0] = '\0';
    snprintf(config.out, sizeof config.out, "%s/below", path); // below a file
    assert_null(log_open(&config, 0, 4, 1, 0, &err));
    assert_int_equal(err.code, EXIT_DATA);
    assert_non_null(strstr(err.text, "log.jsonl"));
}

UNIT_TEST(full_disk_does_not_stop_the_run) {
    write_log("");
    unlink(path);
    signal(SIGXFSZ, SIG_IGN);
    limit_files(300); // space for the first lines
    const char *text = run(STDERR_FILENO, 0, 1, 0);
    limit_files(RLIM_INFINITY);
    const char *warning = strstr(text, "log.jsonl: cannot be written");
    assert_non_null(warning);
    assert_null(strstr(warning + 1, "log.jsonl: cannot be written")); // printed once
}

// If log.jsonl is a link or hard link, a new run and a resumed run fail, and the target of the link does not change.
UNIT_TEST(a_log_that_is_a_link_is_refused) {
    static const char mine[] = "{\"step\":7,\"loss\":1}\nmine\n";
    const char *target = path_of("precious"), *outside = path_of("outside");
    write_text(target, mine);
    assert_true(folder_make(config.out, &err));
    for (int dangles = 0; dangles < 2; dangles++) {
        assert_int_equal(symlink(dangles ? outside : target, path), 0);
        for (int64_t first = 1; first <= 3; first += 2) {
            err.code = EXIT_DONE;
            assert_null(log_open(&config, 0, 4, first, 0, &err));
            assert_int_equal(err.code, EXIT_DATA);
            assert_non_null(strstr(err.text, "log.jsonl is a link"));
        }
        assert_true(path_is_link(path));
        assert_int_equal(unlink(path), 0);
    }
    assert_string_equal(contents(target), mine);
    assert_int_equal(access(outside, F_OK), -1);
    assert_int_equal(link(target, path), 0);
    assert_null(log_open(&config, 0, 4, 1, 0, &err));
    assert_string_equal(contents(target), mine);
}

RUN_TESTS(test_folder_make, test_folder_remove, fresh_config)
