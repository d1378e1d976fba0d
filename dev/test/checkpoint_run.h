// Fixture for checkpoint tests: a run of a small model without a backend, whose arena is in host memory. fill() sets
// its states to random bits.
#pragma once
#include "dev/test/test_folder.h"

#include <math.h>

#include "coat/config/shapes.h"
#include "coat/save/checkpoint.h"
#include "dev/test/fake_device.h"

typedef struct {
    Config config;
    Arena arena;
    Exec exec;
    Ops ops;
} Run;

static const Role saved_roles[] = {VALUE, MOMENT_M, MOMENT_V, MASTER};

static inline Run *run_open(RecipeKind recipe, int layers) {
    Run *run = (Run *)xcalloc(1, sizeof *run);
    config_defaults(&run->config);
    recipe_apply(&run->config.recipe, recipe);
    run->config.model[0] = '\0'; // clears the model's name, because no named model has this shape
    ModelShape *s = &run->config.shape;
    s->layers = layers;
    s->heads = s->kv_heads = 2;
    s->head_dim = 20;
    s->channels = 40;
    s->ffn = 160;
    s->positions = 24;
    model_shape_vocab(s, 257);
    run->config.micro_batch = 2;
    run->config.seq_len = 16;
    fake_open(&run->exec, &run->ops);
    return run;
}

static inline void run_allocate(Run *run) {
    Error err;
    arena_plan(&run->arena, &run->config, 1, DEVICE_CPU);
    if (!arena_allocate(&run->arena, &run->exec, &err)) fail_msg("%s", err.text);
}

static inline Run *run_new(RecipeKind recipe) {
    Run *run = run_open(recipe, 3);
    run_allocate(run);
    return run;
}

static inline void run_close(Run *run) {
    run->ops.release(&run->exec, run->arena.base);
    free(run);
}

static inline size_t groups_of(Tensor t) {
    return (size_t)((tensor_elements(t) + t.group - 1) / t.group);
}

// Calls visit() for each memory range whose contents a checkpoint must restore.
static inline void each_state(Run *run, void (*visit)(void *data, size_t bytes, void *context), void *context) {
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < run->arena.layout[id][VALUE].layers; layer++) {
            for (int i = 0; i < 4; i++) {
                Tensor t = arena_tensor(&run->arena, (TensorId)id, saved_roles[i], layer);
                if (!t.data) continue;
                visit(t.data, (size_t)tensor_elements(t) * format_bytes(t.format), context);
                if (t.granularity != SCALE_EXPAND) continue;
                visit(t.scale, groups_of(t) * sizeof(float), context);
                visit(t.exponent, groups_of(t), context);
            }
        }
    }
}

static inline void fill_random(void *data, size_t bytes, void *context) {
    uint64_t *seed = (uint64_t *)context;
    for (size_t i = 0; i < bytes; i++) {
        *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
        ((uint8_t *)data)[i] = (uint8_t)(*seed >> 56);
    }
}

static inline void fill_rubbish(void *data, size_t bytes, void *context) {
    (void)context;
    memset(data, 0x5a, bytes);
}

typedef struct {
    uint8_t *bytes;
    size_t size;
} Copy;

static inline void append_copy(void *data, size_t bytes, void *context) {
    Copy *copy = (Copy *)context;
    copy->bytes = (uint8_t *)realloc(copy->bytes, copy->size + bytes);
    assert_non_null(copy->bytes);
    memcpy(copy->bytes + copy->size, data, bytes);
    copy->size += bytes;
}

static inline Copy copy_of(Run *run) {
    Copy copy = {NULL, 0};
    each_state(run, append_copy, &copy);
    return copy;
}

// Asserts that two copies are bit-identical, and frees both.
static inline void assert_same_copies(Copy a, Copy b) {
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.bytes, b.bytes, a.size);
    free(a.bytes);
    free(b.bytes);
}

// Fills all training states with random bits, except that padding rows of the vocabulary are 0 as in a trained model.
// Returns a run state to save.
static inline RunState fill(Run *run, uint64_t seed) {
    each_state(run, fill_random, &seed);
    Tensor wte = arena_tensor(&run->arena, WTE, VALUE, 0);
    size_t row = (size_t)wte.cols * format_bytes(wte.format);
    memset((char *)wte.data + (size_t)run->config.shape.vocab * row, 0,
           (size_t)(wte.rows - run->config.shape.vocab) * row);
    RunState rs;
    memset(&rs, 0, sizeof rs);
    rs.step = 20;
    rs.sequences = 81;
    rs.pass = 30;
    rs.tokens = 123456789012;
    rs.data_fingerprint = 0xfedcba9876543210ULL;
    rs.state.lr = 0.1f + 1e-8f;
    rs.state.beta1 = 0.9f;
    rs.state.beta2 = 0.95f;
    rs.state.eps = 1e-8f;
    rs.state.weight_decay = 0.1f;
    rs.state.grad_clip = 1.0f;
    rs.state.seed = UINT64_MAX - 5;
    rs.state.t = 17;
    rs.state.skipped = 3;
    rs.state.skipped_run = 1;
    rs.state.loss_sum = 10.0 / 3.0;
    rs.state.grad_sq = (double)INFINITY;
    rs.state.grad_norm = 1.0f / 3.0f;
    rs.state.nonfinite = 1;
    return rs;
}

static inline const char *save(Run *run, const char *out, const RunState *rs) {
    Error err;
    if (!checkpoint_save(path_of(out), &run->arena, &run->exec, rs, NULL, &err)) fail_msg("%s", err.text);
    return path_of(formatted("%s/step-%08d", out, (int)rs->step));
}

static const char *const files[] = {"model.safetensors",      "model.safetensors.index.json", "config.json",
                                    "generation_config.json", "optimizer.safetensors",        "state.json",
                                    "manifest.json"};
#define FILES (sizeof files / sizeof *files)

// Redirects standard error to a file until quiet_end() is called, which returns the file's text.
static inline int quiet_begin(void) {
    fflush(stderr);
    int kept = dup(2);
    assert_non_null(freopen(path_of("stderr"), "w", stderr));
    return kept;
}

static inline const char *quiet_end(int kept) {
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    return contents(path_of("stderr"));
}

// Loads the checkpoint and stores its run state in *rs. Returns the messages printed while loading.
static inline const char *load_checkpoint(Run *run, const char *folder, RunState *rs) {
    Error err;
    const int kept = quiet_begin();
    const bool good = checkpoint_load(folder, &run->arena, &run->exec, rs, &err);
    const char *said = quiet_end(kept);
    if (!good) fail_msg("%s", err.text);
    return said;
}
