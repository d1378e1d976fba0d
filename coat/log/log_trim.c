#include "log_trim.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "io/files.h"

#define SETTINGS "\"settings\":"
#define LONGEST_LINE (1 << 20) // of log.jsonl; that of FP8 health has up to 1 kB per layer
#define LOG_PATH (PATH_MAX_LENGTH + 16)
#define ASIDE_PATH (PATH_MAX_LENGTH + 80)

uint64_t log_settings_hash(const char *json, size_t length) {
    return XXH3_64bits(json, length) | 1;
}

// The step of a line of log.jsonl, -1 where the line is damaged. Steps of the evaluations among lines before first_step
// are taken down in kept, where there is one.
static int64_t line_step(LogKept *kept, const char *line, size_t length, int64_t first_step) {
    if (length == 0 || line[length - 1] != '\n') return -1;
    json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL);
    const json_t *number = json_object_get(object, "step");
    int64_t step = json_is_integer(number) ? json_integer_value(number) : -1;
    bool stays = kept && step >= 0 && step < first_step;
    if (stays && json_object_get(object, "val_loss")) kept->val_step = step;
    if (stays && json_object_get(object, "hellaswag")) kept->hellaswag_step = step;
    const json_t *loss = json_object_get(object, "loss");
    if (stays && json_is_number(loss)) losses_add(&kept->losses, json_number_value(loss));
    const char *settings = stays && json_object_get(object, "settings")
                               ? (const char *)memmem(line, length, SETTINGS, strlen(SETTINGS))
                               : NULL;
    if (settings) { // to the end of the line, "}\n"
        settings += strlen(SETTINGS);
        kept->settings = log_settings_hash(settings, (size_t)(line + length - 2 - settings));
    }
    json_decref(object);
    return step;
}

static bool flush_and_close(FILE *file) {
    bool good = fflush(file) == 0 && fsync(fileno(file)) == 0;
    return fclose(file) == 0 && good;
}

// Copies the whole lines of log.jsonl to `to`: with `kept`, which takes down what it says of them, those of earlier
// steps than first_step; without it the others.
static bool copy_lines(LogKept *kept, FILE *from, FILE *to, int64_t first_step) {
    char *line = (char *)xmalloc(LONGEST_LINE);
    size_t length;
    bool good = true;
    while (good && (length = file_read_line(from, line, LONGEST_LINE)) > 0) {
        int64_t step = line_step(kept, line, length, first_step);
        if (step >= 0 && (step < first_step) == (kept != NULL)) good = fwrite(line, 1, length, to) == length;
    }
    free(line);
    return good && !ferror(from);
}

// Creates a file for the lines of an abandoned run, with the first name that is free; NULL with err.
static FILE *new_aside(char path[ASIDE_PATH], const Config *config, int64_t first_step, Error *err) {
    FILE *file = NULL;
    errno = EEXIST;
    for (int number = 1; !file && errno == EEXIST && number < 1000; number++) {
        char again[16] = "";
        if (number > 1) snprintf(again, sizeof again, "-%d", number);
        snprintf(path, ASIDE_PATH, "%s/log-abandoned-%08" PRId64 "%s.jsonl", config->out,
                 first_step > 0 ? first_step - 1 : 0, again);
        file = file_create_stream(path, err);
    }
    return file;
}

void log_contradiction(const char *path, int64_t step, double loss, char *text, size_t size) {
    char begin[64];
    Error ignored;
    FILE *from = file_open_lines(path, &ignored);
    text[0] = '\0';
    if (!from) return;
    snprintf(begin, sizeof begin, "{\"step\":%" PRId64 ",\"loss\":", step);
    char *line = (char *)xmalloc(LONGEST_LINE);
    bool any = false, found = false;
    double logged = NAN; // which is null there
    for (size_t length; !found && (length = file_read_line(from, line, LONGEST_LINE)) > 0;) {
        any = any || memmem(line, length, ",\"loss\":", strlen(",\"loss\":"));
        found = length > strlen(begin) && memcmp(line, begin, strlen(begin)) == 0;
        if (found && line[strlen(begin)] != 'n') logged = strtod(line + strlen(begin), NULL);
    }
    free(line);
    fclose(from);
    const bool same = isfinite(loss) ? fabs(logged - loss) <= 1e-8 * fabs(loss) : isnan(logged);
    if (any && !found)
        snprintf(text, size, "%s has no line of step %" PRId64, path, step);
    else if (found && !same)
        snprintf(text, size, "%s has the loss %.9g for step %" PRId64 ", and the checkpoint %.9g", path, logged, step,
                 loss);
}

bool log_set_aside(const Config *config, int64_t first_step, bool other, Error *err) {
    char path[LOG_PATH], kept[ASIDE_PATH];
    snprintf(path, sizeof path, "%s/log.jsonl", config->out);
    // a run that continues from its newest checkpoint comes to the later steps again; another run does not
    bool other_run = config->resume && (first_step <= 1 || config->resume_step >= 0 || other);
    if (!other_run || !path_is_file(path)) return true;
    FILE *from = path_check_no_link(path, err) ? file_open_lines(path, err) : NULL;
    if (!from) return false;
    int64_t first = first_step <= 1 ? 0 : first_step;
    FILE *to = new_aside(kept, config, first, err);
    bool good = to && copy_lines(NULL, from, to, first), any = to && ftell(to) > 0;
    if (to && !flush_and_close(to)) good = false;
    if (to && !good) error_set(err, EXIT_DATA, "%s: cannot be written: %s", kept, strerror(errno));
    fclose(from);
    if (good && any)
        print_remark("note: ", "%s: lines of the run that is abandoned now are kept in %s", path, kept);
    else if (to)
        unlink(kept);
    return good;
}

json_t *log_last_settings(const char *path) {
    Error ignored;
    FILE *from = file_open_lines(path, &ignored);
    if (!from) return NULL;
    char *line = (char *)xmalloc(LONGEST_LINE);
    json_t *last = NULL;
    for (size_t length; (length = file_read_line(from, line, LONGEST_LINE)) > 0;) {
        if (!memmem(line, length, SETTINGS, strlen(SETTINGS))) continue;
        json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL);
        json_t *settings = json_object_get(object, "settings");
        if (json_is_object(settings)) {
            json_decref(last);
            last = json_incref(settings);
        }
        json_decref(object);
    }
    free(line);
    fclose(from);
    return last;
}

bool log_trim(const char *path, int64_t first_step, LogKept *kept, Error *err) {
    memset(kept, 0, sizeof *kept);
    kept->val_step = kept->hellaswag_step = -1;
    if (access(path, F_OK) != 0 && errno == ENOENT) return true;
    FILE *from = path_check_no_link(path, err) ? file_open_lines(path, err) : NULL;
    if (!from) return false;
    char temporary[LOG_PATH + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    unlink(temporary); // of a run that crashed here, or a link that leads elsewhere
    FILE *to = file_create_stream(temporary, err);
    bool good = to && copy_lines(kept, from, to, first_step);
    if (to && !flush_and_close(to)) good = false;
    fclose(from);
    if (good && rename(temporary, path) == 0) return true;
    error_set(err, EXIT_DATA, "%s: cannot be rewritten for the resumed run: %s", path, strerror(errno));
    unlink(temporary);
    return false;
}
