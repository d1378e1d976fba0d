#include "config_recipe.h"

#include <string.h>

#include <xxhash.h>

#include "checkpoint.h"
#include "files.h"
#include "flags.h"
#include "json.h"
#include "manifest.h"
#include "run_state.h"

#define STATE_FILE "state.json"
#define CONFIG_FILE "config.json"
#define STATE_LIMIT ((size_t)1 << 20)

// ---------------------------------------------------------------- what a checkpoint records

static bool setting_is(const json_t *settings, const char *key, const char *value) {
    const char *text = json_string_value(json_object_get(settings, key));
    return text && strcmp(text, value) == 0;
}

// The settings that are taken, each as the flag of its name. No other flag is: a folder from elsewhere must not name files.
typedef bool (*Wanted)(const Flag *flag);

static bool is_of_recipe(const Flag *flag) {
    return flag->group == GROUP_RECIPE;
}

// What else decides the course of a training, but for --overfit-one-batch, which is a check and goes with it.
static bool is_of_training(const Flag *flag) {
    return flag->group == GROUP_BATCH || flag->group == GROUP_OPTIMIZER || strcmp(flag->name, "shuffle") == 0;
}

// How far a sample looks back.
static bool is_of_sample(const Flag *flag) {
    return strcmp(flag->name, "seq-len") == 0;
}

// What an evaluation has in common with those of the training, so that it finds the same loss.
static bool is_of_evaluation(const Flag *flag) {
    return is_of_sample(flag) || strcmp(flag->name, "micro-batch") == 0;
}

static bool take_setting(Config *config, const char *key, const json_t *value, Wanted wanted) {
    char number[32];
    bool negated;
    Error ignored;
    const Flag *flag = flag_find(key, strlen(key), &negated);
    if (!flag || negated || !wanted(flag)) return true;
    if (flag->kind == FLAG_BOOL)
        return json_is_boolean(value) && flag_set(flag, config, NULL, json_is_false(value), &ignored);
    const char *text = json_string_value(value);
    if (json_is_integer(value))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
    if (json_is_number(value)) text = number;
    return text && ((flag->kind == FLAG_STRING && !text[0]) || flag_set(flag, config, text, false, &ignored));
}

static bool take_settings(Config *config, const json_t *settings, Wanted wanted) {
    bool good = json_is_object(settings);
    for (void *at = json_object_iter((json_t *)settings); good && at;
         at = json_object_iter_next((json_t *)settings, at))
        good = take_setting(config, json_object_iter_key(at), json_object_iter_value(at), wanted);
    return good;
}

// Checkpoints record every setting of the arithmetic, but not the name that they were chosen by: the recipe's kind, and
// with it what changes no result, follows from them.
static bool take_recipe(Config *config, const json_t *settings) {
    if (!setting_is(settings, "precision", "fp32") && !json_object_get(settings, "linear")) return false;
    const bool fp8 = setting_is(settings, "linear", "fp8"), coat = setting_is(settings, "saved", "coat");
    Recipe *r = &config->recipe;
    recipe_apply(r, coat ? RECIPE_COAT : fp8 ? RECIPE_FP8_LINEAR : RECIPE_BF16);
    // What a record does not say is older than the choice: there was one way, the published one.
    if (fp8) {
        r->scaling = SCALING_TENSOR;
        r->gradient_codes_data = r->gradient_codes_weights = FMT_E5M2;
    }
    if (coat) {
        r->norm_input = NORM_INPUT_SAVED;
        r->activation_input = ACTIVATION_INPUT_SAVED;
    }
    return take_settings(config, settings, is_of_recipe);
}

// ---------------------------------------------------------------- of which checkpoint

// What is asked of a checkpoint, and where it goes.
typedef struct {
    bool recipe;
    Wanted wanted;
    Config *config;
} Taking;

static bool take_recorded(const char *folder, const Taking *taking) {
    char path[PATH_MAX_LENGTH + 64];
    Manifest manifest;
    Error ignored;
    if (!manifest_open(&manifest, folder, &ignored)) return false;
    bool good = manifest_check_file(&manifest, STATE_FILE, &ignored) &&
                path_join(path, sizeof path, folder, STATE_FILE, &ignored);
    manifest_close(&manifest);
    json_t *state = good ? json_read_object(path, STATE_LIMIT, &ignored) : NULL;
    if (!state) return false;
    json_t *settings = json_object_get(state, "settings");
    settings_rename(settings);
    Config *before = (Config *)xmalloc(sizeof *before), *config = taking->config;
    *before = *config;
    config->seq_len = 0; // if they do not say it
    good = (!taking->recipe || take_recipe(config, settings)) && take_settings(config, settings, taking->wanted);
    if (!good) *config = *before;
    if (good) config->recorded_step = checkpoint_step(folder);
    free(before);
    json_decref(state);
    return good;
}

// config.json as the checkpoint was saved with it.
static bool has_shape(const char *folder, const Taking *unused) {
    (void)unused;
    Manifest manifest;
    Error ignored;
    if (!manifest_open(&manifest, folder, &ignored)) return false;
    bool good = manifest_check_file(&manifest, CONFIG_FILE, &ignored);
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

bool resumed_checkpoint(const Config *flags, char *folder, size_t size) {
    if (find_resumed(flags, has_shape, NULL, folder, size)) return true;
    folder[0] = '\0';
    return false;
}

bool settings_recorded(const Config *flags, bool recipe_named, bool model_from_files, Config *config) {
    char folder[PATH_MAX_LENGTH + 64];
    const bool forward_only = config_forward_only(flags);
    const Wanted wanted = !forward_only ? is_of_training : flags->eval_only ? is_of_evaluation : is_of_sample;
    const Taking taking = {!recipe_named, wanted, config};
    return find_resumed(flags, take_recorded, &taking, folder, sizeof folder) ||
           (model_from_files && forward_only && path_is_folder(flags->model) && take_recorded(flags->model, &taking));
}

// ---------------------------------------------------------------- what FP8 can compute

static void add_note(Config *c, const char *because) {
    size_t used = strlen(c->notes);
    const char *whose = c->recipe_recorded ? "which the checkpoint was trained with" : "the default";
    snprintf(c->notes + used, sizeof c->notes - used, "note: --recipe bf16: not %s, %s, because %s\n",
             recipe_name(c->recipe.kind), whose, because);
}

bool recipe_settle(Config *c, Error *err) {
    bool multiplies = c->recipe.linear == LINEAR_FP8 || c->recipe.head == LINEAR_FP8;
    bool fits = recipe_check_shape(c, err), device = !multiplies || !c->gpu_without_fp8[0];
    bool settled = c->recipe_settled;
    c->recipe_settled = true;
    if (settled || (fits && device)) return fits;
    add_note(c, fits ? c->gpu_without_fp8 : err->text);
    c->recipe = c->plain_recipe;
    return recipe_check_shape(c, err); // single flags may ask for FP8 all the same
}

// ---------------------------------------------------------------- comparing

// Of the fields of all flags that are wanted, text as far as it goes.
static int64_t fingerprint(const Config *c, Wanted wanted) {
    int count;
    const Flag *table = flag_table(&count);
    uint64_t hash = 0;
    for (int i = 0; i < count; i++) {
        const char *field = (const char *)c + table[i].offset;
        size_t size = table[i].kind == FLAG_STRING ? strlen(field) : table[i].size;
        if (wanted(&table[i])) hash = XXH3_64bits_withSeed(field, size, hash);
    }
    return (int64_t)(hash >> 1);
}

// A model's path may be another on each machine; its shape is what counts.
static bool is_of_course(const Flag *flag) {
    return is_of_training(flag) || (flag->group == GROUP_MODEL && flag->kind != FLAG_STRING);
}

int64_t recipe_fingerprint(const Config *c) {
    return fingerprint(c, is_of_recipe);
}

int64_t course_fingerprint(const Config *c) {
    return fingerprint(c, is_of_course);
}
