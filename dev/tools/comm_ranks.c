// Runs one rank of a test of the collectives. Compares the result of every collective with the result computed in this
// process, for all types, for odd counts and for arrays larger than the staging buffer. With an argument, tests a
// failure or a slow rank instead.
// Usage: mpirun -np N build/comm_ranks [die | stop | hang | fail | slow | save FOLDER]
//   die: the last rank kills itself
//   stop: the last rank stops itself
//   hang: the last rank never calls the collective
//   fail: the last rank has an error and ends the run
//   slow: the last rank works twice as long as the other ranks, which must wait for it
//   save: all ranks save two checkpoints in FOLDER; fsync() is slow on rank 0
// With die, stop, hang and fail, the other ranks must end with an error that names the last rank.
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "coat/base/clock.h"
#include "coat/comm/comm.h"
#include "coat/config/shapes.h"
#include "coat/numerics/rng.h"
#include "coat/save/saver.h"

static const char usage[] = "usage: comm_ranks [die | stop | hang | fail | slow | save FOLDER], under mpirun -np N\n"
                            "\n"
                            "Tests the collectives among N processes. With die, stop, hang, fail or slow, tests\n"
                            "how the other processes react if the last process is killed, is stopped, hangs,\n"
                            "fails or is slow. With save, all processes save two checkpoints in FOLDER, on a disk\n"
                            "that is slow for the first process.\n";

static int wrong, checks;
static Comm *comm;
static int rank, ranks;

static const char *const type_names[] = {"fp32", "fp64", "bf16", "i32", "i64", "bytes"};

static void expect(bool right, const char *what, CommType type, int64_t count) {
    checks++;
    if (right) return;
    wrong++;
    printf("not ok - rank %d of %d: %s of %lld x %s\n", rank, ranks, what, (long long)count, type_names[type]);
}

// Fills `data` with `count` elements of rank r's input, from element `first` on. BF16 and FP32 sums of these values
// need rounding.
static void fill(void *data, int64_t count, int64_t first, CommType type, int r) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = rng_hash(17, (uint64_t)r, (uint64_t)(first + i));
        float x = ((float)(bits >> 40) * 0x1p-24f - 0.5f) * (float)(1 << (bits % 7));
        switch (type) {
        case COMM_FP32: ((float *)data)[i] = x; break;
        case COMM_FP64: ((double *)data)[i] = (double)x * 1.1; break;
        case COMM_BF16: ((uint16_t *)data)[i] = bf16_encode(x); break;
        case COMM_I32: ((int32_t *)data)[i] = (int32_t)(bits >> 36) - (1 << 27); break;
        case COMM_I64: ((int64_t *)data)[i] = (int64_t)(bits >> 4) - ((int64_t)1 << 59); break;
        default: ((uint8_t *)data)[i] = (uint8_t)(bits >> 32); break;
        }
    }
}

// Computes `count` elements of the expected reduction, from element `first` on, in rank order. Rounds BF16 sums once.
static void reduce_here(void *sum, int64_t count, int64_t first, CommType type, CommOp op) {
    size_t size = comm_type_bytes(type);
    char *one = (char *)xmalloc((size_t)count * size);
    float *wide = (float *)xcalloc((size_t)count, sizeof *wide); // FP32 sums of BF16 values
    for (int r = 0; r < ranks; r++) {
        fill(one, count, first, type, r);
        if (r == 0) memcpy(sum, one, (size_t)count * size);
        for (int64_t i = 0; i < count; i++) {
            if (type == COMM_BF16) wide[i] = (r ? wide[i] : 0.0f) + bf16_decode(((uint16_t *)one)[i]);
            if (r == 0) continue;
            bool max = op == COMM_MAX;
            if (type == COMM_FP32) {
                float a = ((float *)sum)[i], b = ((float *)one)[i];
                ((float *)sum)[i] = max ? fmaxf(a, b) : a + b;
            } else if (type == COMM_FP64) {
                ((double *)sum)[i] += ((double *)one)[i];
            } else if (type == COMM_I32) {
                int32_t a = ((int32_t *)sum)[i], b = ((int32_t *)one)[i];
                ((int32_t *)sum)[i] = max ? (a > b ? a : b) : a + b;
            } else if (type == COMM_I64) {
                int64_t a = ((int64_t *)sum)[i], b = ((int64_t *)one)[i];
                ((int64_t *)sum)[i] = max ? (a > b ? a : b) : a + b;
            }
        }
    }
    for (int64_t i = 0; i < count && type == COMM_BF16; i++) ((uint16_t *)sum)[i] = bf16_encode(wide[i]);
    free(wide);
    free(one);
}

static void check_all_reduce(CommType type, CommOp op, int64_t count) {
    size_t bytes = (size_t)count * comm_type_bytes(type);
    char *data = (char *)xmalloc(bytes), *expected = (char *)xmalloc(bytes);
    fill(data, count, 0, type, rank);
    reduce_here(expected, count, 0, type, op);
    comm_all_reduce(comm, data, count, type, op);
    expect(memcmp(data, expected, bytes) == 0, op == COMM_MAX ? "all-reduce (max)" : "all-reduce (sum)", type, count);
    free(data);
    free(expected);
}

// Checks reduce-scatter with a separate output and in place. `in` must not change outside of an in-place output.
static void check_reduce_scatter(CommType type, int64_t count) {
    size_t part = (size_t)count * comm_type_bytes(type), whole = part * (size_t)ranks;
    char *in = (char *)xmalloc(whole), *before = (char *)xmalloc(whole);
    char *out = (char *)xmalloc(part), *expected = (char *)xmalloc(part), *own = in + (size_t)rank * part;
    fill(in, count * ranks, 0, type, rank);
    memcpy(before, in, whole);
    reduce_here(expected, count, rank * count, type, COMM_SUM);
    comm_reduce_scatter(comm, out, in, count, type);
    expect(memcmp(out, expected, part) == 0 && memcmp(in, before, whole) == 0, "reduce-scatter", type, count);
    comm_reduce_scatter(comm, own, in, count, type);
    memcpy(before + (size_t)rank * part, expected, part);
    expect(memcmp(in, before, whole) == 0, "reduce-scatter in place", type, count);
    free(in);
    free(before);
    free(out);
    free(expected);
}

static void check_all_gather(CommType type, int64_t count) {
    size_t part = (size_t)count * comm_type_bytes(type), whole = part * (size_t)ranks;
    char *in = (char *)xmalloc(part), *out = (char *)xcalloc(whole, 1), *expected = (char *)xmalloc(whole);
    for (int r = 0; r < ranks; r++) fill(expected + (size_t)r * part, count, 0, type, r);
    fill(in, count, 0, type, rank);
    comm_all_gather(comm, out, in, count, type);
    expect(memcmp(out, expected, whole) == 0, "all-gather", type, count);
    memset(out, 0, whole);
    memcpy(out + (size_t)rank * part, in, part);
    comm_all_gather(comm, out, out + (size_t)rank * part, count, type);
    expect(memcmp(out, expected, whole) == 0, "all-gather in place", type, count);
    free(in);
    free(out);
    free(expected);
}

// Checks all-to-all. Rank r sends rank s elements [s * count, (s + 1) * count) of its input.
static void check_all_to_all(CommType type, int64_t count) {
    size_t part = (size_t)count * comm_type_bytes(type), whole = part * (size_t)ranks;
    char *in = (char *)xmalloc(whole), *out = (char *)xcalloc(whole, 1), *expected = (char *)xmalloc(whole);
    for (int r = 0; r < ranks; r++) fill(expected + (size_t)r * part, count, rank * count, type, r);
    fill(in, count * ranks, 0, type, rank);
    comm_all_to_all(comm, out, in, count, type);
    expect(memcmp(out, expected, whole) == 0, "all-to-all", type, count);
    free(in);
    free(out);
    free(expected);
}

// Checks the functions that exchange numbers, errors and texts of the hosts.
static void check_host(void) {
    expect(comm_max_i64(comm, -rank) == 0, "max_i64", COMM_I64, 1);
    expect(comm_sum_i64(comm, rank + 1) == (int64_t)ranks * (ranks + 1) / 2, "sum_i64", COMM_I64, 1);
    Error err;
    memset(&err, 0, sizeof err);
    expect(comm_all_good(comm, true, &err), "all good", COMM_I64, 1);
    bool bad = rank == ranks - 1;
    if (bad) error_set(&err, EXIT_DATA, "a file");
    char expected[sizeof err.text];
    snprintf(expected, sizeof expected, ranks > 1 ? "rank %d: a file" : "a file", ranks - 1);
    expect(!comm_all_good(comm, !bad, &err) && err.code == EXIT_DATA && strcmp(err.text, expected) == 0,
           "an error of one rank reaches all ranks", COMM_I64, 1);
    error_set(&err, EXIT_USER, "rank %d's own", rank);
    snprintf(expected, sizeof expected, "rank %d's own", rank);
    expect(!comm_all_good(comm, false, &err) && strcmp(err.text, expected) == 0, "each rank keeps its own error",
           COMM_I64, 1);
    // Shares texts of many lengths, because comm_share_text() sends blocks of 64 bytes.
    for (int length = 0; length < 200; length += length < 60 ? 20 : 1) {
        char text[191], sent[191];
        memset(sent, 0, sizeof sent);
        memset(sent, 0xe9, length < 190 ? (size_t)length : 190);
        snprintf(text, sizeof text, "%s", rank == ranks - 1 ? sent : "other");
        comm_share_text(comm, ranks - 1, text, sizeof text);
        expect(strcmp(text, sent) == 0, "share_text", COMM_BYTES, length);
    }
    comm_barrier(comm);
    comm_after_compute(comm);
    comm_wait(comm, comm_mark(comm));
    expect(comm_check(comm, &err), "check", COMM_I64, 1);
}

// Checks collectives that are larger than the staging buffer and therefore need several rounds. The last round has an
// odd length.
static void check_big(void) {
    const int64_t count = (int64_t)17 * 1024 * 1024 / 2 + 3; // 34 MiB in FP32, 17 MiB in BF16
    check_all_reduce(COMM_FP32, COMM_SUM, count);
    check_reduce_scatter(COMM_BF16, count);
    check_all_gather(COMM_BYTES, 2 * count);
    check_all_to_all(COMM_BYTES, 2 * count);
}

static void check_collectives(void) {
    static const int64_t counts[] = {1, 2, 3, 7, 1023, 4096, 4097, 100003};
    static const CommType types[] = {COMM_FP32, COMM_FP64, COMM_BF16, COMM_I32, COMM_I64, COMM_BYTES};
    comm_group_begin(comm);
    comm_group_end(comm);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            check_all_gather(types[t], counts[c]);
            check_all_to_all(types[t], counts[c]);
            if (types[t] == COMM_BYTES) continue;
            check_all_reduce(types[t], COMM_SUM, counts[c]);
            check_reduce_scatter(types[t], counts[c]);
            if (types[t] != COMM_FP64 && types[t] != COMM_BF16) check_all_reduce(types[t], COMM_MAX, counts[c]);
        }
}

// Makes the last rank fail in the way `how`. The other ranks wait for the last rank with a timeout of 3 seconds.
static void lose_one(const char *how) {
    comm_set_timeout(comm, 3);
    comm_barrier(comm);
    if (rank == ranks - 1) {
        if (strcmp(how, "die") == 0) raise(SIGKILL);
        if (strcmp(how, "stop") == 0) {
            raise(SIGSTOP);
            _exit(EXIT_USER); // Reached if mpirun wakes the stopped process to end it.
        }
        if (strcmp(how, "fail") == 0) {
            fprintf(stderr, "error: a file cannot be read\n");
            comm_abort(comm, EXIT_DATA);
        }
        while (strcmp(how, "hang") == 0) pause();
    }
    float values[3] = {1, 2, 3};
    comm_all_reduce(comm, values, 3, COMM_FP32, COMM_SUM);
    if (rank != ranks - 1) printf("continued: rank %d, without rank %d\n", rank, ranks - 1);
}

// Makes the last rank compute for 4 seconds and the other ranks for 2 seconds, with a timeout of 1 second. The other
// ranks must wait, because the last rank computes at most twice as long as they do.
static void be_slow(void) {
    comm_set_timeout(comm, 1);
    comm_barrier(comm);
    sleep(rank == ranks - 1 ? 4 : 2);
    int64_t all = comm_sum_i64(comm, 1);
    if (rank == 0) printf("%lld ranks have arrived\n", (long long)all);
    comm_close(comm);
}

static bool slow_disk;

// Replaces the C library's fsync() to make the disk of rank 0 slow.
int fsync(int fd) {
    if (slow_disk) usleep(400000);
    return (int)syscall(SYS_fsync, fd);
}

// Saves two checkpoints. When the second save begins, rank 0 is still writing the first checkpoint and needs longer
// than the other ranks' timeout.
static void save_slowly(Config *config, Exec *exec, const char *folder) {
    Error err;
    RunState state;
    Shards shards;
    Arena *arena = (Arena *)xcalloc(1, sizeof *arena);
    recipe_apply(&config->recipe, RECIPE_BF16);
    if (!model_shape_named("d1", &config->shape)) fatal(EXIT_USER, "there is no model d1");
    model_shape_vocab(&config->shape, 257);
    config->micro_batch = config->save_every = 1;
    config->seq_len = 16;
    config->quiet = true;
    snprintf(config->out, sizeof config->out, "%s", folder);
    memset(&state, 0, sizeof state);
    if (!exec->ops->open(exec, config, &err)) fatal(err.code, "%s", err.text);
    arena_plan(arena, config, ranks, DEVICE_CPU);
    if (!arena_allocate(arena, exec, &err)) fatal(err.code, "%s", err.text);
    shards_open(&shards, arena, exec, comm);
    Log *log = log_open(config, rank, 2, 1, 0, &err);
    if (!log) fatal(err.code, "%s", err.text);
    Saver *saver = saver_open(config, arena, exec, log);
    if (!saver_set_shards(saver, &shards, &err)) fatal(err.code, "%s", err.text);
    slow_disk = rank == 0;
    double waited = now_ms();
    for (state.step = 1; state.step <= 2; state.step++) {
        comm_set_timeout(comm, 1);
        saver_save(saver, &state);
    }
    waited = now_ms() - waited;
    slow_disk = false;
    comm_set_timeout(comm, FILES_TIMEOUT_S);
    int64_t saved = comm_sum_i64(comm, saver_finish(saver, &err) && waited > 2000);
    if (rank == 0) printf("%lld ranks have waited and saved\n", (long long)saved);
    saver_close(saver);
    log_close(log);
    comm_close(comm);
}

static bool is_word(const char *text) {
    static const char *const words[] = {"die", "stop", "hang", "fail", "slow"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i]) == 0) return true;
    return false;
}

int main(int argc, char **argv) {
    Config config;
    Error err;
    CommPlace place;
    Exec exec;
    if (usage_asked(argc, argv, usage)) return EXIT_DONE;
    const bool saves = argc == 3 && strcmp(argv[1], "save") == 0;
    if (argc > 2 + saves || (argc == 2 && !is_word(argv[1]))) fatal(EXIT_USER, USAGE_LINE(usage));
    memset(&exec, 0, sizeof exec);
    config_defaults(&config);
    if (!comm_discover(&config, &place, &err)) fatal(err.code, "%s", err.text);
    exec.ops = cpu_ops();
    exec.rank = place.rank;
    exec.ranks = place.ranks;
    comm = comm_open(&place, &config, &exec, &err);
    if (!comm) fatal(err.code, "%s", err.text);
    rank = comm_rank(comm);
    ranks = comm_ranks(comm);
    if (argc > 1) {
        if (saves)
            save_slowly(&config, &exec, argv[2]);
        else if (strcmp(argv[1], "slow") == 0)
            be_slow();
        else
            lose_one(argv[1]);
        return 0;
    }
    check_collectives();
    check_host();
    check_big();
    int64_t all_wrong = comm_sum_i64(comm, wrong);
    if (rank == 0)
        printf("%d ranks, %s: %d checks, %lld wrong\n", ranks, comm_name(comm), checks, (long long)all_wrong);
    comm_close(comm);
    return all_wrong ? 1 : 0;
}
