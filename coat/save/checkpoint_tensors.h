// The tensors of a checkpoint: which there are, where they lie on the device, how the file holds them. Saving and
// loading walk the same list, which derives from the table of tensors.
#pragma once
#include "manifest.h"
#include "model/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char name[160];
    char *data; // on the device: (rows, cols), dense
    char *host; // a copy of its kept rows in host memory; NULL: there is none
    Dtype dtype;
    int rank; // of the tensor in the file
    int64_t rows, cols;
    int64_t kept_rows; // rows in the file: without the vocabulary's padding, which is zero
    bool transposed;   // the file holds (cols, rows)
    size_t offset;     // bytes of the parameter before the first row: it may be in the file in parts
    bool shared;       // data is a share of a parameter (ZeRO 3): shard_elements from shard_begin on
    int64_t shard_begin, shard_elements;
    TensorId id;
    int layer;
} CheckpointTensor;

// The parameters in Hugging Face's names, or everything of the optimizer: moments with their scales and exponents,
// master weights. Both return the number of entries in *list, which the caller frees.
int checkpoint_model_tensors(const Arena *arena, CheckpointTensor **list);
int checkpoint_optimizer_tensors(const Arena *arena, CheckpointTensor **list);
// The same of this process's share of the optimizer: tensors of one dimension, without those of which it has nothing.
int checkpoint_share_tensors(const Arena *arena, CheckpointTensor **list);

// Of the file, and of a copy of the tensor.
size_t checkpoint_tensor_bytes(const CheckpointTensor *tensor);

// A file to be written. *nonfinite becomes the name of a tensor in BF16 or FP32 that has values that are not finite,
// NULL where none has; it may be NULL.
typedef struct {
    const char *name;
    const CheckpointTensor *list;
    int count;
    const char **nonfinite;
} TensorFile;

// Writes the files into the folder, all at the same time from the copies, one after the other from device memory where
// there are none, and adds them to the manifest in this order.
bool checkpoint_write_tensors(const char *folder, const TensorFile *files, int count, Exec *exec, JsonText *manifest,
                              Error *err);

// Reads folder/name into device memory. Tensors, types, shapes and hashes must be as expected.
bool checkpoint_read_tensors(const Manifest *manifest, const char *name, const CheckpointTensor *list, int count,
                             Exec *exec, Error *err);

// Transposes a dense matrix (rows, cols) of elements of element_bytes.
void matrix_transpose(void *to, const void *from, int64_t rows, int64_t cols, size_t element_bytes);

#ifdef __cplusplus
}
#endif
