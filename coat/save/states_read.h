// Reads the optimizer's states of a checkpoint. Any number of processes may have written the states, and any number of
// processes in any ZeRO stage may read them (checkpoint_shards.h). The result does not depend on these numbers. States
// that are stored in this run's format (--moments, --moments-fp32, --master) are copied byte for byte. Other states are
// decoded to FP32 and encoded with the optimizer's own functions:
//   moments  Encoding rounds to nearest. Like an update, encoding does not round a nonzero second moment to 0. FP8
//            values with and without dynamic range expansion have the same layout, so they are copied.
//   masters  Conversion between fp32 and split16 is exact. If the run has no masters, the BF16 weights are kept; if
//            the file has none, the masters are set to the BF16 weights.
// A vision-language model has three parts: language model, vision tower and projector. If --freeze named a part when
// the states were written, the part's moments start at 0. If --freeze names a part now, the states of this part are not
// read.
#pragma once
#include "checkpoint_tensors.h"

// Reads the optimizer states that `files` processes wrote into the manifest's folder to device memory. The model's
// weights must be loaded already. Rank 0 prints to stderr if states are converted, start at 0 or are not read. Fails if
// tensors or shapes do not match, or if the checksum of a completely read tensor does not match. The checksum of a
// partly read tensor is not verified again, because checkpoint_find() has verified the files.
bool states_read(const Manifest *manifest, int files, const Arena *arena, Exec *exec, Error *err);
