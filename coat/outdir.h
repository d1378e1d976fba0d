// The folder that a run writes to: made if missing, and never taken from another run by accident.
#pragma once
#include "config.h"
#include "lock.h"

#ifdef __cplusplus
extern "C" {
#endif

// Whether config->out can be a run's folder: not where it is a checkpoint, or has the name of one. Looks only. Errors:
// EXIT_DATA, naming the run that the checkpoint belongs to.
bool out_check(const Config *config, Error *err);

// Makes config->out, checks that it can be written and takes its lock, which is the caller's to release. A folder that
// holds a run (its log, event files or checkpoints) is refused unless --resume continues it or --overwrite gives it up;
// nothing is deleted yet. Errors: EXIT_DATA, naming the folder.
bool out_prepare(const Config *config, Lock *lock, Error *err);

// With --overwrite, deletes the old run's log and checkpoints, and nothing else: once everything that could still fail
// has been read, a model from the same folder included.
bool out_clear(const Config *config, Error *err);

#ifdef __cplusplus
}
#endif
