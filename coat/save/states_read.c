#include "states_read.h"

#include <string.h>
#include <xxhash.h>

#include "checkpoint_shards.h"
#include "hf_names.h"
#include "io/files.h"
#include "log/step_line.h"
#include "numerics/moments.h"
#include "numerics/moments_host.h"

#define PATH_BUFFER 4096
#define NAME_BUFFER 160
#define STORED_GROUP 128         // elements per group of FP8 values in the files; shards are multiples of it
#define PIECE ((int64_t)1 << 20) // elements read at a time; a multiple of STORED_GROUP
#define PIECE_GROUPS (PIECE / STORED_GROUP)

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t groups_of(int64_t elements) {
    return (elements + STORED_GROUP - 1) / STORED_GROUP;
}

// ---------------------------------------------------------------- a file

// Reads a range of a stored tensor in order. Verifies the checksum if the range is the complete tensor.
typedef struct {
    const SafeFile *file;
    const SafeTensor *tensor; // NULL: the file has no such tensor
    XXH3_state_t *hash;
    bool complete;
    uint64_t at, expected;
} Stream;

// A moment or master weights in the file. FP8 moments have an amax (a) and an exponent (k) per group.
typedef struct {
    Stream data, a, k;
    Format format; // FMT_NONE: the file has no such state
} Stored;

// Elements [begin, end) of a tensor, which are to be read; the file's first element is `first`.
typedef struct {
    int64_t first, begin, end;
} Range;

// The part of a tensor that is in this process's memory: its elements from `begin` on.
typedef struct {
    Tensor tensor;
    int64_t begin;
} Local;

// The file that is being read, and host memory for one piece.
typedef struct {
    const Manifest *manifest;
    const Arena *arena;
    Exec *exec;
    int rank, ranks; // of the process that wrote the file
    const char *name;
    Stored stored; // the current state
    real *values;
    void *bytes; // a piece in any format
    float *a;    // amax of each group of the piece
    uint8_t *k;  // exponent of each group of the piece
    uint16_t *half;
} Reader;

static bool stream_begin(Reader *r, Stream *s, int64_t at, int64_t count, size_t element_bytes, Error *err) {
    s->at = (uint64_t)at * element_bytes;
    s->complete = s->tensor->bytes == (uint64_t)count * element_bytes;
    XXH3_64bits_reset(s->hash);
    return !s->complete || manifest_tensor_hash(r->manifest, r->name, s->tensor->name, &s->expected, err);
}

static bool stream_read(Stream *s, void *to, int64_t count, size_t element_bytes, Error *err) {
    size_t bytes = (size_t)count * element_bytes;
    if (!safetensors_read(s->file, s->tensor, s->at, to, bytes, err)) return false;
    s->at += bytes;
    if (!s->complete) return true;
    XXH3_64bits_update(s->hash, to, bytes);
    if (s->at < s->tensor->bytes || XXH3_64bits_digest(s->hash) == s->expected) return true;
    return error_set(err, EXIT_DATA, "%s is damaged: the checksum of tensor '%s' does not match", s->file->path,
                     s->tensor->name);
}

static Format stored_format(Dtype dtype) {
    switch (dtype) {
    case DTYPE_F64: return sizeof(real) == sizeof(double) ? FMT_FP32 : FMT_NONE;
    case DTYPE_F32: return sizeof(real) == sizeof(float) ? FMT_FP32 : FMT_NONE;
    case DTYPE_BF16: return FMT_BF16;
    case DTYPE_F8_E4M3: return FMT_E4M3;
    case DTYPE_F8_E5M2: return FMT_E5M2;
    case DTYPE_U16: return FMT_U16;
    default: return FMT_NONE;
    }
}

static bool is_shaped(const SafeTensor *t, int rank, int64_t rows, int64_t cols) {
    return t->rank == rank && (rank == 2 ? t->shape[0] == rows && t->shape[1] == cols : t->shape[0] == cols);
}

static bool find_groups(Stream *s, const char *name, const char *suffix, Dtype dtype, int64_t groups, Error *err) {
    char full[NAME_BUFFER + 4];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    s->tensor = safetensors_find(s->file, full);
    if (!s->tensor) return error_set(err, EXIT_DATA, "%s has no tensor '%s'", s->file->path, full);
    if (s->tensor->dtype == dtype && is_shaped(s->tensor, 1, 1, groups)) return true;
    return error_set(err, EXIT_DATA, "%s: tensor '%s' does not hold one value per %d elements", s->file->path, full,
                     STORED_GROUP);
}

// Finds the tensors of one state of a parameter: `elements` of it, complete or as a flat shard. Checks their types and
// shapes and adds their number to *tensors. Only master weights may be missing.
static bool find_state(const Reader *r, Stored *s, const char *name, TensorId id, Role role, int64_t elements,
                       int *tensors, Error *err) {
    const SafeFile *file = s->data.file;
    const SafeTensor *t = s->data.tensor = safetensors_find(file, name);
    s->format = FMT_NONE;
    if (!t && role == MASTER) return true;
    if (!t) return error_set(err, EXIT_DATA, "%s has no tensor '%s'", file->path, name);
    s->format = stored_format(t->dtype);
    bool known =
        role == MASTER ? s->format == FMT_FP32 || s->format == FMT_U16 : s->format != FMT_NONE && s->format != FMT_U16;
    if (!known)
        return error_set(err, EXIT_DATA, "%s: tensor '%s' is %s, which is not supported for this state", file->path,
                         name, dtype_name(t->dtype));
    Tensor value = arena_tensor(r->arena, id, VALUE, 0);
    if (!(r->ranks == 1 ? is_shaped(t, tensor_rank(id), value.rows, value.cols) : is_shaped(t, 1, 1, elements))) {
        char there[SHAPE_TEXT];
        return error_set(err, EXIT_DATA, "%s: tensor '%s' has the shape %s, which is not this run's", file->path, name,
                         safetensors_shape_text(there, t->rank, t->shape));
    }
    *tensors += format_is_fp8(s->format) ? 3 : 1;
    if (!format_is_fp8(s->format)) return true;
    return find_groups(&s->a, name, ".a", DTYPE_F32, groups_of(elements), err) &&
           find_groups(&s->k, name, ".k", DTYPE_U8, groups_of(elements), err);
}

// ---------------------------------------------------------------- pieces

static char *device_at(Local to, int64_t element) {
    return (char *)to.tensor.data + (size_t)(element - to.begin) * format_bytes(to.tensor.format);
}
static float *amax_at(Local to, int64_t element) {
    return (float *)to.tensor.scale + (element - to.begin) / STORED_GROUP;
}
static uint8_t *exponents_at(Local to, int64_t element) {
    return to.tensor.exponent + (element - to.begin) / STORED_GROUP;
}

static bool streams_begin(Reader *r, Range range, Error *err) {
    Stored *s = &r->stored;
    int64_t at = range.begin - range.first, count = range.end - range.begin;
    if (!stream_begin(r, &s->data, at, count, format_bytes(s->format), err)) return false;
    return !format_is_fp8(s->format) ||
           (stream_begin(r, &s->a, at / STORED_GROUP, groups_of(count), sizeof(float), err) &&
            stream_begin(r, &s->k, at / STORED_GROUP, groups_of(count), 1, err));
}

static bool copy_stream(Reader *r, Stream *s, void *to, int64_t count, size_t element_bytes, Error *err) {
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        int64_t n = smaller(PIECE, count - begin);
        if (!stream_read(s, r->bytes, n, element_bytes, err)) return false;
        r->exec->ops->upload(r->exec, (char *)to + (size_t)begin * element_bytes, r->bytes, (size_t)n * element_bytes);
    }
    return true;
}

// Copies a state whose stored format is the run's.
static bool copy_state(Reader *r, Local to, Range range, Error *err) {
    Stored *s = &r->stored;
    int64_t count = range.end - range.begin;
    if (!copy_stream(r, &s->data, device_at(to, range.begin), count, format_bytes(s->format), err)) return false;
    return !format_is_fp8(s->format) ||
           (copy_stream(r, &s->a, amax_at(to, range.begin), groups_of(count), sizeof(float), err) &&
            copy_stream(r, &s->k, exponents_at(to, range.begin), groups_of(count), 1, err));
}

// Returns a descriptor of n FP8 values and their groups in the reader's piece, for moments_host.h.
static Tensor fp8_piece(const Reader *r, Format format, int64_t n) {
    Tensor t;
    memset(&t, 0, sizeof t);
    t.data = r->bytes;
    t.scale = r->a;
    t.exponent = r->k;
    t.rows = 1;
    t.cols = t.stride = n;
    t.format = format;
    t.granularity = SCALE_EXPAND;
    t.group = STORED_GROUP;
    return t;
}

// Reads the next n values of a moment into r->values.
static bool decode_piece(Reader *r, int64_t n, Error *err) {
    Stored *s = &r->stored;
    if (s->format == FMT_FP32) return stream_read(&s->data, r->values, n, sizeof(real), err);
    if (!stream_read(&s->data, r->bytes, n, format_bytes(s->format), err)) return false;
    if (s->format == FMT_BF16) {
        for (int64_t i = 0; i < n; i++) r->values[i] = (real)bf16_decode(((const uint16_t *)r->bytes)[i]);
        return true;
    }
    if (!stream_read(&s->a, r->a, groups_of(n), sizeof *r->a, err) || !stream_read(&s->k, r->k, groups_of(n), 1, err))
        return false;
    moments_load(fp8_piece(r, s->format, n), 0, n, r->values);
    return true;
}

// Encodes r->values in the run's format and uploads them to the n elements from `begin` on.
static void encode_piece(Reader *r, Local to, int64_t begin, int64_t n, const MomentStore *how) {
    const Ops *ops = r->exec->ops;
    const void *data = r->bytes;
    Format format = to.tensor.format;
    if (format == FMT_FP32) {
        data = r->values;
    } else if (format == FMT_BF16) {
        for (int64_t i = 0; i < n; i++) ((uint16_t *)r->bytes)[i] = bf16_encode((float)r->values[i]);
    } else {
        moments_store(fp8_piece(r, format, n), 0, n, r->values, how);
        ops->upload(r->exec, amax_at(to, begin), r->a, (size_t)groups_of(n) * sizeof *r->a);
        ops->upload(r->exec, exponents_at(to, begin), r->k, (size_t)groups_of(n));
    }
    ops->upload(r->exec, device_at(to, begin), data, (size_t)n * format_bytes(format));
}

// Reads a moment, converting it if necessary. An infinity or NaN stays one in every format; the next update reports it.
static bool read_moment(Reader *r, Local to, Range range, bool second, Error *err) {
    const MomentStore how = {r->arena->config.recipe.moments == MOMENTS_COAT, second};
    if (to.tensor.granularity == SCALE_EXPAND && to.tensor.group != STORED_GROUP)
        return error_set(err, EXIT_DATA, "%s: '%s' cannot be read in groups of %d", r->stored.data.file->path,
                         r->stored.data.tensor->name, to.tensor.group);
    if (!streams_begin(r, range, err)) return false;
    if (r->stored.format == to.tensor.format) return copy_state(r, to, range, err);
    for (int64_t at = range.begin; at < range.end; at += PIECE) {
        int64_t n = smaller(PIECE, range.end - at);
        if (!decode_piece(r, n, err)) return false;
        encode_piece(r, to, at, n, &how);
    }
    return true;
}

// Converts n master weights from element `at` on to the run's format. If the file has none, they become the BF16
// weights.
static bool convert_master_piece(Reader *r, Local to, Local value, int64_t at, int64_t n, Error *err) {
    Stored *s = &r->stored;
    const Ops *ops = r->exec->ops;
    uint16_t *low = (uint16_t *)r->bytes;
    if (s->format == FMT_FP32) { // to split16: the BF16 weights must be the upper halves
        if (!stream_read(&s->data, r->values, n, sizeof(real), err)) return false;
        for (int64_t i = 0; i < n; i++) {
            low[i] = (uint16_t)float_bits((float)r->values[i]);
            r->half[i] = master_bf16((float)r->values[i]);
        }
        ops->upload(r->exec, device_at(value, at), r->half, (size_t)n * sizeof *r->half);
        ops->upload(r->exec, device_at(to, at), low, (size_t)n * sizeof *low);
        return true;
    }
    ops->download(r->exec, r->half, device_at(value, at), (size_t)n * sizeof *r->half);
    memset(low, 0, (size_t)n * sizeof *low);
    if (s->format == FMT_U16 && !stream_read(&s->data, low, n, sizeof *low, err)) return false;
    for (int64_t i = 0; i < n; i++) r->values[i] = (real)master_join(r->half[i], low[i]);
    if (to.tensor.format == FMT_FP32)
        ops->upload(r->exec, device_at(to, at), r->values, (size_t)n * sizeof(real));
    else
        ops->upload(r->exec, device_at(to, at), low, (size_t)n * sizeof *low);
    return true;
}

static bool read_master(Reader *r, Local to, Local value, Range range, Error *err) {
    if (!to.tensor.data) return true;
    if (r->stored.format != FMT_NONE && !streams_begin(r, range, err)) return false;
    if (r->stored.format == to.tensor.format) return copy_state(r, to, range, err);
    for (int64_t at = range.begin; at < range.end; at += PIECE)
        if (!convert_master_piece(r, to, value, at, smaller(PIECE, range.end - at), err)) return false;
    return true;
}

// ---------------------------------------------------------------- all states

// Counts tensors in the files, and states whose stored format is not the run's.
typedef struct {
    int tensors, moments, masters;
} Found;

static Local local(const Arena *arena, TensorId id, Role role, int layer) {
    Local h;
    h.tensor = arena_held(arena, id, role, layer, &h.begin);
    return h;
}

// Finds the file's shard of one state of one parameter. With `read`, uploads the elements that this process needs.
static bool visit_state(Reader *r, TensorId id, Role role, int layer, bool read, Found *found, Error *err) {
    char parameter[HF_NAME_LENGTH], name[NAME_BUFFER];
    int64_t elements = tensor_elements(arena_tensor(r->arena, id, VALUE, layer));
    int64_t shard = tensor_share(elements, r->ranks), first = shard * r->rank, last = smaller(first + shard, elements);
    if (first >= last) return true;
    hf_whole_name(&r->arena->config.shape, id, layer, parameter);
    snprintf(name, sizeof name, "%s%s", parameter, role_suffix(role));
    if (!find_state(r, &r->stored, name, id, role, last - first, &found->tensors, err)) return false;
    Local to = local(r->arena, id, role, layer), m = local(r->arena, id, MOMENT_M, layer);
    Format format = to.tensor.data ? to.tensor.format : FMT_NONE;
    *(role == MASTER ? &found->masters : &found->moments) += r->rank == 0 && r->stored.format != format;
    // the first moment's range applies to every state of the parameter
    Range range = {first, m.begin > first ? m.begin : first, smaller(last, m.begin + tensor_elements(m.tensor))};
    if (!read || range.begin >= range.end) return true;
    if (role == MASTER) return read_master(r, to, local(r->arena, id, VALUE, layer), range, err);
    return read_moment(r, to, range, role == MOMENT_V, err);
}

static bool visit_file(Reader *r, const SafeFile *file, bool read, Found *found, Error *err) {
    static const Role roles[] = {MOMENT_M, MOMENT_V, MASTER};
    r->stored.data.file = r->stored.a.file = r->stored.k.file = file;
    int before = found->tensors;
    for (int id = 0; id < PARAMETER_COUNT; id++)
        for (int layer = 0; layer < r->arena->layout[id][VALUE].layers; layer++)
            for (int i = 0; i < 3; i++)
                if (!visit_state(r, (TensorId)id, roles[i], layer, read, found, err)) return false;
    int known = found->tensors - before;
    return file->count == known || error_set(err, EXIT_DATA, "%s has %d tensor%s, but this run's optimizer has %d",
                                             file->path, file->count, plural(file->count), known);
}

static bool visit_files(Reader *r, bool read, Found *found, Error *err) {
    bool good = true;
    for (r->rank = 0; good && r->rank < r->ranks; r->rank++) {
        char name[NAME_BUFFER], path[PATH_BUFFER];
        SafeFile file;
        checkpoint_shard_name(name, sizeof name, r->rank, r->ranks);
        r->name = name;
        if (!path_join(path, sizeof path, r->manifest->folder, name, err) || !safetensors_open(&file, path, err))
            return false;
        good = visit_file(r, &file, read, found, err);
        safetensors_close(&file);
    }
    return good;
}

static XXH3_state_t *new_hash(void) {
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) fatal(EXIT_DEVICE, "host memory: could not allocate a checksum's state");
    return hash;
}

bool states_read(const Manifest *manifest, int files, const Arena *arena, Exec *exec, Error *err) {
    Reader r;
    memset(&r, 0, sizeof r);
    r.manifest = manifest;
    r.arena = arena;
    r.exec = exec;
    r.ranks = files;
    r.stored.data.hash = new_hash();
    r.stored.a.hash = new_hash();
    r.stored.k.hash = new_hash();
    r.values = (real *)xmalloc(PIECE * sizeof *r.values);
    r.bytes = xmalloc(PIECE * sizeof(real));
    r.half = (uint16_t *)xmalloc(PIECE * sizeof *r.half);
    r.a = (float *)xmalloc(PIECE_GROUPS * sizeof *r.a);
    r.k = (uint8_t *)xmalloc(PIECE_GROUPS);
    Found found = {0, 0, 0}, ignored = {0, 0, 0};
    // the first visit only checks, so that a refused file leaves device memory unchanged
    bool good = visit_files(&r, false, &found, err);
    if (good && found.moments + found.masters > 0 && exec->rank == 0)
        print_remark(
            "resume: ", "the optimizer's states are converted to this run's formats: %d moment%s, %d master weight%s",
            found.moments, plural(found.moments), found.masters, plural(found.masters));
    good = good && visit_files(&r, true, &ignored, err);
    free(r.k);
    free(r.a);
    free(r.half);
    free(r.bytes);
    free(r.values);
    XXH3_freeState(r.stored.k.hash);
    XXH3_freeState(r.stored.a.hash);
    XXH3_freeState(r.stored.data.hash);
    return good;
}
