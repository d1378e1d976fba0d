// Reads and writes the safetensors file format: 8 bytes of header length, a JSON header with the type, shape and byte
// range of each tensor, then the tensors' bytes without gaps. Numbers are little-endian. The reader checks the entire
// header. The writer streams the tensors' bytes, to avoid a copy of the model. The writer sorts the tensors, so that
// the same contents give the same bytes. The writer pads the header, so that all tensors are aligned.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "json.h"

C_LINKAGE_BEGIN

#define SAFETENSORS_MAX_RANK 8
// Maximum size of a header in bytes. The format allows headers of 100 MB, which need gigabytes when parsed; the largest
// models need a few MB.
#define SAFETENSORS_MAX_HEADER (32 << 20)

typedef enum {
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_F32,
    DTYPE_I32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_U16,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_BOOL, // one byte per value, such as the attention masks in some files of GPT-2
    DTYPE_COUNT
} Dtype;

size_t dtype_bytes(Dtype dtype);
const char *dtype_name(Dtype dtype); // returns the name used in the header, such as "BF16"

typedef struct {
    char *name;
    Dtype dtype;
    int rank;
    int64_t shape[SAFETENSORS_MAX_RANK];
    uint64_t begin, bytes; // offset and length of the tensor's bytes in the data after the header
    uint64_t hash; // XXH3 hash of the tensor's bytes; set by the writer after the last byte, unused by the reader
    int tag;       // caller's value from safewriter_declare(); not written to the file
} SafeTensor;

#define SHAPE_TEXT (4 + 22 * SAFETENSORS_MAX_RANK) // bytes of the longest text that describes a shape

// Writes a shape such as "(4096, 512)" into text. Returns text.
const char *safetensors_shape_text(char text[SHAPE_TEXT], int rank, const int64_t *shape);

// ---------------------------------------------------------------- reading safetensors files

typedef struct {
    char *path;
    int fd;
    uint64_t data_begin, data_bytes; // offset in the file and total number of the tensors' bytes
    SafeTensor *tensors;             // tensors in the order of their bytes in the file
    SafeTensor **by_name;            // tensors sorted by name
    int count;
} SafeFile;

// Opens a safetensors file and checks its header:
//   - Each tensor has a known type, a name of its own, and a byte range that matches its shape and type.
//   - The byte ranges cover the file after the header without overlaps or gaps.
// Returns false with err (EXIT_DATA) if the file cannot be read or a check fails.
bool safetensors_open(SafeFile *file, const char *path, Error *err);
// Fills *file from the text of a safetensors header that describes data_bytes bytes of data. Checks the header like
// safetensors_open(). `path` only names the file in messages. Sets file->fd to -1.
bool safetensors_parse(SafeFile *file, const char *path, const char *header, size_t header_bytes, uint64_t data_bytes,
                       Error *err);
void safetensors_close(SafeFile *file);

const SafeTensor *safetensors_find(const SafeFile *file, const char *name); // returns NULL if there is no such tensor
// Reads `bytes` bytes of a tensor, starting at its byte `offset`. Returns false with err (EXIT_DATA) on failure.
bool safetensors_read(const SafeFile *file, const SafeTensor *tensor, uint64_t offset, void *to, size_t bytes,
                      Error *err);

// ---------------------------------------------------------------- writing safetensors files

// Writes a tensor's entry to the text of a safetensors header.
void safetensors_write_entry(JsonText *t, const SafeTensor *tensor);

// Writes a safetensors file. Zero the struct, then call these functions in order:
//   safewriter_declare()   for every tensor
//   safewriter_begin()     sorts writer.tensors by the size of their type, the largest first, then by name. In this
//                          order, all tensors are aligned
//   safewriter_write()     the tensors' bytes in the order of writer.tensors, in parts of any size
//   safewriter_end()       completes the file
//   safewriter_close()     frees the struct, also after an error
// Functions that return bool return false with err (EXIT_DATA) on failure.
typedef struct {
    char *path;
    int fd;
    SafeTensor *tensors;
    int count, capacity;
    int current;                   // index of the tensor that is being written
    uint64_t written;              // number of the current tensor's bytes written so far
    uint64_t bytes;                // number of the file's bytes written so far
    void *file_hash, *tensor_hash; // states of the running XXH3 hashes
    bool open;
} SafeWriter;

void safewriter_declare(SafeWriter *writer, const char *name, Dtype dtype, int rank, const int64_t *shape, int tag);
// Creates the file (fails if it exists) and writes the header, with the metadata {"format": "pt"} that readers of
// PyTorch models require.
bool safewriter_begin(SafeWriter *writer, const char *path, Error *err);
bool safewriter_write(SafeWriter *writer, const void *data, size_t bytes, Error *err);
// Completes a safetensors file. Fails unless all bytes of all tensors were written. Flushes the file to the disk, and
// sets *hash to the file's XXH3 hash.
bool safewriter_end(SafeWriter *writer, uint64_t *hash, Error *err);
void safewriter_close(SafeWriter *writer);

C_LINKAGE_END
