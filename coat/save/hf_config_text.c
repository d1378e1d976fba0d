// Writes config.json and generation_config.json with the keys of transformers 4.
#include <string.h>

#include "config/shapes.h"
#include "config/vision.h"
#include "hf.h"

static void id_field(JsonText *t, const char *key, int id) {
    if (id >= 0)
        json_text_int(t, key, id);
    else
        json_text_null(t, key);
}

// Writes the BOS and EOS ids. Writes null for missing ids, because some classes of transformers have other defaults.
static void ids_fields(JsonText *t, const SpecialIds *ids) {
    id_field(t, "bos_token_id", ids->bos);
    if (ids->eos_count == 0) json_text_null(t, "eos_token_id");
    if (ids->eos_count == 1) json_text_int(t, "eos_token_id", ids->eos[0]);
    if (ids->eos_count < 2) return;
    json_text_open(t, "eos_token_id", '[');
    for (int i = 0; i < ids->eos_count; i++) json_text_int(t, NULL, ids->eos[i]);
    json_text_close(t, ']');
}

static void gpt2_fields(JsonText *t, const ModelShape *s) {
    // keys written as 0, because the model has no dropout
    static const char *const zeros[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
    json_text_int(t, "n_layer", s->layers);
    json_text_int(t, "n_head", s->heads);
    json_text_int(t, "n_embd", s->channels);
    json_text_int(t, "n_inner", s->ffn);
    json_text_int(t, "n_positions", s->positions);
    json_text_int(t, "n_ctx", s->positions);
    json_text_int(t, "vocab_size", s->vocab);
    json_text_string(t, "activation_function", "gelu_new");
    json_text_float(t, "layer_norm_epsilon", s->norm_eps);
    for (int i = 0; i < 3; i++) json_text_float(t, zeros[i], 0.0f);
    json_text_bool(t, "scale_attn_weights", true);
}

static void rope_scaling_fields(JsonText *t, const RopeScaling *rope) {
    json_text_open(t, "rope_scaling", '{');
    json_text_string(t, "rope_type", "llama3");
    json_text_float(t, "factor", rope->factor);
    json_text_float(t, "low_freq_factor", rope->low);
    json_text_float(t, "high_freq_factor", rope->high);
    json_text_int(t, "original_max_position_embeddings", rope->positions);
    json_text_close(t, '}');
}

static void other_fields(JsonText *t, const ModelShape *s, Architecture architecture) {
    json_text_int(t, "num_hidden_layers", s->layers);
    json_text_int(t, "hidden_size", s->channels);
    json_text_int(t, "intermediate_size", s->ffn);
    json_text_int(t, "num_attention_heads", s->heads);
    json_text_int(t, "num_key_value_heads", s->kv_heads);
    if (architecture == ARCHITECTURE_LLAMA || architecture == ARCHITECTURE_QWEN3)
        json_text_int(t, "head_dim", s->head_dim);
    json_text_int(t, "max_position_embeddings", s->positions);
    json_text_int(t, "vocab_size", s->vocab);
    json_text_string(t, "hidden_act", "silu");
    if (architecture != ARCHITECTURE_OLMO) json_text_float(t, "rms_norm_eps", s->norm_eps);
    if (architecture != ARCHITECTURE_QWEN2) json_text_bool(t, "attention_bias", false);
    if (architecture == ARCHITECTURE_LLAMA) json_text_bool(t, "mlp_bias", false);
    if (architecture == ARCHITECTURE_OLMO && s->clip_qkv > 0) json_text_float(t, "clip_qkv", s->clip_qkv);
    if (architecture == ARCHITECTURE_QWEN2 || architecture == ARCHITECTURE_QWEN3)
        json_text_bool(t, "use_sliding_window", false);
    json_text_float(t, "attention_dropout", 0.0f);
    json_text_float(t, "rope_theta", s->rope_theta);
    if (s->rope.factor != 1.0f) rope_scaling_fields(t, &s->rope);
}

// Writes architectures and model_type.
static void type_fields(JsonText *t, const char *class_name, const char *type) {
    json_text_open(t, "architectures", '[');
    json_text_string(t, NULL, class_name);
    json_text_close(t, ']');
    json_text_string(t, "model_type", type);
}

// Writes the keys of a text model.
static void text_fields(JsonText *t, const ModelShape *s, Architecture architecture) {
    static const char *const classes[ARCHITECTURE_COUNT] = {
        [ARCHITECTURE_GPT2] = "GPT2LMHeadModel",   [ARCHITECTURE_LLAMA] = "LlamaForCausalLM",
        [ARCHITECTURE_OLMO] = "OlmoForCausalLM",   [ARCHITECTURE_OLMO2] = "Olmo2ForCausalLM",
        [ARCHITECTURE_QWEN2] = "Qwen2ForCausalLM", [ARCHITECTURE_QWEN3] = "Qwen3ForCausalLM",
    };
    // transformers 5 rejects a llama model whose width is not divisible by its number of heads. Such a model is written
    // as mistral without a sliding window, which computes the same function.
    const bool mistral = architecture == ARCHITECTURE_LLAMA && s->channels % s->heads;
    type_fields(t, mistral ? "MistralForCausalLM" : classes[architecture],
                mistral ? "mistral" : architecture_name(architecture));
    if (mistral) json_text_null(t, "sliding_window");
    if (architecture == ARCHITECTURE_GPT2)
        gpt2_fields(t, s);
    else
        other_fields(t, s, architecture);
    if (s->init_range > 0) json_text_double(t, "initializer_range", s->init_range);
    json_text_bool(t, "tie_word_embeddings", s->tied_head);
    json_text_bool(t, "use_cache", true);
    id_field(t, "pad_token_id", s->pad);
    ids_fields(t, &s->ids);
}

// Writes all keys of a vision-language model except torch_dtype and transformers_version.
static void llava_fields(JsonText *t, const ModelShape *s, Architecture architecture) {
    static const char *const activations[] = {
        [ACT_GELU_TANH] = "gelu_pytorch_tanh", [ACT_GELU_QUICK] = "quick_gelu", [ACT_GELU_ERF] = "gelu"};
    const VisionShape *v = &s->vision;
    const bool siglip = v->kind == VISION_SIGLIP;
    type_fields(t, "LlavaForConditionalGeneration", "llava");
    json_text_open(t, "text_config", '{');
    text_fields(t, s, architecture);
    json_text_close(t, '}');
    json_text_open(t, "vision_config", '{');
    json_text_string(t, "model_type", siglip ? "siglip_vision_model" : "clip_vision_model");
    json_text_int(t, "num_hidden_layers", v->file_layers);
    json_text_int(t, "hidden_size", v->channels);
    json_text_int(t, "intermediate_size", v->ffn);
    json_text_int(t, "num_attention_heads", v->heads);
    json_text_int(t, "num_channels", 3);
    json_text_int(t, "image_size", v->image_size);
    json_text_int(t, "patch_size", v->patch_size);
    json_text_string(t, "hidden_act", activations[v->activation]);
    json_text_float(t, "layer_norm_eps", v->norm_eps);
    if (siglip) json_text_bool(t, "vision_use_head", v->pooling_head);
    json_text_float(t, "attention_dropout", 0.0f);
    json_text_close(t, '}');
    json_text_int(t, "vision_feature_layer", v->layers - v->file_layers - 1);
    json_text_string(t, "vision_feature_select_strategy", v->drops_class_row ? "default" : "full");
    json_text_string(t, "projector_hidden_act", "gelu");
    json_text_bool(t, "multimodal_projector_bias", true);
    if (v->projector == PROJECTOR_DOWNSAMPLE) json_text_string(t, "mm_projector_type", "mlp_downsample");
    json_text_int(t, "image_token_index", v->image_token);
    json_text_int(t, "image_seq_length", vision_rows(v));
    json_text_bool(t, "tie_word_embeddings", s->tied_head);
    id_field(t, "pad_token_id", s->pad);
}

bool hf_config_text(JsonText *t, const ModelShape *s, Dtype weights, Error *err) {
    const Architecture architecture = shape_architecture(s);
    if (architecture == ARCHITECTURE_COUNT)
        return error_set(
            err, EXIT_DATA,
            "the model cannot be saved, because no supported architecture (GPT-2, Llama, OLMo, Qwen, ...) has its "
            "combination of norm, activation, position encoding and biases");
    const char *dtype = weights == DTYPE_BF16 ? "bfloat16" : weights == DTYPE_F64 ? "float64" : "float32";
    json_text_begin(t, true);
    if (s->vision.kind == VISION_NONE)
        text_fields(t, s, architecture);
    else
        llava_fields(t, s, architecture);
    json_text_string(t, "torch_dtype", dtype);
    // transformers_version is required: without it, transformers 4.57.6 mistakes any tokenizer with a large vocabulary
    // for a faulty tokenizer of Mistral
    json_text_string(t, "transformers_version", "4.57.1");
    json_text_close(t, '}');
    return true;
}

void hf_generation_text(JsonText *t, const ModelShape *s, const json_t *source) {
    const char *key;
    json_t *value;
    json_text_begin(t, true);
    ids_fields(t, &s->ids);
    json_object_foreach((json_t *)source, key, value) {
        if (strcmp(key, "bos_token_id") != 0 && strcmp(key, "eos_token_id") != 0) json_text_value(t, key, value);
    }
    if (!source) id_field(t, "pad_token_id", s->pad);
    json_text_close(t, '}');
}
