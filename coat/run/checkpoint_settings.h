// What the checkpoint records that a run goes on from, before anything of it is loaded.
#pragma once
#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

// The defaults and on top of them what is recorded, for config_parse(), where the command line's `flags` go on from a
// checkpoint:
// - the settings (config_take_settings()) of the newest that --resume can find or, where nothing is trained, of that
//   which --model names. One with a damaged record, or with a value that no flag takes, is ignored.
// - shape_files, the folder of the newest that --resume can find and that has a shape, and the shape; of 0 layers
//   where it cannot be read.
void checkpoint_settings(Config *recorded, const Config *flags);

#ifdef __cplusplus
}
#endif
