#include "hf.h"

#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "config/shapes.h"
#include "hf_names.h"
#include "io/files.h"
#include "llmc_weights.h"

#define CONFIG_LIMIT (1u << 20)
#define INDEX_LIMIT (16u << 20)
#define MAX_FILES 1024
#define PIECE_BYTES ((size_t)1 << 20)

// ---------------------------------------------------------------- reading model shapes

static bool shape_from_llmc(const char *path, ModelShape *shape, Error *err) {
    SafeFile file;
    if (!llmc_open(&file, shape, path, err)) return false;
    // sets vocab_padded again, because the file may pad the vocabulary differently from this program
    model_shape_vocab(shape, shape->vocab);
    safetensors_close(&file);
    return true;
}

// Reports that `folder` has no file `file`. If `folder` is a run's folder, the message names its newest checkpoint.
// Always returns false.
static bool no_model_in(const char *folder, const char *file, Error *err) {
    char newest[PATH_BUFFER] = "OUT/step-00000020";
    int64_t *steps = NULL;
    Error ignored;
    const int count = checkpoint_steps(folder, &steps, &ignored);
    const bool is_run = count > 0 && checkpoint_folder(folder, steps[0], newest, sizeof newest, &ignored);
    free(steps);
    return error_set(err, EXIT_DATA, "%s has no %s; name %s%s", folder, file,
                     is_run ? "a checkpoint of this run: " : "a folder of a model, such as ", newest);
}

typedef bool Parse(const char *text, size_t size, const char *path, ModelShape *shape, Error *err);

static bool parse_file(const char *folder, const char *name, Parse *parse, ModelShape *shape, Error *err) {
    char path[PATH_BUFFER], *text;
    size_t size;
    if (!path_join(path, sizeof path, folder, name, err) || !file_read_all(path, CONFIG_LIMIT, &text, &size, err))
        return false;
    const bool good = parse(text, size, path, shape, err);
    free(text);
    return good;
}

// Sets the mean and standard deviation of pixel values to those in the processor files of the model's folder.
static bool read_pixels(const char *folder, VisionShape *vision, Error *err) {
    json_t *processor = hf_processor_open(folder, err);
    const bool good = processor && hf_processor_pixels(processor, folder, vision, err);
    json_decref(processor);
    return good;
}

// Returns `path` if it is a folder, otherwise the folder that contains it, written to `parent`; NULL with err on
// failure.
static const char *folder_of(const char *path, char parent[PATH_BUFFER], Error *err) {
    if (path_is_folder(path)) return path;
    return path_folder(parent, PATH_BUFFER, path, err) ? parent : NULL;
}

bool model_shape_from_files(const char *path, ModelShape *shape, Error *err) {
    char parent[PATH_BUFFER], file[PATH_BUFFER];
    if (llmc_is_weights(path)) return shape_from_llmc(path, shape, err);
    if (path_is_folder(path)) {
        if (!path_join(file, sizeof file, path, HF_CONFIG_NAME, err)) return false;
        if (access(file, F_OK) != 0) return no_model_in(path, HF_CONFIG_NAME, err);
    } else {
        uint64_t bytes;
        int fd;
        if (!file_open(path, &fd, &bytes, err)) return false;
        close(fd);
        if (!text_ends_with(path, ".safetensors"))
            return error_set(
                err, EXIT_DATA,
                "%s is neither a .safetensors file nor a weight file of llm.c; give such a file, or a model "
                "folder",
                path);
    }
    const char *folder = folder_of(path, parent, err);
    if (!folder || !parse_file(folder, HF_CONFIG_NAME, hf_parse_config, shape, err) ||
        !path_join(file, sizeof file, folder, HF_GENERATION_NAME, err) ||
        (shape->vision.kind != VISION_NONE && !read_pixels(folder, &shape->vision, err)))
        return false;
    return !path_is_file(file) || parse_file(folder, HF_GENERATION_NAME, hf_parse_generation, shape, err);
}

bool hf_tower_shape(const char *path, ModelShape *shape, Error *err) {
    return parse_file(path, HF_CONFIG_NAME, hf_parse_tower, shape, err) && read_pixels(path, &shape->vision, err);
}

json_t *hf_generation_open(const char *path) {
    char parent[PATH_BUFFER], file[PATH_BUFFER];
    Error ignored; // model_shape_from_files() has already reported errors
    const char *folder = path[0] && !llmc_is_weights(path) ? folder_of(path, parent, &ignored) : NULL;
    const bool good = folder && path_join(file, sizeof file, folder, HF_GENERATION_NAME, &ignored);
    return good && path_is_file(file) ? json_read_object(file, CONFIG_LIMIT, &ignored) : NULL;
}

// ---------------------------------------------------------------- opening weight files and finding tensors

static bool add_file(HfWeights *weights, const char *path, Error *err) {
    for (int i = 0; i < weights->count; i++)
        if (strcmp(weights->files[i].path, path) == 0) return true;
    if (weights->count == MAX_FILES)
        return error_set(err, EXIT_DATA, "%s: the model has more than %d weight files; merge them", path, MAX_FILES);
    SafeFile *file = &weights->files[weights->count];
    ModelShape ignored;
    if (!(weights->llmc ? llmc_open(file, &ignored, path, err) : safetensors_open(file, path, err))) return false;
    weights->used[weights->count++] = (bool *)xcalloc((size_t)file->count + 1, sizeof(bool));
    return true;
}

// Opens all weight files that model.safetensors.index.json names.
static bool add_indexed(HfWeights *weights, const char *folder, const char *index_path, Error *err) {
    json_t *index = json_read_object(index_path, INDEX_LIMIT, err);
    if (!index) return false;
    const json_t *map;
    bool good = json_get_object(index, index_path, "weight_map", &map, err);
    json_t *walk = json_object_get(index, "weight_map");
    for (void *at = good ? json_object_iter(walk) : NULL; good && at; at = json_object_iter_next(walk, at)) {
        const char *name = json_string_value(json_object_iter_value(at));
        char path[PATH_BUFFER];
        // The index may only name files in its own folder. The files may be links, as in Hugging Face's cache.
        if (!name || !name_is_plain(name))
            good = error_set(err, EXIT_DATA, "%s: '%.100s' is not the name of a file in the folder", index_path,
                             name ? name : "?");
        else
            good = path_join(path, sizeof path, folder, name, err) &&
                   (path_is_file(path) ||
                    error_set(err, EXIT_DATA, "%s names %.100s, which does not exist; download that file, too",
                              index_path, name)) &&
                   add_file(weights, path, err);
    }
    json_decref(index);
    return good;
}

static bool add_folder(HfWeights *weights, const char *folder, Error *err) {
    char whole[PATH_BUFFER], index[PATH_BUFFER], pickled[PATH_BUFFER];
    if (!path_join(whole, sizeof whole, folder, HF_MODEL_NAME, err) ||
        !path_join(index, sizeof index, folder, HF_INDEX_NAME, err) ||
        !path_join(pickled, sizeof pickled, folder, "pytorch_model.bin", err))
        return false;
    if (path_is_file(whole)) return add_file(weights, whole, err);
    if (path_is_file(index)) return add_indexed(weights, folder, index, err);
    if (path_is_file(pickled))
        return error_set(err, EXIT_DATA,
                         "%s contains only pytorch_model.bin; save the model with safe_serialization=True", folder);
    if (folder_has_file(folder, HF_CONFIG_NAME)) // a model folder that lacks its weights or their index
        return error_set(err, EXIT_DATA,
                         "%s has no " HF_MODEL_NAME ", nor " HF_INDEX_NAME "; download the missing file", folder);
    return no_model_in(folder, HF_MODEL_NAME ", nor " HF_INDEX_NAME, err);
}

// True if all tensor names of the weight files begin with the first `length` characters of `name`.
static bool is_common(const HfWeights *weights, const char *name, size_t length) {
    for (int i = 0; i < weights->count; i++)
        for (int k = 0; k < weights->files[i].count; k++)
            if (strncmp(weights->files[i].tensors[k].name, name, length) != 0) return false;
    return true;
}

// Sets weights->prefix to the text before the embedding's usual name, if all tensor names begin with it. Wrappers add
// such a prefix: torch.compile "_orig_mod.", DistributedDataParallel "module.".
static void find_prefix(HfWeights *weights) {
    static const char *const embeddings[] = {"transformer.wte.weight", "model.embed_tokens.weight", "wte.weight",
                                             "embed_tokens.weight"};
    for (size_t e = 0; e < sizeof embeddings / sizeof *embeddings; e++)
        for (int i = 0; i < weights->count; i++)
            for (int k = 0; k < weights->files[i].count; k++) {
                const char *name = weights->files[i].tensors[k].name;
                const size_t whole = strlen(name), end = strlen(embeddings[e]), before = whole < end ? 0 : whole - end;
                if (whole < end || strcmp(name + before, embeddings[e]) != 0) continue;
                if (before > 0 && (before >= sizeof weights->prefix || name[before - 1] != '.')) continue;
                if (is_common(weights, name, before)) snprintf(weights->prefix, before + 1, "%s", name);
                return;
            }
}

bool hf_weights_open(HfWeights *weights, const char *path, Error *err) {
    memset(weights, 0, sizeof *weights);
    weights->files = (SafeFile *)xcalloc(MAX_FILES, sizeof *weights->files);
    weights->used = (bool **)xcalloc(MAX_FILES, sizeof *weights->used);
    weights->llmc = llmc_is_weights(path);
    bool good = path_is_folder(path) ? add_folder(weights, path, err) : add_file(weights, path, err);
    if (good)
        find_prefix(weights);
    else
        hf_weights_close(weights);
    return good;
}

void hf_weights_close(HfWeights *weights) {
    for (int i = 0; i < weights->count; i++) {
        safetensors_close(&weights->files[i]);
        free(weights->used[i]);
    }
    free(weights->used);
    free(weights->files);
    memset(weights, 0, sizeof *weights);
}

bool hf_weights_find(HfWeights *weights, const char *name, const SafeFile **file, const SafeTensor **tensor) {
    char full[sizeof weights->prefix + HF_NAME_LENGTH], other[HF_NAME_LENGTH];
    for (int i = 0; i < weights->count; i++) {
        *file = &weights->files[i];
        *tensor = NULL;
        for (int layout = -1; layout < HF_LAYOUTS && !*tensor; layout++) {
            const char *found = layout < 0 ? name : hf_other_name(name, layout, other);
            if (!found) continue;
            snprintf(full, sizeof full, "%s%s", weights->prefix, found);
            *tensor = safetensors_find(*file, full);
        }
        if (!*tensor) continue;
        weights->used[i][*tensor - (*file)->tensors] = true;
        return true;
    }
    return false;
}

// Sets *same to true if tensors a and b have the same type and bytes. Fails if a tensor cannot be read.
static bool same_values(const SafeFile *file, const SafeTensor *a, const SafeFile *other, const SafeTensor *b,
                        bool *same, Error *err) {
    *same = a->dtype == b->dtype && a->bytes == b->bytes;
    char *pieces = (char *)xmalloc(2 * PIECE_BYTES);
    bool good = true;
    for (uint64_t at = 0; good && *same && at < a->bytes; at += PIECE_BYTES) {
        const size_t bytes = a->bytes - at < PIECE_BYTES ? (size_t)(a->bytes - at) : PIECE_BYTES;
        good = safetensors_read(file, a, at, pieces, bytes, err) &&
               safetensors_read(other, b, at, pieces + PIECE_BYTES, bytes, err);
        *same = good && memcmp(pieces, pieces + PIECE_BYTES, bytes) == 0;
    }
    free(pieces);
    return good;
}

// Fails if the files of a model with a tied head store an output head that differs from the embedding. transformers 5
// would then not tie the head to the embedding.
static bool check_tied_head(HfWeights *weights, const ModelShape *shape, const SafeFile *head_file,
                            const SafeTensor *head, Error *err) {
    HfPart part[HF_MAX_PARTS];
    const SafeFile *file;
    const SafeTensor *embedding;
    bool same;
    hf_parts(shape, WTE, 0, part);
    // a missing embedding is not an error here, because loading the model reports it
    if (!hf_weights_find(weights, part->name, &file, &embedding)) return true;
    if (!same_values(head_file, head, file, embedding, &same, err)) return false;
    return same || error_set(err, EXIT_DATA,
                             "%s: '%s' differs from the embedding, but config.json has tie_word_embeddings true; set "
                             "that to false, or remove the tensor",
                             head_file->path, head->name);
}

// True if `name` is a buffer that transformers stores but recomputes: RoPE frequencies, the causal mask, or the
// position ids of a vision tower.
static bool holds_no_weights(const ModelShape *shape, const char *name) {
    static const struct {
        PositionKind positions;
        const char *end;
    } buffers[] = {{POSITIONS_ROTARY, ".rotary_emb.inv_freq"},
                   {POSITIONS_LEARNED, ".attn.bias"}, // the causal mask
                   {POSITIONS_LEARNED, ".attn.masked_bias"}};
    if (shape->vision.kind != VISION_NONE && text_ends_with(name, ".embeddings.position_ids")) return true;
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (shape->position_kind == buffers[i].positions && text_ends_with(name, buffers[i].end)) return true;
    return false;
}

bool hf_weights_check_used(HfWeights *weights, const ModelShape *shape, Error *err) {
    for (int i = 0; i < weights->count && !weights->llmc; i++) {
        const SafeFile *file = &weights->files[i];
        for (int k = 0; k < file->count; k++) {
            const SafeTensor *tensor = &file->tensors[k];
            if (weights->used[i][k] || holds_no_weights(shape, tensor->name)) continue;
            const char *bare = tensor->name + strlen(weights->prefix);
            if (shape->vision.kind != VISION_NONE && strncmp(bare, "language_model.lm_head.", 23) == 0) bare += 15;
            if (shape->tied_head && strcmp(bare, "lm_head.weight") == 0) {
                if (!check_tied_head(weights, shape, file, tensor, err)) return false;
                continue;
            }
            return error_set(
                err, EXIT_DATA,
                "%s: '%.200s' is not a tensor of the %s model that its config.json describes; use the config.json "
                "that was saved with these weights, or remove the tensor",
                file->path, tensor->name,
                shape->vision.kind != VISION_NONE ? "llava" : architecture_name(shape_architecture(shape)));
        }
    }
    return true;
}
