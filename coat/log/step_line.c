#include "step_line.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/format_text.h"
#include "terminal.h"

#define RISEN 1.3 // a warning is printed if the mean of the last losses exceeds 1.3 times the first loss

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
    else if ((size_t)columns < size) {
        while (columns > 0 && text[columns] != ' ')
            columns--; // cuts at a space, because a truncated number would be wrong
        text[columns] = '\0';
    }
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

// Writes a warning if the mean of the last losses is well above the first loss, otherwise "". Averages the last
// LAST_LOSSES losses or, if there are fewer than twice as many, the second half of all losses.
static void warn_risen(const Losses *losses, char *text, size_t size) {
    const int last = (int)(losses->count < 2 * LAST_LOSSES ? (losses->count + 1) / 2 : LAST_LOSSES);
    double sum = 0.0;
    text[0] = '\0';
    for (int i = 0; i < last; i++) sum += losses->last[(losses->count - 1 - i) % LAST_LOSSES];
    if (losses->count >= 5 && sum / last > RISEN * losses->first)
        snprintf(text, size,
                 "the loss has risen, from %.4f in the first step to %.4f in the last %d steps; try a smaller --lr",
                 losses->first, sum / last, last);
}

const char *end_failure(char *text, size_t size, const EndLine *line) {
    const bool trained_well = !line->trained || (isfinite(line->loss) && isfinite(line->grad_norm));
    const bool finite = trained_well && (!line->validated || isfinite(line->val_loss));
    const char *advice = diverged_advice(line->earlier);
    text[0] = '\0';
    if (line->nonfinite[0])
        snprintf(text, size, "the weights are not finite (%s); %s", line->nonfinite, advice);
    else if (!finite)
        snprintf(text, size, "the last loss or gradient is not finite; %s", advice);
    else if (line->trained)
        warn_risen(&line->losses, text, size);
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

void step_line_print(const StepLine *line, bool colour) {
    char text[512];
    puts(step_line(text, sizeof text, line, terminal_columns(STDOUT_FILENO), colour));
    fflush(stdout);
}
