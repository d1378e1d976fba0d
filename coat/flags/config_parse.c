#include "config_parse.h"

#include <ctype.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/shapes.h"
#include "config/vision.h"
#include "config_block.h"
#include "model/tensors.h"

// Arguments of config_parse(). `config` is the result, `recorded` the settings of the resumed run or the defaults.
typedef struct {
    const Arguments *args;
    const Config *recorded;
    Config *config;
} Parse;

// True if the flag was given with exactly this name, such as "shuffle" or "no-shuffle".
static bool given(const void *parse, const char *name) {
    const Arguments *args = ((const Parse *)parse)->args;
    for (int i = 0; i < args->count; i++) {
        const char *text = args->text[i] + 2;
        if (text_is(text, strcspn(text, "="), name)) return true;
    }
    return false;
}

static bool set_all(const Arguments *args, Config *config, Error *err) {
    config->train[0] = '\0'; // the list is cleared, because each --train appends a set
    config->train_sets = 0;
    memset(config->train_weights, 0, sizeof config->train_weights);
    for (int i = 0; i < args->count; i++) {
        const char *name = args->text[i] + 2;
        size_t length = strcspn(name, "=");
        bool negated;
        const Flag *flag = flag_find(name, length, &negated);
        if (!flag_set(flag, config, name[length] ? name + length + 1 : NULL, negated, err))
            return error_add_flag_source(args->from[i], err);
    }
    return true;
}

// True if `name` has the form of a model name with a depth, such as "d97" or "llama:3". The depth may be invalid.
static bool is_by_depth(const char *name) {
    const size_t family = strcspn(name, ":");
    bool known = name[0] == 'd' && name[1] && strspn(name + 1, "0123456789") == strlen(name + 1);
    for (int i = 0; i < ARCHITECTURE_COUNT && name[family]; i++)
        known = known || text_is(name, family, architecture_name((Architecture)i));
    return known;
}

// Sets model_from_files to true if --model is a path, to false if --model is a model name. Fails if --model is neither.
static bool choose_model(Config *flags, Error *err) {
    struct stat status;
    ModelShape named;
    const char *model = flags->model;
    flags->model_from_files = !model_shape_named(model, &named);
    if (!flags->model_from_files) return true;
    if (stat(model, &status) == 0) return true;
    const char *resumed = flags->resume ? "; if --out has a checkpoint, remove --model" : "";
    if (strchr(model, '/') || text_ends_with(model, ".bin") || text_ends_with(model, ".safetensors"))
        return error_set(
            err, EXIT_DATA,
            "--model %s: no such file or folder; for a Hugging Face model, give the folder that it was downloaded to%s",
            model, resumed);
    char near[MODEL_NAME], lower[MODEL_NAME];
    snprintf(lower, sizeof lower, "%s", model);
    for (char *at = lower; *at; at++) *at = (char)tolower((unsigned char)*at);
    if (strlen(model) < sizeof lower && suggest_model(lower, near))
        return error_set(err, EXIT_USER,
                         "--model %s: neither a file nor a model name; did you mean %s? --help model lists all names",
                         model, near);
    if (is_by_depth(lower))
        return error_set(err, EXIT_USER,
                         "--model %s: neither a file nor a model name; models by depth are %.*sdN, with 1 to %d layers",
                         model, lower[0] == 'd' ? 0 : (int)strcspn(lower, ":") + 1, lower, MAX_MODEL_DEPTH);
    return error_set(err, EXIT_USER, "--model %s: neither a file nor one of the model names %s%s", model, model_names(),
                     resumed);
}

// True if the run continues from log.jsonl, without a checkpoint, and --model does not replace the model that the log
// records. Other flags, such as --layers, may then change the shape of this model.
static bool keeps_logged_model(const Parse *p) {
    return p->recorded->settings_logged && !given(p, "model");
}

// Sets the values that --recipe, --model and --tokenizer imply. Flags for individual values override these values
// later. `chosen` contains the given flags on top of the defaults.
static void apply_presets(const Parse *p, const Config *chosen) {
    Config *config = p->config;
    if (!keeps_logged_model(p)) {
        snprintf(config->model, sizeof config->model, "%s", chosen->model);
        config->model_from_files = chosen->model_from_files;
        model_shape_named(config->model, &config->shape);
    }
    config->recipe_final = chosen->recipe_final;
    config->recipe_recorded = config->settings_recorded && !config->recipe_final;
    config->batch_recorded = config->settings_recorded && config->batch_tokens > 0 && !given(p, "batch-tokens");
    config->micro_batch_recorded = config->settings_recorded && !given(p, "micro-batch");
    if (!config->recipe_recorded) recipe_apply(&config->recipe, chosen->recipe.kind);
    const int vocab = named_vocabulary(chosen->tokenizer);
    if (vocab) model_shape_vocab(&config->shape, vocab);
}

// True if --vision adds a vision tower to the model, and `name` is a flag that describes the tower.
static bool adds_vision(const Config *config, const char *name) {
    static const char *const names[] = {"vision", "projector", "image-size", "patch-size"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return config->vision[0];
    return false;
}

// Returns the first given flag that sets a part of the model's shape, and copies its name, with "no-" if negated, to
// `name`. Returns NULL if no such flag was given. If `recorded` is not NULL, ignores --init and all flags whose value
// equals the recorded value.
static const Flag *shape_flag(const Parse *p, const Config *recorded, char name[FLAG_TEXT_LENGTH]) {
    for (const Flag *flag = flag_table; flag->name; flag++) {
        const size_t at = flag->offset;
        if (flag->group != GROUP_MODEL || strcmp(flag->name, "model") == 0) continue;
        if (!recorded && p->config->model_from_files && adds_vision(p->config, flag->name)) continue;
        if (recorded && strcmp(flag->name, "init") == 0) continue; // --init affects only new weights
        if (recorded && memcmp((const char *)recorded + at, (const char *)p->config + at, flag->size) == 0) continue;
        snprintf(name, FLAG_TEXT_LENGTH, "%s", flag->name);
        if (given(p, name)) return flag;
        snprintf(name, FLAG_TEXT_LENGTH, "no-%s", flag->name);
        if (flag_has_negation(flag) && given(p, name)) return flag;
    }
    return NULL;
}

// Checks that no flag changes the model shape of the resumed checkpoint. Accepts an unreadable shape, because loading
// the checkpoint reports that error later.
static bool same_shape(const Parse *p, Error *err) {
    char name[FLAG_TEXT_LENGTH], ours[FLAG_TEXT_LENGTH], theirs[FLAG_TEXT_LENGTH];
    const Flag *other = p->recorded->shape.layers ? shape_flag(p, p->recorded, name) : NULL;
    if (!other) return true;
    flag_value(other, p->config, ours);
    flag_value(other, p->recorded, theirs);
    if (other->kind == FLAG_BOOL)
        return error_set(err, EXIT_USER, "--%s: the run's model has %s%s; remove --%s", name,
                         strcmp(theirs, "on") == 0 ? "" : "no ", other->name, name);
    return error_set(err, EXIT_USER, "--%s %s: the run's model has %s; remove --%s", name, ours, theirs, name);
}

// Checks that the model named by --model has the shape of the resumed checkpoint. Compares the vocabulary size only if
// --vocab is given, because the size otherwise follows from the tokenizer.
static bool same_model(const Parse *p, Error *err) {
    for (const Flag *flag = flag_table; flag->name; flag++) {
        char ours[FLAG_TEXT_LENGTH], theirs[FLAG_TEXT_LENGTH];
        if (flag->group != GROUP_MODEL || strcmp(flag->name, "model") == 0 || strcmp(flag->name, "init") == 0) continue;
        if (strcmp(flag->name, "vocab") == 0 && !given(p, "vocab")) continue;
        flag_value(flag, p->config, ours);
        flag_value(flag, p->recorded, theirs);
        if (strcmp(ours, theirs) != 0)
            return error_set(err, EXIT_USER,
                             "--model %s: the resumed run's model has %s %s, but this model has %s; remove --model",
                             p->config->model, flag->name, theirs, ours);
    }
    return true;
}

// Sets the padded vocabulary size and the BOS and EOS ids. A named model with its own vocabulary keeps its ids.
static void finish_vocab(Config *config) {
    ModelShape named;
    const bool own = model_shape_named(config->model, &named) && named.vocab == config->shape.vocab;
    model_shape_vocab(&config->shape, config->shape.vocab);
    if (own) config->shape.ids = named.ids;
}

// Returns a number of channels above `channels`, for a message to suggest. The result is divisible by the number of
// heads, is a multiple of 16 (for FP8), and gives an even head width (for RoPE).
static int fitting_channels(int channels, int heads, bool heads_given) {
    if (!heads_given) return (channels / 64 + 1) * 64;
    int width = channels / heads + 1;
    while (width % 2 || width * heads % 16) width++;
    return width * heads;
}

// True if the resumed checkpoint has a vision tower and --vision is either the name of this tower or a folder. The
// folder may be missing, because the checkpoint contains the tower.
static bool is_recorded_tower(const Config *config, const VisionShape *recorded) {
    VisionShape tower = config->shape.vision;
    if (recorded->kind == VISION_NONE) return false;
    if (!vision_named(config->vision, &tower)) return true;
    return tower.kind == recorded->kind && tower.channels == recorded->channels && tower.ffn == recorded->ffn &&
           tower.file_layers == recorded->file_layers && tower.image_size == recorded->image_size &&
           tower.patch_size == recorded->patch_size;
}

// Drops --vision in a resumed run, because the checkpoint contains the tower. Fails if the checkpoint has another
// tower. Uses the tower's shape in the checkpoint, except the values of given flags, which same_shape() compares later.
static bool take_recorded_tower(const Parse *p, Error *err) {
    Config *config = p->config;
    const VisionShape flags = config->shape.vision, *recorded = &p->recorded->shape.vision;
    if (!is_recorded_tower(config, recorded))
        return error_set(err, EXIT_USER, "--vision %s: the run's model has %s vision tower; remove %s--vision",
                         config->vision, recorded->kind == VISION_NONE ? "no" : "another",
                         given(p, "model") ? "--model and " : "");
    memset(config->vision, 0, sizeof config->vision);
    config->vision_from_files = false;
    config->shape.vision = *recorded;
    if (given(p, "image-size")) config->shape.vision.image_size = flags.image_size;
    if (given(p, "patch-size")) config->shape.vision.patch_size = flags.patch_size;
    if (given(p, "projector")) config->shape.vision.projector = flags.projector;
    return true;
}

// Sets vision_from_files if --vision is a folder. Fails if --model is a path and the folder of --vision does not exist.
static bool finish_vision_folder(const Parse *p, Error *err) {
    Config *config = p->config;
    VisionShape ignored = {VISION_NONE};
    struct stat status;
    const bool resumes = p->recorded->shape_files[0] && p->recorded->shape.layers > 0;
    config->vision_from_files = false;
    if (!config->vision[0]) return true;
    const bool named = vision_named(config->vision, &ignored);
    config->vision_from_files = !named && stat(config->vision, &status) == 0;
    if (resumes && !config->model_from_files) return take_recorded_tower(p, err);
    if (!resumes || named || config->vision_from_files) return true;
    return error_set(err, EXIT_USER,
                     "--vision %s: no such folder; remove --model and --vision, because the resumed checkpoint "
                     "contains the model and its tower",
                     config->vision);
}

// Completes the model's shape: derives each value that no flag sets from --model or from other flags, such as the
// number of heads from --channels. If the shape is stored in files, model_shape_from_files() reads it later.
static bool finish_shape(const Parse *p, Error *err) {
    Config *config = p->config;
    ModelShape *shape = &config->shape;
    char first[FLAG_TEXT_LENGTH]; // first given flag that sets a part of the model's shape
    if (!finish_vision_folder(p, err)) return false;
    const char *size = given(p, "image-size") ? "image-size" : given(p, "patch-size") ? "patch-size" : NULL;
    if (config->vision_from_files && size)
        return error_set(err, EXIT_USER, "--%s: the shape of --vision %s is in its files; remove --%s", size,
                         config->vision, size);
    const bool any = shape_flag(p, NULL, first);
    if (config->model_from_files && any)
        return error_set(err, EXIT_USER, "--%s: the shape of --model %s is in its files; remove --%s", first,
                         config->model, first);
    if (given(p, "model") || keeps_logged_model(p))
        snprintf(config->shape_files, sizeof config->shape_files, "%s", config->model_from_files ? config->model : "");
    else if (config->shape_files[0])
        config->model[0] = '\0';
    if (config->shape_files[0] && !config->model_from_files && any && !same_shape(p, err)) return false;
    if (config->shape_files[0]) {
        // If neither --seq-len nor the recorded settings set seq_len, config_check() sets it after the shape has been
        // read.
        if (!given(p, "seq-len") && !config->settings_recorded) config->seq_len = 0;
        return true;
    }
    if (!config_check_idle(config, given, p, err)) return false;
    bool channels = given(p, "channels"), heads = given(p, "heads");
    if (!given(p, "model") && (channels || heads || given(p, "layers"))) config->model[0] = '\0';
    if (channels && !heads && shape->channels % 64 == 0) shape->heads = shape->channels / 64;
    // A model with grouped-query attention keeps its number of key/value heads if that number divides --heads.
    ModelShape named;
    const bool groups = model_shape_named(config->model, &named) && named.kv_heads < named.heads;
    if (!given(p, "kv-heads") && (channels || heads) && (!groups || shape->heads % shape->kv_heads))
        shape->kv_heads = shape->heads;
    if (!given(p, "head-dim") && (channels || heads)) {
        if (shape->channels % shape->heads)
            return error_set(err, EXIT_USER, "--channels %d: not divisible by --heads %d; use --channels %d",
                             shape->channels, shape->heads, fitting_channels(shape->channels, shape->heads, heads));
        shape->head_dim = shape->channels / shape->heads;
        if (shape->position_kind == POSITIONS_ROTARY && shape->head_dim % 2)
            return error_set(err, EXIT_USER,
                             "--%s %d: %d channel%s with %d head%s give heads of width %d, but rotary positions need "
                             "an even width; use --channels %d",
                             channels ? "channels" : "heads", channels ? shape->channels : shape->heads,
                             shape->channels, plural(shape->channels), shape->heads, plural(shape->heads),
                             shape->head_dim, fitting_channels(shape->channels, shape->heads, heads));
    }
    if (channels && !given(p, "ffn")) shape->ffn = shape_usual_ffn(shape);
    if (!given(p, "positions") && shape->positions < config->seq_len) shape->positions = config->seq_len;
    finish_vocab(config);
    if (!vision_finish(config, err)) return false;
    shape->init_range = init_deviation(shape->init);
    config->vocab_of_tokenizer = config->tokenizer == TOKENIZER_FILE && !given(p, "vocab") &&
                                 !model_keeps_vocabulary(config->model) &&
                                 (given(p, "tokenizer") || !keeps_logged_model(p));
    if (!p->recorded->shape_files[0] || p->recorded->shape.layers == 0) return true;
    if (!same_model(p, err)) return false;
    snprintf(config->shape_files, sizeof config->shape_files, "%s", p->recorded->shape_files);
    config->vocab_of_tokenizer = false;
    config->model[0] = '\0';
    return true;
}

// Changes the output head's matmuls to BF16 in two cases, unless --head is given:
//   --model names weights, and the recipe was not recorded (recipe_recorded). FP8 gradients of the head made
//       fine-tuning worse (docs/finetuning.md).
//   --linear bf16 is given, unless a resumed recipe already has linear bf16. FP8 is then used for storage only, so that
//       GPUs without FP8 matmuls can run the recipe.
static void finish_head(const Parse *p, Recipe *r) {
    if (given(p, "head")) return;
    const bool recorded = p->config->recipe_recorded;
    const bool was_bf16 = recorded && p->recorded->recipe.linear == LINEAR_BF16;
    if (r->head == HEAD_FP8_BACKWARD && p->config->model_from_files && !recorded) r->head = HEAD_BF16;
    if (given(p, "linear") && r->linear == LINEAR_BF16 && !was_bf16) r->head = HEAD_BF16;
}

// Completes and checks the recipe. With --precision fp32, makes all formats FP32, and fails if a given flag requests
// another format.
static bool finish_recipe(const Parse *p, Recipe *r, Error *err) {
    if (r->group_size != 16 && r->group_size != 32 && r->group_size != 128)
        return error_set(err, EXIT_USER, "--group-size %d: must be 16, 32 or 128", r->group_size);
    size_t length;
    if (strcmp(r->moments_fp32, "none") == 0) r->moments_fp32[0] = '\0';
    const char *unmatched = given(p, "moments-fp32") ? moments_unmatched(r->moments_fp32, &length) : NULL;
    if (unmatched)
        return error_set(err, EXIT_USER,
                         "--moments-fp32 %.*s: no parameter has this name; use names from wte, qkvw, projw, fcw, "
                         "fcprojw, headw, or prefixes such as fc*, separated by commas without spaces, or none",
                         (int)length, unmatched);
    finish_head(p, r);
    if (r->precision != PRECISION_FP32) return true;
    const char *other = given(p, "recipe") && r->kind != RECIPE_BF16                                  ? "recipe"
                        : given(p, "linear") && r->linear == LINEAR_FP8                               ? "linear"
                        : given(p, "head") && r->head != HEAD_BF16                                    ? "head"
                        : given(p, "saved") && r->saved == SAVED_COAT                                 ? "saved"
                        : given(p, "moments") && r->moments != MOMENTS_FP32                           ? "moments"
                        : given(p, "master") && r->master != MASTER_FP32                              ? "master"
                        : given(p, "grads") && r->grads != FMT_FP32                                   ? "grads"
                        : given(p, "bf16-blocks") && r->bf16_blocks > 0                               ? "bf16-blocks"
                        : given(p, "vision-recipe") && p->config->vision_recipe != VISION_RECIPE_BF16 ? "vision-recipe"
                                                                                                      : NULL;
    if (other) return error_set(err, EXIT_USER, "--precision fp32 contradicts --%s; remove one of them", other);
    int recompute = given(p, "recompute") ? r->recompute : 0;
    recipe_apply(r, RECIPE_BF16);
    r->precision = PRECISION_FP32;
    r->recompute = recompute;
    r->grads = FMT_FP32;
    return true;
}

// Checks that either all --train flags have a --train-weight or none has.
static bool check_weights(const Config *c, Error *err) {
    const char *at = c->train, *without = NULL;
    int weights = 0;
    for (int k = 0; k < c->train_sets; k++) {
        const bool has = k < MAX_SETS && c->train_weights[k] > 0;
        if (!has && !without) without = at;
        weights += has;
        at = strstr(at, "\n\n") ? strstr(at, "\n\n") + 2 : at;
    }
    if (weights == 0 || !without) return true;
    return error_set(
        err, EXIT_USER,
        "--train %.*s: has no --train-weight, but another --train has one; add --train-weight to every --train",
        (int)strcspn(without, "\n"), without);
}

// Checks combinations of flags, and that the run has something to do.
static bool check_given(const Parse *p, Error *err) {
    const Config *c = p->config;
    if (!check_weights(c, err)) return false;
    const bool tunes = c->autotune && c->plan == PLAN_NONE; // true if tuned algorithms are written to --out
    const char *needs_out = c->resume           ? "resume"
                            : c->save_every > 0 ? "save-every"
                            : c->keep > 0       ? "keep"
                            : c->keep_every > 0 ? "keep-every"
                            : tunes             ? "autotune"
                                                : NULL;
    if (needs_out && !c->out[0])
        return error_set(err, EXIT_USER, "--%s: needs the run's folder; add --out DIR", needs_out);
    if (c->resume && c->overwrite)
        return error_set(err, EXIT_USER,
                         "--resume contradicts --overwrite; remove --overwrite to continue the run in %s, or "
                         "--resume to replace it",
                         c->out);
    if (c->plan == PLAN_NONE && (given(p, "memory-limit") || given(p, "gpus")))
        return error_set(err, EXIT_USER, "--%s: has no effect without --plan; add --plan",
                         given(p, "memory-limit") ? "memory-limit" : "gpus");
    if (c->steps >= 0 && given(p, "epochs"))
        return error_set(err, EXIT_USER,
                         "--epochs %d contradicts --steps %lld: both set the length of the run; remove one of them",
                         c->epochs, (long long)c->steps);
    const char *of_muon = given(p, "muon-momentum")    ? "muon-momentum"
                          : given(p, "muon-rms")       ? "muon-rms"
                          : given(p, "momentum-codes") ? "momentum-codes"
                                                       : NULL;
    if (of_muon && c->optimizer != OPTIMIZER_MUON)
        return error_set(err, EXIT_USER, "--%s: has no effect without --optimizer muon; add --optimizer muon", of_muon);
    if (given(p, "momentum-codes") && c->recipe.moments < MOMENTS_FP8)
        return error_set(err, EXIT_USER, "--momentum-codes: has no effect with --moments %s; remove it",
                         choice_name(MOMENTS_NAMES, c->recipe.moments).text);
    if (c->world_size && c->rank >= c->world_size)
        return error_set(err, EXIT_USER, "--rank %d: must be from 0 to %d with --world-size %d", c->rank,
                         c->world_size - 1, c->world_size);
    if (strchr(c->rendezvous, '/'))
        return error_set(
            err, EXIT_USER,
            "--rendezvous %s: a shared file is not supported; give rank 0's machine as --rendezvous HOST[:PORT]",
            c->rendezvous);
    if (c->eval_only && c->prompt[0])
        return error_set(err, EXIT_USER, "--eval-only contradicts --prompt; remove one of them");
    if (c->val_batches == 0)
        return error_set(
            err, EXIT_USER,
            "--val-batches 0: nothing would be validated; remove --val, or use --val-batches -1 for all of the data");
    if (!(c->top_p > 0.0f))
        return error_set(err, EXIT_USER, "--top-p %g: must be above 0 and at most 1 (1: sample from all tokens)",
                         (double)c->top_p);
    if (c->plan != PLAN_NONE) return true;
    if (c->hellaswag_every >= 0 && !c->hellaswag[0])
        return error_set(err, EXIT_USER, "--hellaswag-every: needs a file of questions; add --hellaswag FILE");
    if (c->eval_only && !c->val[0] && !c->hellaswag[0])
        return error_set(err, EXIT_USER,
                         "--eval-only: there is nothing to evaluate on; add --val GLOB or --hellaswag FILE");
    if (config_trains(c)) return true;
    if (tunes)
        return error_set(err, EXIT_USER, "--autotune: needs training to time its matmuls; add --train, or remove it");
    if (!c->prompt[0] && !c->eval_only && given(p, "prompt"))
        return error_set(err, EXIT_USER, "--prompt: the text is empty; give the text that the sample continues");
    if (!c->prompt[0] && !c->eval_only)
        return error_set(err, EXIT_USER,
                         c->model_from_files
                             ? "--train is missing; add --train 'data/*.bin' to train, --prompt TEXT to sample, or "
                               "--eval-only --val GLOB to evaluate"
                             : "--train is missing; add --train 'data/*.bin' to train, or --plan to plan the run; "
                               "--help lists all flags");
    if (!c->model_from_files && !c->resume && c->out[0])
        return error_set(err, EXIT_USER, "%s: %s has no trained weights; add --resume to load the weights in --out %s",
                         c->eval_only ? "--eval-only" : "--prompt", c->model[0] ? c->model : "a new model", c->out);
    if (!c->model_from_files && !c->resume)
        return error_set(err, EXIT_USER, "%s: %s has no trained weights; add --model FOLDER, or --out DIR --resume%s",
                         c->eval_only ? "--eval-only" : "--prompt", c->model[0] ? c->model : "a new model",
                         c->eval_only ? "" : ", or --train");
    return true;
}

// flags: `count` flags that have no effect in this run. If any of them were given, adds a note with their names and the
// `reason`.
static void note_idle(const Parse *p, const char *const *flags, size_t count, const char *reason) {
    Config *c = p->config;
    const char *before = "note: ";
    for (size_t i = 0; i < count; i++) {
        if (!given(p, flags[i])) continue;
        text_append(c->notes, sizeof c->notes, "%s--%s", before, flags[i]);
        before = ", ";
    }
    if (*before == ',') text_append(c->notes, sizeof c->notes, ": without effect, as %s\n", reason);
}

// Adds notes to config->notes about flags that have no effect or a surprising effect.
static void note_given(const Parse *p) {
    Config *c = p->config;
    const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    static const char *const of_batch[] = {"batch-tokens", "micro-batch", "examples", "documents",
                                           "logits-chunk", "val",         "hellaswag"};
    static const char *const of_fp8[] = {"group-size", "moments-fp32", "fast-accumulation-data"};
    if (config_samples_only(c))
        note_idle(p, of_batch, sizeof of_batch / sizeof *of_batch, "nothing is trained or evaluated");
    else if (c->eval_only)
        note_idle(p, of_batch, 1, "nothing is trained");
    if (c->recipe.precision == PRECISION_FP32)
        note_idle(p, of_fp8, sizeof of_fp8 / sizeof *of_fp8, "everything is FP32");
    if (c->plan != PLAN_NONE) return;
    if (c->threads > cores)
        text_append(c->notes, sizeof c->notes, "note: --threads %d: more than this machine's %d core%s\n", c->threads,
                    cores, plural(cores));
    if (c->out[0] && !c->resume && config_forward_only(c))
        text_append(c->notes, sizeof c->notes,
                    "note: --out %s: nothing is written there without training; add --resume to load the run's model\n",
                    c->out);
}

static void print_text(const Arguments *args, const char *program, bool *printed) {
    const char *slash = strrchr(program, '/');
    if (slash) program = slash + 1;
    for (int i = 0; i < args->count && !*printed; i++) {
        const char *text = args->text[i];
        FlagGroup group;
        *printed = true;
        if (strcmp(text, "--help") == 0)
            flags_help(stdout, program, -1);
        else if (strncmp(text, "--help=", 7) == 0 && flag_group_find(text + 7, &group))
            flags_help(stdout, program, (int)group);
        else if (strcmp(text, "--help=markdown") == 0)
            flags_help_markdown(stdout);
        else if (strcmp(text, "--version") == 0)
            printf("%s %s\n", program, COAT_VERSION);
        else
            *printed = false;
    }
}

bool command_line_read(CommandLine *line, int argc, char **argv, bool *exit_now, Error *err) {
    Config *flags = &line->flags;
    const Parse parse = {&line->args, NULL, flags};
    config_defaults(flags);
    *exit_now = false;
    bool ok = arguments_rewrite(&line->args, argc, argv, flags->notes, sizeof flags->notes, err);
    if (ok) print_text(&line->args, argc > 0 ? argv[0] : "train_gpt2_fp8", exit_now);
    if (ok && !*exit_now) ok = set_all(&line->args, flags, err) && choose_model(flags, err);
    flags->recipe_final = ok && given(&parse, "recipe");
    if (!ok || *exit_now) arguments_free(&line->args);
    return ok;
}

// Applies the flags again, after the values that --model and --recipe imply (read from `chosen`), so that the order of
// the flags does not matter. Then applies the flags to recipe bf16, which gives the fallback recipe (plain_recipe).
static bool parse_flags(const Parse *p, Config *chosen, Error *err) {
    Config *config = p->config;
    apply_presets(p, chosen);
    if (!set_all(p->args, config, err)) return false;
    char name[FLAG_TEXT_LENGTH];
    config->model_named = given(p, "model") || shape_flag(p, NULL, name) || given(p, "tokenizer") ||
                          given(p, "seq-len") || given(p, "micro-batch") || given(p, "batch-tokens");
    if (p->args->may_start) config->nothing_to_resume = false;
    config->epochs_given = given(p, "epochs");
    // --epochs replaces a recorded number of steps
    if (config->epochs_given && !given(p, "steps")) config->steps = -1;
    if (!finish_shape(p, err) || !finish_recipe(p, &config->recipe, err)) return false;
    if (config->plan == PLAN_TABLE && config->json) config->plan = PLAN_JSON;
    // A run that only samples prints nothing but the sampled text.
    if (config->prompt[0] && !config->train[0] && !given(p, "no-quiet")) config->quiet = true;
    recipe_apply(&chosen->recipe, RECIPE_BF16);
    if (!set_all(p->args, chosen, err) || !finish_recipe(p, &chosen->recipe, err)) return false;
    config->plain_recipe = chosen->recipe;
    note_given(p);
    return check_given(p, err);
}

bool config_parse(Config *config, CommandLine *line, const Config *recorded, Error *err) {
    const Parse parse = {&line->args, recorded, config};
    *config = *recorded;
    memcpy(config->notes, line->flags.notes, sizeof config->notes);
    bool ok = !keeps_logged_model(&parse) || !config->model[0] || choose_model(config, err);
    ok = ok && parse_flags(&parse, &line->flags, err);
    arguments_free(&line->args);
    return ok;
}
