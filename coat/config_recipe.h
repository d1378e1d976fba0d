// What a run takes from the checkpoint that it goes on from: the recipe, what else decides its course, and the shape.
// Internal to the config modules.
#pragma once
#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sets in config what the checkpoint records that the run goes on from, for flags to be set on top: the recipe, if no flag
// names one, the batch, the optimizer and the order of the data; where nothing is trained, of these seq_len and, to
// evaluate, micro_batch. seq_len is 0 where it is not recorded. The checkpoint is the one that --resume will find or,
// where nothing is trained, that --model names; one with a value that no flag takes is passed over. `flags` holds the
// flags' values. False where there is none; config is as it was then.
bool settings_recorded(const Config *flags, bool recipe_named, bool model_from_files, Config *config);

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
