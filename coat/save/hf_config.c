// Reads config.json of Hugging Face's models. Accepts the keys of transformers 4 and the renamed keys of version 5.
#include <string.h>

#include "config/shapes.h"
#include "hf.h"

// State for reading a JSON object: the object, the file's path for messages, and the error to set. nested: true if the
// object is the text_config of a vision-language model, which may omit sizes that are the defaults of its class.
typedef struct {
    const json_t *root;
    const char *path;
    Error *err;
    bool nested;
} Reader;

// Returns the value of a key; NULL if the key is absent or null. Use it only for keys that transformers allows to be
// null.
static const json_t *find(const Reader *r, const char *key) {
    const json_t *item = json_object_get(r->root, key);
    return item && !json_is_null(item) ? item : NULL;
}

// Fails if the key is present with a value other than `value`.
static bool require_bool(const Reader *r, const char *key, bool value) {
    const json_t *item = json_object_get(r->root, key);
    if (!item || (json_is_boolean(item) && json_is_true(item) == value)) return true;
    return error_set(r->err, EXIT_DATA, "%s: '%s' must be %s; other models are not supported", r->path, key,
                     value ? "true" : "false");
}

// Sets *value to the key's boolean, or to `otherwise` if the key is absent.
static bool get_bool(const Reader *r, const char *key, bool otherwise, bool *value) {
    const json_t *item = json_object_get(r->root, key);
    *value = item ? json_is_true(item) : otherwise;
    return !item || json_is_boolean(item) ||
           error_set(r->err, EXIT_DATA, "%s: '%s' must be true or false", r->path, key);
}

// Sets *value to the key's integer, which must be from 1 to max. If the key is absent or null, sets *value to
// `otherwise`, or fails if `otherwise` is 0.
static bool get_int(const Reader *r, const char *key, int64_t max, int64_t otherwise, int *value) {
    int64_t found = otherwise;
    if ((!otherwise || find(r, key)) && !json_get_int(r->root, r->path, key, 1, max, &found, r->err)) return false;
    *value = (int)found;
    return true;
}

// Sets *value to the key's number, which must be from min to max, or to `otherwise` if the key is absent.
static bool get_float(const Reader *r, const char *key, double min, double max, float otherwise, float *value) {
    double found;
    *value = otherwise;
    if (!json_object_get(r->root, key)) return true;
    if (!json_get_double(r->root, r->path, key, &found, r->err)) return false;
    *value = (float)found;
    return (found >= min && found <= max) ||
           error_set(r->err, EXIT_DATA, "%s: %s is %g; it must be from %g to %g", r->path, key, found, min, max);
}

// Fails if the key is present and its activation function is neither `name` nor `other`.
static bool require_activation(const Reader *r, const char *key, const char *name, const char *other) {
    const json_t *item = json_object_get(r->root, key);
    const char *value = item ? json_string_value(item) : name; // an absent key means transformers' default, `name`
    if (value && (strcmp(value, name) == 0 || strcmp(value, other) == 0)) return true;
    return error_set(r->err, EXIT_DATA, "%s: %s is '%.60s'; only '%s' is supported", r->path, key,
                     value ? value : "not a name", name);
}

// The architecture of models with a given model_type, and the defaults of absent keys in its transformers config class.
// The defaults do not apply to keys that are null: sliding_window null means no window, and num_key_value_heads null
// means num_attention_heads.
typedef struct {
    const char *type;
    Architecture architecture;
    int kv_heads; // default of num_key_value_heads; 0: equal to num_attention_heads
    int head_dim; // default of head_dim; 0: hidden_size / num_attention_heads
    int positions;
    int window;          // default of sliding_window; 0: none
    float eps;           // default of rms_norm_eps; 0: config.json of this model_type has no such key
    int begin, end, pad; // defaults of bos_token_id, eos_token_id and pad_token_id; -1: null
    // defaults of hidden_size, intermediate_size and vocab_size; 0: a vision-language model cannot contain this type
    int channels, ffn, vocab;
} ModelType;

// default of num_hidden_layers and num_attention_heads in every type that a vision-language model can contain
enum { DEFAULT_DEPTH = 32 };

// clang-format off
static const ModelType model_types[] = {
    // The columns are the fields of ModelType. read_gpt2() reads the keys of gpt2 that have other names.
    // type     architecture         kv head_dim positions window eps  begin  end    pad channels ffn vocab
    {"gpt2",    ARCHITECTURE_GPT2,   0,  0,      0,       0,     0,     50256, 50256, -1, 0,    0,     0},
    {"llama",   ARCHITECTURE_LLAMA,  0,  0,      2048,    0,     1e-6f, 1,     2,     -1, 4096, 11008, 32000},
    {"mistral", ARCHITECTURE_LLAMA,  8,  0,      131072,  4096,  1e-6f, 1,     2,     -1, 4096, 14336, 32000},
    {"olmo",    ARCHITECTURE_OLMO,   0,  0,      2048,    0,     0,     -1,    50279, 1,  0,    0,     0},
    {"olmo2",   ARCHITECTURE_OLMO2,  0,  0,      2048,    0,     1e-5f, -1,    50279, 1,  0,    0,     0},
    {"qwen2",   ARCHITECTURE_QWEN2,  32, 0,      32768,   0,     1e-6f, -1,    -1,    -1, 4096, 22016, 151936},
    {"qwen3",   ARCHITECTURE_QWEN3,  32, 128,    32768,   0,     1e-6f, -1,    -1,    -1, 4096, 22016, 151936},
};
// clang-format on

// Returns the token id in a JSON value; -1 if the value is not an integer or is outside the vocabulary.
static int id_of(const json_t *item, const ModelShape *s) {
    const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
    return id >= 0 && id < s->vocab ? (int)id : -1;
}

// Adds the ids of the key eos_token_id (an id, null or a list) to shape->ids, up to MAX_EOS ids in all. Ignores ids
// outside the vocabulary: a small test model may have the default ids of its class, which exceed its vocabulary.
static bool read_eos(const Reader *r, ModelShape *s) {
    const json_t *ends = json_object_get(r->root, "eos_token_id");
    if (ends && !json_is_integer(ends) && !json_is_null(ends) && !json_is_array(ends))
        return error_set(r->err, EXIT_DATA, "%s: eos_token_id must be a number, a list of numbers or null", r->path);
    for (size_t i = 0; i < json_array_size(ends); i++)
        if (!json_is_integer(json_array_get(ends, i)))
            return error_set(r->err, EXIT_DATA, "%s: every item of the list eos_token_id must be a number", r->path);
    if (json_is_integer(ends)) model_shape_add_eos(s, id_of(ends, s));
    for (size_t i = 0; i < json_array_size(ends) && s->ids.eos_count < MAX_EOS; i++)
        model_shape_add_eos(s, id_of(json_array_get(ends, i), s));
    return true;
}

// Sets *id to the key's token id, or to -1 if the key is null or its id is outside the vocabulary. If the key is
// absent, sets *id to `otherwise`.
static bool read_id(const Reader *r, const char *key, int otherwise, const ModelShape *s, int *id) {
    const json_t *item = json_object_get(r->root, key);
    *id = item ? id_of(item, s) : otherwise < s->vocab ? otherwise : -1;
    return !item || json_is_integer(item) || json_is_null(item) ||
           error_set(r->err, EXIT_DATA, "%s: %s must be a number or null", r->path, key);
}

static bool read_ids(const Reader *r, const ModelType *type, ModelShape *s) {
    int begin;
    if (!read_id(r, "bos_token_id", type->begin, s, &begin) || !read_id(r, "pad_token_id", type->pad, s, &s->pad))
        return false;
    model_shape_ids(s, begin, json_object_get(r->root, "eos_token_id") ? -1 : type->end);
    return read_eos(r, s);
}

static bool read_gpt2(const Reader *r, ModelShape *shape) {
    int layers, heads, channels, vocab, positions, ffn = 0;
    float eps;
    if (!require_activation(r, "activation_function", "gelu_new", "gelu_pytorch_tanh") ||
        !require_bool(r, "tie_word_embeddings", true) || !require_bool(r, "scale_attn_weights", true) ||
        !require_bool(r, "scale_attn_by_inverse_layer_idx", false) || !require_bool(r, "add_cross_attention", false))
        return false;
    if (!get_int(r, "n_layer", MAX_LAYERS, 0, &layers) || !get_int(r, "n_head", MAX_HEADS, 0, &heads) ||
        !get_int(r, "n_embd", MAX_CHANNELS, 0, &channels) || !get_int(r, "vocab_size", MAX_VOCAB, 0, &vocab) ||
        !get_int(r, "n_positions", MAX_POSITIONS, 0, &positions) ||
        (find(r, "n_inner") && !get_int(r, "n_inner", MAX_FFN, 0, &ffn)) ||
        !get_float(r, "layer_norm_epsilon", MIN_NORM_EPS, MAX_NORM_EPS, 1e-5f, &eps) ||
        !gpt2_shape(shape, layers, heads, channels, ffn, vocab, positions, r->path, r->err))
        return false;
    shape->norm_eps = eps;
    return true;
}

// Reads RoPE scaling from `object`: rope_scaling in transformers 4, rope_parameters in transformers 5.
static bool read_rope_scaling(const Reader *file, Architecture architecture, const json_t *object, RopeScaling *rope) {
    const Reader r = {object, file->path, file->err, false};
    const char *kind = json_string_value(find(&r, "rope_type") ? find(&r, "rope_type") : find(&r, "type"));
    if (!kind) return error_set(r.err, EXIT_DATA, "%s: rope scaling has no 'rope_type'", r.path);
    if (strcmp(kind, "default") == 0) return true;
    if (strcmp(kind, "llama3") != 0 || architecture != ARCHITECTURE_LLAMA)
        return error_set(r.err, EXIT_DATA, "%s: rope scaling '%.60s' is not supported for %s; only 'llama3' for llama",
                         r.path, kind, architecture_name(architecture));
    if (!get_float(&r, "factor", MIN_ROPE_FACTOR, MAX_ROPE_FACTOR, 0, &rope->factor) ||
        !get_float(&r, "low_freq_factor", MIN_ROPE_BAND, MAX_ROPE_BAND, 0, &rope->low) ||
        !get_float(&r, "high_freq_factor", MIN_ROPE_BAND, MAX_ROPE_BAND, 0, &rope->high) ||
        !get_int(&r, "original_max_position_embeddings", MAX_POSITIONS, 0, &rope->positions))
        return false;
    if (rope->factor == 1.0f) { // a factor of 1 means no scaling
        ModelShape usual;
        architecture_shape(architecture, &usual);
        *rope = usual.rope;
        return true;
    }
    const json_t *outer = find(file, "original_max_position_embeddings");
    if (outer && json_number_value(outer) != rope->positions)
        return error_set(r.err, EXIT_DATA,
                         "%s: 'original_max_position_embeddings' must be %d, as in the rope scaling; otherwise "
                         "transformers 4 and 5 use different values",
                         r.path, rope->positions);
    return (rope->factor > 0 && rope->low > 0 && rope->high > rope->low) ||
           error_set(r.err, EXIT_DATA, "%s: rope scaling needs factor, low_freq_factor and a larger high_freq_factor",
                     r.path);
}

// Fails if the object `name` has separate RoPE parameters for each layer type, which transformers 5 allows.
static bool check_one_rope(const Reader *r, const char *name) {
    const char *kind;
    json_t *value;
    json_object_foreach(json_object_get(r->root, name), kind, value) {
        if (!json_is_object(value)) continue;
        return error_set(
            r->err, EXIT_DATA,
            "%s: '%s' has separate RoPE parameters for each layer type, such as '%.60s', which is not supported",
            r->path, name, kind);
    }
    return true;
}

// Reads RoPE's base and scaling. As in transformers 5, rope_scaling overrides rope_parameters. A rope_theta inside the
// object that is used overrides the rope_theta outside this object.
static bool read_rope(const Reader *r, Architecture architecture, ModelShape *shape) {
    const char *const names[] = {"rope_parameters", "rope_scaling"};
    const json_t *object = NULL;
    for (int i = 0; i < 2; i++) {
        const json_t *found = find(r, names[i]);
        if (found && !json_is_object(found))
            return error_set(r->err, EXIT_DATA, "%s: '%s' must be an object or null", r->path, names[i]);
        if (found && !check_one_rope(r, names[i])) return false;
        if (found) object = found;
    }
    const Reader inner = {object, r->path, r->err, false};
    const Reader *theta = object && json_object_get(object, "rope_theta") ? &inner : r;
    float outer_factor = 1.0f, inner_factor = 1.0f;
    if (!get_float(theta, "rope_theta", MIN_ROPE_THETA, MAX_ROPE_THETA, 10000.0f, &shape->rope_theta) ||
        (find(r, "partial_rotary_factor") && !get_float(r, "partial_rotary_factor", 0, 1, 1.0f, &outer_factor)) ||
        (find(&inner, "partial_rotary_factor") &&
         !get_float(&inner, "partial_rotary_factor", 0, 1, 1.0f, &inner_factor)))
        return false;
    if (outer_factor != 1.0f || inner_factor != 1.0f)
        return error_set(r->err, EXIT_DATA, "%s: 'partial_rotary_factor' must be 1; other models are not supported",
                         r->path);
    const bool has_kind = object && (object != find(r, names[0]) || find(&inner, "rope_type") || find(&inner, "type"));
    return !has_kind || read_rope_scaling(r, architecture, object, &shape->rope);
}

// Reads the sliding window and limits shape->positions to the window's size. Longer sequences are not allowed, because
// full attention would then differ from sliding-window attention. Fails if layer_types names a type other than
// full_attention.
static bool read_window(const Reader *r, const ModelType *type, ModelShape *shape) {
    int window = json_object_get(r->root, "sliding_window") ? 0 : type->window;
    const json_t *kinds = find(r, "layer_types");
    if (kinds && json_array_size(kinds) != (size_t)shape->layers)
        return error_set(r->err, EXIT_DATA, "%s: layer_types must be a list of num_hidden_layers = %d names", r->path,
                         shape->layers);
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        if (kind && strcmp(kind, "full_attention") == 0) continue;
        return error_set(r->err, EXIT_DATA, "%s: layer_types has '%.60s'; only 'full_attention' is supported", r->path,
                         kind ? kind : "no name");
    }
    if (strncmp(type->type, "qwen", 4) == 0) return require_bool(r, "use_sliding_window", false);
    if (!type->window) return true; // transformers ignores sliding_window for this model type
    if (find(r, "sliding_window") && !get_int(r, "sliding_window", MAX_POSITIONS, 0, &window)) return false;
    if (window > 0 && window < shape->positions) shape->positions = window;
    return true;
}

static bool read_heads(const Reader *r, const ModelType *type, ModelShape *s) {
    const bool has_kv = json_object_get(r->root, "num_key_value_heads") != NULL;
    const int kv_heads = has_kv || !type->kv_heads ? s->heads : type->kv_heads;
    if (!get_int(r, "num_key_value_heads", MAX_HEADS, kv_heads, &s->kv_heads)) return false;
    if (s->heads % s->kv_heads)
        return error_set(r->err, EXIT_DATA, "%s: num_attention_heads %d is not divisible by num_key_value_heads %d%s",
                         r->path, s->heads, s->kv_heads, has_kv ? "" : ", its default");
    if (!type->head_dim && !find(r, "head_dim") && s->channels % s->heads)
        return error_set(r->err, EXIT_DATA,
                         "%s: hidden_size %d is not divisible by num_attention_heads %d, and there is no head_dim",
                         r->path, s->channels, s->heads);
    if (!get_int(r, "head_dim", MAX_HEAD_WIDTH, type->head_dim ? type->head_dim : s->channels / s->heads, &s->head_dim))
        return false;
    const char *source = find(r, "head_dim") ? "head_dim" : "hidden_size / num_attention_heads =";
    if (s->head_dim % 2)
        return error_set(r->err, EXIT_DATA, "%s: %s %d is odd; RoPE needs pairs of channels", r->path, source,
                         s->head_dim);
    if (s->head_dim > MAX_HEAD_WIDTH)
        return error_set(r->err, EXIT_DATA, "%s: %s %d must be from 1 to %d", r->path, source, s->head_dim,
                         MAX_HEAD_WIDTH);
    const bool own_width = type->architecture == ARCHITECTURE_LLAMA || type->architecture == ARCHITECTURE_QWEN3;
    return own_width || s->head_dim * s->heads == s->channels ||
           error_set(r->err, EXIT_DATA,
                     "%s: head_dim %d times num_attention_heads %d must be hidden_size %d; other models of model_type "
                     "%s are not supported",
                     r->path, s->head_dim, s->heads, s->channels, type->type);
}

static bool read_clip(const Reader *r, const ModelType *type, ModelShape *s) {
    if (!find(r, "clip_qkv")) return true;
    if (type->architecture != ARCHITECTURE_OLMO)
        return error_set(r->err, EXIT_DATA, "%s: clip_qkv is not supported for %s, only for olmo", r->path, type->type);
    if (!get_float(r, "clip_qkv", 0, MAX_CLIP_QKV, 0, &s->clip_qkv)) return false;
    return s->clip_qkv > 0.0f ||
           error_set(r->err, EXIT_DATA, "%s: clip_qkv 0 would make q, k and v 0; set it to null for no limit", r->path);
}

// Reads the model shape for all model types except gpt2.
static bool read_other(const Reader *r, const ModelType *type, ModelShape *shape) {
    ModelShape *s = shape;
    const Architecture architecture = type->architecture;
    const bool has_positions = json_object_get(r->root, "max_position_embeddings") != NULL;
    bool tied;
    architecture_shape(architecture, s);
    if (!require_activation(r, "hidden_act", "silu", "swish") || !require_bool(r, "attention_bias", false) ||
        !require_bool(r, "mlp_bias", false) || !get_bool(r, "tie_word_embeddings", false, &tied))
        return false;
    if (!get_int(r, "num_hidden_layers", MAX_LAYERS, r->nested ? DEFAULT_DEPTH : 0, &s->layers) ||
        !get_int(r, "hidden_size", MAX_CHANNELS, r->nested ? type->channels : 0, &s->channels) ||
        !get_int(r, "intermediate_size", MAX_FFN, r->nested ? type->ffn : 0, &s->ffn) ||
        !get_int(r, "num_attention_heads", MAX_HEADS, r->nested ? DEFAULT_DEPTH : 0, &s->heads) ||
        !get_int(r, "vocab_size", MAX_VOCAB, r->nested ? type->vocab : 0, &s->vocab) ||
        !get_int(r, "max_position_embeddings", MAX_POSITIONS, has_positions ? 0 : type->positions, &s->positions) ||
        !read_heads(r, type, s))
        return false;
    if ((type->eps > 0 && !get_float(r, "rms_norm_eps", MIN_NORM_EPS, MAX_NORM_EPS, type->eps, &s->norm_eps)) ||
        !read_clip(r, type, s))
        return false;
    s->tied_head = tied;
    model_shape_vocab(s, s->vocab);
    return read_rope(r, architecture, shape) && read_window(r, type, shape);
}

// Reads the shape of a text model from a complete config.json or from the text_config of a vision-language model.
static bool read_text(const Reader *r, ModelShape *shape) {
    const char *type = json_string_value(json_object_get(r->root, "model_type"));
    const int count = sizeof model_types / sizeof *model_types;
    const char *const supported =
        r->nested ? "llama, mistral, qwen2 and qwen3" : "gpt2, llama, llava, mistral, olmo, olmo2, qwen2 and qwen3";
    int kind = 0;
    if (!type && r->nested) type = "llama";
    if (!type) return error_set(r->err, EXIT_DATA, "%s has no model_type; set it to one of %s", r->path, supported);
    while (kind < count && strcmp(type, model_types[kind].type) != 0) kind++;
    if (kind == count || (r->nested && !model_types[kind].channels))
        return error_set(r->err, EXIT_DATA, "%s: model_type is '%.60s'; only %s are supported", r->path, type,
                         supported);
    if (json_object_size(find(r, "per_layer_config")) || json_array_size(find(r, "per_layer_config")))
        return error_set(r->err, EXIT_DATA, "%s: layers that differ (per_layer_config) are not supported", r->path);
    if (!require_bool(r, "is_causal", true) ||
        !(kind == 0 ? read_gpt2(r, shape) : read_other(r, &model_types[kind], shape)) ||
        !read_ids(r, &model_types[kind], shape))
        return false;
    const double range = json_number_value(find(r, "initializer_range"));
    shape->init_range = range > 0 && range <= 1 ? range : 0; // transformers rejects more than 1
    return true;
}

// ---------------------------------------------------------------- vision-language models

// Sets *value to the activation function of a vision tower, or to `otherwise` if its key is absent.
static bool read_tower_activation(const Reader *r, ActivationKind otherwise, ActivationKind *value) {
    static const struct {
        const char *name;
        ActivationKind kind;
    } kinds[] = {{"quick_gelu", ACT_GELU_QUICK},
                 {"gelu_pytorch_tanh", ACT_GELU_TANH},
                 {"gelu_new", ACT_GELU_TANH},
                 {"gelu", ACT_GELU_ERF}};
    const json_t *item = json_object_get(r->root, "hidden_act");
    const char *name = json_string_value(item);
    *value = otherwise;
    for (size_t i = 0; item && i < sizeof kinds / sizeof *kinds; i++) {
        if (!name || strcmp(name, kinds[i].name) != 0) continue;
        *value = kinds[i].kind;
        return true;
    }
    return !item || error_set(r->err, EXIT_DATA,
                              "%s: hidden_act is '%.60s'; only quick_gelu, gelu_pytorch_tanh and gelu are supported",
                              r->path, name ? name : "not a name");
}

// Reads the tower's shape from vision_config. otherwise: value of an absent model_type; NULL means clip_vision_model.
static bool read_tower(const Reader *r, const char *otherwise, VisionShape *v) {
    const json_t *item = json_object_get(r->root, "model_type");
    const char *type = item ? json_string_value(item) : otherwise;
    const bool siglip = type && strcmp(type, "siglip_vision_model") == 0;
    int colors;
    if (type && !siglip && strcmp(type, "clip_vision_model") != 0)
        return error_set(r->err, EXIT_DATA,
                         "%s: model_type is '%.60s'; only clip_vision_model and siglip_vision_model are supported",
                         r->path, type);
    v->kind = siglip ? VISION_SIGLIP : VISION_CLIP;
    if (!get_int(r, "hidden_size", MAX_CHANNELS, 768, &v->channels) ||
        !get_int(r, "intermediate_size", MAX_FFN, 3072, &v->ffn) ||
        !get_int(r, "num_hidden_layers", MAX_LAYERS, 12, &v->file_layers) ||
        !get_int(r, "num_attention_heads", MAX_CHANNELS, 12, &v->heads) || !get_int(r, "num_channels", 3, 3, &colors) ||
        !get_int(r, "image_size", MAX_IMAGE_SIZE, 224, &v->image_size) ||
        !get_int(r, "patch_size", MAX_IMAGE_SIZE, siglip ? 16 : 32, &v->patch_size) ||
        !get_float(r, "layer_norm_eps", MIN_NORM_EPS, MAX_NORM_EPS, siglip ? 1e-6f : 1e-5f, &v->norm_eps) ||
        !read_tower_activation(r, siglip ? ACT_GELU_TANH : ACT_GELU_QUICK, &v->activation) ||
        (siglip && !get_bool(r, "vision_use_head", true, &v->pooling_head)))
        return false;
    if (colors != 3) return error_set(r->err, EXIT_DATA, "%s: num_channels must be 3 (is %d)", r->path, colors);
    if (v->patch_size > v->image_size)
        return error_set(r->err, EXIT_DATA, "%s: patch_size %d exceeds image_size %d", r->path, v->patch_size,
                         v->image_size);
    return (v->channels % v->heads == 0 && v->channels / v->heads <= MAX_HEAD_WIDTH) ||
           error_set(r->err, EXIT_DATA, "%s: hidden_size %d / num_attention_heads %d must be an integer from 1 to %d",
                     r->path, v->channels, v->heads, MAX_HEAD_WIDTH);
}

// Reads which layer and rows of the vision tower feed the projector, and the token that image rows replace.
static bool read_features(const Reader *r, int vocab, VisionShape *v) {
    const json_t *strategy = json_object_get(r->root, "vision_feature_select_strategy");
    const char *name = strategy ? json_string_value(strategy) : "default";
    const char *token = find(r, "image_token_index") ? "image_token_index" : "image_token_id";
    int64_t layer = -2, id = 32000;
    v->drops_class_row = name && strcmp(name, "default") == 0;
    if (!name || (!v->drops_class_row && strcmp(name, "full") != 0))
        return error_set(r->err, EXIT_DATA, "%s: vision_feature_select_strategy must be 'default' or 'full'", r->path);
    if (v->drops_class_row && v->kind == VISION_SIGLIP)
        return error_set(r->err, EXIT_DATA,
                         "%s: vision_feature_select_strategy 'default' would drop SigLIP's first patch, which is not "
                         "supported; set it to 'full'",
                         r->path);
    if (json_is_array(find(r, "vision_feature_layer")))
        return error_set(r->err, EXIT_DATA, "%s: vision_feature_layer is a list, which is not supported; set one layer",
                         r->path);
    if (find(r, "vision_feature_layer") &&
        !json_get_int(r->root, r->path, "vision_feature_layer", -v->file_layers, -1, &layer, r->err))
        return false;
    if (find(r, token) && !json_get_int(r->root, r->path, token, 0, vocab - 1, &id, r->err)) return false;
    v->layers = v->file_layers + 1 + (int)layer;
    v->image_token = (int)id;
    if (v->layers < 1)
        return error_set(r->err, EXIT_DATA,
                         "%s: vision_feature_layer -2, the default, needs a tower of at least 2 layers", r->path);
    return id < vocab ||
           error_set(r->err, EXIT_DATA,
                     "%s: image_token_index is missing, and its default, 32000, is not below vocab_size %d; add it",
                     r->path, vocab);
}

static bool read_llava(const Reader *r, ModelShape *shape) {
    enum { NAME = 16 };
    const char *const keys[] = {"text_config", "vision_config"};
    const size_t size = strlen(r->path) + NAME;
    char *paths = (char *)xmalloc(2 * size);
    const json_t *objects[2];
    bool good = true;
    for (int i = 0; i < 2; i++) {
        snprintf(paths + (size_t)i * size, size, "%s: %s", r->path, keys[i]);
        good = good && json_get_object(r->root, r->path, keys[i], &objects[i], r->err);
    }
    good = good && read_text(&(Reader){objects[0], paths, r->err, true}, shape) &&
           read_tower(&(Reader){objects[1], paths + size, r->err, false}, NULL, &shape->vision);
    free(paths);
    bool tied;
    if (!good || !read_features(r, shape->vocab, &shape->vision) ||
        !require_activation(r, "projector_hidden_act", "gelu", "gelu") ||
        !require_bool(r, "multimodal_projector_bias", true) || !get_bool(r, "tie_word_embeddings", false, &tied))
        return false;
    // transformers writes pad_token_id in text_config, in the outer object, or in both.
    if (shape->pad < 0 && !read_id(r, "pad_token_id", -1, shape, &shape->pad)) return false;
    if (tied) shape->tied_head = true; // transformers 5 ties the head if tie_word_embeddings is true in either object
    shape->vision.features = shape->channels;
    const json_t *projector = find(r, "mm_projector_type"); // absent in transformers' llava, which does not downsample
    if (!projector) return true;
    shape->vision.projector = PROJECTOR_DOWNSAMPLE;
    const char *name = json_string_value(projector);
    return (name && strcmp(name, "mlp_downsample") == 0) ||
           error_set(r->err, EXIT_DATA, "%s: mm_projector_type is '%.60s'; only mlp_downsample is supported", r->path,
                     name ? name : "not a name");
}

bool hf_parse_config(const char *text, size_t size, const char *path, ModelShape *shape, Error *err) {
    json_t *config = json_parse_object(text, size, path, err);
    if (!config) return false;
    const Reader r = {config, path, err, false};
    const char *type = json_string_value(json_object_get(config, "model_type"));
    bool good = !find(&r, "quantization_config") ||
                error_set(err, EXIT_DATA, "%s: quantized models (quantization_config) are not supported", path);
    good = good && (type && strcmp(type, "llava") == 0 ? read_llava(&r, shape) : read_text(&r, shape));
    json_decref(config);
    return good;
}

bool hf_parse_tower(const char *text, size_t size, const char *path, ModelShape *shape, Error *err) {
    json_t *config = json_parse_object(text, size, path, err);
    if (!config) return false;
    VisionShape *v = &shape->vision;
    const Reader r = {config, path, err, false};
    const char *type = json_string_value(find(&r, "model_type"));
    const bool siglip = type && strcmp(type, "siglip") == 0, nested = json_is_object(find(&r, "vision_config"));
    memset(v, 0, sizeof *v);
    bool good = read_tower(&(Reader){nested ? find(&r, "vision_config") : config, path, err, false},
                           siglip ? "siglip_vision_model" : NULL, v);
    v->layers = v->file_layers - 1;
    v->drops_class_row = v->kind == VISION_CLIP;
    if (good && type && strcmp(type, "llava") == 0)
        good = read_features(&r, MAX_VOCAB, v);
    else if (good && v->layers < 1)
        good = error_set(err, EXIT_DATA, "%s: num_hidden_layers must be at least 2", path);
    json_decref(config);
    return good;
}

bool hf_parse_generation(const char *text, size_t size, const char *path, ModelShape *shape, Error *err) {
    json_t *generation = json_parse_object(text, size, path, err);
    if (!generation) return false;
    const Reader r = {generation, path, err, false};
    const bool good = shape->ids.eos_count == MAX_EOS || read_eos(&r, shape);
    json_decref(generation);
    return good;
}
