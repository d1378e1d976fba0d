// Reads the settings that a checkpoint recorded, before any of its tensors are loaded.
#pragma once
#include "config/config.h"

C_LINKAGE_BEGIN

// Sets `recorded`, for config_parse(), to the defaults and the recorded settings of the run that `flags` continue:
// - the settings (settings_apply()) of the newest checkpoint that --resume finds or, if nothing is trained, of the one
// that --model names. A checkpoint whose record is damaged is skipped.
// - shape_files and shape, of the newest checkpoint that --resume finds and that has a shape; 0 layers if it cannot be
// read.
// If there is no checkpoint yet, a training applies settings and model of OUT/log.jsonl (settings_logged), if it has
// any. Fails (EXIT_DATA) if a recorded setting or value is unknown to this version.
bool checkpoint_settings(Config *recorded, const Config *flags, Error *err);

C_LINKAGE_END
