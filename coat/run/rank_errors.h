// Ends all processes of a run together: after an error on one rank, every rank ends with the same exit code, and rank 0
// prints the error. Also works with one process.
#pragma once
#include "comm/comm.h"

C_LINKAGE_BEGIN

typedef struct {
    Comm *comm;  // connection to the other ranks; NULL until they are connected
    bool failed; // true: all ranks know the error that ends the run
    bool reported;
} RankErrors;

// True if `ok` is true on all ranks; all of them must call this. Otherwise returns false on all ranks, now and in every
// later call, and sets the same err on all.
bool all_ranks_ok(RankErrors *e, bool ok, Error *err);

// Records that every rank has found the same error by itself. Always returns false.
bool on_all_ranks(RankErrors *e);

// Prints the error that ends the run, once. If all ranks know the error, only rank 0 prints it, and the other ranks
// wait for rank 0, because mpirun may kill all processes when one exits.
void report_error_once(RankErrors *e, int rank, const Error *err);

C_LINKAGE_END
