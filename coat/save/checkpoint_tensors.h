// The list of a checkpoint's tensors: their names, shapes and types in the file, and where they are on the device.
// Derived from the table of tensors; saving and loading use the same list.
#pragma once
#include "manifest.h"
#include "model/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char name[160];
    char *data; // device memory: (rows, cols), dense
    char *host; // copy of the first kept_rows rows in host memory; NULL: no copy
    Dtype dtype;
    int rank; // in the file
    int64_t rows, cols;
    int64_t kept_rows; // rows in the file, which leaves out the vocabulary's zero padding rows
    bool transposed;   // the file stores (cols, rows)
    size_t offset;     // bytes of the parameter before this tensor's first row, if the file splits the parameter
    bool shared;       // ZeRO 3: data is a shard, elements [shard_begin, shard_begin + shard_elements) of this tensor
    int64_t shard_begin, shard_elements;
    TensorId id;
    int layer;
} CheckpointTensor;

// Lists the parameters under Hugging Face's names in *list (malloc'ed), and returns their number.
int checkpoint_model_tensors(const Arena *arena, CheckpointTensor **list);
// Lists the optimizer's states in *list (malloc'ed), and returns their number: moments, their amax values and
// exponents, and master weights.
int checkpoint_optimizer_tensors(const Arena *arena, CheckpointTensor **list);
// Lists this process's shards of the optimizer's states, flattened to one dimension and without empty ones.
int checkpoint_shard_tensors(const Arena *arena, CheckpointTensor **list);

// Returns the size of a tensor in the file and in its host copy.
size_t checkpoint_tensor_bytes(const CheckpointTensor *tensor);

// One safetensors file to write.
typedef struct {
    const char *name;
    const CheckpointTensor *list;
    int count;
    const char *
        *nonfinite; // out: name of the first BF16 or FP32 tensor with an infinity or NaN, NULL if all are finite;
                    // may be NULL: not checked
} TensorFile;

// Writes `files` into `folder` and adds them to the manifest in order. Files are written in parallel from host copies,
// or one after the other from device memory if there are no copies.
bool checkpoint_write_tensors(const char *folder, const TensorFile *files, int count, Exec *exec, JsonText *manifest,
                              Error *err);

// Reads the file `name` of the manifest's folder into device memory. Fails if tensors, types, shapes or checksums do
// not match; types and shapes are checked before device memory changes.
bool checkpoint_read_tensors(const Manifest *manifest, const char *name, const CheckpointTensor *list, int count,
                             Exec *exec, Error *err);

#ifdef __cplusplus
}
#endif
