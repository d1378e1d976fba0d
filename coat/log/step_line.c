#include "step_line.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"

#define RISEN 1.3 // ratio of the final to the first loss from which a warning is printed

static bool is_terminal(int fd) {
    return !comm_launched() && isatty(fd);
}

int terminal_columns(int fd) {
    struct winsize window;
    if (!is_terminal(fd)) return 0;
    if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
    return 80;
}

bool terminal_colours(int fd) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM"), *force = getenv("CLICOLOR_FORCE");
    if (no_color && *no_color) return false;
    if (force && *force && strcmp(force, "0") != 0) return true;
    return is_terminal(fd) && !(term && strcmp(term, "dumb") == 0);
}

void format_duration(char *text, size_t size, double seconds) {
    int64_t s = seconds > 0.0 && seconds < 1e15 ? (int64_t)(seconds + 0.5) : 0;
    snprintf(text, size, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
}

void format_count(char *text, size_t size, double value) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%.0f", value);
    size_t used = 0;
    for (int i = 0; i < length && used + 2 < size; i++) {
        if (i > 0 && (length - i) % 3 == 0) text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
}

// Writes the long form of a training step's line. Returns its length.
static int write_full(char *text, size_t size, const StepLine *line, bool colour) {
    char total[32], rate[40], share[40] = "", left[40], skips[80] = "";
    const char *mark = !colour ? "" : isfinite(line->loss) ? COLOUR_BOLD : COLOUR_RED, *end = colour ? COLOUR_END : "";
    int width = snprintf(total, sizeof total, "%" PRId64, line->total_steps);
    format_count(rate, sizeof rate, line->tokens_per_s);
    format_duration(left, sizeof left, line->seconds_left);
    if (line->share_of_peak > 0.0) snprintf(share, sizeof share, " | %4.1f%% of peak", 100.0 * line->share_of_peak);
    if (line->skipped_now)
        snprintf(skips, sizeof skips, " | %supdate skipped (%" PRId64 " so far)%s", colour ? COLOUR_RED : "",
                 line->skipped, end);
    return snprintf(
        text, size, "step %*" PRId64 "/%s | loss %s%.6f%s | norm %7.4f | lr %.2e | %.1f ms | %s tok/s%s | %s left%s",
        width, line->step, total, mark, line->loss, end, line->grad_norm, line->lr, line->ms, rate, share, left, skips);
}

// Writes the short form of a training step's line, which usually fits into 80 columns. After a skipped update, a note
// replaces the speed. Returns its length.
static int write_short(char *text, size_t size, const StepLine *line, bool colour) {
    char total[32], left[40];
    const char *mark = !colour ? "" : isfinite(line->loss) ? COLOUR_BOLD : COLOUR_RED, *end = colour ? COLOUR_END : "";
    const bool mega = line->tokens_per_s >= 999500.0;
    const int width = snprintf(total, sizeof total, "%" PRId64, line->total_steps);
    format_duration(left, sizeof left, line->seconds_left);
    snprintf(text, size, "%*" PRId64 "/%s loss %s%.*f%s norm %.3g lr %.1e", width, line->step, total, mark,
             fabs(line->loss) < 100.0 ? 4 : 0, line->loss, end, line->grad_norm, line->lr);
    if (line->skipped_now)
        text_append(text, size, " %supdate skipped (%" PRId64 ")%s", colour ? COLOUR_RED : "", line->skipped, end);
    else
        text_append(text, size, " %.1f ms %.3g%s tok/s", line->ms, line->tokens_per_s / (mega ? 1e6 : 1e3),
                    mega ? "M" : "k");
    if (line->share_of_peak > 0.0 && !line->skipped_now)
        text_append(text, size, " %.0f%%", 100.0 * line->share_of_peak);
    text_append(text, size, " %s", left);
    return (int)strlen(text);
}

const char *step_line(char *text, size_t size, const StepLine *line, int columns, bool colour) {
    if (columns <= 0 || write_full(text, size, line, false) <= columns)
        write_full(text, size, line, colour);
    else if (write_short(text, size, line, false) <= columns)
        write_short(text, size, line, colour);
    else if ((size_t)columns < size)
        text[columns] = '\0';
    return text;
}

const char *diverged_advice(bool earlier) {
    return earlier ? "resume from an earlier checkpoint with a smaller --lr"
                   : "start again with a smaller --lr or a longer --warmup";
}

void losses_add(Losses *losses, double loss) {
    if (!isfinite(loss)) return;
    if (losses->count == 0) losses->first = loss;
    losses->last[losses->count++ % LAST_LOSSES] = loss;
}

// Writes a warning if the mean of the last losses is well above the first loss, otherwise "". In a short run, the
// losses of its second half are averaged.
static void say_risen(const Losses *losses, char *text, size_t size) {
    const int last = (int)(losses->count < 2 * LAST_LOSSES ? (losses->count + 1) / 2 : LAST_LOSSES);
    double sum = 0.0;
    text[0] = '\0';
    for (int i = 0; i < last; i++) sum += losses->last[(losses->count - 1 - i) % LAST_LOSSES];
    if (losses->count >= 5 && sum / last > RISEN * losses->first)
        snprintf(text, size,
                 "the loss has risen, from %.4f in the first step to %.4f in the last %d: try a smaller --lr",
                 losses->first, sum / last, last);
}

const char *end_failure(char *text, size_t size, const EndLine *line) {
    const bool trained_well = !line->trained || (isfinite(line->loss) && isfinite(line->grad_norm));
    const bool finite = trained_well && (!line->validated || isfinite(line->val_loss));
    const char *advice = diverged_advice(line->earlier);
    snprintf(text, size, "%s", "");
    if (line->nonfinite[0])
        snprintf(text, size, "the weights are not finite (%s): %s", line->nonfinite, advice);
    else if (!finite)
        snprintf(text, size, "the last loss or gradient is not finite: %s", advice);
    else if (line->trained)
        say_risen(&line->losses, text, size);
    return text;
}

const char *end_line(char *text, size_t size, const EndLine *line, int columns) {
    char skips[64] = "", val[64] = "", time[40];
    const char *ended = line->step >= line->total_steps ? "done" : "stopped";
    format_duration(time, sizeof time, line->seconds);
    if (line->skipped > 0)
        snprintf(skips, sizeof skips, ", %" PRId64 " update%s skipped", line->skipped, plural(line->skipped));
    if (line->validated) snprintf(val, sizeof val, ", val loss %.6f", line->val_loss);
    if (line->validated && line->val_step != line->step)
        text_append(val, sizeof val, " of step %" PRId64, line->val_step);
    snprintf(text, size, "%s: %" PRId64 " of %" PRId64 " step%s", ended, line->step, line->total_steps,
             plural(line->total_steps));
    if (line->trained) text_append(text, size, ", loss %.6f", line->loss);
    text_append(text, size, "%s%s, %s of training", val, skips, time);
    if (columns <= 0 || (int)strlen(text) <= columns) return text;
    snprintf(text, size, "%s: %" PRId64 "/%" PRId64, ended, line->step, line->total_steps);
    if (line->trained) text_append(text, size, ", loss %.4f", line->loss);
    if (line->validated && line->val_step == line->step) text_append(text, size, ", val loss %.4f", line->val_loss);
    text_append(text, size, "%s, %s", skips, time);
    return text;
}

enum { TEXT_COLUMN = 12 }; // column in which the text of an item of the start-up report begins

// Prints label and text as one line. Pads the label to `indent` columns.
static void put_line(FILE *out, int indent, const char *label, const char *text, int length) {
    char *shown = strndup(text, (size_t)length);
    if (!shown) fatal(EXIT_DEVICE, "host memory: could not allocate a line of %d bytes", length);
    text_printable(shown, strlen(shown), "");
    fprintf(out, "%-*s%s\n", indent, label, shown);
    free(shown);
}

// Wraps text at spaces into lines of at most `room` columns, and prints each line after `indent` columns. The label is
// printed in these columns of the first line.
static void print_folded(FILE *out, const char *label, int indent, int room, const char *text, int length) {
    for (const char *const end = text + length; text < end; label = "") {
        int cut = (int)(end - text);
        if (cut > room)
            for (cut = room; cut > 0 && text[cut] != ' ';) cut--;
        if (cut == 0) // a word longer than the line is not broken
            while (text + cut < end && text[cut] != ' ') cut++;
        put_line(out, indent, label, text, cut);
        text += cut + (text + cut < end);
    }
}

void print_item(FILE *out, const char *label, const char *text) {
    enum { MAX_WIDTH = 79 };
    const int columns = terminal_columns(fileno(out));
    const int width = columns > 2 * TEXT_COLUMN && columns < MAX_WIDTH ? columns : MAX_WIDTH;
    print_folded(out, label, TEXT_COLUMN, width - TEXT_COLUMN, text, (int)strlen(text));
}

static void print_line(FILE *out, const char *label, const char *text, int length) {
    const int columns = terminal_columns(fileno(out)), indent = (int)strlen(label);
    if (columns > 2 * TEXT_COLUMN)
        print_folded(out, label, indent, columns - indent, text, length);
    else
        put_line(out, 0, label, text, length);
}

void print_labelled(FILE *out, const char *label, const char *text) {
    print_line(out, label, text, (int)strlen(text));
}

void print_remark_of(FILE *out, const char *label, const char *format, va_list args) {
    char text[4 * 4096]; // size for several paths
    vsnprintf(text, sizeof text, format, args);
    print_labelled(out, label, text);
}

void print_remark(const char *label, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_remark_of(stderr, label, format, args);
    va_end(args);
}

void print_notes(FILE *out, const char *notes) {
    const char label[] = "note: ";
    for (size_t length; *notes; notes += length + 1) {
        length = strcspn(notes, "\n");
        print_line(out, label, notes + strlen(label), (int)(length - strlen(label)));
    }
}

void step_line_print(const StepLine *line, bool colour) {
    char text[512];
    puts(step_line(text, sizeof text, line, terminal_columns(STDOUT_FILENO), colour));
    fflush(stdout);
}
