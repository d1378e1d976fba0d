#pragma once
#include "comm.h"

C_LINKAGE_BEGIN

// Functions of one implementation of comm.h. reduce_scatter, all_gather and all_to_all must not be NULL. comm.c skips
// any other function that is NULL, except host_reduce, for which it calls all_reduce. For example, after_compute, mark
// and wait are NULL if every collective is complete when it returns.
typedef struct {
    const char *name;
    void (*close)(Comm *); // disconnects from the other ranks and calls watchdog_close()
    // asks MPI's launcher to end the other ranks, which may end after the return; does nothing without MPI
    void (*abort)(Comm *, int code);
    void (*all_reduce)(Comm *, void *data, int64_t count, CommType, CommOp);
    void (*reduce_scatter)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*all_gather)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*all_to_all)(Comm *, void *out, const void *in, int64_t count_per_rank, CommType);
    void (*group)(Comm *, bool begin);
    // reduces values in host memory and returns when the result is complete; if NULL, comm.c calls all_reduce() instead
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
    struct Watchdog *watchdog;     // thread that ends the process if another rank is lost; NULL if there is one process
    volatile uint32_t counters[2]; // numbers of collectives started ([0]) and finished ([1]), counted by comm_mpi.c
    volatile int timeout;          // seconds that a rank waits for another rank (comm_set_timeout())
};

// Appends a rank to a list such as "1, 2, 7". If the list has no room left, appends "..." instead.
void comm_list_rank(char *list, size_t size, int rank);

// --- functions of comm_mpi.c --------------------------------------------------------------------------------------
bool comm_mpi_open(Comm *comm, Error *err); // connects the processes over MPI, for collectives between CPUs
typedef struct CommMpi CommMpi;
// Starts MPI. Returns NULL with err if MPI cannot start or reports a rank or number of ranks that differs from `place`.
CommMpi *mpi_open(const CommPlace *place, Error *err);
void mpi_close(CommMpi *mpi);
void mpi_broadcast(CommMpi *mpi, void *data, size_t bytes); // copies rank 0's data to all ranks
void mpi_abort(CommMpi *mpi, int code);

// --- functions of coat/cuda/comm_nccl.cu, in programs that are built with CUDA ------------------------------------
bool comm_nccl_open(Comm *comm, const Config *config, Error *err);
// Copies bytes within the memory of exec's GPU, on the stream of the computation.
void comm_cuda_copy(Exec *exec, void *to, const void *from, size_t bytes);

C_LINKAGE_END
