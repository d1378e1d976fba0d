// Tests of FP8 scales in the memory plan: which tensors have row scales, which tensors share scales, and how much
// memory the scales need.
#include "coat/config/shapes.h"
#include "coat/model/arena.h"
#include "coat/ops.h"
#include "dev/test/unit.h"

enum { LAYERS = 3, ROWS = 2 * 16 };

static Config config;
static Arena arena;

// Plans a small model without allocating memory. arena.base is an arbitrary address.
static void plan(RecipeKind recipe, int recompute) {
    config_defaults(&config);
    recipe_apply(&config.recipe, recipe);
    config.recipe.bf16_blocks = 0;
    config.recipe.head = HEAD_BF16;
    if (recompute >= 0) config.recipe.recompute = recompute;
    config.shape.layers = LAYERS;
    config.shape.heads = config.shape.kv_heads = 2;
    config.shape.channels = 32;
    config.shape.head_dim = 16;
    config.shape.ffn = 128;
    model_shape_vocab(&config.shape, 257);
    config.micro_batch = 2;
    config.seq_len = 16;
    arena_plan(&arena, &config, 1, DEVICE_CUDA);
    arena.base = (char *)4096;
}

static Tensor tensor(TensorId id, int layer) {
    return arena_tensor(&arena, id, VALUE, layer);
}

static void assert_granularity(TensorId id, Granularity expected) {
    for (int layer = 0; layer < LAYERS; layer++)
        if (tensor(id, layer).granularity != expected)
            fail_msg("%s of layer %d has granularity %d, not %d", tensor_row(id)->name, layer,
                     (int)tensor(id, layer).granularity, (int)expected);
}

// Asserts for each layer: `codes` has row scales of its own and no amax; `matmul` is BF16, uses these scales, and is
// stored in the memory of `memory`.
static void assert_rows(TensorId codes, TensorId matmul, TensorId memory) {
    assert_granularity(codes, SCALE_ROW);
    assert_granularity(matmul, SCALE_ROW);
    for (int layer = 0; layer < LAYERS; layer++) {
        Tensor q = tensor(codes, layer), y = tensor(matmul, layer);
        assert_true(format_is_fp8(q.format) && q.rows == ROWS && q.scale && !q.amax);
        assert_true((uintptr_t)q.scale % sizeof(float) == 0);
        assert_true(y.format == FMT_BF16 && y.rows == ROWS && y.data == tensor(memory, layer).data);
        assert_ptr_equal(y.scale, q.scale);
        for (int other = 0; other < layer; other++) {
            const char *a = (const char *)q.scale, *b = (const char *)tensor(codes, other).scale;
            assert_true(a >= b + ROWS * sizeof(float) || b >= a + ROWS * sizeof(float));
        }
        Tensor part = tensor_rows(q, 5, 7);
        assert_ptr_equal(part.scale, (float *)q.scale + 5);
    }
}

// Fails unless the transpose shares the scale of `codes` or, if `codes` has row scales or another format, has its own.
static void assert_transpose(TensorId transpose, TensorId codes) {
    assert_granularity(transpose, SCALE_TENSOR);
    for (int layer = 0; layer < LAYERS; layer++) {
        Tensor t = tensor(transpose, layer), q = tensor(codes, layer);
        assert_true(t.transposed && t.scale && (uintptr_t)t.scale % 16 == 0);
        if (q.granularity == SCALE_ROW || q.format != t.format)
            assert_ptr_not_equal(t.scale, q.scale);
        else
            assert_ptr_equal(t.scale, q.scale);
    }
}

static void assert_transposes(void) {
    assert_transpose(N1_T, N1);
    assert_transpose(O_T, OQ);
    assert_transpose(N2_T, N2);
    assert_transpose(G_T, G);
    assert_transpose(DH_QT, DH_Q);
    assert_transpose(DQKV_QT, DQKV_Q);
    assert_transpose(DRESID_QT, DRESID_Q);
}

static void assert_one_scale(TensorId codes) {
    assert_granularity(codes, SCALE_TENSOR);
    assert_non_null(tensor(codes, 0).scale);
    assert_non_null(tensor(codes, 0).amax);
}

static void assert_plain(TensorId id) {
    assert_granularity(id, SCALE_NONE);
    assert_null(tensor(id, LAYERS - 1).scale);
}

UNIT_TEST(recipe_coat_has_one_scale_per_row) {
    for (int recompute = 0; recompute <= 1; recompute++) {
        plan(RECIPE_COAT, recompute);
        assert_rows(OQ, Y_PROJ, Y);
        assert_rows(G, Y, Y);
        assert_rows(N2, Y_FC, Y_FC);
        assert_rows(DH_Q, DN2, DN);
        assert_one_scale(N1); // because attention, which reads the qkv matmul's output, cannot apply row scales
        assert_granularity(DQKV_Q, SCALE_TENSOR);
        assert_granularity(DRESID_Q, SCALE_TENSOR);
        assert_transposes();
        assert_plain(DN);
        assert_plain(QKV);
        assert_granularity(H, SCALE_GROUP);
    }
    for (int recompute = 0; recompute <= 2; recompute++) {
        plan(RECIPE_FP8_LINEAR, recompute);
        assert_rows(OQ, Y_PROJ, Y);
        assert_rows(G, Y, Y);
        assert_one_scale(N1);
        assert_one_scale(N2); // because h, the output of the matmul that reads n2, would need row scales
        assert_granularity(DH_Q, SCALE_TENSOR);
        assert_transposes();
        assert_plain(Y_FC);
        assert_plain(DN2);
        assert_plain(H);
    }
}

// In the first block (--bf16-blocks 1), the outputs of norms and attention are in BF16, each with its own amax, and
// forward matmuls read them in BF16. Backward's operands have the same formats as in other blocks.
UNIT_TEST(bf16_blocks_have_bf16_outputs_with_an_amax) {
    static const TensorId operands[] = {N1, OQ, N2}, matmuls[] = {Y_PROJ, Y_FC}, transposes[] = {N1_T, O_T, N2_T};
    plan(RECIPE_COAT, -1);
    config.recipe.bf16_blocks = 1;
    arena_plan(&arena, &config, 1, DEVICE_CUDA);
    arena.base = (char *)4096;
    for (int i = 0; i < 3; i++) {
        const Tensor first = tensor(operands[i], 0), second = tensor(operands[i], 1), t = tensor(transposes[i], 0);
        assert_true(first.format == FMT_BF16 && first.granularity == SCALE_NONE && !first.scale && first.amax);
        assert_true(format_is_fp8(second.format) && second.scale);
        assert_true(format_is_fp8(t.format) && t.granularity == SCALE_TENSOR && t.scale);
        for (int k = 0; k < i; k++) assert_ptr_not_equal(first.amax, tensor(operands[k], 0).amax);
    }
    assert_ptr_equal(tensor(OQ, 0).data, tensor(O, 0).data);
    for (int i = 0; i < 2; i++) {
        assert_true(tensor(matmuls[i], 0).granularity == SCALE_NONE && !tensor(matmuls[i], 0).scale);
        assert_ptr_equal(tensor(matmuls[i], 0).data, tensor(matmuls[i], 1).data);
        assert_true(tensor(matmuls[i], 1).granularity == SCALE_ROW);
    }
    assert_true(format_is_fp8(tensor(G, 0).format) && tensor(Y, 0).granularity == SCALE_ROW);
    for (int layer = 0; layer < 2; layer++) {
        assert_true(arena_reads_codes(&arena, FCPROJW, layer, false) && arena_reads_codes(&arena, FCW, layer, true));
        assert_true(arena_reads_codes(&arena, QKVW, layer, false) == (layer == 1));
    }
}

UNIT_TEST(recipe_coat_paper_has_one_scale_per_tensor) {
    static const RecipeKind recipes[] = {RECIPE_COAT_PAPER, RECIPE_BF16};
    static const TensorId codes[] = {N1, OQ, N2, G}, plain[] = {Y_PROJ, Y, Y_FC, DN2, DN};
    for (size_t i = 0; i < 2; i++) {
        plan(recipes[i], -1);
        for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) assert_plain(plain[k]);
        if (recipes[i] == RECIPE_BF16) continue;
        for (size_t k = 0; k < sizeof codes / sizeof *codes; k++) assert_one_scale(codes[k]);
        assert_granularity(DH_Q, SCALE_TENSOR);
        assert_transposes();
    }
}

// Row scales need little memory. The bytes of the plan's categories add up to the total.
UNIT_TEST(row_scales_need_little_memory) {
    plan(RECIPE_COAT_PAPER, -1);
    const size_t tensor_bytes = arena.total_bytes;
    plan(RECIPE_COAT, -1);
    const size_t scales = 4 * LAYERS * ROWS * sizeof(float);
    // The tolerance of 16 KiB is for tensors' alignment to 256 bytes.
    assert_true(arena.total_bytes <= tensor_bytes + scales + 16 * 1024);
    size_t counted = 0;
    for (int c = 0; c < CATEGORY_COUNT; c++) counted += arena.category_bytes[c];
    assert_true(counted == arena.total_bytes);
}

RUN_TESTS(NULL, NULL, NULL)
