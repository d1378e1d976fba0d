// Several processes as one run: who takes part, and the collectives between them. One process per GPU, started by
// mpirun, srun or any launcher that tells ranks in the environment. Three implementations behind one set of calls: one
// process (nothing to send), MPI between CPU twins, NCCL between GPUs.
//
// Every collective is called by all ranks in the same order with the same counts. It acts on memory of the exec's
// device: host memory on the CPU, where it has finished when the call returns; GPU memory with NCCL, where it is put
// onto a stream of its own, which comm_after_compute(), comm_mark() and comm_wait() order with the computation.
//
// Sums. Over MPI they are made in the order of the ranks, FP32 and BF16 in FP32 with one rounding at the end, so that
// an element's sum has the same bits whichever collective makes it and in every run. NCCL repeats its bits from run
// to run on the same machines, but its collectives add in orders of their own and round BF16 at every hop.
//
// A rank that is lost ends all: who waits for the others longer than the patience, or twice as long as it has worked
// itself since the collective before, prints one line that names them and ends the run with EXIT_RANK. Collectives
// therefore return nothing.
#pragma once
#include "config.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { COMM_FP32, COMM_FP64, COMM_BF16, COMM_I32, COMM_I64, COMM_BYTES } CommType; // BYTES: moved, never summed
typedef enum { COMM_SUM, COMM_MAX } CommOp; // MAX: FP32 (no NaN), I32, I64; FP32 >= 0 with NaN: as its bits in I32

#define COMM_PATIENCE 45    // seconds, unless comm_patience() says otherwise
#define FILES_PATIENCE 3600 // where one process may wait for others to read or write files

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

// Brings the processes together: one process, else MPI for the CPU's exec, NCCL for a GPU's. The exec is open, its
// device chosen, and outlives the Comm. Fails with EXIT_USER where this program was built without what that needs or
// the processes cannot find each other, EXIT_RANK where some of them do not come, EXIT_DEVICE where NCCL fails.
Comm *comm_open(const CommPlace *place, const Config *config, Exec *exec, Error *err);
// All ranks together, when all is well; NULL is allowed. One rank's failure is comm_abort()'s business.
void comm_close(Comm *comm);
// Ends all ranks at once with this exit code, after the caller has said why; comm NULL: only this process.
__attribute__((noreturn)) void comm_abort(Comm *comm, ExitCode code);

int comm_rank(const Comm *comm);
int comm_ranks(const Comm *comm);
const char *comm_name(const Comm *comm); // "one process", "MPI", "NCCL"

// --- collectives ------------------------------------------------------------------------------------------------
void comm_all_reduce(Comm *comm, void *data, int64_t count, CommType type, CommOp op); // in place
// The sum, of which each rank gets its part: in (ranks, count_per_rank), out (count_per_rank), which may be in's own
// part, in + rank * count_per_rank elements.
void comm_reduce_scatter(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type);
// out (ranks, count_per_rank) = everyone's in (count_per_rank), which may be out + rank * count_per_rank elements.
void comm_all_gather(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type);
// Collectives between these two may be sent off together, as one launch; results exist after the end. No nesting.
void comm_group_begin(Comm *comm);
void comm_group_end(Comm *comm);

// --- the host's agreement ---------------------------------------------------------------------------------------
// They return when all ranks have called them, and what they return is the same on all.
void comm_barrier(Comm *comm);
int64_t comm_max_i64(Comm *comm, int64_t mine); // the largest
// What stands between the two is done by one process of a machine after the other. What the
// first returns goes to the second.
int64_t comm_turn_begin(Comm *comm, int local_rank);
void comm_turn_end(Comm *comm, int64_t turns);
int64_t comm_sum_i64(Comm *comm, int64_t mine); // the sum
bool comm_all_good(Comm *comm, bool good,
                   Error *err); // false on all ranks where one is not good: each has an err then,
                                // its own or, with that rank's exit code, one that names it

// --- the order of communication and computation on a GPU ----------------------------------------------------------
// On a CPU all of this happens in the order of the calls and these do nothing. Within a recorded micro-step
// (ops.h replay_begin) they must come in pairs: what is communicated there is waited for there.
void comm_after_compute(Comm *comm);    // what is communicated from now on waits for what was computed so far
int comm_mark(Comm *comm);              // a ticket for everything communicated so far
void comm_wait(Comm *comm, int ticket); // computation from now on waits for that ticket

// --- losses -----------------------------------------------------------------------------------------------------
// Asked once a step: false with EXIT_RANK, or EXIT_DEVICE, where communication has failed.
bool comm_check(Comm *comm, Error *err);
// What follows may keep ranks waiting for each other for so many seconds (one rank writes a checkpoint); 0 = the
// default again. Called by all ranks.
void comm_patience(Comm *comm, int seconds);

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
