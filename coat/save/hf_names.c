#include "hf_names.h"

#include <stdio.h>

typedef struct {
    const char *whole; // name of the complete parameter; %d is replaced by the layer
    bool transposed;   // true: the file stores (in, out), as GPT-2 does for linear weights
    struct {
        const char *name;
        Dim rows;          // number of rows, or of columns if the parameter has one row
    } parts[HF_MAX_PARTS]; // tensors that store the parameter; if there are none, one tensor with the name `whole`
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

// Tensor names of Llama and of architectures with equal names. Models that fuse q, k and v, or gate and up, use the
// names of complete parameters.
static const HfName llama_names[PARAMETER_COUNT] = {
    [WTE] = {"model.embed_tokens.weight"},
    [LN1W] = {"model.layers.%d.input_layernorm.weight"},
    [QKVW] = {"model.layers.%d.self_attn.qkv_proj.weight", .parts = {{"model.layers.%d.self_attn.q_proj.weight", DIM_ATT},
                                                                     {"model.layers.%d.self_attn.k_proj.weight", DIM_KV},
                                                                     {"model.layers.%d.self_attn.v_proj.weight", DIM_KV}}},
    [QKVB] = {"model.layers.%d.self_attn.qkv_proj.bias", .parts = {{"model.layers.%d.self_attn.q_proj.bias", DIM_ATT},
                                                                   {"model.layers.%d.self_attn.k_proj.bias", DIM_KV},
                                                                   {"model.layers.%d.self_attn.v_proj.bias", DIM_KV}}},
    [QNORMW] = {"model.layers.%d.self_attn.q_norm.weight"},
    [KNORMW] = {"model.layers.%d.self_attn.k_norm.weight"},
    [PROJW] = {"model.layers.%d.self_attn.o_proj.weight"},
    [LN2W] = {"model.layers.%d.post_attention_layernorm.weight"},
    [FCW] = {"model.layers.%d.mlp.gate_up_proj.weight", .parts = {{"model.layers.%d.mlp.gate_proj.weight", DIM_F},
                                                                  {"model.layers.%d.mlp.up_proj.weight", DIM_F}}},
    [FCPROJW] = {"model.layers.%d.mlp.down_proj.weight"},
    [LNFW] = {"model.norm.weight"},
    [HEADW] = {"lm_head.weight"},
};

// Tensor names of OLMo 2 that differ from Llama's.
static const HfName olmo2_names[PARAMETER_COUNT] = {
    [LN1W] = {"model.layers.%d.post_attention_layernorm.weight"},
    [LN2W] = {"model.layers.%d.post_feedforward_layernorm.weight"},
};
// clang-format on

static const HfName *find(const ModelShape *shape, TensorId id) {
    if (shape->position_kind == POSITIONS_LEARNED) return &gpt2_names[id];
    return &(shape->norm_place == NORM_POST && olmo2_names[id].whole ? olmo2_names : llama_names)[id];
}

// Writes a tensor name to name[]: the pattern with %d replaced by the layer.
static void fill_name(char name[HF_NAME_LENGTH], const char *pattern, TensorId id, int layer) {
    if (!pattern) fatal(EXIT_DATA, "parameter %s has no name in Hugging Face's files", tensor_row(id)->name);
    const char *number = strstr(pattern, "%d");
    if (number)
        snprintf(name, HF_NAME_LENGTH, "%.*s%d%s", (int)(number - pattern), pattern, layer, number + 2);
    else
        snprintf(name, HF_NAME_LENGTH, "%s", pattern);
}

int hf_parts(const ModelShape *shape, TensorId id, int layer, HfPart parts[HF_MAX_PARTS]) {
    const HfName *names = find(shape, id);
    const bool single = tensor_row(id)->rows == DIM_1;
    int count = 0;
    int64_t at = 0;
    for (; count < HF_MAX_PARTS && names->parts[count].name; count++) {
        HfPart *part = &parts[count];
        fill_name(part->name, names->parts[count].name, id, layer);
        part->transposed = names->transposed;
        const int64_t extent = shape_extent(names->parts[count].rows, shape);
        part->first_row = single ? 0 : at;
        part->rows = single ? 1 : extent;
        part->first_col = single ? at : 0;
        part->cols = single ? extent : shape_extent(tensor_row(id)->cols, shape);
        at += extent;
    }
    if (count > 0) return count;
    fill_name(parts->name, names->whole, id, layer);
    parts->transposed = names->transposed;
    parts->first_row = parts->first_col = 0;
    parts->cols = shape_extent(tensor_row(id)->cols, shape);
    parts->rows = tensor_used_rows(id, shape_extent(tensor_row(id)->rows, shape), shape);
    return 1;
}

void hf_whole_name(const ModelShape *shape, TensorId id, int layer, char name[HF_NAME_LENGTH]) {
    fill_name(name, find(shape, id)->whole, id, layer);
}
