#include "states_convert.h"

#include <string.h>
#include <xxhash.h>

#include "cpu/cpu_moments.h"
#include "files.h"
#include "moments.h"

#define PATH_BUFFER 4096
#define NAME_BUFFER 160
#define STORED_GROUP 128         // elements of a group of codes in the files
#define PIECE ((int64_t)1 << 20) // elements converted at a time: whole groups
#define PIECE_GROUPS (PIECE / STORED_GROUP)

// ---------------------------------------------------------------- the file

// A stored tensor, read from its beginning to its end, with its checksum on the way.
typedef struct {
    const SafeFile *file;
    const SafeTensor *tensor; // NULL: there is none
    XXH3_state_t *hash;
    uint64_t at, expected;
} Stream;

static bool stream_begin(Stream *s, const Manifest *manifest, const char *name, Error *err) {
    s->at = 0;
    XXH3_64bits_reset(s->hash);
    return manifest_tensor_hash(manifest, name, s->tensor->name, &s->expected, err);
}

static bool stream_read(Stream *s, void *to, int64_t count, size_t element_bytes, Error *err) {
    size_t bytes = (size_t)count * element_bytes;
    if (!safetensors_read(s->file, s->tensor, s->at, to, bytes, err)) return false;
    XXH3_64bits_update(s->hash, to, bytes);
    s->at += bytes;
    if (s->at < s->tensor->bytes || XXH3_64bits_digest(s->hash) == s->expected) return true;
    return error_set(err, EXIT_DATA, "%s is damaged: the checksum of tensor '%s' does not fit", s->file->path,
                     s->tensor->name);
}

// A moment or a master as the file has it; codes come with the maxima and exponents of their groups.
typedef struct {
    Stream data, a, k;
    Format format; // FMT_NONE: the file has none
} Stored;

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

// Finds one state of a parameter and checks what there is; *tensors counts what was found.
static bool find_state(Stored *s, const char *name, int rank, Tensor value, Role role, int *tensors, Error *err) {
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
    if (!is_shaped(t, rank, value.rows, value.cols))
        return error_set(err, EXIT_DATA, "%s: tensor '%s' has another shape than this run's", file->path, name);
    *tensors += format_is_fp8(s->format) ? 3 : 1;
    if (!format_is_fp8(s->format)) return true;
    int64_t groups = (tensor_elements(value) + STORED_GROUP - 1) / STORED_GROUP;
    return find_groups(&s->a, name, ".a", DTYPE_F32, groups, err) &&
           find_groups(&s->k, name, ".k", DTYPE_U8, groups, err);
}

// ---------------------------------------------------------------- pieces

// What a conversion works with: the file, and host memory for a piece.
typedef struct {
    const Manifest *manifest;
    const char *name; // of the file in its folder
    Exec *exec;
    Stored stored; // its streams are used for one state after another
    real *values;
    void *bytes; // a piece in any format
    float *a;    // of the piece's groups
    uint8_t *k;
    uint16_t *half;
} Conversion;

static char *device_at(Tensor t, int64_t begin) {
    return (char *)t.data + (size_t)begin * format_bytes(t.format);
}

static bool copy_stream(Conversion *c, Stream *s, void *to, int64_t count, size_t element_bytes, Error *err) {
    if (!stream_begin(s, c->manifest, c->name, err)) return false;
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        int64_t n = smaller(PIECE, count - begin);
        if (!stream_read(s, c->bytes, n, element_bytes, err)) return false;
        c->exec->ops->upload(c->exec, (char *)to + (size_t)begin * element_bytes, c->bytes, (size_t)n * element_bytes);
    }
    return true;
}

// A moment's codes as the functions of the CPU backend take them: the groups of one piece, in host memory.
static Tensor piece_of_codes(const Conversion *c, Format format, int64_t n) {
    Tensor t;
    memset(&t, 0, sizeof t);
    t.data = c->bytes;
    t.scale = c->a;
    t.exponent = c->k;
    t.rows = 1;
    t.cols = t.stride = n;
    t.format = format;
    t.granularity = SCALE_EXPAND;
    t.group = STORED_GROUP;
    return t;
}

// The next n values of a moment.
static bool decode_piece(Conversion *c, int64_t n, Error *err) {
    Stored *s = &c->stored;
    int64_t groups = (n + STORED_GROUP - 1) / STORED_GROUP;
    if (s->format == FMT_FP32) return stream_read(&s->data, c->values, n, sizeof(real), err);
    if (!stream_read(&s->data, c->bytes, n, format_bytes(s->format), err)) return false;
    if (s->format == FMT_BF16) {
        for (int64_t i = 0; i < n; i++) c->values[i] = (real)bf16_decode(((const uint16_t *)c->bytes)[i]);
        return true;
    }
    if (!stream_read(&s->a, c->a, groups, sizeof *c->a, err) || !stream_read(&s->k, c->k, groups, 1, err)) return false;
    moments_load(piece_of_codes(c, s->format, n), 0, n, c->values);
    return true;
}

static void encode_piece(Conversion *c, Tensor to, int64_t begin, int64_t n, const MomentStore *how) {
    const Ops *ops = c->exec->ops;
    const void *data = c->bytes;
    if (to.format == FMT_FP32) {
        data = c->values;
    } else if (to.format == FMT_BF16) {
        for (int64_t i = 0; i < n; i++) ((uint16_t *)c->bytes)[i] = bf16_encode((float)c->values[i]);
    } else {
        int64_t first = begin / STORED_GROUP, groups = (n + STORED_GROUP - 1) / STORED_GROUP;
        moments_store(piece_of_codes(c, to.format, n), 0, n, c->values, how, 0);
        ops->upload(c->exec, (float *)to.scale + first, c->a, (size_t)groups * sizeof *c->a);
        ops->upload(c->exec, to.exponent + first, c->k, (size_t)groups);
    }
    ops->upload(c->exec, device_at(to, begin), data, (size_t)n * format_bytes(to.format));
}

// Values that are not finite stay so in every format, and the next update reports them.
static bool read_moment(Conversion *c, Tensor to, bool second, bool expand, Error *err) {
    Stored *s = &c->stored;
    int64_t elements = tensor_elements(to), groups = (elements + STORED_GROUP - 1) / STORED_GROUP;
    bool codes = format_is_fp8(s->format);
    if (to.granularity == SCALE_EXPAND && to.group != STORED_GROUP)
        return error_set(err, EXIT_DATA, "%s: '%s' cannot be read in groups of %d", s->data.file->path,
                         s->data.tensor->name, to.group);
    if (s->format == to.format)
        return copy_stream(c, &s->data, to.data, elements, format_bytes(to.format), err) &&
               (!codes || (copy_stream(c, &s->a, to.scale, groups, sizeof(float), err) &&
                           copy_stream(c, &s->k, to.exponent, groups, 1, err)));
    const MomentStore how = {expand, second, false, 0, 0};
    if (!stream_begin(&s->data, c->manifest, c->name, err)) return false;
    if (codes && !(stream_begin(&s->a, c->manifest, c->name, err) && stream_begin(&s->k, c->manifest, c->name, err)))
        return false;
    for (int64_t begin = 0; begin < elements; begin += PIECE) {
        int64_t n = smaller(PIECE, elements - begin);
        if (!decode_piece(c, n, err)) return false;
        encode_piece(c, to, begin, n, &how);
    }
    return true;
}

// A piece of masters from the file, or from the BF16 values where it has none, to the run's.
static bool convert_master_piece(Conversion *c, Tensor to, Tensor value, int64_t begin, int64_t n, Error *err) {
    Stored *s = &c->stored;
    const Ops *ops = c->exec->ops;
    uint16_t *low = (uint16_t *)c->bytes;
    if (s->format == FMT_FP32) { // to split16: the halves must belong together
        if (!stream_read(&s->data, c->values, n, sizeof(real), err)) return false;
        for (int64_t i = 0; i < n; i++) {
            low[i] = (uint16_t)float_bits((float)c->values[i]);
            c->half[i] = master_bf16((float)c->values[i]);
        }
        ops->upload(c->exec, device_at(value, begin), c->half, (size_t)n * sizeof *c->half);
        ops->upload(c->exec, device_at(to, begin), low, (size_t)n * sizeof *low);
        return true;
    }
    ops->download(c->exec, c->half, device_at(value, begin), (size_t)n * sizeof *c->half);
    memset(low, 0, (size_t)n * sizeof *low);
    if (s->format == FMT_U16 && !stream_read(&s->data, low, n, sizeof *low, err)) return false;
    for (int64_t i = 0; i < n; i++) c->values[i] = (real)master_join(c->half[i], low[i]);
    if (to.format == FMT_FP32)
        ops->upload(c->exec, device_at(to, begin), c->values, (size_t)n * sizeof(real));
    else
        ops->upload(c->exec, device_at(to, begin), low, (size_t)n * sizeof *low);
    return true;
}

static bool read_master(Conversion *c, Tensor to, Tensor value, Error *err) {
    Stored *s = &c->stored;
    int64_t elements = tensor_elements(to);
    if (!to.data) return true;
    if (s->format == to.format) return copy_stream(c, &s->data, to.data, elements, format_bytes(to.format), err);
    if (s->format != FMT_NONE && !stream_begin(&s->data, c->manifest, c->name, err)) return false;
    for (int64_t begin = 0; begin < elements; begin += PIECE)
        if (!convert_master_piece(c, to, value, begin, smaller(PIECE, elements - begin), err)) return false;
    return true;
}

// ---------------------------------------------------------------- all states

typedef struct {
    Parameter *parameters;
    TensorId *ids;
    int *layers, count;
    bool expand;
} States;

// Visits every state: finds it in the file and, with `read`, brings it to the device. The first visit finds what is
// wrong before anything has been changed, and counts the tensors and what is to be converted.
static bool visit_states(Conversion *c, const States *all, bool read, int *tensors, int converted[2], Error *err) {
    static const Role roles[] = {MOMENT_M, MOMENT_V, MASTER};
    for (int i = 0; i < all->count; i++) {
        const Parameter *p = &all->parameters[i];
        const TensorRow *row = tensor_row(all->ids[i]);
        const Tensor to[] = {p->m, p->v, p->master};
        for (int r = 0; r < 3; r++) {
            char parameter[NAME_BUFFER - 16], name[NAME_BUFFER];
            snprintf(parameter, sizeof parameter, row->hf_name, all->layers[i]);
            snprintf(name, sizeof name, "%s%s", parameter, role_suffix(roles[r]));
            if (!find_state(&c->stored, name, row->decay ? 2 : 1, p->weight.value, roles[r], tensors, err))
                return false;
            converted[r == 2] += c->stored.format != (to[r].data ? to[r].format : FMT_NONE);
            if (!read) continue;
            bool good = roles[r] == MASTER ? read_master(c, to[r], p->weight.value, err)
                                           : read_moment(c, to[r], roles[r] == MOMENT_V, all->expand, err);
            if (!good) return false;
        }
    }
    return true;
}

static XXH3_state_t *new_hash(void) {
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) fatal(EXIT_DEVICE, "host memory: could not allocate a checksum's state");
    return hash;
}

static bool convert_all(Conversion *c, const States *all, Error *err) {
    const SafeFile *file = c->stored.data.file;
    int tensors = 0, ignored = 0, converted[2] = {0, 0}, again[2] = {0, 0};
    if (!visit_states(c, all, false, &tensors, converted, err)) return false;
    if (tensors != file->count)
        return error_set(err, EXIT_DATA, "%s has %d tensors, %d of which are no states of this run's model", file->path,
                         file->count, file->count - tensors);
    if (c->exec->rank == 0)
        fprintf(stderr, "resume: %s is converted to this run's formats: %d moments, %d master weights\n", file->path,
                converted[0], converted[1]);
    return visit_states(c, all, true, &ignored, again, err);
}

static bool states_convert(const SafeFile *file, const Manifest *manifest, const char *name, const Arena *arena,
                           Exec *exec, Error *err) {
    Conversion c;
    States all;
    if (arena->ranks > 1 && arena->config.zero > 0)
        return error_set(err, EXIT_DATA,
                         "%s: its states are stored in other formats than this run's, and processes that share them do "
                         "not convert them; resume once with one process, or with the formats they have",
                         file->path);
    size_t capacity = (size_t)arena_parameter_count(arena);
    memset(&c, 0, sizeof c);
    c.manifest = manifest;
    c.name = name;
    c.exec = exec;
    c.stored.data.file = c.stored.a.file = c.stored.k.file = file;
    c.stored.data.hash = new_hash();
    c.stored.a.hash = new_hash();
    c.stored.k.hash = new_hash();
    c.values = (real *)xmalloc(PIECE * sizeof *c.values);
    c.bytes = xmalloc(PIECE * sizeof(real));
    c.half = (uint16_t *)xmalloc(PIECE * sizeof *c.half);
    c.a = (float *)xmalloc(PIECE_GROUPS * sizeof *c.a);
    c.k = (uint8_t *)xmalloc(PIECE_GROUPS);
    all.parameters = (Parameter *)xcalloc(capacity, sizeof *all.parameters);
    all.ids = (TensorId *)xcalloc(capacity, sizeof *all.ids);
    all.layers = (int *)xcalloc(capacity, sizeof *all.layers);
    all.count = arena_parameters(arena, all.parameters, all.ids, all.layers);
    all.expand = arena->config.recipe.moments == MOMENTS_COAT;
    bool good = convert_all(&c, &all, err);
    free(all.layers);
    free(all.ids);
    free(all.parameters);
    free(c.k);
    free(c.a);
    free(c.half);
    free(c.bytes);
    free(c.values);
    XXH3_freeState(c.stored.k.hash);
    XXH3_freeState(c.stored.a.hash);
    XXH3_freeState(c.stored.data.hash);
    return good;
}

// Whether the file's states are stored as the run's are.
static bool same_formats(const SafeFile *file, const CheckpointTensor *list, int count) {
    bool same = file->count == count;
    for (int i = 0; same && i < count; i++) {
        const SafeTensor *stored = safetensors_find(file, list[i].name);
        same = stored && stored->dtype == list[i].dtype;
    }
    return same;
}

bool states_read(const Manifest *manifest, const char *name, const Arena *arena, Exec *exec, Error *err) {
    char path[PATH_BUFFER];
    SafeFile file;
    CheckpointTensor *list;
    if (!path_join(path, sizeof path, manifest->folder, name, err) || !safetensors_open(&file, path, err)) return false;
    int count = checkpoint_optimizer_tensors(arena, &list);
    bool good = same_formats(&file, list, count) ? checkpoint_read_tensors(manifest, name, list, count, exec, err)
                                                 : states_convert(&file, manifest, name, arena, exec, err);
    free(list);
    safetensors_close(&file);
    return good;
}
