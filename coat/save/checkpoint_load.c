// The loading half of checkpoint.h.
#include <math.h>
#include <string.h>

#include "checkpoint.h"
#include "checkpoint_shards.h"
#include "hf.h"
#include "hf_names.h"
#include "io/files.h"
#include "llmc_weights.h"
#include "log/step_line.h"
#include "model/weights.h"
#include "run_state.h"
#include "states_read.h"

#define PATH_BUFFER 4096
#define PIECE_BYTES ((size_t)8 << 20)
#define BF16_OVERFLOW 0x1.ffp127f // from here on a value rounds to infinity in BF16

// The files' model has one value, and the run's another. Of a run that continues, only a name can say so: its other
// flags were compared with the files (config_parse.c).
static bool other_shape(const char *path, const Config *run, const char *field, double there, double here, Error *err) {
    const bool named = run->model[0] && !run->model_from_files;
    if (named)
        return error_set(err, EXIT_USER, "--model %s: the run's model has %s %.9g, and this has %.9g; remove --model",
                         run->model, field, there, here);
    return error_set(err, EXIT_DATA, "%s: its model has %s %.9g and this run's has %.9g; give the same model", path,
                     field, there, here);
}

// The model of the files must be the run's, whichever flags it was given by. What follows from other fields comes after
// them, so that the error names what was asked for.
static bool compare_shapes(const char *path, const ModelShape *files, const Config *config, Error *err) {
    const ModelShape *run = &config->shape;
    const struct {
        const char *name;
        int there, here;
    } fields[] = {{"layers", files->layers, run->layers},
                  {"channels", files->channels, run->channels},
                  {"heads", files->heads, run->heads},
                  {"kv-heads", files->kv_heads, run->kv_heads},
                  {"head-dim", files->head_dim, run->head_dim},
                  {"ffn", files->ffn, run->ffn},
                  {"vocab", files->vocab, run->vocab},
                  {"positions", files->positions, run->positions},
                  {"norm", (int)files->norm, (int)run->norm},
                  {"norm-place", (int)files->norm_place, (int)run->norm_place},
                  {"biases", files->biases, run->biases},
                  {"qkv-biases", files->qkv_biases, run->qkv_biases},
                  {"qk-norm", (int)files->qk_norm, (int)run->qk_norm},
                  {"position-encoding", (int)files->position_kind, (int)run->position_kind},
                  {"tied-head", files->tied_head, run->tied_head},
                  {"activation", (int)files->activation, (int)run->activation}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].there != fields[i].here)
            return other_shape(path, config, fields[i].name, fields[i].there, fields[i].here, err);
    const struct {
        const char *name;
        float there, here;
    } numbers[] = {{"norm-eps", files->norm_eps, run->norm_eps},
                   {"clip-qkv", files->clip_qkv, run->clip_qkv},
                   {"rope-theta", files->rope_theta, run->rope_theta},
                   {"rope-factor", files->rope.factor, run->rope.factor},
                   {"rope-low", files->rope.low, run->rope.low},
                   {"rope-high", files->rope.high, run->rope.high},
                   {"rope-positions", (float)files->rope.positions, (float)run->rope.positions}};
    const bool rotary = run->position_kind == POSITIONS_ROTARY;
    for (size_t i = 0; i < (!rotary ? 1 : run->rope.factor == 1.0f ? 4 : 7); i++)
        if (numbers[i].there != numbers[i].here)
            return other_shape(path, config, numbers[i].name, (double)numbers[i].there, (double)numbers[i].here, err);
    return true;
}

static void upload_state(const Arena *arena, Exec *exec, const StepState *state) {
    Tensor device = arena_tensor(arena, STATE, VALUE, 0);
    if (device.data) exec->ops->upload(exec, device.data, state, sizeof *state);
}

// Passes the GEMM algorithms that the checkpoint recorded, if any, to the device, if it has such a table.
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
                compare_shapes(folder, &shape, &arena->config, err) &&
                run_state_read(state, run, &arena->config, exec, err) && load_algos(&manifest, exec, err);
    if (good) {
        int count = checkpoint_model_tensors(arena, &model);
        good = checkpoint_read_tensors(&manifest, HF_MODEL_NAME, model, count, exec, err);
    }
    int shares = 1;
    good = good && checkpoint_share_count(&manifest, &shares, err);
    if (good && !config_forward_only(&arena->config)) good = states_read(&manifest, shares, arena, exec, err);
    if (good) upload_state(arena, exec, &run->state);
    free(model);
    manifest_close(&manifest);
    return good;
}

// ---------------------------------------------------------------- weights alone

// Where a file stores one parameter: rows of `cols` values each, as they lie in the file.
typedef struct {
    int fd;
    const char *path, *name;
    uint64_t offset;
    Dtype dtype;
    int64_t rows, cols;
    bool transposed; // the file holds the transpose of the native layout
} StoredMatrix;

static float f16_decode(uint16_t h) {
    uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = h >> 10 & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0x1fu) return bits_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent) return bits_float(sign | (exponent + 112u) << 23 | mantissa << 13);
    float small = ldexpf((float)mantissa, -24);
    return sign ? -small : small;
}

// One stored value as FP32. Bytes are copied because nothing aligns them.
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

// Reads a stored matrix into `values`, in native layout. values has room for it; more rows are left alone.
static bool read_values(const StoredMatrix *stored, float *values, Error *err) {
    size_t row_bytes = (size_t)stored->cols * dtype_bytes(stored->dtype);
    int64_t per_piece = (int64_t)(PIECE_BYTES / row_bytes);
    if (per_piece < 1) per_piece = 1;
    if (per_piece > stored->rows) per_piece = stored->rows;
    char *buffer = (char *)xmalloc((size_t)per_piece * row_bytes);
    bool good = true, finite = true;
    for (int64_t row = 0; good && row < stored->rows; row += per_piece) {
        int64_t rows = stored->rows - row < per_piece ? stored->rows - row : per_piece;
        good = file_read_at(stored->fd, stored->path, stored->offset + (uint64_t)row * row_bytes, buffer,
                            (size_t)rows * row_bytes, err);
        for (int64_t i = 0; good && i < rows; i++) {
            for (int64_t j = 0; j < stored->cols; j++) {
                const char *at = buffer + (size_t)(i * stored->cols + j) * dtype_bytes(stored->dtype);
                float value = decode_value(at, stored->dtype);
                finite &= fabsf(value) < BF16_OVERFLOW;
                values[stored->transposed ? j * stored->rows + row + i : (row + i) * stored->cols + j] = value;
            }
        }
    }
    free(buffer);
    if (good && !finite)
        good = error_set(err, EXIT_DATA, "%s: '%s' holds values that are infinite or not numbers; use other weights",
                         stored->path, stored->name);
    return good;
}

static bool stored_in_hf(HfWeights *weights, const HfPart *part, int rank, StoredMatrix *stored, const char *path,
                         Error *err) {
    const SafeFile *file;
    const SafeTensor *tensor;
    if (!hf_weights_find(weights, part->name, &file, &tensor))
        return error_set(
            err, EXIT_DATA,
            "%s has no tensor '%s', which its config.json asks for: files are missing, or config.json is of another "
            "model; take all of them from one place",
            path, part->name);
    const bool wide = tensor->dtype == DTYPE_F64 && sizeof(real) == sizeof(double); // a checkpoint of gradient_check
    if (tensor->dtype != DTYPE_F32 && tensor->dtype != DTYPE_BF16 && tensor->dtype != DTYPE_F16 && !wide)
        return error_set(err, EXIT_DATA, "%s: '%s' is %s; weights must be F32, F16 or BF16", file->path, part->name,
                         dtype_name(tensor->dtype));
    stored->rows = part->transposed ? part->cols : part->rows;
    stored->cols = part->transposed ? part->rows : part->cols;
    const int64_t both[] = {stored->rows, stored->cols}, *const shape = rank == 1 ? both + 1 : both;
    if (tensor->rank != rank || memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) != 0) {
        char there[SHAPE_TEXT], meant[SHAPE_TEXT];
        return error_set(err, EXIT_DATA, "%s: '%s' has the shape %s; config.json means %s", file->path, part->name,
                         safetensors_shape_text(there, tensor->rank, tensor->shape),
                         safetensors_shape_text(meant, rank, shape));
    }
    stored->fd = file->fd;
    stored->path = file->path;
    stored->name = part->name;
    stored->offset = file->data_begin + tensor->begin;
    stored->dtype = tensor->dtype;
    stored->transposed = part->transposed;
    return true;
}

static void stored_in_llmc(const LlmcFile *file, const HfPart *part, TensorId id, int layer, StoredMatrix *stored) {
    uint64_t layer_bytes = (uint64_t)(file->rows[id] * file->cols[id]) * dtype_bytes(file->dtype);
    stored->fd = file->fd;
    stored->path = file->path;
    stored->name = part->name;
    stored->offset = file->offset[id] + (uint64_t)layer * layer_bytes;
    stored->dtype = file->dtype;
    stored->rows = part->rows;
    stored->cols = file->cols[id];
    stored->transposed = false;
}

// The values of a parameter (rows, cols) of a layer, from whichever of the two is given; padding rows stay 0.
static bool load_parameter(HfWeights *hf, const LlmcFile *llmc, const char *path, const ModelShape *shape, TensorId id,
                           int layer, int64_t cols, float *values, Error *err) {
    HfPart parts[HF_MAX_PARTS];
    int count = hf_parts(shape, id, layer, parts);
    for (int i = 0; i < count; i++) {
        StoredMatrix stored;
        if (llmc)
            stored_in_llmc(llmc, &parts[i], id, layer, &stored);
        else if (!stored_in_hf(hf, &parts[i], tensor_rank(id), &stored, path, err))
            return false;
        if (!read_values(&stored, values + parts[i].first_row * cols + parts[i].first_col, err)) return false;
    }
    return true;
}

// Before gigabytes are read: whether the files have all tensors of the model, and no others.
static bool check_stored(HfWeights *weights, const char *path, const ModelShape *shape, const TensorId *ids,
                         const int *layers, int count, Error *err) {
    HfPart parts[HF_MAX_PARTS];
    StoredMatrix stored;
    for (int i = 0; i < count; i++) {
        const int pieces = hf_parts(shape, ids[i], layers[i], parts);
        for (int k = 0; k < pieces; k++)
            if (!stored_in_hf(weights, &parts[k], tensor_rank(ids[i]), &stored, path, err)) return false;
    }
    return hf_weights_check_used(weights, shape, err);
}

static bool load_parameters(HfWeights *hf, const LlmcFile *llmc, const char *path, Arena *arena, Exec *exec,
                            Error *err) {
    size_t capacity = (size_t)arena_parameter_count(arena);
    Parameter *list = (Parameter *)xcalloc(capacity, sizeof *list);
    TensorId *ids = (TensorId *)xcalloc(capacity, sizeof *ids);
    int *layers = (int *)xcalloc(capacity, sizeof *layers);
    int count = arena_parameters(arena, list, ids, layers);
    bool good = !hf || check_stored(hf, path, &arena->config.shape, ids, layers, count, err);
    for (int i = 0; good && i < count; i++) {
        Tensor value = list[i].weight.value;
        float *values = (float *)xcalloc((size_t)tensor_elements(value), sizeof *values);
        good = load_parameter(hf, llmc, path, &arena->config.shape, ids[i], layers[i], value.cols, values, err);
        if (good) parameter_set_held(arena, exec, ids[i], layers[i], values);
        free(values);
    }
    if (good) parameters_zero_moments(arena, exec);
    free(layers);
    free(ids);
    free(list);
    return good;
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
    ModelShape shape;
    if (!checkpoint_check_files(path, true, err) || !model_shape_from_files(path, &shape, err)) return false;
    if (!compare_shapes(path, &shape, &arena->config, err)) return false;
    bool good;
    if (llmc_is_weights(path)) {
        LlmcFile file;
        if (!llmc_open(&file, path, err)) return false;
        good = load_parameters(NULL, &file, path, arena, exec, err);
        llmc_close(&file);
    } else {
        HfWeights weights;
        if (!hf_weights_open(&weights, path, err)) return false;
        good = load_parameters(&weights, NULL, path, arena, exec, err);
        if (good && weights.prefix[0] && exec->rank == 0)
            print_remark("note: ", "--model %s: all names of tensors begin with '%s', and are read without it", path,
                         weights.prefix);
        hf_weights_close(&weights);
    }
    StepState state;
    memset(&state, 0, sizeof state);
    if (good) upload_state(arena, exec, &state);
    return good;
}
