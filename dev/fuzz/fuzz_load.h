// Loads weights into a model of any shape, for fuzz targets whose inputs contain weights.
#pragma once
#include "dev/fuzz/fuzz.h"

#include "coat/save/checkpoint.h"
#include "coat/save/hf.h"
#include "dev/test/fake_device.h"

#define FUZZ_MAX_MODEL 20000 // parameters

// Fills config for a model of the given shape (recipe COAT, micro-batches of one token) and exec for one process on the
// CPU, then allocates the arena.
static inline void fuzz_allocate(Arena *arena, Config *config, const ModelShape *shape, Exec *exec, Ops *ops) {
    Error err;
    config_defaults(config);
    config->model[0] = '\0'; // The model has no name, because the shape is not that of a named model.
    recipe_apply(&config->recipe, RECIPE_COAT);
    config->shape = *shape;
    config->micro_batch = config->seq_len = 1;
    fake_open(exec, ops);
    arena_plan(arena, config, 1, DEVICE_CPU);
    fuzz_check(arena_allocate(arena, exec, &err));
}

// Loads the weights at `path` unless the model shape is too large. If loading fails, the error must contain `name`.
static inline void fuzz_load_weights(const char *path, const ModelShape *shape, const char *name) {
    if (shape->layers > 8 || model_parameters(shape) + shape->vocab_padded > FUZZ_MAX_MODEL) return;
    static Arena arena;
    static Config config;
    Exec exec;
    Ops ops;
    Error err;
    fuzz_allocate(&arena, &config, shape, &exec, &ops);
    if (!checkpoint_load_weights(path, &arena, &exec, &err)) fuzz_refused(&err, name);
    ops.release(&exec, arena.base);
}
