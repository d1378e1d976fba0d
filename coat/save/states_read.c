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
#define STORED_GROUP 128         // elements of a group of codes in the files, of which shares are whole numbers
#define PIECE ((int64_t)1 << 20) // elements read at a time: whole groups
#define PIECE_GROUPS (PIECE / STORED_GROUP)

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t groups_of(int64_t elements) {
    return (elements + STORED_GROUP - 1) / STORED_GROUP;
}

// ---------------------------------------------------------------- a file

// A stored tensor, or a range of it, read in order; a whole one with its checksum on the way.
typedef struct {
    const SafeFile *file;
    const SafeTensor *tensor; // NULL: there is none
    XXH3_state_t *hash;
    bool whole;
    uint64_t at, expected;
} Stream;

// A moment or a master as the file has it; codes come with the maxima and exponents of their groups.
typedef struct {
    Stream data, a, k;
    Format format; // FMT_NONE: the file has none
} Stored;

// Elements of a tensor: those from `first` on are in the file, [begin, end) are read.
typedef struct {
    int64_t first, begin, end;
} Range;

// What this process's memory holds of a tensor: elements from `begin` on.
typedef struct {
    Tensor tensor;
    int64_t begin;
} Held;

// What reading works with: one of the files, and host memory for a piece.
typedef struct {
    const Manifest *manifest;
    const Arena *arena;
    Exec *exec;
    int rank, ranks; // of the process that wrote the file
    const char *name;
    Stored stored; // its streams are used for one state after another
    real *values;
    void *bytes; // a piece in any format
    float *a;    // of the piece's groups
    uint8_t *k;
    uint16_t *half;
} Reader;

static bool stream_begin(Reader *r, Stream *s, int64_t at, int64_t count, size_t element_bytes, Error *err) {
    s->at = (uint64_t)at * element_bytes;
    s->whole = s->tensor->bytes == (uint64_t)count * element_bytes;
    XXH3_64bits_reset(s->hash);
    return !s->whole || manifest_tensor_hash(r->manifest, r->name, s->tensor->name, &s->expected, err);
}

static bool stream_read(Stream *s, void *to, int64_t count, size_t element_bytes, Error *err) {
    size_t bytes = (size_t)count * element_bytes;
    if (!safetensors_read(s->file, s->tensor, s->at, to, bytes, err)) return false;
    s->at += bytes;
    if (!s->whole) return true;
    XXH3_64bits_update(s->hash, to, bytes);
    if (s->at < s->tensor->bytes || XXH3_64bits_digest(s->hash) == s->expected) return true;
    return error_set(err, EXIT_DATA, "%s is damaged: the checksum of tensor '%s' does not fit", s->file->path,
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

// Finds `elements` of one state of a parameter, all of them or a flat share, and checks what there is; *tensors counts
// what was found.
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
        return error_set(err, EXIT_DATA, "%s: tensor '%s' is %s, which no state is stored in", file->path, name,
                         dtype_name(t->dtype));
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

static char *device_at(Held to, int64_t element) {
    return (char *)to.tensor.data + (size_t)(element - to.begin) * format_bytes(to.tensor.format);
}
static float *maxima_at(Held to, int64_t element) {
    return (float *)to.tensor.scale + (element - to.begin) / STORED_GROUP;
}
static uint8_t *exponents_at(Held to, int64_t element) {
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

// A state in the format that the run keeps it in.
static bool copy_state(Reader *r, Held to, Range range, Error *err) {
    Stored *s = &r->stored;
    int64_t count = range.end - range.begin;
    if (!copy_stream(r, &s->data, device_at(to, range.begin), count, format_bytes(s->format), err)) return false;
    return !format_is_fp8(s->format) ||
           (copy_stream(r, &s->a, maxima_at(to, range.begin), groups_of(count), sizeof(float), err) &&
            copy_stream(r, &s->k, exponents_at(to, range.begin), groups_of(count), 1, err));
}

// A moment's codes as moments_host.h takes them: the groups of one piece, in host memory.
static Tensor piece_of_codes(const Reader *r, Format format, int64_t n) {
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

// The next n values of a moment.
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
    moments_load(piece_of_codes(r, s->format, n), 0, n, r->values);
    return true;
}

static void encode_piece(Reader *r, Held to, int64_t begin, int64_t n, const MomentStore *how) {
    const Ops *ops = r->exec->ops;
    const void *data = r->bytes;
    Format format = to.tensor.format;
    if (format == FMT_FP32) {
        data = r->values;
    } else if (format == FMT_BF16) {
        for (int64_t i = 0; i < n; i++) ((uint16_t *)r->bytes)[i] = bf16_encode((float)r->values[i]);
    } else {
        moments_store(piece_of_codes(r, format, n), 0, n, r->values, how);
        ops->upload(r->exec, maxima_at(to, begin), r->a, (size_t)groups_of(n) * sizeof *r->a);
        ops->upload(r->exec, exponents_at(to, begin), r->k, (size_t)groups_of(n));
    }
    ops->upload(r->exec, device_at(to, begin), data, (size_t)n * format_bytes(format));
}

// Values that are not finite stay so in every format, and the next update reports them.
static bool read_moment(Reader *r, Held to, Range range, bool second, Error *err) {
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

// A piece of masters from the file, or from the BF16 values where it has none, to the run's.
static bool convert_master_piece(Reader *r, Held to, Held value, int64_t at, int64_t n, Error *err) {
    Stored *s = &r->stored;
    const Ops *ops = r->exec->ops;
    uint16_t *low = (uint16_t *)r->bytes;
    if (s->format == FMT_FP32) { // to split16: the halves must belong together
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

static bool read_master(Reader *r, Held to, Held value, Range range, Error *err) {
    if (!to.tensor.data) return true;
    if (r->stored.format != FMT_NONE && !streams_begin(r, range, err)) return false;
    if (r->stored.format == to.tensor.format) return copy_state(r, to, range, err);
    for (int64_t at = range.begin; at < range.end; at += PIECE)
        if (!convert_master_piece(r, to, value, at, smaller(PIECE, range.end - at), err)) return false;
    return true;
}

// ---------------------------------------------------------------- all states

// What has been found: tensors of the file, and states that the run keeps in another format.
typedef struct {
    int tensors, moments, masters;
} Found;

static Held held(const Arena *arena, TensorId id, Role role, int layer) {
    Held h;
    h.tensor = arena_held(arena, id, role, layer, &h.begin);
    return h;
}

// One state of one parameter: finds what the file has of it and, with `read`, brings what of that is this process's to
// the device.
static bool visit_state(Reader *r, TensorId id, Role role, int layer, bool read, Found *found, Error *err) {
    char parameter[HF_NAME_LENGTH], name[NAME_BUFFER];
    int64_t elements = tensor_elements(arena_tensor(r->arena, id, VALUE, layer));
    int64_t share = tensor_share(elements, r->ranks), first = share * r->rank, last = smaller(first + share, elements);
    if (first >= last) return true;
    hf_whole_name(&r->arena->config.shape, id, layer, parameter);
    snprintf(name, sizeof name, "%s%s", parameter, role_suffix(role));
    if (!find_state(r, &r->stored, name, id, role, last - first, &found->tensors, err)) return false;
    Held to = held(r->arena, id, role, layer), m = held(r->arena, id, MOMENT_M, layer);
    Format format = to.tensor.data ? to.tensor.format : FMT_NONE;
    *(role == MASTER ? &found->masters : &found->moments) += r->rank == 0 && r->stored.format != format;
    // all states of a parameter are shared alike
    Range range = {first, m.begin > first ? m.begin : first, smaller(last, m.begin + tensor_elements(m.tensor))};
    if (!read || range.begin >= range.end) return true;
    if (role == MASTER) return read_master(r, to, held(r->arena, id, VALUE, layer), range, err);
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
    if (file->count == known) return true;
    return error_set(err, EXIT_DATA, "%s has %d tensor%s, %d of which %s no state%s of this run's model", file->path,
                     file->count, plural(file->count), file->count - known, file->count - known == 1 ? "is" : "are",
                     plural(file->count - known));
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
    Found found = {0, 0, 0}, again = {0, 0, 0};
    // the first visit finds what is wrong before anything has been changed
    bool good = visit_files(&r, false, &found, err);
    if (good && found.moments + found.masters > 0 && exec->rank == 0)
        print_remark(
            "resume: ", "the optimizer's states are converted to this run's formats: %d moment%s, %d master weight%s",
            found.moments, plural(found.moments), found.masters, plural(found.masters));
    good = good && visit_files(&r, true, &again, err);
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
