#include "checkpoint_settings.h"

#include <stdlib.h>

#include "config_settings.h"
#include "io/files.h"
#include "io/json.h"
#include "save/checkpoint.h"
#include "save/hf.h"
#include "save/manifest.h"
#include "save/run_state.h"

#define STATE_LIMIT ((size_t)1 << 20)

// What is asked of a checkpoint, and where it goes.
typedef struct {
    const Config *flags;
    bool recipe;
    Config *config;
} Taking;

static bool take_settings(const char *folder, const Taking *taking) {
    char path[PATH_MAX_LENGTH + 64];
    Manifest manifest;
    Error ignored;
    if (!manifest_open(&manifest, folder, &ignored)) return false;
    bool good = manifest_check_file(&manifest, STATE_NAME, &ignored) &&
                path_join(path, sizeof path, folder, STATE_NAME, &ignored);
    manifest_close(&manifest);
    json_t *state = good ? json_read_object(path, STATE_LIMIT, &ignored) : NULL;
    if (!state) return false;
    json_t *settings = json_object_get(state, "settings");
    settings_rename(settings);
    good = config_take_settings(taking->config, settings, taking->recipe, taking->flags);
    if (good) taking->config->recorded_step = checkpoint_step(folder);
    json_decref(state);
    return good;
}

// config.json, and generation_config.json where there is one, as the checkpoint was saved with them: both are read.
static bool has_shape(const char *folder, const Taking *unused) {
    (void)unused;
    Manifest manifest;
    Error ignored;
    if (!manifest_open(&manifest, folder, &ignored)) return false;
    bool good =
        manifest_check_file(&manifest, HF_CONFIG_NAME, &ignored) &&
        (!folder_has_file(folder, HF_GENERATION_NAME) || manifest_check_file(&manifest, HF_GENERATION_NAME, &ignored));
    manifest_close(&manifest);
    return good;
}

// The newest checkpoint in --out, or that of --resume=STEP, that has what is asked for.
static bool find_resumed(const Config *flags, bool (*has)(const char *folder, const Taking *taking),
                         const Taking *taking, char *folder, size_t size) {
    int64_t *steps;
    Error ignored;
    if (!flags->resume || !flags->out[0]) return false;
    int count = checkpoint_steps(flags->out, &steps, &ignored);
    bool found = false;
    for (int i = 0; i < count && !found; i++)
        found = (flags->resume_step < 0 || steps[i] == flags->resume_step) &&
                checkpoint_folder(flags->out, steps[i], folder, size, &ignored) && has(folder, taking);
    free(steps);
    return found;
}

bool checkpoint_find_shape(const Config *flags, char *folder, size_t size) {
    if (find_resumed(flags, has_shape, NULL, folder, size)) return true;
    folder[0] = '\0';
    return false;
}

bool checkpoint_take_settings(const Config *flags, bool recipe, bool model_from_files, Config *config) {
    char folder[PATH_MAX_LENGTH + 64];
    const Taking taking = {flags, recipe, config};
    return find_resumed(flags, take_settings, &taking, folder, sizeof folder) ||
           (model_from_files && config_forward_only(flags) && path_is_folder(flags->model) &&
            take_settings(flags->model, &taking));
}
