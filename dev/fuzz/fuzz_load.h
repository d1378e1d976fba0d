// Loading the weights of what a path names, whatever model it says it is, as long as that is small.
#pragma once
#include "dev/fuzz/fuzz.h"

#include "coat/save/checkpoint.h"
#include "coat/save/hf.h"
#include "dev/test/fake_device.h"

#define FUZZ_LARGEST_MODEL 20000 // parameters

// Returns whether they were loaded; a refusal must name `names`.
static inline bool fuzz_load_weights(const char *path, const ModelShape *shape, const char *names) {
    if (shape->layers > 8 || model_parameters(shape) + shape->vocab_padded > FUZZ_LARGEST_MODEL) return false;
    static Arena arena;
    static Config config;
    Exec exec;
    Ops ops;
    Error err;
    config_defaults(&config);
    config.model[0] = '\0'; // the shape is none of a name
    recipe_apply(&config.recipe, RECIPE_COAT);
    config.shape = *shape;
    config.micro_batch = config.seq_len = 1;
    fake_open(&exec, &ops);
    arena_plan(&arena, &config, 1, DEVICE_CPU);
    fuzz_check(arena_allocate(&arena, &exec, &err));
    bool good = checkpoint_load_weights(path, &arena, &exec, &err);
    if (!good) fuzz_refused(&err, names);
    ops.release(&exec, arena.base);
    return good;
}
