// Implements comm.h: one process only copies data, several processes call the functions of MPI or NCCL.
#include "comm_internal.h"

#include <string.h>
#include <unistd.h>

#include "watchdog.h"

// --- collectives of a run with one process: they copy the input to the output -------------------------------------

static void copy(Comm *comm, void *to, const void *from, size_t bytes) {
    if (to == from || bytes == 0) return;
#ifdef COAT_CUDA
    if (comm->exec->ops->device == DEVICE_CUDA) {
        comm_cuda_copy(comm->exec, to, from, bytes);
        return;
    }
#endif
    (void)comm;
    memcpy(to, from, bytes);
}

static void one_exchange(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    copy(comm, out, in, (size_t)count_per_rank * comm_type_bytes(type));
}

static const CommOps one_ops = {
    .name = "one process", .reduce_scatter = one_exchange, .all_gather = one_exchange, .all_to_all = one_exchange};

static bool open_cpu(Comm *comm, Error *err) {
#ifdef COAT_MPI
    if (!comm->place.mpi)
        return error_set(
            err, EXIT_USER,
            "%d processes on CPUs (%s) must be started by an MPI launcher; use mpirun -np %d or srun --mpi=pmix, or "
            "--world-size 1 to run one process",
            comm->place.ranks, comm->place.origin, comm->place.ranks);
    return comm_mpi_open(comm, err);
#else
    return error_set(
        err, EXIT_USER,
        "%d processes on CPUs (%s): this program was built without MPI; install Open MPI (scripts/setup.sh "
        "--all) and build again, or use --world-size 1 to run one process",
        comm->place.ranks, comm->place.origin);
#endif
}

static bool open_gpu(Comm *comm, const Config *config, Error *err) {
#ifdef COAT_NCCL
    return comm_nccl_open(comm, config, err);
#else
    (void)config;
    return error_set(err, EXIT_USER,
                     "%d processes on GPUs (%s): this program was built without NCCL; install NCCL (or set "
                     "NCCL_HOME=FOLDER) and build again, or use --world-size 1 to run one process",
                     comm->place.ranks, comm->place.origin);
#endif
}

Comm *comm_open(const CommPlace *place, const Config *config, Exec *exec, Error *err) {
    Comm *comm = (Comm *)xcalloc(1, sizeof *comm);
    comm->ops = &one_ops;
    comm->place = *place;
    comm->exec = exec;
    comm->timeout = COMM_TIMEOUT_S;
    if (place->ranks == 1) return comm;
    error_rank = place->rank;
    const bool gpu = exec->ops->device == DEVICE_CUDA;
    if (gpu ? open_gpu(comm, config, err) : open_cpu(comm, err)) return comm;
    free(comm);
    return NULL;
}

void comm_close(Comm *comm) {
    if (!comm) return;
    if (comm->watchdog) {
        comm_barrier(comm); // waits for all ranks, because a rank that still communicates needs the other ranks
        watchdog_begin(comm->watchdog, "the end of communication");
    }
    if (comm->ops->close) comm->ops->close(comm);
    free(comm);
}

void comm_abort(Comm *comm, ExitCode code) {
    fflush(NULL);
    watchdog_report_exit((int)code);
    if (comm && comm->ops->abort) comm->ops->abort(comm, (int)code);
    _exit((int)code);
}

int comm_rank(const Comm *comm) {
    return comm->place.rank;
}
int comm_ranks(const Comm *comm) {
    return comm->place.ranks;
}
const char *comm_name(const Comm *comm) {
    return comm->ops->name;
}

void comm_all_reduce(Comm *comm, void *data, int64_t count, CommType type, CommOp op) {
    if (count > 0 && comm->ops->all_reduce) comm->ops->all_reduce(comm, data, count, type, op);
}
void comm_reduce_scatter(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    if (count_per_rank > 0) comm->ops->reduce_scatter(comm, out, in, count_per_rank, type);
}
void comm_all_gather(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    if (count_per_rank > 0) comm->ops->all_gather(comm, out, in, count_per_rank, type);
}
void comm_all_to_all(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    if (count_per_rank > 0) comm->ops->all_to_all(comm, out, in, count_per_rank, type);
}
void comm_group_begin(Comm *comm) {
    if (comm->ops->group) comm->ops->group(comm, true);
}
void comm_group_end(Comm *comm) {
    if (comm->ops->group) comm->ops->group(comm, false);
}

static void host_reduce(Comm *comm, int64_t *values, int count, CommOp op) {
    if (comm->ops->host_reduce)
        comm->ops->host_reduce(comm, values, count, op);
    else
        comm_all_reduce(comm, values, count, COMM_I64, op);
}
int64_t comm_max_i64(Comm *comm, int64_t mine) {
    host_reduce(comm, &mine, 1, COMM_MAX);
    return mine;
}
int64_t comm_sum_i64(Comm *comm, int64_t mine) {
    host_reduce(comm, &mine, 1, COMM_SUM);
    return mine;
}
void comm_barrier(Comm *comm) {
    (void)comm_sum_i64(comm, 0);
}

// Sends the text of rank `from` to all ranks by a sum over the ranks: rank `from` adds the text's bytes as numbers,
// every other rank adds zeros.
void comm_share_text(Comm *comm, int from, char *text, size_t size) {
    int64_t part[8] = {0};
    const size_t length = comm->place.rank == from ? strlen(text) : 0;
    for (size_t at = 0; at < size && (at == 0 || ((char *)part)[sizeof part - 1]); at += sizeof part) {
        const size_t room = size - at < sizeof part ? size - at : sizeof part;
        memset(part, 0, sizeof part);
        if (length > at) memcpy(part, text + at, length - at < room ? length - at : room);
        host_reduce(comm, part, 8, COMM_SUM);
        memcpy(text + at, part, room);
    }
    text[size - 1] = '\0';
}

int64_t comm_serialize_begin(Comm *comm, int local_rank) {
    const int64_t last = comm_max_i64(comm, local_rank);
    for (int turn = 0; turn < local_rank; turn++) comm_barrier(comm);
    return last - local_rank + 1;
}

void comm_serialize_end(Comm *comm, int64_t barriers) {
    for (; barriers > 0; barriers--) comm_barrier(comm);
}

bool comm_all_good(Comm *comm, bool good, Error *err) {
    enum { CODES = 256 };
    const int rank = comm->place.rank, ranks = comm->place.ranks;
    // `worst` is greatest for the lowest failed rank; its low 8 bits are the exit code, which is from 1 to 255
    const int64_t worst = comm_max_i64(comm, good ? 0 : (int64_t)(ranks - rank) * CODES + (int64_t)err->code);
    if (worst == 0) return true;
    if (comm_sum_i64(comm, !good) == ranks) return false;
    const int first = ranks - (int)(worst / CODES);
    char reason[sizeof err->text] = "";
    if (rank == first) snprintf(reason, sizeof reason, "%s", err->text);
    comm_share_text(comm, first, reason, sizeof reason);
    return error_set(err, (ExitCode)(worst % CODES), "rank %d: %.1000s", first, reason);
}

void comm_after_compute(Comm *comm) {
    if (comm->ops->after_compute) comm->ops->after_compute(comm);
}
int comm_mark(Comm *comm) {
    return comm->ops->mark ? comm->ops->mark(comm) : 0;
}
void comm_wait(Comm *comm, int ticket) {
    if (comm->ops->wait) comm->ops->wait(comm, ticket);
}
bool comm_check(Comm *comm, Error *err) {
    return !comm->ops->check || comm->ops->check(comm, err);
}
void comm_set_timeout(Comm *comm, int seconds) {
    comm->timeout = seconds > 0 ? seconds : COMM_TIMEOUT_S;
}

void comm_list_rank(char *list, size_t size, int rank) {
    const size_t used = strlen(list);
    if (used + 32 < size)
        snprintf(list + used, size - used, "%s%d", used ? ", " : "", rank);
    else if (list[used - 1] != '.')
        snprintf(list + used, size - used, " ...");
}
