// Tests of log.jsonl and the event file during a run (coat/log/log.h, coat/log/appender.h): they come back where they
// are removed, replaced or cut off.
#include "dev/test/log_run.h"

#include "coat/log/appender.h"

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
    assert_int_equal(ftruncate(fd, strchr(expected, '\n') + 5 - expected), 0); // the run holds the rest
    close(fd);
    for (int i = 0; i < 3; i++) log_keep(log, config.out, NULL);
    log_close(log);
    snprintf(warning, sizeof warning,
             "warning: %s was replaced during the run; it is made again with all of its lines, and the other file kept "
             "as log-replaced-999.jsonl\n",
             path);
    assert_string_equal(captured(), warning);
    assert_string_equal(contents(name), "edited\n");
    assert_non_null(strstr(strchr(contents(path), '\n') + 1, "{\"step\":2,\"note\":\""));
}

// Cut off in place, by a redirection or an editor, before and after the next line: all lines come back. What somebody
// has put there in place of them is kept.
static void a_log_that_is_cut_off(void **state) {
    (void)state;
    char note[2 * TEST_PATH], other[TEST_PATH], command[3 * TEST_PATH];
    const char *const what[] = {": >", "echo mine >", "truncate -s 20"};
    for (int i = 0; i < 3; i++) {
        capture(STDERR_FILENO);
        Log *log = half_a_run();
        snprintf(command, sizeof command, "%s %s", what[i], path);
        assert_int_equal(system(command), 0);
        if (i == 1) log_step(log, 3, 1, 0.5, 0.25, 10.0, 3000, 1000, 0);
        for (int k = 0; k < 2; k++) log_keep(log, config.out, NULL);
        if (i == 1) {
            log_close(log);
            captured();
            snprintf(other, sizeof other, "%s/log-replaced-1.jsonl", config.out);
            assert_memory_equal(contents(other), "mine\n{\"step\":3,", 15);
            assert_non_null(strstr(contents(path), "{\"step\":1,"));
            assert_non_null(strstr(contents(path),
                                   "was replaced during the run; it is made again with all of its lines, "
                                   "and the other file kept as log-replaced-1.jsonl"));
            continue;
        }
        other_half(log);
        snprintf(note, sizeof note, "%s was cut off during the run; it is written again with all of its lines", path);
        snprintf(command, sizeof command, "warning: %s\n", note);
        assert_string_equal(captured(), command);
        assert_noted(path, note);
    }
}

// One that is too long to be held continues behind what is left.
static void what_is_not_held_is_lost(void **state) {
    (void)state;
    char text[2 * TEST_PATH], said[2 * TEST_PATH];
    Appender a;
    write_log("");
    appender_open(&a, open(path, O_RDWR | O_APPEND), path);
    a.end = '\n';
    a.most_held = 12;
    appender_add(&a, "first\n", 6);
    assert_true(appender_flush(&a));
    appender_add(&a, "second\n", 7); // too much by now
    assert_true(appender_flush(&a));
    assert_int_equal(appender_keep(&a, "log", ".jsonl", "lines", text, sizeof text), FILE_KEPT);
    assert_int_equal(truncate(path, 6), 0);
    assert_int_equal(appender_keep(&a, "log", ".jsonl", "lines", text, sizeof text), FILE_CHANGED);
    snprintf(said, sizeof said, "%s was cut off during the run; 7 of its 13 bytes are lost", path);
    assert_string_equal(text, said);
    appender_add(&a, "third\n", 6);
    assert_true(appender_flush(&a));
    assert_int_equal(appender_keep(&a, "log", ".jsonl", "lines", text, sizeof text), FILE_KEPT);
    assert_string_equal(contents(path), "first\nthird\n");
    assert_int_equal(unlink(path), 0); // and is copied from the file where that has lost its name
    assert_int_equal(appender_keep(&a, "log", ".jsonl", "lines", text, sizeof text), FILE_AGAIN);
    assert_string_equal(contents(path), "first\nthird\n");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ftruncate(a.fd, 8), 0); // inside a line, which goes with it
    assert_int_equal(appender_keep(&a, "log", ".jsonl", "lines", text, sizeof text), FILE_CHANGED);
    snprintf(said, sizeof said, "%s was removed during the run; it is made again with lines of 6 of its 12 bytes",
             path);
    assert_string_equal(text, said);
    assert_string_equal(contents(path), "first\n");
    appender_close(&a);
    appender_open(&a, open(path, O_RDWR | O_APPEND), path); // of a run that continues with it
    appender_add(&a, "second\n", 7);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(appender_keep(&a, "log", ".jsonl", "lines", text, sizeof text), FILE_AGAIN);
    assert_string_equal(contents(path), "first\nsecond\n");
    appender_close(&a);
}

// A fresh run does not write into the file of one that has lost its lock and still continues.
static void fresh_runs_share_no_file(void **state) {
    (void)state;
    write_log("");
    capture(STDERR_FILENO);
    Log *first = half_a_run();
    run(0, 1, 4, 0);
    other_half(first);
    captured();
    assert_string_equal(contents(path), expected);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(removed_events_come_back), TEST(removed_files_come_back),       TEST(a_replaced_log_is_kept),
        TEST(a_log_that_is_cut_off),    TEST(what_is_not_held_is_lost),      TEST(the_log_moves),
        TEST(no_folder_for_the_log),    TEST(what_cannot_be_mended_is_said), TEST(fresh_runs_share_no_file),
    };
    return cmocka_run_group_tests_name("log kept", tests, test_folder_make, test_folder_remove);
}
