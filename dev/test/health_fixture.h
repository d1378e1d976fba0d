// Fixture for tests of FP8 health: plans a run whose tensors are all 0, and reads the JSON object that the run logs.
#pragma once
#include "fp8_fixture.h"

#include "coat/config/shapes.h"
#include "coat/model/arena.h"
#include "coat/run/health.h"

#include <jansson.h>

typedef struct {
    Arena arena;
    Exec exec;
    Config config;
    HealthWarned warned;
} Run;

// Frees the arena, plans it for run->config and allocates it, filled with 0.
static inline void run_plan(Run *run, int ranks) {
    Error err;
    if (run->arena.base) run->exec.ops->release(&run->exec, run->arena.base);
    arena_plan(&run->arena, &run->config, ranks, DEVICE_CPU);
    assert_true(arena_allocate(&run->arena, &run->exec, &err));
    memset(run->arena.base, 0, run->arena.total_bytes);
}

static inline void run_begin(Run *run, RecipeKind recipe, HeadKind head, int ranks) {
    Error err;
    memset(run, 0, sizeof *run);
    config_defaults(&run->config);
    recipe_apply(&run->config.recipe, recipe);
    run->config.recipe.head = head;
    run->config.shape.layers = 3;
    run->config.shape.heads = run->config.shape.kv_heads = 2;
    run->config.shape.channels = 32;
    run->config.shape.head_dim = 16;
    run->config.shape.ffn = 128;
    model_shape_vocab(&run->config.shape, 257);
    run->config.micro_batch = 2;
    run->config.seq_len = 16;
    run->config.threads = 2;
    run->exec.ops = cpu_ops();
    run->exec.ranks = 1;
    assert_true(run->exec.ops->open(&run->exec, &run->config, &err));
    run->config.zero = ranks > 1 ? 1 : 0;
    run_plan(run, ranks);
}

static inline void run_end(Run *run) {
    run->exec.ops->release(&run->exec, run->arena.base);
    run->exec.ops->close(&run->exec);
}

static inline json_t *object_of(Run *run, char warning[HEALTH_WARNING]) {
    char *text = health_json(&run->arena, &run->exec, &run->warned, warning);
    json_t *object = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    assert_true(!text == !object);
    free(text);
    return object;
}

// Returns element `layer` of object[tensor][key], which must be an array of `layers` numbers. null is returned as NaN.
static inline double figure(const json_t *object, const char *tensor, const char *key, size_t layers, size_t layer) {
    const json_t *array = json_object_get(json_object_get(object, tensor), key);
    assert_int_equal(json_array_size(array), layers);
    const json_t *x = json_array_get(array, layer);
    assert_true(json_is_number(x) || json_is_null(x));
    return json_is_null(x) ? (double)NAN : json_number_value(x);
}

static inline void assert_keys(const json_t *object, const char *tensor, int keys) {
    assert_int_equal(json_object_size(json_object_get(object, tensor)), keys);
}
