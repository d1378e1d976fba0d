// Collectives over MPI: the CPU twin's. Every one is made of messages between pairs of ranks, sent and received all at
// once and waited for by asking again and again. So sums are added up here, in the order of the ranks, and who waits
// too long knows for whom. Empty in a program without MPI.
#include "comm_mpi.h"

#ifdef COAT_MPI
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#define STAGING_BYTES ((int64_t)32 << 20) // for what the other ranks send to be summed
#define MESSAGE_BYTES ((int64_t)16 << 20) // of what needs no staging; MPI counts in int
#define SMALL_BYTES ((int64_t)16 << 10)   // reduced by everybody at once, in one round of messages

__attribute__((format(printf, 2, 3), noreturn)) static void lost(CommMpi *mpi, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "error: rank %d: %s; %s\n", mpi->rank, text, error_advice());
    mpi_abort(mpi, EXIT_RANK);
    _Exit(EXIT_RANK);
}

static void check(CommMpi *mpi, int error) {
    if (error == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "?";
    int length;
    MPI_Error_string(error, text, &length);
    lost(mpi, "MPI failed in %s, another rank may be lost: %s", mpi->doing, text);
}

// --- messages -----------------------------------------------------------------------------------------------------

static void post_send(CommMpi *mpi, int peer, const void *data, int64_t bytes) {
    if (bytes <= 0) return;
    check(mpi, MPI_Isend(data, (int)bytes, MPI_BYTE, peer, 0, mpi->comm, &mpi->requests[mpi->count]));
    mpi->peers[mpi->count++] = peer;
}

static void post_receive(CommMpi *mpi, int peer, void *data, int64_t bytes) {
    if (bytes <= 0) return;
    check(mpi, MPI_Irecv(data, (int)bytes, MPI_BYTE, peer, 0, mpi->comm, &mpi->requests[mpi->count]));
    mpi->peers[mpi->count++] = peer;
}

static bool missing(const CommMpi *mpi, int peer) {
    for (int i = 0; i < mpi->count; i++) {
        int done = 0;
        if (mpi->peers[i] == peer) MPI_Request_get_status(mpi->requests[i], &done, MPI_STATUS_IGNORE);
        if (mpi->peers[i] == peer && !done) return true;
    }
    return false;
}

__attribute__((noreturn)) static void give_up(CommMpi *mpi) {
    char names[256] = "";
    int more = 0;
    for (int r = 0; r < mpi->ranks; r++) {
        size_t used = strlen(names);
        if (!missing(mpi, r)) continue;
        if (used > sizeof names - 32)
            more++;
        else
            snprintf(names + used, sizeof names - used, "%s%d", used ? ", " : "", r);
    }
    lost(mpi, "waited %.0f s in %s for rank %s%s, which hangs or is lost", mpi->limit, mpi->doing, names,
         more ? " and others" : "");
}

// A collective begins. The others do the same work as this rank before they come to it: who has taken long itself
// waits longer for them.
static void start(CommMpi *mpi, const char *doing, int patience) {
    double busy = 2 * (now_seconds() - mpi->idle_since);
    mpi->doing = doing;
    mpi->limit = busy > patience ? busy : patience;
}

// Until all messages are through. Time in which this process itself was stopped does not count. It yields its core to
// other ranks, which are soon done with it. Where another program keeps it, it sleeps in the next waits: who yields
// then has the core again last, who wakes up first.
static void wait_all(CommMpi *mpi) {
    double before = now_seconds(), waited = 0;
    for (int tries = 0, done = 0;; tries++) {
        check(mpi, MPI_Testall(mpi->count, mpi->requests, &done, MPI_STATUSES_IGNORE));
        if (done) break;
        const bool yields = tries < 1000 && mpi->crowded == 0;
        if (yields) {
            sched_yield();
        } else {
            const struct timespec pause = {0, 50000};
            nanosleep(&pause, NULL);
        }
        double now = now_seconds(), passed = now - before;
        before = now;
        if (yields && passed > 3e-3) mpi->crowded = 20;
        waited += passed < 1.0 ? passed : 1.0;
        if (waited > mpi->limit) give_up(mpi);
    }
    if (mpi->crowded > 0) mpi->crowded--;
    mpi->count = 0;
    mpi->idle_since = before;
}

// --- sums and maxima ----------------------------------------------------------------------------------------------

#define BLOCK 1024 // elements that are summed at a time, in the order of the ranks

#define REDUCE(NAME, STORED, SUM, LOAD, STORE, COMBINE)                                                                \
    static void NAME(STORED *out, const STORED *const *in, int ranks, int64_t count) {                                 \
        SUM sums[BLOCK];                                                                                               \
        for (int64_t at = 0; at < count; at += BLOCK) {                                                                \
            int64_t n = count - at < BLOCK ? count - at : BLOCK;                                                       \
            for (int64_t i = 0; i < n; i++) sums[i] = LOAD(in[0][at + i]);                                             \
            for (int r = 1; r < ranks; r++)                                                                            \
                for (int64_t i = 0; i < n; i++) {                                                                      \
                    SUM a = sums[i], b = LOAD(in[r][at + i]);                                                          \
                    sums[i] = COMBINE(a, b);                                                                           \
                }                                                                                                      \
            for (int64_t i = 0; i < n; i++) out[at + i] = STORE(sums[i]);                                              \
        }                                                                                                              \
    }
#define AS_IS(x) (x)
#define ADD(a, b) ((a) + (b))
#define LARGER(a, b) ((b) > (a) ? (b) : (a))
// A macro, because the function is needed once per type: stored type, type of the sum, conversions, a op b.
REDUCE(sum_fp32, float, float, AS_IS, AS_IS, ADD)
REDUCE(sum_fp64, double, double, AS_IS, AS_IS, ADD)
REDUCE(sum_bf16, uint16_t, float, bf16_decode, bf16_encode, ADD)
REDUCE(sum_i32, uint32_t, uint32_t, AS_IS, AS_IS, ADD) // unsigned: they may wrap around
REDUCE(sum_i64, uint64_t, uint64_t, AS_IS, AS_IS, ADD)
REDUCE(max_fp32, float, float, AS_IS, AS_IS, LARGER)
REDUCE(max_i32, int32_t, int32_t, AS_IS, AS_IS, LARGER)
REDUCE(max_i64, int64_t, int64_t, AS_IS, AS_IS, LARGER)

// out (count) = in[0] op in[1] op ...; out may be one of them.
static void reduce(CommMpi *mpi, void *out, const void *const *in, int64_t count, CommType type, CommOp op) {
    int n = mpi->ranks;
    if (op == COMM_SUM) {
        switch (type) {
        case COMM_FP32: sum_fp32((float *)out, (const float *const *)in, n, count); return;
        case COMM_FP64: sum_fp64((double *)out, (const double *const *)in, n, count); return;
        case COMM_BF16: sum_bf16((uint16_t *)out, (const uint16_t *const *)in, n, count); return;
        case COMM_I32: sum_i32((uint32_t *)out, (const uint32_t *const *)in, n, count); return;
        case COMM_I64: sum_i64((uint64_t *)out, (const uint64_t *const *)in, n, count); return;
        default: break;
        }
    } else {
        switch (type) {
        case COMM_FP32: max_fp32((float *)out, (const float *const *)in, n, count); return;
        case COMM_I32: max_i32((int32_t *)out, (const int32_t *const *)in, n, count); return;
        case COMM_I64: max_i64((int64_t *)out, (const int64_t *const *)in, n, count); return;
        default: break;
        }
    }
    fatal(EXIT_USER, "communication: type %d cannot be reduced by operation %d", (int)type, (int)op);
}

// --- collectives --------------------------------------------------------------------------------------------------

// One round: peer p gets count[p] elements of in[p], and sends as many as this rank's own count, which are added up
// into out. `in` and the counts are arrays over the ranks.
static void scatter_round(CommMpi *mpi, void *out, const char *const *in, const int64_t *count, CommType type,
                          CommOp op) {
    int64_t size = (int64_t)comm_type_bytes(type), mine = count[mpi->rank];
    const void **pieces = (const void **)xmalloc((size_t)mpi->ranks * sizeof *pieces);
    for (int r = 0; r < mpi->ranks; r++) {
        char *staged = mpi->staging + r * mpi->staging_piece;
        pieces[r] = r == mpi->rank ? in[r] : staged;
        if (r != mpi->rank) post_receive(mpi, r, staged, mine * size);
    }
    for (int i = 1; i < mpi->ranks; i++) {
        int r = (mpi->rank + i) % mpi->ranks; // not all to the same one first
        post_send(mpi, r, in[r], count[r] * size);
    }
    wait_all(mpi);
    if (mine > 0) reduce(mpi, out, pieces, mine, type, op);
    free(pieces);
}

// One round: rank r's bytes[r] bytes at at[r] become everyone's.
static void gather_round(CommMpi *mpi, char *const *at, const int64_t *bytes, const void *mine) {
    for (int r = 0; r < mpi->ranks; r++)
        if (r != mpi->rank) post_receive(mpi, r, at[r], bytes[r]);
    for (int i = 1; i < mpi->ranks; i++) post_send(mpi, (mpi->rank + i) % mpi->ranks, mine, bytes[mpi->rank]);
    wait_all(mpi);
}

static CommMpi *mpi_of(Comm *comm, const char *doing) {
    CommMpi *mpi = (CommMpi *)comm->backend;
    start(mpi, doing, comm->patience);
    return mpi;
}

static void mpi_reduce_scatter(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    CommMpi *mpi = mpi_of(comm, "reduce-scatter");
    int64_t size = (int64_t)comm_type_bytes(type), step = mpi->staging_piece / size;
    const char **from = (const char **)xmalloc((size_t)mpi->ranks * sizeof *from);
    int64_t *counts = (int64_t *)xmalloc((size_t)mpi->ranks * sizeof *counts);
    for (int64_t at = 0; at < count_per_rank; at += step) {
        int64_t n = count_per_rank - at < step ? count_per_rank - at : step;
        for (int r = 0; r < mpi->ranks; r++) {
            from[r] = (const char *)in + (r * count_per_rank + at) * size;
            counts[r] = n;
        }
        scatter_round(mpi, (char *)out + at * size, from, counts, type, COMM_SUM);
    }
    free(counts);
    free(from);
}

static void mpi_all_gather(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    CommMpi *mpi = mpi_of(comm, "all-gather");
    int64_t total = count_per_rank * (int64_t)comm_type_bytes(type);
    char *own = (char *)out + mpi->rank * total;
    if (own != in) memcpy(own, in, (size_t)total);
    char **to = (char **)xmalloc((size_t)mpi->ranks * sizeof *to);
    int64_t *bytes = (int64_t *)xmalloc((size_t)mpi->ranks * sizeof *bytes);
    for (int64_t at = 0; at < total; at += MESSAGE_BYTES) {
        for (int r = 0; r < mpi->ranks; r++) {
            to[r] = (char *)out + r * total + at;
            bytes[r] = total - at < MESSAGE_BYTES ? total - at : MESSAGE_BYTES;
        }
        gather_round(mpi, to, bytes, own + at);
    }
    free(bytes);
    free(to);
}

// Few values: everybody gets everybody's and adds them up. Many: each rank adds up a part, which then goes to all.
// The sums are made in the same order, so their bits are the same.
static void mpi_all_reduce(Comm *comm, void *data, int64_t count, CommType type, CommOp op) {
    CommMpi *mpi = mpi_of(comm, "all-reduce");
    int64_t size = (int64_t)comm_type_bytes(type), step = mpi->staging_piece / size;
    bool small = count * size <= SMALL_BYTES;
    const char **from = (const char **)xmalloc((size_t)mpi->ranks * sizeof *from);
    char **to = (char **)xmalloc((size_t)mpi->ranks * sizeof *to);
    int64_t *counts = (int64_t *)xmalloc((size_t)mpi->ranks * sizeof *counts);
    for (int64_t at = 0, n; at < count; at += n) {
        n = small || count - at < step * mpi->ranks ? count - at : step * mpi->ranks;
        int64_t part = small ? n : (n + mpi->ranks - 1) / mpi->ranks;
        for (int r = 0; r < mpi->ranks; r++) {
            int64_t begin = small ? 0 : (r * part < n ? r * part : n);
            to[r] = (char *)data + (at + begin) * size;
            from[r] = to[r];
            counts[r] = n - begin < part ? n - begin : part;
        }
        scatter_round(mpi, to[mpi->rank], from, counts, type, op);
        if (small) continue;
        for (int r = 0; r < mpi->ranks; r++) counts[r] *= size;
        gather_round(mpi, to, counts, to[mpi->rank]);
    }
    free(counts);
    free(to);
    free(from);
}

void mpi_broadcast_bytes(CommMpi *mpi, void *data, size_t bytes, int root, int patience) {
    start(mpi, "broadcast", patience);
    for (int64_t at = 0; at < (int64_t)bytes; at += MESSAGE_BYTES) {
        int64_t n = (int64_t)bytes - at < MESSAGE_BYTES ? (int64_t)bytes - at : MESSAGE_BYTES;
        for (int r = 0; r < mpi->ranks && mpi->rank == root; r++)
            if (r != root) post_send(mpi, r, (char *)data + at, n);
        if (mpi->rank != root) post_receive(mpi, root, (char *)data + at, n);
        wait_all(mpi);
    }
}

static void mpi_host_reduce(Comm *comm, int64_t *values, int count, CommOp op) {
    mpi_all_reduce(comm, values, count, COMM_I64, op);
}

// --- the implementation of comm.h -------------------------------------------------------------------------------

static void mpi_comm_close(Comm *comm) {
    int64_t nothing = 0; // all come here first: MPI_Finalize waits for the others without limit
    mpi_host_reduce(comm, &nothing, 1, COMM_SUM);
    mpi_close((CommMpi *)comm->backend);
}

static void mpi_comm_abort(Comm *comm, int code) {
    mpi_abort((CommMpi *)comm->backend, code);
}

static const CommOps mpi_ops = {
    "MPI",         mpi_comm_close,  mpi_comm_abort,        mpi_all_reduce, mpi_reduce_scatter, mpi_all_gather,
    comm_no_group, mpi_host_reduce, comm_no_after_compute, comm_no_mark,   comm_no_wait,       comm_no_check,
};

bool comm_mpi_open(Comm *comm, Error *err) {
    CommMpi *mpi = mpi_open(&comm->place, err);
    if (!mpi) return false;
    mpi->staging_piece = STAGING_BYTES / mpi->ranks / 64 * 64;
    if (mpi->staging_piece < SMALL_BYTES) mpi->staging_piece = SMALL_BYTES;
    mpi->staging = (char *)xmalloc((size_t)mpi->ranks * (size_t)mpi->staging_piece);
    comm->backend = mpi;
    comm->ops = &mpi_ops;
    return true;
}

#endif
