// Reads the settings that a checkpoint or log.jsonl records, before the model is created.
#pragma once
#include "config/config.h"

C_LINKAGE_BEGIN

// Sets *recorded to the defaults, overridden by the settings that an earlier run recorded. config_parse() then applies
// the command line to *recorded. flags: values of the given flags.
//   - With --resume, the settings come from the newest checkpoint in --out whose state.json is undamaged. shape and
//     shape_files come from the newest checkpoint whose files without tensors are all undamaged, or else from the newest
//     one whose config.json is undamaged. If that config.json cannot be parsed, shape.layers is 0. With --resume=STEP,
//     all come from the checkpoint of STEP.
//   - Without training, if no settings were found there, they come from the folder of --model.
//   - If --out has no checkpoint, a training run with --resume takes settings and model from OUT/log.jsonl and sets
//     settings_logged. If log.jsonl records no settings, it sets nothing_to_resume instead.
// Fails (EXIT_DATA) if this version does not support a recorded setting or its value.
bool checkpoint_settings(Config *recorded, const Config *flags, Error *err);

C_LINKAGE_END
