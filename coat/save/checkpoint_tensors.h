// Lists a checkpoint's tensors: their names, shapes and types in the file, and their device addresses. The lists derive
// from the table of tensors (tensors.h). Saving and loading use the same lists. All lists of an arena include the
// tensors of its vision tower.
#pragma once
#include "hf_names.h"
#include "manifest.h"
#include "model/arena.h"

typedef struct {
    char name[160];
    char *data; // device memory of the tensor, (rows, cols), contiguous
    char *host; // copy of the first kept_rows rows in host memory; NULL: there is no copy
    Dtype dtype;
    int rank;                  // number of dimensions in the file
    int64_t dims[HF_MAX_RANK]; // shape in the file if rank > 2
    int64_t rows, cols;
    int64_t kept_rows; // number of rows in the file, which omits the vocabulary's padding rows
    bool transposed;   // the file stores (cols, rows)
    // offset in bytes of this tensor's first row within its parameter, if the file stores the parameter as several
    // tensors
    size_t offset;
    // ZeRO 3: true if data is a shard, elements [shard_begin, shard_begin + shard_elements) of this tensor
    bool shared;
    int64_t shard_begin, shard_elements;
    const Arena *arena; // arena of `id`; NULL: the tensor is carried from file to file (hf_carried_parts())
    TensorId id;
    int layer;
} CheckpointTensor;

// Lists the parameters under Hugging Face's names in *list (malloc'ed), followed by the tensors that a vision-language
// model carries, and returns their number.
int checkpoint_model_tensors(const Arena *arena, CheckpointTensor **list);
// Lists the optimizer's states in *list (malloc'ed), and returns their number: moments, their amaxes and exponents, and
// master weights.
int checkpoint_optimizer_tensors(const Arena *arena, CheckpointTensor **list);
// Lists this process's shards of the optimizer's states in *list, flattened to one dimension; omits empty shards.
int checkpoint_shard_tensors(const Arena *arena, CheckpointTensor **list);

// Writes a tensor's shape in the file to shape[]. Only the first t->rank values are meaningful.
void checkpoint_file_shape(const CheckpointTensor *t, int64_t shape[HF_MAX_RANK]);
// Returns the size in bytes of a tensor in the file, which equals that of its host copy.
size_t checkpoint_tensor_bytes(const CheckpointTensor *tensor);

// A safetensors file to write: its name, tensors and metadata.
typedef struct {
    const char *name;
    const CheckpointTensor *list;
    int count;
    // output: name of the first BF16 or FP32 tensor with an infinity or NaN; NULL if all are finite. nonfinite may be
    // NULL: not checked
    const char **nonfinite;
} TensorFile;

// Writes safetensors files into `folder` and adds them to the manifest in order. Writes in parallel from host copies,
// or one after the other from device memory if there are no copies.
bool checkpoint_write_tensors(const char *folder, const TensorFile *files, int count, Exec *exec, JsonText *manifest,
                              Error *err);

// Reads the safetensors file `name` of a checkpoint into device memory. Fails if tensors, types, shapes or checksums do
// not match the list. Types and shapes are checked before device memory changes. Carried tensors may have any type.
bool checkpoint_read_tensors(const Manifest *manifest, const char *name, const CheckpointTensor *list, int count,
                             Exec *exec, Error *err);
