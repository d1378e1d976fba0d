// Ends all processes of a run together: an error of one rank ends every rank with the same exit code, and rank 0 prints
// it. Works with one process, too.
#pragma once
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Comm *comm;  // NULL until the processes are connected
    bool failed; // all ranks know the error that ends the run
    bool reported;
} RankErrors;

// True if `ok` is true on all ranks, each of which must call this. Otherwise false on all ranks, in this and every
// later call, and sets the same err on all.
bool all_ranks_ok(RankErrors *e, bool ok, Error *err);

// Records that every rank has found the same error by itself. Always false.
bool on_all_ranks(RankErrors *e);

// Prints the error that ends the run, once. If all ranks know the error, only rank 0 prints it, and the others wait for
// rank 0, because mpirun may kill all processes when one exits.
void report_error_once(RankErrors *e, int rank, const Error *err);

#ifdef __cplusplus
}
#endif
