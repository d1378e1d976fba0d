// Tests of ZeRO sharding: the shards of a tensor cover it exactly once, gathered layers use a double buffer, tensors do
// not overlap in memory, and each ZeRO stage needs less memory than the previous one.
#include "coat/config/shapes.h"
#include "coat/flags/config_check.h"
#include "coat/model/arena.h"
#include "dev/test/unit.h"

static Error err;                              // error of the last failed call
static Arena planned, *const arena = &planned; // the plan that plan() has made

static const RecipeKind recipes[] = {RECIPE_BF16, RECIPE_FP8_LINEAR, RECIPE_COAT};

// Plans a model with unusual widths: the row length of 48 is not a multiple of 128, and some ranks have no shard of
// small tensors.
static void plan(RecipeKind recipe, int zero, int ranks) {
    static Config config;
    config_defaults(&config);
    recipe_apply(&config.recipe, recipe);
    ModelShape *s = &config.shape;
    s->layers = 5;
    s->heads = s->kv_heads = 2;
    s->head_dim = 24;
    s->channels = 48;
    s->ffn = 192;
    s->positions = 24;
    model_shape_vocab(s, 257);
    config.micro_batch = 2;
    config.seq_len = 16;
    config.device = DEVICE_CPU;
    config.zero = zero;
    if (!config_check(&config, ranks, &err)) fail_msg("%s", err.text);
    arena_plan(arena, &config, ranks, DEVICE_CPU);
    arena->base = (char *)0 + 256; // The base is an arbitrary address that is never dereferenced.
}

UNIT_TEST(shards_cover_a_tensor_exactly_once) {
    for (int r = 0; r < 3; r++) {
        for (int zero = 0; zero <= 3; zero++) {
            for (int ranks = 1; ranks <= 9; ranks += 2) {
                plan(recipes[r], zero, ranks);
                for (int id = 0; id < PARAMETER_COUNT; id++) {
                    for (int role = VALUE; role <= MASTER; role++) {
                        const TensorLayout *t = &arena->layout[id][role];
                        if (!t->exists || role == CODES_T) continue;
                        int64_t next = 0, begin, elements = t->rows * t->cols;
                        for (arena->rank = 0; arena->rank < ranks; arena->rank++) {
                            Tensor shard = arena_shard(arena, (TensorId)id, (Role)role, 0, &begin);
                            if (shard.rows == 0) continue;
                            assert_int_equal(begin, next);
                            assert_int_equal(begin % 128, 0);
                            assert_int_equal(shard.stride, shard.cols);
                            next = begin + tensor_elements(shard);
                            // Shards fit in local memory, even if all ranks communicate shards of equal length.
                            int64_t first = t->sharded ? 0 : begin;
                            assert_true(first + tensor_elements(shard) <= t->local_elements);
                            if (arena->zero > 0 && !t->sharded && role != CODES)
                                assert_int_equal(t->local_elements, t->shard_elements * ranks);
                        }
                        assert_int_equal(next, elements);
                    }
                }
            }
        }
    }
}

UNIT_TEST(with_zero_3_matrices_are_sharded_and_embeddings_complete) {
    int64_t begin;
    plan(RECIPE_COAT, 3, 4);
    arena->rank = 2;
    Tensor embedding = arena_local(arena, WTE, VALUE, 0, &begin);
    assert_true(begin == 0 && embedding.rows == 384 && embedding.cols == 48);
    Tensor matrix = arena_local(arena, FCW, VALUE, 1, &begin);
    assert_int_equal(begin, 2 * 2304); // FCW has 192 x 48 elements, so each of 4 ranks has 2304.
    assert_int_equal(tensor_elements(matrix), 2304);
    Tensor moment = arena_shard(arena, FCW, MOMENT_M, 1, &begin), whole = arena_tensor(arena, FCW, MOMENT_M, 1);
    assert_ptr_equal(moment.data, whole.data); // only this rank's shard is in memory
    assert_ptr_equal(moment.scale, whole.scale);
    plan(RECIPE_COAT, 0, 4);
    arena->rank = 2;
    moment = arena_shard(arena, FCW, MOMENT_M, 1, &begin);
    whole = arena_tensor(arena, FCW, MOMENT_M, 1);
    assert_ptr_equal(moment.data, (char *)whole.data + begin);
    assert_ptr_equal(moment.scale, (float *)whole.scale + begin / 128);
    assert_ptr_equal(moment.exponent, whole.exponent + begin / 128);
}

UNIT_TEST(gathered_layers_use_a_double_buffer) {
    plan(RECIPE_COAT, 3, 4);
    Weight a = arena_weight(arena, QKVW, 1), b = arena_weight(arena, QKVW, 2), c = arena_weight(arena, QKVW, 3);
    assert_ptr_not_equal(a.codes.data, b.codes.data);
    assert_ptr_equal(a.codes.data, c.codes.data);
    // Every layer's FP8 weight has its own scale, although the layers share the double buffer.
    assert_ptr_not_equal(a.codes.scale, c.codes.scale);
    assert_ptr_equal(a.codes.scale, a.codes_t.scale);
    assert_ptr_equal(a.codes_t.data, b.codes_t.data); // All layers share one transpose, which is computed on demand.
    assert_ptr_equal(arena_gradient(arena, LN1B, 0).data, arena_gradient(arena, LN1B, 2).data);
    assert_ptr_not_equal(arena_gradient(arena, LN1B, 0).data, arena_tensor(arena, LN1B, GRAD, 0).data);
    assert_ptr_equal(arena_gradient(arena, WTE, 0).data, arena_tensor(arena, WTE, GRAD, 0).data);
    plan(RECIPE_BF16, 3, 4);
    a = arena_weight(arena, QKVW, 1), b = arena_weight(arena, QKVW, 2);
    assert_ptr_not_equal(a.value.data, b.value.data);
    assert_ptr_equal(a.value.data, arena_tensor(arena, QKVW, GATHERED, 1).data);
    plan(RECIPE_BF16, 2, 4);
    assert_ptr_equal(arena_weight(arena, QKVW, 1).value.data, arena_tensor(arena, QKVW, VALUE, 1).data);
}

typedef struct {
    size_t begin, end;
} Range;

static int compare(const void *a, const void *b) {
    size_t x = ((const Range *)a)->begin, y = ((const Range *)b)->begin;
    return x < y ? -1 : x > y;
}

UNIT_TEST(tensors_do_not_overlap_in_memory) {
    enum { MAX_RANGES = 4096 };
    static Range ranges[MAX_RANGES];
    for (int r = 0; r < 3; r++) {
        for (int zero = 0; zero <= 3; zero++) {
            plan(recipes[r], zero, 3);
            int count = 0;
            for (int id = 0; id < PARAMETER_COUNT; id++) {
                for (int role = 0; role < ROLE_COUNT; role++) {
                    const TensorLayout *t = &arena->layout[id][role];
                    for (int l = 0; t->exists && l < (t->per_layer ? t->layers : 1); l++) {
                        size_t at = (size_t)l;
                        const Range data = {t->data_offset + at * t->data_stride,
                                            t->data_offset + at * t->data_stride + t->data_bytes};
                        const Range scale = {t->scale_offset + at * t->scale_stride,
                                             t->scale_offset + at * t->scale_stride + t->scale_bytes};
                        const Range exponent = {t->exponent_offset + at * t->exponent_stride,
                                                t->exponent_offset + at * t->exponent_stride + t->exponent_bytes};
                        ranges[count++] = data;
                        if (t->scale_bytes) ranges[count++] = scale;
                        if (t->exponent_bytes) ranges[count++] = exponent;
                        assert_true(count < MAX_RANGES - 3);
                    }
                }
            }
            if (arena->amax_offset) {
                const Range maxima = {arena->amax_offset, arena->amax_offset + 4u * 5u * 4u};
                ranges[count++] = maxima;
            }
            qsort(ranges, (size_t)count, sizeof *ranges, compare);
            for (int i = 1; i < count; i++) assert_true(ranges[i - 1].end <= ranges[i].begin);
            assert_true(ranges[count - 1].end <= arena->total_bytes);
        }
    }
}

UNIT_TEST(each_zero_stage_needs_less_memory) {
    for (int r = 0; r < 3; r++) {
        size_t before = SIZE_MAX;
        for (int zero = 0; zero <= 3; zero++) {
            Config config;
            config_defaults(&config);
            recipe_apply(&config.recipe, recipes[r]);
            assert_true(model_shape_named("gpt2-xl", &config.shape));
            config.seq_len = 1024;
            config.zero = zero;
            assert_true(config_check(&config, 8, &err));
            arena_plan(arena, &config, 8, DEVICE_CPU);
            assert_true(arena->total_bytes < before);
            before = arena->total_bytes;
            size_t sum = 0;
            for (int c = 0; c < CATEGORY_COUNT; c++) sum += arena->category_bytes[c];
            assert_int_equal(sum, arena->total_bytes);
        }
    }
}

RUN_TESTS(NULL, NULL, NULL)
