// Collectives between GPUs over NCCL, on a separate CUDA stream. A kernel before each collective (or group of them) and
// a kernel after it increment counters in host memory. If another rank is lost, NCCL reports no error. The watchdog
// therefore reads the counters to detect a collective that does not finish.
#include "comm/comm_internal.h"
#include "cuda/common/cuda_internal.h"

void comm_cuda_copy(Exec *exec, void *to, const void *from, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_backend(exec)->stream),
               "copying within the GPU");
}

#ifdef COAT_NCCL
#include "comm/rendezvous.h"
#include "comm/watchdog.h"

#include <nccl.h>

// Number of CUDA events in the ring of marks. If a mark's event was reused, nccl_wait() waits for the newer mark, which
// is longer than necessary but correct.
#define MARKS 64
#define HOST_VALUES 8 // maximum number of values of host_reduce

// Pinned host memory of a communicator.
typedef struct {
    uint32_t counters[2];        // collectives (or groups) started, finished; written by comm_count_kernel
    int64_t values[HOST_VALUES]; // inputs and results of host_reduce
} Pinned;

typedef struct {
    ncclComm_t nccl;
    cudaStream_t stream;
    cudaEvent_t compute_done, marks[MARKS];
    unsigned next_mark;
    bool in_group;
    Pinned *pinned;
    int64_t *values; // device memory for HOST_VALUES values
    CommMpi *mpi;    // NULL if the NCCL id was exchanged over TCP instead of MPI
} Nccl;

static Nccl *nccl_of(Comm *comm) {
    return (Nccl *)comm->backend;
}

// --- conversion of NCCL's errors to messages and exit codes ----------------------------------------------------------

static bool nccl_error(const Comm *comm, ncclResult_t result, const char *doing, Error *err) {
    const char *detail = ncclGetLastError(NULL); // NCCL ignores the argument
    if (!detail) detail = "";
    bool shared = strstr(detail, "Duplicate GPU") != NULL;
    return error_set(err, result == ncclRemoteError ? EXIT_RANK : EXIT_DEVICE,
                     "rank %d: NCCL failed in %s: %s%s%.200s; %s", comm->place.rank, doing, ncclGetErrorString(result),
                     *detail ? ": " : "", detail,
                     shared ? "start one process per GPU, or give each its own GPU in CUDA_VISIBLE_DEVICES"
                            : "set NCCL_DEBUG=WARN for details");
}

// If NCCL could not enqueue a collective, prints the error and ends this process through comm_abort().
static void nccl_check(Comm *comm, ncclResult_t result, const char *doing) {
    Error err = {};
    if (result == ncclSuccess || result == ncclInProgress) return;
    nccl_error(comm, result, doing, &err);
    fprintf(stderr, "error: %s\n", err.text);
    comm_abort(comm, err.code);
}

// --- collectives through NCCL ---------------------------------------------------------------------------------------

__global__ void comm_count_kernel(volatile uint32_t *counter) {
    *counter = *counter + 1;
    __threadfence_system();
}

static void count(Nccl *n, int which) {
    comm_count_kernel<<<1, 1, 0, n->stream>>>(&n->pinned->counters[which]);
    LAUNCH_CHECK("comm_count_kernel");
}

// begin() and end() must enclose every NCCL group and every ungrouped collective, so that comm_count_kernel counts each
// of them for the watchdog.
static Nccl *begin(Comm *comm) {
    Nccl *n = nccl_of(comm);
    if (!n->in_group) count(n, 0);
    return n;
}
static void end(Comm *comm, ncclResult_t result, const char *doing) {
    Nccl *n = nccl_of(comm);
    nccl_check(comm, result, doing);
    if (!n->in_group) count(n, 1);
}

static ncclDataType_t nccl_type(CommType type) {
    switch (type) {
    case COMM_FP32: return ncclFloat32;
    case COMM_FP64: return ncclFloat64;
    case COMM_BF16: return ncclBfloat16;
    case COMM_I32: return ncclInt32;
    case COMM_I64: return ncclInt64;
    default: return ncclUint8;
    }
}

static void nccl_all_reduce(Comm *comm, void *data, int64_t n, CommType type, CommOp op) {
    Nccl *c = begin(comm);
    end(comm,
        ncclAllReduce(data, data, (size_t)n, nccl_type(type), op == COMM_MAX ? ncclMax : ncclSum, c->nccl, c->stream),
        "all-reduce");
}

static void nccl_reduce_scatter(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    Nccl *c = begin(comm);
    end(comm, ncclReduceScatter(in, out, (size_t)count_per_rank, nccl_type(type), ncclSum, c->nccl, c->stream),
        "reduce-scatter");
}

static void nccl_all_gather(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    Nccl *c = begin(comm);
    end(comm, ncclAllGather(in, out, (size_t)count_per_rank, nccl_type(type), c->nccl, c->stream), "all-gather");
}

static void nccl_all_to_all(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    Nccl *c = begin(comm);
    const size_t n = (size_t)count_per_rank, bytes = n * comm_type_bytes(type);
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; result == ncclSuccess && r < comm->place.ranks; r++) {
        result = ncclSend((const char *)in + (size_t)r * bytes, n, nccl_type(type), r, c->nccl, c->stream);
        if (result == ncclSuccess)
            result = ncclRecv((char *)out + (size_t)r * bytes, n, nccl_type(type), r, c->nccl, c->stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    end(comm, result == ncclSuccess ? ended : result, "all-to-all");
}

static void nccl_group(Comm *comm, bool is_begin) {
    Nccl *n = nccl_of(comm);
    if (is_begin) {
        begin(comm);
        n->in_group = true;
        nccl_check(comm, ncclGroupStart(), "the start of a group of collectives");
    } else {
        ncclResult_t result = ncclGroupEnd();
        n->in_group = false;
        end(comm, result, "a group of collectives");
    }
}

static void nccl_host_reduce(Comm *comm, int64_t *values, int n_values, CommOp op) {
    Nccl *n = nccl_of(comm);
    const char *doing = "combining values of all ranks";
    size_t bytes = (size_t)n_values * sizeof *values;
    memcpy(n->pinned->values, values, bytes);
    CUDA_CHECK(cudaMemcpyAsync(n->values, n->pinned->values, bytes, cudaMemcpyHostToDevice, n->stream), doing);
    nccl_all_reduce(comm, n->values, n_values, COMM_I64, op);
    CUDA_CHECK(cudaMemcpyAsync(n->pinned->values, n->values, bytes, cudaMemcpyDeviceToHost, n->stream), doing);
    CUDA_CHECK(cudaStreamSynchronize(n->stream), doing);
    memcpy(values, n->pinned->values, bytes);
}

// --- order of communication relative to computation on the GPU -------------------------------------------------------

static void nccl_after_compute(Comm *comm) {
    Nccl *n = nccl_of(comm);
    CUDA_CHECK(cudaEventRecord(n->compute_done, cuda_backend(comm->exec)->stream), "marking the end of computation");
    CUDA_CHECK(cudaStreamWaitEvent(n->stream, n->compute_done, 0), "making communication wait for computation");
}

static int nccl_mark(Comm *comm) {
    Nccl *n = nccl_of(comm);
    unsigned ticket = n->next_mark++ & INT32_MAX;
    CUDA_CHECK(cudaEventRecord(n->marks[ticket % MARKS], n->stream), "marking the end of communication");
    return (int)ticket;
}

static void nccl_wait(Comm *comm, int ticket) {
    Nccl *n = nccl_of(comm);
    CUDA_CHECK(cudaStreamWaitEvent(cuda_backend(comm->exec)->stream, n->marks[ticket % MARKS], 0),
               "making computation wait for communication");
}

static bool comm_nccl_check(Comm *comm, Error *err) {
    Nccl *n = nccl_of(comm);
    ncclResult_t found = ncclSuccess, asked = ncclCommGetAsyncError(n->nccl, &found);
    if (asked != ncclSuccess) found = asked;
    if (found == ncclSuccess || found == ncclInProgress) return true;
    return nccl_error(comm, found, "a collective", err);
}

// --- opening and closing NCCL ---------------------------------------------------------------------------------------

// Releases all resources of a communicator except NCCL's and MPI's. After a failed start, the caller leaves MPI open,
// because closing MPI would wait for the other ranks.
static void release(Comm *comm) {
    Nccl *n = nccl_of(comm);
    watchdog_close(comm->watchdog);
    if (n->compute_done) cudaEventDestroy(n->compute_done);
    for (int i = 0; i < MARKS; i++)
        if (n->marks[i]) cudaEventDestroy(n->marks[i]);
    if (n->values) cudaFree(n->values);
    if (n->pinned) cudaFreeHost(n->pinned);
    if (n->stream) cudaStreamDestroy(n->stream);
    free(n);
}

static void nccl_close(Comm *comm) {
    ncclCommDestroy(nccl_of(comm)->nccl);
#ifdef COAT_MPI
    if (nccl_of(comm)->mpi) mpi_close(nccl_of(comm)->mpi);
#endif
    release(comm);
}

static void nccl_abort(Comm *comm, int code) {
#ifdef COAT_MPI
    if (nccl_of(comm)->mpi) mpi_abort(nccl_of(comm)->mpi, code);
#endif
    (void)comm, (void)code;
}

static const CommOps nccl_ops = {
    "NCCL",          nccl_close,      nccl_abort,      nccl_all_reduce,  nccl_reduce_scatter,
    nccl_all_gather, nccl_all_to_all, nccl_group,      nccl_host_reduce, nccl_after_compute,
    nccl_mark,       nccl_wait,       comm_nccl_check,
};

// Distributes rank 0's NCCL id to all ranks: over MPI if an MPI launcher started the processes and --rendezvous is not
// set, otherwise over TCP.
static bool exchange_id(Comm *comm, const Config *config, ncclUniqueId *id, Error *err) {
    memset(id, 0, sizeof *id);
    if (comm->place.rank == 0) {
        ncclResult_t result = ncclGetUniqueId(id);
        if (result != ncclSuccess) return nccl_error(comm, result, "the creation of the NCCL id", err);
    }
#ifdef COAT_MPI
    if (comm->place.mpi && !config->rendezvous[0]) {
        Nccl *n = nccl_of(comm);
        watchdog_begin(comm->watchdog, "the start of MPI");
        n->mpi = mpi_open(&comm->place, err);
        if (n->mpi) mpi_broadcast(n->mpi, id, sizeof *id);
        watchdog_end(comm->watchdog);
        return n->mpi != NULL;
    }
#endif
    Rendezvous r;
    return rendezvous_find(config, &comm->place, &r, err) &&
           rendezvous_share(&r, &comm->place, id, sizeof *id, comm->timeout, err);
}

static void open_streams(Nccl *n) {
    const char *doing = "preparing communication";
    int lowest, highest;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest), doing);
    CUDA_CHECK(cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, highest), doing);
    CUDA_CHECK(cudaEventCreateWithFlags(&n->compute_done, cudaEventDisableTiming), doing);
    for (int i = 0; i < MARKS; i++) CUDA_CHECK(cudaEventCreateWithFlags(&n->marks[i], cudaEventDisableTiming), doing);
    CUDA_CHECK(cudaMalloc((void **)&n->values, HOST_VALUES * sizeof *n->values), doing);
    CUDA_CHECK(cudaHostAlloc((void **)&n->pinned, sizeof *n->pinned, cudaHostAllocMapped | cudaHostAllocPortable),
               doing);
    memset(n->pinned, 0, sizeof *n->pinned);
}

bool comm_nccl_open(Comm *comm, const Config *config, Error *err) {
    ncclUniqueId id;
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess)
        return error_set(err, EXIT_DEVICE,
                         "rank %d: NCCL cannot be loaded: %s; install NCCL 2, or add its folder to LD_LIBRARY_PATH",
                         comm->place.rank, ncclGetLastError(NULL));
    Nccl *n = (Nccl *)xcalloc(1, sizeof *n);
    comm->backend = n;
    open_streams(n);
    comm->watchdog = watchdog_open(&comm->place, &comm->timeout, n->pinned->counters);
    if (!exchange_id(comm, config, &id, err)) {
        release(comm);
        return false;
    }
    watchdog_share(comm->watchdog, &id, sizeof id);
    watchdog_begin(comm->watchdog, "the start of NCCL");
    ncclResult_t result = ncclCommInitRank(&n->nccl, comm->place.ranks, id, comm->place.rank);
    watchdog_end(comm->watchdog);
    if (result != ncclSuccess) {
        nccl_error(comm, result, "initialization", err);
        watchdog_report_exit((int)err->code);
        release(comm);
        return false;
    }
    comm->ops = &nccl_ops;
    comm_barrier(comm); // makes NCCL open and test its connections to the other ranks
    watchdog_all_connected(comm->watchdog);
    return true;
}
#endif
