// Reads a checkpoint's recorded settings before any of its tensors is loaded.
#pragma once
#include "config/config.h"

C_LINKAGE_BEGIN

// Sets `recorded`, an argument of config_parse(), to the defaults and then to the recorded settings of the run that
// `flags` continue:
//   - The settings come from the newest checkpoint that --resume finds or, if nothing is trained, from the checkpoint
//     that --model names. A checkpoint with a damaged record is skipped.
//   - shape_files and shape come from the newest checkpoint with an undamaged shape; an unreadable shape has 0 layers.
// If there is no checkpoint yet, a training run applies the settings and the model of OUT/log.jsonl (settings_logged).
// Fails (EXIT_DATA) if this version does not know a recorded setting or its value.
bool checkpoint_settings(Config *recorded, const Config *flags, Error *err);

C_LINKAGE_END
