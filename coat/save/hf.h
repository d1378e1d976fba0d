// Hugging Face's models: config.json to a ModelShape (hf_config.c) and back (hf_config_text.c), and the safetensors
// files of a model folder, in one piece or sharded.
#pragma once
#include "config/config.h"
#include "io/json.h"
#include "io/safetensors.h"

#define HF_CONFIG_NAME "config.json"
#define HF_MODEL_NAME "model.safetensors"
#define HF_INDEX_NAME "model.safetensors.index.json" // which file of a folder has which tensor
#define HF_GENERATION_NAME "generation_config.json"

#ifdef __cplusplus
extern "C" {
#endif

// The shape of the model that `path` holds: a folder with config.json, a .safetensors file with config.json
// beside it, or llm.c's weight file. What this program cannot compute exactly as the file means it is refused by
// name and value.
bool model_shape_from_files(const char *path, ModelShape *shape, Error *err);

// The text of a config.json. `path` is for messages.
bool hf_parse_config(const char *text, size_t size, const char *path, ModelShape *shape, Error *err);

// Adds the ends of a text that a generation_config.json has beyond config.json's: models for chats have more there.
bool hf_parse_generation(const char *text, size_t size, const char *path, ModelShape *shape, Error *err);

// What the generation_config.json of such a `path` holds, for json_decref(); NULL: there is none.
json_t *hf_generation_open(const char *path);

// The texts of config.json and generation_config.json for a model whose weights are stored as `weights`. Fails
// for shapes of no architecture. `source`: what is kept of another generation_config.json, all but the ids; NULL: none.
bool hf_config_text(JsonText *t, const ModelShape *shape, Dtype weights, Error *err);
void hf_generation_text(JsonText *t, const ModelShape *shape, const json_t *source);

// The weights of a folder or of one .safetensors file.
typedef struct {
    SafeFile *files;
    bool **used; // of each file's tensors, whether one was found
    int count;
    char prefix[64]; // that all names begin with, as torch.compile's "_orig_mod."; "": none
} HfWeights;

bool hf_weights_open(HfWeights *weights, const char *path, Error *err);
void hf_weights_close(HfWeights *weights);
// Finds a tensor by its full name, or without the leading "transformer." or "model.", in either case after the prefix.
// False if there is none.
bool hf_weights_find(HfWeights *weights, const char *name, const SafeFile **file, const SafeTensor **tensor);
// Whether all tensors have been found, but for those that hold no weights of the model: one that is left would change
// what the model computes. The head of a model that is tied may be there again, if it is the embedding.
bool hf_weights_check_used(HfWeights *weights, const ModelShape *shape, Error *err);

#ifdef __cplusplus
}
#endif
