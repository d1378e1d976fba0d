#include "llmc_weights.h"

#include <string.h>
#include <unistd.h>

#include "config/shapes.h"
#include "io/files.h"

#define LLMC_MAGIC 20240326
#define LLMC_FP32 3
#define LLMC_BF16 5

bool llmc_is_weights(const char *path) {
    int fd;
    uint64_t size;
    int32_t magic = 0;
    Error ignored;
    if (!file_open(path, &fd, &size, &ignored)) return false;
    bool is = file_read_at(fd, path, 0, &magic, sizeof magic, &ignored) && magic == LLMC_MAGIC;
    close(fd);
    return is;
}

bool llmc_parse_header(const int32_t header[LLMC_HEADER_BYTES / 4], const char *path, ModelShape *shape, Dtype *dtype,
                       Error *err) {
    if (header[0] != LLMC_MAGIC) return error_set(err, EXIT_DATA, "%s is not a weight file of llm.c", path);
    if (header[1] != LLMC_FP32 && header[1] != LLMC_BF16)
        return error_set(err, EXIT_DATA, "%s has version %d; this program reads %d (FP32) and %d (BF16)", path,
                         header[1], LLMC_FP32, LLMC_BF16);
    *dtype = header[1] == LLMC_FP32 ? DTYPE_F32 : DTYPE_BF16;
    int positions = header[2], vocab = header[3], layers = header[4], heads = header[5], channels = header[6];
    int padded = header[7];
    if (!gpt2_shape(shape, layers, heads, channels, 0, vocab, positions, path, err)) return false;
    if (padded < vocab || padded - vocab > vocab + 65536)
        return error_set(err, EXIT_DATA, "%s: the padded vocabulary of %d does not match the vocabulary of %d", path,
                         padded, vocab);
    shape->vocab_padded = padded;
    return true;
}

// Sets the shapes and offsets of all parameters, and returns the length that the file must have.
static uint64_t locate(LlmcFile *file) {
    typedef TensorLayout Row[ROLE_COUNT];
    Row *layout = (Row *)xcalloc(TENSOR_COUNT, sizeof *layout);
    Config *config = (Config *)xcalloc(1, sizeof *config);
    config->shape = file->shape;
    config->micro_batch = config->seq_len = 1;
    tensors_resolve(config, 1, layout);
    uint64_t at = LLMC_HEADER_BYTES;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TensorLayout *t = &layout[id][VALUE];
        file->rows[id] = t->rows;
        file->cols[id] = t->cols;
        file->offset[id] = at;
        at += (uint64_t)t->layers * (uint64_t)t->rows * (uint64_t)t->cols * dtype_bytes(file->dtype);
    }
    free(config);
    free(layout);
    return at;
}

bool llmc_open(LlmcFile *file, const char *path, Error *err) {
    int32_t header[LLMC_HEADER_BYTES / 4];
    uint64_t size;
    memset(file, 0, sizeof *file);
    if (!file_open(path, &file->fd, &size, err)) return false;
    file->path = strdup(path);
    if (!file->path) fatal(EXIT_DEVICE, "host memory: could not allocate a path");
    bool good = file_read_at(file->fd, path, 0, header, sizeof header, err) &&
                llmc_parse_header(header, path, &file->shape, &file->dtype, err);
    if (good) {
        uint64_t expected = locate(file);
        if (size != expected)
            good = error_set(err, EXIT_DATA,
                             "%s is truncated or damaged: %llu bytes, but its header needs %llu; download it again",
                             path, (unsigned long long)size, (unsigned long long)expected);
    }
    if (!good) llmc_close(file);
    return good;
}

void llmc_close(LlmcFile *file) {
    close(file->fd);
    free(file->path);
    memset(file, 0, sizeof *file);
    file->fd = -1;
}
