#include "step_line.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "comm.h"

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

// At most 7 characters: "59:59", "9:59:59", "9999h", "365d".
static void short_duration(char *text, size_t size, double seconds) {
    double s = seconds > 0.0 && seconds < 1e12 ? seconds : 0.0;
    if (s < 3600.0 - 0.5)
        snprintf(text, size, "%d:%02d", (int)(s + 0.5) / 60, (int)(s + 0.5) % 60);
    else if (s < 36000.0 - 0.5)
        format_duration(text, size, s);
    else if (s < 1e4 * 3600.0 - 1800.0)
        snprintf(text, size, "%.0fh", s / 3600.0);
    else
        snprintf(text, size, "%.0fd", s / 86400.0);
}

// At most 5 characters: "950", "28.5k", "655k", "1.2M".
static void short_count(char *text, size_t size, double value) {
    if (value < 999.5)
        snprintf(text, size, "%.0f", value);
    else if (value < 99950.0)
        snprintf(text, size, "%.1fk", value / 1e3);
    else if (value < 999500.0)
        snprintf(text, size, "%.0fk", value / 1e3);
    else
        snprintf(text, size, "%.*fM", value < 99.95e6 ? 1 : 0, value / 1e6);
}

// At most 5 characters of a positive number, 6 with the sign: "0.301", "12.35", "123.5", "1234", "1e+05".
static void short_number(char *text, size_t size, double value) {
    double positive = fabs(value);
    if (!isfinite(value))
        snprintf(text, size, "%.1f", value);
    else if (positive < 9999.5)
        snprintf(text, size, "%.*f", positive < 9.9995 ? 3 : positive < 99.995 ? 2 : positive < 999.95 ? 1 : 0, value);
    else
        snprintf(text, size, "%.0e", value);
}

// The colours of a line, all empty where there are none.
typedef struct {
    const char *loss, *skip, *end;
} Colours;

static Colours colours_of(const StepLine *line, bool colour) {
    Colours c = {"", "", ""};
    if (!colour) return c;
    c.loss = isfinite(line->loss) ? COLOUR_BOLD : COLOUR_RED;
    c.skip = COLOUR_RED;
    c.end = COLOUR_END;
    return c;
}

static int write_full(char *text, size_t size, const StepLine *line, Colours c) {
    char total[32], rate[40], share[40] = "", left[40], skips[80] = "";
    int width = snprintf(total, sizeof total, "%" PRId64, line->total_steps);
    format_count(rate, sizeof rate, line->tokens_per_s);
    format_duration(left, sizeof left, line->seconds_left);
    if (line->share_of_peak > 0.0) snprintf(share, sizeof share, " | %4.1f%% of peak", 100.0 * line->share_of_peak);
    if (line->skipped_now)
        snprintf(skips, sizeof skips, " | %supdate skipped (%" PRId64 " so far)%s", c.skip, line->skipped, c.end);
    return snprintf(text, size,
                    "step %*" PRId64 "/%s | loss %s%.6f%s | norm %7.4f | lr %.2e | %.1f ms | %s tok/s%s | %s left%s",
                    width, line->step, total, c.loss, line->loss, c.end, line->grad_norm, line->lr, line->ms, rate,
                    share, left, skips);
}

// 80 columns hold a million steps; `left` is spelled out where there is room. Of a skipped update, its speed gives way
// to the fact. Returns the length.
static int write_short(char *text, size_t size, const StepLine *line, Colours c, const char *unit) {
    char total[32], loss[32], norm[32], rate[32], share[16] = "", left[32], middle[96];
    int width = snprintf(total, sizeof total, "%" PRId64, line->total_steps);
    short_number(norm, sizeof norm, line->grad_norm);
    short_number(loss, sizeof loss, line->loss);
    if (fabs(line->loss) < 9.99995) snprintf(loss, sizeof loss, "%.4f", line->loss);
    short_count(rate, sizeof rate, line->tokens_per_s);
    short_duration(left, sizeof left, line->seconds_left);
    if (line->share_of_peak > 0.0) snprintf(share, sizeof share, " %2.0f%%", 100.0 * line->share_of_peak);
    if (line->skipped_now)
        snprintf(middle, sizeof middle, "%supdate skipped (%" PRId64 ")%s", c.skip, line->skipped, c.end);
    else
        snprintf(middle, sizeof middle, "%5.*f ms %5s tok/s%s", line->ms < 999.95 ? 1 : 0, line->ms, rate, share);
    return snprintf(text, size, "%*" PRId64 "/%s loss %s%s%s norm %s lr %.1e %s %s%s", width, line->step, total, c.loss,
                    loss, c.end, norm, line->lr, middle, left, unit);
}

const char *step_line(char *text, size_t size, const StepLine *line, int columns, bool colour) {
    const Colours none = colours_of(line, false); // for lengths: colours take no columns
    int length = write_full(text, size, line, none);
    if (columns > 0 && length > columns)
        write_short(text, size, line, colours_of(line, colour),
                    write_short(text, size, line, none, " left") <= columns ? " left" : "");
    else if (colour)
        write_full(text, size, line, colours_of(line, true));
    return text;
}

const char *end_failure(char *text, size_t size, const EndLine *line) {
    const bool trained_well = !line->trained || (isfinite(line->loss) && isfinite(line->grad_norm));
    const bool finite = trained_well && (!line->validated || isfinite(line->val_loss));
    const bool above =
        (line->trained && line->loss > line->first_loss) || (line->validated && line->val_loss > line->first_loss);
    snprintf(text, size, "%s", "");
    if (line->nonfinite[0])
        snprintf(text, size, "the weights are not finite (%s): resume from an earlier checkpoint with a smaller --lr",
                 line->nonfinite);
    else if (!finite)
        snprintf(text, size,
                 "the last loss or gradient is not finite: resume from an earlier checkpoint with a smaller --lr");
    else if (above)
        snprintf(text, size, "the loss is above %.6f, that of step %" PRId64 ": try a smaller --lr", line->first_loss,
                 line->first_step);
    return text;
}

const char *end_line(char *text, size_t size, const EndLine *line) {
    char loss[48] = "", val[48] = "", skips[64] = "", time[40], failure[256];
    if (line->trained) snprintf(loss, sizeof loss, ", loss %.6f", line->loss);
    if (line->validated) snprintf(val, sizeof val, ", val loss %.6f", line->val_loss);
    if (line->skipped > 0) snprintf(skips, sizeof skips, ", %" PRId64 " updates skipped", line->skipped);
    format_duration(time, sizeof time, line->seconds);
    end_failure(failure, sizeof failure, line);
    snprintf(text, size, "%s: %" PRId64 " of %" PRId64 " steps%s%s%s, %s of training%s%s",
             line->step >= line->total_steps ? "done" : "stopped", line->step, line->total_steps, loss, val, skips,
             time, failure[0] ? "; " : "", failure);
    return text;
}
