// Computes the bytes that each operation of a training step must move through memory, without a GPU. The model of
// train_gpt2_fp8.cu runs on a device that only records accesses (dev/test/order_ops.h). An operation counts each byte
// that it reads or writes once, and does not count reads of its own output. A kernel that takes longer than a copy of
// these bytes can be improved.
// Usage: bench_traffic [--tsv] FLAGS OF THE TRAINER
// Covers a micro-batch that adds to existing gradients, and the update. With --gpus N, covers the first of N ranks,
// without communication.
// The included headers define functions that only test_order calls.
#pragma GCC diagnostic ignored "-Wunused-function"
#include "coat/comm/comm_internal.h"
#include "coat/flags/config_check.h"
#include "coat/flags/config_parse.h"
#include "coat/run/checkpoint_settings.h"
#include "coat/run/run.h"
#include "dev/test/order_ops.h"

static const char usage[] = "usage: bench_traffic [--tsv] FLAGS OF THE TRAINER\n"
                            "\n"
                            "Prints how many bytes each operation of a training step reads and writes: in a\n"
                            "micro-batch that adds to the gradients, and in the update. With --gpus N, counts\n"
                            "the first of N processes, without communication.\n"
                            "--tsv: prints tab-separated values for scripts\n";

// --- collectives that do nothing, because bench_traffic does not count communication ------------------------------

static void traffic_all_reduce(Comm *comm, void *data, int64_t count, CommType type, CommOp op) {
    (void)comm, (void)data, (void)count, (void)type, (void)op;
}

static void traffic_exchange(Comm *comm, void *out, const void *in, int64_t count_per_rank, CommType type) {
    (void)comm, (void)out, (void)in, (void)count_per_rank, (void)type;
}

static Comm *traffic_comm_open(const CommPlace *place, const Config *config, Exec *exec, Error *err) {
    static const CommOps ops = {
        .name = "nothing",
        .all_reduce = traffic_all_reduce,
        .reduce_scatter = traffic_exchange,
        .all_gather = traffic_exchange,
        .all_to_all = traffic_exchange,
    };
    (void)config, (void)err;
    Comm *comm = (Comm *)xcalloc(1, sizeof *comm);
    comm->ops = &ops;
    comm->place = *place;
    comm->exec = exec;
    return comm;
}

static void traffic_arena_plan(Arena *arena, const Config *config, int ranks, DeviceKind device) {
    arena_plan(arena, config, ranks, device);
    order.arena = arena;
    order.base = (char *)((uintptr_t)1 << 44); // The arena's base is an arbitrary address that is never dereferenced.
    order.window = (size_t)1 << 44;
}

static const Ops *traffic_ops(void) {
    return &order_ops;
}

#define comm_open traffic_comm_open
#define cpu_ops traffic_ops
#define arena_plan traffic_arena_plan
#define TESTING
#include "train_gpt2_fp8.cu"
#undef arena_plan

enum { MAX_NAMES = 64, SEEN = 1 << 22 };

typedef struct {
    const char *name;
    int64_t calls;
    double read, written; // number of bytes that all calls of the operation have read and written
} Traffic;

static Traffic traffic[MAX_NAMES];
static int names;

static void traffic_reset(void) {
    memset(traffic, 0, sizeof traffic);
    names = 0;
}

static Traffic *traffic_of(const char *name) {
    for (int i = 0; i < names; i++)
        if (strcmp(traffic[i].name, name) == 0) return &traffic[i];
    if (names == MAX_NAMES) fatal(EXIT_DEVICE, "more than %d operations", MAX_NAMES);
    traffic[names].name = name;
    return &traffic[names++];
}

// True if the current operation has already accessed this address: written it if `writes` is true, otherwise read it.
// If `remember` is true, records the access.
static bool met(const void *address, bool writes, bool remember) {
    static struct {
        uintptr_t key;
        int64_t when;
    } seen[SEEN];
    const uintptr_t key = (uintptr_t)address * 2 + writes;
    const int64_t now = order.clock[COMPUTATION];
    for (size_t at = (key * 0x9e3779b97f4a7c15u) >> 42, tries = 0; tries < SEEN; at = (at + 1) % SEEN, tries++) {
        if (seen[at].when == now && seen[at].key == key) return true;
        if (seen[at].when == now) continue;
        if (remember) {
            seen[at].key = key;
            seen[at].when = now;
        }
        return false;
    }
    fatal(EXIT_DEVICE, "internal error: an operation accesses more than %d memory ranges", SEEN);
}

static void count(const void *address, size_t bytes, bool writes) {
    static int last;
    Traffic *t = traffic_of(order.event[COMPUTATION][order.clock[COMPUTATION]].name);
    if (order.clock[COMPUTATION] != last) t->calls++;
    last = order.clock[COMPUTATION];
    if (!writes && met(address, true, false)) return;
    if (met(address, writes, true)) return;
    *(writes ? &t->written : &t->read) += (double)bytes;
}

static void print_traffic(const Config *c, bool tsv, const char *what) {
    const double block = (double)config_micro_tokens(c) * c->shape.layers * c->shape.channels;
    if (!tsv)
        printf("%s\n| | calls | read, GB | written, GB | bytes per token and block, in C |\n| --- | --- | --- | --- | "
               "--- |\n",
               what);
    for (int i = 0; i < names; i++) {
        const Traffic *t = &traffic[i];
        if (tsv)
            printf("%s\t%s\t%.0f\n", what, t->name, t->read + t->written);
        else if (t->calls)
            printf("| %s | %lld | %.3f | %.3f | %.2f |\n", t->name, (long long)t->calls, t->read * 1e-9,
                   t->written * 1e-9, (t->read + t->written) / block);
    }
    traffic_reset();
}

// Completes the model's shape from the model's files and the tokenizer.
static bool read_shape(Config *config, Error *err) {
    static Run run;
    const VisionShape given = config->shape.vision;
    return (!config->shape_files[0] || model_shape_from_files(config->shape_files, &config->shape, err)) &&
           run_join_vision(config, &given, err) && run_open_tokenizer(&run, config, err);
}

int main(int argc, char **argv) {
    static CommandLine line;
    static Config recorded, config;
    static Model m;
    static const int32_t none[1]; // dummy token ids, because the recording device does not read them
    Error err = {EXIT_DONE, "", 0};
    bool printed = false;
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return EXIT_DONE;
    }
    const bool tsv = argc > 1 && strcmp(argv[1], "--tsv") == 0;
    char **flags = (char **)xcalloc((size_t)argc + 2, sizeof *flags);
    int count_flags = 0;
    for (int i = 0; i < argc; i++)
        if (!(tsv && i == 1)) flags[count_flags++] = argv[i];
    flags[count_flags++] = (char *)"--plan"; // --plan runs without training data
    if (!command_line_read(&line, count_flags, flags, &printed, &err)) fatal(err.code, "%s", err.text);
    free(flags);
    if (printed) return EXIT_DONE;
    if (!checkpoint_settings(&recorded, &line.flags, &err) || !config_parse(&config, &line, &recorded, &err))
        fatal(err.code, "%s", err.text);
    config.device = DEVICE_CPU;
    if (!read_shape(&config, &err) || !config_check(&config, config.gpus, &err)) fatal(err.code, "%s", err.text);
    const CommPlace first = {0, config.gpus, 0, config.gpus, "bench_traffic", false, ""};
    count_access = count;
    if (!model_create(&m, &config, &first, &err)) fatal(err.code, "%s", err.text);
    step_begin(&m, 1e-3f, 1);
    batch_upload(&m, config.micro_batch, config.seq_len, none, none, NULL);
    traffic_reset();
    micro_step(&m, true, true);
    print_traffic(&config, tsv, "micro-batch");
    step_end(&m);
    shards_weights_wait(&m.shards); // Waits for the quantized weights that other ranks have updated.
    print_traffic(&config, tsv, "update");
    return EXIT_DONE;
}
