// Fuzz target for functions that read log.jsonl. log_open() truncates the file after the step that a run resumes from
// (coat/log/log.c). log_contradiction() compares the file with a checkpoint, and log_last_settings() reads the run's
// settings (coat/log/log_trim.c). plot_loss_svg() plots the file (dev/tools/loss_svg.h). Input: one byte, which is the
// first step that will be logged minus 2, then the file.
#include "dev/fuzz/fuzz.h"

#include "coat/flags/settings.h"
#include "coat/io/files.h"
#include "coat/log/log.h"
#include "coat/log/log_trim.h"
#include "dev/tools/loss_svg.h"

// Returns the text of log.jsonl after log_open() has truncated it; NULL if the file is a Git LFS pointer.
static char *trimmed(const Config *config, int64_t first_step, size_t *size) {
    Error err;
    char *text;
    Log *log = log_open(config, 0, 100, first_step, 0, &err);
    if (!log) {
        fuzz_refused(&err, "log.jsonl");
        fuzz_check(strstr(err.text, "LFS") != NULL);
        return NULL;
    }
    log_close(log);
    fuzz_check(file_read_all(fuzz_path("log.jsonl"), (size_t)1 << 30, &text, size, &err));
    return text;
}

// Compares log.jsonl with a checkpoint of `step`, then applies the settings recorded in it.
static void compare_log(const Config *config, int64_t step) {
    Error err;
    char text[2 * PATH_MAX_LENGTH];
    log_contradiction(fuzz_path("log.jsonl"), step, 1.5, text, sizeof text);
    fuzz_check(text[0] == '\0' || strstr(text, "log.jsonl has "));
    json_t *settings = log_last_settings(fuzz_path("log.jsonl"));
    if (!settings) return;
    static Config recorded;
    recorded = *config;
    recorded.settings_logged = true;
    if (!settings_apply(&recorded, settings, true, config, "log.jsonl", &err)) fuzz_refused(&err, "log.jsonl");
    json_decref(settings);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    static Config config;
    Error err;
    // Discards standard output from the first input on.
    if (!config.quiet) fuzz_check(freopen("/dev/null", "w", stdout) != NULL);
    config_defaults(&config);
    config.quiet = true;
    snprintf(config.out, sizeof config.out, "%s", fuzz_folder());
    fuzz_file("log.jsonl", data + 1, size - 1);
    PlotReference reference = {"reference", 1.5};
    if (!plot_loss_svg(fuzz_path("log.jsonl"), fuzz_path("loss.svg"), "title", &reference, data[0] & 1, &err))
        fuzz_refused(&err, "log.jsonl");

    int64_t first_step = 2 + data[0];
    compare_log(&config, first_step - 1);
    size_t once_bytes, twice_bytes;
    char *once = trimmed(&config, first_step, &once_bytes);
    if (!once) return 0;
    fuzz_check(once_bytes <= size - 1);
    fuzz_check(once_bytes == 0 || once[once_bytes - 1] == '\n');
    char *twice = trimmed(&config, first_step, &twice_bytes); // Truncating the log a second time must remove nothing.
    fuzz_check(once_bytes == twice_bytes && memcmp(once, twice, once_bytes) == 0);
    free(once);
    free(twice);
    return 0;
}
