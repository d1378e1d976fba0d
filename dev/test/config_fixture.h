// Fixture for tests of the command line: parses command lines, and checks the errors of those that are refused.
#pragma once
#include "coat/flags/config_check.h"
#include "coat/flags/config_parse.h"
#include "coat/flags/flags.h"
#include "coat/run/checkpoint_settings.h"
#include "dev/test/unit.h"

static Config config;
static Error error;
static bool printed; // --help or --version was printed

// Parses arguments into `config`, using the settings of the checkpoint that they name. On failure, sets `error` and
// returns false.
static inline bool parse_words(int argc, char **argv) {
    static CommandLine words;
    static Config recorded;
    config_defaults(&config);
    if (!command_line_read(&words, argc, argv, &printed, &error)) return false;
    if (printed) return true;
    if (checkpoint_settings(&recorded, &words.flags, &error)) return config_parse(&config, &words, &recorded, &error);
    arguments_free(&words.args);
    return false;
}

// Splits a command line at spaces and parses the words into `config`. The word '' stands for an empty value.
static inline bool parse(const char *line) {
    char *argv[128];
    int argc = 0;
    argv[argc++] = (char *)"./train_gpt2_fp8";
    char *text = formatted("%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "''") ? word : word + 2;
    memset(&error, 0, sizeof error);
    return parse_words(argc, argv);
}

static inline void accept(const char *line) {
    if (!parse(line)) fail_msg("%s\n  refused: %s", line, error.text);
}

// Asserts that the command line is parsed and describes a valid run on `ranks` processes.
static inline void accept_run(const char *line, int ranks) {
    accept(line);
    if (!config_check(&config, ranks, &error)) fail_msg("%s\n  refused: %s", line, error.text);
}

// Asserts that the command line is accepted and gives flags the values in `values`, such as "steps 5, shuffle off".
static inline void sets(const char *line, const char *values) {
    char name[64], wanted[FLAG_TEXT_LENGTH], now[FLAG_TEXT_LENGTH];
    bool negated;
    accept_run(line, 1);
    char *copy = formatted("%s", values);
    for (char *pair = strtok(copy, ","); pair; pair = strtok(NULL, ",")) {
        assert_int_equal(sscanf(pair, " %63s %127s", name, wanted), 2);
        flag_value(flag_find(name, strlen(name), &negated), &config, now);
        if (strcmp(now, wanted) != 0) fail_msg("%s\n  sets --%s to %s, not %s", line, name, now, wanted);
    }
}

// Asserts that `error` has this exit code, is one line, and contains all of `parts`, which are separated by '&'.
static inline void assert_message(const char *line, ExitCode code, const char *parts) {
    const char *missing = missing_part(error.text, parts);
    if (missing) fail_msg("%s\n  says: %s\n  lacks: %s", line, error.text, missing);
    assert_null(strchr(error.text, '\n'));
    assert_int_equal(error.code, code);
}

// Asserts that parsing the command line fails with this exit code and all of `parts` in the error.
static inline void refuse(const char *line, ExitCode code, const char *parts) {
    if (parse(line)) fail_msg("%s\n  was accepted", line);
    assert_message(line, code, parts);
}

// Asserts that each command line "BEFORE FLAGS" is refused with EXIT_USER. Each entry of `lines` is "FLAGS" or
// "FLAGS&PART&PART". The error must contain FLAGS and every PART.
static inline void refuse_each(const char *before, const char *const *lines, size_t count) {
    for (size_t i = 0; i < count; i++)
        refuse(formatted("%s %.*s", before, (int)strcspn(lines[i], "&"), lines[i]), EXIT_USER, lines[i]);
}
#define REFUSE_EACH(before, lines) refuse_each(before, lines, sizeof(lines) / sizeof *(lines))

// Asserts that the command line is parsed, but is not valid for a run on `ranks` processes.
static inline void refuse_run(const char *line, int ranks, const char *parts) {
    accept(line);
    if (config_check(&config, ranks, &error)) fail_msg("%s\n  was accepted", line);
    assert_message(line, EXIT_USER, parts);
}
