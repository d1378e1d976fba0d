#include "checkpoint_tensors.h"

#include <string.h>
#include <xxhash.h>

#include "base/background.h"
#include "hf_names.h"
#include "io/files.h"

#define PIECE_BYTES ((size_t)8 << 20) // size in bytes of the host buffer between device and file

static Dtype dtype_of(Format format) {
    switch (format) {
    case FMT_FP32: return sizeof(real) == sizeof(double) ? DTYPE_F64 : DTYPE_F32;
    case FMT_BF16: return DTYPE_BF16;
    case FMT_E4M3: return DTYPE_F8_E4M3;
    case FMT_E5M2: return DTYPE_F8_E5M2;
    case FMT_U16: return DTYPE_U16;
    case FMT_I32: return DTYPE_I32;
    case FMT_I8: return DTYPE_I8;
    default: return DTYPE_U8;
    }
}

// ---------------------------------------------------------------- lists of a checkpoint's tensors

typedef struct {
    CheckpointTensor *entries;
    int count;
} List;

// Appends a list entry for all rows of a tensor. The entry's name is the parameter's name, the role's suffix and
// `suffix`.
static CheckpointTensor *add(List *list, const Arena *arena, TensorId id, Role role, int layer, const char *suffix) {
    Tensor t = arena_tensor(arena, id, role, layer);
    CheckpointTensor *entry = &list->entries[list->count++];
    memset(entry, 0, sizeof *entry);
    char name[HF_NAME_LENGTH];
    hf_whole_name(&arena->config->shape, id, layer, name);
    snprintf(entry->name, sizeof entry->name, "%s%s%s", name, role_suffix(role), suffix);
    entry->data = (char *)t.data;
    entry->dtype = dtype_of(t.format);
    entry->rank = tensor_rank(id);
    entry->rows = entry->kept_rows = t.rows;
    entry->cols = t.cols;
    entry->arena = arena;
    entry->id = id;
    entry->layer = layer;
    return entry;
}

// Makes a list entry describe a tensor of one dimension. Returns the entry, so that the caller can change the entry's
// type.
static CheckpointTensor *flatten(CheckpointTensor *entry, void *data, int64_t elements) {
    entry->data = (char *)data;
    entry->rank = 1;
    entry->rows = entry->kept_rows = 1;
    entry->cols = elements;
    return entry;
}

// Appends list entries for a moment or master weights, and, if the format has groups, for their amaxes (".a") and
// exponents (".k"). With several processes, appends only this process's shard, or nothing if the shard is empty.
static void add_state(List *list, const Arena *arena, TensorId id, Role role, int layer) {
    const bool sharded = arena->ranks > 1;
    int64_t begin;
    Tensor t = arena_tensor(arena, id, role, layer);
    if (!t.data) return;
    if (sharded) t = arena_shard(arena, id, role, layer, &begin);
    const int64_t elements = tensor_elements(t), groups = t.group ? (elements + t.group - 1) / t.group : 0;
    if (elements == 0) return;
    CheckpointTensor *state = add(list, arena, id, role, layer, "");
    if (sharded) flatten(state, t.data, elements);
    if (t.scale) flatten(add(list, arena, id, role, layer, ".a"), t.scale, groups)->dtype = DTYPE_F32;
    if (t.exponent) flatten(add(list, arena, id, role, layer, ".k"), t.exponent, groups)->dtype = DTYPE_U8;
}

static List new_list(const Arena *arena, int per_parameter, int others) {
    int parameters = 0;
    for (const Arena *a = arena; a; a = a->vision) parameters += arena_parameter_count(a);
    const size_t capacity = (size_t)(parameters * per_parameter + others);
    return (List){(CheckpointTensor *)xcalloc(capacity, sizeof(CheckpointTensor)), 0};
}

// Limits a list entry for elements [first, first + elements) of a parameter to those elements that this process's shard
// contains (ZeRO 3).
static void cut_to_shard(CheckpointTensor *entry, const Arena *arena, int64_t first, int64_t elements) {
    int64_t begin, last = first + elements;
    Tensor shard = arena_shard(arena, entry->id, VALUE, entry->layer, &begin);
    int64_t end = begin + tensor_elements(shard), from = begin > first ? begin : first, to = end < last ? end : last;
    entry->shared = true;
    entry->shard_begin = from - first;
    entry->shard_elements = to > from ? to - from : 0;
    entry->data += (size_t)(from - begin) * dtype_bytes(entry->dtype);
}

// Appends a list entry for a part of a parameter, such as the rows of q in the matrix of q, k and v.
static void add_part(List *list, const Arena *arena, TensorId id, int layer, const HfPart *part) {
    CheckpointTensor *entry = add(list, arena, id, VALUE, layer, "");
    int64_t first = part->first_row * entry->cols + part->first_col;
    bool last = part->first_row + part->rows == tensor_used_rows(id, entry->rows, &arena->config->shape);
    snprintf(entry->name, sizeof entry->name, "%s", part->name);
    entry->rank = part->rank;
    memcpy(entry->dims, part->dims, sizeof entry->dims);
    entry->transposed = part->transposed;
    entry->offset = (size_t)first * dtype_bytes(entry->dtype);
    entry->rows = last ? entry->rows - part->first_row : part->rows; // the last part includes the padding rows
    entry->kept_rows = part->rows;
    entry->cols = part->cols;
    if (arena->layout[id][VALUE].sharded)
        cut_to_shard(entry, arena, first, entry->rows * entry->cols);
    else
        entry->data += entry->offset;
}

// Appends the parameters of one arena.
static void add_parameters(List *list, const Arena *arena) {
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < arena->layout[id][VALUE].layers; layer++) {
            HfPart parts[HF_MAX_PARTS];
            if (!arena_tensor(arena, (TensorId)id, VALUE, layer).data) continue;
            int count = hf_parts(&arena->config->shape, (TensorId)id, layer, parts);
            for (int i = 0; i < count; i++) add_part(list, arena, (TensorId)id, layer, &parts[i]);
        }
    }
}

int checkpoint_model_tensors(const Arena *arena, CheckpointTensor **out) {
    HfPart *carried = NULL;
    const int others = arena->vision ? hf_carried_parts(&arena->vision->config->shape, &carried) : 0;
    List list = new_list(arena, HF_MAX_PARTS, others);
    for (const Arena *a = arena; a; a = a->vision) add_parameters(&list, a);
    for (int i = 0; i < others; i++) {
        CheckpointTensor *entry = &list.entries[list.count++];
        snprintf(entry->name, sizeof entry->name, "%s", carried[i].name);
        entry->dtype = list.entries[0].dtype;
        entry->rank = carried[i].rank;
        entry->rows = entry->kept_rows = carried[i].rows;
        entry->cols = carried[i].cols;
        memcpy(entry->dims, carried[i].dims, sizeof entry->dims);
    }
    free(carried);
    *out = list.entries;
    return list.count;
}

int checkpoint_optimizer_tensors(const Arena *arena, CheckpointTensor **out) {
    static const Role states[] = {MOMENT_M, MOMENT_V, MASTER};
    List list = new_list(arena, 7, 0); // 7 per parameter: two moments of up to 3 tensors, and the master weights
    for (const Arena *a = arena; a; a = a->vision)
        for (int id = 0; id < PARAMETER_COUNT; id++)
            for (int layer = 0; layer < a->layout[id][VALUE].layers; layer++)
                for (int i = 0; i < 3; i++) add_state(&list, a, (TensorId)id, states[i], layer);
    *out = list.entries;
    return list.count;
}

void checkpoint_file_shape(const CheckpointTensor *t, int64_t shape[HF_MAX_RANK]) {
    int64_t rows = t->transposed ? t->cols : t->kept_rows, cols = t->transposed ? t->rows : t->cols;
    shape[0] = t->rank == 2 ? rows : cols;
    shape[1] = cols;
    if (t->rank > 2) memcpy(shape, t->dims, sizeof t->dims);
}

size_t checkpoint_tensor_bytes(const CheckpointTensor *t) {
    return (size_t)t->kept_rows * (size_t)t->cols * dtype_bytes(t->dtype);
}

// ---------------------------------------------------------------- transposing matrices in host memory

#define BLOCK 32 // rows and columns of a block; its source and destination fit into the L1 cache together

// Transposes the block at row i0 and column j0 of a (rows, cols) matrix. Callers pass the element size `bytes` as a
// constant, so that each memcpy compiles to one load and one store.
static inline void transpose_block(char *to, const char *from, int64_t rows, int64_t cols, int64_t i0, int64_t j0,
                                   size_t bytes) {
    int64_t i1 = i0 + BLOCK < rows ? i0 + BLOCK : rows, j1 = j0 + BLOCK < cols ? j0 + BLOCK : cols;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = j0; j < j1; j++)
            memcpy(to + (size_t)(j * rows + i) * bytes, from + (size_t)(i * cols + j) * bytes, bytes);
}

static void matrix_transpose(void *to, const void *from, int64_t rows, int64_t cols, size_t element_bytes) {
    for (int64_t i0 = 0; i0 < rows; i0 += BLOCK) {
        for (int64_t j0 = 0; j0 < cols; j0 += BLOCK) {
            if (element_bytes == 2)
                transpose_block((char *)to, (const char *)from, rows, cols, i0, j0, 2);
            else if (element_bytes == 4)
                transpose_block((char *)to, (const char *)from, rows, cols, i0, j0, 4);
            else
                transpose_block((char *)to, (const char *)from, rows, cols, i0, j0, element_bytes);
        }
    }
}

// ---------------------------------------------------------------- writing tensors to files

// True if no BF16 or FP32 value is an infinity or NaN, that is, if no exponent has all bits set. True for other types.
static bool all_finite(const char *values, size_t bytes, Dtype dtype) {
    if (dtype == DTYPE_BF16) {
        const uint16_t *v = (const uint16_t *)values;
        uint16_t found = 0; // `found` is as wide as the values, so that the compiler uses all SIMD lanes
        for (size_t i = 0; i < bytes / sizeof *v; i++) found |= (v[i] & 0x7f80u) == 0x7f80u;
        return !found;
    }
    const uint32_t *v = (const uint32_t *)values;
    uint32_t found = 0;
    for (size_t i = 0; dtype == DTYPE_F32 && i < bytes / sizeof *v; i++) found |= (v[i] & 0x7f800000u) == 0x7f800000u;
    return !found;
}

// Writes one tensor to a safetensors file. A transposed tensor (one layer's matrix) is written in one piece, others in
// pieces of PIECE_BYTES. If the tensor is the first with an infinity or NaN, sets *nonfinite to its name.
static bool write_tensor(SafeWriter *writer, const CheckpointTensor *t, Exec *exec, const char **nonfinite,
                         Error *err) {
    size_t bytes = checkpoint_tensor_bytes(t), piece = t->transposed || bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    char *buffer = t->host ? NULL : (char *)malloc(piece), *transposed = t->transposed ? (char *)malloc(piece) : NULL;
    bool good = (buffer || t->host) && (transposed || !t->transposed);
    if (!good) error_set(err, EXIT_DATA, "%s: not enough host memory to write tensor '%s'", writer->path, t->name);
    for (size_t at = 0; good && at < bytes; at += piece) {
        size_t part = bytes - at < piece ? bytes - at : piece;
        const char *values = t->host ? t->host + at : buffer;
        if (!t->host) exec->ops->download(exec, buffer, t->data + at, part);
        if (nonfinite && !*nonfinite && !all_finite(values, part, t->dtype)) *nonfinite = t->name;
        if (transposed) matrix_transpose(transposed, values, t->rows, t->cols, dtype_bytes(t->dtype));
        good = safewriter_write(writer, transposed ? transposed : values, part, err);
    }
    free(transposed);
    free(buffer);
    return good;
}

// A file that one thread writes, and the result of writing it.
typedef struct {
    const TensorFile *file;
    const char *folder;
    Exec *exec;
    BackgroundTask task;
    SafeWriter writer;
    uint64_t hash;
    bool good;
    Error err;
} FileWork;

static void *write_file(void *argument) {
    FileWork *w = (FileWork *)argument;
    const TensorFile *f = w->file;
    char path[PATH_BUFFER];
    if (f->nonfinite) *f->nonfinite = NULL;
    for (int i = 0; i < f->count; i++) {
        int64_t shape[HF_MAX_RANK];
        checkpoint_file_shape(&f->list[i], shape);
        safewriter_declare(&w->writer, f->list[i].name, f->list[i].dtype, f->list[i].rank, shape, i);
    }
    w->good = path_join(path, sizeof path, w->folder, f->name, &w->err) && safewriter_begin(&w->writer, path, &w->err);
    for (int i = 0; w->good && i < f->count; i++)
        w->good = write_tensor(&w->writer, &f->list[w->writer.tensors[i].tag], w->exec, f->nonfinite, &w->err);
    w->good = w->good && safewriter_end(&w->writer, &w->hash, &w->err);
    return NULL;
}

bool checkpoint_write_tensors(const char *folder, const TensorFile *files, int count, Exec *exec, JsonText *manifest,
                              Error *err) {
    FileWork *work = (FileWork *)xcalloc((size_t)count, sizeof *work);
    // files are written in parallel only from host copies, because only this thread may read from the device
    const bool copied = files[0].count > 0 && files[0].list[0].host;
    bool good = true;
    for (int i = 0; i < count; i++) {
        work[i] = (FileWork){.file = &files[i], .folder = folder, .exec = exec};
        if (copied)
            background_begin(&work[i].task, write_file, &work[i]);
        else if (i == 0 || work[i - 1].good)
            write_file(&work[i]);
    }
    for (int i = 0; i < count; i++) {
        background_end(&work[i].task);
        if (good && !work[i].good) *err = work[i].err;
        good = good && work[i].good;
        if (good) manifest_add(manifest, files[i].name, work[i].writer.bytes, work[i].hash, &work[i].writer);
        safewriter_close(&work[i].writer);
    }
    free(work);
    return good;
}

// ---------------------------------------------------------------- reading tensors from files

static bool check_tensor(const SafeFile *file, const SafeTensor *stored, const CheckpointTensor *t, Error *err) {
    int64_t shape[HF_MAX_RANK];
    checkpoint_file_shape(t, shape);
    if (!stored) return error_set(err, EXIT_DATA, "%s has no tensor '%s'", file->path, t->name);
    if (stored->dtype != t->dtype && t->arena)
        return error_set(err, EXIT_DATA,
                         "%s: tensor '%s' is %s, but this run stores it as %s; resume with the same --precision",
                         file->path, t->name, dtype_name(stored->dtype), dtype_name(t->dtype));
    bool same = stored->rank == t->rank;
    for (int i = 0; same && i < t->rank; i++) same = stored->shape[i] == shape[i];
    if (!same) {
        char there[SHAPE_TEXT], here[SHAPE_TEXT];
        return error_set(err, EXIT_DATA,
                         "%s: tensor '%s' has the shape %s, but this run's tensor has %s; remove flags that change the "
                         "model, or restore the checkpoint from a copy",
                         file->path, t->name, safetensors_shape_text(there, stored->rank, stored->shape),
                         safetensors_shape_text(here, t->rank, shape));
    }
    return true;
}

// Reads a tensor from the file to the device, zeroes its padding rows, and compares the checksum of the file's bytes
// with `expected`. In ZeRO 3, uploads only this process's shard.
static bool read_tensor(const SafeFile *file, const SafeTensor *stored, const CheckpointTensor *t, uint64_t expected,
                        XXH3_state_t *hash, Exec *exec, Error *err) {
    uint64_t bytes = checkpoint_tensor_bytes(t), begin = 0, end = bytes;
    size_t piece = t->transposed || bytes < PIECE_BYTES ? (size_t)bytes : PIECE_BYTES;
    if (t->shared) {
        begin = (uint64_t)t->shard_begin * dtype_bytes(t->dtype);
        end = begin + (uint64_t)t->shard_elements * dtype_bytes(t->dtype);
    }
    char *buffer = (char *)xmalloc(piece), *transposed = t->transposed ? (char *)xmalloc(piece) : NULL;
    bool good = true;
    XXH3_64bits_reset(hash);
    for (uint64_t at = 0; good && at < bytes; at += piece) {
        size_t part = bytes - at < piece ? (size_t)(bytes - at) : piece;
        good = safetensors_read(file, stored, at, buffer, part, err);
        if (!good) break;
        XXH3_64bits_update(hash, buffer, part);
        if (transposed) matrix_transpose(transposed, buffer, t->cols, t->rows, dtype_bytes(t->dtype));
        const char *values = transposed ? transposed : buffer;
        // uploads the part of this piece that is in this process's shard
        uint64_t from = at > begin ? at : begin, to = at + part < end ? at + part : end;
        if (from < to) exec->ops->upload(exec, t->data + (from - begin), values + (from - at), (size_t)(to - from));
    }
    if (good && XXH3_64bits_digest(hash) != expected)
        good =
            error_set(err, EXIT_DATA, "%s is damaged: the checksum of tensor '%s' does not match", file->path, t->name);
    uint64_t padding = (uint64_t)(t->rows - t->kept_rows) * (uint64_t)t->cols * dtype_bytes(t->dtype);
    if (good && padding) exec->ops->zero(exec, t->data + bytes, (size_t)padding);
    free(transposed);
    free(buffer);
    return good;
}

bool checkpoint_read_tensors(const Manifest *manifest, const char *name, const CheckpointTensor *list, int count,
                             Exec *exec, Error *err) {
    char path[PATH_BUFFER];
    SafeFile file;
    if (!path_join(path, sizeof path, manifest->folder, name, err)) return false;
    if (!safetensors_open(&file, path, err)) return false;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) fatal(EXIT_DEVICE, "host memory: could not allocate a checksum's state");
    bool good = file.count == count || error_set(err, EXIT_DATA, "%s has %d tensor%s but this run has %d", path,
                                                 file.count, plural(file.count), count);
    // All shapes are checked before the first upload, so that a rejected file leaves device memory unchanged.
    for (int i = 0; good && i < count; i++)
        good = check_tensor(&file, safetensors_find(&file, list[i].name), &list[i], err);
    for (int i = 0; good && i < count; i++) {
        const SafeTensor *stored = safetensors_find(&file, list[i].name);
        uint64_t expected;
        if (!list[i].arena) continue;
        good = manifest_tensor_hash(manifest, name, stored->name, &expected, err) &&
               read_tensor(&file, stored, &list[i], expected, hash, exec, err);
    }
    XXH3_freeState(hash);
    safetensors_close(&file);
    return good;
}
