// Reads the optimizer's states of a checkpoint. Any number of processes may have written them, and any number in any
// ZeRO stage may read them (checkpoint_shards.h). The stored formats may differ from the run's (--moments,
// --moments-fp32, --master): equal formats are copied byte for byte, others are decoded to FP32 and encoded with the
// optimizer's own functions. The result does not depend on the number of processes.
//   moments  Encoding rounds to nearest. A second moment that is not 0 does not become 0, as in an update. FP8 values
//   with
//            and without dynamic range expansion have the same layout, so they are copied.
//   masters  fp32 <-> split16 is exact. To none: the BF16 weight stays. From none: the master weight becomes the BF16
//            weight.
#pragma once
#include "checkpoint_tensors.h"

// Reads optimizer states, which `files` processes wrote into the manifest's folder, to device memory. The model's
// weights must be loaded already. Rank 0 prints to stderr if states are converted. Fails if tensors or shapes do not
// match, or if the checksum of a completely read tensor does not match (checkpoint_find() has verified the files).
bool states_read(const Manifest *manifest, int files, const Arena *arena, Exec *exec, Error *err);
