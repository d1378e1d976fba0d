// Fixture for tests of the log: a small run that writes a log to the test's folder, and capture of the run's output.
#pragma once
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>

#include "coat/log/log.h"
#include "dev/test/test_folder.h"

static char path[PATH_MAX_LENGTH + 16]; // path of log.jsonl
static Config config;
static Error err;

// Empties the test's folder. Sets config to a small run whose output folder a/b does not exist yet.
static inline int fresh_config(void **state) {
    test_folder_empty(state);
    memset(&config, 0, sizeof config);
    snprintf(config.out, sizeof config.out, "%s/a/b", test_folder);
    snprintf(path, sizeof path, "%s/log.jsonl", config.out);
    return 0;
}

static inline void write_log(const char *text) {
    assert_true(folder_make(config.out, &err));
    write_text(path, text);
}

static int saved_stdout, saved_stderr;

// Redirects `stream` (STDOUT_FILENO or STDERR_FILENO) to a file and discards the other stream, until captured().
static inline void capture(int stream) {
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

// Ends capture(): restores both streams. Returns the captured text.
static inline const char *captured(void) {
    fflush(stdout);
    dup2(saved_stdout, STDOUT_FILENO);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stdout);
    close(saved_stderr);
    return contents(path_of("terminal"));
}

// Captures `stream` and opens the log of rank 0 of a run that takes the steps `first` to `steps`.
static inline Log *log_begin(int stream, int64_t first, int64_t steps) {
    capture(stream);
    Log *log = log_open(&config, 0, steps, first, 0, &err);
    if (!log) fail_msg("%s", err.text);
    return log;
}

// Closes the log. Returns the captured text.
static inline const char *log_end(Log *log) {
    log_close(log);
    return captured();
}

#define STEP_FLOPS 1e9 // FLOPs of each step that run() logs

// Logs the text "hello 5", the steps `first` to 4 of 4 (1000 tokens and 10 ms per step), and a validation after step 2.
// peak: the device's peak FLOP/s. Returns the text that the run prints on `stream`.
static inline const char *run(int stream, int rank, int64_t first, double peak) {
    capture(stream);
    Log *log = log_open(&config, rank, 4, first, peak, &err);
    assert_non_null(log);
    log_text(log, "hello %d", 5);
    for (int64_t s = first < 1 ? 1 : first; s <= 4; s++) {
        log_step(log, s, 3.0 / (double)s, 0.5, 0.25, 10.0, s * 1000, 1000, STEP_FLOPS, 0);
        if (s == 2) log_val(log, s, 1.75, NAN);
    }
    return log_end(log);
}

static const char expected[] =
    "{\"step\":1,\"loss\":3,\"grad_norm\":0.5,\"lr\":0.25,\"tokens\":1000,\"ms\":10.000,\"tokens_per_s\":100000.0}\n"
    "{\"step\":2,\"loss\":1.5,\"grad_norm\":0.5,\"lr\":0.25,\"tokens\":2000,\"ms\":10.000,\"tokens_per_s\":100000.0}\n"
    "{\"step\":2,\"val_loss\":1.75}\n"
    "{\"step\":3,\"loss\":1,\"grad_norm\":0.5,\"lr\":0.25,\"tokens\":3000,\"ms\":10.000,\"tokens_per_s\":100000.0}\n"
    "{\"step\":4,\"loss\":0.75,\"grad_norm\":0.5,\"lr\":0.25,\"tokens\":4000,\"ms\":10.000,\"tokens_per_s\":100000.0}"
    "\n";
