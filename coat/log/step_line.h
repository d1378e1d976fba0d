// The line that a training step shows on the terminal, the last line of a run, and the
// small formats that it is made of.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t step, total_steps;
    double loss, grad_norm, lr, ms;
    double tokens_per_s;  // smoothed
    double share_of_peak; // 0 to 1; 0 = unknown
    double seconds_left;
    int64_t skipped; // updates skipped so far
    bool skipped_now;
} StepLine;

// Writes the line without its newline, in words where they fit into `columns` and shortened where not: 80 columns hold
// all figures, narrower ones the step, the loss and as many others as fit. columns 0: always in words. Returns text.
const char *step_line(char *text, size_t size, const StepLine *line, int columns, bool colour);

#define MAX_COMPARED 8 // losses at either end of a run

// The first losses of a run and the last, of those that are finite; zero: none.
typedef struct {
    double first[MAX_COMPARED], last[MAX_COMPARED]; // last: loss i is at i % MAX_COMPARED
    int64_t count;
} Losses;

void losses_add(Losses *losses, double loss);

typedef struct {
    int64_t step, total_steps, skipped;
    double seconds;                   // of the steps that this process did
    bool trained, validated;          // whether there are losses
    double loss, grad_norm, val_loss; // the latest
    Losses losses;                    // of the whole run, as far as they are known
    bool earlier;                     // there is a checkpoint of an earlier step
    char nonfinite[64];               // a tensor of the weights that is not finite; "": none is known
    int64_t val_step;                 // of the validation
} EndLine;

// "done: 400 of 400 steps, loss 2.501200, val loss 2.601000, 0:02:31 of training"; where that does not fit into
// `columns`, "done: 400/400, loss 2.5012, val loss 2.6010, 0:02:31". A validation of an earlier step is "val loss
// 2.601000 of step 200", or "val loss 2.6010 at 200", or left away at last. columns 0: in words.
const char *end_line(char *text, size_t size, const EndLine *line, int columns);

// What to do about a run that has diverged, with a checkpoint of an earlier step or without one.
const char *diverged_advice(bool earlier);

// What to say of a run that has failed though its program has not: weights, a loss or a gradient that are not finite,
// or a loss that has risen, by the means of its first and its last steps and beyond what these vary by. "" of any
// other, and of fewer than five steps.
const char *end_failure(char *text, size_t size, const EndLine *line);

// Prints it on standard output, as wide as that is now.
void step_line_print(const StepLine *line, bool colour);

// Prints an item of the page that a run begins with: broken at blanks and continued in the same column, as wide as the
// terminal behind the stream, 79 columns at most.
void print_item(FILE *out, const char *label, const char *text);

// Prints a remark or an error behind its label, "note: " or "error: " or none: as one line,
// on a terminal as wide as that.
void print_labelled(FILE *out, const char *label, const char *text);

// The same of a format and its arguments; print_remark() on standard error.
void print_remark_of(FILE *out, const char *label, const char *format, va_list args);
__attribute__((format(printf, 2, 3))) void print_remark(const char *label, const char *format, ...);

// Prints remarks, lines that begin with "note: " and end with a newline, in the same way.
void print_notes(FILE *out, const char *notes);

// Columns of the terminal behind the stream; 0 where it is none. What a launcher started has none: mpirun gives rank 0
// a terminal of its own making, whatever the stream behind it leads to.
int terminal_columns(int fd);
// Whether the stream shows colours: a terminal that is not dumb, or whatever it is with CLICOLOR_FORCE in the
// environment (bixense.com/clicolors; 0 is as if unset); never with NO_COLOR (no-color.org).
bool terminal_colours(int fd);

#define COLOUR_BOLD "\033[1m"
#define COLOUR_GREEN "\033[32m"
#define COLOUR_RED "\033[31m"
#define COLOUR_END "\033[0m"

void format_duration(char *text, size_t size, double seconds); // 3725 -> "1:02:05"
void format_expected(char *text, size_t size, double seconds); // "1:02:05 more, until 2026-11-23 09:30 UTC"
void format_count(char *text, size_t size, double value);      // 1234567 -> "1,234,567"

#ifdef __cplusplus
}
#endif
