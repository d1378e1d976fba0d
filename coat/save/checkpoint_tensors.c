#include "checkpoint_tensors.h"

#include <string.h>
#include <xxhash.h>

#include "base/background.h"
#include "hf_names.h"
#include "io/files.h"

#define PIECE_BYTES ((size_t)8 << 20) // of host memory, between device and file
#define PATH_BUFFER 4096

static Dtype dtype_of(Format format) {
    switch (format) {
    case FMT_FP32: return sizeof(real) == sizeof(double) ? DTYPE_F64 : DTYPE_F32;
    case FMT_BF16: return DTYPE_BF16;
    case FMT_E4M3: return DTYPE_F8_E4M3;
    case FMT_E5M2: return DTYPE_F8_E5M2;
    case FMT_U16: return DTYPE_U16;
    case FMT_I32: return DTYPE_I32;
    default: return DTYPE_U8;
    }
}

// ---------------------------------------------------------------- the lists

typedef struct {
    CheckpointTensor *entries;
    int count;
} List;

static CheckpointTensor *add(List *list, const Arena *arena, TensorId id, Role role, int layer, const char *suffix) {
    Tensor t = arena_tensor(arena, id, role, layer);
    CheckpointTensor *entry = &list->entries[list->count++];
    memset(entry, 0, sizeof *entry);
    char name[HF_NAME_LENGTH];
    hf_whole_name(&arena->config.shape, id, layer, name);
    snprintf(entry->name, sizeof entry->name, "%s%s%s", name, role_suffix(role), suffix);
    entry->data = (char *)t.data;
    entry->dtype = dtype_of(t.format);
    entry->rank = tensor_rank(id);
    entry->rows = entry->kept_rows = t.rows;
    entry->cols = t.cols;
    entry->id = id;
    entry->layer = layer;
    return entry;
}

// One value per group of a moment: its maximum or its exponent.
static void add_groups(List *list, const Arena *arena, TensorId id, Role role, int layer, const char *suffix,
                       void *data, Dtype dtype) {
    Tensor t = arena_tensor(arena, id, role, layer);
    CheckpointTensor *entry = add(list, arena, id, role, layer, suffix);
    entry->data = (char *)data;
    entry->dtype = dtype;
    entry->rank = 1;
    entry->rows = entry->kept_rows = 1;
    entry->cols = (tensor_elements(t) + t.group - 1) / t.group;
}

static void add_state(List *list, const Arena *arena, TensorId id, Role role, int layer) {
    Tensor t = arena_tensor(arena, id, role, layer);
    if (!t.data) return;
    add(list, arena, id, role, layer, "");
    if (t.scale) add_groups(list, arena, id, role, layer, ".a", t.scale, DTYPE_F32);
    if (t.exponent) add_groups(list, arena, id, role, layer, ".k", t.exponent, DTYPE_U8);
}

static List new_list(const Arena *arena, int per_parameter) {
    List list;
    list.count = 0;
    list.entries =
        (CheckpointTensor *)xcalloc((size_t)(arena_parameter_count(arena) * per_parameter), sizeof *list.entries);
    return list;
}

// What of a part this process has where parameters are shared: all or some of the part, or nothing.
static void cut_to_part(CheckpointTensor *entry, const Arena *arena, int64_t first, int64_t elements) {
    int64_t begin, last = first + elements;
    Tensor share = arena_share(arena, entry->id, VALUE, entry->layer, &begin);
    int64_t end = begin + tensor_elements(share), from = begin > first ? begin : first, to = end < last ? end : last;
    entry->shared = true;
    entry->shard_begin = from - first;
    entry->shard_elements = to > from ? to - from : 0;
    entry->data += (size_t)(from - begin) * dtype_bytes(entry->dtype);
}

// A part of a parameter, as the file holds it.
static void add_part(List *list, const Arena *arena, TensorId id, int layer, const HfPart *part) {
    CheckpointTensor *entry = add(list, arena, id, VALUE, layer, "");
    int64_t first = part->first_row * entry->cols + part->first_col;
    bool last = part->first_row + part->rows == tensor_used_rows(id, entry->rows, &arena->config.shape);
    snprintf(entry->name, sizeof entry->name, "%s", part->name);
    entry->transposed = part->transposed;
    entry->offset = (size_t)first * dtype_bytes(entry->dtype);
    entry->rows = last ? entry->rows - part->first_row : part->rows; // padding rows belong to the last
    entry->kept_rows = part->rows;
    entry->cols = part->cols;
    if (arena->layout[id][VALUE].sharded)
        cut_to_part(entry, arena, first, entry->rows * entry->cols);
    else
        entry->data += entry->offset;
}

int checkpoint_model_tensors(const Arena *arena, CheckpointTensor **out) {
    List list = new_list(arena, HF_MAX_PARTS);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < arena->layout[id][VALUE].layers; layer++) {
            HfPart parts[HF_MAX_PARTS];
            if (!arena_tensor(arena, (TensorId)id, VALUE, layer).data) continue;
            int count = hf_parts(&arena->config.shape, (TensorId)id, layer, parts);
            for (int i = 0; i < count; i++) add_part(&list, arena, (TensorId)id, layer, &parts[i]);
        }
    }
    *out = list.entries;
    return list.count;
}

int checkpoint_optimizer_tensors(const Arena *arena, CheckpointTensor **out) {
    List list = new_list(arena, 7); // two moments of three tensors each, and the master
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < arena->layout[id][VALUE].layers; layer++) {
            add_state(&list, arena, (TensorId)id, MOMENT_M, layer);
            add_state(&list, arena, (TensorId)id, MOMENT_V, layer);
            add_state(&list, arena, (TensorId)id, MASTER, layer);
        }
    }
    *out = list.entries;
    return list.count;
}

// The entries of a whole state, made those of this process's share of it.
static void cut_to_shard(List *list, int first, const Arena *arena, Role role) {
    int count = list->count;
    list->count = first;
    for (int i = first; i < count; i++) {
        CheckpointTensor entry = list->entries[i];
        int64_t begin;
        Tensor share = arena_share(arena, entry.id, role, entry.layer, &begin);
        int64_t elements = tensor_elements(share),
                groups = share.group ? (elements + share.group - 1) / share.group : 0;
        bool maxima = i > first && entry.dtype == DTYPE_F32, exponents = i > first && !maxima;
        entry.data = (char *)(maxima ? share.scale : exponents ? (void *)share.exponent : share.data);
        entry.rank = 1;
        entry.rows = entry.kept_rows = 1;
        entry.cols = i > first ? groups : elements;
        if (elements > 0) list->entries[list->count++] = entry;
    }
}

int checkpoint_share_tensors(const Arena *arena, CheckpointTensor **out) {
    static const Role states[] = {MOMENT_M, MOMENT_V, MASTER};
    List list = new_list(arena, 7);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < arena->layout[id][VALUE].layers; layer++) {
            for (int i = 0; i < 3; i++) {
                int first = list.count;
                add_state(&list, arena, (TensorId)id, states[i], layer);
                cut_to_shard(&list, first, arena, states[i]);
            }
        }
    }
    *out = list.entries;
    return list.count;
}

// The shape in the file.
static void file_shape(const CheckpointTensor *t, int64_t shape[2]) {
    int64_t rows = t->transposed ? t->cols : t->kept_rows, cols = t->transposed ? t->rows : t->cols;
    shape[0] = t->rank == 2 ? rows : cols;
    shape[1] = cols;
}

size_t checkpoint_tensor_bytes(const CheckpointTensor *t) {
    return (size_t)t->kept_rows * (size_t)t->cols * dtype_bytes(t->dtype);
}

// ---------------------------------------------------------------- transposes

#define BLOCK 32 // both sides of a block stay in the first-level cache

// Elements of a constant size, so that each copy is one load and one store.
static inline void transpose_block(char *to, const char *from, int64_t rows, int64_t cols, int64_t i0, int64_t j0,
                                   size_t bytes) {
    int64_t i1 = i0 + BLOCK < rows ? i0 + BLOCK : rows, j1 = j0 + BLOCK < cols ? j0 + BLOCK : cols;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = j0; j < j1; j++)
            memcpy(to + (size_t)(j * rows + i) * bytes, from + (size_t)(i * cols + j) * bytes, bytes);
}

void matrix_transpose(void *to, const void *from, int64_t rows, int64_t cols, size_t element_bytes) {
    for (int64_t i0 = 0; i0 < rows; i0 += BLOCK) {
        for (int64_t j0 = 0; j0 < cols; j0 += BLOCK) {
            switch (element_bytes) {
            case 2: transpose_block((char *)to, (const char *)from, rows, cols, i0, j0, 2); break;
            case 4: transpose_block((char *)to, (const char *)from, rows, cols, i0, j0, 4); break;
            default: transpose_block((char *)to, (const char *)from, rows, cols, i0, j0, element_bytes); break;
            }
        }
    }
}

// ---------------------------------------------------------------- writing

// Whether all exponents are less than the largest, which is that of infinities and NaN.
static bool all_finite(const char *values, size_t bytes, Dtype dtype) {
    if (dtype == DTYPE_BF16) {
        const uint16_t *v = (const uint16_t *)values;
        uint16_t found = 0; // of the values' own width, for as many lanes
        for (size_t i = 0; i < bytes / sizeof *v; i++) found |= (v[i] & 0x7f80u) == 0x7f80u;
        return !found;
    }
    const uint32_t *v = (const uint32_t *)values;
    uint32_t found = 0;
    for (size_t i = 0; dtype == DTYPE_F32 && i < bytes / sizeof *v; i++) found |= (v[i] & 0x7f800000u) == 0x7f800000u;
    return !found;
}

// A transposed tensor passes through host memory whole (one layer's matrix), the others in pieces.
static bool write_tensor(SafeWriter *writer, const CheckpointTensor *t, Exec *exec, const char **nonfinite,
                         Error *err) {
    size_t bytes = checkpoint_tensor_bytes(t), piece = t->transposed || bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    char *buffer = t->host ? NULL : (char *)malloc(piece), *turned = t->transposed ? (char *)malloc(piece) : NULL;
    bool good = (buffer || t->host) && (turned || !t->transposed);
    if (!good) error_set(err, EXIT_DATA, "%s: not enough memory to write '%s'", writer->path, t->name);
    for (size_t at = 0; good && at < bytes; at += piece) {
        size_t part = bytes - at < piece ? bytes - at : piece;
        const char *values = t->host ? t->host + at : buffer;
        if (!t->host) exec->ops->download(exec, buffer, t->data + at, part);
        if (nonfinite && !*nonfinite && !all_finite(values, part, t->dtype)) *nonfinite = t->name;
        if (turned) matrix_transpose(turned, values, t->rows, t->cols, dtype_bytes(t->dtype));
        good = safewriter_write(writer, turned ? turned : values, part, err);
    }
    free(turned);
    free(buffer);
    return good;
}

// A file while it is written, and what became of it.
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
        int64_t shape[2];
        file_shape(&f->list[i], shape);
        safewriter_declare(&w->writer, f->list[i].name, f->list[i].dtype, f->list[i].rank, shape, i);
    }
    w->good = path_join(path, sizeof path, w->folder, f->name, &w->err) && safewriter_begin(&w->writer, path, &w->err);
    for (int i = 0; w->good && i < f->count; i++)
        w->good = write_tensor(&w->writer, &f->list[w->writer.tensors[i].tag], w->exec, f->nonfinite, &w->err);
    w->good = w->good && safewriter_end(&w->writer, &w->hash, &w->err);
    return NULL;
}

// From the copies.
static void write_at_once(FileWork *work, int count) {
    for (int i = 1; i < count; i++) background_begin(&work[i].task, write_file, &work[i]);
    write_file(&work[0]);
    for (int i = 1; i < count; i++) background_end(&work[i].task);
}

// From device memory, which is the calling thread's.
static void write_in_turn(FileWork *work, int count) {
    for (int i = 0; i < count && (i == 0 || work[i - 1].good); i++) write_file(&work[i]);
}

bool checkpoint_write_tensors(const char *folder, const TensorFile *files, int count, Exec *exec, JsonText *manifest,
                              Error *err) {
    FileWork *work = (FileWork *)xcalloc((size_t)count, sizeof *work);
    bool good = true;
    for (int i = 0; i < count; i++) {
        work[i].file = &files[i];
        work[i].folder = folder;
        work[i].exec = exec;
    }
    if (files[0].count > 0 && files[0].list[0].host)
        write_at_once(work, count);
    else
        write_in_turn(work, count);
    for (int i = 0; i < count; i++) {
        if (good && !work[i].good) *err = work[i].err;
        good = good && work[i].good;
        if (good) manifest_add(manifest, files[i].name, work[i].writer.bytes, work[i].hash, &work[i].writer);
        safewriter_close(&work[i].writer);
    }
    free(work);
    return good;
}

// ---------------------------------------------------------------- reading

static bool check_tensor(const SafeFile *file, const SafeTensor *stored, const CheckpointTensor *t, Error *err) {
    int64_t shape[2];
    file_shape(t, shape);
    if (!stored) return error_set(err, EXIT_DATA, "%s has no tensor '%s'", file->path, t->name);
    if (stored->dtype != t->dtype)
        return error_set(err, EXIT_DATA, "%s: tensor '%s' is %s and this run stores it as %s; resume with the same %s",
                         file->path, t->name, dtype_name(stored->dtype), dtype_name(t->dtype),
                         "--precision, --moments and --master");
    bool same = stored->rank == t->rank;
    for (int i = 0; same && i < t->rank; i++) same = stored->shape[i] == shape[i];
    if (!same) {
        char there[SHAPE_TEXT], here[SHAPE_TEXT];
        return error_set(err, EXIT_DATA, "%s: tensor '%s' has the shape %s; this run's is %s", file->path, t->name,
                         safetensors_shape_text(there, stored->rank, stored->shape),
                         safetensors_shape_text(here, t->rank, shape));
    }
    return true;
}

static bool read_tensor(const SafeFile *file, const SafeTensor *stored, const CheckpointTensor *t, uint64_t expected,
                        XXH3_state_t *hash, Exec *exec, Error *err) {
    uint64_t bytes = checkpoint_tensor_bytes(t), begin = 0, end = bytes;
    size_t piece = t->transposed || bytes < PIECE_BYTES ? (size_t)bytes : PIECE_BYTES;
    if (t->shared) {
        begin = (uint64_t)t->shard_begin * dtype_bytes(t->dtype);
        end = begin + (uint64_t)t->shard_elements * dtype_bytes(t->dtype);
    }
    char *buffer = (char *)xmalloc(piece), *turned = t->transposed ? (char *)xmalloc(piece) : NULL;
    bool good = true;
    XXH3_64bits_reset(hash);
    for (uint64_t at = 0; good && at < bytes; at += piece) {
        size_t part = bytes - at < piece ? (size_t)(bytes - at) : piece;
        good = safetensors_read(file, stored, at, buffer, part, err);
        if (!good) break;
        XXH3_64bits_update(hash, buffer, part);
        if (turned) matrix_transpose(turned, buffer, t->cols, t->rows, dtype_bytes(t->dtype));
        const char *values = turned ? turned : buffer;
        // what of these bytes is this process's
        uint64_t from = at > begin ? at : begin, to = at + part < end ? at + part : end;
        if (from < to) exec->ops->upload(exec, t->data + (from - begin), values + (from - at), (size_t)(to - from));
    }
    if (good && XXH3_64bits_digest(hash) != expected)
        good =
            error_set(err, EXIT_DATA, "%s is damaged: the checksum of tensor '%s' does not fit", file->path, t->name);
    uint64_t padding = (uint64_t)(t->rows - t->kept_rows) * (uint64_t)t->cols * dtype_bytes(t->dtype);
    if (good && padding) exec->ops->zero(exec, t->data + bytes, (size_t)padding);
    free(turned);
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
    bool good = file.count == count || error_set(err, EXIT_DATA, "%s has %d tensor%s where this run has %d", path,
                                                 file.count, plural(file.count), count);
    // all shapes before the first byte, so that a refusal leaves the device as it was
    for (int i = 0; good && i < count; i++)
        good = check_tensor(&file, safetensors_find(&file, list[i].name), &list[i], err);
    for (int i = 0; good && i < count; i++) {
        const SafeTensor *stored = safetensors_find(&file, list[i].name);
        uint64_t expected;
        good = manifest_tensor_hash(manifest, name, stored->name, &expected, err) &&
               read_tensor(&file, stored, &list[i], expected, hash, exec, err);
    }
    XXH3_freeState(hash);
    safetensors_close(&file);
    return good;
}
