// Writes the line of a training step, the last line of a run, and the warning that may follow the last line.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t step, total_steps;
    double loss, grad_norm, lr, ms;
    double tokens_per_s;  // moving average of tokens per second
    double share_of_peak; // achieved fraction of the peak FLOP/s, 0 to 1; 0: unknown
    double seconds_left;
    int64_t skipped; // number of updates skipped so far
    bool skipped_now;
} StepLine;

// Writes the line of a training step without a newline: in the long form if that fits into `columns` or if `columns` is
// 0, otherwise in the short form, truncated at `columns`. Returns text.
const char *step_line(char *text, size_t size, const StepLine *line, int columns, bool colour);

#define LAST_LOSSES 8

// A run's first finite loss and its latest finite losses. All fields are zero if no loss is known yet.
typedef struct {
    double first, last[LAST_LOSSES]; // last: ring buffer, with loss i at last[i % LAST_LOSSES], i from 0
    int64_t count;                   // number of finite losses so far
} Losses;

// Adds the loss of the next step. Ignores a loss that is not finite.
void losses_add(Losses *losses, double loss);

typedef struct {
    int64_t step, total_steps, skipped;
    double seconds;                   // duration of the steps of this process
    bool trained, validated;          // true: a training loss (trained) or validation loss (validated) exists
    double loss, grad_norm, val_loss; // latest values
    Losses losses;                    // losses of the whole run, including steps read from log.jsonl
    bool earlier;                     // true: a checkpoint of an earlier step exists
    char nonfinite[160];              // name of a weight tensor that is not finite; "": none is known
    int64_t val_step;                 // step of the validation loss
} EndLine;

// Writes "done: 400 of 400 steps, loss 2.501200, val loss 2.601000, 0:02:31 of training" without a newline. If this
// text is longer than `columns` and columns is not 0, writes "done: 400/400, loss 2.5012, val loss 2.6010, 0:02:31"
// instead. The short form omits a validation loss of an earlier step. Returns text.
const char *end_line(char *text, size_t size, const EndLine *line, int columns);

// Returns advice for a run that has diverged. earlier: true if a checkpoint of an earlier step exists.
const char *diverged_advice(bool earlier);

// Writes a warning about a run that ended without an error although training failed: weights, loss or gradient are not
// finite, or the last losses are well above the first. Writes "" for other runs. Returns text.
const char *end_failure(char *text, size_t size, const EndLine *line);

// Prints the line of a training step on standard output, shortened to the terminal's width.
void step_line_print(const StepLine *line, bool colour);
