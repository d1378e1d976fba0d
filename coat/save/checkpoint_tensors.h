// Lists a checkpoint's tensors: their names, shapes and types in the file, and their device addresses. The lists derive
// from the table of tensors (tensors.h), and include the tensors of the vision tower. Saving and loading use the same
// list of the model's tensors. The lists of the optimizer's states serve only saving; states_read() loads the states.
#pragma once
#include "hf_names.h"
#include "manifest.h"
#include "model/arena.h"

typedef struct {
    char name[160];
    char *data; // device memory of the tensor: (rows, cols), contiguous; NULL if `arena` is NULL
    char *host; // copy of the first kept_rows rows in host memory; NULL: there is no copy
    Dtype dtype;
    int rank;                  // number of dimensions in the file
    int64_t dims[HF_MAX_RANK]; // shape in the file if rank > 2
    int64_t rows, cols;        // shape in memory, of the entire tensor even if `data` is a shard
    int64_t kept_rows;         // number of rows in the file, which omits the vocabulary's padding rows
    bool transposed;           // the file stores (cols, rows)
    // byte offset of this tensor's first element in the parameter; not 0 if the file stores the parameter as several
    // tensors and this is not the first
    size_t offset;
    // ZeRO 3: true if data is a shard, elements [shard_begin, shard_begin + shard_elements) of this tensor
    bool shared;
    int64_t shard_begin, shard_elements;
    const Arena *arena; // arena that contains tensor `id`; NULL: the tensor is one of hf_carried_parts()
    TensorId id;
    int layer;
} CheckpointTensor;

// Lists the parameters under Hugging Face's names in *list (malloc'ed), followed by tensors that only checkpoints need
// (hf_carried_parts()). Returns the number of listed tensors.
int checkpoint_model_tensors(const Arena *arena, CheckpointTensor **list);
// Lists the optimizer's states in *list (malloc'ed) and returns their number. The states are the moments, their amaxes
// and exponents, and the master weights. With several processes, lists this process's nonempty shards, flattened.
int checkpoint_optimizer_tensors(const Arena *arena, CheckpointTensor **list);

// Writes the shape that a tensor has in the file to shape[]. Only the first t->rank values are meaningful.
void checkpoint_file_shape(const CheckpointTensor *t, int64_t shape[HF_MAX_RANK]);
// Returns the size in bytes that a tensor has in the file and in its host copy.
size_t checkpoint_tensor_bytes(const CheckpointTensor *tensor);

// A safetensors file to write: its name and tensors.
typedef struct {
    const char *name;
    const CheckpointTensor *list;
    int count;
    // output: name of the first BF16 or FP32 tensor with an infinity or NaN, NULL if all are finite. If `nonfinite`
    // itself is NULL, the tensors are not checked.
    const char **nonfinite;
} TensorFile;

// Writes safetensors files into `folder` and adds them to the manifest in the order of `files`. Writes all files in
// parallel from host copies, or one after the other from device memory if there are no host copies.
bool checkpoint_write_tensors(const char *folder, const TensorFile *files, int count, Exec *exec, JsonText *manifest,
                              Error *err);

// Reads the safetensors file `name` of a checkpoint into device memory. Fails if the tensors, types or shapes do not
// match the list, or if checksums do not match the manifest. Checks types and shapes before changing device memory.
// Tensors without an arena are not read, and may have any type.
bool checkpoint_read_tensors(const Manifest *manifest, const char *name, const CheckpointTensor *list, int count,
                             Exec *exec, Error *err);
