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

void format_expected(char *text, size_t size, double seconds) {
    char duration[32], end[48];
    time_t then = time(NULL) + (time_t)seconds;
    struct tm local;
    format_duration(duration, sizeof duration, seconds);
    strftime(end, sizeof end, "%Y-%m-%d %H:%M %Z", localtime_r(&then, &local));
    snprintf(text, size, "%s more, until %s", duration, end);
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

// The pieces of the shortened line, those that narrower terminals go without first.
typedef enum { PIECE_UNIT, PIECE_SHARE, PIECE_LR, PIECE_MS, PIECE_NORM, PIECE_RATE, PIECE_LEFT, PIECE_LOSS } Piece;

// 80 columns hold a million steps and all pieces but the word `left`. Of a skipped update, its speed gives way to the
// fact. `first`: the first piece that is kept. Returns the length.
static int write_short(char *text, size_t size, const StepLine *line, Colours c, int first) {
    char total[32], number[32];
    const int width = snprintf(total, sizeof total, "%" PRId64, line->total_steps);
    snprintf(text, size, "%*" PRId64 "/%s", width, line->step, total);
    short_number(number, sizeof number, line->loss);
    if (fabs(line->loss) < 9.99995) snprintf(number, sizeof number, "%.4f", line->loss);
    if (first <= PIECE_LOSS) text_append(text, size, " loss %s%s%s", c.loss, number, c.end);
    short_number(number, sizeof number, line->grad_norm);
    if (first <= PIECE_NORM) text_append(text, size, " norm %s", number);
    if (first <= PIECE_LR) text_append(text, size, " lr %.1e", line->lr);
    if (line->skipped_now) {
        text_append(text, size, " %supdate skipped (%" PRId64 ")%s", c.skip, line->skipped, c.end);
    } else {
        if (first <= PIECE_MS) text_append(text, size, " %5.*f ms", line->ms < 999.95 ? 1 : 0, line->ms);
        short_count(number, sizeof number, line->tokens_per_s);
        if (first <= PIECE_RATE) text_append(text, size, " %5s tok/s", number);
        if (first <= PIECE_SHARE && line->share_of_peak > 0.0)
            text_append(text, size, " %2.0f%%", 100.0 * line->share_of_peak);
    }
    short_duration(number, sizeof number, line->seconds_left);
    if (first <= PIECE_LEFT) text_append(text, size, " %s", number);
    if (first <= PIECE_UNIT) text_append(text, size, " left");
    return (int)strlen(text);
}

const char *step_line(char *text, size_t size, const StepLine *line, int columns, bool colour) {
    const Colours none = colours_of(line, false), colours = colours_of(line, colour); // those take no columns
    int first = PIECE_UNIT;
    if (columns <= 0 || write_full(text, size, line, none) <= columns) {
        write_full(text, size, line, colours);
        return text;
    }
    while (first <= PIECE_LOSS && write_short(text, size, line, none, first) > columns) first++;
    if (write_short(text, size, line, none, first) <= columns)
        write_short(text, size, line, colours, first);
    else if ((size_t)columns < size)
        text[columns] = '\0'; // of its steps, what there is room for
    return text;
}

const char *diverged_advice(bool earlier) {
    return earlier ? "resume from an earlier checkpoint with a smaller --lr"
                   : "start again with a smaller --lr or a longer --warmup";
}

void losses_add(Losses *losses, double loss) {
    if (!isfinite(loss)) return;
    if (losses->count < MAX_COMPARED) losses->first[losses->count] = loss;
    losses->last[losses->count++ % MAX_COMPARED] = loss;
}

// The mean of some losses and their standard deviation, which of one or two is taken for a tenth of the mean.
static double mean_of(const double *losses, int count, double *deviation) {
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < count; i++) sum += losses[i];
    const double mean = sum / count;
    for (int i = 0; i < count; i++) squares += (losses[i] - mean) * (losses[i] - mean);
    *deviation = count > 2 ? sqrt(squares / (count - 1)) : 0.1 * mean;
    return mean;
}

// Whether the loss has risen, with what is said of it. A run that diverges at once has the loss that it began with in
// its first steps alone: those before it jumps count.
static bool has_risen(const Losses *losses, char *text, size_t size) {
    enum { FEWEST = 5 };
    const double jump = 1.5, margin = 2.0; // of deviations
    const int half = (int)((losses->count + 1) / 2 < MAX_COMPARED ? (losses->count + 1) / 2 : MAX_COMPARED);
    double last[MAX_COMPARED], varies, varied;
    int first = 1;
    if (losses->count < FEWEST) return false;
    for (int i = 0; i < half; i++) last[i] = losses->last[(losses->count - 1 - i) % MAX_COMPARED];
    while (first < half && losses->first[first] < jump * losses->first[0]) first++;
    const double now = mean_of(last, half, &varies), then = mean_of(losses->first, first, &varied);
    if (!(now - then > margin * (varied + varies))) return false;
    char steps[16] = "step";
    if (first > 1) snprintf(steps, sizeof steps, "%d steps", first);
    snprintf(text, size, "the loss has risen, from %.4f in the first %s to %.4f in the last %d: try a smaller --lr",
             then, steps, now, half);
    return true;
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
        has_risen(&line->losses, text, size);
    return text;
}

const char *end_line(char *text, size_t size, const EndLine *line, int columns) {
    char skips[64] = "", time[40];
    const char *ended = line->step >= line->total_steps ? "done" : "stopped";
    format_duration(time, sizeof time, line->seconds);
    const bool earlier = line->validated && line->val_step != line->step;
    for (int form = 0; form < 2 + earlier; form++) { // in words, shortened, without the validation of an earlier step
        const bool words = form == 0;
        const int digits = words ? 6 : 4;
        if (line->skipped > 0)
            snprintf(skips, sizeof skips, ", %" PRId64 "%s%s skipped", line->skipped, words ? " update" : "",
                     words ? plural(line->skipped) : "");
        snprintf(text, size, "%s: %" PRId64 "%s%" PRId64, ended, line->step, words ? " of " : "/", line->total_steps);
        if (words) text_append(text, size, " step%s", plural(line->total_steps));
        if (line->trained) text_append(text, size, ", loss %.*f", digits, line->loss);
        if (line->validated && form < 2) text_append(text, size, ", val loss %.*f", digits, line->val_loss);
        if (earlier && form < 2) text_append(text, size, " %s %" PRId64, words ? "of step" : "at", line->val_step);
        text_append(text, size, "%s, %s%s", skips, time, words ? " of training" : "");
        if (columns <= 0 || (int)strlen(text) <= columns) break;
    }
    return text;
}

enum { TEXT_COLUMN = 12 }; // of an item

// Prints label and text as one line, the label in `indent` columns at least.
static void put_line(FILE *out, int indent, const char *label, const char *text, int length) {
    char *shown = strndup(text, (size_t)length);
    if (!shown) fatal(EXIT_DEVICE, "host memory: could not hold a line of %d bytes", length);
    text_printable(shown, strlen(shown), "");
    fprintf(out, "%-*s%s\n", indent, label, shown);
    free(shown);
}

// Lines of at most `room` columns, each behind `indent` others, the first of which has the label there.
static void print_folded(FILE *out, const char *label, int indent, int room, const char *text, int length) {
    for (const char *const end = text + length; text < end; label = "") {
        int cut = (int)(end - text);
        if (cut > room)
            for (cut = room; cut > 0 && text[cut] != ' ';) cut--;
        if (cut == 0) // a path longer than the line stays in one piece
            while (text + cut < end && text[cut] != ' ') cut++;
        put_line(out, indent, label, text, cut);
        text += cut + (text + cut < end);
    }
}

void print_item(FILE *out, const char *label, const char *text) {
    enum { WIDEST = 79 };
    const int columns = terminal_columns(fileno(out));
    const int width = columns > 2 * TEXT_COLUMN && columns < WIDEST ? columns : WIDEST;
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
    char text[4 * 4096]; // it may quote paths
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
