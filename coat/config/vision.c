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

int vision_images(const Config *config) {
    const int most = (config->seq_len + 1) / vision_rows(&config->shape.vision);
    const int given = config->images_per_sequence;
    return config->micro_batch * (given && given < most ? given : most > 0 ? most : 1);
}

int64_t vision_pixel_bytes(const Config *config) {
    const int64_t side = config->shape.vision.image_size;
    return vision_images(config) * 3 * side * side;
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
