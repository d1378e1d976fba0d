// config.json of Hugging Face's models, read. The keys are those of transformers 4; what version 5 renamed is read too.
#include <string.h>

#include "config/shapes.h"
#include "hf.h"

// The file under way: its object, and its path for messages.
typedef struct {
    const json_t *root;
    const char *path;
    Error *err;
} Reader;

// Of keys whose null means what their absence does; of others transformers refuses it.
static const json_t *find(const Reader *r, const char *key) {
    const json_t *item = json_object_get(r->root, key);
    return item && !json_is_null(item) ? item : NULL;
}

// A setting that must have one value, where the file names it at all.
static bool require_bool(const Reader *r, const char *key, bool value) {
    const json_t *item = json_object_get(r->root, key);
    if (!item || (json_is_boolean(item) && json_is_true(item) == value)) return true;
    return error_set(r->err, EXIT_DATA, "%s: '%s' must be %s; other models are not supported", r->path, key,
                     value ? "true" : "false");
}

static bool get_bool(const Reader *r, const char *key, bool otherwise, bool *value) {
    const json_t *item = json_object_get(r->root, key);
    *value = item ? json_is_true(item) : otherwise;
    return !item || json_is_boolean(item) ||
           error_set(r->err, EXIT_DATA, "%s: '%s' must be true or false", r->path, key);
}

// Where the file does not name it: `otherwise`, or with 0 an error.
static bool get_int(const Reader *r, const char *key, int64_t most, int64_t otherwise, int *value) {
    int64_t found = otherwise;
    if ((!otherwise || find(r, key)) && !json_get_int(r->root, r->path, key, 1, most, &found, r->err)) return false;
    *value = (int)found;
    return true;
}

static bool get_float(const Reader *r, const char *key, double least, double most, float otherwise, float *value) {
    double found;
    *value = otherwise;
    if (!json_object_get(r->root, key)) return true;
    if (!json_get_double(r->root, r->path, key, &found, r->err)) return false;
    *value = (float)found;
    return (found >= least && found <= most) ||
           error_set(r->err, EXIT_DATA, "%s: %s is %g, outside %g ... %g", r->path, key, found, least, most);
}

// The activation function is the one that is built, under one of two names.
static bool require_activation(const Reader *r, const char *key, const char *name, const char *other) {
    const json_t *item = json_object_get(r->root, key);
    const char *value = item ? json_string_value(item) : name; // transformers' default
    if (value && (strcmp(value, name) == 0 || strcmp(value, other) == 0)) return true;
    if (!value) return error_set(r->err, EXIT_DATA, "%s: %s must be '%s'", r->path, key, name);
    return error_set(r->err, EXIT_DATA, "%s: %s is '%.60s'; only '%s' is supported", r->path, key, value, name);
}

// What a model_type is here, and what its config class in transformers takes for a key that the file lacks. A key that
// is null says that there is no window, and as many key and value heads as others.
typedef struct {
    const char *type;
    Architecture architecture;
    int kv_heads; // 0: as num_attention_heads
    int head_dim; // 0: hidden_size / num_attention_heads
    int positions;
    int window;          // 0: none
    float eps;           // rms_norm_eps; 0: the key is not its
    int begin, end, pad; // bos_token_id, eos_token_id and pad_token_id, -1: null
} ModelType;

// clang-format off
static const ModelType model_types[] = {
    // type     architecture         kv head_dim positions window eps  begin  end    pad
    {"gpt2",    ARCHITECTURE_GPT2,   0,  0,      0,       0,     0,     50256, 50256, -1}, // whose other keys differ
    {"llama",   ARCHITECTURE_LLAMA,  0,  0,      2048,    0,     1e-6f, 1,     2,     -1},
    {"mistral", ARCHITECTURE_LLAMA,  8,  0,      131072,  4096,  1e-6f, 1,     2,     -1},
    {"olmo",    ARCHITECTURE_OLMO,   0,  0,      2048,    0,     0,     -1,    50279, 1},
    {"olmo2",   ARCHITECTURE_OLMO2,  0,  0,      2048,    0,     1e-5f, -1,    50279, 1},
    {"qwen2",   ARCHITECTURE_QWEN2,  32, 0,      32768,   0,     1e-6f, -1,    -1,    -1},
    {"qwen3",   ARCHITECTURE_QWEN3,  32, 128,    32768,   0,     1e-6f, -1,    -1,    -1},
};
// clang-format on

// -1: outside the vocabulary, or no number.
static int id_of(const json_t *item, const ModelShape *s) {
    const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
    return id >= 0 && id < s->vocab ? (int)id : -1;
}

// Adds eos_token_id, an id, null or a list of ids, up to MAX_EOS in all. Those outside the vocabulary are none: small
// models are made with the ids of their class.
static bool read_ends(const Reader *r, ModelShape *s) {
    const json_t *ends = json_object_get(r->root, "eos_token_id");
    if (ends && !json_is_integer(ends) && !json_is_null(ends) && !json_is_array(ends))
        return error_set(r->err, EXIT_DATA, "%s: eos_token_id must be a number, a list of numbers or null", r->path);
    for (size_t i = 0; i < json_array_size(ends); i++)
        if (!json_is_integer(json_array_get(ends, i)))
            return error_set(r->err, EXIT_DATA, "%s: the list of eos_token_id holds something that is no number",
                             r->path);
    if (json_is_integer(ends)) model_shape_add_eos(s, id_of(ends, s));
    for (size_t i = 0; i < json_array_size(ends) && s->ids.eos_count < MAX_EOS; i++)
        model_shape_add_eos(s, id_of(json_array_get(ends, i), s));
    return true;
}

// `otherwise`: where the key is absent.
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
    return read_ends(r, s);
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

// rope_scaling of transformers 4, or what is left of rope_parameters of 5.
static bool read_rope_scaling(const Reader *file, Architecture architecture, const json_t *object, RopeScaling *rope) {
    const Reader r = {object, file->path, file->err};
    const char *kind = json_string_value(find(&r, "rope_type") ? find(&r, "rope_type") : find(&r, "type"));
    if (!kind) return error_set(r.err, EXIT_DATA, "%s: its rope scaling has no 'rope_type'", r.path);
    if (strcmp(kind, "default") == 0) return true;
    if (strcmp(kind, "llama3") != 0 || architecture != ARCHITECTURE_LLAMA)
        return error_set(r.err, EXIT_DATA, "%s: rope scaling '%.60s' of %s is not supported; only 'llama3' of llama is",
                         r.path, kind, architecture_name(architecture));
    if (!get_float(&r, "factor", MIN_ROPE_FACTOR, MAX_ROPE_FACTOR, 0, &rope->factor) ||
        !get_float(&r, "low_freq_factor", MIN_ROPE_BAND, MAX_ROPE_BAND, 0, &rope->low) ||
        !get_float(&r, "high_freq_factor", MIN_ROPE_BAND, MAX_ROPE_BAND, 0, &rope->high) ||
        !get_int(&r, "original_max_position_embeddings", MAX_POSITIONS, 0, &rope->positions))
        return false;
    if (rope->factor == 1.0f) { // which stretches nothing
        ModelShape usual;
        architecture_shape(architecture, &usual);
        *rope = usual.rope;
        return true;
    }
    const json_t *outer = find(file, "original_max_position_embeddings");
    if (outer && json_number_value(outer) != rope->positions)
        return error_set(r.err, EXIT_DATA,
                         "%s: 'original_max_position_embeddings' must be %d, as in its rope scaling; transformers 4 "
                         "and 5 take different ones",
                         r.path, rope->positions);
    return (rope->factor > 0 && rope->low > 0 && rope->high > rope->low) ||
           error_set(r.err, EXIT_DATA, "%s: rope scaling needs factor, low_freq_factor and a larger high_freq_factor",
                     r.path);
}

// Whether one rotation is that of all layers: transformers 5 may have one for each kind in layer_types.
static bool one_rotation(const Reader *r, const char *name) {
    const char *kind;
    json_t *value;
    json_object_foreach(json_object_get(r->root, name), kind, value) {
        if (!json_is_object(value)) continue;
        return error_set(r->err, EXIT_DATA,
                         "%s: '%s' has a rotation for '%.60s' alone; only one for all layers is supported", r->path,
                         name, kind);
    }
    return true;
}

// rope_scaling takes the place of rope_parameters, and a base in it that of the one outside, as in transformers 5.
static bool read_rope(const Reader *r, Architecture architecture, ModelShape *shape) {
    const char *const names[] = {"rope_parameters", "rope_scaling"};
    const json_t *object = NULL;
    for (int i = 0; i < 2; i++) {
        const json_t *found = find(r, names[i]);
        if (found && !json_is_object(found))
            return error_set(r->err, EXIT_DATA, "%s: '%s' is not an object", r->path, names[i]);
        if (found && !one_rotation(r, names[i])) return false;
        if (found) object = found;
    }
    const Reader inner = {object, r->path, r->err};
    const Reader *theta = object && json_object_get(object, "rope_theta") ? &inner : r;
    float whole = 1.0f, inner_whole = 1.0f;
    if (!get_float(theta, "rope_theta", MIN_ROPE_THETA, MAX_ROPE_THETA, 10000.0f, &shape->rope_theta) ||
        (find(r, "partial_rotary_factor") && !get_float(r, "partial_rotary_factor", 0, 1, 1.0f, &whole)) ||
        (find(&inner, "partial_rotary_factor") &&
         !get_float(&inner, "partial_rotary_factor", 0, 1, 1.0f, &inner_whole)))
        return false;
    if (whole != 1.0f || inner_whole != 1.0f)
        return error_set(r->err, EXIT_DATA, "%s: 'partial_rotary_factor' must be 1; other models are not supported",
                         r->path);
    const bool says_kind = object && (object != find(r, names[0]) || find(&inner, "rope_type") || find(&inner, "type"));
    return !says_kind || read_rope_scaling(r, architecture, object, &shape->rope);
}

// Attention over all positions before, or within a window that no sequence here is longer than.
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
    if (!type->window) return true; // as transformers, which leaves the key of other types alone
    if (find(r, "sliding_window") && !get_int(r, "sliding_window", MAX_POSITIONS, 0, &window)) return false;
    if (window > 0 && window < shape->positions) shape->positions = window;
    return true;
}

// How many heads there are of which width.
static bool read_heads(const Reader *r, const ModelType *type, ModelShape *s) {
    const bool says_kv = json_object_get(r->root, "num_key_value_heads") != NULL;
    const int kv_heads = says_kv || !type->kv_heads ? s->heads : type->kv_heads;
    if (!get_int(r, "num_key_value_heads", MAX_HEADS, kv_heads, &s->kv_heads)) return false;
    if (s->heads % s->kv_heads)
        return error_set(r->err, EXIT_DATA, "%s: num_attention_heads %d is not divisible by num_key_value_heads %d%s",
                         r->path, s->heads, s->kv_heads, says_kv ? "" : ", which is what a file without it means");
    if (!type->head_dim && !find(r, "head_dim") && s->channels % s->heads)
        return error_set(r->err, EXIT_DATA,
                         "%s: hidden_size %d is not divisible by num_attention_heads %d, and there is no head_dim",
                         r->path, s->channels, s->heads);
    if (!get_int(r, "head_dim", WIDEST_HEAD, type->head_dim ? type->head_dim : s->channels / s->heads, &s->head_dim))
        return false;
    const char *what = find(r, "head_dim") ? "head_dim" : "hidden_size / num_attention_heads =";
    if (s->head_dim % 2)
        return error_set(r->err, EXIT_DATA, "%s: %s %d is odd; a head is rotated in pairs of channels", r->path, what,
                         s->head_dim);
    if (s->head_dim > WIDEST_HEAD)
        return error_set(r->err, EXIT_DATA, "%s: %s %d, outside 1 ... %d", r->path, what, s->head_dim, WIDEST_HEAD);
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
        return error_set(r->err, EXIT_DATA, "%s: clip_qkv is olmo's; a %s with it is not supported", r->path,
                         type->type);
    if (!get_float(r, "clip_qkv", 0, MAX_CLIP_QKV, 0, &s->clip_qkv)) return false;
    return s->clip_qkv > 0.0f || // transformers cuts all off, and only null means no limit
           error_set(r->err, EXIT_DATA, "%s: clip_qkv 0 would make q, k and v 0; null says that they are not cut",
                     r->path);
}

static bool read_other(const Reader *r, const ModelType *type, ModelShape *shape) {
    ModelShape *s = shape;
    const Architecture architecture = type->architecture;
    const bool says_positions = json_object_get(r->root, "max_position_embeddings") != NULL;
    bool tied;
    architecture_shape(architecture, s);
    if (!require_activation(r, "hidden_act", "silu", "swish") || !require_bool(r, "attention_bias", false) ||
        !require_bool(r, "mlp_bias", false) || !get_bool(r, "tie_word_embeddings", false, &tied))
        return false;
    if (!get_int(r, "num_hidden_layers", MAX_LAYERS, 0, &s->layers) ||
        !get_int(r, "hidden_size", MAX_CHANNELS, 0, &s->channels) ||
        !get_int(r, "intermediate_size", MAX_FFN, 0, &s->ffn) ||
        !get_int(r, "num_attention_heads", MAX_HEADS, 0, &s->heads) ||
        !get_int(r, "vocab_size", MAX_VOCAB, 0, &s->vocab) ||
        !get_int(r, "max_position_embeddings", MAX_POSITIONS, says_positions ? 0 : type->positions, &s->positions) ||
        !read_heads(r, type, s))
        return false;
    if ((type->eps > 0 && !get_float(r, "rms_norm_eps", MIN_NORM_EPS, MAX_NORM_EPS, type->eps, &s->norm_eps)) ||
        !read_clip(r, type, s))
        return false;
    s->tied_head = tied;
    model_shape_vocab(s, s->vocab);
    return read_rope(r, architecture, shape) && read_window(r, type, shape);
}

bool hf_parse_config(const char *text, size_t size, const char *path, ModelShape *shape, Error *err) {
    json_t *config = json_parse_object(text, size, path, err);
    if (!config) return false;
    const Reader r = {config, path, err};
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const int count = sizeof model_types / sizeof *model_types;
    int kind = 0;
    while (kind < count && (!type || strcmp(type, model_types[kind].type) != 0)) kind++;
    bool good;
    if (kind == count)
        good = error_set(
            err, EXIT_DATA,
            "%s: model_type is '%.60s'; only gpt2, llama, mistral, olmo, olmo2, qwen2 and qwen3 are supported", path,
            type ? type : "missing");
    else if (find(&r, "quantization_config"))
        good = error_set(err, EXIT_DATA, "%s: quantised models (quantization_config) are not supported", path);
    else if (json_object_size(find(&r, "per_layer_config")) || json_array_size(find(&r, "per_layer_config")))
        good = error_set(err, EXIT_DATA, "%s: layers that differ (per_layer_config) are not supported", path);
    else
        good = require_bool(&r, "is_causal", true) &&
               (kind == 0 ? read_gpt2(&r, shape) : read_other(&r, &model_types[kind], shape)) &&
               read_ids(&r, &model_types[kind], shape);
    const double range = json_number_value(find(&r, "initializer_range"));
    if (good) shape->init_range = range > 0 && range <= 1 ? range : 0; // as much as transformers takes
    json_decref(config);
    return good;
}

bool hf_parse_generation(const char *text, size_t size, const char *path, ModelShape *shape, Error *err) {
    json_t *generation = json_parse_object(text, size, path, err);
    if (!generation) return false;
    const Reader r = {generation, path, err};
    const bool good = shape->ids.eos_count == MAX_EOS || read_ends(&r, shape);
    json_decref(generation);
    return good;
}
