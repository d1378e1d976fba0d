// Tests of the order in which the model reads and writes memory. The model of train_gpt2_fp8.cu runs unchanged on a
// normally planned arena. Device and communication only record accesses (order_ops.h), which order_memory.h checks.
// Concurrent accesses of computation and communication must be ordered by events, and every read must find the tensor
// that it expects. Operations depend on shapes and formats. Therefore the tests run every combination of the recipe's
// settings and every combination of any three settings. --all runs every combination of all settings.
// The checker is tested by injecting faults, each of which it must report: skipped events of coat/model/shards.c and
// muon.c, errors in communication, stale gather buffers, and scratch tensors with too short lifetimes.

#ifdef _OPENMP
#include <omp.h>
#endif

#include "coat/config/vision.h"
#include "coat/model/weights.h"
#include "coat/run/health.h"
#include "coat/save/snapshot.h"
#include "dev/test/order_comm.h"
#include "dev/test/order_ops.h"

// A scratch tensor of the memory plan. role: VALUE if all blocks or the FP8 blocks use it, PLAIN if the BF16 blocks do.
typedef struct {
    TensorId id;
    Role role;
} Scratch;

// If `sharing` is true, the memory plan places shared_first and shared_second in the same memory, which no other tensor
// uses. shared_in_tower: true if both are tensors of the vision tower, false if of the language model. shared_bytes:
// size of that memory.
static bool sharing, shared_in_tower;
static Scratch shared_first, shared_second;
static size_t shared_bytes;

static int order_rank; // rank of the simulated process

static void order_arena_plan(Arena *arena, const Config *flags, int ranks, DeviceKind device) {
    arena_plan(arena, flags, ranks, device);
    if (sharing && flags->shape.tower == shared_in_tower) {
        TensorLayout *a = &arena->layout[shared_first.id][shared_first.role];
        TensorLayout *b = &arena->layout[shared_second.id][shared_second.role];
        a->data_offset = b->data_offset = arena->workspace_offset;
        arena->workspace_offset += shared_bytes;
    }
    // Extends the total even if the shared memory is in the other arena, because the language model's total includes
    // the vision tower's arena.
    if (sharing) arena->total_bytes += shared_bytes;
    arena->rank = order_rank; // arena_allocate() would set this later
    if (flags->shape.tower)
        own_arena(arena, order.arena->vision_offset);
    else
        memory_open(arena);
}

static Ops ops_with_faults;

static void no_quantize(Exec *exec, const Parameter *parameters, int count) {
    if (order.updates == 0) order_weights_quantize(exec, parameters, count);
}

static const Ops *order_ops_table(void) {
    ops_with_faults = order_ops;
    if (fault == OLD_CODES) ops_with_faults.weights_quantize = no_quantize;
    return &ops_with_faults;
}

// Includes shards.c and muon.c with macros that replace their ordering calls, so that the tests can skip each of these
// calls. Tensor descriptors of muon.c and of the trainer use address windows.
#define comm_after_compute(comm) place_event(comm, false, 0, __FILE__, __func__, __LINE__)
#define comm_wait(comm, ticket) place_event(comm, true, ticket, __FILE__, __func__, __LINE__)
#include "coat/model/shards.c"
#define arena_tensor order_tensor
#include "coat/model/muon.c"
#undef comm_after_compute
#undef comm_wait

// Includes the trainer with the device that only records accesses.
#define cpu_ops order_ops_table
#define comm_open order_comm_open
#define arena_plan order_arena_plan
#define arena_saved order_saved
#define arena_gradient order_gradient
#define arena_weight order_weight
#define TESTING
#include "train_gpt2_fp8.cu"
#undef arena_plan
#undef arena_tensor

#include "dev/test/config_fixture.h"

enum {
    RECIPE,
    RECOMPUTE,
    HEAD,
    BF16_BLOCKS,
    TRANSPOSES,
    RECIPE_SETTINGS,
    LAYERS = RECIPE_SETTINGS,
    MATMUL_CHECK,
    MODE,
    ZERO,
    RANK,
    MICRO_BATCHES,
    BLOCK,
    OPTIMIZER,
    SETTINGS
};
#define MAX_CHOICES 9

// Indices of the recipes in flags_of[RECIPE]. Recipes from FP8_LINEAR on have FP8 matmuls.
enum { BF16, BF16_COAT, BF16_PAPER, FP8_LINEAR, FP8_PAPER, COAT, PAPER };

#define TOWER "--image-size 12 --patch-size 4 --images-per-sequence 1 --vision "

static const char *const flags_of[SETTINGS][MAX_CHOICES] = {
    [RECIPE] = {[BF16] = "--recipe bf16",
                [BF16_COAT] = "--recipe coat --linear bf16",
                [BF16_PAPER] = "--recipe coat-paper --linear bf16",
                [FP8_LINEAR] = "--recipe fp8-linear",
                [FP8_PAPER] = "--recipe coat-paper --saved bf16",
                [COAT] = "--recipe coat",
                [PAPER] = "--recipe coat-paper"},
    [RECOMPUTE] = {"--recompute 0", "--recompute 1", "--recompute 2", "--recompute 3"},
    [HEAD] = {"--head bf16", "--head fp8", "--head fp8-backward"},
    [BF16_BLOCKS] = {"--bf16-blocks 0", "--bf16-blocks 1", "--bf16-blocks 2"},
    [TRANSPOSES] = {"--cache-transposed", "--no-cache-transposed"},
    [LAYERS] = {"--layers 1", "--layers 2", "--layers 3", "--layers 5"},
    [MATMUL_CHECK] = {"", "--health-products 1"},
    // Modes: training, evaluation (--eval-only) and sampling (--prompt). They have no flags here, because --eval-only
    // and --prompt would require weights.
    [MODE] = {"", "", ""},
    [ZERO] = {"", "--zero 0", "--zero 1", "--zero 2", "--zero 3"}, // the first choice is a single process
    [RANK] = {"--rank 0", "--rank 1", "--rank 2"},                 // Rank 2 has no shard of small tensors.
    [MICRO_BATCHES] = {"", "", ""}, // The index plus 1 is the number of micro-batches per step.
    [OPTIMIZER] = {"", "--optimizer muon"},
    [BLOCK] = {"--heads 1", "--heads 1 --model llama:d1 --no-tied-head", "--heads 1 --model qwen3:d1 --head-dim 32",
               "--heads 1 --model olmo:d1 --clip-qkv 1", "--heads 1 --model olmo2:d1",
               "--heads 2 --kv-heads 1 --model qwen2:d1", "--heads 1 --model llama:d1 " TOWER "clip:d2",
               "--heads 1 --model llama:d1 " TOWER "siglip:d2 --projector mlp_downsample --freeze vision",
               "--heads 1 --model llama:d1 " TOWER "clip:d2 --vision-recipe coat"},
};

typedef struct {
    int of[SETTINGS];
} Choice;

static int choices(int setting) {
    int count = 0;
    while (count < MAX_CHOICES && flags_of[setting][count]) count++;
    return count;
}

static int ranks_of(const Choice *choice) {
    return choice->of[ZERO] == 0 ? 1 : 3;
}

static const char *command_line(const Choice *choice) {
    static char line[1024];
    size_t length = (size_t)snprintf(line, sizeof line,
                                     "--device cpu --threads 1 --channels 16 --positions 32 --seq-len 32 "
                                     "--micro-batch 2 --vocab 97 --logits-chunk 48 --train x");
    for (int i = 0; i < SETTINGS; i++)
        length += (size_t)snprintf(line + length, sizeof line - length, " %s", flags_of[i][choice->of[i]]);
    snprintf(line + length, sizeof line - length, " --batch-tokens %d",
             64 * ranks_of(choice) * (1 + choice->of[MICRO_BATCHES]));
    return line;
}

// Sets config to the choice. A vision tower becomes narrower than the towers that have names.
static void accept_choice(const Choice *choice) {
    accept(command_line(choice));
    config.shape.vision.channels = config.shape.vision.ffn = 16;
}

static const int32_t none[1]; // dummy token ids, because the recording device does not read them
static const uint8_t no_pixels[1];
static char nowhere; // destination of downloads, which the recording device does not write

// Uploads a batch with as many images as possible. features: true if this function must compute the images' features,
// false if micro_step() will.
static void upload_batch(Model *m, int B, int T, bool targets, bool features) {
    batch_upload(m, B, T, none, targets ? none : NULL, NULL);
    images_upload(m, vision_images(m->config), no_pixels, NULL);
    if (features) vision_forward(m);
}

static void evaluate(Model *m, int passes) {
    const Config *c = m->config;
    state_upload(m);
    for (int i = 0; i < passes; i++) {
        upload_batch(m, c->micro_batch, c->seq_len, true, true);
        model_forward(m, NO_KV_CACHE);
        model_loss(m, false, false);
        if (m->vision) m->ops->download(&m->exec, &nowhere, act(m, BEST, 0).data, sizeof(float));
    }
    shards_sum_loss(&m->shards, m->state);
    state_download(m);
    state_upload(m);
}

// Evaluates sequences of half the length and downloads all token losses, as HellaSwag evaluation does.
static void evaluate_short(Model *m) {
    const int B = m->config->micro_batch, T = m->config->seq_len / 2;
    upload_batch(m, B, T, true, true);
    model_forward(m, NO_KV_CACHE);
    model_loss(m, false, false);
    m->ops->download(&m->exec, &nowhere, act(m, LOSSES, 0).data, (size_t)(B * T) * sizeof(float));
    state_upload(m);
}

// Samples text: one pass over half a sequence, then two passes that use the KV cache. Each pass computes the logits of
// the last token or, with --head fp8, of the last 16.
static void sample(Model *m) {
    const int T = m->config->seq_len / 2, rows = config_sample_logits(m->config);
    const int more = config_min_tokens(m->config);
    Tensor few = tensor_rows(act(m, LOGITS, 0), 0, rows);
    order.sample_pass = order.pass + 1;
    for (int i = 0; i < 3; i++) {
        const KvCache cache = {true, i == 0 ? 0 : more == 1 ? T + i - 1 : T};
        upload_batch(m, 1, i == 0 ? T : more, false, true);
        model_forward(m, cache);
        m->ops->linear_forward(&m->exec, few, tensor_rows(act(m, NF, 0), m->T - rows, rows),
                               weight(m, head_weight(&m->config->shape), 0), no_tensor());
        m->ops->download(&m->exec, &nowhere, tensor_rows(few, rows - 1, 1).data,
                         (size_t)few.cols * format_bytes(few.format));
    }
}

static void train_step(Model *m, HealthWarned *watched) {
    const Config *c = m->config;
    const int64_t accumulation = config_accumulation(c, m->exec.ranks);
    int slots[LAYER_SLOTS];
    step_begin(m, 1e-3f, 1);
    m->counts_codes = watched && m->arena.layout[OUTLIERS][VALUE].exists;
    m->compares_matmuls = m->exec.rank == 0 && m->arena.layout[QKVW_REFERENCE][VALUE].exists;
    order.step_pass = order.pass + 1;
    for (int64_t i = 0; i < accumulation; i++) {
        upload_batch(m, c->micro_batch, c->seq_len, true, false);
        micro_step(m, i > 0, i + 1 == accumulation);
    }
    if (watched) health_sample(&m->arena, &m->exec, watched);
    memcpy(slots, m->shards.slot_layer, sizeof slots);
    step_end(m);
    if (fault == OLD_SLOTS) memcpy(m->shards.slot_layer, slots, sizeof slots);
}

// Actions after a training step. The steps of a run end with no action, all actions, each action alone, and saving and
// sampling.
enum { HEALTH = 1, SAVE = 2, EVALUATE = 4, EVALUATE_SHORT = 8, SAMPLE = 16 };
static const int after_steps[] = {0,        HEALTH | SAVE | EVALUATE | EVALUATE_SHORT | SAMPLE,
                                  EVALUATE, EVALUATE_SHORT,
                                  SAMPLE,   SAVE,
                                  HEALTH,   SAVE | SAMPLE};

static void train(Model *m, int steps) {
    char warning[HEALTH_WARNING];
    HealthWarned warned = {0};
    Snapshot snapshot;
    const RunState run = {0};
    snapshot_open(&snapshot, &m->arena, &m->exec);
    assert_true(snapshot_reserve(&snapshot));
    snapshot.shards = m->exec.ranks > 1 ? &m->shards : NULL;
    for (int i = 0; i < steps; i++) {
        const bool health = (after_steps[i] & HEALTH) && m->exec.rank == 0;
        train_step(m, health ? &warned : NULL);
        if (health) {
            shards_weights_wait(&m->shards);
            free(health_json(&m->arena, &m->exec, &warned, warning));
            free(health_activation_json(&m->arena, &m->exec, &warned, warning));
            free(health_optimizer_json(&m->arena, &m->exec, &warned, warning));
            if (m->config->health_matmuls > 0) free(health_matmuls_json(&m->arena, &m->exec, &warned, warning));
        }
        if (after_steps[i] & SAVE) snapshot_copy(&snapshot, &run);
        if (after_steps[i] & EVALUATE) evaluate(m, 2);
        if (after_steps[i] & EVALUATE_SHORT) evaluate_short(m);
        if (after_steps[i] & SAMPLE) sample(m);
    }
    free(warned.sample);
    snapshot_close(&snapshot);
}

#define ALL_STEPS ((int)(sizeof after_steps / sizeof *after_steps))

// Reports tensors that a training run allocates but never writes or never reads. Ranks other than 0 do not count FP8
// values or outliers, so CODE_COUNTS and OUTLIERS are not checked there. With ZeRO, ranks without a layer do not use
// Muon's scratch tensors. Nothing reads what a frozen tower saves for backward.
static void check_used(const Arena *arena) {
    if (arena->config->shape.tower && arena->config->freeze & PART_VISION) return;
    for (int id = 0; id < TENSOR_COUNT; id++) {
        const TensorLayout *t = &arena->layout[id][VALUE];
        const int number = number_of(arena, (TensorId)id);
        if (!t->exists || t->alias >= 0 || ((id == CODE_COUNTS || id == OUTLIERS) && order_rank > 0)) continue;
        if (id >= MUON_X && arena->zero > 0 && order_rank >= arena->config->shape.layers) continue;
        if (!order.writes[number])
            report(&order.unwritten, "unused: nothing writes %s", tensor_row((TensorId)id)->name);
        if (!order.reads[number]) report(&order.unwritten, "unused: nothing reads %s", tensor_row((TensorId)id)->name);
    }
}

// Runs the model in one configuration. Returns the number of faulty accesses, which order.report describes.
static size_t faults_of(const Choice *choice, int steps) {
    static Model m;
    const int ranks = ranks_of(choice);
    const CommPlace place = {ranks > 1 ? choice->of[RANK] : 0, ranks, 0, 1, "the test", false, ""};
    order_rank = place.rank;
    accept_choice(choice);
    config.eval_only = choice->of[MODE] == 1;
    if (choice->of[MODE] == 2) {
        snprintf(config.prompt, sizeof config.prompt, "x");
        config.train[0] = '\0';
    }
    if (!config_check(&config, ranks, &error)) fail_msg("%s\n  refused: %s", command_line(choice), error.text);
    if (!model_create(&m, &config, &place, &error)) fail_msg("%s", error.text);
    for (Model *part = &m; part; part = part->vision) {
        parameters_init(&part->arena, &part->exec, 1);
        shards_weights_loaded(&part->shards);
    }
    if (choice->of[MODE] < 2 && (steps == ALL_STEPS || choice->of[MODE])) evaluate(&m, 2);
    if (choice->of[MODE] == 1) {
        evaluate_short(&m);
        evaluate(&m, 1);
    } else if (choice->of[MODE] == 2) {
        sample(&m);
        sample(&m);
    } else {
        train(&m, steps);
        for (const Arena *a = &m.arena; a && steps == ALL_STEPS; a = a->vision) check_used(a);
    }
    model_destroy(&m);
    memory_close();
    return order.races + order.clobbered + order.unwritten + order.old;
}

static bool all_of_them;
#ifdef __SANITIZE_ADDRESS__
enum { SHARE = 4 }; // tests one in SHARE configurations, because AddressSanitizer makes each four times as slow
#else
enum { SHARE = 1 };
#endif

// True if the choice contains at least `wanted` combinations of settings that have not been tested. A combination is
// three settings or, in training runs, all settings of the recipe. Marks the combinations as tested.
#define VALUES (SETTINGS * MAX_CHOICES)
static bool is_new(const Choice *choice, int wanted) {
    static bool met[VALUES][VALUES][VALUES],
        recipes[MAX_CHOICES * MAX_CHOICES * MAX_CHOICES * MAX_CHOICES * MAX_CHOICES];
    bool *seen[SETTINGS * SETTINGS * SETTINGS];
    int at[SETTINGS], recipe = 0, count = 0, fresh = 0;
    for (int i = 0; i < SETTINGS; i++) at[i] = i * MAX_CHOICES + choice->of[i];
    for (int i = 0; i < RECIPE_SETTINGS; i++) recipe = recipe * MAX_CHOICES + choice->of[i];
    if (!choice->of[MODE]) seen[count++] = &recipes[recipe];
    for (int i = 0; i < SETTINGS; i++)
        for (int j = 0; j < i; j++)
            for (int k = 0; k < j; k++) seen[count++] = &met[at[i]][at[j]][at[k]];
    for (int i = 0; i < count; i++) fresh += !*seen[i];
    for (int i = 0; i < count && fresh >= wanted; i++) *seen[i] = true;
    return fresh >= wanted;
}

// True if another choice gives the same run: a single process only has rank 0, only rank 0 compares matmuls, a model of
// one layer has one block, and some settings only affect training or FP8 matmuls.
static bool repeats(const Choice *choice) {
    const int *of = choice->of;
    return (of[ZERO] == 0 && of[RANK] > 0) ||
           (of[MODE] && (of[OPTIMIZER] > 0 || of[MICRO_BATCHES] > 0 || of[TRANSPOSES] > 0 || of[MATMUL_CHECK] > 0)) ||
           (of[RECIPE] < FP8_LINEAR &&
            (of[BF16_BLOCKS] > 0 || of[MATMUL_CHECK] > 0 || (of[HEAD] == 0 && of[TRANSPOSES] > 0))) ||
           (of[LAYERS] == 0 && of[BF16_BLOCKS] == 2) || (of[RANK] > 0 && of[MATMUL_CHECK] > 0);
}

// Returns configuration `number` of `total`. Consecutive numbers give very different configurations.
static Choice choice_of(int64_t number, int64_t total) {
    Choice choice;
    int64_t rest = number * 15485863 % total; // Multiplies by a prime to spread the numbers.
    for (int i = 0; i < SETTINGS; i++) {
        choice.of[i] = (int)(rest % choices(i));
        rest /= choices(i);
    }
    return choice;
}

// Tests configurations with many new combinations of settings first, because this reduces the number of runs.
UNIT_TEST(events_order_all_memory_accesses) {
    int64_t total = 1;
    int fresh = 0, runs = 0, all = 0, bad = 0;
    for (int i = 0; i < SETTINGS; i++) total *= choices(i);
    for (int wanted = all_of_them ? 1 : 64; wanted > 0; wanted /= 2) {
        for (int64_t n = 0; n < (wanted > 1 ? total / 32 : total); n++) {
            const Choice choice = choice_of(n, total);
            if (repeats(&choice)) continue;
            all += wanted == 1;
            if (!all_of_them && (!is_new(&choice, wanted) || fresh++ % SHARE)) continue;
            runs++;
            if (faults_of(&choice, ALL_STEPS) == 0) continue;
            if (bad++ < 20)
                print_message("# %s%s\n", command_line(&choice),
                              choice.of[MODE] == 1   ? "  (evaluates)"
                              : choice.of[MODE] == 2 ? "  (samples)"
                                                     : "");
            for (int i = 0; bad < 20 && i < order.reports; i++) print_message("#     %s\n", order.report[i]);
        }
    }
    print_message("# %d of %d configurations, %d of them with faults\n", runs, all, bad);
    assert_int_equal(bad, 0);
}

// Configurations that together use most recipes and all ZeRO stages, with several ranks and layers.
static const Choice several[] = {
    {{[RECIPE] = BF16, [LAYERS] = 2, [ZERO] = 4, [MICRO_BATCHES] = 1}},
    {{[RECIPE] = COAT, [RECOMPUTE] = 1, [HEAD] = 1, [LAYERS] = 3, [ZERO] = 4, [RANK] = 1, [MICRO_BATCHES] = 1}},
    {{[RECIPE] = FP8_LINEAR, [LAYERS] = 2, [ZERO] = 3, [RANK] = 1, [MICRO_BATCHES] = 2}},
    {{[RECIPE] = COAT, [RECOMPUTE] = 1, [HEAD] = 1, [LAYERS] = 2, [ZERO] = 2, [RANK] = 0, [MICRO_BATCHES] = 1}},
    {{[RECIPE] = PAPER, [RECOMPUTE] = 1, [LAYERS] = 2, [ZERO] = 1, [RANK] = 2, [MICRO_BATCHES] = 1}},
    {{[RECIPE] = COAT, [RECOMPUTE] = 1, [LAYERS] = 2, [ZERO] = 4, [MICRO_BATCHES] = 1, [BLOCK] = 2}},
    {{[RECIPE] = BF16, [LAYERS] = 2, [ZERO] = 2, [RANK] = 1, [OPTIMIZER] = 1}},
    {{[RECIPE] = COAT, [RECOMPUTE] = 1, [LAYERS] = 3, [ZERO] = 4, [MICRO_BATCHES] = 1, [OPTIMIZER] = 1}},
};
#define SEVERAL ((int)(sizeof several / sizeof *several))

// Runs configurations until the checker reports a fault, and prints the fault. Returns false if it reports none.
static bool is_seen(const char *what) {
    for (int i = 0; i < SEVERAL; i++) {
        if (faults_of(&several[i], ALL_STEPS) == 0) continue;
        print_message("# %s: %s\n", what, order.report[0]);
        return true;
    }
    print_message("# %s: no fault found\n", what);
    return false;
}

UNIT_TEST(the_checker_detects_each_omitted_event) {
    int unseen = 0;
    for (int i = 0; i < SEVERAL; i++) assert_int_equal(faults_of(&several[i], ALL_STEPS), 0);
    for (left_out = 0; left_out < place_count; left_out++) {
        const Place *p = &places[left_out];
        if (!is_seen(formatted("%s without its %s (%s:%d)", p->function, p->waits ? "comm_wait" : "comm_after_compute",
                               p->file, p->line)))
            unseen++;
    }
    left_out = -1;
    assert_true(place_count > 0);
    assert_int_equal(unseen, 0);
}

UNIT_TEST(the_checker_detects_injected_faults) {
    static const char *const names[] = {
        [NO_AFTER_COMPUTE] = "communication that ignores comm_after_compute",
        [NO_WAIT] = "communication that ignores comm_wait",
        [EARLY_TICKETS] = "tickets before the last collective",
        [OLD_CODES] = "weights_quantize that does nothing after an update",
        [OLD_SLOTS] = "slot_layer that still names the old weights",
        [LOST_SUMS] = "gradients that are not summed",
        [LOST_SHARDS] = "shards that are not exchanged",
    };
    int unseen = 0;
    for (int f = NO_AFTER_COMPUTE; f <= LOST_SHARDS; f++) {
        fault = (Fault)f;
        if (!is_seen(names[f])) unseen++;
    }
    fault = FAULT_NONE;
    assert_int_equal(unseen, 0);
}

static bool is_scratch(const TensorLayout *t) {
    return layout_owns_memory(t) && !t->saved && t->category >= CATEGORY_SCRATCH;
}

// Writes the scratch tensors of a memory plan to `list` and returns their number.
static int list_scratch(TensorLayout layout[TENSOR_COUNT][ROLE_COUNT], Scratch list[2 * TENSOR_COUNT]) {
    int count = 0;
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
        const Scratch value = {(TensorId)id, VALUE}, plain = {(TensorId)id, PLAIN};
        if (is_scratch(&layout[id][VALUE])) list[count++] = value;
        if (is_scratch(&layout[id][PLAIN])) list[count++] = plain;
    }
    return count;
}

static bool alive_together(const TensorLayout *a, const TensorLayout *b) {
    const bool other_blocks = a->blocks != b->blocks && a->blocks != BLOCKS_ALL && b->blocks != BLOCKS_ALL;
    return !other_blocks && a->first <= b->last && b->first <= a->last;
}

static const char *scratch_name(Scratch s) {
    static char name[2][64]; // two buffers, because a message contains two tensor names
    static int next;
    next = !next;
    snprintf(name[next], sizeof name[next], "%s%s", tensor_row(s.id)->name, role_suffix(s.role));
    return name[next];
}

// Places every two scratch tensors in the same memory. If their lifetimes do not overlap, the checker must report no
// fault. If they overlap, it must report a fault of each tensor with at least one other. It need not report one for
// every pair, because some lifetimes have gaps, and stages have several operations.
UNIT_TEST(the_checker_detects_overlapping_lifetimes) {
#ifdef __SANITIZE_ADDRESS__
    skip(); // AddressSanitizer would take too long: a few configurations run thousands of times.
#endif
    static const Choice alone[] = {
        {{[RECIPE] = BF16, [RECOMPUTE] = 2, [LAYERS] = 1, [MICRO_BATCHES] = 1}},
        {{[RECIPE] = BF16, [LAYERS] = 1, [OPTIMIZER] = 1}},
        {{[RECIPE] = FP8_PAPER, [RECOMPUTE] = 2, [LAYERS] = 1, [MICRO_BATCHES] = 1}},
        {{[RECIPE] = FP8_LINEAR, [RECOMPUTE] = 0, [HEAD] = 1, [LAYERS] = 1, [MICRO_BATCHES] = 1}},
        {{[RECIPE] = PAPER, [RECOMPUTE] = 0, [LAYERS] = 1, [MICRO_BATCHES] = 1}},
        {{[RECIPE] = COAT, [RECOMPUTE] = 1, [HEAD] = 1, [LAYERS] = 1, [MICRO_BATCHES] = 1}},
        {{[RECIPE] = COAT, [RECOMPUTE] = 1, [LAYERS] = 1, [MATMUL_CHECK] = 1, [MICRO_BATCHES] = 1}},
        {{[RECIPE] = FP8_LINEAR, [RECOMPUTE] = 2, [LAYERS] = 2, [BF16_BLOCKS] = 2, [MICRO_BATCHES] = 1}},
        {{[RECIPE] = FP8_LINEAR, [RECOMPUTE] = 1, [LAYERS] = 2, [BF16_BLOCKS] = 2, [MICRO_BATCHES] = 1, [BLOCK] = 4}},
        {{[RECIPE] = COAT, [RECOMPUTE] = 1, [LAYERS] = 2, [BF16_BLOCKS] = 2, [MICRO_BATCHES] = 1, [BLOCK] = 1}},
        {{[RECIPE] = COAT, [RECOMPUTE] = 1, [MICRO_BATCHES] = 1, [BLOCK] = 6}}, // tensors of the vision tower
        {{[RECIPE] = COAT, [RECOMPUTE] = 1, [MICRO_BATCHES] = 1, [BLOCK] = 7}},
    };
    static Config tower;
    static TensorLayout layout[TENSOR_COUNT][ROLE_COUNT];
    static char last_clash[sizeof order.report[0]];
    int shared = 0, apart = 0, seen = 0, wrong = 0;
    sharing = true;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        Scratch list[2 * TENSOR_COUNT];
        bool clashes[2 * TENSOR_COUNT] = {false};
        accept_choice(&alone[i]);
        assert_true(config_check(&config, 1, &error));
        shared_in_tower = config.shape.vision.kind != VISION_NONE;
        if (shared_in_tower) vision_config(&tower, &config);
        tensors_resolve(shared_in_tower ? &tower : &config, 1, layout);
        const int count = list_scratch(layout, list);
        for (int a = 0; a < count; a++) {
            for (int b = 0; b < a; b++) {
                shared_first = list[a], shared_second = list[b];
                const TensorLayout *first = &layout[list[a].id][list[a].role],
                                   *second = &layout[list[b].id][list[b].role];
                const bool overlap = alive_together(first, second);
                shared_bytes = (first->data_bytes > second->data_bytes ? first : second)->data_bytes;
                shared_bytes = (shared_bytes + 255) / 256 * 256;
                const bool clash = faults_of(&alone[i], 1) > 0;
                overlap ? apart++ : shared++;
                if (clash) clashes[a] = clashes[b] = true;
                if (clash && overlap) {
                    seen++;
                    snprintf(last_clash, sizeof last_clash, "%s", order.report[0]);
                }
                if (!clash || overlap) continue;
                wrong++;
                print_message("# %s and %s share memory: %s\n", scratch_name(list[b]), scratch_name(list[a]),
                              order.report[0]);
            }
        }
        for (int a = 0; a < count; a++) {
            if (clashes[a]) continue;
            wrong++;
            print_message("# %s: no fault reported, whichever tensor shares its memory\n", scratch_name(list[a]));
        }
    }
    sharing = false;
    print_message("# %d pairs of lifetimes do not overlap; of %d that overlap, %d have faults, the last: %s\n", shared,
                  apart, seen, last_clash);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv) {
    all_of_them = argc > 1 && strcmp(argv[1], "--all") == 0;
#ifdef _OPENMP
    omp_set_num_threads(1); // One thread is enough because nothing is computed.
#endif
    return unit_main(NULL, NULL, NULL);
}
