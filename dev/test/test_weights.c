// Tests of weight initialization (coat/model/weights.h): standard deviation for each --init, and truncation.
#include "dev/test/checkpoint_run.h"

#include "coat/config/vision.h"
#include "coat/model/weights.h"

#define LAYERS 3
#define MAX_DEVIATIONS 3.0 // initial weights beyond this many standard deviations are drawn again
// Standard deviation of a standard normal number truncated at 3: sqrt(1 - 6 p(3) / (1 - 2 Q(3))), with the density p
// and the tail probability Q.
#define CUT_DEVIATION 0.98658

// Returns a run with initialized weights. tower: true for a vision tower and its projector, false for a language model.
static Run *drawn_run(InitKind init, bool tower) {
    Run *run = run_open(RECIPE_BF16, LAYERS);
    ModelShape *s = &run->config.shape;
    run->config.recipe.precision = PRECISION_FP32; // FP32, so that initialized weights are not rounded
    s->init = init;
    s->head_dim = 64;
    s->channels = 128;
    s->ffn = 512;
    if (tower) {
        assert_true(vision_named("clip:d3", &s->vision));
        s->vision.features = s->channels;
        const Config whole = run->config;
        vision_config(&run->config, &whole);
    }
    run_allocate(run);
    parameters_init(&run->arena, &run->exec, 42);
    return run;
}

// Returns the standard deviation that weights.h documents for the initial values of a tensor.
static double documented_deviation(const Run *run, TensorId id, int layer) {
    const bool residual = id == PROJW || id == FCPROJW;
    const double inputs = (double)arena_tensor(&run->arena, id, VALUE, layer).cols;
    if (id == WPE && run->config.shape.tower) return 1.0;
    if (id == PATCHW || id == PROJ1W || id == PROJ2W) return 1.0 / sqrt(inputs);
    switch (run->config.shape.init) {
    case INIT_KIND_NORMAL: return residual ? 0.02 / sqrt(2.0 * LAYERS) : 0.02;
    case INIT_KIND_MITCHELL: return residual ? 1.0 / sqrt(2.0 * inputs * (layer + 1)) : 1.0 / sqrt(inputs);
    case INIT_KIND_TRUNCATED: return 0.02;
    }
    return 0.0;
}

// Fails if the standard deviation or the mean of a tensor is off by more than 4 standard errors. For n numbers of
// standard deviation s, the standard error of s is s / sqrt(2n), and that of the mean is s / sqrt(n).
static void expect_drawn(const Run *run, TensorId id, int layer) {
    const bool cut = run->config.shape.init != INIT_KIND_NORMAL;
    const Tensor t = arena_tensor(&run->arena, id, VALUE, layer);
    assert_int_equal(t.format, FMT_FP32);
    const float *values = (const float *)t.data;
    const int64_t n = tensor_used_rows(id, t.rows, &run->config.shape) * t.cols;
    const double documented = documented_deviation(run, id, layer), expected = documented * (cut ? CUT_DEVIATION : 1.0);
    double sum = 0.0, squares = 0.0, largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
        largest = fmax(largest, fabs(values[i]));
    }
    const double found = sqrt(squares / (double)n), off = 4.0 / sqrt(2.0 * (double)n);
    if (fabs(found / expected - 1.0) > off || fabs(sum / (double)n) > 4.0 * expected / sqrt((double)n))
        fail_msg("--init %d, %s of layer %d: deviation %g, not %g", run->config.shape.init, tensor_row(id)->name, layer,
                 found, expected);
    if (cut != (largest <= MAX_DEVIATIONS * documented * (1 + 1e-6)))
        fail_msg("--init %d, %s of layer %d: the largest is %g deviations", run->config.shape.init,
                 tensor_row(id)->name, layer, largest / documented);
}

UNIT_TEST(initial_weights_have_the_documented_deviation) {
    static const TensorId drawn[] = {QKVW, PROJW, FCW, FCPROJW};
    for (int init = INIT_KIND_NORMAL; init <= INIT_KIND_TRUNCATED; init++) {
        Run *run = drawn_run((InitKind)init, false);
        expect_drawn(run, WTE, 0);
        expect_drawn(run, WPE, 0);
        for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
            for (int layer = 0; layer < LAYERS; layer++) expect_drawn(run, drawn[i], layer);
        run_close(run);
    }
}

// The blocks of a vision tower follow --init. Position embeddings, patch embedding and projector have fixed standard
// deviations; --init only decides whether they are truncated.
UNIT_TEST(initial_tower_weights_have_the_documented_deviation) {
    static const TensorId once[] = {WPE, PATCHW, PROJ1W, PROJ2W}, drawn[] = {QKVW, PROJW, FCW, FCPROJW};
    for (int init = INIT_KIND_NORMAL; init <= INIT_KIND_TRUNCATED; init++) {
        Run *run = drawn_run((InitKind)init, true);
        assert_int_equal(run->config.shape.init, init);
        for (size_t i = 0; i < sizeof once / sizeof *once; i++) expect_drawn(run, once[i], 0);
        for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
            for (int layer = 0; layer < LAYERS; layer++) expect_drawn(run, drawn[i], layer);
        run_close(run);
    }
}

// Norm weights are initialized to 1, biases and the padding rows of the vocabulary to 0.
UNIT_TEST(norms_start_at_1_and_biases_at_0) {
    Run *run = drawn_run(INIT_KIND_TRUNCATED, false);
    const Tensor norm = arena_tensor(&run->arena, LN1W, VALUE, LAYERS - 1);
    const Tensor bias = arena_tensor(&run->arena, FCB, VALUE, LAYERS - 1),
                 wte = arena_tensor(&run->arena, WTE, VALUE, 0);
    const int64_t used = tensor_used_rows(WTE, wte.rows, &run->config.shape);
    for (int64_t i = 0; i < norm.cols; i++) assert_true(((const float *)norm.data)[i] == 1.0f);
    for (int64_t i = 0; i < bias.cols; i++) assert_true(((const float *)bias.data)[i] == 0.0f);
    assert_true(used < wte.rows);
    for (int64_t i = used * wte.cols; i < wte.rows * wte.cols; i++) assert_true(((const float *)wte.data)[i] == 0.0f);
    run_close(run);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
