// The state that a checkpoint is written from. Saving has two parts. snapshot_copy() copies the states that a resumed
// run needs into host memory, in the thread that trains. checkpoint_write() writes files from this copy, in any thread,
// while training continues. If there is no memory for a copy, the files are written from the device and training waits.
#pragma once
#include "checkpoint.h"
#include "checkpoint_tensors.h"
#include "model/shards.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const Arena *arena;
    Exec *exec;
    Shards *shards;             // with several processes, which save together; NULL: one process saves everything
    const Tokenizer *tokenizer; // of the vocabulary that is copied into the checkpoint; NULL: none, or not readable
    json_t *generation;         // the generation_config.json that came with the model; NULL: none
    RunState run;
    CheckpointTensor *model, *optimizer; // tensors of model.safetensors and of this process's optimizer file
    int model_count, optimizer_count;
    char *algos;           // the GEMM algorithms of rank 0's device as text (ops.h); NULL: none
    char *memory;          // the copy of the tensors; NULL: there is no copy
    size_t bytes;          // size of the copy, even if there is none
    bool others_failed;    // atomic: another rank could not write its shard, so rank 0 must not wait for it
    Error others_error;    // the reason, set before others_failed
    const char *nonfinite; // a model tensor that was not finite when it was written; NULL: none
} Snapshot;

// Lists the tensors that this process saves: with one process all; with several, the model's on rank 0 and each rank's
// shard of the optimizer states. Copies nothing and allocates no memory for a copy.
void snapshot_open(Snapshot *snapshot, const Arena *arena, Exec *exec);

// Allocates memory for the copy once for the whole run, page-locked if the device supports that. Returns false if the
// memory of the machine does not suffice.
bool snapshot_reserve(Snapshot *snapshot);

// Stores `run`, and copies the tensors if there is memory for them. With several processes, all must call this.
void snapshot_copy(Snapshot *snapshot, const RunState *run);

void snapshot_close(Snapshot *snapshot);

// Creates the temporary folder of a checkpoint in the existing folder `out`. With several processes, rank 0 calls this
// before any of them writes; checkpoint_write() calls it with one process.
bool checkpoint_prepare(const char *out, int64_t step, Error *err);

// Writes a checkpoint of the snapshot in the existing folder `out`, and sets snapshot->nonfinite. Reads from the device
// only if there is no copy. With several processes all call this, and rank 0's result is that of the checkpoint. On
// failure, nothing of the new checkpoint remains and older ones are unchanged.
bool checkpoint_write(const char *out, Snapshot *snapshot, const char *tokenizer_file, Error *err);

#ifdef __cplusplus
}
#endif
