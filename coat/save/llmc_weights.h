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

// True if the file begins with the magic number.
bool llmc_is_weights(const char *path);
// Opens a file as if it were safetensors: *file lists the tensors under Hugging Face's names, and "padding" for the
// rows of the padded vocabulary. *shape has the file's vocab_padded. Fails if header and length do not match.
bool llmc_open(SafeFile *file, ModelShape *shape, const char *path, Error *err);
// Reads shape and type from a header. `path` names the file in messages.
bool llmc_parse_header(const int32_t header[LLMC_HEADER_BYTES / 4], const char *path, ModelShape *shape, Dtype *dtype,
                       Error *err);

#ifdef __cplusplus
}
#endif
