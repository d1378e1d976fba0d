// Checkpoints of several processes. Rank 0 writes model.safetensors, whole, and the small files; all write their share
// of the optimizer's states at the same time, into optimizer-00000-of-00004.safetensors and so on: the tensors of
// optimizer.safetensors by the same names, flat, each cut as tensor_share() says, the same for all ZeRO stages. Rank 0
// waits for the others' files, lists them in the manifest and names the folder, so --out must be a folder that all
// processes see. Whoever resumes, in whatever number and stage, reads the ranges that are his (states_read.h).
#pragma once
#include "manifest.h"
#include "snapshot.h"

#ifdef __cplusplus
extern "C" {
#endif

// "optimizer.safetensors" of one process, "optimizer-00001-of-00004.safetensors" of several.
void checkpoint_shard_name(char *name, size_t size, int rank, int ranks);

// Writes the files of a rank other than 0 into the folder that rank 0 has made: its share, and a note with its hashes.
bool checkpoint_write_shard(const char *folder, const Snapshot *snapshot, Error *err);

// Waits for the notes of all other ranks, adds their files to the manifest and removes the notes. Fails as soon as
// snapshot->others_failed is set, or if a share has not grown for a long time.
bool checkpoint_collect_shards(const char *folder, const Snapshot *snapshot, JsonText *manifest, Error *err);

// How many processes wrote the optimizer's states that a manifest lists.
bool checkpoint_shard_count(const Manifest *manifest, int *count, Error *err);

#ifdef __cplusplus
}
#endif
