// Implements the functions of checkpoint.h that load checkpoints and weights.
#include <math.h>
#include <string.h>

#include "checkpoint.h"
#include "checkpoint_shards.h"
#include "hf.h"
#include "hf_names.h"
#include "io/files.h"
#include "log/terminal.h"
#include "model/weights.h"
#include "run_state.h"
#include "states_read.h"

#define PIECE_BYTES ((size_t)8 << 20)
#define ACTIVATION_NAMES "gelu|swiglu|quick_gelu|gelu_erf" // names of ActivationKind
#define BF16_OVERFLOW 0x1.ffp127f                          // smallest FP32 value that rounds to infinity in BF16

// A field of the model shape that the files and the run must agree on.
typedef struct {
    const char *name, *choices; // choices: names of the field's values, as for choice_name(); NULL: a number
    double there, here;         // value in the files and in the run
} Field;

static const char *value_text(char text[32], const Field *field, double value) {
    if (field->choices)
        snprintf(text, 32, "%s", choice_name(field->choices, (int)value).text);
    else
        snprintf(text, 32, "%.9g", value);
    return text;
}

// Reports a field that differs between the files and the run. Always returns false. If a resumed run has --model NAME,
// the message says to remove it, because config_parse.c has already compared the other flags with the checkpoint.
static bool other_shape(const char *path, const Config *run, const Field *field, Error *err) {
    char there[32], here[32];
    value_text(there, field, field->there);
    value_text(here, field, field->here);
    if (run->model[0] && !run->model_from_files)
        return error_set(err, EXIT_USER, "--model %s: its %s is %s, but %s in the run's checkpoint; remove --model",
                         run->model, field->name, here, there);
    return error_set(err, EXIT_DATA, "%s: its model has %s %s, but this run's model has %s; use the same model", path,
                     field->name, there, here);
}

// Checks that the model shape in the files equals the run's. In the list, a field that is derived from other fields
// follows these fields, so that an error names a setting that the user chose.
static bool compare_shapes(const char *path, const ModelShape *files, const Config *config, Error *err) {
    const ModelShape *run = &config->shape;
#define CHOICE(name, field, choices)                                                                                   \
    { name, choices, (double)files->field, (double)run->field }
#define FIELD(name, field) CHOICE(name, field, NULL)
    const Field fields[] = {
        FIELD("layers", layers), FIELD("channels", channels), FIELD("heads", heads), FIELD("kv-heads", kv_heads),
        FIELD("head-dim", head_dim), FIELD("ffn", ffn), FIELD("vocab", vocab), FIELD("positions", positions),
        CHOICE("norm", norm, "layer|rms|plain"), CHOICE("norm-place", norm_place, "before|after"),
        CHOICE("biases", biases, "off|on"), CHOICE("qkv-biases", qkv_biases, "off|on"),
        CHOICE("qk-norm", qk_norm, "none|row|head"), CHOICE("position-encoding", position_kind, "learned|rotary"),
        CHOICE("tied-head", tied_head, "off|on"), CHOICE("activation", activation, ACTIVATION_NAMES),
        FIELD("norm-eps", norm_eps),
        // the fields from here to "image token" are 0 in models without a vision tower
        CHOICE("vision tower", vision.kind, "none|clip|siglip"), FIELD("image size", vision.image_size),
        FIELD("patch size", vision.patch_size), FIELD("vision channels", vision.channels),
        FIELD("vision ffn", vision.ffn), FIELD("vision heads", vision.heads),
        FIELD("vision layers", vision.file_layers), FIELD("vision layers that are computed", vision.layers),
        CHOICE("vision activation", vision.activation, ACTIVATION_NAMES), FIELD("vision norm-eps", vision.norm_eps),
        CHOICE("pooling head", vision.pooling_head, "off|on"),
        CHOICE("dropped class row", vision.drops_class_row, "off|on"),
        CHOICE("projector", vision.projector, PROJECTOR_NAMES), FIELD("image token", vision.image_token),
        FIELD("clip-qkv", clip_qkv), // this and all fields below: compared only if the model uses RoPE
        FIELD("rope-theta", rope_theta), FIELD("rope-factor", rope.factor),
        FIELD("rope-low", rope.low), // this and all fields below: compared only if rope-factor is not 1
        FIELD("rope-high", rope.high), FIELD("rope-positions", rope.positions)};
#undef FIELD
#undef CHOICE
    enum { COUNT = sizeof fields / sizeof *fields, NOT_ROTARY = 6, NOT_SCALED = 3 };
    const int unused = run->position_kind != POSITIONS_ROTARY ? NOT_ROTARY : run->rope.factor == 1.0f ? NOT_SCALED : 0;
    for (int i = 0; i < COUNT - unused; i++)
        if (fields[i].there != fields[i].here) return other_shape(path, config, &fields[i], err);
    return true;
}

static void upload_state(const Arena *arena, Exec *exec, const StepState *state) {
    Tensor device = arena_tensor(arena, STATE, VALUE, 0);
    if (device.data) exec->ops->upload(exec, device.data, state, sizeof *state);
}

// Passes the GEMM algorithms in a checkpoint's matmul_table.txt to the GPU. Does nothing if the checkpoint has no such
// file. On a CPU, only verifies the file.
static bool load_algos(const Manifest *manifest, Exec *exec, Error *err) {
    char path[PATH_BUFFER], *text;
    size_t size;
    if (!json_object_get(json_object_get(manifest->root, "files"), MATMUL_TABLE_NAME)) return true;
    if (!manifest_check_file(manifest, MATMUL_TABLE_NAME, err)) return false;
    if (!exec->ops->algos_load) return true;
    if (!path_join(path, sizeof path, manifest->folder, MATMUL_TABLE_NAME, err) ||
        !file_read_all(path, MATMUL_TABLE_LIMIT, &text, &size, err))
        return false;
    exec->ops->algos_load(exec, text);
    free(text);
    return true;
}

bool checkpoint_load(const char *folder, Arena *arena, Exec *exec, RunState *run, Error *err) {
    char state[PATH_BUFFER];
    Manifest manifest;
    ModelShape shape;
    CheckpointTensor *model = NULL;
    if (!path_join(state, sizeof state, folder, STATE_NAME, err)) return false;
    if (!manifest_open(&manifest, folder, err)) return false;
    bool good = manifest_check_all(&manifest, false, err) && manifest_check_file(&manifest, HF_CONFIG_NAME, err) &&
                manifest_check_file(&manifest, STATE_NAME, err) && model_shape_from_files(folder, &shape, err) &&
                compare_shapes(folder, &shape, arena->config, err) &&
                run_state_read(state, run, arena->config, exec, err) && load_algos(&manifest, exec, err);
    if (good) {
        int count = checkpoint_model_tensors(arena, &model);
        good = checkpoint_read_tensors(&manifest, HF_MODEL_NAME, model, count, exec, err);
    }
    int shards = 1;
    good = good && checkpoint_shard_count(&manifest, &shards, err);
    if (good && !config_forward_only(arena->config)) good = states_read(&manifest, shards, arena, exec, err);
    if (good) upload_state(arena, exec, &run->state);
    free(model);
    manifest_close(&manifest);
    return good;
}

// ---------------------------------------------------------------- loading weights without optimizer states

// A matrix in a weight file.
typedef struct {
    const SafeFile *file;
    const SafeTensor *tensor;
    int64_t rows, cols; // rows and columns as stored in the file
    bool transposed;    // true if the file stores the transpose of the arena's layout
} StoredMatrix;

static float f16_decode(uint16_t h) {
    uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = h >> 10 & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0x1fu) return bits_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return bits_float(sign | (exponent + 112u) << 23 | mantissa << 13);
    float small = ldexpf((float)mantissa, -24);
    return sign ? -small : small;
}

// Returns the value at the address `at`, which may be unaligned, converted from `dtype` to FP32.
static float decode_value(const char *at, Dtype dtype) {
    uint16_t half;
    float single;
    double wide;
    switch (dtype) {
    case DTYPE_BF16: memcpy(&half, at, sizeof half); return bf16_decode(half);
    case DTYPE_F16: memcpy(&half, at, sizeof half); return f16_decode(half);
    case DTYPE_F64: memcpy(&wide, at, sizeof wide); return (float)wide;
    default: memcpy(&single, at, sizeof single); return single;
    }
}

// Reads a matrix from a weight file into `values` in the arena's layout. Fails if a value is NaN or overflows BF16.
static bool read_values(const StoredMatrix *stored, float *values, Error *err) {
    const Dtype dtype = stored->tensor->dtype;
    size_t row_bytes = (size_t)stored->cols * dtype_bytes(dtype);
    int64_t per_piece = (int64_t)(PIECE_BYTES / row_bytes);
    if (per_piece < 1) per_piece = 1;
    if (per_piece > stored->rows) per_piece = stored->rows;
    char *buffer = (char *)xmalloc((size_t)per_piece * row_bytes);
    bool good = true, finite = true;
    for (int64_t row = 0; good && row < stored->rows; row += per_piece) {
        int64_t rows = stored->rows - row < per_piece ? stored->rows - row : per_piece;
        good = safetensors_read(stored->file, stored->tensor, (uint64_t)row * row_bytes, buffer,
                                (size_t)rows * row_bytes, err);
        for (int64_t i = 0; good && i < rows; i++) {
            for (int64_t j = 0; j < stored->cols; j++) {
                float value = decode_value(buffer + (size_t)(i * stored->cols + j) * dtype_bytes(dtype), dtype);
                finite &= fabsf(value) < BF16_OVERFLOW;
                values[stored->transposed ? j * stored->rows + row + i : (row + i) * stored->cols + j] = value;
            }
        }
    }
    free(buffer);
    if (good && !finite)
        good = error_set(err, EXIT_DATA, "%s: '%s' has values that are infinite or NaN in BF16; use other weights",
                         stored->file->path, stored->tensor->name);
    return good;
}

// Finds the tensor of `part` in the weight files, checks its type and shape, and fills *stored.
static bool find_stored(HfWeights *weights, const HfPart *part, StoredMatrix *stored, const char *path, Error *err) {
    const int rank = part->rank;
    const SafeFile *file;
    const SafeTensor *tensor;
    if (!hf_weights_find(weights, part->name, &file, &tensor))
        return error_set(err, EXIT_DATA,
                         "%s has no tensor '%s', which its config.json requires: files are missing, or config.json "
                         "belongs to another model; copy the complete model again",
                         path, part->name);
    // FP64 is accepted in the build of gradient_check, which writes FP64 checkpoints
    const bool wide = tensor->dtype == DTYPE_F64 && sizeof(real) == sizeof(double);
    if (tensor->dtype != DTYPE_F32 && tensor->dtype != DTYPE_BF16 && tensor->dtype != DTYPE_F16 && !wide)
        return error_set(err, EXIT_DATA, "%s: '%s' is %s; weights must be F32, F16 or BF16", file->path, part->name,
                         dtype_name(tensor->dtype));
    const bool transposed = part->transposed && !weights->llmc;
    *stored = (StoredMatrix){file, tensor, part->rows, part->cols, transposed};
    if (transposed) stored->rows = part->cols, stored->cols = part->rows;
    const int64_t both[] = {stored->rows, stored->cols};
    const int64_t *const shape = rank > 2 ? part->dims : rank == 1 ? both + 1 : both;
    if (tensor->rank != rank || memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) != 0) {
        char there[SHAPE_TEXT], expected[SHAPE_TEXT];
        return error_set(err, EXIT_DATA,
                         "%s: '%s' has the shape %s, but its config.json requires %s; use the config.json that belongs "
                         "to these weights",
                         file->path, part->name, safetensors_shape_text(there, tensor->rank, tensor->shape),
                         safetensors_shape_text(expected, rank, shape));
    }
    return true;
}

// Returns the number of layers for which the weight files contain this parameter: 0 for the projector with
// --vision FOLDER, because that projector is new.
static int layers_in_files(const Arena *arena, int id) {
    const bool is_new = tensor_part((TensorId)id, &arena->config->shape) == PART_PROJECTOR;
    return is_new && arena->config->vision_from_files ? 0 : arena->layout[id][VALUE].layers;
}

// Checks that the files contain all tensors of `arena`. Tensors that only checkpoints need (hf_carried_parts()) may be
// missing; if the files contain them, checks their types and shapes. shape: shape of the files' model.
static bool check_arena(HfWeights *weights, const char *path, const ModelShape *shape, const Arena *arena, Error *err) {
    HfPart parts[HF_MAX_PARTS], *carried = NULL;
    StoredMatrix stored;
    for (int id = 0; id < PARAMETER_COUNT; id++)
        for (int layer = 0; layer < layers_in_files(arena, id); layer++) {
            const int pieces = hf_parts(shape, (TensorId)id, layer, parts);
            for (int k = 0; k < pieces; k++)
                if (!find_stored(weights, &parts[k], &stored, path, err)) return false;
        }
    const int count = shape->tower ? hf_carried_parts(shape, &carried) : 0;
    bool good = true;
    for (int i = 0; good && i < count; i++)
        good = !hf_weights_find(weights, carried[i].name, &stored.file, &stored.tensor) ||
               find_stored(weights, &carried[i], &stored, path, err);
    free(carried);
    return good;
}

// Sets rows [begin, end) of `values` to the mean of the rows before them, the initial value of tokens that are added to
// a vocabulary.
static void fill_mean(float *values, int64_t begin, int64_t end, int64_t cols) {
    if (begin >= end) return;
    double *sums = (double *)xcalloc((size_t)cols, sizeof *sums);
    for (int64_t i = 0; i < begin * cols; i++) sums[i % cols] += values[i];
    for (int64_t i = begin * cols; i < end * cols; i++) values[i] = (float)(sums[i % cols] / (double)begin);
    free(sums);
}

// Loads the parameters of `arena`. shape: shape of the files' model, whose vocabulary may be smaller.
static bool load_arena(HfWeights *weights, const char *path, const ModelShape *shape, Arena *arena, Exec *exec,
                       Error *err) {
    bool good = true;
    for (int id = 0; good && id < PARAMETER_COUNT; id++)
        for (int layer = 0; good && layer < layers_in_files(arena, id); layer++) {
            const Tensor value = arena_tensor(arena, (TensorId)id, VALUE, layer);
            HfPart parts[HF_MAX_PARTS];
            StoredMatrix stored;
            // zeroed, because padding rows must be 0
            float *values = (float *)xcalloc((size_t)tensor_elements(value), sizeof *values);
            const int pieces = hf_parts(shape, (TensorId)id, layer, parts);
            for (int k = 0; good && k < pieces; k++)
                good = find_stored(weights, &parts[k], &stored, path, err) &&
                       read_values(&stored, values + parts[k].first_row * value.cols + parts[k].first_col, err);
            fill_mean(values, tensor_used_rows((TensorId)id, value.rows, shape),
                      tensor_used_rows((TensorId)id, value.rows, &arena->config->shape), value.cols);
            if (good) parameter_set_local(arena, exec, (TensorId)id, layer, values);
            free(values);
        }
    if (good) parameters_zero_moments(arena, exec);
    return good;
}

// Loads the parameters of `arena` and, if the files' model has a vision tower, of arena->vision.
static bool load_parameters(HfWeights *weights, const char *path, const ModelShape *shape, Arena *arena, Exec *exec,
                            Error *err) {
    Arena *vision = shape->vision.kind == VISION_NONE ? NULL : arena->vision;
    const ModelShape *tower = vision ? &vision->config->shape : NULL;
    // checks, before reading gigabytes, that the files contain all tensors of the model and no others
    return check_arena(weights, path, shape, arena, err) &&
           (!vision || check_arena(weights, path, tower, vision, err)) && hf_weights_check_used(weights, shape, err) &&
           load_arena(weights, path, shape, arena, exec, err) &&
           (!vision || load_arena(weights, path, tower, vision, exec, err));
}

bool checkpoint_check_files(const char *path, bool weights, Error *err) {
    Manifest manifest;
    if (!path_is_folder(path) || !folder_has_file(path, MANIFEST_NAME)) return true;
    bool good = manifest_open(&manifest, path, err);
    if (good) {
        good = manifest_check_texts(&manifest, err) && (!weights || manifest_check_file(&manifest, HF_MODEL_NAME, err));
        manifest_close(&manifest);
    }
    const Error why = *err;
    return good || error_set(err, why.code,
                             "%.800s; copy the checkpoint again, or remove its " MANIFEST_NAME
                             " if you changed the file on purpose",
                             why.text);
}

bool checkpoint_load_weights(const char *path, Arena *arena, Exec *exec, Error *err) {
    const Config *c = arena->config;
    ModelShape shape, joined;
    HfWeights weights;
    if (!checkpoint_check_files(path, true, err) || !model_shape_from_files(path, &shape, err)) return false;
    joined = shape;
    if (c->vision[0]) joined.vision = c->shape.vision, joined.vocab = c->shape.vocab;
    if (!compare_shapes(path, &joined, c, err) || !hf_weights_open(&weights, path, err)) return false;
    const bool good = load_parameters(&weights, path, &shape, arena, exec, err);
    if (good && weights.prefix[0] && exec->rank == 0)
        print_remark("note: ", "--model %s: the names of all tensors begin with '%s', which is ignored", path,
                     weights.prefix);
    hf_weights_close(&weights);
    StepState state;
    memset(&state, 0, sizeof state);
    if (good) upload_state(arena, exec, &state);
    return good;
}

bool checkpoint_load_tower(const char *path, Arena *vision, Exec *exec, Error *err) {
    const ModelShape *shape = &vision->config->shape;
    HfWeights weights;
    if (!checkpoint_check_files(path, true, err) || !hf_weights_open(&weights, path, err)) return false;
    const bool good =
        check_arena(&weights, path, shape, vision, err) && load_arena(&weights, path, shape, vision, exec, err);
    hf_weights_close(&weights);
    return good;
}
