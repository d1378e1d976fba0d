// The log of a run: a line per step on the terminal, OUT/log.jsonl for scripts, and TensorBoard event files with the
// same metrics (events.h).
//
// log.jsonl contains one JSON object per line, in the order of the steps:
//   {"step":0,"settings":{..}}                                                      the run's settings (settings_log())
//   {"step":1,"loss":..,"grad_norm":..,"lr":..,"tokens":..,"ms":..,"tokens_per_s":..}                   a training step
//   {"step":20,"val_loss":..}                                                                              a validation
//   {"step":20,"val_loss":..,"val_accuracy":..}    a validation of a vision-language model with a loss mask in the data
//   {"step":20,"hellaswag":..}                                                      fraction of correct answers, 0 to 1
//   {"step":100,"fp8":{"x_in":{"amax":[..],"saturated":[..],"zero":[..]},..}}      statistics of FP8 tensors (health.h)
//   {"step":100,"attention":{"lse":{"max":[..]}}}               largest log-sum-exp of logits (health_attention_json())
//   {"step":100,"activation":{"g":{"outlier":[..],"kurtosis":[..]}}}                outliers (health_activation_json())
//   {"step":100,"optimizer":{"wte":{"lag":[..]},..}}                    lag of second moments (health_optimizer_json())
//   {"step":20,"train":[{"set":..,"sequences":..,"tokens":..,"epochs":..},..]}         amount read of each training set
//   {"step":20,"note":".."}                             log.jsonl was removed or replaced, so earlier lines are missing
//   {"step":100,"products":{"qkvw":{"error":[..],"bias":[..]}}}           FP8 wgrad compared with BF16 wgrad (health.h)
// If a step's update was skipped, the step's line has "skipped":N, the number of updates skipped so far. If the data
// has a loss mask, "counted":X is the fraction of unmasked targets, and loss is the mean over these targets. Non-finite
// numbers are null. val_accuracy is the fraction of answers that are right (evaluate_loss() in evaluate.h). ms and
// tokens_per_s describe one step and are not averaged. All numbers except ms and tokens_per_s are the same in identical
// runs.
#pragma once
#include <stdint.h>

#include "config/config.h"

C_LINKAGE_BEGIN

typedef struct Log Log;

// Opens the log of one process. On ranks other than 0 all functions do nothing. Creates the folder config->out if it is
// missing; if config->out is "", writes no file.
// first_step: the first step, counted from 1, that this run logs: 21 after a resume from step 20. log.jsonl is cut
//   off before the first line of this step or a later step, and after the last valid line. 0 or 1: removes all lines.
// peak_flops: FLOP/s of all devices together; 0: unknown, and no percentage of the peak is printed.
// Returns NULL with err (EXIT_DATA) if the folder or a file cannot be written.
Log *log_open(const Config *config, int rank, int64_t total_steps, int64_t first_step, double peak_flops, Error *err);

// Sets the number of updates that were skipped before this process started (0 if log_resume() is not called).
void log_resume(Log *log, int64_t skipped);

// Sets the fraction of unmasked targets for the following steps. Without this call, log lines have no key "counted".
void log_counted(Log *log, double fraction);

// Logs a training step.
// step: steps done, including this one; grad_norm: gradient norm before clipping; ms: wall time of the step
// tokens_total, tokens_step: tokens trained so far and in this step, over all ranks
// flops: FLOPs of this step over all ranks, for the percentage of the peak; skipped: updates skipped so far
// The terminal shows the first and the last step, multiples of --log-every, and steps whose update was skipped. Another
// step is printed only if log_show_step(), log_val(), log_hellaswag() or log_close() is called before the next step.
void log_step(Log *log, int64_t step, double loss, double grad_norm, double lr, double ms, int64_t tokens_total,
              int64_t tokens_step, double flops, int64_t skipped);

// Prints the terminal line of the latest step if it was not printed yet. Call it before printing other output about the
// step.
void log_show_step(Log *log);

// Logs a validation after `step` steps. log_has_val() is true if the file's latest validation is of `step`; the result
// is then only printed, not written again.
// accuracy: fraction of answers that are right; NAN: not computed, and not logged
bool log_has_val(const Log *log, int64_t step);
void log_val(Log *log, int64_t step, double val_loss, double accuracy);

// Logs a HellaSwag evaluation after `step` steps: `right` of `examples` were answered correctly. log_has_hellaswag() is
// true if the file's latest evaluation is of `step`; the result is then only printed, not written again.
bool log_has_hellaswag(const Log *log, int64_t step);
void log_hellaswag(Log *log, int64_t step, int right, int examples);

// Logs a JSON text after `step` steps as {"step":..,KEY:JSON}. If the text has the form {TENSOR:{FIGURE:[one number per
// layer],..},..}, each list adds a point to curve KEY/TENSOR/FIGURE in the event file: the list's number with the
// largest magnitude, or NaN if a number is null. Ignores nulls of blocks with BF16 forward matmuls (--bf16-blocks).
void log_object(Log *log, int64_t step, const char *key, const char *json);

// Logs the settings of the run, a JSON object, unless the last settings in the file are the same.
void log_settings(Log *log, int64_t step, const char *json);

// Prints a line to stdout, or to stderr with --json. Adds the newline. Prints nothing with --quiet.
__attribute__((format(printf, 2, 3))) void log_text(Log *log, const char *format, ...);

// Records that a checkpoint of `step` exists, for the warning of log_close(). nonfinite: name of a weight tensor in the
// checkpoint that is not finite; NULL: all weight tensors are finite.
void log_saved(Log *log, int64_t step, const char *nonfinite);

// Reopens log.jsonl and the event file if their names no longer refer to the open files. This happens if the files or
// their folder were removed or replaced. Earlier lines are not copied. If a file cannot be opened, prints a warning.
void log_reopen(Log *log);

// Flushes log.jsonl to the disk. Any thread may call it, except during log_reopen() and log_close().
void log_sync(const Log *log);

// Prints the last line of the run, even with --quiet, and closes the log. With --json, prints no last line. Prints a
// warning if weights, loss or gradient are not finite, or if the loss has risen. With --json, the warning goes to
// stderr. The argument may be NULL.
void log_close(Log *log);

C_LINKAGE_END
