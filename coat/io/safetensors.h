// The safetensors file format: 8 bytes of header length (little endian), a JSON header naming tensors with type,
// shape and byte range, then the bytes without holes. The reader believes nothing it has not checked; the writer
// streams, so that no second copy of a model is needed, and orders and pads so that equal content gives equal
// bytes. Values are little endian, as this program's hosts are.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SAFETENSORS_MAX_RANK 8
// Bytes. The format allows 100 MB, of which the parsed form takes gigabytes; those of the largest models have a few MB.
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
    DTYPE_COUNT
} Dtype;

size_t dtype_bytes(Dtype dtype);
const char *dtype_name(Dtype dtype); // as in the header: "BF16"

typedef struct {
    char *name;
    Dtype dtype;
    int rank;
    int64_t shape[SAFETENSORS_MAX_RANK];
    uint64_t begin, bytes; // in the data after the header
    uint64_t hash;         // writer: XXH3 of the bytes, valid after they were written
    int tag;               // writer: the caller's own number for the tensor
} SafeTensor;

#define SHAPE_TEXT (4 + 22 * SAFETENSORS_MAX_RANK) // the largest numbers, commas between them

// "(4096, 512)", into `text`, which is returned.
const char *safetensors_shape_text(char text[SHAPE_TEXT], int rank, const int64_t *shape);

// ---------------------------------------------------------------- reading

typedef struct {
    char *path;
    int fd;
    uint64_t data_begin, data_bytes;
    SafeTensor *tensors; // in the order of their bytes
    int *by_name;        // indices into tensors, sorted by name
    int count;
} SafeFile;

// Opens a file and checks its whole header: known types, shape times type equal to the byte range, ranges
// without overlap or hole that end where the file ends, no duplicate names.
bool safetensors_open(SafeFile *file, const char *path, Error *err);
// The same check of a header alone (the JSON text), followed by data_bytes of data. fd is -1 afterwards.
bool safetensors_parse(SafeFile *file, const char *path, const char *header, size_t header_bytes, uint64_t data_bytes,
                       Error *err);
void safetensors_close(SafeFile *file);

const SafeTensor *safetensors_find(const SafeFile *file, const char *name); // NULL if there is none
// Reads `bytes` of a tensor, starting `offset` bytes into it.
bool safetensors_read(const SafeFile *file, const SafeTensor *tensor, uint64_t offset, void *to, size_t bytes,
                      Error *err);

// ---------------------------------------------------------------- writing

// Start from a zeroed struct; declare all tensors, begin, then write the tensors' bytes in the order of
// writer.tensors (which begin sorts: wide types first, so that all are aligned, then by name), in pieces of any
// size; end. After an error or at the end: safewriter_close().
typedef struct {
    char *path;
    int fd;
    SafeTensor *tensors;
    int count, capacity;
    int current;                   // the tensor being written
    uint64_t written;              // its bytes so far
    uint64_t bytes;                // of the file so far
    void *file_hash, *tensor_hash; // running XXH3 states
    bool open;
} SafeWriter;

void safewriter_declare(SafeWriter *writer, const char *name, Dtype dtype, int rank, const int64_t *shape, int tag);
// Creates the file (refuses an existing one) and writes the header with {"format": "pt"} as metadata, which
// readers of PyTorch models ask for.
bool safewriter_begin(SafeWriter *writer, const char *path, Error *err);
bool safewriter_write(SafeWriter *writer, const void *data, size_t bytes, Error *err);
// All bytes must have been written. Flushes to the disk; *hash is the XXH3 of the file.
bool safewriter_end(SafeWriter *writer, uint64_t *hash, Error *err);
void safewriter_close(SafeWriter *writer);

#ifdef __cplusplus
}
#endif
