// Connects the processes of one run: finds this process's rank and provides collectives. Each GPU has one process,
// started by mpirun, srun, torchrun or any launcher that sets ranks in the environment. There are three
// implementations: one process, MPI between CPUs, and NCCL between GPUs.
//
// All ranks call every collective in the same order with the same counts. A collective acts on memory of the exec's
// device. A collective on a CPU returns when its result is complete. NCCL's collectives run on a separate CUDA stream.
// comm_after_compute(), comm_mark() and comm_wait() order this stream and the stream of the computation.
//
// With MPI, sums are computed in rank order, so an element's sum has the same bits in all-reduce, in reduce-scatter and
// in every run. BF16 values are summed in FP32 and rounded once. With NCCL, sums have the same bits in every run on the
// same machines. NCCL adds in a different order than MPI, and rounds BF16 at every hop between GPUs.
//
// If a rank is lost, all ranks end: a rank that waits too long in a collective prints one line that names the late
// ranks, and exits with EXIT_RANK. The limit is the timeout or, if longer, twice this rank's own work since the
// previous collective. Therefore collectives do not return errors.
#pragma once
#include "config/config.h"
#include "ops.h"

C_LINKAGE_BEGIN

// COMM_BYTES: data that is moved but not summed
typedef enum { COMM_FP32, COMM_FP64, COMM_BF16, COMM_I32, COMM_I64, COMM_BYTES } CommType;
// COMM_MAX supports I32, I64 and FP32 without NaN. For FP32 values >= 0 that may be NaN, pass their bits as I32.
typedef enum { COMM_SUM, COMM_MAX } CommOp;

#define COMM_TIMEOUT_S 45    // default timeout in seconds for one rank's wait for another
#define FILES_TIMEOUT_S 3600 // timeout in seconds while a rank may read or write files

// Rank of this process in the run, and the launcher or variables that set it.
typedef struct {
    int rank, ranks;
    int local_rank, local_ranks; // rank among the processes on this machine, and their number (0: unknown)
    const char *launcher; // source of the rank: "mpirun", "srun", "the environment", "the flags" ...; "": one process
    bool mpi;             // true if an MPI launcher started this process, so that MPI may be initialized
    char origin[96];      // environment variables or flags that set the rank, such as "SLURM_NTASKS=4, SLURM_PROCID=0"
} CommPlace;

// Finds this process's rank from the environment (OMPI_COMM_WORLD_*, PMI_*, RANK and WORLD_SIZE, SLURM_*) and from
// --world-size and --rank. --world-size 1, or both flags together, override the environment; one flag alone may only
// supply a value that the environment lacks. Does not call MPI. Fails (EXIT_USER) if a value is missing or not valid,
// or if flags and environment contradict each other.
bool comm_discover(const Config *config, CommPlace *place, Error *err);
// True if the environment shows that an MPI launcher started this process, or that any launcher started several
// processes.
bool comm_launched(void);

typedef struct Comm Comm;

// Connects the processes over MPI if exec is on a CPU, or over NCCL if exec is on a GPU. With one process, there is
// nothing to connect. exec must be open and outlive the Comm. Fails with EXIT_USER if this program was built without
// MPI or NCCL, or if the processes cannot find each other. Fails with EXIT_RANK if MPI does not start or a process does
// not connect. Fails with EXIT_DEVICE if NCCL fails.
Comm *comm_open(const CommPlace *place, const Config *config, Exec *exec, Error *err);
// Waits until all ranks have called comm_close(), then disconnects them. If another rank might not call comm_close(),
// use comm_abort() instead. comm may be NULL.
void comm_close(Comm *comm);
// Ends this process at once with the exit code `code`. The caller must have printed the reason. MPI's launcher or the
// watchdogs of the other ranks end the other ranks. If comm is NULL, only this process ends.
__attribute__((noreturn)) void comm_abort(Comm *comm, ExitCode code);

int comm_rank(const Comm *comm);
int comm_ranks(const Comm *comm);
const char *comm_name(const Comm *comm); // name of the implementation: "one process", "MPI" or "NCCL"

// --- collectives on device memory -------------------------------------------------------------------------------
// Reduces data[count] over the ranks, in place.
void comm_all_reduce(Comm *comm, void *data, int64_t count, CommType type, CommOp op);
// Sums `in` (ranks, count_per_rank) over the ranks. Writes row comm_rank() of the sum to out (count_per_rank), which
// may be row comm_rank() of `in`.
void comm_reduce_scatter(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type);
// Gathers `in` (count_per_rank) of every rank r to row r of out (ranks, count_per_rank). `in` may be row comm_rank() of
// `out`.
void comm_all_gather(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type);
// Sends row r of in (ranks, count_per_rank) to rank r. Writes the row that rank r sends to this rank to row r of `out`,
// which must not overlap `in`.
void comm_all_to_all(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type);
// Collectives between comm_group_begin() and comm_group_end() may run as one launch. Their results are available after
// comm_group_end(). Groups cannot be nested.
void comm_group_begin(Comm *comm);
void comm_group_end(Comm *comm);

// --- exchange of host values; each call waits for all ranks --------------------------------------------------------
void comm_barrier(Comm *comm); // waits until all ranks have called comm_barrier()
// Return the maximum and the sum of `mine` over the ranks.
int64_t comm_max_i64(Comm *comm, int64_t mine);
int64_t comm_sum_i64(Comm *comm, int64_t mine);
// Copies the text of rank `from` to `text` on every rank, truncated to `size` bytes with the final '\0'.
void comm_share_text(Comm *comm, int from, char *text, size_t size);
// The processes of one machine execute the code between comm_serialize_begin() and comm_serialize_end() one after the
// other, in the order of local_rank. comm_serialize_begin() returns the number of barriers that comm_serialize_end()
// must call on this rank.
int64_t comm_serialize_begin(Comm *comm, int local_rank);
void comm_serialize_end(Comm *comm, int64_t barriers);
// Returns false on all ranks if `good` is false on any rank. On every rank, err then contains the number, reason and
// exit code of the lowest rank that failed. If all ranks have failed, each rank keeps its own err.
bool comm_all_good(Comm *comm, bool good, Error *err);

// --- order of communication and computation on a GPU --------------------------------------------------------------
// These functions do nothing on a CPU. Communication that starts in a micro-step recorded by replay_begin()
// (device_functions.h) must be waited for in the same micro-step.
void comm_after_compute(Comm *comm);    // makes communication started later wait for computation started so far
int comm_mark(Comm *comm);              // returns a ticket for all communication started so far
void comm_wait(Comm *comm, int ticket); // makes computation started later wait for the communication of `ticket`

// --- detection of lost ranks --------------------------------------------------------------------------------------
// Returns false with err (EXIT_RANK or EXIT_DEVICE) if communication has failed. Call comm_check() once per step.
bool comm_check(Comm *comm, Error *err);
// Sets how many seconds a rank waits for another rank; 0 sets COMM_TIMEOUT_S. All ranks must call it.
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

C_LINKAGE_END
