#include "config_settings.h"

#include <string.h>

#include <xxhash.h>

static bool setting_is(const json_t *settings, const char *key, const char *value) {
    const char *text = json_string_value(json_object_get(settings, key));
    return text && strcmp(text, value) == 0;
}

// The settings that are taken, each as the flag of its name. No other flag is: a folder from
// elsewhere must not name files.
typedef bool (*Wanted)(const Flag *flag);

static bool is_of_recipe(const Flag *flag) {
    return flag->group == GROUP_RECIPE;
}

static bool is_prompt_format(const Flag *flag) {
    return strcmp(flag->name, "prompt-format") == 0;
}

// What else a training computes with, but for --overfit-one-batch, which is a check and goes with it.
static bool is_of_training(const Flag *flag) {
    return flag->group == GROUP_BATCH || flag->group == GROUP_OPTIMIZER || strcmp(flag->name, "shuffle") == 0 ||
           is_prompt_format(flag);
}

// True if a run without a checkpoint takes the flag from its log. --tokenizer and --model may name files, because the
// log is the run's own. Not --logits-chunk: the log has the chosen one even if no flag named it.
static bool is_of_new_run(const Flag *flag) {
    return (is_of_training(flag) && strcmp(flag->name, "logits-chunk") != 0) || flag->group == GROUP_MODEL ||
           flag->kind == FLAG_TOKENIZER;
}

// How far a sample looks back, and how it is asked.
static bool is_of_sample(const Flag *flag) {
    return strcmp(flag->name, "seq-len") == 0 || is_prompt_format(flag);
}

// What an evaluation has in common with those of the training, so that it finds the same loss.
static bool is_of_evaluation(const Flag *flag) {
    static const char *const names[] = {"micro-batch", "examples", "documents"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(flag->name, names[i]) == 0) return true;
    return is_of_sample(flag);
}

// Sets a flag's field to a recorded value. False if the flag does not take it.
static bool set_value(const Flag *flag, Config *config, const json_t *value) {
    char number[32];
    Error ignored;
    if (flag->kind == FLAG_BOOL)
        return json_is_boolean(value) && flag_set(flag, config, NULL, json_is_false(value), &ignored);
    const char *text = json_string_value(value);
    if (flag->kind == FLAG_STRING && (json_is_null(value) || (text && !text[0]))) {
        ((char *)config)[flag->offset] = '\0';
        return true;
    }
    if (json_is_integer(value))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
    if (json_is_number(value)) text = number;
    return text && flag_set(flag, config, text, false, &ignored);
}

// Sets one recorded setting if it is wanted. An unknown setting is an error even then: it may change results.
static bool apply_setting(Config *config, const char *key, const json_t *value, Wanted wanted, const char *path,
                          Error *err) {
    bool negated;
    const Flag *flag = flag_find(key, strlen(key), &negated);
    const bool none = config->settings_logged && json_is_null(value) && flag && flag->kind != FLAG_STRING;
    if (flag && !negated && (!wanted(flag) || none || set_value(flag, config, value))) return true;
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    error_set(err, EXIT_DATA,
              "%s: this version does not support the setting \"%.100s\": %.200s; use the version that wrote the file",
              path, key, text ? text : "?");
    free(text);
    return false;
}

static bool apply_settings(Config *config, const json_t *settings, Wanted wanted, const char *path, Error *err) {
    bool good = true;
    for (void *at = json_object_iter((json_t *)settings); good && at;
         at = json_object_iter_next((json_t *)settings, at))
        good = apply_setting(config, json_object_iter_key(at), json_object_iter_value(at), wanted, path, err);
    return good;
}

// Sets the recipe to the recorded one, with the recorded settings on top.
static bool apply_recipe(Config *config, const json_t *settings, const char *path, Error *err) {
    const json_t *name = json_object_get(settings, "recipe");
    if (name) {
        Config *named = (Config *)xcalloc(1, sizeof *named);
        const bool good = apply_setting(named, "recipe", name, is_of_recipe, path, err);
        recipe_apply(&config->recipe, named->recipe.kind);
        free(named);
        if (!good) return false;
    } else if (!setting_is(settings, "precision", "fp32")) {
        return error_set(err, EXIT_DATA, "%s: the setting \"linear\" is missing; use the version that wrote the file",
                         path);
    }
    return apply_settings(config, settings, is_of_recipe, path, err);
}

bool config_apply_settings(Config *config, const json_t *settings, bool recipe, const Config *flags, const char *path,
                           Error *err) {
    const Wanted wanted = config->settings_logged       ? is_of_new_run
                          : !config_forward_only(flags) ? is_of_training
                          : flags->eval_only            ? is_of_evaluation
                                                        : is_of_sample;
    config->seq_len = 0; // if they do not say it
    if ((recipe && !apply_recipe(config, settings, path, err)) || !apply_settings(config, settings, wanted, path, err))
        return false;
    if (!config->settings_logged) return true;
    if (config->tokenizer == TOKENIZER_GPT2) config->tokenizer = TOKENIZER_ANY; // the log names it if no flag did
    if (json_is_integer(json_object_get(settings, "epochs"))) config->steps = -1;
    return true;
}

// ---------------------------------------------------------------- comparing

// Of a flag's field, text as far as it goes.
static uint64_t hash_field(const Config *c, const Flag *flag, uint64_t hash) {
    const char *field = (const char *)c + flag->offset;
    return XXH3_64bits_withSeed(field, flag->kind == FLAG_STRING ? strlen(field) : flag->size, hash);
}

// Of the fields of all flags that are wanted.
static int64_t fingerprint(const Config *c, Wanted wanted) {
    int count;
    const Flag *table = flag_table(&count);
    uint64_t hash = 0;
    for (int i = 0; i < count; i++)
        if (wanted(&table[i])) hash = hash_field(c, &table[i], hash);
    return (int64_t)(hash >> 1);
}

// A model's path may be another on each machine; its shape is what counts.
static bool changes_training(const Flag *flag) {
    return is_of_training(flag) || (flag->group == GROUP_MODEL && flag->kind != FLAG_STRING);
}

// Whether it decides when processes communicate. --overwrite is rank 0's alone.
static bool changes_run(const Flag *flag) {
    const bool files = flag->group == GROUP_FILES && strcmp(flag->name, "overwrite") != 0;
    return files || flag->group == GROUP_EVALUATION || strcmp(flag->name, "val") == 0 ||
           strcmp(flag->name, "zero") == 0;
}

int64_t recipe_fingerprint(const Config *c) {
    return fingerprint(c, is_of_recipe);
}

int64_t training_fingerprint(const Config *c) {
    return fingerprint(c, changes_training);
}

int64_t flag_fingerprint(const Config *c, const Flag *flag) {
    if (flag->kind == FLAG_TRAIN) return c->train[0] != '\0';
    if (flag->kind == FLAG_RESUME) return c->resume ? c->resume_step + 2 : 0; // -1: the newest
    if (!changes_training(flag) && !changes_run(flag)) return 0;
    if (flag->kind == FLAG_STRING && flag->offset != offsetof(Config, prompt))
        return ((const char *)c)[flag->offset] != '\0';
    return (int64_t)(hash_field(c, flag, 0) >> 1);
}

int64_t flags_fingerprint(const Config *c) {
    int count;
    const Flag *table = flag_table(&count);
    uint64_t hash = 0;
    for (int i = 0; i < count; i++) {
        const int64_t one = flag_fingerprint(c, &table[i]);
        hash = XXH3_64bits_withSeed(&one, sizeof one, hash);
    }
    return (int64_t)(hash >> 1);
}
