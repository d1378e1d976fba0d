// Tests of the log: its JSON lines, what a resumed run keeps of them, and what the terminal shows.
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>

#include "coat/log.h"
#include "test_folder.h"

static char path[PATH_MAX_LENGTH + 16]; // of the log
static Config config;
static Error err;

static int fresh_config(void **state) {
    (void)state;
    memset(&config, 0, sizeof config);
    snprintf(config.out, sizeof config.out, "%s/a/b", test_folder);
    snprintf(path, sizeof path, "%s/log.jsonl", config.out);
    config.seq_len = 128;
    config.shape.layers = 2;
    config.shape.heads = 2;
    config.shape.head_dim = 32;
    return 0;
}

// The next test finds no log.
static int remove_out(void **state) {
    (void)state;
    return folder_remove(config.out, &err) ? 0 : -1;
}

// The contents of a file, "" where there is none.
static const char *contents(const char *name) {
    static char text[1 << 16];
    FILE *f = fopen(name, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    return text;
}

static void write_log(const char *text) {
    assert_true(folder_make(config.out, &err));
    write_text(path, text);
}

// Between the two, what the process prints goes to the file `terminal`; the second gives it back.
static int saved_stdout, saved_stderr;
static void capture(int stream) {
    fflush(stdout);
    saved_stdout = dup(STDOUT_FILENO);
    saved_stderr = dup(STDERR_FILENO);
    int fd = open(path_of("terminal"), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600),
        none = open("/dev/null", O_WRONLY);
    dup2(stream == STDOUT_FILENO ? fd : none, STDOUT_FILENO);
    dup2(stream == STDERR_FILENO ? fd : none, STDERR_FILENO);
    close(fd);
    close(none);
}

static const char *captured(void) {
    fflush(stdout);
    dup2(saved_stdout, STDOUT_FILENO);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stdout);
    close(saved_stderr);
    return contents(path_of("terminal"));
}

// A small run: steps first .. last of 4, a validation after step 2, 1000 tokens and 10 ms per step.
static void run(int rank, int64_t first, int64_t last, double peak) {
    Log *log = log_open(&config, rank, 4, first, peak, 1000, &err);
    assert_non_null(log);
    log_text(log, "hello %d", 5);
    for (int64_t s = first < 1 ? 1 : first; s <= last; s++) {
        log_step(log, s, 3.0 / (double)s, 0.5, 0.25, 10.0, s * 1000, 1000, 0);
        if (s == 2) log_val(log, s, 1.75);
    }
    log_close(log);
}

static const char expected[] =
    "{\"step\":1,\"loss\":3,\"grad_norm\":0.5,\"lr\":0.25,\"tokens\":1000,\"ms\":10.000,\"tokens_per_s\":100000.0}\n"
    "{\"step\":2,\"loss\":1.5,\"grad_norm\":0.5,\"lr\":0.25,\"tokens\":2000,\"ms\":10.000,\"tokens_per_s\":100000.0}\n"
    "{\"step\":2,\"val_loss\":1.75}\n"
    "{\"step\":3,\"loss\":1,\"grad_norm\":0.5,\"lr\":0.25,\"tokens\":3000,\"ms\":10.000,\"tokens_per_s\":100000.0}\n"
    "{\"step\":4,\"loss\":0.75,\"grad_norm\":0.5,\"lr\":0.25,\"tokens\":4000,\"ms\":10.000,\"tokens_per_s\":100000.0}"
    "\n";

static void json_lines(void **state) {
    (void)state;
    capture(STDOUT_FILENO);
    run(0, 1, 4, 0);
    captured();
    assert_string_equal(contents(path), expected);
}

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

static const char *ends_of(const char *text, int *lines) {
    *lines = 0;
    for (const char *at = text; *at; at++) *lines += *at == '\n';
    return text;
}

// Another file that cannot be moved, and lines that somebody has cut off: what is said is true, and said once.
static void what_cannot_be_mended_is_said(void **state) {
    (void)state;
    char name[2 * TEST_PATH], warning[3 * TEST_PATH];
    int lines;
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
    assert_memory_equal(ends_of(captured(), &lines), warning, strlen(warning));
    assert_int_equal(lines, 1);
    capture(STDERR_FILENO);
    assert_int_equal(unlink(name), 0);
    int fd = log_descriptor(log);
    assert_int_equal(ftruncate(fd, strchr(expected, '\n') + 1 - expected), 0);
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

// Further figures are a line like any other: trimmed with their step, said by rank 0 alone, not shown to people.
static void objects(void **state) {
    (void)state;
    const char *const line = "{\"step\":2,\"fp8\":{\"h\":{\"amax\":[1,2]}}}\n";
    for (int rank = 0; rank < 2; rank++) {
        capture(STDOUT_FILENO);
        Log *log = log_open(&config, rank, 4, 1, 0, 1000, &err);
        log_step(log, 1, 3, 0.5, 0.25, 10, 1000, 1000, 0);
        log_object(log, 2, "fp8", "{\"h\":{\"amax\":[1,2]}}");
        log_close(log);
        assert_null(strstr(captured(), "amax"));
        if (rank == 0) assert_string_equal(strchr(contents(path), '\n') + 1, line);
    }
    for (int64_t first = 3; first >= 2; first--) {
        capture(STDOUT_FILENO);
        log_close(log_open(&config, 0, 4, first, 0, 1000, &err));
        captured();
        assert_true((strstr(contents(path), line) != NULL) == (first == 3));
    }
}

static void lines_are_there_at_once(void **state) {
    (void)state;
    capture(STDOUT_FILENO);
    Log *log = log_open(&config, 0, 4, 1, 0, 1000, &err);
    log_step(log, 1, 3, 0.5, 0.25, 10, 1000, 1000, 0);
    captured();
    assert_int_equal(strlen(contents(path)), strchr(expected, '\n') + 1 - expected);
    capture(STDOUT_FILENO);
    log_close(log);
    captured();
}

static void other_ranks_say_nothing(void **state) {
    (void)state;
    capture(STDOUT_FILENO);
    run(1, 1, 4, 0);
    assert_string_equal(captured(), "");
    assert_int_equal(access(path, F_OK), -1);
}

static void no_out_no_file(void **state) {
    (void)state;
    char out[sizeof config.out];
    memcpy(out, config.out, sizeof out);
    config.out[0] = '\0';
    capture(STDOUT_FILENO);
    run(0, 1, 4, 0);
    assert_non_null(strstr(captured(), "step 4/4"));
    memcpy(config.out, out, sizeof out);
    assert_int_equal(access(path, F_OK), -1);
}

// The numbers of the steps that are shown, and of validations in brackets.
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

// --log-every thins out the terminal: not the file, nor what else is said, nor the steps that this is about.
static void some_steps_are_shown(void **state) {
    (void)state;
    for (int json = 0; json < 2; json++) {
        int lines = 0;
        config.log_every = 10;
        config.json = json;
        capture(STDOUT_FILENO);
        Log *log = log_open(&config, 0, 40, 1, 0, 1000, &err);
        for (int64_t s = 1; s <= 34; s++) {
            log_step(log, s, s == 7 ? NAN : 2, 0.5, 0.25, 10, s * 1000, 1000, s >= 7);
            if (s == 12 || s == 20) log_val(log, s, 1.5);
            if (s == 25) log_show_step(log);
            if (s == 26) log_text(log, "saved");
        }
        log_close(log);
        const char *text = captured();
        if (!json) {
            assert_string_equal(shown(text), "1 7 10 12 (12) 20 (20) 25 30 34 ");
            assert_non_null(strstr(text, "saved\n"));
        }
        if (json) assert_string_equal(text, contents(path)); // all of it
        for (const char *at = contents(path); (at = strstr(at, "\"loss\"")); at++) lines++;
        assert_int_equal(lines, 34);
    }
    capture(STDOUT_FILENO);
    config.json = false;
    config.log_every = 1000;
    Log *log = log_open(&config, 0, 40, 38, 0, 1000, &err);
    for (int64_t s = 38; s <= 40; s++) log_step(log, s, 2, 0.5, 0.25, 10, s * 1000, 1000, 1);
    log_close(log);
    assert_string_equal(shown(captured()), "38 40 "); // a run's first and last, wherever it begins
}

static void not_finite_is_null(void **state) {
    (void)state;
    capture(STDOUT_FILENO);
    Log *log = log_open(&config, 0, 4, 1, 0, 1000, &err);
    log_step(log, 1, NAN, INFINITY, 0.25, 10, 1000, 1000, 1);
    log_val(log, 1, -INFINITY);
    log_step(log, 2, 2, 1, 0.25, 10, 2000, 1000, 1);
    log_close(log);
    const char *text = captured();
    assert_non_null(strstr(text, "update skipped (1 so far)"));
    assert_null(strstr(strstr(text, "step 2/4"), "update skipped ("));
    text = contents(path);
    assert_non_null(
        strstr(text, "{\"step\":1,\"loss\":null,\"grad_norm\":null,\"lr\":0.25,\"tokens\":1000,\"skipped\":1,"));
    assert_non_null(strstr(text, "{\"step\":1,\"val_loss\":null}\n"));
    assert_null(strstr(strstr(text, "\"step\":2"), "skipped"));
}

static void floats_survive(void **state) {
    (void)state;
    const float loss = 3.14159274f, lr = 6.0e-4f;
    capture(STDOUT_FILENO);
    Log *log = log_open(&config, 0, 4, 1, 0, 1000, &err);
    log_step(log, 1, loss, 1e-30f, lr, 10, 9007199254740993, 1000, 0);
    log_close(log);
    captured();
    float loss_read = 0, norm_read = 0, lr_read = 0;
    assert_int_equal(
        sscanf(contents(path), "{\"step\":1,\"loss\":%g,\"grad_norm\":%g,\"lr\":%g", &loss_read, &norm_read, &lr_read),
        3);
    assert_true(loss_read == loss && norm_read == 1e-30f && lr_read == lr);
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

// The first step of a resumed run shows whether it was skipped.
static void skips_of_a_resumed_run(void **state) {
    (void)state;
    for (int64_t skipped = 4; skipped <= 5; skipped++) {
        write_log("");
        capture(STDOUT_FILENO);
        Log *log = log_open(&config, 0, 9, 3, 0, 1000, &err);
        log_resume(log, 4);
        log_step(log, 3, 2, 1, 0.25, 10, 3000, 1000, skipped);
        log_close(log);
        captured();
        assert_int_equal(strstr(contents(path), "\"skipped\":5") != NULL, skipped == 5);
    }
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

static void terminal_line(void **state) {
    (void)state;
    capture(STDOUT_FILENO);
    run(0, 1, 4, 0);
    const char *text = captured();
    assert_non_null(strstr(text, "hello 5\n"));
    assert_non_null(strstr(text, "step 1/4 | loss 3.000000 | norm  0.5000 | lr 2.50e-01 | 10.0 ms | 100,000 tok/s | "
                                 "0:00:00 left\n"));
    assert_non_null(strstr(text, "val loss 1.750000 after 2 steps\n"));
    assert_non_null(strstr(text, "done: 4 of 4 steps, loss 0.750000, val loss 1.750000, 0:00:00 of training\n"));
    assert_null(strstr(text, "peak"));
    assert_null(strchr(text, '\033')); // no colours in a file
}

// The first loss is that of the run, not of the process that goes on with it; none is known where it was not finite.
static void the_first_loss_is_the_run_s(void **state) {
    (void)state;
    write_log("{\"step\":1,\"loss\":null}\n{\"step\":2,\"val_loss\":9}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,"
              "\"loss\":9}\n");
    for (int step = 3; step <= 4; step++) {
        capture(STDOUT_FILENO);
        Log *log = log_open(&config, 0, 4, step, 0, 1000, &err);
        for (int s = step; s <= 4; s++) log_step(log, s, step == 3 ? 0.5 : 0.75, 1, 1, 1, 1, 1, 0);
        log_close(log);
        assert_int_equal(
            strstr(captured(), "\nwarning: the loss is above 0.500000, that of step 2: try a smaller --lr\n") != NULL,
            step == 4);
    }
    capture(STDERR_FILENO);
    config.json = true;
    Log *log = log_open(&config, 0, 4, 4, 0, 1000, &err);
    log_step(log, 4, 0.25, 1, 1, 1, 1, 1, 0);
    log_nonfinite(log, "transformer.wte.weight");
    log_close(log);
    assert_string_equal(captured(), "warning: the weights are not finite (transformer.wte.weight): resume from an "
                                    "earlier checkpoint with a smaller --lr\n");
}

static void share_of_peak(void **state) {
    (void)state;
    double flops = log_flops_per_token(&config, 1000);
    assert_true(flops == 6.0 * 1000 + 6.0 * 2 * 64 * 128);
    capture(STDOUT_FILENO);
    run(0, 1, 4, flops * 100000 * 4); // 100000 tokens/s are a quarter of it
    assert_non_null(strstr(captured(), "| 25.0% of peak |"));
    const double unknown[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        capture(STDOUT_FILENO);
        run(0, 1, 4, unknown[i]);
        assert_null(strstr(captured(), "peak"));
    }
}

static void rate_and_time_left(void **state) {
    (void)state;
    capture(STDOUT_FILENO);
    Log *log = log_open(&config, 0, 10001, 1, 0, 1000, &err);
    log_step(log, 1, 1, 1, 1, 60000, 1000, 1000, 0); // warm-up: forgotten by the second step
    for (int64_t s = 2; s <= 5; s++) log_step(log, s, 1, 1, 1, 500, s * 1000, 1000, 0);
    log_close(log);
    const char *text = captured();
    assert_non_null(strstr(text, "step     5/10001 |"));
    assert_non_null(strstr(strstr(text, "    5/10001"), "| 2,000 tok/s | 1:23:18 left"));
    assert_non_null(strstr(text, "stopped: 5 of 10001 steps"));
    // once, by the second and third step
    const char *said = strstr(text, "expected    1:23:19 more, until 20");
    assert_non_null(said);
    assert_true(said > strstr(text, "    3/10001") && said < strstr(text, "    4/10001"));
    assert_null(strstr(said + 1, "expected"));
}

static void quiet_leaves_the_last_line(void **state) {
    (void)state;
    config.quiet = true;
    capture(STDOUT_FILENO);
    run(0, 1, 4, 0);
    const char *text = captured();
    assert_true(strncmp(text, "done: 4 of 4 steps", 18) == 0);
    assert_true(strchr(text, '\n')[1] == '\0');
    assert_string_equal(contents(path), expected);
}

static void json_mode(void **state) {
    (void)state;
    config.json = true;
    capture(STDOUT_FILENO);
    run(0, 1, 4, 0);
    assert_string_equal(captured(), expected);
    capture(STDERR_FILENO);
    run(0, 1, 4, 0);
    assert_string_equal(captured(), "hello 5\n");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh_config, remove_out)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(json_lines),
        TEST(removed_files_come_back),
        TEST(a_replaced_log_is_kept),
        TEST(the_log_moves),
        TEST(no_folder_for_the_log),
        TEST(what_cannot_be_mended_is_said),
        TEST(a_link_to_the_log),
        TEST(fresh_runs_share_no_file),
        TEST(objects),
        TEST(lines_are_there_at_once),
        TEST(other_ranks_say_nothing),
        TEST(no_out_no_file),
        TEST(some_steps_are_shown),
        TEST(not_finite_is_null),
        TEST(floats_survive),
        TEST(resumed_run_continues),
        TEST(fresh_run_empties),
        TEST(damaged_lines_are_dropped),
        TEST(validations_of_a_resumed_run),
        TEST(hellaswag_of_a_resumed_run),
        TEST(lines_of_the_course_before),
        TEST(skips_of_a_resumed_run),
        TEST(resume_without_a_log),
        TEST(unwritable_folder_is_an_error),
        TEST(full_disk_does_not_stop_the_run),
        TEST(terminal_line),
        TEST(the_first_loss_is_the_run_s),
        TEST(share_of_peak),
        TEST(rate_and_time_left),
        TEST(quiet_leaves_the_last_line),
        TEST(json_mode),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
