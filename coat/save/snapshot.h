// A copy of the training state that a checkpoint is written from. Saving has two parts. snapshot_copy() copies the
// states that a resumed run needs into host memory, in the thread that trains. checkpoint_write() writes files from
// this copy, in any thread, while training continues. If there is no memory for a copy, the files are written from the
// device and training waits.
#pragma once
#include "checkpoint.h"
#include "checkpoint_tensors.h"
#include "model/shards.h"
#include "text/tokenizer.h"

typedef struct {
    const Arena *arena;
    Exec *exec;
    Shards *shards; // shards of several processes, which save together; NULL: one process saves everything
    // tokenizer of the vocabulary that is copied into the checkpoint; NULL: no readable tokenizer
    const Tokenizer *tokenizer;
    json_t *generation; // the generation_config.json that came with the model; NULL: none
    json_t *processor;  // the processor files that came with a vision-language model (hf_processor_open()); NULL: none
    RunState run;
    CheckpointTensor *model, *optimizer; // tensors of model.safetensors and of this process's optimizer file
    int model_count, optimizer_count;
    char *algos;           // GEMM algorithms that rank 0's device uses, as text; NULL: none
    char *memory;          // copy of the tensors in host memory; NULL: there is no copy
    size_t carried_bytes;  // bytes of tensors that only checkpoints need (hf_carried_parts())
    size_t bytes;          // size in bytes of the host copy, which is not allocated if there is too little memory
    bool others_failed;    // atomic: another rank could not write its shard, so rank 0 must not wait for the shard
    Error others_error;    // why another rank could not write its shard; set before others_failed
    const char *nonfinite; // name of a model tensor that had an infinity or NaN when it was written; NULL: none
} Snapshot;

// Lists the tensors that this process saves. A single process saves all tensors. With several processes, rank 0 saves
// the model's tensors, and each rank its shard of the optimizer states. Copies no tensors.
void snapshot_open(Snapshot *snapshot, const Arena *arena, Exec *exec);

// Allocates host memory for the copy, once for the whole run; page-locked memory if the device supports that. Returns
// false if the machine has too little memory.
bool snapshot_reserve(Snapshot *snapshot);

// Reads the tensors of a vision-language model that only checkpoints need (hf_carried_parts()) from the folder that the
// tower came from (config_vision_files()). Sets a tensor that the folder lacks to 0, or to 1 if it is the weight of a
// norm. Prints a warning if the folder cannot be read. Call it once, before the first save: the folder may be a
// checkpoint that a later save deletes. Does nothing on ranks other than 0.
void snapshot_read_carried(Snapshot *snapshot);

// Stores `run` and the GEMM algorithms, and copies the tensors if there is memory for them. With several processes, all
// of them must call this.
void snapshot_copy(Snapshot *snapshot, const RunState *run);

void snapshot_close(Snapshot *snapshot);

// Creates the temporary folder of a checkpoint in the existing folder `out`, after deleting the temporary folders of
// interrupted saves. With several processes, rank 0 must call this before any process writes. With one process,
// checkpoint_write() calls this.
bool checkpoint_prepare(const char *out, int64_t step, Error *err);

// Writes a checkpoint of the snapshot into the existing folder `out`, and sets snapshot->nonfinite. Reads from the
// device only if there is no host copy. With several processes, all must call this. Rank 0 returns whether the
// checkpoint is complete, any other rank whether its shard is written. If the save fails before the folder gets its
// final name, rank 0 removes the folder and leaves older checkpoints unchanged.
bool checkpoint_write(const char *out, Snapshot *snapshot, const char *tokenizer_file, Error *err);
