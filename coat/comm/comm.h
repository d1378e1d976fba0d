// Several processes as one run: which processes take part, and the collectives between them. One process per GPU,
// started by mpirun, srun, torchrun or any launcher that sets ranks in the environment. Three implementations: one
// process, MPI between CPUs, NCCL between GPUs.
//
// All ranks call every collective in the same order with the same counts. A collective acts on memory of the exec's
// device. On a CPU it is done when the call returns. NCCL runs on a stream of its own, which comm_after_compute(),
// comm_mark() and comm_wait() order with the computation.
//
// Sums over MPI are computed in the order of the ranks, BF16 in FP32 with one rounding at the end, so that an element's
// sum has the same bits in every collective and run. NCCL repeats its bits on the same machines, but it adds in other
// orders and rounds BF16 at every hop.
//
// If a rank is lost, all end. A rank that waits longer than the timeout, or twice as long as it has worked itself since
// the collective before, prints one line that names the late ranks and exits with EXIT_RANK. So collectives return
// nothing.
#pragma once
#include "config/config.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { COMM_FP32, COMM_FP64, COMM_BF16, COMM_I32, COMM_I64, COMM_BYTES } CommType; // BYTES: moved, never summed
typedef enum { COMM_SUM, COMM_MAX } CommOp; // MAX: FP32 (no NaN), I32, I64; FP32 >= 0 with NaN: as its bits in I32

#define COMM_TIMEOUT_S 45    // unless comm_set_timeout() sets another
#define FILES_TIMEOUT_S 3600 // while one process may wait for others to read or write files

// The place of this process in the run.
typedef struct {
    int rank, ranks;
    int local_rank, local_ranks; // among the processes of this machine; local_ranks 0 = unknown
    const char *launcher;        // who told: "mpirun", "srun" ..., "" for one process
    bool mpi;                    // the launcher is MPI's: MPI may be initialised
    char origin[96];             // the variables or flags that say so, as "SLURM_NTASKS=4, SLURM_PROCID=0"
} CommPlace;

// Finds the place by the environment (OMPI_COMM_WORLD_*, PMI_*, RANK and WORLD_SIZE, SLURM_*) and by --world-size and
// --rank. --world-size 1, and both flags together, win over the environment; one flag alone may only add what the
// environment does not say. Calls nothing of MPI. EXIT_USER if they contradict each other.
bool comm_discover(const Config *config, CommPlace *place, Error *err);
// Whether the environment says that a launcher of MPI started this process, or any launcher several of them.
bool comm_launched(void);

typedef struct Comm Comm;

// Connects the processes: none if there is one, else over MPI for the CPU's exec and over NCCL for a GPU's. The exec is
// open and outlives the Comm. EXIT_USER if this program was built without MPI or NCCL, or if the processes cannot find
// each other; EXIT_RANK if some do not connect; EXIT_DEVICE if NCCL fails.
Comm *comm_open(const CommPlace *place, const Config *config, Exec *exec, Error *err);
// Called by all ranks if none has failed. comm may be NULL.
void comm_close(Comm *comm);
// Ends all ranks at once with this exit code; the caller has printed the reason. If comm is NULL, only this process.
__attribute__((noreturn)) void comm_abort(Comm *comm, ExitCode code);

int comm_rank(const Comm *comm);
int comm_ranks(const Comm *comm);
const char *comm_name(const Comm *comm); // "one process", "MPI", "NCCL"

// --- collectives ------------------------------------------------------------------------------------------------
void comm_all_reduce(Comm *comm, void *data, int64_t count, CommType type, CommOp op); // in place
// out (count_per_rank) = this rank's part of the sum of in (ranks, count_per_rank). out may be that part of `in`.
void comm_reduce_scatter(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type);
// out (ranks, count_per_rank) = the `in` (count_per_rank) of every rank. in may be this rank's part of out.
void comm_all_gather(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type);
// Collectives between these two may run as one launch; their results exist after the end. Not nested.
void comm_group_begin(Comm *comm);
void comm_group_end(Comm *comm);

// --- between hosts ------------------------------------------------------------------------------------------------
// These return when all ranks have called them, and return the same on all.
void comm_barrier(Comm *comm);
int64_t comm_max_i64(Comm *comm, int64_t mine);
int64_t comm_sum_i64(Comm *comm, int64_t mine);
// Sets `text` to that of rank `from`, cut to the size.
void comm_share_text(Comm *comm, int from, char *text, size_t size);
// The processes of one machine execute the code between these two one after the other. The first returns the argument
// of the second.
int64_t comm_serialize_begin(Comm *comm, int local_rank);
void comm_serialize_end(Comm *comm, int64_t barriers);
// Returns false on all ranks if `good` is false on one. Then err on every rank names the first failed rank and has its
// reason and exit code. If all have failed, each keeps its own err.
bool comm_all_good(Comm *comm, bool good, Error *err);

// --- the order of communication and computation on a GPU ----------------------------------------------------------
// On a CPU these do nothing. Within a recorded micro-step (ops.h replay_begin) they come in pairs: what is communicated
// there is waited for there.
void comm_after_compute(Comm *comm);    // communication from now on waits for the computation so far
int comm_mark(Comm *comm);              // returns a ticket for the communication so far
void comm_wait(Comm *comm, int ticket); // computation from now on waits for that ticket

// --- lost ranks ---------------------------------------------------------------------------------------------------
// Called once per step. False with EXIT_RANK or EXIT_DEVICE if communication has failed.
bool comm_check(Comm *comm, Error *err);
// Sets how many seconds ranks may wait for each other from now on; 0 = COMM_TIMEOUT_S. Called by all ranks.
void comm_set_timeout(Comm *comm, int seconds);

static inline size_t comm_type_bytes(CommType type) {
    switch (type) {
    case COMM_FP64:
    case COMM_I64: return 8;
    case COMM_FP32:
    case COMM_I32: return 4;
    case COMM_BF16: return 2;
    default: return 1;
    }
}

#ifdef __cplusplus
}
#endif
