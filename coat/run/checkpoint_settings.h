// Reads the settings that a checkpoint or log.jsonl records, before the model is created.
#pragma once
#include "config/config.h"

C_LINKAGE_BEGIN

// Sets *recorded to the defaults, overridden by the settings that an earlier run recorded. config_parse() then applies
// the command line to *recorded. flags: values of the given flags.
//   - With --resume, the settings come from the newest checkpoint in --out (or from the checkpoint of --resume=STEP)
//     whose state.json is undamaged. If there is none and nothing is trained, they come from the folder of --model.
//   - With --resume, shape and shape_files come from the newest checkpoint in --out whose config.json, tokenizer files
//     and generation_config.json are undamaged, or else from the newest one whose config.json is undamaged. If that
//     config.json cannot be parsed, shape.layers is 0.
//   - If --out has no checkpoint, a training run with --resume takes settings and model from OUT/log.jsonl, and sets
//     settings_logged, or nothing_to_resume if log.jsonl records no settings.
// Fails (EXIT_DATA) if this version does not support a recorded setting or its value.
bool checkpoint_settings(Config *recorded, const Config *flags, Error *err);

C_LINKAGE_END
