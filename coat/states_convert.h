// Resuming with other formats of the optimizer's states than the checkpoint's (--moments, --second-moment,
// --moments-fp32, --master). What is stored as the run stores it is copied byte for byte; the rest is decoded to FP32
// and encoded anew, in pieces, by the functions that the optimizer itself uses (COAT: optimizer states).   moments
// rounded to nearest; the second moment is 0 only where it was, as after an update. Codes with expansion and
//             without have one layout and decode alike: they are copied, and the next update chooses its own k.
//   masters   fp32 <-> split16 is exact. To none: the BF16 value stays. From none: the master is that value.
#pragma once
#include "checkpoint_tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

// Reads folder/name, the optimizer's states, into device memory, after the model's values have been read. A line on
// stderr says if states are converted. Tensors, shapes and hashes must be as expected.
bool states_read(const Manifest *manifest, const char *name, const Arena *arena, Exec *exec, Error *err);

#ifdef __cplusplus
}
#endif
