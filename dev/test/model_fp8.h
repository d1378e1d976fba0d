// Tests of whole models with FP8 matmuls and FP8 saved activations (COAT, section 5) on the CPU. Included by
// test_gpt2.cu.
#pragma once
#include "dev/test/texts.h"

// Settings of a model with FP8 matmuls or FP8 saved activations, for the recipes coat and coat-paper.
typedef struct {
    const char *name;
    LinearKind linear;
    SavedKind saved;
    int recompute, group;
    HeadKind head;
    bool paper; // true: the settings of recipe coat-paper
} Fp8Recipe;

static const Fp8Recipe fp8_linear = {"fp8-linear", LINEAR_FP8, SAVED_BF16, 0, 16, HEAD_BF16, false};
static const Fp8Recipe fp8_coat = {"coat", LINEAR_FP8, SAVED_COAT, 1, 16, HEAD_BF16, false};
static const Fp8Recipe fp8_coat_head = {"coat --head fp8", LINEAR_FP8, SAVED_COAT, 1, 16, HEAD_FP8, false};

// Selects --recipe coat or, if activations are saved in BF16, fp8-linear. Both have row scales, and their norms and
// activation read unrounded inputs. In coat, dgrad reads E4M3 gradients.
static Fp8Recipe as_default(Fp8Recipe r) {
    r.paper = false;
    return r;
}

// Selects --recipe coat-paper: tensor scales, saved FP8 values as inputs of norms and activation, and E5M2 gradients.
static Fp8Recipe as_paper(Fp8Recipe r) {
    r.paper = true;
    return r;
}

static Fp8Recipe (*const ways[2])(Fp8Recipe) = {as_paper, as_default};

static void check_fp8_recipe(bool ok, Fp8Recipe r, const char *what) {
    char name[240];
    snprintf(name, sizeof name, "%s%s: %s", r.name, r.paper ? ", as in the paper" : "", what);
    check(ok, name);
}

static Config fp8_config(Small s, Fp8Recipe r) {
    Config c = small_config(s);
    recipe_apply(&c.recipe, r.paper ? RECIPE_COAT_PAPER : r.saved == SAVED_COAT ? RECIPE_COAT : RECIPE_FP8_LINEAR);
    c.recipe.linear = r.linear;
    c.recipe.head = r.head;
    c.recipe.saved = r.saved;
    c.recipe.recompute = r.recompute;
    c.recipe.group_size = r.group;
    c.recipe.moments = MOMENTS_FP32;
    c.recipe.bf16_blocks = 0;
    return c;
}

static Config *fp8_create(Model *m, Config c) {
    Config *config = create(m, c);
    m->ops->weights_quantize(&m->exec, m->parameters, m->parameter_count);
    return config;
}

// Compares the gradients of FP8 models with FP32's. Relative errors to expect:
//   One E4M3 value: 2.5 % (root mean square). One E5M2 value: 5 %.
//   Weight gradients: 6 to 10 %, because sums over tokens partly cancel.
//   Norm before the MLP, whose gradient was quantized twice: 12 to 15 %.
//   Biases of the last layer: as in BF16, because these gradients depend only on the BF16 residual stream.
//   Post-norm models: two to three times the errors of pre-norm models, up to 13 % in the head, because a sublayer's
//       output is as large as the residual stream.
static void test_fp8_gradients(void) {
    static const struct {
        Fp8Recipe recipe;
        double limit;
    } rows[] = {
        {{"fp8-linear", LINEAR_FP8, SAVED_BF16, 0, 16, HEAD_BF16, false}, 0.18},
        {{"coat", LINEAR_FP8, SAVED_COAT, 1, 16, HEAD_BF16, false}, 0.18},
        {{"coat --group-size 128", LINEAR_FP8, SAVED_COAT, 1, 128, HEAD_BF16, false}, 0.18},
        {{"bf16 --saved coat", LINEAR_BF16, SAVED_COAT, 1, 16, HEAD_BF16, false}, 0.06},
        {{"bf16 --head fp8", LINEAR_BF16, SAVED_BF16, 0, 16, HEAD_FP8, false}, 0.10},
        {{"bf16 --head fp8-backward", LINEAR_BF16, SAVED_BF16, 0, 16, HEAD_FP8_BACKWARD, false}, 0.10},
        {{"coat --head fp8", LINEAR_FP8, SAVED_COAT, 1, 16, HEAD_FP8, false}, 0.18},
        {{"coat --head fp8-backward", LINEAR_FP8, SAVED_COAT, 1, 16, HEAD_FP8_BACKWARD, false}, 0.18},
    };
    Small s = {3, 4, 128, 200, 4, 32, false, 0};
    Model full;
    create(&full, small_config(s));
    double expected = run_batch(&full, 3, true, false, 1.0);
    s.bf16 = true;
    // Runs every entry of `rows` with the settings of coat-paper and with those of coat.
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        const Fp8Recipe recipe = ways[i % 2](rows[i / 2].recipe);
        Model m;
        fp8_create(&m, fp8_config(s, recipe));
        double loss = run_batch(&m, 3, true, false, 1.0);
        const char *worst;
        double error = gradients_differ(&m, &full, &worst);
        char name[160];
        snprintf(name, sizeof name, "against fp32: loss %.5f and %.5f, worst gradient %s, %.3f", loss, expected, worst,
                 error);
        const double limit = rows[i / 2].limit * (m.config->shape.norm_place == NORM_POST ? 3 : 1);
        check_fp8_recipe(fabs(loss - expected) < 2e-3 * expected && error < limit, recipe, name);
        snprintf(name, sizeof name, "%s%s, against fp32", recipe.name, recipe.paper ? ", as in the paper" : "");
        print_gradient_errors(name, &m, &full);
        model_destroy(&m);
    }
    model_destroy(&full);
}

// Tests that the losses and gradients of coat are at most 10 % farther from FP32 than those of coat-paper if matmuls
// are in BF16. Forward norms and activations then read unrounded values (coat) or saved FP8 values (coat-paper).
// Backward reads saved FP8 values.
static void test_fp8_inputs(void) {
    Fp8Recipe recipe = fp8_coat;
    recipe.linear = LINEAR_BF16;
    recipe.name = "bf16 --saved coat";
    Small s = {3, 4, 128, 200, 4, 32, false, 0};
    Model full;
    create(&full, small_config(s));
    run_batch(&full, 3, true, false, 1.0);
    double *expected = values_of(&full, act(&full, LOSSES, 0)), off[2] = {0, 0}, error[2];
    const char *worst;
    s.bf16 = true;
    for (int exact = 0; exact < 2; exact++) {
        Model m;
        fp8_create(&m, fp8_config(s, exact ? as_default(recipe) : as_paper(recipe)));
        run_batch(&m, 3, true, false, 1.0);
        error[exact] = gradients_differ(&m, &full, &worst);
        double *losses = values_of(&m, act(&m, LOSSES, 0));
        for (int i = 0; i < s.B * s.T; i++) off[exact] += (losses[i] - expected[i]) * (losses[i] - expected[i]);
        free(losses);
        model_destroy(&m);
    }
    check_fp8_recipe(
        off[1] != off[0] && off[1] < 1.1 * off[0] && error[1] < 1.1 * error[0], recipe,
        formatted("norms and gelu of unrounded inputs: losses off by %.1e instead of %.1e, gradients %.3f and %.3f",
                  sqrt(off[1] / (s.B * s.T)), sqrt(off[0] / (s.B * s.T)), error[1], error[0]));
    free(expected);
    model_destroy(&full);
}

// Tests a model of 3 blocks with --bf16-blocks 0, 1 and 3. With 1 or 3 BF16 blocks, the error of gradients against FP32
// may grow by 30 % (100 % in post-norm models). With 3, the error of losses may grow by 20 % and must change. Errors
// need not fall, because in an untrained model, rounded weights cause most of the error.
static void test_fp8_first_blocks(Fp8Recipe recipe) {
    static const int blocks_of[] = {0, 1, 3};
    enum { CHOICES = sizeof blocks_of / sizeof *blocks_of };
    Small s = {3, 4, 128, 200, 4, 32, false, 0};
    Model full;
    create(&full, small_config(s));
    run_batch(&full, 3, true, false, 1.0);
    double *expected = values_of(&full, act(&full, LOSSES, 0)), off[CHOICES] = {0}, error[CHOICES];
    s.bf16 = true;
    const char *worst;
    bool near = true;
    for (int n = 0; n < CHOICES; n++) {
        Model m;
        Config c = fp8_config(s, recipe);
        c.recipe.bf16_blocks = blocks_of[n];
        fp8_create(&m, c);
        run_batch(&m, 3, true, false, 1.0);
        double *losses = values_of(&m, act(&m, LOSSES, 0));
        for (int i = 0; i < s.B * s.T; i++) off[n] += (losses[i] - expected[i]) * (losses[i] - expected[i]);
        off[n] = sqrt(off[n] / (s.B * s.T));
        error[n] = gradients_differ(&m, &full, &worst);
        near &= error[n] < (c.shape.norm_place == NORM_POST ? 2 : 1.3) * error[0];
        free(losses);
        model_destroy(&m);
    }
    check_fp8_recipe(
        near && off[2] != off[0] && off[2] < 1.2 * off[0], recipe,
        formatted("0, 1, 3 of 3 blocks in bf16: losses off by %.1e, %.1e, %.1e, gradients %.3f, %.3f, %.3f", off[0],
                  off[1], off[2], error[0], error[1], error[2]));
    free(expected);
    model_destroy(&full);
}

// Passes if losses are bit-identical and the relative error of each gradient is at most `limit` (0: bit-identical).
static void fp8_compare_gradients(Fp8Recipe a, Fp8Recipe b, bool cached, int threads, double limit, const char *what) {
    Small s = {2, 2, 48, 97, 3, 19, true, 0};
    Model first, second;
    Config c = fp8_config(s, a);
    c.threads = 1;
    fp8_create(&first, c);
    c = fp8_config(s, b);
    c.recipe.cache_transposed = cached;
    c.threads = threads;
    fp8_create(&second, c);
    const char *worst;
    double x = run_batch(&first, 3, true, false, 1.0), y = run_batch(&second, 3, true, false, 1.0);
    double error = gradients_differ(&first, &second, &worst);
    char name[200];
    if (limit > 0)
        snprintf(name, sizeof name, "%s give the same loss, worst gradient %s %.1e", what, worst, error);
    else
        snprintf(name, sizeof name, "%s give the same bits", what);
    check_fp8_recipe(x == y && isfinite(x) && error <= limit, a, name);
    model_destroy(&first);
    model_destroy(&second);
}

// Compares --recompute 0 with 1 and 2. In coat-paper, backward recomputes exactly forward's operands. In coat, forward
// read unrounded values, but backward recomputes from saved FP8 values, so wgrad differs by up to `limit`.
static void test_fp8_recompute(Fp8Recipe (*scaled)(Fp8Recipe), double limit) {
    Fp8Recipe a = scaled(fp8_coat), b = scaled(fp8_coat);
    a.recompute = 0;
    fp8_compare_gradients(a, b, true, 1, limit, "recompute 0 and 1");
    a = b = scaled(fp8_linear);
    b.recompute = 1;
    fp8_compare_gradients(a, b, true, 1, limit, "recompute 0 and 1");
    b.recompute = 2;
    fp8_compare_gradients(a, b, true, 1, limit, "recompute 0 and 2");
}

// Tests that --recompute 3, which recomputes whole blocks, gives the same bits as --recompute 2.
static void test_fp8_repeat(Fp8Recipe a) {
    Fp8Recipe b = a;
    a.recompute = 2;
    b.recompute = 3;
    fp8_compare_gradients(a, b, true, 1, 0, "recompute 2 and 3");
}

// Tests that results are bit-identical with and without cached transposed weights, and with 1 and 3 threads.
static void test_fp8_same_bits(Fp8Recipe (*scaled)(Fp8Recipe)) {
    const Fp8Recipe coat = scaled(fp8_coat), linear = scaled(fp8_linear), head = scaled(fp8_coat_head);
    fp8_compare_gradients(coat, coat, false, 1, 0, "transposed weight FP8 values cached and on demand");
    fp8_compare_gradients(coat, coat, true, 3, 0, "one thread and three");
    fp8_compare_gradients(linear, linear, false, 3, 0, "transposes cached with one thread and on demand with three");
    fp8_compare_gradients(head, head, false, 3, 0, "transposes cached with one thread and on demand with three");
}

// Tests logits in one or two chunks. The FP8 values of the loss gradient must not depend on the chunk size, because
// their scale does not. Only the order of sums over tokens differs. Transposed FP8 values overwrite the logits.
static void test_fp8_head_chunks(Fp8Recipe recipe) {
    Small s = {2, 2, 48, 97, 3, 32, true, 0};
    Config c = fp8_config(s, recipe);
    Model whole, cut;
    c.logits_chunk = 0;
    fp8_create(&whole, c);
    c.logits_chunk = 64; // splits 96 tokens into chunks of 64 and 32 tokens
    fp8_create(&cut, c);
    const char *worst;
    double x = run_batch(&whole, 3, true, false, 1.0), y = run_batch(&cut, 3, true, false, 1.0);
    double error = gradients_differ(&cut, &whole, &worst);
    check_fp8_recipe(x == y && error < 1e-6, recipe, "the number of chunks changes no FP8 value");
    size_t logits = whole.arena.layout[LOGITS][VALUE].data_bytes;
    check_fp8_recipe(whole.arena.category_bytes[CATEGORY_LOGITS] == logits + logits / 2, recipe,
                     "the plan includes the logits and their FP8 gradient");
    check_fp8_recipe(act(&whole, DLOGITS_QT, 0).data == act(&whole, LOGITS, 0).data, recipe,
                     "the transposed FP8 values reuse the memory of the logits");
    model_destroy(&whole);
    model_destroy(&cut);
}

// Tests that accumulating two micro-batches gives the sum of their separate gradients. Each micro-batch has its own
// scales, so only the order of additions differs.
static void test_fp8_accumulation(Fp8Recipe recipe) {
    Small s = {2, 2, 48, 50, 2, 16, true, 0};
    Config c = fp8_config(s, recipe);
    c.recipe.grads = FMT_FP32;
    Model one, two;
    fp8_create(&one, c);
    fp8_create(&two, c);
    check_fp8_recipe(accumulation_error(&one, &two) < 1e-6, recipe,
                     "accumulated gradients are the sum of two micro-batches' gradients");
    model_destroy(&one);
    model_destroy(&two);
}

static double fp8_train(Model *m, int updates) {
    double first = 0.0;
    for (int i = 0; i < updates; i++) {
        take_step(m, 1);
        if (i == 0) first = m->host.loss_sum;
    }
    return first - m->host.loss_sum;
}

static void test_fp8_training(Fp8Recipe recipe) {
    Small s = {2, 2, 48, 50, 2, 16, true, 0};
    Model plain, m, again;
    create(&plain, small_config(s));
    fp8_create(&m, fp8_config(s, recipe));
    fp8_create(&again, fp8_config(s, recipe));
    double expected = fp8_train(&plain, 30), fall = fp8_train(&m, 30);
    fp8_train(&again, 30);
    check_fp8_recipe(
        fall > 0.5 && fabs(fall - expected) < 0.1 * expected && m.host.t == 30 && m.host.skipped == 0, recipe,
        formatted("30 updates on one batch lower its loss by %.3f, those of bf16 by %.3f", fall, expected));
    char *a = (char *)snapshot(&m), *b = (char *)snapshot(&again);
    check_fp8_recipe(same_parameters(&m, a, b), recipe, "two identical runs give the same bits");
    free(b);

    // Writes inf to a norm weight or, if norms have no weights, to an embedding. Quantization must not hide the inf:
    // the update is skipped and counted.
    Tensor w = param(&m, m.config->shape.norm == NORM_PLAIN ? WTE : LN2W, m.config->shape.norm == NORM_PLAIN ? 0 : 1);
    for (int64_t row = 0; row < w.rows; row++) ((uint16_t *)w.data)[row * w.stride + 3] = 0x7f80;
    free(a);
    a = (char *)snapshot(&m);
    step_begin(&m, m.config->lr, config_micro_tokens(m.config));
    run_batch(&m, 1, false, false, 1.0);
    check_fp8_recipe(m.host.nonfinite == 1, recipe, "quantizing a non-finite value sets the step's flag");
    take_step(&m, 1);
    b = (char *)snapshot(&m);
    check_fp8_recipe(same_parameters(&m, a, b) && m.host.t == 30 && m.host.skipped == 1, recipe,
                     "the update is then skipped");
    free(a);
    free(b);
    model_destroy(&plain);
    model_destroy(&m);
    model_destroy(&again);
}

// Tests that a pass with fewer tokens than planned gives the bits of a model that is planned for these tokens, although
// the rows of its transposes are farther apart in memory.
static void test_fp8_smaller_pass(Fp8Recipe recipe) {
    Small s = {2, 2, 48, 97, 1, 16, true, 0};
    Model small, large;
    Config c = fp8_config(s, recipe);
    c.shape.positions = 64;
    fp8_create(&small, c);
    c.micro_batch = 3;
    c.seq_len = 48;
    Config *config = fp8_create(&large, c);
    config->micro_batch = 1;
    config->seq_len = 16;
    double a = run_batch(&small, 8, true, false, 1.0), b = run_batch(&large, 8, true, false, 1.0);
    const char *worst;
    check_fp8_recipe(a == b && isfinite(a) && gradients_differ(&large, &small, &worst) == 0.0, recipe,
                     "a pass smaller than planned gives the same bits");
    model_destroy(&small);
    model_destroy(&large);
}

// True if FP8 health has counted all FP8 values of dqkv and the error of the FP8 wgrad is within FP8 rounding. Sets
// *error to the relative error of the FP8 wgrad against the BF16 wgrad.
static bool fp8_findings_are_right(Model *m, double *error) {
    const Config *c = m->config;
    CodeCounts counts[2 * COUNTED_TENSORS];
    InnerProducts p;
    Tensor dqkv = act(m, DQKV_Q, 0);
    m->ops->download(&m->exec, counts, arena_tensor(&m->arena, CODE_COUNTS, VALUE, 0).data, sizeof counts);
    m->ops->download(&m->exec, &p, arena_tensor(&m->arena, INNER_PRODUCTS, VALUE, 0).data, sizeof p);
    const CodeCounts *n = &counts[code_counts_at(GRADIENT_DQKV, 0)];
    *error = sqrt((p.aa - 2 * p.ab + p.bb) / p.bb);
    return dqkv.rows == config_micro_tokens(c) && n->codes == (uint64_t)tensor_elements(dqkv) && n->saturated > 0 &&
           n->saturated + n->zero + n->subnormal < n->codes / 10 && *error > 1e-3 && *error < 0.15 &&
           fabs(p.ab / p.bb - 1) < 0.05;
}

// Tests that FP8 health changes no bit of the training. On the GPU, a micro-batch that FP8 health inspects must not be
// replayed from a CUDA graph, whether a graph exists or not.
static void test_fp8_watched(Fp8Recipe recipe, DeviceKind device) {
    static const bool looks[] = {true, false, true, false, false, true, false, false, true, false};
    const int steps = device == DEVICE_CPU ? 3 : 10; // takes fewer steps on the CPU, which does not use CUDA graphs
    Small s = {2, 2, 128, 200, 2, 48, true, 0};
    Model plain, watched;
    Config c = fp8_config(s, recipe);
    c.device = device;
    fp8_create(&plain, c);
    c.health_every = c.health_matmuls = 1;
    fp8_create(&watched, c);
    for (int step = 0; step < steps; step++) {
        watched.counts_codes = watched.compares_matmuls = looks[step];
        for (int i = 0; i < 2; i++) {
            Model *m = i ? &watched : &plain;
            step_begin(m, m->config->lr, config_micro_tokens(m->config));
            for (int micro = 0; micro < 2; micro++)
                run_batch(m, (uint64_t)(20 + 2 * step + micro), true, micro > 0, 0.5);
            step_end(m);
        }
    }
    char *a = (char *)snapshot(&plain), *b = (char *)snapshot(&watched), name[160];
    double error;
    bool right = fp8_findings_are_right(&watched, &error), same = same_parameters(&plain, a, b);
    snprintf(name, sizeof name, "%s: FP8 health changes no bit; a matmul's error is %.3f", plain.ops->name, error);
    check_fp8_recipe(right && same && plain.host.t == steps && watched.host.t == steps, recipe, name);
    free(a);
    free(b);
    model_destroy(&plain);
    model_destroy(&watched);
}

// Tests COAT with saved norm outputs, and FP8 matmuls without COAT. Architectures other than GPT-2 run this with the
// scales of coat-paper only in `make test-long`.
static void test_fp8_others(Fp8Recipe (*way)(Fp8Recipe)) {
    Fp8Recipe a = way(fp8_coat_head), b = way(fp8_coat);
    a.recompute = b.recompute = 0;
    test_fp8_smaller_pass(a);
    test_fp8_first_blocks(b);
    test_fp8_repeat(way(fp8_linear));
    test_fp8_smaller_pass(way(fp8_linear));
    test_fp8_first_blocks(way(fp8_linear));
    test_fp8_watched(way(fp8_linear), DEVICE_CPU);
}

static void test_fp8(void) {
    test_fp8_gradients();
    Fp8Recipe a = as_paper(fp8_coat), b = a;
    a.recompute = 0;
    a.linear = b.linear = LINEAR_BF16;
    a.name = "bf16 --saved coat";
    fp8_compare_gradients(a, b, true, 1, 0, "recompute 0 and 1");
    test_fp8_repeat(a);
    a.saved = SAVED_BF16;
    a.name = "bf16";
    test_fp8_repeat(a);
    const char *test_long = getenv("TEST_LONG");
    const bool thorough = test_long && *test_long;
    static const double recompute_limit[2] = {0, 0.08};
    for (int i = 0; i < 2; i++) {
        test_fp8_recompute(ways[i], recompute_limit[i]);
        test_fp8_repeat(ways[i](fp8_coat_head));
        test_fp8_same_bits(ways[i]);
        test_fp8_head_chunks(ways[i](fp8_coat_head));
        test_fp8_accumulation(ways[i](fp8_coat));
        test_fp8_training(ways[i](fp8_coat));
        test_fp8_smaller_pass(ways[i](fp8_coat_head));
        test_fp8_first_blocks(ways[i](fp8_coat));
        test_fp8_watched(ways[i](fp8_coat_head), DEVICE_CPU);
        if (block == blocks || ways[i] == as_default || thorough) test_fp8_others(ways[i]);
    }
    if (block == blocks) test_fp8_inputs();
}
