// Records a run's settings in a checkpoint's state.json and in the log, and applies recorded settings to a run that
// continues from either. The table of flags determines which settings are recorded.
#pragma once
#include "flags.h"
#include "io/json.h"

// Writes the flags that checkpoints record (RECORDED) as fields of the JSON object that is open in `t`.
void settings_record(JsonText *t, const Config *config);

// Returns the settings that log.jsonl records (LOGGED, LOGGED_UNLESS_DEFAULT), as a JSON object on one line. config is
// the run's final configuration. A setting without a value is null. The caller must call json_text_free().
JsonText settings_log(const Config *config);

// Applies recorded settings to `config`, which contains the defaults. `settings` is a JSON object from the file `path`.
//   - A setting of the recipe (GROUP_RECIPE) is applied if `recipe` is true. `flags` is the command line.
//   - Any setting is applied if its flag has this run's bit in Flag.uses: RESTARTED if config->settings_logged is true;
//     otherwise RESUMED if the run trains, EVALUATED if it evaluates, SAMPLED if it samples.
//   - seq_len becomes 0 if it is not recorded.
// Fails (EXIT_DATA) if this version has no flag for a setting, or if a value to be applied is invalid for its flag; err
// names setting, value and file. Also fails if `recipe` is true and neither a recipe nor precision fp32 is recorded.
bool settings_apply(Config *config, const json_t *settings, bool recipe, const Config *flags, const char *path,
                    Error *err);

// Compares the recorded settings of the file `path` with `config`, except the model's settings. Fails (EXIT_USER) if
// --precision differs, because --precision determines the format of the weights. Also fails if --optimizer differs in a
// training run, because --optimizer determines the optimizer states. Calls `differs` for every other difference, except
// in the length of the run (--steps, --epochs).
bool settings_compare(const json_t *settings, const Config *config, const char *path,
                      void (*differs)(const char *flag, const char *recorded, const char *now), Error *err);

// Converts `settings`, which an earlier version may have written to the file `path`: renames old settings, and replaces
// settings that a recipe now determines with the setting "recipe". If no recipe has their values, sets "recipe" to the
// nearest recipe and fails (EXIT_DATA).
bool settings_update(json_t *settings, const char *path, Error *err);

// Return non-negative hashes of settings that must be equal on all ranks.
//   - recipe_fingerprint(): the recipe.
//   - training_fingerprint(): all other settings that training results depend on: shape, batch, optimizer, data order.
//   - flags_fingerprint(): all flags that must agree between ranks (SHARED).
//   - flag_fingerprint(): a single flag; 0 if ranks may have different values of the flag.
// All hashes contain only whether a file or folder is given, because paths may differ between ranks.
int64_t recipe_fingerprint(const Config *config);
int64_t training_fingerprint(const Config *config);
int64_t flags_fingerprint(const Config *config);
int64_t flag_fingerprint(const Config *config, const Flag *flag);
