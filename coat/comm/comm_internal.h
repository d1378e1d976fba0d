// Declarations that the implementations of comm.h (MPI, NCCL) share.
#pragma once
#include "comm.h"

C_LINKAGE_BEGIN

// Function table of an implementation of comm.h. A NULL function has nothing to do: there is only one process, or the
// implementation's collectives finish before they return, and end the run if they fail.
typedef struct {
    const char *name;
    void (*close)(Comm *);           // closes the connection and calls watchdog_close()
    void (*abort)(Comm *, int code); // tells the launcher to end the other ranks; may or may not return
    void (*all_reduce)(Comm *, void *data, int64_t count, CommType, CommOp);
    void (*reduce_scatter)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*all_gather)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*group)(Comm *, bool begin);
    // reduces values in host memory and returns when the result is complete; NULL: comm.c calls all_reduce
    void (*host_reduce)(Comm *, int64_t *values, int count, CommOp);
    void (*after_compute)(Comm *);
    int (*mark)(Comm *);
    void (*wait)(Comm *, int ticket);
    bool (*check)(Comm *, Error *err);
} CommOps;

struct Comm {
    const CommOps *ops;
    CommPlace place;
    Exec *exec;
    void *backend;                 // state of the implementation
    struct Watchdog *watchdog;     // ends the process if another rank is lost; NULL with one process
    volatile uint32_t counters[2]; // number of collectives started [0] and finished [1]; unused with NCCL
    volatile int timeout;          // timeout in seconds
};

// Appends a rank to a list such as "1, 2, 7"; appends "..." if there is no room for more.
void comm_list_rank(char *list, size_t size, int rank);

// --- functions of comm_mpi.c (MPI) --------------------------------------------------------------------------------
bool comm_mpi_open(Comm *comm, Error *err); // for collectives between CPUs
typedef struct CommMpi CommMpi;
// returns NULL with err if there is no MPI, or if MPI has other processes than the run
CommMpi *mpi_open(const CommPlace *place, Error *err);
void mpi_close(CommMpi *mpi);
void mpi_broadcast(CommMpi *mpi, void *data, size_t bytes); // copies rank 0's data to all ranks
void mpi_abort(CommMpi *mpi, int code);

// --- functions of coat/cuda/comm_nccl.cu (NCCL), in programs with CUDA --------------------------------------------
bool comm_nccl_open(Comm *comm, const Config *config, Error *err);
// copies within the GPU's memory, in order with the computation
void comm_cuda_copy(Exec *exec, void *to, const void *from, size_t bytes);

C_LINKAGE_END
