#include "llmc_weights.h"

#include <unistd.h>

#include "config/shapes.h"
#include "hf_names.h"
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

// Parses the header of an llm.c weight file into the model's shape and data type. Returns false with err if the file is
// not supported. `path` only names the file in messages.
static bool parse_header(const int32_t header[LLMC_HEADER_BYTES / 4], const char *path, ModelShape *shape, Dtype *dtype,
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
        return error_set(err, EXIT_DATA, "%s: its padded vocabulary of %d does not match its vocabulary of %d tokens",
                         path, padded, vocab);
    shape->vocab_padded = padded;
    return true;
}

// Adds a tensor of rows * cols elements, stored at byte *at, to a safetensors header. Moves *at to the tensor's end.
static void add_tensor(JsonText *t, const char *name, Dtype dtype, int rank, int64_t rows, int64_t cols, uint64_t *at) {
    const SafeTensor tensor = {.name = (char *)name,
                               .dtype = dtype,
                               .rank = rank,
                               .shape = {rank == 2 ? rows : cols, cols},
                               .begin = *at,
                               .bytes = (uint64_t)rows * (uint64_t)cols * dtype_bytes(dtype)};
    safetensors_write_entry(t, &tensor);
    *at += tensor.bytes;
}

// Writes the safetensors header that describes the parameters in an llm.c weight file. Returns their size in bytes.
static uint64_t tensors_text(JsonText *t, const ModelShape *shape, Dtype dtype) {
    typedef TensorLayout Row[ROLE_COUNT];
    Row *layout = (Row *)xcalloc(TENSOR_COUNT, sizeof *layout);
    Config *config = (Config *)xcalloc(1, sizeof *config);
    config->shape = *shape;
    config->micro_batch = config->seq_len = 1;
    tensors_resolve(config, 1, layout);
    uint64_t at = 0;
    json_text_begin(t, false);
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < layout[id][VALUE].layers; layer++) {
            HfPart part[HF_MAX_PARTS];
            hf_parts(shape, (TensorId)id, layer, part);
            add_tensor(t, part->name, dtype, tensor_rank((TensorId)id), part->rows, part->cols, &at);
        }
        const int64_t padding = id == WTE ? shape->vocab_padded - shape->vocab : 0;
        if (padding > 0) add_tensor(t, "padding", dtype, 2, padding, shape->channels, &at);
    }
    json_text_close(t, '}');
    free(config);
    free(layout);
    return at;
}

bool llmc_open(SafeFile *file, ModelShape *shape, const char *path, Error *err) {
    int32_t header[LLMC_HEADER_BYTES / 4];
    uint64_t size;
    Dtype dtype;
    int fd;
    if (!file_open(path, &fd, &size, err)) return false;
    bool good = file_read_at(fd, path, 0, header, sizeof header, err) && parse_header(header, path, shape, &dtype, err);
    if (good) {
        JsonText text;
        const uint64_t bytes = tensors_text(&text, shape, dtype), expected = bytes + LLMC_HEADER_BYTES;
        good = (size == expected ||
                error_set(err, EXIT_DATA,
                          "%s is truncated or damaged: %llu bytes, but its header needs %llu; download it again", path,
                          (unsigned long long)size, (unsigned long long)expected)) &&
               safetensors_parse(file, path, text.text, text.size, bytes, err);
        json_text_free(&text);
    }
    if (!good) {
        close(fd);
        return false;
    }
    file->fd = fd;
    file->data_begin = LLMC_HEADER_BYTES;
    return true;
}
