#include "settings.h"

#include <string.h>

#include <xxhash.h>

#include "config/shapes.h"
#include "model/tensors.h"

// Writes the first `length` bytes of `value` as a JSON string, or null if length is 0.
static void write_text(JsonText *t, const char *key, const char *value, size_t length) {
    char *text = (char *)xcalloc(length + 1, 1);
    memcpy(text, value, length);
    if (length)
        json_text_string(t, key, text);
    else
        json_text_null(t, key);
    free(text);
}

// Writes the file patterns in `lines`, up to an empty line, as JSON strings. Returns the text after the empty line.
static const char *write_patterns(JsonText *t, const char *lines) {
    for (; *lines && *lines != '\n'; lines += lines[0] == '\n') {
        const size_t length = strcspn(lines, "\n");
        write_text(t, NULL, lines, length);
        lines += length;
    }
    return lines + (*lines == '\n');
}

// Writes "train" as a list of file patterns. If the data sets have weights, writes "train" as a list of lists, one per
// data set, and "train-weight" as a list of one weight per data set.
static void write_train(JsonText *t, const Config *c) {
    const bool sets = config_weights(c) != NULL;
    json_text_open(t, "train", '[');
    for (const char *at = c->train; *at;) {
        if (sets) json_text_open(t, NULL, '[');
        at = write_patterns(t, at);
        if (sets) json_text_close(t, ']');
    }
    json_text_close(t, ']');
    if (sets) json_text_open(t, "train-weight", '[');
    for (int k = 0; sets && k < c->train_sets; k++) json_text_double(t, NULL, c->train_weights[k]);
    if (sets) json_text_close(t, ']');
}

// Writes the number as the flag's setting. Writes null if the number is less than `min`, because such a number means
// "none".
static void write_number(JsonText *t, const Flag *flag, int64_t number, double min) {
    if (number >= min)
        json_text_int(t, flag->name, number);
    else
        json_text_null(t, flag->name);
}

static const void *field_of(const Config *config, const Flag *flag) {
    return (const char *)config + flag->offset;
}

static void write_flag(JsonText *t, const Flag *flag, const Config *c) {
    const void *value = field_of(c, flag);
    char text[FLAG_TEXT_LENGTH];
    switch (flag->kind) {
    case FLAG_INT: write_number(t, flag, *(const int *)value, flag->min); break;
    case FLAG_INT64: write_number(t, flag, *(const int64_t *)value, flag->min < 0 ? flag->min : 0); break;
    case FLAG_FLOAT: json_text_float(t, flag->name, *(const float *)value); break;
    case FLAG_BOOL: json_text_bool(t, flag->name, *(const bool *)value); break;
    case FLAG_SEED: // The seed is a string, because it may exceed the range of JSON numbers.
    case FLAG_CHOICE:
    case FLAG_FORMAT:
        flag_value(flag, c, text);
        json_text_string(t, flag->name, text);
        break;
    case FLAG_STRING:
        if (!flag_takes_list(flag)) {
            write_text(t, flag->name, (const char *)value, strlen((const char *)value));
            break;
        }
        json_text_open(t, flag->name, '[');
        write_patterns(t, (const char *)value);
        json_text_close(t, ']');
        break;
    case FLAG_TRAIN: write_train(t, c); break;
    case FLAG_TOKENIZER:
        value = c->vocabulary[0] ? c->vocabulary : config_tokenizer_name(c);
        write_text(t, flag->name, (const char *)value, strlen((const char *)value));
        break;
    default: break; // flags of other kinds are not recorded
    }
}

static bool is_equal(const Config *a, const Config *b, const Flag *flag) {
    if (flag->kind == FLAG_STRING) return strcmp(field_of(a, flag), field_of(b, flag)) == 0;
    return memcmp(field_of(a, flag), field_of(b, flag), flag->size) == 0;
}

JsonText settings_log(const Config *config) {
    JsonText t;
    Config *defaults = (Config *)xcalloc(1, sizeof *defaults);
    memset(&t, 0, sizeof t);
    json_text_open(&t, NULL, '{');
    config_defaults(defaults);
    for (const Flag *flag = flag_table; flag->name; flag++)
        if (flag->uses & LOGGED || (flag->uses & LOGGED_UNLESS_DEFAULT && !is_equal(config, defaults, flag)))
            write_flag(&t, flag, config);
    json_text_close(&t, '}');
    free(defaults);
    return t;
}

// True if a checkpoint records the flag's value. A value on which results do not depend is not recorded, so that
// checkpoints with equal results have equal bytes.
static bool is_recorded(const Config *config, const Config *defaults, const Flag *flag) {
    if (!(flag->uses & RECORDED) || (flag->matters && !flag->matters(config))) return false;
    return !(flag->uses & UNLESS_DEFAULT) || !is_equal(config, defaults, flag);
}

void settings_record(JsonText *t, const Config *config) {
    Config *defaults = (Config *)xcalloc(1, sizeof *defaults);
    config_defaults(defaults);
    for (const Flag *flag = flag_table; flag->name; flag++)
        if (is_recorded(config, defaults, flag)) write_flag(t, flag, config);
    free(defaults);
}

// Sets a flag's field in config to a recorded JSON value. Returns false if the value is not valid for the flag.
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

// Applies a recorded setting whose flag is in `group` or has one of the bits `uses`. Ignores all other settings,
// because a checkpoint from elsewhere must not choose the run's files. An unknown setting is an error, because it may
// change results.
static bool apply_setting(Config *config, const char *key, const json_t *value, FlagGroup group, unsigned uses,
                          const char *path, Error *err) {
    bool negated;
    const Flag *flag = flag_find(key, strlen(key), &negated);
    const bool applies = flag && (flag->group == group || flag->uses & uses);
    const bool none = config->settings_logged && json_is_null(value) && flag && flag->kind != FLAG_STRING;
    if (flag && !negated && (!applies || none || set_value(flag, config, value))) return true;
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    error_set(err, EXIT_DATA,
              "%s: this version does not support the setting \"%.100s\": %.200s; use the version that wrote the file",
              path, key, text ? text : "?");
    free(text);
    return false;
}

static bool apply_settings(Config *config, const json_t *settings, FlagGroup group, unsigned uses, const char *path,
                           Error *err) {
    bool good = true;
    for (void *at = json_object_iter((json_t *)settings); good && at;
         at = json_object_iter_next((json_t *)settings, at))
        good = apply_setting(config, json_object_iter_key(at), json_object_iter_value(at), group, uses, path, err);
    return good;
}

// Applies the recorded recipe, then the recorded values of individual recipe flags.
static bool apply_recipe(Config *config, const json_t *settings, const char *path, Error *err) {
    const json_t *name = json_object_get(settings, "recipe");
    const char *precision = json_string_value(json_object_get(settings, "precision"));
    if (name) {
        Config *named = (Config *)xcalloc(1, sizeof *named);
        const bool good = apply_setting(named, "recipe", name, GROUP_RECIPE, 0, path, err);
        recipe_apply(&config->recipe, named->recipe.kind);
        free(named);
        if (!good) return false;
    } else if (!precision || strcmp(precision, "fp32") != 0) {
        return error_set(err, EXIT_DATA, "%s: the setting \"recipe\" is missing; use the version that wrote the file",
                         path);
    }
    return apply_settings(config, settings, GROUP_RECIPE, 0, path, err);
}

bool settings_apply(Config *config, const json_t *settings, bool recipe, const Config *flags, const char *path,
                    Error *err) {
    const unsigned uses = config->settings_logged       ? RESTARTED
                          : !config_forward_only(flags) ? RESUMED
                          : flags->eval_only            ? EVALUATED
                                                        : SAMPLED;
    config->seq_len = 0;
    if ((recipe && !apply_recipe(config, settings, path, err)) ||
        !apply_settings(config, settings, GROUP_COUNT, uses, path, err))
        return false;
    if (!config->settings_logged) return true;
    // The log records the default of --logits-chunk as a number, which would not adapt to another --micro-batch.
    ModelShape padded = config->shape;
    model_shape_vocab(&padded, padded.vocab);
    if (config->logits_chunk == default_logits_chunk(config_micro_tokens(config), padded.vocab_padded))
        config->logits_chunk = 0;
    // The log records tokenizer gpt2, the default, even if no flag has named it.
    if (config->tokenizer == TOKENIZER_GPT2) config->tokenizer = TOKENIZER_ANY;
    if (json_is_integer(json_object_get(settings, "epochs"))) config->steps = -1;
    return true;
}

// Writes the flag's value to text as messages show it; "none" if the value is empty.
static void show_value(const Flag *flag, const Config *config, char text[256]) {
    char value[FLAG_TEXT_LENGTH];
    flag_value(flag, config, value);
    snprintf(text, 256, "%s", flag->kind == FLAG_STRING ? (const char *)field_of(config, flag) : value);
    text_printable(text, strlen(text), "");
    if (!text[0]) snprintf(text, 256, "none");
}

bool settings_compare(const json_t *settings, const Config *config, const char *path,
                      void (*differs)(const char *flag, const char *recorded, const char *now), Error *err) {
    Config *theirs = (Config *)xcalloc(1, sizeof *theirs);
    bool good = true;
    config_defaults(theirs);
    for (const Flag *flag = flag_table; good && flag->name; flag++) {
        const json_t *value = json_object_get(settings, flag->name);
        char before[256], now[256];
        if (!(flag->uses & RECORDED) || flag->group == GROUP_MODEL || (flag->matters && !flag->matters(config)))
            continue;
        const bool known = value ? set_value(flag, theirs, value) : (flag->uses & UNLESS_DEFAULT) != 0;
        if (!known || is_equal(theirs, config, flag)) continue;
        show_value(flag, theirs, before);
        show_value(flag, config, now);
        const bool optimizer = flag->offset == offsetof(Config, optimizer);
        if (optimizer && config_forward_only(config)) continue;
        if (optimizer || flag->offset == offsetof(Config, recipe.precision))
            good = error_set(err, EXIT_USER,
                             "%s: the run was made with --%s %s, not %s; use --%s %s, or start a new run from its "
                             "weights with --model %.*s",
                             path, flag->name, before, now, flag->name, before,
                             (int)(strlen(path) - strlen("/state.json")), path);
        else if (flag->offset != offsetof(Config, steps) && flag->offset != offsetof(Config, epochs))
            differs(flag->name, before, now);
    }
    free(theirs);
    return good;
}

// True if the flag's value is a path or a pattern of paths. False for a name such as siglip:d2.
static bool is_path(const Flag *flag, const char *value) {
    if (flag->kind != FLAG_STRING) return false;
    if (strcmp(flag->placeholder, "NAME|PATH") == 0) return strchr(value, '/') != NULL;
    return flag_takes_list(flag) || strcmp(flag->placeholder, "FILE") == 0 || strcmp(flag->placeholder, "DIR") == 0;
}

// Hashes a flag's value. For a path, hashes only whether a path is given, because paths may differ between machines.
static uint64_t hash_field(const Config *c, const Flag *flag, uint64_t hash) {
    const char *field = (const char *)field_of(c, flag);
    if (is_path(flag, field) && field[0]) field = "given";
    return XXH3_64bits_withSeed(field, flag->kind == FLAG_STRING ? strlen(field) : flag->size, hash);
}

// Hashes the values of the flags in `group` (GROUP_COUNT: in all groups) that have all bits `uses`.
static uint64_t hash_flags(const Config *c, FlagGroup group, unsigned uses, uint64_t hash) {
    for (const Flag *flag = flag_table; flag->name; flag++)
        if ((group == GROUP_COUNT || flag->group == group) && (flag->uses & uses) == uses)
            hash = hash_field(c, flag, hash);
    return hash;
}

int64_t recipe_fingerprint(const Config *c) {
    return (int64_t)(hash_flags(c, GROUP_RECIPE, 0, 0) >> 1);
}

int64_t training_fingerprint(const Config *c) {
    return (int64_t)(hash_flags(c, GROUP_MODEL, SHARED, hash_flags(c, GROUP_COUNT, RESUMED, 0)) >> 1);
}

int64_t flag_fingerprint(const Config *c, const Flag *flag) {
    if (!(flag->uses & SHARED)) return 0;
    if (flag->kind == FLAG_TRAIN) return c->train[0] != '\0';
    // hash of --resume: 0 if not given, 1 for the newest checkpoint, else step + 2
    if (flag->kind == FLAG_RESUME) return c->resume ? c->resume_step + 2 : 0;
    return (int64_t)(hash_field(c, flag, 0) >> 1);
}

int64_t flags_fingerprint(const Config *c) {
    uint64_t hash = 0;
    for (const Flag *flag = flag_table; flag->name; flag++) {
        const int64_t one = flag_fingerprint(c, flag);
        hash = XXH3_64bits_withSeed(&one, sizeof one, hash);
    }
    return (int64_t)(hash >> 1);
}
