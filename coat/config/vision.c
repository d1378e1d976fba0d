#include "vision.h"

#include <string.h>

void vision_select(const VisionShape *v, int32_t *select, int32_t *back) {
    const int grid = vision_grid(v), rows = vision_rows(v), merged = vision_merged(v), tokens = vision_tokens(v);
    const int class_rows = v->kind == VISION_CLIP, side = (grid + DOWNSAMPLE - 1) / DOWNSAMPLE;
    for (int t = 0; t < tokens; t++) back[t] = -1;
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < merged; part++) {
            int from = row + (v->drops_class_row ? class_rows : 0);
            if (v->projector == PROJECTOR_DOWNSAMPLE) {
                const int y = row / side * DOWNSAMPLE + part / DOWNSAMPLE;
                const int x = row % side * DOWNSAMPLE + part % DOWNSAMPLE;
                from = y < grid && x < grid ? class_rows + y * grid + x : -1;
            }
            select[row * merged + part] = from;
            if (from >= 0) back[from] = row * merged + part;
        }
}

void vision_pixel_defaults(VisionKind kind, float mean[3], float deviation[3]) {
    static const float clip_mean[] = {0.48145466f, 0.4578275f, 0.40821073f};
    static const float clip_deviation[] = {0.26862954f, 0.26130258f, 0.27577711f};
    for (int i = 0; i < 3; i++) {
        mean[i] = kind == VISION_CLIP ? clip_mean[i] : 0.5f;
        deviation[i] = kind == VISION_CLIP ? clip_deviation[i] : 0.5f;
    }
}

int vision_images(const Config *config) {
    const int most = (config->seq_len + 1) / vision_rows(&config->shape.vision);
    const int given = config->images_per_sequence;
    return config->micro_batch * (given && given < most ? given : most > 0 ? most : 1);
}

static void tower_shape(ModelShape *s, const ModelShape *model) {
    const VisionShape *v = &model->vision;
    memset(s, 0, sizeof *s);
    s->vision = *v;
    s->tower = s->bidirectional = s->biases = s->tied_head = true;
    s->layers = v->layers;
    s->heads = s->kv_heads = v->heads;
    s->head_dim = v->channels / v->heads;
    s->channels = v->channels;
    s->ffn = v->ffn;
    s->positions = vision_tokens(v);
    s->norm = NORM_LAYER;
    s->activation = v->activation;
    s->position_kind = POSITIONS_LEARNED;
    s->norm_eps = v->norm_eps;
    s->rope.factor = 1.0f;
    s->pad = s->ids.bos = -1;
}

void vision_config(Config *tower, const Config *config) {
    *tower = *config;
    tower_shape(&tower->shape, &config->shape);
    Recipe *r = &tower->recipe;
    r->linear = LINEAR_BF16;
    r->head = HEAD_BF16;
    r->saved = SAVED_BF16;
    r->bf16_blocks = 0;
    tower->micro_batch = vision_images(config);
    tower->seq_len = vision_tokens(&config->shape.vision);
    tower->documents = DOCUMENTS_UNMASKED;
    tower->sample_tokens = 0;
    tower->prompt[0] = '\0';
    tower->health_every = tower->health_matmuls = 0;
}
