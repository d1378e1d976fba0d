// What a checkpoint is written from. Saving has two halves: snapshot_take() copies the states that a run resumes from
// into host memory, in the thread that trains; checkpoint_write() makes files of the copy, in any thread, while
// training continues. Without the copy (there is no room for it) the files are written from the device, and training
// waits.
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
    Shards *shards;             // of several processes, which save together; NULL: this one has all and saves alone
    const Tokenizer *tokenizer; // of the vocabulary that is copied along; NULL: none, or it could not be opened
    json_t *generation;         // the generation_config.json that came with the model; NULL: none
    RunState run;
    CheckpointTensor *model, *optimizer; // as in the files of these names
    int model_count, optimizer_count;
    char *algos;        // of rank 0's device (ops.h); NULL: none
    char *memory;       // of the copy; NULL: there is none
    size_t bytes;       // that it has or would need
    bool others_failed; // atomic: another rank could not write its shard (others_error), so rank 0 stops waiting
    Error others_error;
    const char
        *nonfinite; // a tensor of the model that was not finite when it was written; NULL: none, or none was written
} Snapshot;

// Lists the tensors: all, or with several processes the model's on rank 0 and each one's share of the optimizer's.
// Nothing is copied yet, and there is no memory for a copy.
void snapshot_open(Snapshot *snapshot, const Arena *arena, Exec *exec);

// Makes room for the copy, once for the whole run: page-locked where the device has that. False where the machine's
// memory would not do; the snapshot can then be written from the device.
bool snapshot_reserve(Snapshot *snapshot);

// The state as it is now: run, and the tensors where there is room for them. Called by all processes.
void snapshot_take(Snapshot *snapshot, const RunState *run);

void snapshot_close(Snapshot *snapshot);

// Makes the folder that a checkpoint is written into, under `out`, which is there. One process does so itself; of
// several rank 0, before any of them writes.
bool checkpoint_prepare(const char *out, int64_t step, Error *err);

// Saves a snapshot under `out`, a folder that is there. Says no more than that it failed, and
// why; on failure nothing of the new checkpoint remains and older ones are untouched. Looks at the device only where
// the snapshot has no memory. Several processes do this at the same time, and rank 0's result is that of the whole.
// Sets snapshot->nonfinite. may_place (NULL: always) is asked with `context` before the new checkpoint gets its name.
bool checkpoint_write(const char *out, Snapshot *snapshot, const char *tokenizer_file,
                      bool (*may_place)(const void *context, Error *err), const void *context, Error *err);

#ifdef __cplusplus
}
#endif
