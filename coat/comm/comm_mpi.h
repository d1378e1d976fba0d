// The processes as MPI knows them: what opening (comm_mpi_open.c) and collectives (comm_mpi.c) share.
// Empty in a program without MPI.
#pragma once
#include "comm_internal.h"

#ifdef COAT_MPI
#include <mpi.h>

#include "clock.h"

struct CommMpi {
    MPI_Comm comm;
    int rank, ranks;
    char *staging; // (ranks, staging_piece) bytes
    int64_t staging_piece;
    MPI_Request *requests; // of the messages under way, at most 2 * ranks
    int *peers;            // with whom
    int count;
    const char *doing;
    double idle_since; // end of the last collective
    double limit;      // seconds that one wait of this collective may take
    int crowded;       // so many waits to come sleep, as another program keeps the core
};

#endif
