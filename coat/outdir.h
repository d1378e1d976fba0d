// The folder that a run writes to: made if missing, and never taken from another run by accident.
#pragma once
#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Makes config->out and checks that it can be written. A folder that holds a run (its log or checkpoints) is
// refused unless --resume continues it or --overwrite gives it up; then the old run's log and checkpoints are
// deleted, and nothing else. Errors: EXIT_DATA, naming the folder.
bool out_prepare(const Config *config, Error *err);

#ifdef __cplusplus
}
#endif
