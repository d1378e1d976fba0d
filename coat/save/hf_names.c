#include "hf_names.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *whole; // name of the complete parameter; %d is replaced by the layer
    bool transposed;   // true: the file stores (in, out), as GPT-2 does for linear weights
    // tensors that store the parameter's pieces (tensor_pieces()); none: one tensor with the name `whole`
    const char *parts[HF_MAX_PARTS];
} HfName;

// clang-format off
static const HfName gpt2_names[PARAMETER_COUNT] = {
    [WTE] = {"transformer.wte.weight"},
    [WPE] = {"transformer.wpe.weight"},
    [LN1W] = {"transformer.h.%d.ln_1.weight"},
    [LN1B] = {"transformer.h.%d.ln_1.bias"},
    [QKVW] = {"transformer.h.%d.attn.c_attn.weight", .transposed = true},
    [QKVB] = {"transformer.h.%d.attn.c_attn.bias"},
    [PROJW] = {"transformer.h.%d.attn.c_proj.weight", .transposed = true},
    [PROJB] = {"transformer.h.%d.attn.c_proj.bias"},
    [LN2W] = {"transformer.h.%d.ln_2.weight"},
    [LN2B] = {"transformer.h.%d.ln_2.bias"},
    [FCW] = {"transformer.h.%d.mlp.c_fc.weight", .transposed = true},
    [FCB] = {"transformer.h.%d.mlp.c_fc.bias"},
    [FCPROJW] = {"transformer.h.%d.mlp.c_proj.weight", .transposed = true},
    [FCPROJB] = {"transformer.h.%d.mlp.c_proj.bias"},
    [LNFW] = {"transformer.ln_f.weight"},
    [LNFB] = {"transformer.ln_f.bias"},
};

// Tensor names of Llama and of architectures that share its names. The complete names of QKVW, QKVB and FCW name only
// their moments and master weights in checkpoints (hf_whole_name()); the weights are stored under the names in `parts`.
static const HfName llama_names[PARAMETER_COUNT] = {
    [WTE] = {"model.embed_tokens.weight"},
    [LN1W] = {"model.layers.%d.input_layernorm.weight"},
    [QKVW] = {"model.layers.%d.self_attn.qkv_proj.weight", .parts = {"model.layers.%d.self_attn.q_proj.weight",
                                                                     "model.layers.%d.self_attn.k_proj.weight",
                                                                     "model.layers.%d.self_attn.v_proj.weight"}},
    [QKVB] = {"model.layers.%d.self_attn.qkv_proj.bias", .parts = {"model.layers.%d.self_attn.q_proj.bias",
                                                                   "model.layers.%d.self_attn.k_proj.bias",
                                                                   "model.layers.%d.self_attn.v_proj.bias"}},
    [QNORMW] = {"model.layers.%d.self_attn.q_norm.weight"},
    [KNORMW] = {"model.layers.%d.self_attn.k_norm.weight"},
    [PROJW] = {"model.layers.%d.self_attn.o_proj.weight"},
    [LN2W] = {"model.layers.%d.post_attention_layernorm.weight"},
    [FCW] = {"model.layers.%d.mlp.gate_up_proj.weight", .parts = {"model.layers.%d.mlp.gate_proj.weight",
                                                                  "model.layers.%d.mlp.up_proj.weight"}},
    [FCPROJW] = {"model.layers.%d.mlp.down_proj.weight"},
    [LNFW] = {"model.norm.weight"},
    [HEADW] = {"lm_head.weight"},
};

// Tensor names of OLMo 2 that differ from Llama's.
static const HfName olmo2_names[PARAMETER_COUNT] = {
    [LN1W] = {"model.layers.%d.post_attention_layernorm.weight"},
    [LN2W] = {"model.layers.%d.post_feedforward_layernorm.weight"},
};

#define BLOCK "encoder.layers.%d."
#define PROJECTOR "multi_modal_projector."

// Tensor names of projectors, and of CLIP's and SigLIP's vision towers without the tower's prefix.
static const HfName vision_names[PARAMETER_COUNT] = {
    [CLS] = {"embeddings.class_embedding"},
    [PATCHW] = {"embeddings.patch_embedding.weight"},
    [PATCHB] = {"embeddings.patch_embedding.bias"},
    [WPE] = {"embeddings.position_embedding.weight"},
    [LNPREW] = {"pre_layrnorm.weight"},
    [LNPREB] = {"pre_layrnorm.bias"},
    [LN1W] = {BLOCK "layer_norm1.weight"},
    [LN1B] = {BLOCK "layer_norm1.bias"},
    [QKVW] = {BLOCK "self_attn.qkv_proj.weight", .parts = {BLOCK "self_attn.q_proj.weight",
                                                           BLOCK "self_attn.k_proj.weight",
                                                           BLOCK "self_attn.v_proj.weight"}},
    [QKVB] = {BLOCK "self_attn.qkv_proj.bias", .parts = {BLOCK "self_attn.q_proj.bias",
                                                         BLOCK "self_attn.k_proj.bias",
                                                         BLOCK "self_attn.v_proj.bias"}},
    [PROJW] = {BLOCK "self_attn.out_proj.weight"},
    [PROJB] = {BLOCK "self_attn.out_proj.bias"},
    [LN2W] = {BLOCK "layer_norm2.weight"},
    [LN2B] = {BLOCK "layer_norm2.bias"},
    [FCW] = {BLOCK "mlp.fc1.weight"},
    [FCB] = {BLOCK "mlp.fc1.bias"},
    [FCPROJW] = {BLOCK "mlp.fc2.weight"},
    [FCPROJB] = {BLOCK "mlp.fc2.bias"},
    [LNPROJW] = {PROJECTOR "norm.weight"},
    [LNPROJB] = {PROJECTOR "norm.bias"},
    [PROJ1W] = {PROJECTOR "linear_1.weight"},
    [PROJ1B] = {PROJECTOR "linear_1.bias"},
    [PROJ2W] = {PROJECTOR "linear_2.weight"},
    [PROJ2B] = {PROJECTOR "linear_2.bias"},
};
// clang-format on

#define TOWER "vision_tower.vision_model."

static const HfName *find(const ModelShape *shape, TensorId id) {
    if (shape->tower) return &vision_names[id];
    if (shape->position_kind == POSITIONS_LEARNED) return &gpt2_names[id];
    return &(shape->norm_place == NORM_POST && olmo2_names[id].whole ? olmo2_names : llama_names)[id];
}

// Returns the prefix of a parameter's tensor names in its model's files, such as "language_model."; "" if it has none.
static const char *prefix_of(const ModelShape *shape, const char *pattern) {
    if (shape->tower) return pattern && strncmp(pattern, PROJECTOR, strlen(PROJECTOR)) == 0 ? "" : TOWER;
    return shape->vision.kind == VISION_NONE ? "" : "language_model.";
}

// Writes a tensor name to name[]: the prefix, then the pattern with %d replaced by the layer.
static void fill_name(char name[HF_NAME_LENGTH], const char *prefix, const char *pattern, TensorId id, int layer) {
    if (!pattern) fatal(EXIT_DATA, "parameter %s has no name in Hugging Face's files", tensor_row(id)->name);
    const char *number = strstr(pattern, "%d");
    if (number)
        snprintf(name, HF_NAME_LENGTH, "%s%.*s%d%s", prefix, (int)(number - pattern), pattern, layer, number + 2);
    else
        snprintf(name, HF_NAME_LENGTH, "%s%s", prefix, pattern);
}

int hf_parts(const ModelShape *shape, TensorId id, int layer, HfPart parts[HF_MAX_PARTS]) {
    const HfName *names = find(shape, id);
    const bool single = tensor_row(id)->rows == DIM_1;
    int count = 0;
    int64_t at = 0, extents[MAX_PIECES];
    const int pieces = tensor_pieces(id, shape, extents);
    for (; count < pieces && names->parts[count]; count++) {
        HfPart *part = &parts[count];
        fill_name(part->name, prefix_of(shape, names->parts[count]), names->parts[count], id, layer);
        part->transposed = names->transposed;
        part->rank = tensor_rank(id);
        const int64_t extent = extents[count];
        part->first_row = single ? 0 : at;
        part->rows = single ? 1 : extent;
        part->first_col = single ? at : 0;
        part->cols = single ? extent : shape_extent(tensor_row(id)->cols, shape);
        at += extent;
    }
    if (count > 0) return count;
    fill_name(parts->name, prefix_of(shape, names->whole), names->whole, id, layer);
    parts->transposed = names->transposed;
    parts->rank = tensor_rank(id);
    parts->first_row = parts->first_col = 0;
    parts->cols = shape_extent(tensor_row(id)->cols, shape);
    parts->rows = tensor_used_rows(id, shape_extent(tensor_row(id)->rows, shape), shape);
    if (id == PATCHW) { // files store it as the weight of a convolution, with 4 dimensions
        const int64_t side = shape->vision.patch_size, dims[HF_MAX_RANK] = {parts->rows, 3, side, side};
        parts->rank = HF_MAX_RANK;
        memcpy(parts->dims, dims, sizeof dims);
    }
    return 1;
}

void hf_whole_name(const ModelShape *shape, TensorId id, int layer, char name[HF_NAME_LENGTH]) {
    const char *pattern = find(shape, id)->whole;
    fill_name(name, prefix_of(shape, pattern), pattern, id, layer);
}

int hf_carried_parts(const ModelShape *tower, HfPart **parts) {
    const int64_t C = tower->channels, F = tower->ffn;
    // tensors of the tower after its blocks; rows 0: the tensor has one dimension, `cols`
    const struct {
        const char *name;
        int64_t rows, cols;
    } rest[] = {{"post_layernorm.weight", 0, C},
                {"post_layernorm.bias", 0, C},
                {"head.probe", 1, C},
                {"head.attention.in_proj_weight", 3 * C, C},
                {"head.attention.in_proj_bias", 0, 3 * C},
                {"head.attention.out_proj.weight", C, C},
                {"head.attention.out_proj.bias", 0, C},
                {"head.layernorm.weight", 0, C},
                {"head.layernorm.bias", 0, C},
                {"head.mlp.fc1.weight", F, C},
                {"head.mlp.fc1.bias", 0, F},
                {"head.mlp.fc2.weight", C, F},
                {"head.mlp.fc2.bias", 0, C}};
    enum { REST = sizeof rest / sizeof *rest, PROBE = 2, PER_BLOCK = (FCPROJB - LN1W + 1) * HF_MAX_PARTS };
    const VisionShape *v = &tower->vision;
    int count = 0;
    *parts = (HfPart *)xcalloc((size_t)(v->file_layers - v->layers) * PER_BLOCK + REST, sizeof **parts);
    for (int layer = v->layers; layer < v->file_layers; layer++)
        for (int id = LN1W; id <= FCPROJB; id++) count += hf_parts(tower, (TensorId)id, layer, *parts + count);
    for (int i = 0; i < (v->pooling_head ? REST : PROBE); i++) {
        HfPart *part = &(*parts)[count++];
        snprintf(part->name, sizeof part->name, TOWER "%s", rest[i].name);
        part->rows = rest[i].rows ? rest[i].rows : 1;
        part->cols = rest[i].cols;
        part->rank = i == PROBE ? 3 : rest[i].rows ? 2 : 1;
        part->dims[0] = part->dims[1] = 1;
        part->dims[2] = part->cols;
    }
    return count;
}

const char *hf_other_name(const char *name, int layout, char other[HF_NAME_LENGTH]) {
    static const struct {
        const char *prefix, *instead;
    } layouts[HF_LAYOUTS] = {
        {"transformer.", ""},
        {"model.", ""},
        {"language_model.model.", "model.language_model."},
        {"language_model.lm_head.", "lm_head."},
        {TOWER, "model." TOWER},
        {TOWER, "model.vision_tower."},
        {TOWER, "vision_tower."},
        {PROJECTOR, "model." PROJECTOR},
        {TOWER, "vision_model."}, // folder of a CLIP or SigLIP model
        {TOWER, ""},              // folder of a tower alone, as transformers 5 writes it
    };
    const size_t length = strlen(layouts[layout].prefix);
    if (strncmp(name, layouts[layout].prefix, length) != 0) return NULL;
    snprintf(other, HF_NAME_LENGTH, "%s%s", layouts[layout].instead, name + length);
    return other;
}
