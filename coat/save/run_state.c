#include "run_state.h"

#include <math.h>
#include <string.h>

#include "flags/settings.h"
#include "io/files.h"
#include "log/terminal.h"

#define STATE_LIMIT (1u << 20)
// maximum number of steps, sequences or tokens in state.json, so that adding the numbers of this run cannot overflow
#define COUNT_LIMIT ((int64_t)1 << 53)

// Returns a copy of config with the values that checkpoints record; free() it.
static Config *as_recorded(const Config *config, int ranks) {
    Config *c = (Config *)xcalloc(1, sizeof *c);
    const Recipe *r = &config->recipe;
    *c = *config;
    c->batch_tokens = config_batch_tokens(config, ranks);
    // Records the lowest --recompute level whose results are bit-identical to those of this run's level. Levels 2 and 3
    // always have bit-identical results. So have levels 1 and 2, unless level 2 recomputes BF16 norm outputs that level
    // 1 saves. Level 2 does so with --bf16-blocks, unless --saved is coat.
    const int highest = r->bf16_blocks > 0 && r->saved != SAVED_COAT ? 2 : 1;
    if (r->recompute > highest) c->recipe.recompute = highest;
    return c;
}

static void window_field(JsonText *t, const char *key, const GuardWindow *window) {
    json_text_open(t, key, '[');
    for (int64_t i = 0; i < window->count; i++) json_text_double(t, NULL, window->values[i]);
    json_text_close(t, ']');
}

void run_state_text(JsonText *t, const RunState *run, const Config *config, int ranks) {
    const StepState *s = &run->state;
    json_text_begin(t, true);
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
    Config *recorded = as_recorded(config, ranks);
    settings_record(t, recorded);
    free(recorded);
    json_text_close(t, '}');
    json_text_close(t, '}');
}

// Reads one window of the outlier guard from state.json. If the checkpoint was written without the guard, the window
// stays empty.
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

static void print_difference(const char *flag, const char *recorded, const char *now) {
    print_remark("resume: ", "--%s was %s and is now %s", flag, recorded, now);
}

static void ignore_difference(const char *flag, const char *recorded, const char *now) {
    (void)flag, (void)recorded, (void)now;
}

// Compares recorded settings with config. A different precision is an error, and so is a different optimizer if the run
// trains. Rank 0 of a run that trains prints the other differences.
static bool compare_settings(json_t *theirs, const Config *config, const Exec *exec, const char *path, Error *err) {
    Config *now = as_recorded(config, exec->ranks);
    const bool prints = exec->rank == 0 && !config_forward_only(config);
    const bool good = (settings_update(theirs, path, err) || !config->recipe_recorded) &&
                      settings_compare(theirs, now, path, prints ? print_difference : ignore_difference, err);
    free(now);
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

void run_state_scale_position(RunState *run, int64_t pass, int seq_len) {
    if (run->pass == 0)
        run->sequences = run->tokens / seq_len;
    else if (run->pass != pass)
        run->sequences = (int64_t)fmin((double)run->sequences * (double)pass / (double)run->pass, (double)COUNT_LIMIT);
    run->pass = pass;
}

// Returns the JSON object in folder/state.json, or NULL if the file cannot be read.
static json_t *read_state(const char *folder) {
    char path[PATH_MAX_LENGTH + 128];
    Error ignored;
    const bool good = path_join(path, sizeof path, folder, STATE_NAME, &ignored);
    return good ? json_read_object(path, STATE_LIMIT, &ignored) : NULL;
}

void run_state_summary(const char *folder, RunState *run) {
    Error ignored;
    memset(run, 0, sizeof *run);
    json_t *o = read_state(folder);
    int64_t format;
    if (!o || !json_get_int(o, STATE_NAME, "format", 1, 1, &format, &ignored) ||
        !json_get_int(o, STATE_NAME, "step", 0, COUNT_LIMIT, &run->step, &ignored))
        run->step = -1;
    read_data(o, run);
    json_decref(o);
}

bool run_state_has_muon(const char *path) {
    char folder[PATH_MAX_LENGTH];
    Error ignored;
    if (!path_is_folder(path) && !path_folder(folder, sizeof folder, path, &ignored)) return false;
    json_t *o = read_state(path_is_folder(path) ? path : folder);
    const char *optimizer = json_string_value(json_object_get(json_object_get(o, "settings"), "optimizer"));
    const bool muon = optimizer && strcmp(optimizer, "muon") == 0;
    json_decref(o);
    return muon;
}
