// Sets the recipes' values and the defaults of all flags.
#include "config.h"

#include <string.h>

#include "shapes.h"

void recipe_apply(Recipe *recipe, RecipeKind kind) {
    memset(recipe, 0, sizeof *recipe);
    recipe->kind = kind;
    recipe->precision = PRECISION_RECIPE;
    recipe->linear = LINEAR_BF16;
    recipe->head = HEAD_BF16;
    recipe->saved = SAVED_BF16;
    recipe->grads = FMT_BF16;
    recipe->group_size = 16;
    recipe->moments = MOMENTS_FP32;
    recipe->momentum_codes = MOMENTUM_I8;
    recipe->master = MASTER_FP32;
    recipe->cache_transposed = true;
    if (kind != RECIPE_BF16) recipe->linear = LINEAR_FP8;
    if (kind == RECIPE_COAT) {
        recipe->bf16_blocks = -1;
        recipe->head = HEAD_FP8_BACKWARD;
    }
    if (kind == RECIPE_COAT || kind == RECIPE_COAT_PAPER) {
        recipe->saved = SAVED_COAT;
        recipe->recompute = 1;
        recipe->moments = MOMENTS_COAT;
        recipe->master = MASTER_SPLIT16;
    }
}

ChoiceName choice_name(const char *names, int value) {
    ChoiceName name;
    for (; value > 0; value--) names += strcspn(names, "|") + 1;
    snprintf(name.text, sizeof name.text, "%.*s", (int)strcspn(names, "|"), names);
    return name;
}

void config_defaults(Config *config) {
    memset(config, 0, sizeof *config);
    config->shuffle = true;
    snprintf(config->model, sizeof config->model, "gpt2");
    model_shape_named(config->model, &config->shape);
    recipe_apply(&config->recipe, RECIPE_COAT);
    config->recompute_vision = -1;
    config->micro_batch = 4;
    config->seq_len = 1024;
    config->steps = -1;
    config->epochs = 1;
    config->lr = 3e-4f;
    config->beta1 = 0.9f;
    config->beta2 = 0.95f;
    config->eps = 1e-8f;
    config->muon_momentum = 0.95f;
    config->muon_rms = 0.2f;
    config->grad_clip = 1.0f;
    config->lr_final = 1.0f;
    config->decay_fraction = 0.2f;
    config->schedule = SCHEDULE_COSINE;
    config->seed = 1337;
    config->max_skipped = 10;
    config->val_every = 20;
    config->val_batches = 20;
    config->hellaswag_every = -1;
    config->sample_every = 20;
    config->sample_tokens = 64;
    config->prompt_format = PROMPT_FORMAT_DATA;
    config->health_every = 100;
    config->samples = 1;
    config->temperature = config->top_p = 1.0f;
    config->resume_step = -1;
    config->gpus = 1;
    config->profile = -1;
    config->log_every = 1;
    config->rank = -1;
}
