// Ends all processes of a run together: after an error on one rank, every rank ends with the same exit code, and rank 0
// prints the error. A run may have a single process.
#pragma once
#include "comm/comm.h"

C_LINKAGE_BEGIN

typedef struct {
    Comm *comm;  // connection to the other ranks; NULL until the ranks are connected
    bool failed; // true if all ranks know the error that ends the run
    bool reported;
} RankErrors;

// True if `ok` is true on all ranks. Otherwise returns false on all ranks, in this and every later call, and sets the
// same err on all ranks. All ranks must call all_ranks_ok().
bool all_ranks_ok(RankErrors *e, bool ok, Error *err);

// Records that every rank finds the same error by itself, so that no rank needs to send the error. Always returns
// false.
bool on_all_ranks(RankErrors *e);

// Prints the error that ends the run, only once. If all ranks know the error, only `rank` 0 prints the error. The other
// ranks wait until then, because mpirun may kill all processes when one process exits. `rank` is the rank in the run;
// before the ranks are connected, `rank` is the rank within the host, so that every host prints its error.
void report_error_once(RankErrors *e, int rank, const Error *err);

C_LINKAGE_END
