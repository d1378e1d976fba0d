#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

#include "appender.h"
#include "events.h"
#include "io/files.h"
#include "log_trim.h"
#include "step_line.h"
#include "terminal.h"

#define RATE_DECAY 0.95 // decay per step of the moving averages for tokens/s and remaining time
#define LOG_PATH (PATH_MAX_LENGTH + 48)

struct Log {
    bool active; // true on rank 0 only
    bool quiet, json, colour;
    Appender file; // writer of log.jsonl
    char path[LOG_PATH];
    EventWriter *events; // TensorBoard event file; NULL: none
    int64_t steps_here;  // number of steps logged by this process
    double peak_flops;
    // moving averages of time, tokens and FLOPs per step, and the sum of their weights
    double mean_ms, mean_tokens, mean_flops, weight;
    json_t *settings;                 // last settings in the log file; NULL: none
    int64_t val_step, hellaswag_step; // steps of the last val_loss and hellaswag lines in the file; -1: none
    EndLine end;                      // data for the last line of the run and the warning after it
    int64_t every;                    // steps between lines on the terminal
    StepLine line;                    // terminal line of the latest step, which may not be printed yet
    bool unprinted;                   // true: `line` has not been printed yet
    double counted;                   // fraction of unmasked targets; 0: the fraction is not logged
    int64_t first_saved;              // step of the first checkpoint read or written by this process; -1: none
    size_t bf16_blocks;               // number of blocks with BF16 forward matmuls, which have no FP8 inputs
};

static bool open_file(Log *log, const Config *config, int64_t first_step, Error *err) {
    LogScan scan = {.val_step = -1, .hellaswag_step = -1};
    if (!folder_make(config->out, err)) return false;
    snprintf(log->path, sizeof log->path, "%s/log.jsonl", config->out);
    if (first_step > 1 && !log_scan(log->path, first_step, &scan, err)) return false;
    log->val_step = scan.val_step;
    log->hellaswag_step = scan.hellaswag_step;
    log->settings = scan.settings;
    log->end.losses = scan.losses;
    int fd = file_open_write(log->path, O_APPEND, err);
    if (fd < 0) return false;
    appender_open(&log->file, fd, log->path);
    if (ftruncate(fd, (off_t)scan.cut) != 0)
        return error_set(err, EXIT_DATA, "%s: lines from step %lld on cannot be removed: %s", log->path,
                         (long long)first_step, strerror(errno));
    log->events = events_open(config->out, first_step, err);
    return log->events != NULL;
}

Log *log_open(const Config *config, int rank, int64_t total_steps, int64_t first_step, double peak_flops, Error *err) {
    Log *log = (Log *)xcalloc(1, sizeof *log);
    log->active = rank == 0;
    log->quiet = config->quiet;
    log->json = config->json;
    log->every = config->log_every;
    log->colour = !config->json && terminal_colours(STDOUT_FILENO);
    appender_open(&log->file, -1, log->path);
    log->end.total_steps = total_steps;
    log->peak_flops = isfinite(peak_flops) ? peak_flops : 0.0;
    log->end.step = first_step > 0 ? first_step - 1 : 0;
    log->val_step = log->hellaswag_step = -1;
    log->first_saved = first_step > 1 ? first_step - 1 : -1; // step of the checkpoint that the run resumes from
    log->bf16_blocks = (size_t)config_bf16_blocks(config);
    if (log->active && config->out[0] && !open_file(log, config, first_step, err)) {
        log_close(log);
        return NULL;
    }
    return log;
}

// --- writing lines to log.jsonl --------------------------------------------------------------------------------

// Appends ,"key":value to a JSON line, with null if the value is not finite. "%.9g" represents every float exactly.
static void add_number(char *line, size_t size, const char *key, const char *format, double value) {
    size_t used = strlen(line);
    used += (size_t)snprintf(line + used, size - used, ",\"%s\":", key);
    if (isfinite(value))
        snprintf(line + used, size - used, format, value);
    else
        snprintf(line + used, size - used, "null");
}

// Completes a JSON line and writes it to log.jsonl and, with --json, to the terminal.
static void write_line(Log *log, char *line, size_t size) {
    size_t used = strlen(line);
    snprintf(line + used, size - used, "}\n");
    used = strlen(line);
    appender_add(&log->file, line, used);
    appender_flush_or_warn(&log->file, log->end.step);
    if (!log->json) return;
    fwrite(line, 1, text_printable(line, used, "\n"), stdout);
    fflush(stdout);
}

static void write_scalars(Log *log, int64_t step, const Scalar *scalars, int count) {
    if (log->events) events_write(log->events, step, scalars, count);
}

// --- printing lines on the terminal ------------------------------------------------------------------------------

static const char *colour(const Log *log, const char *code) {
    return log->colour ? code : "";
}

// Updates the moving averages of time, tokens and FLOPs per step. A process's first step is a warm-up, which is removed
// from the averages when the second step is added. The averages start at 0; dividing by `weight` corrects this bias.
static void update_rates(Log *log, double ms, int64_t tokens, double flops) {
    if (!isfinite(ms) || ms <= 0.0) return;
    if (log->steps_here == 2) log->mean_ms = log->mean_tokens = log->mean_flops = log->weight = 0.0;
    log->mean_ms = RATE_DECAY * log->mean_ms + (1.0 - RATE_DECAY) * ms;
    log->mean_tokens = RATE_DECAY * log->mean_tokens + (1.0 - RATE_DECAY) * (double)tokens;
    log->mean_flops = RATE_DECAY * log->mean_flops + (1.0 - RATE_DECAY) * flops;
    log->weight = RATE_DECAY * log->weight + (1.0 - RATE_DECAY);
}

static double seconds_left(const Log *log) {
    return log->weight > 0.0 ? (double)(log->end.total_steps - log->end.step) * log->mean_ms / log->weight * 1e-3 : 0.0;
}

// After the third step of a process, prints the expected remaining time of the run if it is at least a minute.
static void print_expected(Log *log) {
    double left = seconds_left(log);
    if (log->steps_here != 3 || left < 60.0 || !(left < 1e9) || log->quiet) return;
    FILE *stream = log->json ? stderr : stdout;
    char text[160], duration[32], end[48];
    time_t then = time(NULL) + (time_t)left;
    struct tm local;
    format_duration(duration, sizeof duration, left);
    strftime(end, sizeof end, "%Y-%m-%d %H:%M %Z", localtime_r(&then, &local));
    snprintf(text, sizeof text, "%s more, until %s, plus time for evaluations, samples and saves", duration, end);
    print_item(stream, "expected", text);
    fflush(stream);
}

static void set_line(Log *log, double grad_norm, double lr, double ms, bool skipped) {
    double tokens_per_s = log->mean_ms > 0.0 ? log->mean_tokens / log->mean_ms * 1e3 : 0.0;
    double rate = log->mean_ms > 0.0 ? log->mean_flops / log->mean_ms * 1e3 : 0.0; // FLOP/s
    double share = log->peak_flops > 0.0 ? rate / log->peak_flops : 0.0;
    const StepLine line = {log->end.step, log->end.total_steps, log->end.loss,    grad_norm, lr, ms, tokens_per_s,
                           share,         seconds_left(log),    log->end.skipped, skipped};
    log->line = line;
    log->unprinted = !log->quiet && !log->json;
}

void log_show_step(Log *log) {
    if (log->unprinted) step_line_print(&log->line, log->colour);
    log->unprinted = false;
}

void log_resume(Log *log, int64_t skipped) {
    log->end.skipped = skipped;
}

void log_counted(Log *log, double fraction) {
    log->counted = fraction;
}

bool log_has_val(const Log *log, int64_t step) {
    return log->val_step == step;
}

bool log_has_hellaswag(const Log *log, int64_t step) {
    return log->hellaswag_step == step;
}

void log_step(Log *log, int64_t step, double loss, double grad_norm, double lr, double ms, int64_t tokens_total,
              int64_t tokens_step, double flops, int64_t skipped) {
    if (!log->active) return;
    bool skipped_now = skipped > log->end.skipped;
    log->end.step = step;
    log->end.loss = loss;
    log->end.grad_norm = grad_norm;
    log->end.trained = true;
    losses_add(&log->end.losses, loss);
    log->end.skipped = skipped;
    log->end.seconds += isfinite(ms) ? ms * 1e-3 : 0.0;
    log->steps_here++;
    update_rates(log, ms, tokens_step, flops);

    double tokens_per_s = ms > 0.0 ? (double)tokens_step / ms * 1e3 : NAN;
    char line[512];
    snprintf(line, sizeof line, "{\"step\":%" PRId64, step);
    add_number(line, sizeof line, "loss", "%.9g", loss);
    add_number(line, sizeof line, "grad_norm", "%.9g", grad_norm);
    add_number(line, sizeof line, "lr", "%.9g", lr);
    add_number(line, sizeof line, "tokens", "%.0f", (double)tokens_total);
    if (skipped_now) add_number(line, sizeof line, "skipped", "%.0f", (double)skipped);
    if (log->counted > 0.0) add_number(line, sizeof line, "counted", "%.6g", log->counted);
    add_number(line, sizeof line, "ms", "%.3f", ms);
    add_number(line, sizeof line, "tokens_per_s", "%.1f", tokens_per_s);
    write_line(log, line, sizeof line);
    const Scalar scalars[] = {{"loss", loss},
                              {"grad_norm", grad_norm},
                              {"lr", lr},
                              {"ms", ms},
                              {"tokens_per_s", tokens_per_s},
                              {"skipped", (double)skipped},
                              {"counted", log->counted}};
    write_scalars(log, step, scalars, log->counted > 0.0 ? 7 : 6);
    set_line(log, grad_norm, lr, ms, skipped_now);
    if (log->every <= 1 || step % log->every == 0 || log->steps_here == 1 || step == log->end.total_steps ||
        skipped_now)
        log_show_step(log);
    print_expected(log);
}

// Writes the result of an evaluation to log.jsonl and the event file.
static void write_result(Log *log, int64_t step, const Scalar *results, int count) {
    char line[128];
    snprintf(line, sizeof line, "{\"step\":%" PRId64, step);
    for (int i = 0; i < count; i++) add_number(line, sizeof line, results[i].tag, "%.9g", results[i].value);
    write_line(log, line, sizeof line);
    write_scalars(log, step, results, count);
}

void log_val(Log *log, int64_t step, double val_loss, double accuracy) {
    if (!log->active) return;
    log->end.val_loss = val_loss;
    log->end.validated = true;
    log->end.val_step = step;
    const Scalar results[] = {{"val_loss", val_loss}, {"val_accuracy", accuracy}};
    if (!log_has_val(log, step)) write_result(log, step, results, isnan(accuracy) ? 1 : 2);
    log->val_step = step;
    if (log->quiet || log->json) return;
    log_show_step(log);
    printf("%sval loss %.6f", colour(log, isfinite(val_loss) ? COLOUR_GREEN : COLOUR_RED), val_loss);
    if (!isnan(accuracy)) printf(", %.1f %% of answers right", 100.0 * accuracy);
    printf("%s after %" PRId64 " step%s\n", colour(log, COLOUR_END), step, plural(step));
    fflush(stdout);
}

void log_hellaswag(Log *log, int64_t step, int right, int examples) {
    if (!log->active) return;
    double fraction = (double)right / examples;
    const Scalar result = {"hellaswag", fraction};
    if (!log_has_hellaswag(log, step)) write_result(log, step, &result, 1);
    log->hellaswag_step = step;
    if (log->quiet || log->json) return;
    log_show_step(log);
    printf("%sHellaSwag %.2f%%%s (%d of %d) after %" PRId64 " step%s\n", colour(log, COLOUR_GREEN), 100.0 * fraction,
           colour(log, COLOUR_END), right, examples, step, plural(step));
    fflush(stdout);
}

// True if a layer's values are null in all statistics of a tensor because the layer's matmuls are in BF16.
static bool is_absent(const Log *log, json_t *figures, size_t layer) {
    const char *figure;
    json_t *layers;
    if (layer >= log->bf16_blocks) return false;
    json_object_foreach(figures, figure, layers) {
        if (!json_is_null(json_array_get(layers, layer))) return false;
    }
    return true;
}

// Sets *largest to the value with the largest magnitude in `layers`, which has one value per layer. If a value is not
// finite, sets *largest to NAN. Skips layers for which is_absent() is true. Returns false if no layer has a value.
static bool find_largest(const Log *log, json_t *figures, const json_t *layers, double *largest) {
    bool found = false;
    size_t i;
    const json_t *layer;
    *largest = 0.0;
    json_array_foreach(layers, i, layer) {
        if (is_absent(log, figures, i)) continue;
        const double x = json_is_number(layer) ? json_number_value(layer) : NAN;
        if (isnan(x) || fabs(x) > fabs(*largest)) *largest = x;
        found = true;
    }
    return found;
}

// Writes one value of each list in log_object()'s JSON text to the TensorBoard event file: the one with the largest
// magnitude.
static void write_largest(Log *log, int64_t step, const char *key, const char *json) {
    enum { MAX_FIGURES = 8 };
    char tag[MAX_FIGURES][96];
    const char *tensor, *figure;
    json_t *object = log->events ? json_loads(json, 0, NULL) : NULL, *figures, *layers;
    json_object_foreach(object, tensor, figures) {
        Scalar scalars[MAX_FIGURES];
        int count = 0;
        json_object_foreach(figures, figure, layers) {
            if (count == MAX_FIGURES) break;
            if (!find_largest(log, figures, layers, &scalars[count].value)) continue;
            snprintf(tag[count], sizeof tag[count], "%s/%s/%s", key, tensor, figure);
            scalars[count].tag = tag[count];
            count++;
        }
        if (count) write_scalars(log, step, scalars, count);
    }
    json_decref(object);
}

void log_object(Log *log, int64_t step, const char *key, const char *json) {
    if (!log->active) return;
    size_t size = strlen(key) + strlen(json) + 64;
    char *line = (char *)xmalloc(size);
    snprintf(line, size, "{\"step\":%" PRId64 ",\"%s\":%s", step, key, json);
    write_line(log, line, size);
    write_largest(log, step, key, json);
    free(line);
}

void log_settings(Log *log, int64_t step, const char *json) {
    json_t *settings = json_loads(json, 0, NULL);
    if (!settings || !json_equal(settings, log->settings)) log_object(log, step, "settings", json);
    json_decref(settings);
}

void log_text(Log *log, const char *format, ...) {
    if (!log->active || log->quiet) return;
    FILE *stream = log->json ? stderr : stdout;
    va_list args;
    va_start(args, format);
    print_remark_of(stream, "", format, args);
    va_end(args);
    fflush(stream);
}

void log_reopen(Log *log) {
    Error err;
    if (log->file.fd < 0) return;
    if (!path_is_open(log->path, log->file.fd)) {
        const int fd = file_open_write(log->path, O_APPEND, &err);
        if (fd < 0) {
            print_remark("warning: ", "%s", err.text);
            return;
        }
        appender_reopen(&log->file, fd);
        log_object(log, log->end.step, "note", "\"the log was removed or replaced; earlier lines are not here\"");
    }
    if (log->events && events_in_place(log->events)) return;
    events_close(log->events);
    char folder[LOG_PATH];
    if (!path_folder(folder, sizeof folder, log->path, &err) ||
        !(log->events = events_open(folder, log->end.step + 1, &err))) {
        log->events = NULL;
        print_remark("warning: ", "%s", err.text);
    }
}

void log_sync(const Log *log) {
    if (log->file.fd >= 0) fsync(log->file.fd);
}

void log_saved(Log *log, int64_t step, const char *nonfinite) {
    snprintf(log->end.nonfinite, sizeof log->end.nonfinite, "%s", nonfinite ? nonfinite : "");
    if (log->first_saved < 0) log->first_saved = step;
    log->end.earlier = step > log->first_saved;
}

void log_close(Log *log) {
    if (!log) return;
    log_show_step(log);
    char text[512];
    log->end.earlier |= log->first_saved >= 0 && log->first_saved < log->end.step;
    if (log->active && (log->end.trained || log->end.validated)) {
        if (!log->json) puts(end_line(text, sizeof text, &log->end, terminal_columns(STDOUT_FILENO)));
        if (end_failure(text, sizeof text, &log->end)[0])
            print_labelled(log->json ? stderr : stdout, "warning: ", text);
        fflush(stdout);
    }
    appender_close(&log->file);
    events_close(log->events);
    json_decref(log->settings);
    free(log);
}
