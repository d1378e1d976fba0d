#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/background.h"
#include "files.h"
#include "safetensors.h"

#define LARGE_BYTES ((size_t)1 << 20) // number of bytes whose writing takes much longer than starting a thread

void safewriter_declare(SafeWriter *writer, const char *name, Dtype dtype, int rank, const int64_t *shape, int tag) {
    if (writer->count == writer->capacity) {
        writer->capacity = writer->capacity ? writer->capacity * 2 : 64;
        writer->tensors = (SafeTensor *)xrealloc(writer->tensors, (size_t)writer->capacity * sizeof *writer->tensors);
    }
    SafeTensor *tensor = &writer->tensors[writer->count++];
    memset(tensor, 0, sizeof *tensor);
    tensor->name = xstrdup(name);
    tensor->dtype = dtype;
    tensor->rank = rank;
    tensor->tag = tag;
    tensor->bytes = dtype_bytes(dtype);
    for (int i = 0; i < rank; i++) {
        tensor->shape[i] = shape[i];
        tensor->bytes *= (uint64_t)shape[i];
    }
}

static int compare_declared(const void *a, const void *b) {
    const SafeTensor *x = (const SafeTensor *)a, *y = (const SafeTensor *)b;
    size_t wide_x = dtype_bytes(x->dtype), wide_y = dtype_bytes(y->dtype);
    if (wide_x != wide_y) return wide_x > wide_y ? -1 : 1;
    return strcmp(x->name, y->name);
}

void safetensors_write_entry(JsonText *t, const SafeTensor *tensor) {
    json_text_open(t, tensor->name, '{');
    json_text_string(t, "dtype", dtype_name(tensor->dtype));
    json_text_open(t, "shape", '[');
    for (int d = 0; d < tensor->rank; d++) json_text_int(t, NULL, tensor->shape[d]);
    json_text_close(t, ']');
    json_text_open(t, "data_offsets", '[');
    json_text_int(t, NULL, (int64_t)tensor->begin);
    json_text_int(t, NULL, (int64_t)(tensor->begin + tensor->bytes));
    json_text_close(t, ']');
    json_text_close(t, '}');
}

// Returns the JSON header of the sorted tensors, and sets their byte ranges. The header is padded with spaces to a
// multiple of 8 bytes, so that the data is aligned.
static JsonText header_text(SafeWriter *writer) {
    JsonText t;
    uint64_t at = 0;
    json_text_begin(&t, false);
    json_text_open(&t, "__metadata__", '{');
    json_text_string(&t, "format", "pt");
    json_text_close(&t, '}');
    for (int i = 0; i < writer->count; i++) {
        SafeTensor *tensor = &writer->tensors[i];
        tensor->begin = at;
        at += tensor->bytes;
        safetensors_write_entry(&t, tensor);
    }
    json_text_close(&t, '}');
    while (t.size % 8) json_text_space(&t);
    return t;
}

static bool append_hashed(SafeWriter *writer, const void *data, size_t bytes, Error *err) {
    XXH3_64bits_update((XXH3_state_t *)writer->file_hash, data, bytes);
    writer->bytes += bytes;
    return file_append(writer->fd, writer->path, data, bytes, err);
}

typedef struct {
    SafeWriter *writer;
    const void *data;
    size_t bytes;
} HashWork;

static void *hash_bytes(void *argument) {
    const HashWork *work = (const HashWork *)argument;
    XXH3_64bits_update((XXH3_state_t *)work->writer->tensor_hash, work->data, work->bytes);
    XXH3_64bits_update((XXH3_state_t *)work->writer->file_hash, work->data, work->bytes);
    return NULL;
}

// Writes bytes of the current tensor and adds them to the hashes of the tensor and of the file. A thread hashes large
// parts while this function writes them.
static bool append_tensor(SafeWriter *writer, const void *data, size_t bytes, Error *err) {
    HashWork work = {writer, data, bytes};
    BackgroundTask hashing = {.running = false};
    if (bytes < LARGE_BYTES)
        hash_bytes(&work);
    else
        background_begin(&hashing, hash_bytes, &work);
    const bool good = file_append(writer->fd, writer->path, data, bytes, err);
    // makes Linux write to the disk now; with much free memory, Linux might otherwise wait for the final fsync()
    sync_file_range(writer->fd, (off_t)writer->bytes, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    background_end(&hashing);
    writer->bytes += bytes;
    return good;
}

static XXH3_state_t *new_hash(void) {
    XXH3_state_t *state = XXH3_createState();
    if (!state) fatal(EXIT_DEVICE, "host memory: could not allocate a checksum's state");
    XXH3_64bits_reset(state);
    return state;
}

// Stores the hashes of completely written tensors, including empty ones.
static void finish_tensors(SafeWriter *writer) {
    XXH3_state_t *state = (XXH3_state_t *)writer->tensor_hash;
    while (writer->current < writer->count && writer->written == writer->tensors[writer->current].bytes) {
        writer->tensors[writer->current++].hash = XXH3_64bits_digest(state);
        writer->written = 0;
        XXH3_64bits_reset(state);
    }
}

bool safewriter_begin(SafeWriter *writer, const char *path, Error *err) {
    if (writer->count) qsort(writer->tensors, (size_t)writer->count, sizeof *writer->tensors, compare_declared);
    writer->path = xstrdup(path);
    writer->fd = file_open_write(path, O_EXCL, err);
    if (writer->fd < 0) return false;
    writer->open = true;
    writer->file_hash = new_hash();
    writer->tensor_hash = new_hash();
    JsonText header = header_text(writer);
    uint64_t length = header.size;
    bool good =
        append_hashed(writer, &length, sizeof length, err) && append_hashed(writer, header.text, header.size, err);
    json_text_free(&header);
    finish_tensors(writer);
    return good;
}

bool safewriter_write(SafeWriter *writer, const void *data, size_t bytes, Error *err) {
    const char *at = (const char *)data;
    while (bytes) {
        if (writer->current == writer->count)
            return error_set(err, EXIT_DATA,
                             "internal error: %s: more bytes were written than the tensors of its header have",
                             writer->path);
        uint64_t room = writer->tensors[writer->current].bytes - writer->written;
        size_t part = bytes < room ? bytes : (size_t)room;
        if (!append_tensor(writer, at, part, err)) return false;
        writer->written += part;
        at += part;
        bytes -= part;
        finish_tensors(writer);
    }
    return true;
}

bool safewriter_end(SafeWriter *writer, uint64_t *hash, Error *err) {
    if (writer->current != writer->count)
        return error_set(err, EXIT_DATA, "%s: tensor '%s' was not written completely", writer->path,
                         writer->tensors[writer->current].name);
    *hash = XXH3_64bits_digest((XXH3_state_t *)writer->file_hash);
    if (fsync(writer->fd) != 0) return error_set(err, EXIT_DATA, "cannot flush %s: %s", writer->path, strerror(errno));
    writer->open = false;
    if (close(writer->fd) != 0) return error_set(err, EXIT_DATA, "cannot close %s: %s", writer->path, strerror(errno));
    return true;
}

void safewriter_close(SafeWriter *writer) {
    if (writer->open) close(writer->fd);
    for (int i = 0; i < writer->count; i++) free(writer->tensors[i].name);
    free(writer->tensors);
    free(writer->path);
    XXH3_freeState((XXH3_state_t *)writer->file_hash);
    XXH3_freeState((XXH3_state_t *)writer->tensor_hash);
    memset(writer, 0, sizeof *writer);
}
