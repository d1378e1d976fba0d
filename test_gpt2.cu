/*
Tests of the whole model. On the CPU: gradients against finite differences (in the program gradient_check),
recomputation, accumulation, precision, determinism and the skipping of bad updates. With --reference FOLDER: loss,
gradients and updates against PyTorch's, which dev/test/reference.py wrote to FOLDER. If there is a GPU: each
operation of the GPU in every format against the CPU's (dev/test/compare_ops.h, dev/test/compare_fp8.h,
dev/test/check_*.cu), and whole models (dev/test/compare_models.h).

Prints "ok - name", "not ok - name" or "skip - name: reason" per test. Exits with 1 if a test failed. --help lists the
flags.
*/
#define TESTING
#include "train_gpt2_fp8.cu"

#include "coat/io/safetensors.h"
#include "coat/numerics/rng.h"
#include "coat/run/evaluate.h"
#include "dev/test/blocks.h"

#ifdef COAT_DOUBLE
static const char usage[] = "usage: gradient_check [--reference FOLDER]\n"
                            "\n"
                            "Compares the model's gradients in FP64 with finite differences or, with --reference, with "
                            "the gradients of PyTorch in\n"
                            "FOLDER, which dev/test/reference.py wrote.\n";
#else
static const char usage[] =
    "usage: test_gpt2 [--small] [PART...] | --reference FOLDER | --logits FOLDER OUT [fp32]\n"
    "\n"
    "  PART                  run only these tests: cpu operations fp8 matmuls kernels fp8-kernels optimizer muon "
    "models\n"
    "  --small               run the GPU tests on a few small shapes, for compute-sanitizer\n"
    "  --reference FOLDER    compare loss, gradients and ten updates with PyTorch's, which dev/test/reference.py "
    "wrote\n"
    "  --logits FOLDER OUT   write the logits of a model folder for dev/test/check_transformers.py, in BF16 or FP32\n";
#endif

static const CommPlace one_process = {0, 1, 0, 1, "", false, ""};
static int failures;

static void check(bool ok, const char *name) {
    const bool gpt2 = block == blocks;
    printf("%s - %s%s%s\n", ok ? "ok" : "not ok", gpt2 ? "" : block->name, gpt2 ? "" : ": ", name);
    fflush(stdout);
    if (!ok) failures++;
}

typedef struct {
    int layers, heads, channels, vocab, B, T;
    bool bf16;
    int recompute;
} Small;

static Config small_config(Small s) {
    Config c;
    memset(&c, 0, sizeof c);
    c.shape.layers = s.layers;
    c.shape.heads = c.shape.kv_heads = s.heads;
    c.shape.channels = s.channels;
    c.shape.head_dim = s.channels / s.heads;
    c.shape.ffn = 4 * s.channels;
    c.shape.vocab = s.vocab;
    c.shape.vocab_padded = (s.vocab + VOCAB_PADDING - 1) / VOCAB_PADDING * VOCAB_PADDING;
    c.shape.positions = s.T + 3;
    c.shape.biases = c.shape.tied_head = true;
    c.shape.norm_eps = 1e-5f;
    set_block(&c.shape);
    c.recipe.precision = s.bf16 ? PRECISION_RECIPE : PRECISION_FP32;
    c.recipe.grads = FMT_BF16;
    c.recipe.group_size = 16;
    c.recipe.recompute = s.recompute;
    c.recipe.master = MASTER_FP32;
    c.micro_batch = s.B;
    c.seq_len = s.T;
    c.logits_chunk = s.B * s.T > 16 ? 16 : 0; // chunks of 16 tokens; the last may be shorter
    c.device = DEVICE_CPU;
    c.lr = 1e-3f;
    c.beta1 = 0.9f;
    c.beta2 = 0.95f;
    c.eps = 1e-8f;
    c.weight_decay = 0.1f;
    c.grad_clip = 1.0f;
    c.seed = 42;
    return c;
}

// Initializes a model as for training, but with random biases and norm weights. These are far from the usual 0 and 1,
// so that every term of the gradient matters.
static void randomize(Model *m) {
    parameters_init(&m->arena, &m->exec, m->config->seed);
    for (int i = 0; i < m->parameter_count; i++) {
        Tensor t = m->parameters[i].weight.value;
        if (t.rows != 1) continue;
        float *values = (float *)xmalloc((size_t)t.cols * sizeof *values);
        for (int64_t j = 0; j < t.cols; j++)
            values[j] = 0.3f * rng_normal(7, (uint64_t)i, (uint64_t)j) + (j % 2 ? 0.5f : 0.f);
        parameter_set(&m->exec, &m->parameters[i], values);
        free(values);
    }
}

static void random_batch(const Config *c, int32_t *inputs, int32_t *targets, uint64_t seed) {
    for (int64_t i = 0; i < config_micro_tokens(c); i++) {
        inputs[i] = (int32_t)(rng_hash(seed, 1, (uint64_t)i) % (uint64_t)c->shape.vocab);
        targets[i] = (int32_t)(rng_hash(seed, 2, (uint64_t)i) % (uint64_t)c->shape.vocab);
    }
}

// Returns a copy of the Config c. The copy is never freed, because a model keeps a pointer to its Config.
static Config *lasting_config(const Config *c) {
    Config *copy = (Config *)xmalloc(sizeof *copy);
    *copy = *c;
    return copy;
}

// Prepares a vision tower whose arena create() has filled with NaN. Uploads the indices of the rows that the projector
// reads, random entries for the table of pixel values, and random weights. The rest of the arena stays NaN.
static void randomize_vision(Model *v) {
    vision_tables_set(v);
    const Tensor values = arena_tensor(&v->arena, PIXEL_VALUES, VALUE, 0);
    real table[3 * 256];
    for (int i = 0; i < 3 * 256; i++) table[i] = (real)rng_normal(8, 1, (uint64_t)i);
    v->ops->upload(&v->exec, values.data, table, sizeof table);
    randomize(v);
}

// Creates a model of Config c with random weights. All other memory of the model is NaN. Returns the model's Config.
static Config *create(Model *m, Config c) {
    Error err;
    Config *config = lasting_config(&c);
    if (!model_create(m, config, &one_process, &err)) fatal(err.code, "%s", err.text);
    // The arena is filled with NaN to detect reads of memory that was not written.
    void *poison = xmalloc(m->arena.total_bytes);
    memset(poison, 0xff, m->arena.total_bytes);
    m->ops->upload(&m->exec, m->arena.base, poison, m->arena.total_bytes);
    free(poison);
    state_upload(m);
    rope_table_set(&m->arena, &m->exec);
    randomize(m);
    if (m->vision) randomize_vision(m->vision);
    return config;
}

// Runs forward and, if `backward` is true, backward on the batch that was uploaded last. Then downloads the training
// state to m->host.
static void pass_over_batch(Model *m, bool accumulate, bool backward) {
    if (backward) {
        micro_step(m, accumulate, true);
    } else {
        vision_forward(m);
        model_forward(m, NO_KV_CACHE);
        model_loss(m, false, false);
    }
    state_download(m);
}

// Uploads the random batch of seed `seed`, runs forward and, if `backward`, backward. Returns the mean loss times
// weight_of_batch. Adds the gradients to those of the previous pass if `accumulate`.
static double run_batch(Model *m, uint64_t seed, bool backward, bool accumulate, double weight_of_batch) {
    const Config *c = m->config;
    size_t tokens = (size_t)config_micro_tokens(c);
    int32_t *inputs = (int32_t *)xmalloc(2 * tokens * sizeof *inputs);
    random_batch(c, inputs, inputs + tokens, seed);
    m->host.loss_scale = (float)(weight_of_batch / (double)tokens);
    m->host.loss_sum = 0.0;
    state_upload(m);
    batch_upload(m, c->micro_batch, c->seq_len, inputs, inputs + tokens, NULL);
    pass_over_batch(m, accumulate, backward);
    free(inputs);
    return m->host.loss_sum;
}

static void take_step(Model *m, uint64_t seed) {
    step_begin(m, m->config->lr, config_micro_tokens(m->config));
    run_batch(m, seed, true, false, 1.0);
    step_end(m);
}

// Downloads a tensor's values as doubles, which the caller frees.
static double *values_of(Model *m, Tensor t) {
    size_t n = (size_t)tensor_elements(t), bytes = n * format_bytes(t.format);
    void *raw = xmalloc(bytes);
    double *out = (double *)xmalloc(n * sizeof *out);
    m->ops->download(&m->exec, raw, t.data, bytes);
    for (size_t i = 0; i < n; i++)
        out[i] = t.format == FMT_BF16 ? (double)bf16_decode(((uint16_t *)raw)[i]) : (double)((real *)raw)[i];
    free(raw);
    return out;
}

// Returns the relative error ||a - b|| / ||b|| of arrays a[n] and b[n]. Returns infinity if a value is NaN or inf, or
// if b is zero and a is not.
static double relative_error(const double *a, const double *b, size_t n) {
    double difference = 0.0, norm2 = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm2 += b[i] * b[i];
    }
    return norm2 > 0.0 ? sqrt(difference / norm2) : (difference > 0.0 ? INFINITY : 0.0);
}

#ifdef COAT_DOUBLE
// --- comparison of gradients with finite differences, in the program built for double precision ----------------

static void move(Model *m, Tensor t, const double *direction, double step) {
    real *values = (real *)t.data;
    for (int64_t j = 0; j < tensor_elements(t); j++) values[j] += step * direction[j];
    (void)m;
}

// Compares the gradients of all parameters of `part` with finite differences of the loss. `part` is model m or its
// vision tower.
static void check_gradients(Model *m, Model *part) {
    TensorId ids[64];
    int layers[64];
    Parameter list[64];
    run_batch(m, 5, true, false, 1.0);
    int count = arena_parameters(&part->arena, list, ids, layers);
    for (int i = 0; i < count; i++) {
        Tensor value = list[i].weight.value, gradient = list[i].grad;
        size_t n = (size_t)tensor_elements(value);
        double *direction = (double *)xmalloc(n * sizeof *direction), slope = 0.0;
        // The direction is random, so that every element contributes, plus a component along the gradient, so that the
        // slope is not near 0.
        double *g = values_of(m, gradient), size = 0.0;
        for (size_t j = 0; j < n; j++) size += g[j] * g[j];
        size = sqrt(size / (double)n);
        for (size_t j = 0; j < n; j++) {
            bool padding =
                (ids[i] == WTE || ids[i] == HEADW) && (int64_t)j >= (int64_t)m->config->shape.vocab * value.cols;
            direction[j] = padding ? 0.0 : rng_normal(9, (uint64_t)i, j) + (size > 0 ? g[j] / size : 0.0);
            slope += direction[j] * g[j];
        }
        // Central differences over one and two steps are combined, so that the error falls with the fourth power of the
        // step. The steps are short, so that the kink of the QKV clip is rarely between two points. Steps of the vision
        // tower's parameters are longer, because the loss depends less on these parameters.
        const double step = part != m ? 2e-4 : m->config->shape.clip_qkv > 0 ? 2e-7 : 4e-6;
        double losses[4];
        for (int k = 0; k < 4; k++) {
            const double moved = (k % 2 ? -1.0 : 1.0) * (1 + k / 2) * step;
            move(m, value, direction, moved);
            losses[k] = run_batch(m, 5, false, false, 1.0);
            move(m, value, direction, -moved);
        }
        const double one = losses[0] - losses[1], two = losses[2] - losses[3];
        double measured = (8.0 * one - two) / (12.0 * step), error = fabs(measured - slope) / fabs(slope);
        char name[128];
        snprintf(name, sizeof name, "the gradient of %s, layer %d, matches finite differences: relative error %.1e",
                 tensor_row(ids[i])->name, layers[i], error);
        check(error < 1e-6, name);
        free(g);
        free(direction);
    }
}

static void test_finite_differences(void) {
    Model m;
    Small s = {2, 3, 48, 61, 3, 13, false, 0};
    create(&m, small_config(s));
    check_gradients(&m, &m);
    double loss = run_batch(&m, 5, false, false, 1.0);
    take_step(&m, 5);
    check(m.host.t == 1 && run_batch(&m, 5, false, false, 1.0) < loss, "an update lowers the loss of its batch");
    model_destroy(&m);
}

// Compares the gradients of a small vision-language model with finite differences. The batch has three sequences; the
// second sequence has no image. With PROJECTOR_DOWNSAMPLE, the grid of patches is odd, so that the last column and row
// of patches have no neighbors to join.
static void test_vision_differences(VisionKind kind, bool drops_class_row, ProjectorKind projector) {
    Model m;
    Small s = {2, 3, 48, 61, 3, 13, false, 0};
    Config c = small_config(s);
    architecture_shape(ARCHITECTURE_LLAMA, &c.shape);
    c.shape.layers = 2, c.shape.heads = c.shape.kv_heads = 3, c.shape.channels = 48, c.shape.head_dim = 16;
    c.shape.ffn = 80, c.shape.vocab = 61, c.shape.vocab_padded = 128, c.shape.positions = 16;
    c.shape.init = INIT_KIND_NORMAL;
    c.shape.vision = (VisionShape){.kind = kind,
                                   .image_size = projector == PROJECTOR_MLP ? 9 : 13,
                                   .patch_size = 4,
                                   .channels = 32,
                                   .ffn = 40,
                                   .heads = 2,
                                   .layers = 2,
                                   .file_layers = 3,
                                   .activation = kind == VISION_CLIP ? ACT_GELU_QUICK : ACT_GELU_TANH,
                                   .norm_eps = 1e-5f,
                                   .drops_class_row = drops_class_row,
                                   .projector = projector,
                                   .features = 48};
    create(&m, c);
    const int rows = vision_rows(&c.shape.vision), images = 3, tokens = (int)config_micro_tokens(&c);
    int32_t *places = (int32_t *)xmalloc((size_t)tokens * sizeof *places);
    for (int i = 0; i < tokens; i++) places[i] = -1;
    for (int i = 0; i < rows; i++)
        places[1 + i] = i, places[7 + i] = rows + i, places[2 * c.seq_len + i] = 2 * rows + i;
    const int64_t bytes = 3 * (int64_t)c.shape.vision.image_size * c.shape.vision.image_size * images;
    uint8_t *pixels = (uint8_t *)xmalloc((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) pixels[i] = (uint8_t)rng_hash(3, 4, (uint64_t)i);
    batch_upload(&m, c.micro_batch, c.seq_len, places, NULL, NULL); // sets the number of tokens
    images_upload(&m, images, pixels, places);
    check_gradients(&m, &m);
    check_gradients(&m, m.vision);
    free(pixels);
    free(places);
    model_destroy(&m);
}
#else
// Computes the relative errors of model a's gradients, compared with those of model b of the same shape. Sets worst[id]
// to the largest error of tensor `id` over all layers.
static void gradient_errors(Model *a, Model *b, double worst[PARAMETER_COUNT]) {
    TensorId ids[512];
    Parameter list[512];
    arena_parameters(&a->arena, list, ids, NULL);
    for (int id = 0; id < PARAMETER_COUNT; id++) worst[id] = 0.0;
    for (int i = 0; i < a->parameter_count; i++) {
        double *x = values_of(a, a->parameters[i].grad), *y = values_of(b, b->parameters[i].grad);
        double error = relative_error(x, y, (size_t)tensor_elements(a->parameters[i].grad));
        if (!(error <= worst[ids[i]])) worst[ids[i]] = error;
        free(x);
        free(y);
    }
}

// Returns the largest relative error of model a's gradients, compared with those of model b. Stores the name of its
// tensor in *name.
static double gradients_differ(Model *a, Model *b, const char **name) {
    double errors[PARAMETER_COUNT], worst = 0.0;
    gradient_errors(a, b, errors);
    *name = "none";
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        if (errors[id] <= worst) continue;
        worst = errors[id];
        *name = tensor_row((TensorId)id)->name;
    }
    return worst;
}

static void print_gradient_errors(const char *what, Model *a, Model *b) {
    double errors[PARAMETER_COUNT];
    gradient_errors(a, b, errors);
    printf("# gradients, %s", what);
    for (int id = 0; id < PARAMETER_COUNT; id++)
        printf("%s %s %.2e", id ? "," : ":", tensor_row((TensorId)id)->name, errors[id]);
    printf("\n");
}

static void test_recompute(void) {
    for (int bf16 = 0; bf16 < 2; bf16++) {
        Small s = {2, 2, 40, 97, 3, 19, bf16 != 0, 0};
        Model plain, recomputed;
        create(&plain, small_config(s));
        double loss = run_batch(&plain, 3, true, false, 1.0);
        for (int level = 1; level <= 2; level++) {
            s.recompute = level;
            create(&recomputed, small_config(s));
            const char *worst;
            bool same = loss == run_batch(&recomputed, 3, true, false, 1.0) &&
                        gradients_differ(&recomputed, &plain, &worst) == 0.0;
            char name[96];
            snprintf(name, sizeof name, "recompute %d has the loss and gradients of recompute 0, bit for bit, %s",
                     level, bf16 ? "bf16" : "fp32");
            check(same, name);
            check(recomputed.arena.category_bytes[CATEGORY_SAVED] < plain.arena.category_bytes[CATEGORY_SAVED],
                  "recompute needs less memory for saved activations");
            model_destroy(&recomputed);
        }
        model_destroy(&plain);
    }
}

// Accumulates the gradients of two micro-batches in model `two`. Returns the largest relative error of these gradients,
// compared with the sum of the gradients that model `one` computes in two separate passes.
static double accumulation_error(Model *one, Model *two) {
    run_batch(one, 11, true, false, 0.5);
    double worst = 0.0, *first[64];
    for (int i = 0; i < one->parameter_count; i++) first[i] = values_of(one, one->parameters[i].grad);
    run_batch(one, 12, true, false, 0.5);
    run_batch(two, 11, true, false, 0.5);
    run_batch(two, 12, true, true, 0.5);
    for (int i = 0; i < one->parameter_count; i++) {
        size_t n = (size_t)tensor_elements(one->parameters[i].grad);
        double *second = values_of(one, one->parameters[i].grad), *sum = values_of(two, two->parameters[i].grad);
        for (size_t j = 0; j < n; j++) second[j] += first[i][j];
        double error = relative_error(sum, second, n);
        if (!(error <= worst)) worst = error;
        free(second);
        free(sum);
        free(first[i]);
    }
    return worst;
}

// Tests that the gradients of two accumulated micro-batches are the sum of both micro-batches' gradients.
static void test_accumulation(void) {
    Small s = {2, 2, 32, 50, 2, 16, false, 0};
    Model one, two;
    create(&one, small_config(s));
    create(&two, small_config(s));
    check(accumulation_error(&one, &two) < 1e-5, "accumulated gradients are the sum of two micro-batches' gradients");
    model_destroy(&one);
    model_destroy(&two);
}

// Tests that halving loss_scale in the training state halves loss and gradients, even if the device replays a CUDA
// graph.
static void test_loss_scale(DeviceKind device) {
    Small s = {2, 2, 32, 50, 2, 16, false, 0};
    Config c = small_config(s);
    Model m;
    c.device = device;
    create(&m, c);
    double loss = 0.0, *whole[64];
    for (int i = 0; i < 4; i++) loss = run_batch(&m, 7, true, false, 1.0);
    for (int i = 0; i < m.parameter_count; i++) whole[i] = values_of(&m, m.parameters[i].grad);
    bool halves = run_batch(&m, 7, true, false, 0.5) == 0.5 * loss;
    for (int i = 0; i < m.parameter_count; i++) {
        const size_t n = (size_t)tensor_elements(m.parameters[i].grad);
        double *half = values_of(&m, m.parameters[i].grad);
        for (size_t j = 0; j < n; j++) halves = halves && half[j] == 0.5 * whole[i][j];
        free(half);
        free(whole[i]);
    }
    char name[128];
    snprintf(name, sizeof name, "%s: half the loss scale halves loss and gradients", m.ops->name);
    check(halves && loss > 0, name);
    model_destroy(&m);
}

static void test_bf16_against_fp32(void) {
    Small s = {3, 4, 64, 200, 4, 32, false, 0};
    Model full, half;
    create(&full, small_config(s));
    s.bf16 = true;
    create(&half, small_config(s));
    double a = run_batch(&full, 3, true, false, 1.0), b = run_batch(&half, 3, true, false, 1.0);
    const char *worst;
    double error = gradients_differ(&half, &full, &worst);
    char name[128];
    snprintf(name, sizeof name, "bf16 is near fp32: loss %.5f and %.5f, largest error of a gradient %.1e (%s)", b, a,
             error, worst);
    check(fabs(a - b) < 5e-3 * a && error < 3e-2, name);
    print_gradient_errors("bf16 against fp32", &half, &full);
    model_destroy(&full);
    model_destroy(&half);
}

static void *snapshot(Model *m) {
    void *copy = xmalloc(m->arena.total_bytes);
    m->ops->download(&m->exec, copy, m->arena.base, m->arena.total_bytes);
    return copy;
}

// True if two snapshots of model m have identical parameters, moments and master weights.
static bool same_parameters(const Model *m, const char *a, const char *b) {
    for (int i = 0; i < m->parameter_count; i++) {
        const Parameter *p = &m->parameters[i];
        Tensor all[4] = {p->weight.value, p->m, p->v, p->master};
        for (int k = 0; k < 4; k++) {
            if (!all[k].data) continue;
            size_t at = (size_t)((char *)all[k].data - m->arena.base);
            if (memcmp(a + at, b + at, (size_t)tensor_elements(all[k]) * format_bytes(all[k].format)) != 0)
                return false;
        }
    }
    return true;
}

static void test_training(void) {
    Small s = {2, 2, 32, 50, 2, 16, true, 0};
    Model m, again, split;
    Config c = small_config(s);
    create(&m, c);
    create(&again, c);
    c.recipe.master = MASTER_SPLIT16;
    create(&split, c);
    double first = 0.0, last = 0.0;
    for (int i = 0; i < 40; i++) {
        take_step(&m, 1);
        take_step(&again, 1);
        take_step(&split, 1);
        if (i == 0) first = m.host.loss_sum;
        last = m.host.loss_sum;
    }
    char name[96];
    snprintf(name, sizeof name, "40 updates on one batch lower its loss from %.3f to %.3f", first, last);
    check(isfinite(last) && last < first - 0.5 && m.host.t == 40, name);
    char *a = (char *)snapshot(&m), *b = (char *)snapshot(&again);
    check(same_parameters(&m, a, b), "two identical runs give the same bits");
    bool same = true;
    for (int i = 0; i < m.parameter_count; i++) {
        Tensor x = m.parameters[i].weight.value, y = split.parameters[i].weight.value;
        same &= memcmp(x.data, y.data, (size_t)tensor_elements(x) * format_bytes(x.format)) == 0;
    }
    check(same, "split16 master weights give the same weights as fp32 master weights");

    // An infinite weight makes the loss NaN, so the update must be skipped and counted as skipped.
    ((uint16_t *)param(&m, FCW, 1).data)[3] = 0x7f80;
    char *before = (char *)snapshot(&m);
    take_step(&m, 1);
    char *after = (char *)snapshot(&m);
    check(same_parameters(&m, before, after) && m.host.t == 40 && m.host.skipped == 1 && m.host.skipped_run == 1,
          "a non-finite loss skips the update, and the skipped update is counted");
    free(before);
    free(after);
    free(a);
    free(b);
    model_destroy(&m);
    model_destroy(&again);
    model_destroy(&split);
}

// Tests that a pass that is smaller than the model's planned batch gives the loss of a model planned for the pass's
// size.
static void test_smaller_pass(void) {
    Small s = {2, 2, 32, 50, 1, 16, true, 0};
    Model small, large;
    Config c = small_config(s);
    c.shape.positions = 64;
    create(&small, c);
    c.micro_batch = 3;
    c.seq_len = 40;
    Config *config = create(&large, c);
    double a = run_batch(&small, 8, false, false, 1.0);
    config->micro_batch = 1;
    config->seq_len = 16;
    double b = run_batch(&large, 8, false, false, 1.0);
    check(a == b && isfinite(a), "a pass smaller than the planned batch has the loss of a model planned for that size");
    model_destroy(&small);
    model_destroy(&large);
}
#endif

#ifndef COAT_DOUBLE
#include "dev/test/model_documents.h"
#include "dev/test/model_fp8.h"
#endif

#if defined(COAT_CUDA) && !defined(COAT_DOUBLE)
#include "dev/test/check_gpu.h"
#include "dev/test/compare_ops.h"

#include "dev/test/compare_fp8.h"
#include "dev/test/compare_models.h"

// True if the backend can open a GPU. Otherwise, copies the reason to `why`, of `size` bytes.
static bool gpu_present(char *why, size_t size) {
    Exec exec;
    Error err;
    Small s = {1, 1, 64, 100, 1, 64, true, 0};
    Config c = small_config(s);
    c.device = DEVICE_CUDA;
    memset(&exec, 0, sizeof exec);
    exec.ops = cuda_ops();
    exec.ranks = 1;
    bool ok = exec.ops->open(&exec, &c, &err);
    if (ok)
        exec.ops->close(&exec);
    else
        snprintf(why, size, "%s", err.text);
    return ok;
}
#endif

#include "dev/test/reference_check.h"

// True if the command line names this part of the tests, or names no part.
static bool wanted(int argc, char **argv, const char *part) {
    bool named = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], part) == 0) return true;
        named = named || argv[i][0] != '-';
    }
    return !named;
}

int main(int argc, char **argv) {
    if (usage_asked(argc, argv, usage)) return EXIT_DONE;
    if (argc == 3 && strcmp(argv[1], "--reference") == 0) {
        compare_with_reference(argv[2]);
        return failures > 0;
    }
    const bool fp32 = argc == 5 && strcmp(argv[4], "fp32") == 0;
    if ((argc == 4 || fp32) && strcmp(argv[1], "--logits") == 0) {
        write_logits(argv[2], argv[3], !fp32);
        return 0;
    }
    const char *parts[] = {"--small", "cpu",         "operations", "fp8",  "matmuls",
                           "kernels", "fp8-kernels", "optimizer",  "muon", "models"};
    const int known = sizeof parts / sizeof *parts;
    for (int i = 1; i < argc; i++) {
        int part = 0;
        while (part < known && strcmp(argv[i], parts[part]) != 0) part++;
        if (part < known) continue;
        fprintf(stderr, "error: %s: not a part of test_gpt2; name one of", argv[i]);
        for (int k = 1; k < known; k++) fprintf(stderr, " %s", parts[k]);
        fprintf(stderr, ", or none for all\n");
        return EXIT_USER;
    }
#ifdef COAT_DOUBLE
    for (block = blocks; wanted(argc, argv, "cpu") && block < blocks + BLOCKS; block++) test_finite_differences();
    block = blocks;
    test_vision_differences(VISION_CLIP, true, PROJECTOR_MLP);
    test_vision_differences(VISION_CLIP, false, PROJECTOR_MLP);
    test_vision_differences(VISION_SIGLIP, false, PROJECTOR_DOWNSAMPLE);
#else
    for (block = blocks; wanted(argc, argv, "cpu") && block < blocks + BLOCKS; block++) {
        test_recompute();
        test_accumulation();
        test_loss_scale(DEVICE_CPU);
        test_bf16_against_fp32();
        test_training();
        test_smaller_pass();
        test_documents(DEVICE_CPU);
        test_fp8();
    }
    block = blocks;
#ifdef COAT_CUDA
    char why[1024];
    const bool small = argc > 1 && strcmp(argv[1], "--small") == 0;
    if (gpu_present(why, sizeof why)) {
        if (wanted(argc, argv, "operations")) compare_operations(small);
        if (wanted(argc, argv, "fp8")) compare_fp8(small);
        if (wanted(argc, argv, "matmuls")) failures += check_matmul(small) > 0;
        if (wanted(argc, argv, "kernels")) failures += check_kernels(small) > 0;
        if (wanted(argc, argv, "fp8-kernels")) failures += check_fp8(small) > 0;
        if (wanted(argc, argv, "optimizer")) failures += check_optimizer_states(small) > 0;
        if (wanted(argc, argv, "muon")) failures += check_muon(small) > 0;
        if (wanted(argc, argv, "muon")) compare_muon();
        if (wanted(argc, argv, "models")) compare_all_models(small);
    } else {
        printf("skip - the GPU's operations against the CPU reference: %s\n", why);
    }
#endif
#endif
    return failures > 0;
}
