#include "config_check.h"

#include "config/shapes.h"
#include "config/vision.h"
#include "config_block.h"
#include "io/files.h"

bool config_check_tokenizer(const Config *c, int tokens, Error *err) {
    const int vocab = c->shape.vocab;
    const char *name = config_tokenizer_name(c);
    if (tokens <= vocab) return true;
    ModelShape named;
    if (!c->shape_files[0] && model_shape_named(c->model, &named) && named.vocab == vocab)
        return error_set(err, EXIT_USER,
                         "--model %s: its vocabulary has %d tokens, but --tokenizer %s has %d; use --vocab %d",
                         c->model, vocab, name, tokens, tokens);
    if (!c->shape_files[0])
        return error_set(err, EXIT_USER, "--vocab %d: the vocabulary of --tokenizer %s has %d tokens; use --vocab %d",
                         vocab, name, tokens, tokens);
    return error_set(err, EXIT_USER, "--tokenizer %s: it has %d tokens, but the model's vocabulary has %d%s", name,
                     tokens, vocab,
                     vocab == 257 ? ", which are bytes; use --tokenizer bytes"
                                  : "; give the tokenizer that the model was trained with");
}

static bool check_shape(const Config *c, Error *err) {
    const ModelShape *s = &c->shape;
    if (s->layers < 1 || s->heads < 1 || s->kv_heads < 1 || s->head_dim < 1 || s->channels < 1 || s->ffn < 1 ||
        s->vocab < 1)
        return error_set(err, EXIT_DATA,
                         "%s: the model's shape is incomplete: layers, heads, kv-heads, head-dim, channels, ffn and "
                         "vocab must all be at least 1",
                         c->shape_files);
    if (s->heads % s->kv_heads)
        return error_set(err, EXIT_USER, "--kv-heads %d: must divide --heads %d", s->kv_heads, s->heads);
    if (!config_check_block(c, err)) return false;
    if (s->norm == NORM_PLAIN && s->norm_eps != 1e-5f) // fixed, because OLMo's config.json does not store norm_eps
        return error_set(err, EXIT_USER, "--norm-eps %g: --norm plain requires 1e-5; remove --norm-eps",
                         (double)s->norm_eps);
    if (s->rope.factor != 1.0f && s->rope.low >= s->rope.high)
        return error_set(err, EXIT_USER, "--rope-low %g: must be below --rope-high %g", (double)s->rope.low,
                         (double)s->rope.high);
    if (s->position_kind == POSITIONS_ROTARY && s->head_dim % 2)
        return error_set(err, EXIT_USER, "--head-dim %d: must be even for rotary positions", s->head_dim);
    if (s->head_dim > MAX_HEAD_WIDTH)
        return error_set(err, EXIT_USER, "--channels %d: with %d head%s, each head is wider than %d; use more --heads",
                         s->channels, s->heads, plural(s->heads), MAX_HEAD_WIDTH);
    if (c->seq_len > s->positions)
        return error_set(err, EXIT_USER, "--seq-len %d: the model has %d position%s; use --seq-len %d%s", c->seq_len,
                         s->positions, plural(s->positions), s->positions,
                         c->shape_files[0] ? "" : " or a larger --positions");
    return config_check_tokenizer(c, named_vocabulary(c->tokenizer), err);
}

// If --resume finds no checkpoint, checks that a flag sets the model, the tokenizer or the batch of a new run.
// Otherwise a mistyped --out would start a run with the defaults.
static bool check_resumed(const Config *c, Error *err) {
    if (!c->nothing_to_resume || c->plan != PLAN_NONE) return true;
    if (!path_is_folder(c->out))
        return error_set(err, EXIT_USER,
                         "--out %s: there is no such folder, so --resume has nothing to continue; correct the name, or "
                         "create the folder to begin a run in it",
                         c->out);
    return c->model_named ||
           error_set(err, EXIT_USER,
                     "--resume: %s has neither a checkpoint nor a log with settings, and no flag names a model to "
                     "begin with; correct --out, or add --model gpt2",
                     c->out);
}

bool config_check(Config *config, int ranks, Error *err) {
    if (!check_resumed(config, err)) return false;
    if (config->seq_len == 0) config->seq_len = config->shape.positions < 1024 ? config->shape.positions : 1024;
    return check_shape(config, err) && vision_freeze(config, err) && vision_image(config, err) &&
           config_check_recipe(config, ranks, err);
}
