// Tests of the memory plan (coat/model/plan.h): the advice if a run needs too much memory or an allocation fails,
// optimizer states in host memory, memory sizes as text, and the bytes of saved activations per layer.
#include "coat/config/shapes.h"
#include "coat/config/vision.h"
#include "coat/model/plan.h"
#include "config_fixture.h"
#include "fake_device.h"

static char advice[ADVICE_TEXT];
static Arena plan;

// Returns the memory plan of the trainer's command line `line` with `flags` appended.
static const Arena *plan_with(const char *line, const char *flags, int ranks) {
    accept_run(formatted("--plan %s %s", line, flags), ranks);
    arena_plan(&plan, &config, ranks, DEVICE_CUDA);
    return &plan;
}

static void advise(const char *line, int ranks, size_t limit) {
    plan_with(line, "", ranks);
    plan_advice(&config, ranks, DEVICE_CUDA, limit, advice, sizeof advice);
}

// Asserts that the advice contains all of `parts`, which are separated by '&'.
static void has(const char *parts) {
    const char *missing = missing_part(advice, parts);
    if (missing) fail_msg("%s is not in: %s", missing, advice);
}

static Category category_of(const char *name) {
    int c = 0;
    while (c < CATEGORY_COUNT && strcmp(category_name((Category)c), name) != 0) c++;
    assert_true(c < CATEGORY_COUNT);
    return (Category)c;
}

// Checks the plan's advice, which has the form "; most memory is for saved 2.50 GB (use --a or --b), moments 1.25 GB".
// It must name the three largest categories. Every flag that it names must be accepted and shrink its category. Returns
// the number of flags.
static int try_flags(const char *line, int ranks) {
    size_t bytes[CATEGORY_COUNT], last = SIZE_MAX;
    char text[MEMORY_TEXT];
    int flags = 0, categories = 0;
    memcpy(bytes, plan_with(line, "", ranks)->category_bytes, sizeof bytes);
    const char *begin = strstr(advice, "; most memory is for ");
    assert_non_null(begin);
    char *list = formatted("%s", begin + strlen("; most memory is for "));
    for (char *rest = list, *item; (item = strsep(&rest, ",")); categories++) {
        char *flag = strstr(item, " (use "), name[32] = "", number[32] = "", unit[8] = "";
        assert_int_equal(sscanf(item, "%31s %31s %7s", name, number, unit), 3);
        const Category c = category_of(name);
        snprintf(number + strlen(number), sizeof number - strlen(number), " %s", unit);
        assert_string_equal(number, memory_text(text, bytes[c]));
        assert_true(bytes[c] <= last);
        last = bytes[c];
        for (flag = flag ? strstr(flag, "--") : NULL; flag; flags++) {
            char *next = strstr(flag, " or ");
            flag[next ? (size_t)(next - flag) : strcspn(flag, ")")] = '\0';
            const Arena *less = plan_with(line, flag, ranks);
            if (!arena_on_host(less, c) && less->category_bytes[c] >= bytes[c])
                fail_msg("%s does not shrink %s of %s: %s", flag, name, line, advice);
            flag = next ? next + 4 : NULL;
        }
        bytes[c] = 0;
    }
    for (int c = 0; c < CATEGORY_COUNT; c++) assert_true(bytes[c] <= last);
    assert_int_equal(categories, 3);
    return flags;
}

#define XL "--model gpt2-xl --recipe"

UNIT_TEST(flags_that_the_advice_names_reduce_memory) {
    static const struct {
        const char *line;
        int ranks;
        const char *named;
    } cases[] = {
        {XL " bf16", 1, "--saved coat or --recompute 1"},
        {XL " bf16 --micro-batch 1", 1, "moments 12.46 GB (use --moments coat or --offload-states)"},
        {XL " bf16 --saved coat --recompute 0", 1, "--moments coat"},
        {XL " fp8-linear --micro-batch 32", 1, "--saved coat"},
        {XL " coat --grads fp32 --master fp32", 1, "--grads bf16"},
        {XL " coat", 1, "saved &(use --recompute 3)"},
        {XL " bf16", 4, "--zero 1"},
        {XL " bf16 --zero 3", 4, "--saved coat"},
        {XL " coat --zero 1", 8, "--zero 3"},
        {"--model llama2-7b --recipe coat", 1, ""},
        {"--model olmo2:d4 --recipe coat --micro-batch 32", 1, ""},
        {"--layers 2 --heads 1 --channels 40 --micro-batch 32 --seq-len 512", 1,
         "--recompute 1"}, // runs in BF16, because FP8 needs multiples of 16
        {"--model gpt2 --micro-batch 64 --precision fp32", 1, "--precision recipe"},
        {"--model gpt2 --micro-batch 64 --eval-only --recipe bf16", 1, "--logits-chunk"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        advise(cases[i].line, cases[i].ranks, 0);
        has(cases[i].named);
        assert_null(strstr(advice, "use --micro-batch")); // without a memory limit, the advice names no micro-batch
        assert_true(try_flags(cases[i].line, cases[i].ranks) > 0);
    }
}

UNIT_TEST(the_largest_micro_batch_that_fits_is_named) {
    const char *line = XL " bf16 --micro-batch 64";
    const size_t limit = (size_t)80e9;
    int fits;
    advise(line, 1, limit);
    assert_int_equal(sscanf(advice, "; use --micro-batch %d; ", &fits), 1);
    assert_true(plan_with(line, formatted("--micro-batch %d", fits), 1)->total_bytes <= limit);
    assert_true(plan_with(line, formatted("--micro-batch %d", fits + 1), 1)->total_bytes > limit);
    // FP8 needs a multiple of 16 tokens. With 1001 tokens per sequence, the micro-batch must be a multiple of 16.
    advise("--model gpt2 --recipe coat --seq-len 1001 --micro-batch 128", 1, (size_t)20e9);
    has("; use --micro-batch 112; ");
    advise(line, 1, (size_t)16e9);
    has("; --micro-batch 1 does not fit; ");
    advise(XL " coat", 1, (size_t)80e9); // it fits
    assert_null(strstr(advice, "micro-batch"));
}

// --- tests of failed allocations

static int64_t device_bytes;

static void *no_memory(Exec *exec, size_t bytes, Error *err) {
    (void)exec, (void)bytes;
    error_set(err, EXIT_DEVICE, "the device refuses");
    return NULL;
}

static int64_t memory_left(Exec *exec) {
    (void)exec;
    return device_bytes;
}

static void fail_to_allocate(const char *line, int64_t has_bytes) {
    static Arena arena;
    Exec exec;
    Ops ops;
    fake_open(&exec, &ops);
    ops.allocate = no_memory;
    ops.memory_free = memory_left;
    device_bytes = has_bytes;
    accept_run(line, 1);
    arena_plan(&arena, &config, 1, DEVICE_CPU);
    assert_false(arena_allocate(&arena, &exec, &error));
    assert_false(plan_advise(&arena, &exec, &error));
}

UNIT_TEST(a_failed_allocation_names_what_reduces_memory) {
    const char *line = "--train x --model gpt2-xl --recipe coat --micro-batch 32";
    fail_to_allocate(line, (int64_t)20e9);
    assert_message(line, EXIT_DEVICE, "memory: &(the device refuses)&--micro-batch &saved &--recompute 3");
    fail_to_allocate(line, 0); // The device does not report its free memory.
    assert_null(strstr(error.text, "use --micro-batch"));
    assert_non_null(strstr(error.text, "saved "));
}

static void *host_memory(Exec *exec, size_t bytes) {
    return fake_allocate(exec, bytes, NULL);
}
static void *no_host_memory(Exec *exec, size_t bytes) {
    (void)exec, (void)bytes;
    return NULL;
}

// --offload-states moves exactly the moments and the master weights to host memory.
UNIT_TEST(offloaded_states_are_in_host_memory) {
    static Arena whole, arena;
    Exec exec;
    Ops ops;
    fake_open(&exec, &ops);
    ops.host_allocate = host_memory;
    ops.host_release = fake_release;
    accept_run("--train x --layers 3 --heads 2 --channels 64 --seq-len 32 --recipe coat --offload-states", 1);
    arena_plan(&arena, &config, 1, DEVICE_CPU);
    assert_true(arena.host_bytes == 0); // The CPU backend needs no separate host memory.
    config.offload_states = false;
    arena_plan(&whole, &config, 1, DEVICE_CUDA);
    config.offload_states = true;
    arena_plan(&arena, &config, 1, DEVICE_CUDA);
    assert_true(arena.host_bytes == whole.category_bytes[CATEGORY_MOMENTS] + whole.category_bytes[CATEGORY_MASTER]);
    assert_true(arena.total_bytes + arena.host_bytes == whole.total_bytes);
    assert_true(arena_allocate(&arena, &exec, &error));
    for (int id = 0; id < TENSOR_COUNT; id++) {
        for (int role = VALUE; role <= MASTER; role++) {
            const TensorLayout *t = &arena.layout[id][role];
            for (int l = 0; t->exists && l < t->layers; l++) {
                const Tensor at = arena_tensor(&arena, (TensorId)id, (Role)role, l);
                const bool on_host = role == MOMENT_M || role == MOMENT_V || role == MASTER;
                const char *memory = on_host ? arena.host : arena.base;
                const char *end = memory + (on_host ? arena.host_bytes : arena.total_bytes);
                assert_true((char *)at.data >= memory && (char *)at.data + t->data_bytes <= end);
                if (at.scale) assert_true((char *)at.scale >= memory && (char *)at.scale < end);
                if (at.exponent) assert_true((char *)at.exponent >= memory && (char *)at.exponent < end);
            }
        }
    }
    arena_release(&arena, &exec);
    assert_null(arena.base);
    assert_null(arena.host);
    ops.host_allocate = no_host_memory;
    assert_false(arena_allocate(&arena, &exec, &error));
    assert_null(arena.base); // the device memory is released
    assert_message("a host without memory", EXIT_DEVICE, "--offload-states: the host could not allocate &");
    assert_false(plan_advise(&arena, &exec, &error));
    assert_message("a host without memory", EXIT_DEVICE, "--offload-states: &moments &--no-offload-states");
}

// Muon's matrices have one state, the momentum, instead of AdamW's two. An 8-bit state has 5 more bytes (a and k) per
// 128 elements.
UNIT_TEST(muon_matrices_have_one_state) {
    const size_t matrices = (size_t)12 * 12 * 768 * 768,
                 states[] = {matrices + matrices / 128 * 5, matrices * 2, matrices * 4};
    static const char *const flags[] = {"--recipe coat", "--recipe coat --moments bf16", "--recipe bf16"};
    for (int i = 0; i < 3; i++) {
        const size_t adamw = plan_with("--model gpt2", flags[i], 1)->category_bytes[CATEGORY_MOMENTS];
        const Arena *muon = plan_with("--model gpt2 --optimizer muon", flags[i], 1);
        assert_true(muon->category_bytes[CATEGORY_MOMENTS] == adamw - states[i]);
        assert_true(muon->layout[QKVW][MOMENT_M].exists && !muon->layout[QKVW][MOMENT_V].exists);
        assert_true(muon->layout[WTE][MOMENT_V].exists && muon->layout[MUON_X][VALUE].cols == 7 * 4 * 768 * 768);
    }
    // MUON_X and MUON_Y contain the largest matrices that are updated together, here c_attn of two layers. With ZeRO,
    // they are rounded up to 7 equal shards.
    const int64_t largest = 2 * 3 * 1600 * 1600;
    for (int zero = 0; zero <= 3; zero++) {
        const Arena *a = plan_with("--model gpt2-xl --optimizer muon", formatted("--zero %d", zero), 7);
        const TensorLayout *x = &a->layout[MUON_X][VALUE], *y = &a->layout[MUON_Y][VALUE];
        const int64_t shards = 7 * tensor_shard_elements(largest, 7);
        assert_true(shards > largest && x->local_elements == (zero ? shards : largest));
        assert_true(y->data_bytes == x->data_bytes && x->data_bytes == (size_t)x->local_elements * 2);
    }
    // a vision tower's matrices are updated by AdamW
    Config tower;
    plan_with("--model llama:d2 --vision clip:d2 --optimizer muon", "", 1);
    vision_config(&tower, &config);
    arena_plan(&plan, &tower, 1, DEVICE_CUDA);
    assert_true(plan.layout[QKVW][MOMENT_V].exists && !plan.layout[MUON_X][VALUE].exists);
}

UNIT_TEST(nonzero_sizes_are_never_printed_as_0) {
    static const struct {
        size_t bytes;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {1, "1 B"},
                 {999, "999 B"},
                 {1000, "1.00 KB"},
                 {8192, "8.19 KB"},
                 {10000, "0.01 MB"},
                 {1000000, "1.00 MB"},
                 {512300000, "512.30 MB"},
                 {35810000000, "35.81 GB"},
                 {SIZE_MAX, "18446744073.71 GB"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char text[MEMORY_TEXT];
        assert_string_equal(memory_text(text, sizes[i].bytes), sizes[i].text);
    }
}

// plural() and singular() choose the singular form exactly for counts that %.3g prints as 1.
UNIT_TEST(counts_have_the_right_grammatical_number) {
    static const double counts[] = {0, 0.999, 0.9996, 1, 1.004, 1.01, 2, 1e12};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const bool one = strcmp(formatted("%.3g", counts[i]), "1") == 0;
        assert_string_equal(plural(counts[i]), one ? "" : "s");
        assert_string_equal(singular(counts[i]), one ? "s" : "");
    }
}

// Returns the bytes of saved activations for one sequence of 1024 tokens in a model of `layers` layers.
static int64_t bytes_saved_of(const char *model, int layers) {
    accept_run(formatted("--plan --model %s --layers %d --seq-len 1024 --micro-batch 1", model, layers), 1);
    Arena *arena = (Arena *)xmalloc(sizeof *arena);
    arena_plan(arena, &config, 1, DEVICE_CUDA);
    const int64_t bytes = (int64_t)arena->category_bytes[CATEGORY_SAVED];
    free(arena);
    return bytes;
}

// Checks the bytes that one layer of every model family saves per token with --recipe coat:
//   the residual stream twice, and the input of the activation function: E4M3 with a 2-byte scale per 16 values
//   qkv and o: BF16
//   log-sum-exp and the norms' statistics: FP32
UNIT_TEST(saved_bytes_per_layer_of_every_family) {
    static const struct {
        const char *model;
        int statistics; // FP32 values per norm and token
        bool keeps_n;   // true for post-norm: the matmuls' FP8 inputs are saved, with one scale per token
    } families[] = {{"gpt2", 2, false},        {"llama2-7b", 1, false},  {"llama3-8b", 1, false},
                    {"llama3.2-1b", 1, false}, {"mistral-7b", 1, false}, {"olmo-1b", 2, false},
                    {"olmo2-1b", 1, true},     {"olmo2-7b", 1, true},    {"qwen2.5-7b", 1, false},
                    {"qwen3-0.6b", 1, false},  {"qwen3-8b", 1, false},   {"smollm2-135m", 1, false}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const int64_t four = bytes_saved_of(families[i].model, 4), two = bytes_saved_of(families[i].model, 2);
        const ModelShape *s = &config.shape;
        const int64_t o = (int64_t)s->heads * s->head_dim;
        int64_t bytes = 9 * (2 * s->channels + shape_hidden_width(s)) / 8 + 2 * (shape_qkv_width(s) + o) + 4 * s->heads;
        bytes += 2 * 4 * families[i].statistics + (families[i].keeps_n ? 2 * s->channels + 4 : 0);
        const int64_t found = (four - two) / 2 - bytes * 1024; // bytes for alignment and tensors' scales
        if (found < 0 || found > 1024)
            fail_msg("%s saves %lld bytes per token and layer, and %lld more", families[i].model, (long long)bytes,
                     (long long)found);
    }
}

RUN_TESTS(NULL, NULL, NULL)
