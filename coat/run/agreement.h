// How processes end together: a failure of one becomes that of all, and one of them says it. One process alone agrees
// with itself, so that what is written with it reads as for one.
#pragma once
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Comm *comm;          // NULL until the processes have met
    bool failed;         // all of them know of the failure that ends the run
    int first_failed;    // a rank, which says why
    bool some_succeeded; // it has not failed everywhere: the message names which did
    bool said;
} Agreement;

// Whether all processes are well; called by all. Where one is not, false on all, also from then on.
bool all_well(Agreement *a, bool well, Error *err);

// Of a failure that every process finds by itself, by the same numbers: there is nothing to tell. Always false.
bool all_failed(Agreement *a);

// Prints the error that ends the run, once, on the first process that failed. The others wait for it: when one ends,
// mpirun may end all.
void agreement_say(Agreement *a, int rank, const Error *err);

#ifdef __cplusplus
}
#endif
