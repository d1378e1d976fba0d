// What a run keeps of the log that it finds.
#pragma once
#include <jansson.h>
#include <stdint.h>

#include "config.h"
#include "step_line.h"

#ifdef __cplusplus
extern "C" {
#endif

// Copies the lines of first_step and later, where another run begins, because of --resume=STEP or because
// --resume found no checkpoint, to a new file, log-abandoned-STEP.jsonl: the steps before them. To be called before the
// checkpoints of the abandoned run are renamed and before log_open() drops these lines, so that whatever of this a
// crash comes between, every line is in a file. Rank 0 alone does so. False with err (EXIT_DATA): it cannot be written.
bool log_set_aside(const Config *config, int64_t first_step, Error *err);

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
