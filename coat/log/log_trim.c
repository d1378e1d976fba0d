#include "log_trim.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "io/files.h"
#include "terminal.h"

#define MAX_LINE (1 << 20) // maximum length of a line of log.jsonl in bytes; FP8 health writes up to 1 kB per layer
#define LOG_PATH (PATH_MAX_LENGTH + 16)

// Updates `scan` with the contents of a log line that precedes scan->cut.
static void scan_line(LogScan *scan, const json_t *object, int64_t step) {
    const json_t *loss = json_object_get(object, "loss"), *settings = json_object_get(object, "settings");
    if (json_object_get(object, "val_loss")) scan->val_step = step;
    if (json_object_get(object, "hellaswag")) scan->hellaswag_step = step;
    if (loss) {
        scan->loss_step = step;
        // log.jsonl contains null for a loss that is not finite
        scan->loss = json_is_number(loss) ? json_number_value(loss) : NAN;
        losses_add(&scan->losses, scan->loss);
    }
    if (!json_is_object(settings)) return;
    json_decref(scan->settings);
    scan->settings = json_incref((json_t *)settings);
}

bool log_scan(const char *path, int64_t first_step, LogScan *scan, Error *err) {
    memset(scan, 0, sizeof *scan);
    scan->val_step = scan->hellaswag_step = scan->loss_step = -1;
    if (access(path, F_OK) != 0 && errno == ENOENT) return true;
    FILE *from = path_check_no_link(path, err) ? file_open_lines(path, err) : NULL;
    if (!from) return false;
    char *line = (char *)xmalloc(MAX_LINE);
    bool cut = false;
    for (size_t length; (length = file_read_line(from, line, MAX_LINE)) > 0;) {
        json_t *object = line[length - 1] == '\n' ? json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL) : NULL;
        const json_t *number = json_object_get(object, "step");
        const int64_t step = json_is_integer(number) ? json_integer_value(number) : -1;
        if (step >= 0) scan->end = ftell(from);
        cut |= step >= first_step;
        if (step >= 0 && !cut) {
            scan->cut = scan->end;
            scan_line(scan, object, step);
        }
        json_decref(object);
    }
    const bool good = !ferror(from) || error_set(err, EXIT_DATA, "%s: cannot be read: %s", path, strerror(errno));
    if (!good) json_decref(scan->settings);
    free(line);
    fclose(from);
    return good;
}

// Creates log-abandoned-STEP.jsonl for the lines of an abandoned run; if the name exists, log-abandoned-STEP-2.jsonl or
// the next free number. Returns NULL with err on failure.
static FILE *create_abandoned(char path[LOG_PATH + 64], const Config *config, int64_t step, Error *err) {
    FILE *file = NULL;
    errno = EEXIST;
    for (int number = 1; !file && errno == EEXIST && number < 1000; number++) {
        char suffix[16] = "";
        if (number > 1) snprintf(suffix, sizeof suffix, "-%d", number);
        snprintf(path, LOG_PATH + 64, "%s/log-abandoned-%08" PRId64 "%s.jsonl", config->out, step, suffix);
        file = file_create_stream(path, err);
    }
    return file;
}

bool log_copy_abandoned(const Config *config, int64_t first_step, bool other, Error *err) {
    char path[LOG_PATH], kept[LOG_PATH + 64];
    LogScan scan;
    // A run that resumes from its newest checkpoint repeats the later steps and logs them again, so the old lines need
    // no copy.
    if (!config->resume || (first_step > 1 && config->resume_step < 0 && !other)) return true;
    snprintf(path, sizeof path, "%s/log.jsonl", config->out);
    const int64_t first = first_step <= 1 ? 0 : first_step;
    if (!log_scan(path, first, &scan, err)) return false;
    json_decref(scan.settings);
    if (scan.end == scan.cut) return true;
    FILE *from = file_open_lines(path, err),
         *to = from ? create_abandoned(kept, config, first ? first - 1 : 0, err) : NULL;
    bool good = to && fseek(from, (long)scan.cut, SEEK_SET) == 0;
    for (int64_t left = scan.end - scan.cut; good && left > 0;) {
        char bytes[1 << 14];
        const size_t n = fread(bytes, 1, left < (int64_t)sizeof bytes ? (size_t)left : sizeof bytes, from);
        good = n > 0 && fwrite(bytes, 1, n, to) == n;
        left -= (int64_t)n;
    }
    good = good && fflush(to) == 0 && fsync(fileno(to)) == 0;
    if (to && fclose(to) != 0) good = false;
    if (to && !good) error_set(err, EXIT_DATA, "%s: cannot be written: %s", kept, strerror(errno));
    if (to && !good) unlink(kept);
    if (from) fclose(from);
    if (good) print_remark("note: ", "%s: the lines of the abandoned run are copied to %s", path, kept);
    return good;
}

void log_contradiction(const char *path, int64_t step, double loss, char *text, size_t size) {
    LogScan scan;
    Error ignored;
    text[0] = '\0';
    if (!log_scan(path, step + 1, &scan, &ignored)) return;
    json_decref(scan.settings);
    const bool same = isfinite(loss) ? fabs(scan.loss - loss) <= 1e-8 * fabs(loss) : isnan(scan.loss);
    if (scan.loss_step >= 0 && scan.loss_step != step)
        snprintf(text, size, "%s has no line of step %" PRId64, path, step);
    else if (scan.loss_step == step && !same)
        snprintf(text, size, "%s has the loss %.9g for step %" PRId64 ", but the checkpoint has %.9g", path, scan.loss,
                 step, loss);
}

json_t *log_last_settings(const char *path) {
    LogScan scan;
    Error ignored;
    return log_scan(path, INT64_MAX, &scan, &ignored) ? scan.settings : NULL;
}
