// How processes end together: an error of one rank ends all of them, with its exit code, and rank 0 prints it. One
// process works the same way.
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

// True if `ok` is true on all ranks; all call this. Otherwise false on all ranks from now on, with the same err.
bool all_ranks_ok(RankErrors *e, bool ok, Error *err);

// Records an error that every rank finds by itself in the same way. Always false.
bool on_all_ranks(RankErrors *e);

// Prints the error that ends the run, once. The other ranks wait for rank 0, because mpirun may end all when one ends.
void report_error_once(RankErrors *e, int rank, const Error *err);

#ifdef __cplusplus
}
#endif
