// Reads the log.jsonl of a resumed run, finds where to cut this file off, and copies the lines of an abandoned run.
#pragma once
#include <jansson.h>
#include <stdint.h>

#include "config/config.h"
#include "step_line.h"

// Compares the log `path` with a checkpoint of `step` that records the loss `loss`. If the log has a different loss for
// `step`, or has earlier steps but not `step`, writes the contradiction to `text`; otherwise "". If there is a
// contradiction, the checkpoint is probably from another run, because identical runs have identical losses.
void log_contradiction(const char *path, int64_t step, double loss, char *text, size_t size);

// Copies the log lines of first_step and later steps to a new file, log-abandoned-STEP.jsonl (STEP is first_step - 1).
// Copies only if this run abandons these lines: with --resume=STEP, with --resume if there is no checkpoint, or if
// `other` is true. other: the checkpoint is from another run than the log. Call it on rank 0, before the checkpoints of
// the abandoned run are renamed and before log_open() removes the lines. Then a crash at any time loses no line. Fails
// (EXIT_DATA) if the log cannot be read or the new file cannot be written.
bool log_copy_abandoned(const Config *config, int64_t first_step, bool other, Error *err);

// Results of scanning a log file with log_scan().
typedef struct {
    int64_t cut; // byte offset of the end of the last valid line before first_step
    int64_t end; // byte offset of the end of the last valid line; an incomplete line may follow after a crash
    int64_t val_step, hellaswag_step; // steps of the last val_loss and hellaswag lines before `cut`; -1: none
    Losses losses;                    // losses of the lines before `cut`
    int64_t loss_step;                // last training step before `cut`; -1: none
    double loss;                      // loss of loss_step; NAN: not finite
    json_t *settings;                 // last settings before `cut`, which the caller releases; NULL: none
} LogScan;

// Reads the log `path` and fills *scan. A missing file counts as empty. Fails (EXIT_DATA) if the file cannot be read or
// is a link; scan->settings must not be released then.
bool log_scan(const char *path, int64_t first_step, LogScan *scan, Error *err);

// Returns the last settings that the log file `path` records, which the caller releases; NULL if there are none or if
// the file cannot be read.
json_t *log_last_settings(const char *path);
