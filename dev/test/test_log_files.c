// Tests of log.jsonl as a file (coat/log/log.h, coat/log/log_trim.h): what a resumed run keeps of it, and that it comes back where
// it is removed or replaced during the run.
#include "dev/test/log_run.h"

#include "coat/log/log_trim.h"

// step 2 of 4 is done, and its validation, when the files are touched and looked after
static Log *half_a_run(void) {
    Log *log = log_open(&config, 0, 4, 1, 0, 1000, &err);
    assert_non_null(log);
    for (int64_t s = 1; s <= 2; s++) log_step(log, s, 3.0 / (double)s, 0.5, 0.25, 10.0, s * 1000, 1000, 0);
    log_val(log, 2, 1.75);
    return log;
}

static void other_half(Log *log) {
    for (int64_t s = 3; s <= 4; s++) log_step(log, s, 3.0 / (double)s, 0.5, 0.25, 10.0, s * 1000, 1000, 0);
    log_close(log);
}

// The log has all lines, and after those of step 2 one with this note.
static void assert_noted(const char *name, const char *said) {
    char line[4 * TEST_PATH], all[8 * TEST_PATH];
    const char *third = strstr(expected, "{\"step\":3");
    snprintf(line, sizeof line, "{\"step\":2,\"note\":\"%s\"}\n", said);
    snprintf(all, sizeof all, "%.*s%s%s", (int)(third - expected), expected, line, third);
    assert_string_equal(contents(name), all);
}

static void removed_files_come_back(void **state) {
    (void)state;
    char note[2 * TEST_PATH], events[TEST_PATH];
    capture(STDERR_FILENO);
    Log *log = half_a_run();
    log_keep(log, config.out, NULL); // nothing has happened, and nothing is said
    int before = log_descriptor(log);
    snprintf(note, sizeof note, "rm %s/events.*; ls %s >%s", config.out, config.out, path_of("left"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(system(note), 0);
    assert_string_equal(contents(path_of("left")), "");
    log_keep(log, config.out, NULL);
    int after = log_descriptor(log);
    struct stat old, new;
    assert_true(fstat(before, &old) == 0 && fstat(after, &new) == 0 && old.st_ino != new.st_ino);
    close(before);
    close(after);
    log_keep(log, config.out, NULL);
    other_half(log);
    snprintf(note, sizeof note, "%s was removed during the run; it is made again with all of its lines", path);
    snprintf(events, sizeof events, "warning: %s\n", note);
    assert_string_equal(captured(), events);
    assert_noted(path, note);
    snprintf(note, sizeof note, "ls %s | grep -c '^events.out.tfevents.' >%s", config.out, path_of("left"));
    assert_int_equal(system(note), 0);
    assert_string_equal(contents(path_of("left")), "1\n");
}

// Its loss alone is said as that of the log is.
static void removed_events_come_back(void **state) {
    (void)state;
    char note[3 * TEST_PATH], warning[4 * TEST_PATH];
    capture(STDERR_FILENO);
    Log *log = half_a_run();
    snprintf(note, sizeof note, "rm %s/events.*", config.out);
    assert_int_equal(system(note), 0);
    for (int i = 0; i < 2; i++) log_keep(log, config.out, NULL);
    other_half(log);
    const char *said = captured();
    assert_int_equal(sscanf(said, "warning: %3000[^\n]", note), 1);
    snprintf(warning, sizeof warning, "warning: %s\n", note);
    assert_string_equal(said, warning);
    assert_non_null(strstr(note, "/events.out.tfevents."));
    assert_non_null(strstr(note, " was removed during the run; it is made again with all of its events"));
    assert_noted(path, note);
}

static void a_replaced_log_is_kept(void **state) {
    (void)state;
    char note[2 * TEST_PATH], other[TEST_PATH];
    capture(STDERR_FILENO);
    Log *log = half_a_run();
    snprintf(other, sizeof other, "%s/log-replaced-1.jsonl", config.out);
    write_text(other, "of another time\n");
    other[strlen(other) - 7] = '2';
    assert_int_equal(unlink(path), 0);
    write_text(path, "edited\n");
    log_keep(log, config.out, NULL);
    other_half(log);
    captured();
    assert_string_equal(contents(other), "edited\n");
    snprintf(note, sizeof note,
             "%s was replaced during the run; it is made again with all of its lines, and the other file kept as "
             "log-replaced-2.jsonl",
             path);
    assert_noted(path, note);
}

static int lines_of(const char *text) {
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

// Another file that cannot be moved, and lines that somebody has cut off: what is said is true, and said once.
static void what_cannot_be_mended_is_said(void **state) {
    (void)state;
    char name[2 * TEST_PATH], warning[3 * TEST_PATH];
    capture(STDERR_FILENO);
    Log *log = half_a_run();
    assert_int_equal(unlink(path), 0);
    write_text(path, "edited\n");
    for (int i = 1; i < 1000; i++) { // no name is free
        snprintf(name, sizeof name, "%s/log-replaced-%d.jsonl", config.out, i);
        write_text(name, "");
    }
    for (int i = 0; i < 3; i++) log_keep(log, config.out, NULL);
    assert_string_equal(contents(path), "edited\n");
    snprintf(warning, sizeof warning, "warning: %s was replaced during the run and cannot be made again: ", path);
    const char *said = captured();
    assert_memory_equal(said, warning, strlen(warning));
    assert_int_equal(lines_of(said), 1);
    capture(STDERR_FILENO);
    assert_int_equal(unlink(name), 0);
    int fd = log_descriptor(log);
    assert_int_equal(ftruncate(fd, strchr(expected, '\n') + 5 - expected), 0); // inside a line, which goes with it
    close(fd);
    for (int i = 0; i < 3; i++) log_keep(log, config.out, NULL);
    log_close(log);
    snprintf(
        warning, sizeof warning,
        "warning: %s was replaced during the run; it is made again with lines of %d of its %d bytes, and the other "
        "file kept as log-replaced-999.jsonl\n",
        path, (int)(strchr(expected, '\n') + 1 - expected), (int)(strstr(expected, "{\"step\":3") - expected));
    assert_string_equal(captured(), warning);
    assert_string_equal(contents(name), "edited\n");
    assert_non_null(strstr(strchr(contents(path), '\n') + 1, "{\"step\":2,\"note\":\""));
}

// A link to a log elsewhere stays one.
static void a_link_to_the_log(void **state) {
    (void)state;
    char elsewhere[TEST_PATH];
    snprintf(elsewhere, sizeof elsewhere, "%s", path_of("elsewhere.jsonl"));
    write_log("");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    capture(STDERR_FILENO);
    for (int there = 0; there < 2; there++) { // it leads nowhere at first
        Log *log = half_a_run();
        assert_int_equal(unlink(elsewhere), 0);
        log_keep(log, config.out, NULL);
        other_half(log);
        char note[2 * TEST_PATH];
        snprintf(note, sizeof note, "%s was removed during the run; it is made again with all of its lines", path);
        assert_noted(elsewhere, note);
        assert_true(path_is_link(path));
    }
    captured();
    assert_int_equal(unlink(elsewhere), 0);
}

// A fresh run does not write into the file of one that has lost its lock and still goes on.
static void fresh_runs_share_no_file(void **state) {
    (void)state;
    char elsewhere[TEST_PATH];
    snprintf(elsewhere, sizeof elsewhere, "%s", path_of("elsewhere.jsonl"));
    for (int link = 0; link < 2; link++) {
        write_log("");
        if (link) assert_true(unlink(path) == 0 && symlink(elsewhere, path) == 0);
        capture(STDERR_FILENO);
        Log *first = half_a_run();
        run(0, 1, 4, 0);
        other_half(first);
        captured();
        assert_string_equal(contents(path), expected);
        assert_int_equal(path_is_link(path), link);
    }
    assert_int_equal(unlink(elsewhere), 0);
}

// To a folder beside the one that another run has by now, whose log is left alone.
static void the_log_moves(void **state) {
    (void)state;
    char there[TEST_PATH];
    capture(STDERR_FILENO);
    Log *log = half_a_run();
    assert_int_equal(unlink(path), 0);
    write_text(path, "theirs\n");
    snprintf(there, sizeof there, "%s", path_of("moved"));
    assert_int_equal(mkdir(there, 0777), 0);
    log_keep(log, there, "it was \"taken\"");
    other_half(log);
    assert_string_equal(captured(), ""); // the caller has said it
    assert_string_equal(contents(path), "theirs\n");
    assert_noted(path_of("moved/log.jsonl"), "it was \\\"taken\\\"");
    assert_true(folder_remove(there, &err));
}

// One that cannot come back is said once, and comes back when it can.
static void no_folder_for_the_log(void **state) {
    (void)state;
    capture(STDERR_FILENO);
    Log *log = half_a_run();
    assert_true(folder_remove(config.out, &err));
    log_keep(log, config.out, NULL);
    log_keep(log, config.out, NULL);
    assert_true(folder_make(config.out, &err));
    log_keep(log, config.out, NULL);
    other_half(log);
    const char *said = captured(), *first = strstr(said, "cannot be made again: No such file");
    assert_non_null(first);
    assert_null(strstr(first + 1, "cannot be made again"));
    char note[2 * TEST_PATH];
    snprintf(note, sizeof note, "%s was removed during the run; it is made again with all of its lines", path);
    assert_noted(path, note);
}

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

// Lines of a course that is left are kept beside the log; those that a resumed run comes to again are not.
static void lines_of_the_course_before(void **state) {
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
        assert_true(log_set_aside(&config, cases[i].first_step, &err));
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
        TEST(removed_events_come_back),
        TEST(removed_files_come_back),
        TEST(a_replaced_log_is_kept),
        TEST(the_log_moves),
        TEST(no_folder_for_the_log),
        TEST(what_cannot_be_mended_is_said),
        TEST(a_link_to_the_log),
        TEST(fresh_runs_share_no_file),
        TEST(resumed_run_continues),
        TEST(fresh_run_empties),
        TEST(damaged_lines_are_dropped),
        TEST(validations_of_a_resumed_run),
        TEST(hellaswag_of_a_resumed_run),
        TEST(lines_of_the_course_before),
        TEST(resume_without_a_log),
        TEST(unwritable_folder_is_an_error),
        TEST(full_disk_does_not_stop_the_run),
    };
    return cmocka_run_group_tests_name("log files", tests, test_folder_make, test_folder_remove);
}
