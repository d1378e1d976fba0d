// What the checkpoint records that a run continues from, before anything of it is loaded.
#pragma once
#include "config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sets `recorded`, for config_parse(), to the defaults and what the run records that `flags` continue:
// - the settings (settings_apply()) of the newest that --resume can find or, if nothing is trained, of the one
//   that --model names. One with a damaged record is passed over.
// - shape_files, the folder of the newest that --resume can find and that has a shape, and the shape; of 0 layers if it
//   cannot be read.
// If there is no checkpoint yet, a training begins with settings and model of OUT/log.jsonl (settings_logged), if it
// has any. False with err (EXIT_DATA) if a setting or a value is recorded that this version does not know.
bool checkpoint_settings(Config *recorded, const Config *flags, Error *err);

#ifdef __cplusplus
}
#endif
