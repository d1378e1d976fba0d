// Benchmarks and checks the collectives between the GPUs of a run, for 1 to 512 MiB. Bandwidths are defined as in
// nccl-tests. The algorithm bandwidth is the entire buffer's bytes per second. The bus bandwidth is the algorithm
// bandwidth times the part of the buffer that a rank must transfer: 2 (n - 1) / n for all-reduce, (n - 1) / n for
// reduce-scatter and all-gather. As in training, times include the events that order collectives and computation.
// For H200s in one host, also prints percentages of two rates that are not measured in this run: the links' specified
// 450 GB/s per direction, and the rate of NCCL in earlier runs.
// Usage: mpirun -np N build/bench_comm_gpu [--quick] [--bf16] [--lose die|stop|hang]
//   --quick: fewer repetitions
//   --bf16: BF16 values instead of FP32
//   --lose: makes the last rank die, stop or hang. The other ranks must end with exit code 5 within a few seconds, and
//   the error must name the last rank.
#include <signal.h>
#include <unistd.h>

#include "coat/comm/comm.h"
#include "dev/test/bench_cuda.h"

typedef enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, KINDS } Kind;
static const char *const kind_names[KINDS] = {"all-reduce", "reduce-scatter", "all-gather"};

typedef struct {
    Exec exec;
    Comm *comm;
    int rank, ranks;
    CommType type;
    bool quick, known_links; // known_links: true if all ranks run on H200s of one host, whose NVLink rates are known
    char *a, *b;             // a, b: two buffers of LARGEST bytes in GPU memory
    int *wrong;              // counter of wrong elements in GPU memory
    bool failed;
} Comms;

#define MIB ((int64_t)1 << 20)
#define LARGEST (512 * MIB)

// Returns the test value of element i on `rank`. The value is a small integer, so sums over a few ranks are exact in
// FP32 and BF16.
__device__ static float value_of(int rank, int64_t i) {
    return (float)((i * 7 + (int64_t)rank * 13) % 31 - 15);
}

__device__ static void store(void *data, CommType type, int64_t i, float x) {
    if (type == COMM_BF16)
        ((uint16_t *)data)[i] = bf16_encode(x);
    else if (type == COMM_I32)
        ((int32_t *)data)[i] = (int32_t)x;
    else
        ((float *)data)[i] = x;
}

__device__ static float load(const void *data, CommType type, int64_t i) {
    if (type == COMM_BF16) return bf16_decode(((const uint16_t *)data)[i]);
    if (type == COMM_I32) return (float)((const int32_t *)data)[i];
    return ((const float *)data)[i];
}

// Sets data[i] to the test value of element first + i on `rank`, for i < count.
__global__ void fill_kernel(void *data, CommType type, int64_t count, int64_t first, int rank) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        store(data, type, i, value_of(rank, first + i));
}

// Counts in *wrong the elements data[i] that differ from the sum (or maximum) of element first + i's test values over
// the ranks low to high - 1.
__global__ void check_kernel(const void *data, CommType type, int64_t count, int64_t first, int low, int high, bool max,
                             int *wrong) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float expected = value_of(low, first + i);
        for (int r = low + 1; r < high; r++) {
            float x = value_of(r, first + i);
            expected = max ? fmaxf(expected, x) : expected + x;
        }
        if (load(data, type, i) != expected) atomicAdd(wrong, 1);
    }
}

static void fill(Comms *c, void *data, CommType type, int64_t count, int64_t first) {
    fill_kernel<<<1024, 256, 0, cuda_backend(&c->exec)->stream>>>(data, type, count, first, c->rank);
    LAUNCH_CHECK("fill");
}

static void check(Comms *c, const void *data, CommType type, int64_t count, int64_t first, int low, int high,
                  bool max) {
    check_kernel<<<1024, 256, 0, cuda_backend(&c->exec)->stream>>>(data, type, count, first, low, high, max, c->wrong);
    LAUNCH_CHECK("check");
}

// Returns true if check() has counted no wrong element on any rank since the last call. Otherwise prints the number of
// wrong elements of all ranks.
static bool all_right(Comms *c, const char *what, int64_t bytes) {
    int wrong = 0;
    c->exec.ops->download(&c->exec, &wrong, c->wrong, sizeof wrong);
    c->exec.ops->zero(&c->exec, c->wrong, sizeof wrong);
    int64_t all = comm_sum_i64(c->comm, wrong);
    if (all && c->rank == 0)
        printf("WRONG: %s of %lld bytes: %lld wrong values\n", what, (long long)bytes, (long long)all);
    c->failed |= all != 0;
    return all == 0;
}

// Runs a collective of `bytes` on the buffer c->a. For reduce-scatter and all-gather, c->b holds this rank's shard.
static void run(Comms *c, Kind kind, int64_t bytes) {
    int64_t count = bytes / (int64_t)comm_type_bytes(c->type), part = count / c->ranks;
    switch (kind) {
    case ALL_REDUCE: comm_all_reduce(c->comm, c->a, count, c->type, COMM_SUM); break;
    case REDUCE_SCATTER: comm_reduce_scatter(c->comm, c->b, c->a, part, c->type); break;
    default: comm_all_gather(c->comm, c->a, c->b, part, c->type); break;
    }
}

// Checks the result of one collective. Does not synchronize the host between filling the buffer, the collective and the
// comparison, so that only CUDA events order these three.
static bool check_collective(Comms *c, Kind kind, int64_t bytes) {
    int64_t size = (int64_t)comm_type_bytes(c->type), count = bytes / size, part = count / c->ranks;
    c->exec.ops->zero(&c->exec, c->a, (size_t)bytes);
    if (kind == ALL_GATHER)
        fill(c, c->b, c->type, part, c->rank * part);
    else
        fill(c, c->a, c->type, count, 0);
    comm_after_compute(c->comm);
    run(c, kind, bytes);
    comm_wait(c->comm, comm_mark(c->comm));
    if (kind == ALL_REDUCE) check(c, c->a, c->type, count, 0, 0, c->ranks, false);
    if (kind == REDUCE_SCATTER) check(c, c->b, c->type, part, c->rank * part, 0, c->ranks, false);
    for (int r = 0; r < c->ranks && kind == ALL_GATHER; r++)
        check(c, c->a + r * part * size, c->type, part, r * part, r, r + 1, false);
    return all_right(c, kind_names[kind], bytes);
}

// Checks all-to-all, in-place collectives, grouped collectives, maximum instead of sum, and odd element counts.
static void check_variants(Comms *c) {
    const int64_t count = 100003, size = (int64_t)comm_type_bytes(c->type);
    char *own = c->a + c->rank * count * size;
    fill(c, c->a, c->type, c->ranks * count, 0);
    comm_after_compute(c->comm);
    comm_reduce_scatter(c->comm, own, c->a, count, c->type);
    comm_wait(c->comm, comm_mark(c->comm));
    check(c, own, c->type, count, c->rank * count, 0, c->ranks, false);
    all_right(c, "reduce-scatter in place", c->ranks * count * size);

    fill(c, own, c->type, count, c->rank * count);
    comm_after_compute(c->comm);
    comm_all_gather(c->comm, c->a, own, count, c->type);
    comm_wait(c->comm, comm_mark(c->comm));
    for (int r = 0; r < c->ranks; r++) check(c, c->a + r * count * size, c->type, count, r * count, r, r + 1, false);
    all_right(c, "all-gather in place", c->ranks * count * size);

    fill(c, c->a, c->type, c->ranks * count, 0);
    comm_after_compute(c->comm);
    comm_all_to_all(c->comm, c->b, c->a, count, c->type);
    comm_wait(c->comm, comm_mark(c->comm));
    for (int r = 0; r < c->ranks; r++)
        check(c, c->b + r * count * size, c->type, count, c->rank * count, r, r + 1, false);
    all_right(c, "all-to-all", c->ranks * count * size);

    fill(c, c->a, COMM_I32, count, 0);
    fill(c, c->b, c->type, count, 0);
    comm_after_compute(c->comm);
    comm_group_begin(c->comm);
    comm_all_reduce(c->comm, c->a, count, COMM_I32, COMM_MAX);
    comm_all_reduce(c->comm, c->b, count, c->type, COMM_SUM);
    comm_group_end(c->comm);
    comm_wait(c->comm, comm_mark(c->comm));
    check(c, c->a, COMM_I32, count, 0, 0, c->ranks, true);
    check(c, c->b, c->type, count, 0, 0, c->ranks, false);
    all_right(c, "a group", count * 4);
}

// Checks an all-reduce that a CUDA graph records, in the run before recording, while recording, and when replayed.
static void check_recorded(Comms *c) {
    const int64_t count = 50000;
    for (int i = 0; i < 5; i++) {
        c->exec.ops->zero(&c->exec, c->a, (size_t)count * 4);
        if (!c->exec.ops->replay_begin(&c->exec, 0)) {
            fill(c, c->a, c->type, count, 0);
            comm_after_compute(c->comm);
            comm_all_reduce(c->comm, c->a, count, c->type, COMM_SUM);
            comm_wait(c->comm, comm_mark(c->comm));
            c->exec.ops->replay_end(&c->exec, 0);
        }
        check(c, c->a, c->type, count, 0, 0, c->ranks, false);
        all_right(c, "a recorded all-reduce", count * 4);
    }
}

// Returns the seconds that one collective takes on the slowest rank, averaged over several runs.
static double seconds_of(Comms *c, Kind kind, int64_t bytes) {
    const char *doing = "timing";
    const int runs = c->quick ? 5 : bytes > 64 * MIB ? 20 : 50;
    cudaStream_t stream = cuda_backend(&c->exec)->stream;
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin), doing);
    CUDA_CHECK(cudaEventCreate(&end), doing);
    // Clears the buffer, because repeated sums of its values would overflow to infinity.
    c->exec.ops->zero(&c->exec, c->a, (size_t)bytes);
    float ms = 0;
    for (int i = 0; i < runs + 3; i++) {
        if (i == 3) {
            comm_barrier(c->comm);
            CUDA_CHECK(cudaEventRecord(begin, stream), doing);
        }
        comm_after_compute(c->comm);
        run(c, kind, bytes);
        comm_wait(c->comm, comm_mark(c->comm));
    }
    CUDA_CHECK(cudaEventRecord(end, stream), doing);
    CUDA_CHECK(cudaEventSynchronize(end), doing);
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end), doing);
    CUDA_CHECK(cudaEventDestroy(begin), doing);
    CUDA_CHECK(cudaEventDestroy(end), doing);
    return (double)comm_max_i64(c->comm, (int64_t)((double)ms * 1e6)) * 1e-9 / runs;
}

static double bus_factor(Kind kind, int ranks) {
    double others = (double)(ranks - 1) / ranks;
    return kind == ALL_REDUCE ? 2 * others : others;
}

#define LINKS_BUS 450.0 // specified bus bandwidth in GB/s of an H200's 18 NVLinks in one direction

// Returns the bus bandwidth in GB/s that NCCL 2.28 reached in earlier runs between H200 GPUs with 18 NVLinks each, with
// NVLink multicast off. Returns 0 if it was not measured.
static double expected_bus(Kind kind, int ranks, int64_t bytes) {
    static const struct {
        int ranks;
        int64_t bytes;
        double bus[3];
    } known[] = {{2, 32 * MIB, {245, 181, 186}},
                 {2, 512 * MIB, {318, 245, 256}},
                 {4, 32 * MIB, {290, 241, 241}},
                 {4, 512 * MIB, {347, 310, 317}}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].ranks == ranks && known[i].bytes == bytes) return known[i].bus[kind];
    return 0;
}

static void measure(Comms *c) {
    static const int64_t sizes[] = {1 * MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB};
    if (c->rank == 0)
        printf("%-15s %8s %10s %12s %12s %10s %10s\n", "collective", "MiB", "us", "alg GB/s", "bus GB/s", "of links",
               "of NCCL");
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            int64_t unit = c->ranks * (int64_t)comm_type_bytes(c->type), bytes = sizes[s] / unit * unit;
            bool right = check_collective(c, (Kind)kind, bytes);
            double seconds = seconds_of(c, (Kind)kind, bytes), alg = (double)bytes / seconds / 1e9;
            double bus = alg * bus_factor((Kind)kind, c->ranks);
            double expected = c->known_links ? expected_bus((Kind)kind, c->ranks, sizes[s]) : 0;
            char of_links[32] = "", of_nccl[32] = "";
            if (c->known_links) snprintf(of_links, sizeof of_links, "%.0f %%", 100 * bus / LINKS_BUS);
            if (expected > 0) snprintf(of_nccl, sizeof of_nccl, "%.0f %%", 100 * bus / expected);
            if (c->rank == 0)
                printf("%-15s %8lld %10.1f %12.1f %12.1f %10s %10s%s\n", kind_names[kind], (long long)(sizes[s] / MIB),
                       seconds * 1e6, alg, bus, of_links, of_nccl, right ? "" : "  WRONG");
        }
    if (c->rank == 0 && c->known_links)
        printf("of links: %% of the specified %.0f GB/s; of NCCL: %% of NCCL's rate between H200s in earlier runs, "
               "if known\n",
               LINKS_BUS);
}

static bool is_loss(const char *how) {
    return strcmp(how, "die") == 0 || strcmp(how, "stop") == 0 || strcmp(how, "hang") == 0;
}

// Makes the last rank fail in the way `how`. The other ranks wait for the last rank with a timeout of 5 seconds.
static void lose_one(Comms *c, const char *how) {
    comm_set_timeout(c->comm, 5);
    comm_barrier(c->comm);
    if (c->rank == c->ranks - 1) {
        if (strcmp(how, "die") == 0) raise(SIGKILL);
        if (strcmp(how, "stop") == 0) raise(SIGSTOP);
        while (strcmp(how, "hang") == 0) pause();
    }
    comm_all_reduce(c->comm, c->a, 1000, COMM_FP32, COMM_SUM);
    comm_wait(c->comm, comm_mark(c->comm));
    c->exec.ops->synchronize(&c->exec);
    printf("continued: rank %d, without rank %d\n", c->rank, c->ranks - 1);
}

static void open_all(Comms *c, const CommPlace *place, Config *config) {
    Error err = {};
    recipe_apply(&config->recipe, RECIPE_BF16);
    config->recipe.precision = PRECISION_FP32; // FP32, because this benchmark runs neither matmuls nor attention
    c->exec.ops = cuda_ops();
    c->exec.rank = c->rank = place->rank;
    c->exec.ranks = c->ranks = place->ranks;
    c->exec.local_rank = place->local_rank;
    if (!c->exec.ops->open(&c->exec, config, &err)) fatal(err.code, "%s", err.text);
    c->comm = comm_open(place, config, &c->exec, &err);
    if (!c->comm) fatal(err.code, "%s", err.text);
    char text[256];
    c->exec.ops->describe(&c->exec, text, sizeof text);
    c->known_links = strstr(text, "H200") != NULL && place->local_ranks == place->ranks;
    if (c->rank == 0)
        printf("%d x %s, %s, %s\n", c->ranks, text, comm_name(c->comm), c->type == COMM_BF16 ? "BF16" : "FP32");
    c->a = (char *)c->exec.ops->allocate(&c->exec, LARGEST, &err);
    c->b = c->a ? (char *)c->exec.ops->allocate(&c->exec, LARGEST, &err) : NULL;
    c->wrong = c->b ? (int *)c->exec.ops->allocate(&c->exec, sizeof(int), &err) : NULL;
    if (!comm_all_good(c->comm, c->wrong != NULL, &err)) fatal(err.code, "%s", err.text);
    c->exec.ops->zero(&c->exec, c->wrong, sizeof(int));
    c->exec.ops->zero(&c->exec, c->a, LARGEST);
    c->exec.ops->zero(&c->exec, c->b, LARGEST);
    c->exec.ops->synchronize(&c->exec);
}

static void close_all(Comms *c) {
    cuda_replay_forget(&c->exec);
    comm_close(c->comm);
    c->exec.ops->release(&c->exec, c->wrong);
    c->exec.ops->release(&c->exec, c->b);
    c->exec.ops->release(&c->exec, c->a);
    c->exec.ops->close(&c->exec);
}

int main(int argc, char **argv) {
    Comms c = {};
    const char *lose = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            c.quick = true;
        else if (strcmp(argv[i], "--bf16") == 0)
            c.type = COMM_BF16;
        else if (strcmp(argv[i], "--lose") == 0 && i + 1 < argc && is_loss(argv[i + 1]))
            lose = argv[++i];
        else
            fatal(EXIT_USER,
                  "%s: unknown flag, or its value is wrong; usage: mpirun -np N build/bench_comm_gpu [--quick] "
                  "[--bf16] [--lose die|stop|hang]",
                  argv[i]);
    }
    Config *config = (Config *)xcalloc(1, sizeof *config);
    CommPlace place;
    Error err = {};
    config_defaults(config);
    if (!comm_discover(config, &place, &err)) fatal(err.code, "%s", err.text);
    if (place.ranks == 1) {
        printf("one process: there is nothing to measure; use mpirun -np N to start one process per GPU\n");
        return 0;
    }
    open_all(&c, &place, config);
    free(config);
    if (lose) {
        lose_one(&c, lose);
        return 1;
    }
    check_variants(&c);
    check_recorded(&c);
    measure(&c);
    if (!comm_check(c.comm, &err)) fatal(err.code, "%s", err.text);
    if (c.rank == 0) printf("%s\n", c.failed ? "WRONG results: see above" : "all results are right");
    bool failed = c.failed;
    close_all(&c);
    return failed;
}
