#include "run_state.h"

#include <math.h>
#include <string.h>

#include "io/files.h"
#include "log/step_line.h"
#include "model/schedule.h"
#include "text/prompt_format.h"

#define STATE_LIMIT (1u << 20)
#define COUNT_LIMIT ((int64_t)1 << 53) // largest number of steps or tokens: sums with a run's own cannot overflow

// Writes the settings of the recipe. Omits those that have no effect, so that they do not change the file.
static void recipe_fields(JsonText *t, const Recipe *r) {
    json_text_string(t, "precision", choice_name(PRECISION_NAMES, r->precision).text);
    if (r->precision == PRECISION_FP32) {
        json_text_string(t, "moments", choice_name(MOMENTS_NAMES, r->moments).text);
        return;
    }
    const bool fp8 = r->linear == LINEAR_FP8, coat = r->saved == SAVED_COAT;
    // true if recomputation changes bits: backward recomputes from FP8 what forward read unrounded or at another scale
    const bool differs = (coat || fp8) && !recipe_is_paper(r);
    // the norms of the first blocks are in BF16 only if backward recomputes them
    const bool first_blocks = fp8 && r->bf16_blocks > 0;
    // --recompute 3 computes the same bits as 2, and 2 the same as 1 except for the first blocks' norms
    const int most = first_blocks && !coat ? 2 : 1, recompute = r->recompute < most ? r->recompute : most;
    json_text_string(t, "recipe", choice_name(RECIPE_NAMES, r->kind).text);
    json_text_string(t, "linear", choice_name(LINEAR_NAMES, r->linear).text);
    json_text_string(t, "head", choice_name(HEAD_NAMES, r->head).text);
    json_text_string(t, "saved", choice_name(SAVED_NAMES, r->saved).text);
    if (coat) json_text_int(t, "group-size", r->group_size);
    if (fp8) json_text_int(t, "bf16-blocks", r->bf16_blocks);
    if (differs || first_blocks) json_text_int(t, "recompute", recompute);
    if (fp8) json_text_bool(t, "fast-accumulation-data", r->fast_accumulation_data);
    json_text_string(t, "grads", format_name(r->grads));
    json_text_string(t, "moments", choice_name(MOMENTS_NAMES, r->moments).text);
    if (r->moments != MOMENTS_FP32) json_text_string(t, "moments-fp32", r->moments_fp32);
    json_text_string(t, "master", choice_name(MASTER_NAMES, r->master).text);
}

static void settings_fields(JsonText *t, const Config *c, int ranks) {
    char seed[32];
    recipe_fields(t, &c->recipe);
    json_text_int(t, "micro-batch", c->micro_batch);
    json_text_int(t, "seq-len", c->seq_len);
    json_text_int(t, "batch-tokens", config_accumulation(c, ranks) * config_micro_tokens(c) * ranks);
    if (c->examples != EXAMPLES_CUT) json_text_string(t, "examples", choice_name(EXAMPLES_NAMES, c->examples).text);
    if (c->documents != DOCUMENTS_JOINED)
        json_text_string(t, "documents", choice_name(DOCUMENTS_NAMES, c->documents).text);
    if (c->prompt_format != PROMPT_FORMAT_DATA)
        json_text_string(t, "prompt-format", prompt_format_name(c->prompt_format));
    if (c->logits_chunk) json_text_int(t, "logits-chunk", c->logits_chunk);
    json_text_float(t, "lr", c->lr);
    json_text_int(t, "warmup", c->warmup);
    json_text_string(t, "schedule", choice_name(SCHEDULE_NAMES, c->schedule).text);
    const bool by_length = schedule_falls(c); // otherwise the length does not change the learning rate
    if (by_length) json_text_int(t, "steps", c->steps);
    if (by_length && c->steps < 0 && c->epochs != 1) json_text_int(t, "epochs", c->epochs);
    if (c->schedule != SCHEDULE_CONSTANT) json_text_float(t, "lr-final", c->lr_final);
    if (c->schedule == SCHEDULE_WSD) json_text_float(t, "decay-fraction", c->decay_fraction);
    json_text_float(t, "weight-decay", c->weight_decay);
    json_text_float(t, "beta1", c->beta1);
    json_text_float(t, "beta2", c->beta2);
    json_text_float(t, "eps", c->eps);
    json_text_float(t, "grad-clip", c->grad_clip);
    if (c->max_skipped != MAX_SKIPPED) json_text_int(t, "max-skipped", c->max_skipped);
    if (c->skip_loss_z > 0) json_text_float(t, "skip-loss-z", c->skip_loss_z);
    if (c->skip_grad_z > 0) json_text_float(t, "skip-grad-z", c->skip_grad_z);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)c->seed);
    json_text_string(t, "seed", seed); // a string because JSON numbers hold 53 bits
    json_text_bool(t, "shuffle", c->shuffle);
    json_text_bool(t, "overfit-one-batch", c->overfit_one_batch);
}

// Writes the model's sizes, which messages quote. The complete shape is in config.json, with which a resumed run is
// compared. --init is in neither file, because only new weights depend on it.
static void shape_fields(JsonText *t, const ModelShape *s) {
    json_text_int(t, "layers", s->layers);
    json_text_int(t, "heads", s->heads);
    json_text_int(t, "kv-heads", s->kv_heads);
    json_text_int(t, "head-dim", s->head_dim);
    json_text_int(t, "channels", s->channels);
    json_text_int(t, "ffn", s->ffn);
    json_text_int(t, "vocab", s->vocab);
    json_text_int(t, "positions", s->positions);
}

static void window_field(JsonText *t, const char *key, const GuardWindow *window) {
    json_text_open(t, key, '[');
    for (int64_t i = 0; i < window->count; i++) json_text_double(t, NULL, window->values[i]);
    json_text_close(t, ']');
}

void run_state_text(JsonText *t, const RunState *run, const Config *config, int ranks) {
    const StepState *s = &run->state;
    memset(t, 0, sizeof *t);
    t->pretty = true;
    json_text_open(t, NULL, '{');
    json_text_int(t, "format", 1);
    json_text_int(t, "step", run->step);
    json_text_int(t, "sequences", run->sequences);
    json_text_int(t, "pass", run->pass);
    json_text_int(t, "tokens", run->tokens);
    json_text_hex(t, "data_fingerprint", run->data_fingerprint);
    if (run->data[0]) json_text_string(t, "data", run->data);
    json_text_open(t, "step_state", '{');
    json_text_float(t, "lr", s->lr);
    json_text_float(t, "beta1", s->beta1);
    json_text_float(t, "beta2", s->beta2);
    json_text_float(t, "eps", s->eps);
    json_text_float(t, "weight_decay", s->weight_decay);
    json_text_float(t, "grad_clip", s->grad_clip);
    json_text_hex(t, "seed", s->seed);
    json_text_int(t, "t", s->t);
    json_text_int(t, "skipped", s->skipped);
    json_text_int(t, "skipped_run", s->skipped_run);
    json_text_double(t, "loss_sum", s->loss_sum);
    json_text_double(t, "grad_sq", s->grad_sq);
    json_text_float(t, "grad_norm", s->grad_norm);
    json_text_int(t, "nonfinite", s->nonfinite);
    json_text_close(t, '}');
    if (config->skip_loss_z > 0 || config->skip_grad_z > 0) {
        json_text_open(t, "guard", '{');
        window_field(t, "loss", &run->guard.loss);
        window_field(t, "grad_norm", &run->guard.grad_norm);
        json_text_close(t, '}');
    }
    json_text_open(t, "settings", '{');
    settings_fields(t, config, ranks);
    shape_fields(t, &config->shape);
    json_text_close(t, '}');
    json_text_close(t, '}');
}

// Reads one window of the outlier guard. If the checkpoint was written without the guard, the window stays empty.
static bool read_window(const json_t *guard, const char *path, const char *key, GuardWindow *window, Error *err) {
    const json_t *values = json_object_get(guard, key);
    if (!guard) return true;
    bool good = json_is_array(values) && json_array_size(values) <= GUARD_WINDOW;
    for (size_t i = 0; good && i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        good = json_is_number(value);
        window->values[window->count++] = json_number_value(value);
    }
    return good || error_set(err, EXIT_DATA, "%s: '%s' must be a list of up to %d numbers", path, key, GUARD_WINDOW);
}

static bool get_float(const json_t *object, const char *path, const char *key, float *value, Error *err) {
    double wide;
    if (!json_get_double(object, path, key, &wide, err)) return false;
    *value = (float)wide;
    return true;
}

static bool read_step_state(const json_t *o, const char *path, StepState *s, Error *err) {
    int64_t nonfinite;
    bool good = get_float(o, path, "lr", &s->lr, err) && get_float(o, path, "beta1", &s->beta1, err) &&
                get_float(o, path, "beta2", &s->beta2, err) && get_float(o, path, "eps", &s->eps, err) &&
                get_float(o, path, "weight_decay", &s->weight_decay, err) &&
                get_float(o, path, "grad_clip", &s->grad_clip, err) && json_get_hex(o, path, "seed", &s->seed, err) &&
                json_get_int(o, path, "t", 0, COUNT_LIMIT, &s->t, err) &&
                json_get_int(o, path, "skipped", 0, COUNT_LIMIT, &s->skipped, err) &&
                json_get_int(o, path, "skipped_run", 0, COUNT_LIMIT, &s->skipped_run, err) &&
                json_get_double(o, path, "loss_sum", &s->loss_sum, err) &&
                json_get_double(o, path, "grad_sq", &s->grad_sq, err) &&
                get_float(o, path, "grad_norm", &s->grad_norm, err) &&
                json_get_int(o, path, "nonfinite", INT32_MIN, INT32_MAX, &nonfinite, err);
    if (good) s->nonfinite = (int32_t)nonfinite;
    return good;
}

// Writes a setting's value to text[size] as it would be given on the command line.
static void value_text(const json_t *value, char *text, size_t size) {
    if (json_is_string(value)) {
        const char *string = json_string_value(value);
        snprintf(text, size, "%s", string[0] ? string : "none");
    } else {
        char *dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        snprintf(text, size, "%s", dumped ? dumped : "?");
        free(dumped);
    }
    text_printable(text, strlen(text), "");
}

// A setting that earlier versions recorded and that a recipe now fixes. It was recorded only if the setting `relevant`
// had the value `when` (NULL: always).
typedef struct {
    const char *key, *older, *paper, *other; // the value if the key is absent; with coat-paper; with other recipes
    const char *relevant, *when;
} Removed;

static bool setting_is(const json_t *settings, const char *key, const char *value) {
    const char *text = json_string_value(json_object_get(settings, key));
    return text && strcmp(text, value) == 0;
}

bool settings_update(json_t *settings, const char *path, Error *err) {
    const bool fp8 = setting_is(settings, "linear", "fp8"), coat = setting_is(settings, "saved", "coat");
    const char *const data = coat ? "e4m3" : "e5m2";
    const Removed removed[] = {
        {"scaling", "tensor", "tensor", "token", "linear", "fp8"},
        {"norm-input", "saved", "saved", "residual", "saved", "coat"},
        {"activation-input", "saved", "saved", "product", "saved", "coat"},
        {"gradient-codes-data", "e5m2", "e5m2", data, "linear", "fp8"},
        {"gradient-codes-weights", "e5m2", "e5m2", "e5m2", "linear", "fp8"},
        {"second-moment", "e4m3", "e4m3", "e4m3", NULL, NULL},
        {"second-moment-rounding", "nearest", "nearest", "nearest", NULL, NULL},
    };
    enum { COUNT = sizeof removed / sizeof *removed };
    if (!json_object_get(settings, "linear")) return true;
    bool current = json_object_get(settings, "recipe"); // true if no setting was removed since
    for (int i = 0; i < COUNT; i++) current = current && !json_object_get(settings, removed[i].key);
    if (current) return true;
    json_t *both = json_object_get(settings, "gradient-codes"),
           *fast = json_object_get(settings, "fast-accumulation-backward");
    if (both) json_object_set(settings, "gradient-codes-data", both);
    if (both) json_object_set(settings, "gradient-codes-weights", both);
    if (fast) json_object_set(settings, "fast-accumulation-data", fast);
    if (fast) json_object_set(settings, "fast-accumulation-weights", fast);
    const bool paper =
        coat ? !setting_is(settings, "norm-input", "residual") : fp8 && !setting_is(settings, "scaling", "token");
    const char *const recipe = paper ? "coat-paper" : coat ? "coat" : fp8 ? "fp8-linear" : "bf16";
    bool good = true;
    for (int i = 0; i < COUNT; i++) {
        const Removed *r = &removed[i];
        const char *recorded = json_string_value(json_object_get(settings, r->key));
        const char *value = recorded ? recorded : r->older, *expected = paper ? r->paper : r->other;
        const bool relevant = !r->relevant || setting_is(settings, r->relevant, r->when);
        if (good && relevant && strcmp(value, expected) != 0)
            good = error_set(err, EXIT_DATA,
                             "%s: the recorded setting \"%s\": \"%s\" is not supported any more; use --recipe %s, "
                             "which has \"%s\"",
                             path, r->key, value, recipe, expected);
        json_object_del(settings, r->key);
    }
    if (good && json_is_true(json_object_get(settings, "fast-accumulation-weights")))
        good = error_set(err, EXIT_DATA,
                         "%s: the recorded setting \"fast-accumulation-weights\": true is not supported any "
                         "more; use --recipe %s",
                         path, recipe);
    static const char *const dropped[] = {"gradient-codes", "fast-accumulation-backward", "fast-accumulation-weights",
                                          "centred-blocks"};
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) json_object_del(settings, dropped[i]);
    if (fp8 && !json_object_get(settings, "bf16-blocks")) json_object_set_new(settings, "bf16-blocks", json_integer(0));
    json_object_set_new(settings, "recipe", json_string(recipe));
    return good;
}

// Adds the defaults of settings that settings_fields() omits or that earlier versions did not have.
static void fill_settings(json_t *settings) {
    const struct {
        const char *key, *text; // text NULL: the number
        int number;
    } defaults[] = {{"max-skipped", NULL, MAX_SKIPPED}, {"skip-loss-z", NULL, 0}, {"skip-grad-z", NULL, 0},
                    {"logits-chunk", NULL, 0},          {"examples", "cut", 0},   {"documents", "joined", 0},
                    {"prompt-format", "none", 0},       {"lr-final", NULL, 1}};
    const char *schedule = json_string_value(json_object_get(settings, "schedule"));
    const size_t count = sizeof defaults / sizeof *defaults - (!schedule || strcmp(schedule, "constant") == 0);
    for (size_t i = 0; i < count; i++)
        if (!json_object_get(settings, defaults[i].key))
            json_object_set_new(settings, defaults[i].key,
                                defaults[i].text ? json_string(defaults[i].text) : json_integer(defaults[i].number));
}

// Compares the recorded settings with the run's: see run_state_read().
static bool compare_settings(json_t *theirs, const Config *config, const Exec *exec, const char *path, Error *err) {
    JsonText t;
    memset(&t, 0, sizeof t);
    json_text_open(&t, NULL, '{');
    settings_fields(&t, config, exec->ranks);
    json_text_close(&t, '}');
    json_t *now = json_parse_object(t.text, t.size, "settings", err);
    json_text_free(&t);
    if (!now) return false;
    bool good = settings_update(theirs, path, err) || !config->recipe_recorded;
    fill_settings(theirs);
    fill_settings(now);
    const bool is_training = !config->eval_only && (config->train[0] || !config->prompt[0]);
    const char *key;
    json_t *value;
    json_object_foreach(now, key, value) {
        json_t *other = json_object_get(theirs, key);
        if (!good || !other || json_equal(value, other)) continue;
        char before[256], after[256];
        value_text(other, before, sizeof before);
        value_text(value, after, sizeof after);
        if (strcmp(key, "precision") == 0) // the only setting that the format of the weights depends on
            good =
                error_set(err, EXIT_DATA,
                          "%s: the run was made with --precision %s, not %s; resume it with --precision %s, or start "
                          "from its weights with --model",
                          path, before, after, before);
        else if (is_training && strcmp(key, "steps") != 0 && strcmp(key, "epochs") != 0 && exec->rank == 0)
            print_remark("resume: ", "--%s was %s and is now %s", key, before, after);
    }
    json_decref(now);
    return good;
}

static void read_data(const json_t *o, RunState *run) {
    const char *data = json_string_value(json_object_get(o, "data"));
    snprintf(run->data, sizeof run->data, "%s", data ? data : "");
}

bool run_state_read(const char *path, RunState *run, const Config *config, const Exec *exec, Error *err) {
    json_t *o = json_read_object(path, STATE_LIMIT, err);
    if (!o) return false;
    const json_t *state, *settings;
    int64_t format;
    memset(run, 0, sizeof *run);
    bool good = json_get_int(o, path, "format", 1, 1, &format, err) &&
                json_get_int(o, path, "step", 0, COUNT_LIMIT, &run->step, err) &&
                json_get_int(o, path, "sequences", 0, COUNT_LIMIT, &run->sequences, err) &&
                (!json_object_get(o, "pass") || json_get_int(o, path, "pass", 0, COUNT_LIMIT, &run->pass, err)) &&
                json_get_int(o, path, "tokens", 0, COUNT_LIMIT, &run->tokens, err) &&
                json_get_hex(o, path, "data_fingerprint", &run->data_fingerprint, err) &&
                json_get_object(o, path, "step_state", &state, err) && read_step_state(state, path, &run->state, err) &&
                json_get_object(o, path, "settings", &settings, err) &&
                compare_settings(json_object_get(o, "settings"), config, exec, path, err);
    const json_t *guard = json_object_get(o, "guard");
    if (config->skip_loss_z > 0 || config->skip_grad_z > 0)
        good = good && read_window(guard, path, "loss", &run->guard.loss, err) &&
               read_window(guard, path, "grad_norm", &run->guard.grad_norm, err);
    read_data(o, run);
    json_decref(o);
    return good;
}

void run_state_keep_share(RunState *run, int64_t pass, int seq_len) {
    if (run->pass == 0)
        run->sequences = run->tokens / seq_len;
    else if (run->pass != pass)
        run->sequences = (int64_t)fmin((double)run->sequences * (double)pass / (double)run->pass, (double)COUNT_LIMIT);
    run->pass = pass;
}

void run_state_summary(const char *folder, RunState *run) {
    char path[PATH_MAX_LENGTH + 128];
    Error ignored;
    memset(run, 0, sizeof *run);
    json_t *o = path_join(path, sizeof path, folder, STATE_NAME, &ignored)
                    ? json_read_object(path, STATE_LIMIT, &ignored)
                    : NULL;
    int64_t format;
    if (!o || !json_get_int(o, path, "format", 1, 1, &format, &ignored) ||
        !json_get_int(o, path, "step", 0, COUNT_LIMIT, &run->step, &ignored))
        run->step = -1;
    read_data(o, run);
    json_decref(o);
}
