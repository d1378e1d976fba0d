// What a run says: a line per step on the terminal, OUT/log.jsonl for scripts, and the same figures as TensorBoard
// event files (events.h).
//
// log.jsonl has one JSON object per line, in the order of the steps:
//   {"step":1,"loss":..,"grad_norm":..,"lr":..,"tokens":..,"ms":..,"tokens_per_s":..}    a training step
//   {"step":20,"val_loss":..}                                                            a validation
//   {"step":20,"hellaswag":..}                                                           share that was right, 0 to 1
//   {"step":100,"fp8":{"x_in":{"amax":[..],"saturated":[..],"zero":[..]},..}}            the FP8 tensors (health.h)
//   {"step":20,"note":".."}                                                              what happened to the folder
//   {"step":100,"products":{"qkvw":{"error":[..],"bias":[..]}}}                          FP8 matmuls (health.h)
// A step whose update was skipped has "skipped":N too, the number of updates skipped so far; one of data with masks
// "counted":X before "ms", the share of its targets that count, 0 to 1, over which loss is the mean. Numbers that are
// not finite are null. All but ms and tokens_per_s (this step's, not smoothed) are the same in equal runs.
#pragma once
#include <stdint.h>

#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Log Log;

// Opens the log of one process; ranks other than 0 get one that says nothing. Makes the folder config->out where it
// is missing; with config->out "" no file is written.
// first_step: the first step, counted from 1, that this run will log, so a run that resumes from the checkpoint of
//   step 20 passes 21. Lines of steps before it are kept, the others and damaged ones are dropped, by replacing the
//   file at once. 0 or 1: a fresh run, a new file takes the place of an old one.
// peak_flops: FLOP/s of all devices together, 0 where unknown: then no share of peak is shown.
// parameters: of the model, for the FLOPs of a token.
// Returns NULL with err (EXIT_DATA) when the folder or file cannot be written.
Log *log_open(const Config *config, int rank, int64_t total_steps, int64_t first_step, double peak_flops,
              int64_t parameters, Error *err);

// How many updates had been skipped when the run began here, so that its first step shows whether it was one.
void log_resume(Log *log, int64_t skipped);

// The share of the targets that count, of the steps from the next one on. Without it all do, and no line says so.
void log_counted(Log *log, double share);

// One training step. step: steps done, this one included; grad_norm: before clipping; ms: wall time of the step;
// tokens_total, tokens_step: trained so far and in this step, over all ranks; skipped: updates skipped so far.
// The terminal shows the first and last one, those of which --log-every is a divisor or whose update was skipped, and
// the one before whatever is said next by the functions below, but log_text().
void log_step(Log *log, int64_t step, double loss, double grad_norm, double lr, double ms, int64_t tokens_total,
              int64_t tokens_step, int64_t skipped);

// Shows the latest step where it has not been shown, because something follows that is about it.
void log_show_step(Log *log);

// A validation after `step` steps. One that the file has already, as a resumed run may find, is not written again.
bool log_has_val(const Log *log, int64_t step);
void log_val(Log *log, int64_t step, double val_loss);

// A test with HellaSwag after `step` steps: how many examples were right. The same holds.
bool log_has_hellaswag(const Log *log, int64_t step);
void log_hellaswag(Log *log, int64_t step, int right, int examples);

// An object after `step` steps, as JSON text. Of figures of tensors, {TENSOR:{FIGURE:[one per layer],..},..},
// TensorBoard has the largest over the layers, as KEY/TENSOR/FIGURE.
void log_object(Log *log, int64_t step, const char *key, const char *json);

// What the run is made with, a JSON object, unless earlier lines have just that.
void log_settings(Log *log, int64_t step, const char *json);

// One informational line (the newline is added) to stdout; nothing with --quiet; to stderr with --json.
__attribute__((format(printf, 2, 3))) void log_text(Log *log, const char *format, ...);

// For the last line: there is a checkpoint of the step, and nonfinite is a tensor of its weights that has values that
// are not finite; NULL: none has.
void log_saved(Log *log, int64_t step, const char *nonfinite);

// Looks whether log.jsonl and the event file are still there. Those that were removed or replaced are made again in
// `folder`, with all that they held; a file that has the name of log.jsonl by then is kept as log-replaced-1.jsonl
// or the next number that is free, one that has the event file's as events-replaced-1. what: what has happened to
// the folder before, and has been said; NULL: nothing. The log has a line of it, or of what has happened to
// log.jsonl, which is said on stderr.
void log_keep(Log *log, const char *folder, const char *what);

// Another descriptor of log.jsonl, for who has to flush it to the disk; -1 where there is no file.
int log_descriptor(const Log *log);

// The last line, also with --quiet, and the end of the log. It says so where the run has failed though its program has
// not: weights, a loss or a gradient that are not finite, or a loss above that of the first step; with --json, which
// has no last line, to stderr. NULL is allowed.
void log_close(Log *log);

// Floating-point operations of forward and backward for one token: 6 per parameter, and causal attention's two
// matmuls, 6 * L * C * T in all.
double log_flops_per_token(const Config *config, int64_t parameters);

#ifdef __cplusplus
}
#endif
