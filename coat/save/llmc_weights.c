#include "llmc_weights.h"

#include <string.h>
#include <unistd.h>

#include "config/shapes.h"
#include "hf_names.h"
#include "io/files.h"
#include "io/json.h"

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
    json_text_open(t, name, '{');
    json_text_string(t, "dtype", dtype_name(dtype));
    json_text_open(t, "shape", '[');
    if (rank == 2) json_text_int(t, NULL, rows);
    json_text_int(t, NULL, cols);
    json_text_close(t, ']');
    json_text_open(t, "data_offsets", '[');
    json_text_int(t, NULL, (int64_t)*at);
    *at += (uint64_t)rows * (uint64_t)cols * dtype_bytes(dtype);
    json_text_int(t, NULL, (int64_t)*at);
    json_text_close(t, ']');
    json_text_close(t, '}');
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
    json_text_open(t, NULL, '{');
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
        memset(&text, 0, sizeof text);
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
