// Named models, recipes and defaults.
#include "config.h"

#include <string.h>

void recipe_apply(Recipe *recipe, RecipeKind kind) {
    // The same in every recipe.
    memset(recipe, 0, sizeof *recipe);
    recipe->kind = kind;
    recipe->precision = PRECISION_RECIPE;
    recipe->linear = LINEAR_BF16;
    recipe->head = LINEAR_BF16;
    recipe->saved = SAVED_BF16;
    recipe->scaling = SCALING_TOKEN;
    recipe->gradient_codes_data = recipe->gradient_codes_weights = FMT_E5M2;
    recipe->norm_input = NORM_INPUT_SAVED;
    recipe->activation_input = ACTIVATION_INPUT_SAVED;
    recipe->grads = FMT_BF16;
    recipe->group_size = 16;
    recipe->moments = MOMENTS_FP32;
    recipe->second_moment = FMT_E4M3;
    recipe->second_moment_round = ROUND_NEAREST;
    recipe->master = MASTER_FP32;
    recipe->cache_transposed = true;
    // What makes the recipe.
    if (kind != RECIPE_BF16) recipe->linear = LINEAR_FP8;
    if (kind == RECIPE_COAT) {
        recipe->saved = SAVED_COAT;
        // Less rounding than published: norms and the activation read what was made, data gradients keep a bit more.
        recipe->norm_input = NORM_INPUT_RESIDUAL;
        recipe->activation_input = ACTIVATION_INPUT_PRODUCT;
        recipe->gradient_codes_data = FMT_E4M3;
        recipe->recompute = 1;
        recipe->moments = MOMENTS_COAT;
        recipe->master = MASTER_SPLIT16;
    }
}

const char *recipe_name(RecipeKind kind) {
    static const char *const names[] = {"bf16", "fp8-linear", "coat"};
    return names[kind];
}

const char *schedule_name(ScheduleKind kind) {
    static const char *const names[] = {"cosine", "linear", "wsd", "constant"};
    return names[kind];
}

void model_shape_vocab(ModelShape *shape, int vocab) {
    shape->vocab = vocab;
    shape->vocab_padded = (vocab + VOCAB_PADDING - 1) / VOCAB_PADDING * VOCAB_PADDING;
}

static void shape_gpt2(ModelShape *shape, int layers, int heads, int channels, int positions) {
    memset(shape, 0, sizeof *shape);
    shape->layers = layers;
    shape->heads = shape->kv_heads = heads;
    shape->channels = channels;
    shape->head_dim = channels / heads;
    shape->ffn = 4 * channels;
    shape->positions = positions;
    shape->norm = NORM_LAYER;
    shape->activation = ACT_GELU_TANH;
    shape->position_kind = POSITIONS_LEARNED;
    shape->biases = shape->tied_head = true;
    shape->norm_eps = 1e-5f;
    model_shape_vocab(shape, 50257);
}

bool gpt2_shape(ModelShape *shape, int64_t layers, int64_t heads, int64_t channels, int64_t ffn, int64_t vocab,
                int64_t positions, const char *path, Error *err) {
    const struct {
        const char *name;
        int64_t value, max;
    } checks[] = {{"layers", layers, 1024},
                  {"heads", heads, 1024},
                  {"channels", channels, 65536},
                  {"vocabulary", vocab, 1 << 24},
                  {"positions", positions, 1 << 24}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (checks[i].value < 1 || checks[i].value > checks[i].max)
            return error_set(err, EXIT_DATA, "%s: %lld %s, outside 1 ... %lld", path, (long long)checks[i].value,
                             checks[i].name, (long long)checks[i].max);
    if (channels % heads)
        return error_set(err, EXIT_DATA, "%s: %lld channel%s cannot be divided among %lld heads", path,
                         (long long)channels, plural(channels), (long long)heads);
    shape_gpt2(shape, (int)layers, (int)heads, (int)channels, (int)positions);
    if (ffn) shape->ffn = (int)ffn;
    model_shape_vocab(shape, (int)vocab);
    return true;
}

typedef struct {
    const char *name;
    int layers, heads, channels, positions;
} NamedShape;

static const NamedShape named_shapes[] = {
    {"gpt2", 12, 12, 768, 1024},
    {"gpt2-medium", 24, 16, 1024, 1024},
    {"gpt2-large", 36, 20, 1280, 1024},
    {"gpt2-xl", 48, 25, 1600, 1024},
    {"d6", 6, 6, 384, 1024},
    {"d12", 12, 12, 768, 1024},
    {"d24", 24, 16, 1024, 1024},
    {"d36", 36, 20, 1280, 1024},
    {"d48", 48, 25, 1600, 1024},
    // llm.c's descriptors where they differ from dN
    {"gpt2:d60", 60, 30, 1920, 1024},
    {"gpt2:d72", 72, 30, 2880, 1024},
    {"gpt2:d84", 84, 36, 3456, 1024},
    {"gpt3:c384", 6, 6, 384, 2048},
    {"gpt3:c768", 12, 12, 768, 2048},
    {"gpt3:c1024", 24, 16, 1024, 2048},
    {"gpt3:c1536", 24, 16, 1536, 2048},
    {"gpt3:c2048", 24, 16, 2048, 2048},
    {"gpt3:c2560", 32, 32, 2560, 2048},
    {"gpt3:c4096", 32, 32, 4096, 2048},
    {"gpt3:c5120", 40, 40, 5120, 2048},
    {"gpt3:c12288", 96, 96, 12288, 2048},
};

bool model_shape_named(const char *name, ModelShape *shape) {
    for (size_t i = 0; i < sizeof named_shapes / sizeof named_shapes[0]; i++) {
        const NamedShape *n = &named_shapes[i];
        if (strcmp(n->name, name) != 0) continue;
        shape_gpt2(shape, n->layers, n->heads, n->channels, n->positions);
        return true;
    }
    if (strncmp(name, "gpt2:d", 6) == 0) return model_shape_named(name + 5, shape);
    size_t digits = name[0] == 'd' ? strspn(name + 1, "0123456789") : 0;
    if (digits < 1 || digits > 2 || name[1 + digits] || name[1] == '0') return false;
    int depth = atoi(name + 1);
    if (depth > 96) return false;
    shape_gpt2(shape, depth, depth, 64 * depth, 1024);
    return true;
}

void config_defaults(Config *config) {
    memset(config, 0, sizeof *config);
    config->shuffle = true;
    snprintf(config->model, sizeof config->model, "gpt2");
    model_shape_named(config->model, &config->shape);
    recipe_apply(&config->recipe, RECIPE_COAT);
    config->micro_batch = 4;
    config->seq_len = 1024;
    config->steps = -1;
    config->lr = 3e-4f;
    config->beta1 = 0.9f;
    config->beta2 = 0.95f;
    config->eps = 1e-8f;
    config->grad_clip = 1.0f;
    config->lr_final = 1.0f;
    config->decay_fraction = 0.2f;
    config->schedule = SCHEDULE_COSINE;
    config->seed = 1337;
    config->max_skipped = MOST_SKIPPED;
    config->val_every = 20;
    config->val_batches = 20;
    config->hellaswag_every = -1;
    config->sample_every = 20;
    config->sample_tokens = 64;
    config->health_every = 100;
    config->samples = 1;
    config->temperature = config->top_p = 1.0f;
    config->resume_step = -1;
    config->gpus = 1;
    config->profile = -1;
    config->log_every = 1;
    config->rank = -1;
}
