// Model folders of Hugging Face: reads a ModelShape from config.json (hf_config.c), writes config.json
// (hf_config_text.c), and finds tensors in the folder's safetensors files.
#pragma once
#include "config/config.h"
#include "io/json.h"
#include "io/safetensors.h"

#define HF_CONFIG_NAME "config.json"
#define HF_MODEL_NAME "model.safetensors"
// name of the file that maps each tensor to the file that stores it
#define HF_INDEX_NAME "model.safetensors.index.json"
#define HF_GENERATION_NAME "generation_config.json"
#define HF_PROCESSOR_NAME "processor_config.json"
#define HF_IMAGE_PROCESSOR_NAME "preprocessor_config.json"

C_LINKAGE_BEGIN

// Reads the model shape of `path`: a folder with config.json, a .safetensors file next to its config.json, or a weight
// file of llm.c. Fails if the model needs a feature that this program does not implement; err names the key and value.
bool model_shape_from_files(const char *path, ModelShape *shape, Error *err);

// Reads the model shape from the text of a config.json. `path` names the file in messages.
bool hf_parse_config(const char *text, size_t size, const char *path, ModelShape *shape, Error *err);

// Reads the shape of a vision tower from the folder `path` of a CLIP, SigLIP or Llava model, or of such a tower alone.
// For a Llava model, config.json names the layer whose output the projector reads. Otherwise, the projector reads the
// second-to-last block's output, without CLIP's class row. hf_parse_tower() reads the shape from the text of a
// config.json instead.
bool hf_tower_shape(const char *path, ModelShape *shape, Error *err);
bool hf_parse_tower(const char *text, size_t size, const char *path, ModelShape *shape, Error *err);

// Adds the EOS ids in the text of a generation_config.json to shape->ids, up to MAX_EOS ids in all. Chat models list
// more EOS ids there than in config.json.
bool hf_parse_generation(const char *text, size_t size, const char *path, ModelShape *shape, Error *err);

// Returns the generation_config.json of the model `path`; NULL if there is none, or if it cannot be read. Free it with
// json_decref().
json_t *hf_generation_open(const char *path);

// Writes the text of a config.json for a model whose weights have the type `weights`. Fails if the shape belongs to
// none of the supported architectures.
bool hf_config_text(JsonText *t, const ModelShape *shape, Dtype weights, Error *err);
// Writes the text of a generation_config.json: the BOS and EOS ids of `shape`, and all other keys of `source`, which is
// the generation_config.json that came with the model. If there is none (NULL), also writes the pad id of `shape`.
void hf_generation_text(JsonText *t, const ModelShape *shape, const json_t *source);

// Returns the contents of processor_config.json of the vision-language model or tower `path`, as a JSON object. If the
// file lacks the key image_processor, adds this key with the contents of preprocessor_config.json as its value. If
// processor_class names a class other than LlavaProcessor, omits all keys except image_processor. Returns an empty
// object if neither file exists or path is "", NULL with err if a file cannot be read. Free the object with
// json_decref().
json_t *hf_processor_open(const char *path, Error *err);
// Reads the mean and standard deviation of each color's pixel values from the image processor in `processor` into
// *shape. A key that the image processor lacks gets the usual value of the tower's kind. If `processor` has no image
// processor, *shape is unchanged. Fails if the image processor computes pixel values differently from this program.
// `path` names the model's folder in messages.
bool hf_processor_pixels(const json_t *processor, const char *path, VisionShape *shape, Error *err);
// Writes the texts of preprocessor_config.json and processor_config.json. Keys that `source` (hf_processor_open())
// lacks are derived from `shape`. image_token: text of the token shape->image_token.
void hf_processor_texts(JsonText *images, JsonText *processor, const json_t *source, const VisionShape *shape,
                        const char *image_token);

// The open weight files of a model: safetensors files, or one file of llm.c, which is read like a safetensors file.
typedef struct {
    SafeFile *files;
    bool **used; // used[file][tensor] is true if hf_weights_find() has returned the tensor
    int count;
    bool llmc;       // true: one weight file of llm.c, which stores linear weights as (out, in)
    char prefix[64]; // prefix of all tensor names, such as torch.compile's "_orig_mod."; "": none
} HfWeights;

// Opens the weights at `path`: a folder, a .safetensors file, or a weight file of llm.c. After a failure,
// hf_weights_close() need not be called.
bool hf_weights_open(HfWeights *weights, const char *path, Error *err);
void hf_weights_close(HfWeights *weights);
// Finds a tensor by the name that hf_parts() writes, or by the name that another layout of model files uses
// (hf_other_name()). For example, the leading "transformer." or "model." may be missing. Returns false if the files
// lack the tensor.
bool hf_weights_find(HfWeights *weights, const char *name, const SafeFile **file, const SafeTensor **tensor);
// Fails if the files contain a tensor that hf_weights_find() has not returned, because a model without this tensor
// would compute different results. Ignores buffers that are not weights, and the output head of a model with a tied
// head if the head equals the embedding. Always succeeds for a file of llm.c.
bool hf_weights_check_used(HfWeights *weights, const ModelShape *shape, Error *err);

C_LINKAGE_END
