// Weight files of llm.c. The header is 256 int32: magic 20240326, version (3: FP32, 5: BF16), maximum sequence length,
// vocabulary, layers, heads, channels, padded vocabulary. The 16 parameters follow in the order of the table of
// tensors, each with all its layers, weights as (out, in).
#pragma once
#include "io/safetensors.h"
#include "model/tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LLMC_HEADER_BYTES 1024

typedef struct {
    char *path;
    int fd;
    ModelShape shape;                                     // with the file's vocab_padded
    Dtype dtype;                                          // DTYPE_F32 or DTYPE_BF16
    int64_t rows[PARAMETER_COUNT], cols[PARAMETER_COUNT]; // of one layer
    uint64_t offset[PARAMETER_COUNT];                     // of layer 0 in the file
} LlmcFile;

// True if the file begins with the magic number.
bool llmc_is_weights(const char *path);
// Opens a file and checks its header and length. After a failure there is nothing to close.
bool llmc_open(LlmcFile *file, const char *path, Error *err);
void llmc_close(LlmcFile *file);
// Reads shape and type from a header. `path` names the file in messages.
bool llmc_parse_header(const int32_t header[LLMC_HEADER_BYTES / 4], const char *path, ModelShape *shape, Dtype *dtype,
                       Error *err);

#ifdef __cplusplus
}
#endif
