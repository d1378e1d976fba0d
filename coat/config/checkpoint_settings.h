// Which checkpoint a run goes on from, before anything of it is loaded: for its settings and its shape.
#pragma once
#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Takes the settings (config_take_settings()) of the newest checkpoint that --resume can find or, where nothing is trained,
// of that which --model names. One with a damaged record, or with a value that no flag takes, is ignored. `flags` holds
// the flags' values, `recipe` says whether the recipe is taken too. False where there is none; config is as it was then.
bool checkpoint_take_settings(const Config *flags, bool recipe, bool model_from_files, Config *config);

// The folder of the newest checkpoint that --resume can find and that has a shape; false where there is none.
bool checkpoint_find_shape(const Config *flags, char *folder, size_t size);

#ifdef __cplusplus
}
#endif
