// Reading the optimizer's states: from the files of any number of processes into what this one holds, whatever their
// number and stage now (checkpoint_shards.h), and whatever formats they are stored in and the run keeps them in
// (--moments, --moments-fp32, --master). What is stored as the run stores it is copied byte for byte;
// the rest is decoded to FP32 and encoded anew, in pieces, by the functions that the optimizer itself uses (COAT:
// optimizer states), so that processes get the bits that one alone would.
//   moments   rounded to nearest; the second moment is 0 only where it was, as after an update. Codes with expansion
//             and without have one layout and decode alike: they are copied, and the next update chooses its own k.
//   masters   fp32 <-> split16 is exact. To none: the BF16 value stays. From none: the master is that value.
#pragma once
#include "checkpoint_tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

// Reads the states that `files` processes wrote into a checkpoint's folder to device memory, after the model's values
// have been read. Rank 0 says on stderr if states are converted. Tensors and shapes must be as expected, and so must
// hashes, as far as tensors are read whole (checkpoint_find() has looked at those of the files).
bool states_read(const Manifest *manifest, int files, const Arena *arena, Exec *exec, Error *err);

#ifdef __cplusplus
}
#endif
