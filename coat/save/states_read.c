#include "states_read.h"

#include <string.h>
#include <xxhash.h>

#include "checkpoint_shards.h"
#include "config/vision.h"
#include "hf_names.h"
#include "io/files.h"
#include "log/terminal.h"
#include "model/weights.h"
#include "numerics/moments.h"
#include "numerics/moments_host.h"

#define NAME_BUFFER 160
#define PIECE ((int64_t)1 << 20) // number of elements read at a time; a multiple of MOMENT_GROUP

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// ---------------------------------------------------------------- reading optimizer states from a file

// A stored tensor that is read in order. complete: true if all of the tensor is read, so that its checksum is verified.
// at: byte offset of the next read. expected: the tensor's checksum in the manifest, set if `complete`.
typedef struct {
    const SafeTensor *tensor;
    XXH3_state_t *hash;
    bool complete;
    uint64_t at, expected;
} Stream;

// Tensors that store one optimizer state: its values and, in FP8 and INT8, an amax (".a") and an exponent (".k") per
// group.
enum { VALUES, AMAX, EXPONENT, PARTS };
static const char *const part_suffix[PARTS] = {"", ".a", ".k"};

static int format_parts(Format format) {
    return format == FMT_NONE ? 0 : format_has_groups(format) ? PARTS : 1;
}

// Elements [begin, end) of a parameter that must be read. The file stores the parameter from element `first` on.
typedef struct {
    int64_t first, begin, end;
} Range;

// This process's shard of a tensor. The shard starts at element `begin` of the tensor.
typedef struct {
    Tensor tensor;
    int64_t begin;
} Local;

// The open file, the optimizer state that is being read from it, and host memory for one piece of this state.
typedef struct {
    const Manifest *manifest;
    const Arena *whole, *arena; // whole: language model's arena; arena: the arena being read, whole or whole->vision
    Exec *exec;
    int rank, ranks; // rank of the process that wrote the file, and number of processes that wrote the checkpoint
    int stored;      // parts of the model (PART_VISION, ...) whose moments the files contain
    const char *name;
    const SafeFile *file;
    Stream part[PARTS];
    Format format;      // format of the current state; FMT_NONE: the file does not contain this state
    void *piece[PARTS]; // buffers for one piece, first in the file's format, then in the run's
    real *values;       // buffer for the decoded values of one piece
    uint16_t *half;     // buffer for the BF16 weights of one piece
} Reader;

// Returns the number of bytes that the values, amaxes or exponents (`part`) of n elements occupy.
static size_t part_bytes(Format format, int part, int64_t n) {
    return part == VALUES ? (size_t)n * format_bytes(format)
                          : (size_t)((n + MOMENT_GROUP - 1) / MOMENT_GROUP) * (part == AMAX ? sizeof(float) : 1);
}

// Prepares to read `range` of the current state. For each part (values, amaxes, exponents), sets the offset and, if the
// entire part will be read, the expected checksum.
static bool streams_begin(Reader *r, Range range, Error *err) {
    for (int i = 0; i < format_parts(r->format); i++) {
        Stream *s = &r->part[i];
        s->at = part_bytes(r->format, i, range.begin - range.first);
        s->complete = s->tensor->bytes == part_bytes(r->format, i, range.end - range.begin);
        XXH3_64bits_reset(s->hash);
        if (s->complete && !manifest_tensor_hash(r->manifest, r->name, s->tensor->name, &s->expected, err))
            return false;
    }
    return true;
}

// Reads the values, amaxes and exponents of the next n elements of the current state from the file into r->piece.
static bool load_piece(Reader *r, int64_t n, Error *err) {
    for (int i = 0; i < format_parts(r->format); i++) {
        Stream *s = &r->part[i];
        const size_t bytes = part_bytes(r->format, i, n);
        if (!safetensors_read(r->file, s->tensor, s->at, r->piece[i], bytes, err)) return false;
        s->at += bytes;
        if (!s->complete) continue;
        XXH3_64bits_update(s->hash, r->piece[i], bytes);
        if (s->at == s->tensor->bytes && XXH3_64bits_digest(s->hash) != s->expected)
            return error_set(err, EXIT_DATA, "%s is damaged: the checksum of tensor '%s' does not match", r->file->path,
                             s->tensor->name);
    }
    return true;
}

static Format stored_format(Dtype dtype) {
    switch (dtype) {
    case DTYPE_F64: return sizeof(real) == sizeof(double) ? FMT_FP32 : FMT_NONE;
    case DTYPE_F32: return sizeof(real) == sizeof(float) ? FMT_FP32 : FMT_NONE;
    case DTYPE_BF16: return FMT_BF16;
    case DTYPE_F8_E4M3: return FMT_E4M3;
    case DTYPE_F8_E5M2: return FMT_E5M2;
    case DTYPE_U16: return FMT_U16;
    case DTYPE_I8: return FMT_I8;
    default: return FMT_NONE;
    }
}

static bool is_shaped(const SafeTensor *t, int rank, int64_t rows, int64_t cols) {
    return t->rank == rank && (rank == 2 ? t->shape[0] == rows && t->shape[1] == cols : t->shape[0] == cols);
}

// True if --freeze named the parameter's part of the model (vision tower, ...) when the files were written, so that the
// files lack its states. False if the files contain the states of no part, because such files are damaged.
static bool was_frozen(const Reader *r, TensorId id) {
    return r->stored && !(r->stored & tensor_part(id, &r->arena->config->shape));
}

// Finds the tensors that store one state of a parameter. They contain `elements` elements: the complete parameter, or a
// flattened shard. Checks types and shapes, sets r->format, and adds the number of tensors to *tensors. If the state is
// absent, sets r->format to FMT_NONE. Then fails unless the state is master weights, this run does not need the state,
// or the parameter was frozen when the file was written.
static bool find_state(Reader *r, const char *name, TensorId id, Role role, int64_t elements, int *tensors,
                       Error *err) {
    const SafeTensor *t = safetensors_find(r->file, name);
    r->format = FMT_NONE;
    if (!t && (role == MASTER || !arena_tensor(r->arena, id, role, 0).data || was_frozen(r, id))) return true;
    if (!t) return error_set(err, EXIT_DATA, "%s has no tensor '%s'", r->file->path, name);
    const Format format = stored_format(t->dtype);
    if (role == MASTER ? format != FMT_FP32 && format != FMT_U16 : format == FMT_NONE || format == FMT_U16)
        return error_set(err, EXIT_DATA, "%s: tensor '%s' is %s, which is not supported for this state", r->file->path,
                         name, dtype_name(t->dtype));
    Tensor value = arena_tensor(r->arena, id, VALUE, 0);
    if (!(r->ranks == 1 ? is_shaped(t, tensor_rank(id), value.rows, value.cols) : is_shaped(t, 1, 1, elements))) {
        char there[SHAPE_TEXT], here[SHAPE_TEXT];
        const int rank = r->ranks == 1 ? tensor_rank(id) : 1;
        const int64_t matrix[] = {value.rows, value.cols};
        const int64_t *const shape = r->ranks > 1 ? &elements : matrix + (2 - rank);
        return error_set(err, EXIT_DATA,
                         "%s: tensor '%s' has the shape %s, but this run's parameter needs %s; remove flags that "
                         "change the model, or restore the checkpoint from a copy",
                         r->file->path, name, safetensors_shape_text(there, t->rank, t->shape),
                         safetensors_shape_text(here, rank, shape));
    }
    r->format = format;
    r->part[VALUES].tensor = t;
    *tensors += format_parts(format);
    for (int i = AMAX; i < format_parts(format); i++) {
        const Dtype dtype = i == AMAX ? DTYPE_F32 : DTYPE_U8;
        char full[NAME_BUFFER + 4];
        snprintf(full, sizeof full, "%s%s", name, part_suffix[i]);
        r->part[i].tensor = t = safetensors_find(r->file, full);
        if (!t) return error_set(err, EXIT_DATA, "%s has no tensor '%s'", r->file->path, full);
        if (t->dtype != dtype || !is_shaped(t, 1, 1, (elements + MOMENT_GROUP - 1) / MOMENT_GROUP))
            return error_set(err, EXIT_DATA, "%s: tensor '%s' must have one value per %d elements", r->file->path, full,
                             MOMENT_GROUP);
    }
    return true;
}

// ---------------------------------------------------------------- converting pieces of a state and uploading them

// Returns the device address of an element's value, or of the amax or exponent of the element's group.
static char *device_at(Local to, int part, int64_t element) {
    char *const base = (char *)(part == VALUES ? to.tensor.data : part == AMAX ? to.tensor.scale : to.tensor.exponent);
    return base + part_bytes(to.tensor.format, part, element - to.begin);
}

// Uploads n elements in the run's format from r->piece to the device, to element `at` and the following ones.
static void store_piece(Reader *r, Local to, int64_t at, int64_t n) {
    for (int i = 0; i < format_parts(to.tensor.format); i++)
        r->exec->ops->upload(r->exec, device_at(to, i, at), r->piece[i], part_bytes(to.tensor.format, i, n));
}

// Returns a tensor descriptor of the first n FP8 or INT8 values in r->piece, for the functions in moments_host.h.
static Tensor grouped_piece(const Reader *r, Format format, int64_t n) {
    Tensor t;
    memset(&t, 0, sizeof t);
    t.data = r->piece[VALUES];
    t.scale = r->piece[AMAX];
    t.exponent = (uint8_t *)r->piece[EXPONENT];
    t.rows = 1;
    t.cols = t.stride = n;
    t.format = format;
    t.granularity = SCALE_EXPAND;
    t.group = MOMENT_GROUP;
    return t;
}

// Converts the n moments in r->piece to `format`. Preserves infinities and NaNs, so that the next update detects them.
static void convert_moments(Reader *r, Format format, int64_t n, bool second) {
    const MomentStore how = {r->arena->config->recipe.moments == MOMENTS_COAT, second};
    uint16_t *bf16 = (uint16_t *)r->piece[VALUES];
    if (r->format == FMT_FP32)
        memcpy(r->values, r->piece[VALUES], (size_t)n * sizeof(real));
    else if (r->format == FMT_BF16)
        for (int64_t i = 0; i < n; i++) r->values[i] = (real)bf16_decode(bf16[i]);
    else
        moments_load(grouped_piece(r, r->format, n), 0, n, r->values);
    if (format == FMT_FP32)
        memcpy(r->piece[VALUES], r->values, (size_t)n * sizeof(real));
    else if (format == FMT_BF16)
        for (int64_t i = 0; i < n; i++) bf16[i] = bf16_encode((float)r->values[i]);
    else
        moments_store(grouped_piece(r, format, n), 0, n, r->values, &how);
}

// Converts the n master weights in r->piece to `format`. weights: BF16 weights of these elements on the device. If the
// file has no master weights, the BF16 weights become the masters. If FP32 becomes split16, the upper halves overwrite
// the BF16 weights.
static void convert_masters(Reader *r, Format format, char *weights, int64_t n) {
    const Ops *ops = r->exec->ops;
    uint16_t *low = (uint16_t *)r->piece[VALUES];
    if (r->format == FMT_FP32) {
        memcpy(r->values, r->piece[VALUES], (size_t)n * sizeof(real));
        for (int64_t i = 0; i < n; i++) {
            low[i] = (uint16_t)float_bits((float)r->values[i]);
            r->half[i] = master_bf16((float)r->values[i]);
        }
        ops->upload(r->exec, weights, r->half, (size_t)n * sizeof *r->half);
        return;
    }
    if (r->format == FMT_NONE) memset(low, 0, (size_t)n * sizeof *low);
    if (format != FMT_FP32) return;
    ops->download(r->exec, r->half, weights, (size_t)n * sizeof *r->half);
    for (int64_t i = 0; i < n; i++) r->values[i] = (real)master_join(r->half[i], low[i]);
    memcpy(r->piece[VALUES], r->values, (size_t)n * sizeof(real));
}

// Reads a range of the current state to the device, piece by piece. Does nothing if this run has no such state.
static bool read_state(Reader *r, Role role, Local to, Local value, Range range, Error *err) {
    const Format format = to.tensor.format;
    if (!to.tensor.data) return true;
    if (!streams_begin(r, range, err)) return false;
    for (int64_t at = range.begin; at < range.end; at += PIECE) {
        const int64_t n = smaller(PIECE, range.end - at);
        if (!load_piece(r, n, err)) return false;
        if (r->format != format && role == MASTER)
            convert_masters(r, format, device_at(value, VALUES, at), n);
        else if (r->format != format)
            convert_moments(r, format, n, role == MOMENT_V);
        store_piece(r, to, at, n);
    }
    return true;
}

// ---------------------------------------------------------------- reading the states of all parameters

// Number of tensors found in the files, and of moments and master weights that are stored in another format than the
// run's.
typedef struct {
    int tensors, moments, masters;
} Found;

static Local local(const Arena *arena, TensorId id, Role role, int layer) {
    Local h;
    h.tensor = arena_local(arena, id, role, layer, &h.begin);
    return h;
}

// Finds the file's shard of one optimizer state of one parameter. If `read`, uploads the elements that this process
// needs.
static bool visit_state(Reader *r, TensorId id, Role role, int layer, bool read, Found *found, Error *err) {
    char parameter[HF_NAME_LENGTH], name[NAME_BUFFER];
    int64_t elements = tensor_elements(arena_tensor(r->arena, id, VALUE, layer));
    int64_t shard = tensor_shard_elements(elements, r->ranks), first = shard * r->rank,
            last = smaller(first + shard, elements);
    if (first >= last) return true;
    hf_whole_name(&r->arena->config->shape, id, layer, parameter);
    snprintf(name, sizeof name, "%s%s", parameter, role_suffix(role));
    if (!find_state(r, name, id, role, last - first, &found->tensors, err)) return false;
    Local to = local(r->arena, id, role, layer), m = local(r->arena, id, MOMENT_M, layer);
    Format format = to.tensor.data ? to.tensor.format : FMT_NONE;
    const bool trained = m.tensor.data && !was_frozen(r, id); // by this run and the one that wrote the files
    *(role == MASTER ? &found->masters : &found->moments) += trained && r->rank == 0 && r->format != format;
    // all states of a parameter are sharded like its first moment
    Range range = {first, m.begin > first ? m.begin : first, smaller(last, m.begin + tensor_elements(m.tensor))};
    if (!read || range.begin >= range.end || (role != MASTER && r->format == FMT_NONE)) return true;
    return read_state(r, role, to, local(r->arena, id, VALUE, layer), range, err);
}

// Sets r->stored from the names in the file of rank 0, which has a shard of every tensor.
static void find_parts(Reader *r) {
    for (const Arena *a = r->whole; a; a = a->vision)
        for (int id = 0; id < PARAMETER_COUNT; id++) {
            char parameter[HF_NAME_LENGTH], name[NAME_BUFFER];
            if (!a->layout[id][VALUE].exists) continue;
            hf_whole_name(&a->config->shape, (TensorId)id, 0, parameter);
            snprintf(name, sizeof name, "%s%s", parameter, role_suffix(MOMENT_M));
            if (safetensors_find(r->file, name)) r->stored |= tensor_part((TensorId)id, &a->config->shape);
        }
}

static bool visit_file(Reader *r, const SafeFile *file, bool read, Found *found, Error *err) {
    static const Role roles[] = {MOMENT_M, MOMENT_V, MASTER};
    r->file = file;
    if (r->rank == 0 && !read) find_parts(r);
    int before = found->tensors;
    for (r->arena = r->whole; r->arena; r->arena = r->arena->vision)
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

// Sets all moments to 0, before the files' moments are read, if the files lack the states of a part that this run
// trains. Prints which parts' moments start at 0, and which parts' states are dropped.
static void change_parts(const Reader *r) {
    const int parts = PART_LANGUAGE | (r->whole->vision ? PART_VISION | PART_PROJECTOR : 0),
              trained = parts & ~r->whole->config->freeze, started = trained & ~r->stored,
              dropped = r->stored & ~trained;
    for (const Arena *a = r->whole; a && started; a = a->vision) parameters_zero_moments(a, r->exec);
    for (int i = 0; i < 3 && r->exec->rank == 0; i++) {
        if (started >> i & 1)
            print_remark("resume: ", "%s: the checkpoint has no optimizer states of this part; its moments start at 0",
                         part_names[i]);
        if (dropped >> i & 1)
            print_remark("resume: ", "%s: this part is frozen from now on; its optimizer states are dropped",
                         part_names[i]);
    }
}

bool states_read(const Manifest *manifest, int files, const Arena *arena, Exec *exec, Error *err) {
    Reader r;
    memset(&r, 0, sizeof r);
    r.manifest = manifest;
    r.whole = arena;
    r.exec = exec;
    r.ranks = files;
    r.values = (real *)xmalloc(PIECE * sizeof *r.values);
    r.half = (uint16_t *)xmalloc(PIECE * sizeof *r.half);
    for (int i = 0; i < PARTS; i++) {
        r.piece[i] = xmalloc(part_bytes(FMT_FP32, i, PIECE));
        r.part[i].hash = XXH3_createState();
        if (!r.part[i].hash) fatal(EXIT_DEVICE, "host memory: could not allocate a checksum's state");
    }
    Found found = {0, 0, 0}, ignored = {0, 0, 0};
    // The first pass only checks the files, so that a rejected file leaves device memory unchanged.
    bool good = visit_files(&r, false, &found, err);
    if (good && found.moments + found.masters > 0 && exec->rank == 0)
        print_remark(
            "resume: ", "the optimizer's states are converted to this run's formats: %d moment%s, %d master weight%s",
            found.moments, plural(found.moments), found.masters, plural(found.masters));
    if (good) change_parts(&r);
    good = good && visit_files(&r, true, &ignored, err);
    for (int i = 0; i < PARTS; i++) {
        XXH3_freeState(r.part[i].hash);
        free(r.piece[i]);
    }
    free(r.half);
    free(r.values);
    return good;
}
