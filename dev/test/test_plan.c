// Tests of the advice for too little memory: every flag that it names is tried and must save the stated amount. Runs
// on devices without enough memory are tested with a device that refuses allocations.
#include "coat/config/shapes.h"
#include "coat/model/plan.h"
#include "config_fixture.h"
#include "dev/test/unit.h"
#include "fake_device.h"

static char advice[ADVICE_TEXT];

static size_t bytes_of(const Config *c, int ranks) {
    Arena *arena = (Arena *)xmalloc(sizeof *arena);
    arena_plan(arena, c, ranks, DEVICE_CUDA);
    const size_t bytes = arena->total_bytes;
    free(arena);
    return bytes;
}

// Returns the plan's bytes for a command line with additional flags.
static size_t bytes_with(const char *line, const char *flags, int ranks) {
    char longer[1024];
    snprintf(longer, sizeof longer, "--plan %s %s", line, flags);
    accept_run(longer, ranks);
    return bytes_of(&config, ranks);
}

static size_t micro_batch_bytes(const char *line, const char *flags, int micro_batch, int ranks) {
    char more[512];
    snprintf(more, sizeof more, "%s --micro-batch %d", flags, micro_batch);
    return bytes_with(line, more, ranks);
}

static const char *advise(const char *line, int ranks, size_t limit) {
    bytes_with(line, "", ranks);
    plan_advice(&config, ranks, DEVICE_CUDA, limit, advice, sizeof advice);
    return advice;
}

// Tries every flag of the advice, "; --grads bf16 saves 2.50 GB, --zero 1 1.25 GB". Each must save the stated amount,
// and no more than the flag before it. Appends them to `flags` and returns their number.
static int try_savings(const char *line, int ranks, char flags[512]) {
    const size_t whole = bytes_with(line, "", ranks);
    size_t most = whole;
    char list[ADVICE_TEXT];
    int count = 0;
    flags[0] = '\0';
    const char *begin = strstr(advice, " saves ");
    if (!begin) return 0;
    while (*begin != ';') begin--;
    snprintf(list, sizeof list, "%.*s", (int)strcspn(begin + 2, ";:"), begin + 2);
    for (char *rest = list, *item; (item = strsep(&rest, ",")); count++) {
        char text[MEMORY_TEXT], *saves = strstr(item, " saves ");
        if (saves) memmove(saves, saves + 6, strlen(saves + 6) + 1);
        char *unit = strrchr(item, ' '), *size = unit;
        while (size[-1] != ' ') size--;
        size[-1] = '\0'; // ends the flag before it
        const size_t bytes = bytes_with(line, item, ranks), saved = whole - bytes;
        assert_true(bytes < whole);
        assert_true(saved <= most || strstr(item, "--offload") ||
                    strstr(item, "--recompute 3")); // last resorts come last
        assert_string_equal(memory_text(text, saved), size);
        most = saved;
        snprintf(flags + strlen(flags), 512 - strlen(flags), " %s", item);
    }
    return count;
}

static void lacks(const char *part) {
    if (strstr(advice, part)) fail_msg("%s is in: %s", part, advice);
}

static void has(const char *part) {
    if (!strstr(advice, part)) fail_msg("%s is not in: %s", part, advice);
}

#define XL "--model gpt2-xl --recipe"

UNIT_TEST(named_flags_save_the_stated_amount) {
    static const struct {
        const char *line;
        int ranks, changes;
    } cases[] = {
        {XL " bf16", 1, 5},
        {XL " bf16 --saved coat --recompute 0", 1, 4},
        {XL " fp8-linear --micro-batch 32", 1, 5},
        {XL " coat --grads fp32 --master fp32 --micro-batch 16", 1, 3},
        {XL " coat --moments bf16", 1, 3},
        {XL " bf16", 4, 6},
        {XL " coat --zero 1", 8, 2}, // ZeRO 3 stores no transposed weights
        {"--model gpt2 --micro-batch 64 --precision fp32", 1,
         1}, // fewer logits alone would save 2 %, in addition nothing
        {"--model gpt2 --micro-batch 64 --eval-only --recipe bf16", 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char flags[512];
        const char *text = advise(cases[i].line, cases[i].ranks, 0);
        const int count = try_savings(cases[i].line, cases[i].ranks, flags);
        if (count != cases[i].changes) fail_msg("%s: %d changes: %s", cases[i].line, count, text);
        lacks("fit"); // the memory limit is unknown
    }
}

UNIT_TEST(flags_in_use_are_not_named) {
    advise(XL " coat --micro-batch 8", 1, 0);
    lacks("--moments");
    lacks("--saved");
    lacks("--recompute");
    lacks("--zero"); // a single process
    advise(XL " bf16 --zero 3", 4, 0);
    lacks("--zero");
    has("--moments coat");
    advise(XL " bf16 --eval-only", 1, 0);
    lacks("--moments");
    lacks("--saved");
    lacks("--recompute");
    advise("--model gpt2 --recipe coat --micro-batch 64 --no-cache-transposed --logits-chunk 512", 1, 0);
    assert_string_equal(advice, "");
}

// Here moments need a fifth of the memory, and tensors saved for backward more.
UNIT_TEST(largest_saving_first) {
    advise("--model gpt2-xl --recipe bf16 --recompute 0 --micro-batch 64", 1, 0);
    has("; --recompute 2 saves ");
    has("--moments coat");
    assert_true(strstr(advice, "--saved coat") < strstr(advice, "--moments coat"));
    advise("--model gpt2-xl --recipe bf16 --micro-batch 1", 1, 0);
    has("; --moments coat saves ");
}

UNIT_TEST(micro_batch_that_fits) {
    const char *line = XL " bf16 --micro-batch 64";
    const size_t limit = (size_t)80e9;
    int fits;
    advise(line, 1, limit);
    assert_int_equal(sscanf(advice, "; --micro-batch %d would fit; ", &fits), 1);
    assert_true(micro_batch_bytes(line, "", fits, 1) <= limit);
    assert_true(micro_batch_bytes(line, "", fits + 1, 1) > limit);
    // FP8 needs a multiple of 16 tokens
    advise("--model gpt2 --recipe coat --seq-len 1001 --micro-batch 128", 1, (size_t)20e9);
    has("; --micro-batch 112 would fit");
}

UNIT_TEST(all_savings_needed) {
    char flags[512];
    int fits;
    const char *line = XL " bf16 --micro-batch 16";
    size_t limit = (size_t)16e9;
    advise(line, 1, limit);
    has("; not even --micro-batch 1 would fit; --");
    const char *all = strstr(advice, ": with all of these --micro-batch ");
    assert_non_null(all);
    assert_int_equal(sscanf(all, ": with all of these --micro-batch %d would fit", &fits), 1);
    assert_int_equal(try_savings(line, 1, flags), 4);
    assert_true(micro_batch_bytes(line, flags, 1, 1) <= limit);
    assert_true(micro_batch_bytes(line, flags, fits, 1) <= limit);
    assert_true(micro_batch_bytes(line, flags, fits + 1, 1) > limit);
}

// Copies the advice's text between `begin` and `end` to words.
static const char *between(const char *begin, const char *end, char words[512]) {
    has(begin);
    const char *from = strstr(advice, begin) + strlen(begin), *to = strstr(from, end);
    if (!to) fail_msg("%s does not follow %s: %s", end, begin, advice);
    snprintf(words, 512, "%.*s", (int)(to - from), from);
    return words;
}

// If all savings together are not enough, the advice names the missing bytes, the fewest GPUs and the largest model
// that fit.
UNIT_TEST(more_gpus_needed) {
    static const struct {
        const char *line, *flags; // flags: added to --zero 3 for more GPUs
        int ranks;
    } cases[] = {
        {"--model d96 --recipe coat", "", 4},
        {"--model d96 --recipe coat", "", 1},
        {"--model d96 --recipe bf16", " --moments coat --master split16 --recompute 2 --saved coat", 1},
    };
    const size_t limit = (size_t)40e9;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *line = cases[i].line;
        char flags[512], words[512], more[600], needed[MEMORY_TEXT], over[MEMORY_TEXT], *end;
        advise(line, cases[i].ranks, limit);
        try_savings(line, cases[i].ranks, flags);
        const size_t bytes = micro_batch_bytes(line, flags, 1, cases[i].ranks);
        snprintf(more, sizeof more, " --micro-batch 1 still needs %s, %s too much; ", memory_text(needed, bytes),
                 memory_text(over, bytes - limit));
        has(more);
        const int gpus = (int)strtol(between(" too much; ", " or --model ", words), &end, 10);
        snprintf(more, sizeof more, " GPUs with --zero 3%s", cases[i].flags);
        assert_string_equal(end, more);
        assert_true(micro_batch_bytes(line, end + strlen(" GPUs with"), 1, gpus) <= limit);
        snprintf(more, sizeof more, "%s --zero 3", flags);
        assert_true(micro_batch_bytes(line, more, 1, gpus - 1) > limit);
        snprintf(more, sizeof more, "--model %s", between(" or --model ", " would fit", words));
        assert_true(micro_batch_bytes(line, more, 1, cases[i].ranks) <= limit);
    }
    lacks("--no-cache-transposed");
    advise("--model d96 --recipe coat", 4, limit);
    lacks("--no-cache-transposed"); // named only if ZeRO 3, which includes it, is not
    advise("--model d96 --recipe coat", 4, 1000000);
    has(" too much");
    lacks("GPUs"); // no number of GPUs and no model fits
    lacks("--model");
    advise("--layers 96 --channels 6144 --recipe coat", 1, limit);
    has(" would fit");
    lacks("--model"); // this model has no name
    bytes_with("--model d96 --recipe coat", "", 1);
    plan_advice(&config, 1, DEVICE_CPU, limit, advice, sizeof advice);
    lacks("GPUs"); // CPU processes share memory
    has(" too much; --model d");
    advise("--model llama2-7b --recipe coat", 1, (size_t)10e9); // a model of the same architecture
    has("--model llama:d");
    advise("--model d96 --recipe coat --batch-tokens 81920", 5, (size_t)33e9);
    has("; 40 GPUs with --zero 3 or "); // 23 would fit, but does not divide the batch
}

#define OTHER "; with --recompute 3 in place of "
// --offload-states and --recompute 3 are named only if nothing milder lets a micro-batch fit.
UNIT_TEST(last_resorts) {
    char flags[512];
    int fits;
    static const char *const resorts[] = {"--offload-states", "--recompute 3"};
    int last[2] = {0};
    for (double limit = 5; limit < 20; limit += 0.2) {
        const size_t bytes = (size_t)(limit * 1e9);
        advise(XL " coat", 1, bytes);
        const char *fit = strstr(advice, " --micro-batch ");
        char *other = strstr(advice, OTHER); // tested in alternative_last_resort
        int named = 1;
        if (other) *other = '\0';
        lacks("--master none"); // masters are in host memory then
        while (named >= 0 && !strstr(advice, resorts[named])) named--;
        if (named < 0 || !fit || sscanf(fit, " --micro-batch %d would fit", &fits) != 1) continue;
        last[named]++;
        try_savings(XL " coat", 1, flags);
        assert_true(micro_batch_bytes(XL " coat", flags, fits, 1) <= bytes);
        char *of = strstr(flags, resorts[named]);
        memset(of, ' ', strlen(resorts[named]));
        if (micro_batch_bytes(XL " coat", flags, 1, 1) <= bytes) fail_msg("%.1f GB: %s", limit, advice);
    }
    assert_true(last[0] > 0 && last[1] > 0);
    advise(XL " coat --seq-len 32768 --sample-tokens 0 --micro-batch 1", 1, (size_t)26e9);
    has("--recompute 3 ");
    lacks("--offload-states"); // not needed, because --recompute 3 is
    advise(XL " coat", 1, (size_t)16e9);
    for (int i = 0; i < 2; i++) lacks(resorts[i]);
    advise("--micro-batch 1 --zero 3 --model gpt2-xl --recipe coat", 8, (size_t)3.76e9); // fewer logits are enough
    has("; --logits-chunk 256 saves ");
    has(": with it --micro-batch 1 would fit");
    lacks("--master none");
    advise(XL " coat", 1, 0); // the memory limit is unknown
    lacks("--master none");
}

// If --offload-states is enough and --recompute 3 would be, too, the advice also names that, its micro-batch, and the
// flags that it replaces.
UNIT_TEST(alternative_last_resort) {
    static const char *const lines[] = {XL " coat", XL " bf16"};
    static const char *const replaced[] = {"--offload-states", "--offload-states and --recompute 2"};
    for (int i = 0; i < 2; i++) {
        int found = 0, fits;
        for (double limit = 5; limit < 25; limit += 0.5) {
            const size_t bytes = (size_t)(limit * 1e9);
            char flags[512], less[ADVICE_TEXT];
            advise(lines[i], 1, bytes);
            const char *other = strstr(advice, OTHER);
            if (!other) continue;
            if (sscanf(other + strlen(OTHER), "%[^,], --micro-batch %d would fit", less, &fits) != 2)
                fail_msg("%s", advice);
            found += strcmp(less, replaced[i]) == 0;
            try_savings(lines[i], 1, flags);
            char *recompute = strstr(less, " and ");
            if (recompute) {
                memset(strstr(flags, recompute + 5), ' ', strlen(recompute + 5));
                *recompute = '\0';
            }
            memset(strstr(flags, less), ' ', strlen(less));
            strcat(flags, " --recompute 3");
            assert_true(micro_batch_bytes(lines[i], flags, fits, 1) <= bytes);
            if (micro_batch_bytes(lines[i], flags, fits + 1, 1) <= bytes) fail_msg("%.1f GB: %s", limit, advice);
        }
        assert_true(found > 0);
    }
}

// --precision fp32 is for comparisons. The advice names the savings of another precision: BF16 if that is enough.
UNIT_TEST(another_precision) {
    char flags[512];
    const char *line = "--model gpt2-xl --micro-batch 1 --precision fp32";
    static const struct {
        double limit;
        const char *flag;
    } cases[] = {{29e9, "--precision recipe --recipe bf16 saves "}, {20e9, "--precision recipe --recipe coat saves "}};
    for (int i = 0; i < 2; i++) {
        advise(line, 1, (size_t)cases[i].limit);
        has(cases[i].flag);
        assert_true(try_savings(line, 1, flags) > 0);
        assert_true(micro_batch_bytes(line, flags, 1, 1) <= (size_t)cases[i].limit);
    }
    advise("--model gpt2 --micro-batch 64 --precision fp32 --eval-only", 1, 0);
    has("--precision recipe --recipe ");
}

// --- a device that refuses

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

UNIT_TEST(a_failed_allocation) {
    const char *line = "--train x --model gpt2-xl --recipe coat --micro-batch 32";
    fail_to_allocate(line, (int64_t)20e9);
    assert_message(line, EXIT_DEVICE,
                   "memory: the run needs &(the device refuses); most of it is saved, &; --micro-batch &would "
                   "fit&saves&; see --plan");
    assert_null(strstr(error.text, "--moments"));
    assert_null(strstr(error.text, "--zero"));
    fail_to_allocate(line, 0); // amount of memory unknown
    assert_null(strstr(error.text, "would fit"));
    line = "--train x --model gpt2-xl --recipe bf16 --micro-batch 1";
    fail_to_allocate(line, (int64_t)25e9);
    assert_message(line, EXIT_DEVICE,
                   "most of it is moments, 12.46 GB; --moments coat saves 9.21 GB, --master split16 ");
    assert_null(strstr(error.text, "--zero"));
}

static void *host_memory(Exec *exec, size_t bytes) {
    return fake_allocate(exec, bytes, NULL);
}
static void *no_host_memory(Exec *exec, size_t bytes) {
    (void)exec, (void)bytes;
    return NULL;
}

// With --offload-states, moments and master weights are in host memory, and nothing else changes.
UNIT_TEST(states_on_the_host) {
    static Arena whole, arena;
    Exec exec;
    Ops ops;
    fake_open(&exec, &ops);
    ops.host_allocate = host_memory;
    ops.host_release = fake_release;
    accept_run("--train x --layers 3 --heads 2 --channels 64 --seq-len 32 --recipe coat --offload-states", 1);
    arena_plan(&arena, &config, 1, DEVICE_CPU);
    assert_true(arena.host_bytes == 0); // a CPU's memory is host memory
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
    assert_null(arena.base); // released
    assert_message("a host without memory", EXIT_DEVICE, "--offload-states: the host does not give &");
    assert_false(plan_advise(&arena, &exec, &error));
    assert_message("a host without memory", EXIT_DEVICE, "&master weights; remove the flag, or stop other programs");
}

// Sizes are shown with units; a size above 0 is never shown as 0.
UNIT_TEST(sizes_as_text) {
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

// A noun is plural for every count except 1, as shown by %.3g.
UNIT_TEST(counts_as_text) {
    static const double counts[] = {0, 0.999, 0.9996, 1, 1.004, 1.01, 2, 1e12};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char shown[16];
        snprintf(shown, sizeof shown, "%.3g", counts[i]);
        const bool one = strcmp(shown, "1") == 0;
        assert_string_equal(plural(counts[i]), one ? "" : "s");
        assert_string_equal(singular(counts[i]), one ? "s" : "");
    }
}

// --- what is saved ----------------------------------------------------------------------------------------------
static int64_t bytes_saved_of(const char *model, int layers) {
    char line[256];
    snprintf(line, sizeof line, "--plan --model %s --layers %d --seq-len 1024 --micro-batch 1", model, layers);
    accept_run(line, 1);
    Arena *arena = (Arena *)xmalloc(sizeof *arena);
    arena_plan(arena, &config, 1, DEVICE_CUDA);
    const int64_t bytes = (int64_t)arena->category_bytes[CATEGORY_SAVED];
    free(arena);
    return bytes;
}

// Bytes saved by COAT per token and layer, for every architecture: the residual twice and the activation's input in
// FP8, 9/8 bytes per value (E4M3, and a 2-byte scale per 16); qkv and o in BF16; log-sum-exp and norm statistics in
// FP32.
UNIT_TEST(bytes_of_a_layer) {
    static const struct {
        const char *model;
        int statistics; // values per norm and token
        bool keeps_n;   // post-norm: the matmuls' inputs are saved, FP8 with a scale per token
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
        const int64_t found = (four - two) / 2 - bytes * 1024; // rest: alignment, and one scale of a whole tensor
        if (found < 0 || found > 1024)
            fail_msg("%s saves %lld bytes per token and layer, and %lld more", families[i].model, (long long)bytes,
                     (long long)found);
    }
}

RUN_TESTS(NULL, NULL, NULL)
