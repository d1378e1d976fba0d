// What a run takes from the checkpoint that it goes on from: its recipe where --recipe does not name it, what else decides
// its course, and its shape.
// Internal to the config modules.
#pragma once
#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sets config->recipe to that of the checkpoint which the run goes on from: the one that --resume will find, or, where
// nothing is trained, the one that --model names. `flags` holds the flags' values. False where there is none or it
// records none; config is as it was then.
bool recipe_recorded(const Config *flags, bool model_from_files, Config *config);

// Sets in config what that checkpoint records of the batch, the optimizer and the order of the data (where nothing is
// trained, of the sequences' length alone), for flags to be set on top. False where --resume will find none.
bool training_recorded(const Config *flags, Config *config);

// The folder of the checkpoint that --resume will find, for its shape; false where there is none.
bool resumed_checkpoint(const Config *flags, char *folder, size_t size);

// Whether FP8, where the recipe has it, can take the shape and the batch.
bool recipe_check_shape(const Config *config, Error *err);

// The last word on the recipe: one that FP8 cannot compute here becomes bf16, with a note, unless it is settled; then
// it is refused (because of the shape; the device refuses by itself). Settles it.
bool recipe_settle(Config *config, Error *err);

#ifdef __cplusplus
}
#endif
