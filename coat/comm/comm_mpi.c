// Implements the collectives between CPUs over MPI. Also starts MPI for comm_nccl.cu, which sends NCCL's id over MPI.
// MPI only moves data: the sums are computed in this file in rank order, so that they have the same bits in every run.
// Without COAT_MPI, this file is empty.
#include "comm_internal.h"

#ifdef COAT_MPI
#include <errno.h>
#include <mpi.h>
#include <sched.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "watchdog.h"

#define STAGING_BYTES ((int64_t)32 << 20) // bytes of the buffer for all ranks' values in a reduction
#define SMALL_BYTES ((int64_t)16 << 10)   // maximum bytes of an all-reduce done in one exchange instead of two

struct CommMpi {
    MPI_Comm comm;
    int rank, ranks;
    char *staging; // buffer of (ranks, block) bytes
    int64_t block;
    // number of remaining waits, including the current one, that sleep instead of calling sched_yield(). finish() sets
    // 20 if another program seems to use this core; 0: waits do not sleep at first
    int crowded;
};

static void check(int error) {
    if (error == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "?";
    int length;
    MPI_Error_string(error, text, &length);
    fatal(EXIT_RANK, "MPI failed (%s), perhaps because another rank is lost; %s", text, error_advice());
}

// Waits until an MPI request is complete. Between the first 1000 tests, finish() yields the core, because another rank
// may have to compute on this core first. Between later tests, finish() sleeps. If a yield takes longer than 3 ms,
// another program uses the core. The rest of this wait and the next 19 waits then sleep, because a yielding process
// gets its core back last.
static void finish(CommMpi *mpi, MPI_Request request) {
    double before = now_seconds();
    for (int tries = 0, done = 0;; tries++) {
        check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        if (done) break;
        const bool yields = tries < 1000 && mpi->crowded == 0;
        if (yields) {
            sched_yield();
        } else {
            const struct timespec pause = {0, 50000};
            nanosleep(&pause, NULL);
        }
        const double now = now_seconds();
        if (yields && now - before > 3e-3) mpi->crowded = 20;
        before = now;
    }
    if (mpi->crowded > 0) mpi->crowded--;
}

// Reduces staging (ranks, count), all ranks' values, to out (count): sum or maximum over the ranks, in rank order.
static void reduce(CommMpi *mpi, void *out, int64_t count, CommType type, CommOp op) {
    if (type == COMM_BF16) { // BF16 is summed in FP32 and rounded once
        const uint16_t *in = (const uint16_t *)(const void *)mpi->staging;
        for (int64_t i = 0; i < count; i++) {
            float sum = bf16_decode(in[i]);
            for (int r = 1; r < mpi->ranks; r++) sum += bf16_decode(in[r * count + i]);
            ((uint16_t *)out)[i] = bf16_encode(sum);
        }
        return;
    }
    const bool max = op == COMM_MAX; // integers are summed as unsigned numbers, because sums may overflow
    const MPI_Datatype mpi_type = type == COMM_FP32   ? MPI_FLOAT
                                  : type == COMM_FP64 ? MPI_DOUBLE
                                  : type == COMM_I32  ? (max ? MPI_INT32_T : MPI_UINT32_T)
                                                      : (max ? MPI_INT64_T : MPI_UINT64_T);
    const int64_t bytes = count * (int64_t)comm_type_bytes(type);
    for (int r = 1; r < mpi->ranks; r++)
        check(MPI_Reduce_local(mpi->staging + r * bytes, mpi->staging, (int)count, mpi_type, max ? MPI_MAX : MPI_SUM));
    memcpy(out, mpi->staging, (size_t)bytes);
}

// Returns an MPI datatype for blocks of `bytes` contiguous bytes that start `stride` bytes apart.
static MPI_Datatype blocks(int64_t bytes, int64_t stride) {
    MPI_Datatype dense, strided;
    check(MPI_Type_contiguous((int)bytes, MPI_BYTE, &dense));
    check(MPI_Type_create_resized(dense, 0, (MPI_Aint)stride, &strided));
    check(MPI_Type_commit(&strided));
    check(MPI_Type_free(&dense));
    return strided;
}

// Reduce-scatter: sends row r of in (ranks, count) to rank r, and reduces the rows received from all ranks to out
// (count). `out` may be this rank's row of `in`.
static void scatter(CommMpi *mpi, char *out, const char *in, int64_t count, CommType type, CommOp op) {
    const int64_t size = (int64_t)comm_type_bytes(type), step = mpi->block / size;
    for (int64_t at = 0; at < count; at += step) {
        const int64_t n = count - at < step ? count - at : step;
        MPI_Datatype sent = blocks(n * size, count * size);
        MPI_Request request;
        check(MPI_Ialltoall(in + at * size, 1, sent, mpi->staging, (int)(n * size), MPI_BYTE, mpi->comm, &request));
        finish(mpi, request);
        check(MPI_Type_free(&sent));
        reduce(mpi, out + at * size, n, type, op);
    }
}

// All-gather in place: sends this rank's row of data (ranks, bytes) to all ranks and receives the other ranks' rows.
static void gather(CommMpi *mpi, char *data, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += mpi->block) {
        MPI_Datatype part = blocks(bytes - at < mpi->block ? bytes - at : mpi->block, bytes);
        MPI_Request request;
        check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data + at, 1, part, mpi->comm, &request));
        finish(mpi, request);
        check(MPI_Type_free(&part));
    }
}

static CommMpi *begin(Comm *comm) {
    comm->counters[0]++;
    return (CommMpi *)comm->backend;
}

static void end(Comm *comm) {
    comm->counters[1]++;
}

static void mpi_reduce_scatter(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    CommMpi *mpi = begin(comm);
    scatter(mpi, (char *)out, (const char *)in, count_per_rank, type, COMM_SUM);
    end(comm);
}

static void mpi_all_gather(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    CommMpi *mpi = begin(comm);
    const int64_t bytes = count_per_rank * (int64_t)comm_type_bytes(type);
    char *own = (char *)out + mpi->rank * bytes;
    if (own != in) memcpy(own, in, (size_t)bytes);
    gather(mpi, (char *)out, bytes);
    end(comm);
}

static void mpi_all_to_all(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    CommMpi *mpi = begin(comm);
    const int64_t bytes = count_per_rank * (int64_t)comm_type_bytes(type);
    for (int64_t at = 0; at < bytes; at += mpi->block) {
        MPI_Datatype part = blocks(bytes - at < mpi->block ? bytes - at : mpi->block, bytes);
        MPI_Request request;
        check(MPI_Ialltoall((const char *)in + at, 1, part, (char *)out + at, 1, part, mpi->comm, &request));
        finish(mpi, request);
        check(MPI_Type_free(&part));
    }
    end(comm);
}

// Each rank reduces count / ranks elements and sends the results to all ranks. The remaining count % ranks elements are
// sent to all ranks unreduced, and every rank reduces them itself. If the array has at most SMALL_BYTES, all its
// elements are sent unreduced.
static void mpi_all_reduce(Comm *comm, void *data, int64_t count, CommType type, CommOp op) {
    CommMpi *mpi = begin(comm);
    const int64_t size = (int64_t)comm_type_bytes(type), part = count * size <= SMALL_BYTES ? 0 : count / mpi->ranks;
    const int64_t rest = count - part * mpi->ranks;
    char *own = (char *)data + mpi->rank * part * size, *last = (char *)data + part * mpi->ranks * size;
    if (part > 0) {
        scatter(mpi, own, (const char *)data, part, type, op);
        gather(mpi, (char *)data, part * size);
    }
    if (rest > 0) {
        memcpy(mpi->staging + mpi->rank * rest * size, last, (size_t)(rest * size));
        gather(mpi, mpi->staging, rest * size);
        reduce(mpi, last, rest, type, op);
    }
    end(comm);
}

CommMpi *mpi_open(const CommPlace *place, Error *err) {
    int already = 0, level, ranks, rank;
    MPI_Initialized(&already);
    if (already || MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
        error_set(err, EXIT_RANK, "MPI could not be initialized; %s",
                  already ? "this process has already initialized it" : "see MPI's message above");
        return NULL;
    }
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (ranks != place->ranks || rank != place->rank) {
        error_set(err, EXIT_USER,
                  "MPI reports rank %d of %d, but %s reports %d of %d, so the launcher belongs to a different MPI than "
                  "this program; use the mpirun of the MPI that this program was built with (or srun --mpi=..., see "
                  "srun --mpi=list)",
                  rank, ranks, place->launcher, place->rank, place->ranks);
        MPI_Finalize();
        return NULL;
    }
    CommMpi *mpi = (CommMpi *)xcalloc(1, sizeof *mpi);
    mpi->rank = rank;
    mpi->ranks = ranks;
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    return mpi;
}

void mpi_close(CommMpi *mpi) {
    MPI_Comm_free(&mpi->comm);
    MPI_Finalize();
    free(mpi->staging);
    free(mpi);
}

void mpi_broadcast(CommMpi *mpi, void *data, size_t bytes) {
    MPI_Request request;
    check(MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, mpi->comm, &request));
    finish(mpi, request);
}

void mpi_abort(CommMpi *mpi, int code) {
    MPI_Abort(mpi->comm, code);
}

static void mpi_comm_close(Comm *comm) {
    mpi_close((CommMpi *)comm->backend);
    watchdog_close(comm->watchdog);
}

static void mpi_comm_abort(Comm *comm, int code) {
    mpi_abort((CommMpi *)comm->backend, code);
}

static const CommOps mpi_ops = {.name = "MPI",
                                .close = mpi_comm_close,
                                .abort = mpi_comm_abort,
                                .all_reduce = mpi_all_reduce,
                                .reduce_scatter = mpi_reduce_scatter,
                                .all_gather = mpi_all_gather,
                                .all_to_all = mpi_all_to_all};

bool comm_mpi_open(Comm *comm, Error *err) {
    uint64_t id[2] = {0, 0};
    comm->watchdog = watchdog_open(&comm->place, &comm->timeout, comm->counters);
    watchdog_begin(comm->watchdog, "the start of MPI"); // limits the wait, because MPI waits forever for a lost rank
    CommMpi *mpi = mpi_open(&comm->place, err);
    if (!mpi) {
        watchdog_close(comm->watchdog);
        return false;
    }
    mpi->block = STAGING_BYTES / mpi->ranks / 64 * 64;
    if (mpi->block < SMALL_BYTES) mpi->block = SMALL_BYTES;
    mpi->staging = (char *)xmalloc((size_t)mpi->ranks * (size_t)mpi->block);
    comm->backend = mpi;
    comm->ops = &mpi_ops;
    if (mpi->rank == 0 && getrandom(id, sizeof id, 0) < 0)
        fatal(EXIT_DEVICE, "could not create a random id for the run: getrandom(): %s", strerror(errno));
    mpi_broadcast(mpi, id, sizeof id);
    watchdog_end(comm->watchdog);
    watchdog_share(comm->watchdog, id, sizeof id);
    comm_barrier(comm);
    watchdog_all_connected(comm->watchdog);
    return true;
}

#endif
