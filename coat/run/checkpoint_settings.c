#include "checkpoint_settings.h"

#include <stdlib.h>
#include <string.h>

#include "flags/settings.h"
#include "io/files.h"
#include "io/json.h"
#include "log/log_trim.h"
#include "save/checkpoint.h"
#include "save/hf.h"
#include "save/manifest.h"
#include "save/run_state.h"

#define STATE_LIMIT ((size_t)1 << 20)

// Applies the recorded `settings` of the file `path`. A recipe on the command line overrides the recorded recipe.
static bool apply_record(json_t *settings, const char *path, const Config *flags, Config *recorded, Error *err) {
    Error ignored;
    const bool recipe = !flags->recipe_final;
    return (settings_update(settings, path, recipe ? err : &ignored) || !recipe) &&
           settings_apply(recorded, settings, recipe, flags, path, err);
}

// True if the checksum of the file `name` in the checkpoint `folder` matches. If name is NULL, checks all files that
// contain no tensors.
static bool is_undamaged(const char *folder, const char *name) {
    Manifest manifest;
    Error ignored;
    if (!manifest_open(&manifest, folder, &ignored)) return false;
    const bool good = name ? manifest_check_file(&manifest, name, &ignored) : manifest_check_texts(&manifest, &ignored);
    manifest_close(&manifest);
    return good;
}

// The functions below are arguments of apply_newest(). They return false if the checkpoint in `folder` is damaged;
// apply_newest() then tries an older checkpoint, unless a function has set err->code.

static bool apply_settings(const char *folder, const Config *flags, Config *recorded, Error *err) {
    char path[PATH_MAX_LENGTH + 64];
    Error ignored;
    if (!is_undamaged(folder, STATE_NAME) || !path_join(path, sizeof path, folder, STATE_NAME, &ignored)) return false;
    json_t *state = json_read_object(path, STATE_LIMIT, &ignored);
    if (!state) return false;
    const bool good = apply_record(json_object_get(state, "settings"), path, flags, recorded, err);
    if (good) recorded->recorded_step = checkpoint_step(folder);
    json_decref(state);
    return good;
}

// Applies the model shape in config.json of the checkpoint in `folder` to `recorded`.
static bool apply_shape(const char *folder, const Config *flags, Config *recorded, Error *err) {
    (void)flags, (void)err;
    Error ignored;
    if (!is_undamaged(folder, HF_CONFIG_NAME)) return false;
    snprintf(recorded->shape_files, sizeof recorded->shape_files, "%s", folder);
    if (!model_shape_from_files(folder, &recorded->shape, &ignored)) memset(&recorded->shape, 0, sizeof(ModelShape));
    return true;
}

// Applies the model shape of a checkpoint only if its tokenizer files and generation_config.json are undamaged, because
// the run reads these files, too.
static bool apply_undamaged_shape(const char *folder, const Config *flags, Config *recorded, Error *err) {
    return is_undamaged(folder, NULL) && apply_shape(folder, flags, recorded, err);
}

// Calls apply() for the checkpoints in --out, the newest first, until apply() succeeds or sets err. With --resume=STEP,
// calls apply() only for the checkpoint of STEP.
static bool apply_newest(bool (*apply)(const char *folder, const Config *flags, Config *recorded, Error *err),
                         const Config *flags, Config *recorded, Error *err) {
    char folder[PATH_MAX_LENGTH + 64];
    int64_t *steps;
    Error ignored;
    if (!flags->resume || !flags->out[0]) return false;
    int count = checkpoint_steps(flags->out, &steps, &ignored);
    bool applied = false;
    for (int i = 0; i < count && !applied && err->code == EXIT_DONE; i++)
        applied = (flags->resume_step < 0 || steps[i] == flags->resume_step) &&
                  checkpoint_folder(flags->out, steps[i], folder, sizeof folder, &ignored) &&
                  apply(folder, flags, recorded, err);
    free(steps);
    return applied;
}

// Applies the settings and the model that OUT/log.jsonl records, for a run that ended before its first checkpoint. Also
// returns true if the log records no settings.
static bool apply_logged(const Config *flags, Config *recorded, Error *err) {
    char path[PATH_MAX_LENGTH + 64];
    Error ignored;
    json_t *settings = path_join(path, sizeof path, flags->out, "log.jsonl", &ignored) ? log_last_settings(path) : NULL;
    recorded->settings_logged = settings != NULL;
    recorded->nothing_to_resume = !settings;
    if (!settings) return true;
    const bool good = apply_record(settings, path, flags, recorded, err);
    recorded->settings_recorded = good;
    json_decref(settings);
    return good;
}

bool checkpoint_settings(Config *recorded, const Config *flags, Error *err) {
    Error ignored;
    config_defaults(recorded);
    err->code = EXIT_DONE;
    const bool of_model = flags->model_from_files && config_forward_only(flags) && path_is_folder(flags->model);
    recorded->settings_recorded = apply_newest(apply_settings, flags, recorded, err);
    if (!recorded->settings_recorded && of_model && err->code == EXIT_DONE)
        recorded->settings_recorded = apply_settings(flags->model, flags, recorded, err);
    if (!apply_newest(apply_undamaged_shape, flags, recorded, err)) apply_newest(apply_shape, flags, recorded, err);
    if (err->code != EXIT_DONE) return false;
    const bool may_start = flags->resume && flags->resume_step < 0 && flags->out[0] && config_trains(flags);
    return !may_start || checkpoint_expect(flags->out, -1, &ignored) || apply_logged(flags, recorded, err);
}
