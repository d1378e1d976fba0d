// What the implementations of comm.h share.
#pragma once
#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

// One implementation of comm.h. A function that is NULL has nothing to do: with one process, or because collectives
// are done when they return and end the run if they fail.
typedef struct {
    const char *name;
    void (*close)(Comm *);           // with watchdog_close()
    void (*abort)(Comm *, int code); // tells the launcher to end the other ranks; may return
    void (*all_reduce)(Comm *, void *data, int64_t count, CommType, CommOp);
    void (*reduce_scatter)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*all_gather)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*group)(Comm *, bool begin);
    void (*host_reduce)(Comm *, int64_t *values, int count, CommOp); // in host memory; returns when done.
                                                                     // NULL: all_reduce is used
    void (*after_compute)(Comm *);
    int (*mark)(Comm *);
    void (*wait)(Comm *, int ticket);
    bool (*check)(Comm *, Error *err);
} CommOps;

struct Comm {
    const CommOps *ops;
    CommPlace place;
    Exec *exec;
    void *backend;                 // private to the implementation
    struct Watchdog *watchdog;     // NULL with one process
    volatile uint32_t counters[2]; // collectives begun and finished, if the host counts them
    volatile int timeout;          // seconds
};

// Appends a rank to a list such as "1, 2, 7", or "..." if it has no room for more.
void comm_list_rank(char *list, size_t size, int rank);

// --- MPI: comm_mpi.c ----------------------------------------------------------------------------------------------
bool comm_mpi_open(Comm *comm, Error *err); // for CPUs
typedef struct CommMpi CommMpi;
CommMpi *mpi_open(const CommPlace *place, Error *err); // NULL with err: no MPI here, or it has other processes
void mpi_close(CommMpi *mpi);
void mpi_broadcast(CommMpi *mpi, void *data, size_t bytes); // from rank 0
void mpi_abort(CommMpi *mpi, int code);

// --- NCCL: coat/cuda/comm_nccl.cu, in programs with CUDA ----------------------------------------------------------
bool comm_nccl_open(Comm *comm, const Config *config, Error *err);
void comm_cuda_copy(Exec *exec, void *to, const void *from, size_t bytes); // within the GPU, in order with computation

#ifdef __cplusplus
}
#endif
