#include "vision.h"

#include <string.h>

#include "shapes.h"

// Vision towers known by name. `blocks` is the number of blocks in checkpoint files. The projector reads the output of
// the second-to-last block, as in LLaVA-1.5 and VILA, so the last block is not computed.
static const struct {
    const char *name;
    VisionKind kind;
    int image_size, patch_size, channels, ffn, heads, blocks;
} towers[] = {
    {"clip-l14-336", VISION_CLIP, 336, 14, 1024, 4096, 16, 24},
    {"siglip-b16-224", VISION_SIGLIP, 224, 16, 768, 3072, 12, 12},
    {"siglip-so400m-384", VISION_SIGLIP, 384, 14, 1152, 4304, 16, 27},
};

// Returns the depth N of a name such as siglip:dN; 0 if the name does not begin with `prefix` or N is not a
// number from 1 to 48 without leading zeros.
static int depth_of(const char *name, const char *prefix) {
    const int depth = strncmp(name, prefix, strlen(prefix)) == 0 ? model_depth(name + strlen(prefix)) : 0;
    return depth <= MAX_VISION_DEPTH ? depth : 0;
}

// Sets the shape from row i of the table.
static void set_tower(VisionShape *v, size_t i) {
    const bool clip = towers[i].kind == VISION_CLIP;
    *v = (VisionShape){.kind = towers[i].kind,
                       .image_size = towers[i].image_size,
                       .patch_size = towers[i].patch_size,
                       .channels = towers[i].channels,
                       .ffn = towers[i].ffn,
                       .heads = towers[i].heads,
                       .layers = towers[i].blocks - 1,
                       .file_layers = towers[i].blocks,
                       .activation = clip ? ACT_GELU_QUICK : ACT_GELU_TANH,
                       .norm_eps = clip ? 1e-5f : 1e-6f,
                       .drops_class_row = clip};
}

bool vision_named(const char *name, VisionShape *vision) {
    const VisionShape given = *vision;
    const int clip = depth_of(name, "clip:"), depth = clip ? clip : depth_of(name, "siglip:");
    size_t i = depth && !clip; // index in towers[]; a tower named by depth is based on row 0 (CLIP) or 1 (SigLIP)
    while (!depth && i < sizeof towers / sizeof *towers && strcmp(towers[i].name, name) != 0) i++;
    if (i == sizeof towers / sizeof *towers) return false;
    set_tower(vision, i);
    if (depth) { // all blocks are computed
        vision->channels = 64 * depth;
        vision->ffn = 256 * depth;
        vision->heads = vision->layers = vision->file_layers = depth;
    }
    if (given.image_size) vision->image_size = given.image_size;
    if (given.patch_size) vision->patch_size = given.patch_size;
    vision->projector = given.projector;
    return true;
}

bool vision_finish(Config *c, Error *err) {
    VisionShape *v = &c->shape.vision;
    if (!c->vision[0]) {
        const char *flag = v->image_size   ? "image-size"
                           : v->patch_size ? "patch-size"
                           : v->projector  ? "projector"
                                           : NULL;
        if (v->kind != VISION_NONE || !flag) return true;
        return error_set(err, EXIT_USER, "--%s: the model has no vision tower; add --vision NAME", flag);
    }
    if (c->vision_from_files && v->kind == VISION_NONE) return true;
    if (!c->vision_from_files && !vision_named(c->vision, v))
        return error_set(err, EXIT_USER,
                         "--vision %s: unknown; use a folder, clip-l14-336, siglip-b16-224, siglip-so400m-384, clip:dN "
                         "or siglip:dN with N up to %d",
                         c->vision, MAX_VISION_DEPTH);
    if (v->patch_size > v->image_size)
        return error_set(err, EXIT_USER, "--patch-size %d: exceeds --image-size %d; use a smaller --patch-size",
                         v->patch_size, v->image_size);
    const Architecture architecture = shape_architecture(&c->shape);
    if (c->shape.position_kind != POSITIONS_ROTARY || architecture == ARCHITECTURE_OLMO ||
        architecture == ARCHITECTURE_OLMO2)
        return error_set(err, EXIT_USER,
                         "--vision %s: the language model must have the architecture of Llama, Mistral or Qwen; use "
                         "another --model",
                         c->vision);
    v->features = c->shape.channels;
    v->image_token = c->shape.vocab == named_vocabulary(TOKENIZER_BYTES) ? BYTE_IMAGE_TOKEN : -1;
    return true;
}

const char *const part_names[3] = {"vision", "projector", "language"};

bool vision_freeze(Config *c, Error *err) {
    c->freeze = 0;
    if (strcmp(c->frozen, "none") == 0) c->frozen[0] = '\0';
    for (const char *p = c->frozen; *p;) {
        const size_t length = strcspn(p, ",");
        int part = 0;
        while (part < 3 && !text_is(p, length, part_names[part])) part++;
        if (part == 3)
            return error_set(err, EXIT_USER,
                             "--freeze %s: no part is named %.*s; use vision, projector, language or none", c->frozen,
                             (int)length, p);
        c->freeze |= 1 << part;
        p += length + (p[length] == ',');
    }
    const char *flag = c->freeze                  ? "freeze"
                       : c->lr_vision > 0         ? "lr-vision"
                       : c->lr_projector > 0      ? "lr-projector"
                       : c->images_per_sequence   ? "images-per-sequence"
                       : c->recompute_vision >= 0 ? "recompute-vision"
                       : c->vision_recipe         ? "vision-recipe"
                                                  : NULL;
    if (!flag) return true;
    if (c->shape.vision.kind == VISION_NONE)
        return error_set(err, EXIT_USER,
                         "--%s: the model has no vision tower; remove --%s, or use --vision or a "
                         "vision-language model's folder as --model",
                         flag, flag);
    if (c->lr == 0 && (c->lr_vision > 0 || c->lr_projector > 0))
        return error_set(err, EXIT_USER,
                         "--lr 0: it sets the schedule of --%s, too; use --lr above 0, and add --freeze "
                         "language to leave the language model unchanged",
                         c->lr_vision > 0 ? "lr-vision" : "lr-projector");
    if (c->freeze == (PART_VISION | PART_PROJECTOR | PART_LANGUAGE))
        return error_set(err, EXIT_USER, "--freeze %s: nothing would be trained; name at most two parts", c->frozen);
    return true;
}

bool vision_image(Config *c, Error *err) {
    int marks = 0;
    c->image_rows = 0;
    if (!c->image[0]) return true;
    if (!c->prompt[0]) return error_set(err, EXIT_USER, "--image %s: needs a prompt; add --prompt TEXT", c->image);
    if (c->shape.vision.kind == VISION_NONE)
        return error_set(err, EXIT_USER,
                         "--image %s: the model has no vision tower; remove --image, or name a vision-language model's "
                         "folder as --model",
                         c->image);
    for (const char *p = c->prompt; (p = strstr(p, IMAGE_MARK)) != NULL; p++) marks++;
    c->image_rows = vision_rows(&c->shape.vision) * (marks > 0 ? marks : 1);
    return true;
}

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
    if (config->shape.vision.kind == VISION_NONE) return 0;
    const int most = (config->seq_len + 1) / vision_rows(&config->shape.vision);
    const int given = config->images_per_sequence;
    return config->micro_batch * (given && given < most ? given : most > 0 ? most : 1);
}

// Returns `images`; with FP8 matmuls, rounds the number up until the tower's tokens are a multiple of 16.
static int round_up_images(const Config *tower, int images) {
    if (blocks_in_fp8(&tower->recipe))
        while ((int64_t)images * tower->seq_len % 16 != 0) images++;
    return images;
}

int vision_pass_images(const Config *tower, int images) {
    const int most = tower->micro_batch, step = (most + 31) / 32, computed = (images + step - 1) / step * step;
    return round_up_images(tower, computed < 1 ? 1 : computed > most ? most : computed);
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
    s->init = model->init;
    s->rope.factor = 1.0f;
    s->pad = s->ids.bos = -1;
}

void vision_config(Config *tower, const Config *config) {
    *tower = *config;
    tower_shape(&tower->shape, &config->shape);
    Recipe *r = &tower->recipe;
    const bool coat = config->vision_recipe == VISION_RECIPE_COAT;
    if (coat) r->kind = RECIPE_COAT;
    r->linear = coat ? LINEAR_FP8 : LINEAR_BF16;
    r->head = HEAD_BF16;
    r->saved = coat ? SAVED_COAT : SAVED_BF16;
    r->bf16_blocks = 0;
    if (config->recompute_vision >= 0) r->recompute = config->recompute_vision;
    tower->seq_len = vision_tokens(&config->shape.vision);
    tower->micro_batch = round_up_images(tower, vision_images(config));
    tower->documents = DOCUMENTS_UNMASKED;
    tower->sample_tokens = 0;
    tower->prompt[0] = '\0';
    tower->eval_only = config_forward_only(config);
    tower->health_every = tower->health_matmuls = 0;
}
