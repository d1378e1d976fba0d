// What the parts of outdir.h have in common.
#pragma once
#include "outdir.h"

#ifdef __cplusplus
extern "C" {
#endif

// Locks the folder that is at out->path now, in place of the one before. The folder itself, too: its .lock may be
// deleted. before: the folder of this run so far, which may be the same; NULL: none.
bool out_take(OutFolder *out, const OutFolder *before, Error *err);

// The last by name of a run's files in the folder, whatever its order: the newest checkpoint if there is one; "": none.
bool out_find_run(const char *folder, char found[256], Error *err);

// Notes that the folder of a new run lies in another run's, which may have been meant. Not with --quiet.
void out_note_inside(const Config *config);

#ifdef __cplusplus
}
#endif
