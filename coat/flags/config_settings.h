// The settings of a run as a checkpoint records them: which of them a run that continues from it takes, and numbers by
// which processes find out that theirs are the same.
#pragma once
#include <jansson.h>

#include "config/config.h"
#include "flags.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sets the recorded settings in config. `settings` is an object of the file `path`.
//   recipe: the recipe is taken, too
//   flags:  if they train, the batch, the optimizer and the order of the data are taken; to evaluate, what its loss
//           depends on; to sample, seq_len and the prompt format
//   config->settings_logged: `settings` are the log's, of which the model and the tokenizer are taken, too
// seq_len becomes 0 if it is not recorded. False with err (EXIT_DATA), which names setting, value and file, if this
// version does not know a setting, or not the value of one that is taken.
bool config_apply_settings(Config *config, const json_t *settings, bool recipe, const Config *flags, const char *path,
                           Error *err);

// A number for a recipe, by which processes find out that theirs are the same. Never negative.
int64_t recipe_fingerprint(const Config *config);

// The same for what else a training computes with: the shape, the batch, the optimizer, the order of the data.
int64_t training_fingerprint(const Config *config);

// The same for one flag, of those above and of what else decides when processes communicate: evaluations, samples,
// saves. Of files it counts only whether they are named. 0 for a flag in which processes may differ.
int64_t flag_fingerprint(const Config *config, const Flag *flag);
// The same for all flags together.
int64_t flags_fingerprint(const Config *config);

#ifdef __cplusplus
}
#endif
