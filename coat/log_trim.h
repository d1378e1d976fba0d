// What a run keeps of the log that it finds. (log_set_aside() of log.h is here too.)
#pragma once
#include <stdint.h>

#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the lines that stay say.
typedef struct {
    int64_t val_step, hellaswag_step; // the last that was evaluated; -1: none
    double first_loss;                // the first that is finite; NAN: none
    int64_t first_step;               // which that is of
} LogKept;

// Rewrites the log without the lines of first_step and later and without damaged ones: into a file beside it, which then
// takes its name, so that a crash leaves either the old log or the new one. False with
// err (EXIT_DATA): it cannot be rewritten. No log: true.
bool log_trim(const char *path, int64_t first_step, LogKept *kept, Error *err);

#ifdef __cplusplus
}
#endif
