// Records a run's settings in a checkpoint's state.json and in the log, and applies recorded settings to a run that
// continues from either. The table of flags determines which settings are recorded.
#pragma once
#include "flags.h"
#include "io/json.h"

// Writes the flags that checkpoints record (RECORDED) as fields of the JSON object that is open in `t`.
void settings_record(JsonText *t, const Config *config);

// Returns the settings that the log's first record contains (LOGGED), as a JSON object on one line. config is the run's
// final configuration. A setting without a value is null. The caller must release the text with json_text_free().
JsonText settings_log(const Config *config);

// Applies recorded settings to `config`, which holds the defaults. `settings` is an object of the file `path`.
//   recipe: true if the recorded recipe is applied
//   flags:  the command line, which says whether the run trains (applies RESUMED), evaluates (EVALUATED) or samples
//           (SAMPLED)
//   config->settings_logged: `settings` come from the log; RESTARTED are applied
// seq_len becomes 0 if it is not recorded. Fails (EXIT_DATA) if this version does not know a setting, or the value of
// one that is applied; the error names setting, value and file.
bool settings_apply(Config *config, const json_t *settings, bool recipe, const Config *flags, const char *path,
                    Error *err);

// Compares recorded settings with `config`. A difference in --precision is an error (EXIT_DATA), because it decides the
// format of the weights. Calls `differs` for every other difference, except in the length of the run.
// path: the file of `settings`, for the error
bool settings_compare(const json_t *settings, const Config *config, const char *path,
                      void (*differs)(const char *flag, const char *recorded, const char *now), Error *err);

// Replaces the settings of earlier versions in `settings`: renames them, and replaces settings whose values a recipe
// now fixes with "recipe". Fails (EXIT_DATA) if no recipe has these values; "recipe" is then the nearest recipe. `path`
// names the file in the error.
bool settings_update(json_t *settings, const char *path, Error *err);

// Hash the settings that must be equal on all ranks. Hashes are never negative.
// recipe_fingerprint     the recipe
// training_fingerprint   everything else that training results depend on: shape, batch, optimizer, order of the data
// flags_fingerprint      all flags that ranks must agree on (SHARED)
// flag_fingerprint       a single flag; 0 if ranks may differ in it
// A flag that names files contributes only whether it is given.
int64_t recipe_fingerprint(const Config *config);
int64_t training_fingerprint(const Config *config);
int64_t flags_fingerprint(const Config *config);
int64_t flag_fingerprint(const Config *config, const Flag *flag);
