#include "hf.h"

#include <string.h>

#include "checkpoint.h"
#include "io/files.h"
#include "llmc_weights.h"

#define CONFIG_LIMIT (1u << 20)
#define INDEX_LIMIT (16u << 20)
#define MAX_SHARDS 1024
#define PATH_BUFFER 4096
#define PREFIX "transformer."

// ---------------------------------------------------------------- shapes

// A setting that must have one value, where the file names it at all.
static bool require_bool(const json_t *config, const char *path, const char *key, bool value, Error *err) {
    const json_t *item = json_object_get(config, key);
    if (!item || json_is_null(item) || (json_is_boolean(item) && json_is_true(item) == value)) return true;
    return error_set(err, EXIT_DATA, "%s: '%s' must be %s; other models are not supported", path, key,
                     value ? "true" : "false");
}

static bool require_kind(const json_t *config, const char *path, Error *err) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (!type || strcmp(type, "gpt2") != 0)
        return error_set(err, EXIT_DATA, "%s: model_type is '%.60s'; only 'gpt2' is supported", path,
                         type ? type : "missing");
    const json_t *item = json_object_get(config, "activation_function");
    const char *activation = item ? json_string_value(item) : "gelu_new"; // transformers' default
    if (!activation || (strcmp(activation, "gelu_new") != 0 && strcmp(activation, "gelu_pytorch_tanh") != 0))
        return error_set(err, EXIT_DATA, "%s: activation_function is '%.60s'; only 'gelu_new' is supported", path,
                         activation ? activation : "not a name");
    if (json_object_get(config, "quantization_config"))
        return error_set(err, EXIT_DATA, "%s: quantised models (quantization_config) are not supported", path);
    return require_bool(config, path, "tie_word_embeddings", true, err) &&
           require_bool(config, path, "scale_attn_weights", true, err) &&
           require_bool(config, path, "scale_attn_by_inverse_layer_idx", false, err) &&
           require_bool(config, path, "add_cross_attention", false, err);
}

bool hf_parse_config(const char *text, size_t size, const char *path, ModelShape *shape, Error *err) {
    json_t *config = json_parse_object(text, size, path, err);
    if (!config) return false;
    int64_t layers, heads, channels, vocab, positions, ffn = 0;
    double eps = 1e-5;
    const json_t *inner = json_object_get(config, "n_inner");
    bool good = require_kind(config, path, err) && json_get_int(config, path, "n_layer", 1, 1024, &layers, err) &&
                json_get_int(config, path, "n_head", 1, 1024, &heads, err) &&
                json_get_int(config, path, "n_embd", 1, 65536, &channels, err) &&
                json_get_int(config, path, "vocab_size", 1, 1 << 24, &vocab, err) &&
                json_get_int(config, path, "n_positions", 1, 1 << 24, &positions, err);
    if (good && inner && !json_is_null(inner)) good = json_get_int(config, path, "n_inner", 1, 1 << 20, &ffn, err);
    if (good && json_object_get(config, "layer_norm_epsilon"))
        good = json_get_double(config, path, "layer_norm_epsilon", &eps, err);
    if (good && !((float)eps > 0 && (float)eps < 1)) // as it will be used
        good = error_set(err, EXIT_DATA, "%s: layer_norm_epsilon is %g, outside 0 ... 1", path, eps);
    good = good && gpt2_shape(shape, layers, heads, channels, ffn, vocab, positions, path, err);
    if (good) shape->norm_eps = (float)eps;
    json_decref(config);
    return good;
}

static bool shape_from_llmc(const char *path, ModelShape *shape, Error *err) {
    LlmcFile file;
    if (!llmc_open(&file, path, err)) return false;
    *shape = file.shape;
    model_shape_vocab(shape, file.shape.vocab); // our own padding
    llmc_close(&file);
    return true;
}

// A folder that is none of a model; perhaps that of a run, whose newest checkpoint is named then. Always false.
static bool lacks(const char *folder, const char *file, Error *err) {
    char newest[PATH_BUFFER] = "OUT/step-00000020";
    int64_t *steps = NULL;
    Error ignored;
    const int count = checkpoint_steps(folder, &steps, &ignored);
    const bool is_run = count > 0 && checkpoint_folder(folder, steps[0], newest, sizeof newest, &ignored);
    free(steps);
    return error_set(err, EXIT_DATA, "%s has no %s; name %s%s", folder, file,
                     is_run ? "a checkpoint of this run: " : "a folder of a model, such as ", newest);
}

bool model_shape_from_files(const char *path, ModelShape *shape, Error *err) {
    char folder[PATH_BUFFER], config[PATH_BUFFER], *text;
    size_t size;
    if (llmc_is_weights(path)) return shape_from_llmc(path, shape, err);
    if (path_is_folder(path)) {
        if (!path_join(config, sizeof config, path, "config.json", err)) return false;
        if (!path_is_file(config)) return lacks(path, "config.json", err);
    } else {
        size_t length = strlen(path);
        if (!path_is_file(path)) return error_set(err, EXIT_DATA, "%s: no such file or folder", path);
        if (length < 12 || strcmp(path + length - 12, ".safetensors") != 0)
            return error_set(err, EXIT_DATA,
                             "%s is neither a .safetensors file nor a weight file of llm.c; name one, or a folder",
                             path);
        if (!path_folder(folder, sizeof folder, path, err)) return false;
        if (!path_join(config, sizeof config, folder, "config.json", err)) return false;
    }
    if (!file_read_all(config, CONFIG_LIMIT, &text, &size, err)) return false;
    bool good = hf_parse_config(text, size, config, shape, err);
    free(text);
    return good;
}

// ---------------------------------------------------------------- texts

static void end_token(JsonText *t, const char *key, int id) {
    if (id >= 0)
        json_text_int(t, key, id);
    else
        json_text_null(t, key);
}

bool hf_config_text(JsonText *t, const ModelShape *s, Dtype weights, int eos, Error *err) {
    static const char *const zeros[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"}; // nothing is dropped here
    if (s->norm != NORM_LAYER || s->activation != ACT_GELU_TANH || s->position_kind != POSITIONS_LEARNED ||
        !s->biases || !s->tied_head || s->kv_heads != s->heads || s->head_dim * s->heads != s->channels)
        return error_set(err, EXIT_DATA, "only GPT-2 models can be written as GPT2LMHeadModel");
    const char *dtype = weights == DTYPE_BF16 ? "bfloat16" : weights == DTYPE_F64 ? "float64" : "float32";
    memset(t, 0, sizeof *t);
    t->pretty = true;
    json_text_open(t, NULL, '{');
    json_text_open(t, "architectures", '[');
    json_text_string(t, NULL, "GPT2LMHeadModel");
    json_text_close(t, ']');
    json_text_string(t, "model_type", "gpt2");
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
    json_text_float(t, "initializer_range", 0.02f);
    json_text_bool(t, "scale_attn_weights", true);
    json_text_bool(t, "tie_word_embeddings", true);
    json_text_bool(t, "use_cache", true);
    end_token(t, "bos_token_id", eos);
    end_token(t, "eos_token_id", eos);
    json_text_string(t, "torch_dtype", dtype);
    json_text_close(t, '}');
    return true;
}

void hf_generation_text(JsonText *t, int eos) {
    memset(t, 0, sizeof *t);
    t->pretty = true;
    json_text_open(t, NULL, '{');
    end_token(t, "bos_token_id", eos);
    end_token(t, "eos_token_id", eos);
    json_text_close(t, '}');
}

// ---------------------------------------------------------------- weights

static bool add_file(HfWeights *weights, const char *path, Error *err) {
    for (int i = 0; i < weights->count; i++)
        if (strcmp(weights->files[i].path, path) == 0) return true;
    if (weights->count == MAX_SHARDS)
        return error_set(err, EXIT_DATA, "%s is one of more than %d files; merge them", path, MAX_SHARDS);
    return safetensors_open(&weights->files[weights->count], path, err) && ++weights->count > 0;
}

static bool add_sharded(HfWeights *weights, const char *folder, const char *index_path, Error *err) {
    json_t *index = json_read_object(index_path, INDEX_LIMIT, err);
    if (!index) return false;
    const json_t *map;
    bool good = json_get_object(index, index_path, "weight_map", &map, err);
    json_t *walk = json_object_get(index, "weight_map");
    for (void *at = good ? json_object_iter(walk) : NULL; good && at; at = json_object_iter_next(walk, at)) {
        const char *name = json_string_value(json_object_iter_value(at));
        char path[PATH_BUFFER];
        // A name can only be of this folder. It may be a link: Hugging Face's cache consists of links to its blobs,
        // and they are the work of who made the folder, not of the file that is read here.
        if (!name || !name_is_plain(name))
            good = error_set(err, EXIT_DATA, "%s: '%.100s' is not the name of a file in the folder", index_path,
                             name ? name : "?");
        else
            good = path_join(path, sizeof path, folder, name, err) && add_file(weights, path, err);
    }
    json_decref(index);
    return good;
}

static bool add_folder(HfWeights *weights, const char *folder, Error *err) {
    char whole[PATH_BUFFER], index[PATH_BUFFER], pickled[PATH_BUFFER];
    if (!path_join(whole, sizeof whole, folder, "model.safetensors", err) ||
        !path_join(index, sizeof index, folder, "model.safetensors.index.json", err) ||
        !path_join(pickled, sizeof pickled, folder, "pytorch_model.bin", err))
        return false;
    if (path_is_file(whole)) return add_file(weights, whole, err);
    if (path_is_file(index)) return add_sharded(weights, folder, index, err);
    if (path_is_file(pickled))
        return error_set(err, EXIT_DATA, "%s holds pytorch_model.bin only; save the model with safe_serialization=True",
                         folder);
    return lacks(folder, "model.safetensors", err);
}

bool hf_weights_open(HfWeights *weights, const char *path, Error *err) {
    weights->count = 0;
    weights->files = (SafeFile *)xcalloc(MAX_SHARDS, sizeof *weights->files);
    bool good = path_is_folder(path) ? add_folder(weights, path, err) : add_file(weights, path, err);
    if (!good) hf_weights_close(weights);
    return good;
}

void hf_weights_close(HfWeights *weights) {
    for (int i = 0; i < weights->count; i++) safetensors_close(&weights->files[i]);
    free(weights->files);
    memset(weights, 0, sizeof *weights);
}

bool hf_weights_find(const HfWeights *weights, const char *name, const SafeFile **file, const SafeTensor **tensor) {
    bool prefixed = strncmp(name, PREFIX, strlen(PREFIX)) == 0;
    for (int i = 0; i < weights->count; i++) {
        *file = &weights->files[i];
        *tensor = safetensors_find(*file, name);
        if (!*tensor && prefixed) *tensor = safetensors_find(*file, name + strlen(PREFIX));
        if (*tensor) return true;
    }
    return false;
}
