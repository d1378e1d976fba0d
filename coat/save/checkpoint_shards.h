// Checkpoints of several processes. All processes write their shards of the optimizer's states in parallel, to
// optimizer-00000-of-00004.safetensors and so on. These files contain the tensors of optimizer.safetensors under the
// same names, flattened and cut into shards of tensor_shard_elements() elements. The shards are the same in all ZeRO
// stages. Rank 0 also writes the complete model.safetensors and the small files. Rank 0 then waits for the other ranks'
// files, lists them in the manifest and renames the folder. Therefore all processes must see --out as the same folder.
// A resumed run may have a different number of processes or ZeRO stage: each process reads the ranges that it needs
// (states_read.h).
#pragma once
#include "manifest.h"
#include "snapshot.h"

// Writes a rank's file name to name[size]: "optimizer-00001-of-00004.safetensors", or "optimizer.safetensors" if ranks
// is 1.
void checkpoint_shard_name(char *name, size_t size, int rank, int ranks);

// Writes this rank's shard of the optimizer's states into the folder that rank 0 created, and then a note file with the
// shard's hashes. Only ranks other than 0 call it.
bool checkpoint_write_shard(const char *folder, const Snapshot *snapshot, Error *err);

// Waits for the note files of all other ranks, adds the ranks' shard files to the manifest and removes the notes. Fails
// if snapshot->others_failed is set or the folder disappears. Also fails if a rank's shard file does not appear within
// 5 minutes, or does not grow for an hour.
bool checkpoint_collect_shards(const char *folder, const Snapshot *snapshot, JsonText *manifest, Error *err);

// Sets *count to the number of processes that wrote the optimizer's states. Fails if the manifest does not list the
// files of all these processes.
bool checkpoint_shard_count(const Manifest *manifest, int *count, Error *err);
