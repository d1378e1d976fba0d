// What a run keeps of the log that it finds. (log_set_aside() of log.h is here too.)
#pragma once
#include <stdint.h>

#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rewrites the log without the lines of first_step and later and without damaged ones: into a file beside it, which then
// takes its name, so that a crash leaves either the old log or the new one. *val_step, *hellaswag_step: the last whose
// evaluation it keeps, untouched where there is none. False with err (EXIT_DATA): it cannot be rewritten. No log: true.
bool log_trim(const char *path, int64_t first_step, int64_t *val_step, int64_t *hellaswag_step, Error *err);

#ifdef __cplusplus
}
#endif
