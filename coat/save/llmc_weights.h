// Reads weight files of llm.c. The header is 256 int32: magic 20240326, version (3: FP32, 5: BF16), maximum sequence
// length, vocabulary, layers, heads, channels, padded vocabulary. The 16 parameters follow in the order of the table of
// tensors (tensors.h), each with all its layers, one after the other. A linear weight has the shape (out, in).
#pragma once
#include "io/safetensors.h"
#include "model/tensors.h"

#define LLMC_HEADER_BYTES 1024

// True if the file begins with the magic number of llm.c's weight files.
bool llmc_is_weights(const char *path);
// Opens a weight file of llm.c as if it were safetensors: *file lists its tensors under Hugging Face's names, and the
// rows that pad the vocabulary as "padding". Sets *shape from the header, including the file's vocab_padded, which may
// differ from this program's. Fails if the header does not match the file's length. Close *file with
// safetensors_close().
bool llmc_open(SafeFile *file, ModelShape *shape, const char *path, Error *err);
