// What a run keeps of the log that it finds.
#pragma once
#include <jansson.h>
#include <stdint.h>

#include "config/config.h"
#include "step_line.h"

#ifdef __cplusplus
extern "C" {
#endif

// Writes to `text` in which way the log `path` contradicts a checkpoint of `step` with this loss: it has another loss
// for the step, or none; "" if it does not, or has no steps. Equal runs have equal losses, so a checkpoint of another
// run is found although checkpoints name no run.
void log_contradiction(const char *path, int64_t step, double loss, char *text, size_t size);

// Copies the lines of first_step and later to a new file, log-abandoned-STEP.jsonl (STEP: the steps before them), if
// another run begins there: because of --resume=STEP, because --resume found no checkpoint, or because of `other`, a
// checkpoint of another run. Is called before the checkpoints of the abandoned run are renamed and before log_open()
// drops these lines, so that every line is in a file after a crash at any time. Rank 0 alone calls it. False with err
// (EXIT_DATA): it cannot be written.
bool log_set_aside(const Config *config, int64_t first_step, bool other, Error *err);

// What the lines that stay say.
typedef struct {
    int64_t val_step, hellaswag_step; // the last that was evaluated; -1: none
    Losses losses;
    uint64_t settings; // log_settings_hash() of the last that are recorded; 0: none are
} LogKept;

// Of the settings as one line; not 0.
uint64_t log_settings_hash(const char *json, size_t length);

// Returns the last settings that the log `path` records, which the caller releases; NULL if there are none.
json_t *log_last_settings(const char *path);

// Rewrites the log without the lines of first_step and later and without damaged ones: into a file beside it, which
// then takes its name, so that a crash leaves either the old log or the new one. False with err (EXIT_DATA): it
// cannot be rewritten. No log: true.
bool log_trim(const char *path, int64_t first_step, LogKept *kept, Error *err);

#ifdef __cplusplus
}
#endif
