#include "safetensors.h"

#include <string.h>
#include <unistd.h>

#include "files.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[DTYPE_COUNT] = {{"F64", 8}, {"I64", 8},     {"F32", 4},     {"I32", 4}, {"F16", 2}, {"BF16", 2},
                         {"U16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U8", 1},  {"I8", 1},  {"BOOL", 1}};

size_t dtype_bytes(Dtype dtype) {
    return (unsigned)dtype < DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *dtype_name(Dtype dtype) {
    return (unsigned)dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

static bool parse_dtype(SafeTensor *tensor, const json_t *entry, const char *path, Error *err) {
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name) return error_set(err, EXIT_DATA, "%s: tensor '%.200s' has no dtype", path, tensor->name);
    for (int i = 0; i < DTYPE_COUNT; i++) {
        tensor->dtype = (Dtype)i;
        if (strcmp(name, dtypes[i].name) == 0) return true;
    }
    return error_set(err, EXIT_DATA, "%s: tensor '%.200s' has type %.20s, which is not supported", path, tensor->name,
                     name);
}

const char *safetensors_shape_text(char text[SHAPE_TEXT], int rank, const int64_t *shape) {
    size_t length = 1;
    text[0] = '(';
    for (int i = 0; i < rank; i++)
        length +=
            (size_t)snprintf(text + length, SHAPE_TEXT - length, "%s%lld", i > 0 ? ", " : "", (long long)shape[i]);
    snprintf(text + length, SHAPE_TEXT - length, ")");
    return text;
}

// Reads a tensor's shape from the header, and sets *bytes to the size of a tensor of this shape and of tensor->dtype.
static bool parse_shape(SafeTensor *tensor, const json_t *entry, const char *path, uint64_t *bytes, Error *err) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_MAX_RANK)
        return error_set(err, EXIT_DATA, "%s: tensor '%.200s' must have a shape of at most %d numbers", path,
                         tensor->name, SAFETENSORS_MAX_RANK);
    tensor->rank = (int)json_array_size(shape);
    *bytes = dtype_bytes(tensor->dtype);
    bool overflow = false;
    for (int i = 0; i < tensor->rank; i++) {
        const json_t *item = json_array_get(shape, (size_t)i);
        int64_t dim = (int64_t)json_integer_value(item);
        if (!json_is_integer(item) || dim < 0)
            return error_set(err, EXIT_DATA, "%s: tensor '%.200s' has an invalid number in its shape", path,
                             tensor->name);
        tensor->shape[i] = dim;
        overflow |= __builtin_mul_overflow(*bytes, (uint64_t)dim, bytes);
    }
    if (overflow)
        return error_set(err, EXIT_DATA,
                         "%s is damaged: the number of bytes of tensor '%.200s' exceeds 64 bits; copy the file again",
                         path, tensor->name);
    return true;
}

static bool parse_range(SafeTensor *tensor, const json_t *entry, const char *path, uint64_t expected,
                        uint64_t data_bytes, Error *err) {
    const json_t *range = json_object_get(entry, "data_offsets");
    const json_t *from = json_array_get(range, 0), *to = json_array_get(range, 1);
    if (!json_is_array(range) || json_array_size(range) != 2 || !json_is_integer(from) || !json_is_integer(to))
        return error_set(err, EXIT_DATA, "%s: the data_offsets of tensor '%.200s' must be two whole numbers", path,
                         tensor->name);
    int64_t begin = (int64_t)json_integer_value(from), end = (int64_t)json_integer_value(to);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return error_set(
            err, EXIT_DATA,
            "%s: tensor '%.200s' is outside the file, which may be truncated; download the file again or regenerate it",
            path, tensor->name);
    if ((uint64_t)(end - begin) != expected)
        return error_set(err, EXIT_DATA, "%s: tensor '%.200s' has %lld byte%s, but its shape and type need %llu", path,
                         tensor->name, (long long)(end - begin), plural(end - begin), (unsigned long long)expected);
    tensor->begin = (uint64_t)begin;
    tensor->bytes = expected;
    return true;
}

static int compare_ranges(const void *a, const void *b) {
    const SafeTensor *x = (const SafeTensor *)a, *y = (const SafeTensor *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

// Fails unless the byte ranges of the tensors cover the data from the first byte to the last without overlaps or gaps.
static bool check_coverage(const SafeFile *file, Error *err) {
    uint64_t at = 0;
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *tensor = &file->tensors[i];
        if (tensor->begin != at)
            return error_set(err, EXIT_DATA, "%s: tensor '%.200s' %s", file->path, tensor->name,
                             tensor->begin < at ? "overlaps another tensor" : "begins after a gap in the data");
        at += tensor->bytes;
    }
    if (at != file->data_bytes)
        return error_set(err, EXIT_DATA, "%s: %llu byte%s after the last tensor belong%s to no tensor", file->path,
                         (unsigned long long)(file->data_bytes - at), plural(file->data_bytes - at),
                         singular(file->data_bytes - at));
    return true;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(SafeTensor *const *)a)->name, (*(SafeTensor *const *)b)->name);
}

static bool parse_tensors(SafeFile *file, json_t *header, Error *err) {
    file->tensors = (SafeTensor *)xcalloc(json_object_size(header), sizeof *file->tensors);
    for (void *at = json_object_iter(header); at; at = json_object_iter_next(header, at)) {
        const char *name = json_object_iter_key(at);
        const json_t *entry = json_object_iter_value(at);
        if (strcmp(name, "__metadata__") == 0) continue;
        if (!json_is_object(entry))
            return error_set(err, EXIT_DATA, "%s: the entry of tensor '%.200s' is not an object", file->path, name);
        SafeTensor *tensor = &file->tensors[file->count++];
        tensor->name = xstrdup(name);
        uint64_t expected;
        if (!parse_dtype(tensor, entry, file->path, err)) return false;
        if (!parse_shape(tensor, entry, file->path, &expected, err)) return false;
        if (!parse_range(tensor, entry, file->path, expected, file->data_bytes, err)) return false;
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_ranges);
    file->by_name = (SafeTensor **)xcalloc((size_t)file->count, sizeof *file->by_name);
    for (int i = 0; i < file->count; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names);
    return check_coverage(file, err);
}

bool safetensors_parse(SafeFile *file, const char *path, const char *header, size_t header_bytes, uint64_t data_bytes,
                       Error *err) {
    memset(file, 0, sizeof *file);
    file->fd = -1;
    file->data_bytes = data_bytes;
    file->path = xstrdup(path);
    json_t *object = json_parse_object(header, header_bytes, path, err);
    bool good = object && parse_tensors(file, object, err);
    json_decref(object);
    if (!good) safetensors_close(file);
    return good;
}

bool safetensors_open(SafeFile *file, const char *path, Error *err) {
    int fd;
    uint64_t size, header_bytes = 0;
    memset(file, 0, sizeof *file);
    file->fd = -1;
    if (!file_open(path, &fd, &size, err)) return false;
    bool good = size < sizeof header_bytes || file_read_at(fd, path, 0, &header_bytes, sizeof header_bytes, err);
    if (good && (size < sizeof header_bytes || header_bytes > size - sizeof header_bytes))
        good = error_set(err, EXIT_DATA, "%s is truncated or is not a safetensors file", path);
    else if (header_bytes > SAFETENSORS_MAX_HEADER)
        good = error_set(err, EXIT_DATA, "%s has a header of %llu bytes, more than the maximum of %d", path,
                         (unsigned long long)header_bytes, SAFETENSORS_MAX_HEADER);
    if (!good) {
        close(fd);
        return false;
    }
    char *header = (char *)xmalloc((size_t)header_bytes);
    good = file_read_at(fd, path, sizeof header_bytes, header, (size_t)header_bytes, err) &&
           safetensors_parse(file, path, header, (size_t)header_bytes, size - sizeof header_bytes - header_bytes, err);
    free(header);
    if (!good) {
        close(fd);
        return false;
    }
    file->fd = fd;
    file->data_begin = sizeof header_bytes + header_bytes;
    return true;
}

void safetensors_close(SafeFile *file) {
    if (file->fd >= 0) close(file->fd);
    for (int i = 0; i < file->count; i++) free(file->tensors[i].name);
    free(file->tensors);
    free(file->by_name);
    free(file->path);
    memset(file, 0, sizeof *file);
    file->fd = -1;
}

const SafeTensor *safetensors_find(const SafeFile *file, const char *name) {
    SafeTensor key, *named = &key;
    key.name = (char *)name;
    if (file->count == 0) return NULL;
    SafeTensor *const *found =
        (SafeTensor *const *)bsearch(&named, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names);
    return found ? *found : NULL;
}

bool safetensors_read(const SafeFile *file, const SafeTensor *tensor, uint64_t offset, void *to, size_t bytes,
                      Error *err) {
    if (offset > tensor->bytes || bytes > tensor->bytes - offset)
        return error_set(err, EXIT_DATA, "%s: read past the end of tensor '%.200s'", file->path, tensor->name);
    return file_read_at(file->fd, file->path, file->data_begin + tensor->begin + offset, to, bytes, err);
}
