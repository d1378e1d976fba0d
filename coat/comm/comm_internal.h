// What the implementations of comm.h share.
#pragma once
#include <pthread.h>

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *name;
    void (*close)(Comm *);
    void (*abort)(Comm *, int code); // tells whoever can end the other ranks; may return
    void (*all_reduce)(Comm *, void *data, int64_t count, CommType, CommOp);
    void (*reduce_scatter)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*all_gather)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*group)(Comm *, bool begin);
    void (*host_reduce)(Comm *, int64_t *values, int count, CommOp); // of host memory; returns when done
    void (*after_compute)(Comm *);
    int (*mark)(Comm *);
    void (*wait)(Comm *, int ticket);
    bool (*check)(Comm *, Error *err);
} CommOps;

struct Comm {
    const CommOps *ops;
    CommPlace place;
    Exec *exec;
    void *backend;         // private to the implementation
    volatile int patience; // seconds
};

// Of implementations whose collectives are done when they return, and which end the run where they fail: comm.c.
void comm_no_group(Comm *comm, bool begin);
void comm_no_after_compute(Comm *comm);
int comm_no_mark(Comm *comm);
void comm_no_wait(Comm *comm, int ticket);
bool comm_no_check(Comm *comm, Error *err);

// A condition whose timed waits are on CLOCK_MONOTONIC: nobody waits an hour longer where the clock is set back by one.
static inline void comm_cond_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

// --- MPI: comm_mpi.c for the CPU's collectives; comm_mpi_open.c brings the processes together, NCCL's too ---------
bool comm_mpi_open(Comm *comm, Error *err);
typedef struct CommMpi CommMpi;
CommMpi *mpi_open(const CommPlace *place, Error *err); // NULL with err: no MPI here, or it sees other processes
void mpi_close(CommMpi *mpi);
void mpi_broadcast_bytes(CommMpi *mpi, void *data, size_t bytes, int root, int patience);
void mpi_abort(CommMpi *mpi, int code);

// --- NCCL: coat/cuda/comm_nccl.cu, in programs with CUDA ----------------------------------------------------------
bool comm_nccl_open(Comm *comm, const Config *config, Error *err);
void comm_cuda_copy(Exec *exec, void *to, const void *from, size_t bytes); // within the GPU, in order with computation

#ifdef __cplusplus
}
#endif
