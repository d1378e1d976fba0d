// One transformer layer, forward and backward, without embedding, head and optimizer: the paper's table 6. Hidden 2048
// and 4096, heads of 128, batch 4, length 2048 and 4096, in BF16 (saving everything, and rebuilding the activation
// function and norms), with FP8 products, and with COAT: milliseconds, bytes saved for backward as the plan counts
// them, and both against BF16, beside the paper's figures (H100). The layer is OLMo's, as in the paper's benchmark, or
// GPT-2's. Built from the trainer's own model code, on random values.
// TFLOP/s count the products and the causal half of attention. Their ceiling is the time that these would need at the
// rates of large products measured in the same run, of FP8 where the recipe's products are, of BF16 for attention.
//
//   bench_layer [--quick] [--gpt2]
#define TESTING
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer only the layer is used
#pragma nv_diag_suppress 177
#include "train_gpt2_fp8.cu"

#include "bench_ceiling.h"
#include "coat/shapes.h"

#define BATCH 4
#define HEAD_DIM 128
#define WARM_UP 4

typedef struct {
    const char *name, *paper; // paper: the column of its table; NULL: not in it
    RecipeKind recipe;
    int recompute;
} LayerRecipe;

enum { RECIPES = 4, SHAPES = 4, PAPER_COLUMNS = 3 };
static const LayerRecipe recipes[RECIPES] = {{"bf16", "BF16", RECIPE_BF16, 0},
                                             {"bf16 --recompute 2", NULL, RECIPE_BF16, 2},
                                             {"fp8-linear", "TE", RECIPE_FP8_LINEAR, 0},
                                             {"coat", "COAT", RECIPE_COAT, 1}};

// The paper's table 6: milliseconds and megabytes with BF16, TransformerEngine, COAT.
typedef struct {
    int channels, length;
    double paper_ms[PAPER_COLUMNS], paper_mb[PAPER_COLUMNS];
} LayerShape;

static const LayerShape shapes[SHAPES] = {{2048, 2048, {11.83, 8.28, 8.04}, {1457, 1210, 883}},
                                          {2048, 4096, {24.12, 17.23, 16.71}, {2914, 2420, 1766}},
                                          {4096, 2048, {26.55, 17.98, 16.85}, {2914, 2420, 1766}},
                                          {4096, 4096, {54.80, 37.24, 35.60}, {5828, 4840, 3533}}};

typedef struct {
    double forward_ms, backward_ms, saved_bytes;
} Figures;

// What a pass overwrites and is put back before the next: the residual stream and what is added to it, the gradient and
// its rows' maxima.
typedef struct {
    Tensor original, copy;
} Restored;

static Architecture architecture = ARCHITECTURE_OLMO;

static Config layer_config(const LayerShape *s, const LayerRecipe *r) {
    Config c;
    config_defaults(&c);
    architecture_shape(architecture, &c.shape);
    recipe_apply(&c.recipe, r->recipe);
    c.recipe.recompute = r->recompute;
    c.shape.layers = 1;
    c.shape.channels = s->channels;
    c.shape.heads = c.shape.kv_heads = s->channels / HEAD_DIM;
    c.shape.head_dim = HEAD_DIM;
    c.shape.ffn = architecture == ARCHITECTURE_GPT2 ? 4 * s->channels : s->channels / 16 * 43;
    c.shape.positions = s->length;
    model_shape_vocab(&c.shape, 256);
    c.micro_batch = BATCH;
    c.seq_len = s->length;
    c.device = DEVICE_CUDA;
    return c;
}

static void *memory_on(Model *m, size_t bytes) {
    Error err;
    void *memory = m->ops->allocate(&m->exec, bytes, &err);
    if (!memory) fatal(err.code, "%s", err.text);
    return memory;
}

static size_t tensor_bytes(Tensor t) {
    return (size_t)tensor_elements(t) * format_bytes(t.format);
}

// A BF16 tensor of the model gets normal values of this deviation, of which a copy is kept.
static Restored restored_random(Model *m, Tensor t, float deviation) {
    static uint64_t seed = 1;
    Restored r = {t, t};
    r.copy.data = memory_on(m, tensor_bytes(t));
    bench_fill_kernel<<<1024, 256, 0, cuda_backend(&m->exec)->stream>>>(r.copy.data, t.format, tensor_elements(t),
                                                                        seed++, deviation);
    LAUNCH_CHECK("bench_fill");
    if (!t.amax) return r;
    const size_t bytes = (size_t)t.rows * sizeof(uint32_t);
    uint16_t *values = (uint16_t *)xmalloc(tensor_bytes(t));
    uint32_t *maxima = (uint32_t *)xcalloc((size_t)t.rows, sizeof *maxima);
    m->ops->download(&m->exec, values, r.copy.data, tensor_bytes(t));
    for (int64_t i = 0; i < tensor_elements(t); i++) {
        const uint32_t bits = (values[i] & 0x7fffu) << 16, row = (uint32_t)(i / t.cols);
        if (bits > maxima[row]) maxima[row] = bits;
    }
    r.copy.amax = (uint32_t *)memory_on(m, bytes);
    m->ops->upload(&m->exec, r.copy.amax, maxima, bytes);
    free(maxima);
    free(values);
    return r;
}

static void restore(Model *m, const Restored *r) {
    cudaStream_t stream = cuda_backend(&m->exec)->stream;
    CUDA_CHECK(cudaMemcpyAsync(r->original.data, r->copy.data, tensor_bytes(r->copy), cudaMemcpyDeviceToDevice, stream),
               "copying");
    if (r->copy.amax)
        CUDA_CHECK(cudaMemcpyAsync(r->original.amax, r->copy.amax, (size_t)r->copy.rows * sizeof(uint32_t),
                                   cudaMemcpyDeviceToDevice, stream),
                   "copying");
}

static void restored_free(Model *m, Restored *r) {
    m->ops->release(&m->exec, r->copy.data);
    if (r->copy.amax) m->ops->release(&m->exec, r->copy.amax);
}

// Bytes that one layer keeps from forward to backward.
static double saved_bytes(const Model *m) {
    size_t bytes = 0;
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
        const TensorLayout *t = &m->arena.layout[id][VALUE];
        if (!t->exists || t->alias >= 0) continue;
        if (t->saved && t->per_layer) bytes += t->data_bytes + t->scale_bytes;
        if (!t->saved && t->per_layer_scale) bytes += t->scale_bytes;
    }
    return (double)bytes;
}

static double median(float *ms, int count) {
    qsort(ms, (size_t)count, sizeof ms[0], bench_compare);
    return (double)ms[count / 2];
}

// The layer as one in the middle of a model: the norm it begins with adds what the layer before left.
static Figures measure(Model *m, int runs) {
    enum { MOST = 25 };
    cudaStream_t stream = cuda_backend(&m->exec)->stream;
    cudaEvent_t event[MOST][4];
    float forward[MOST], backward[MOST];
    Restored r = restored_random(m, act(m, RESID_MID, 0), 1.0f), y = restored_random(m, act(m, Y, 0), 0.3f);
    Restored dresid = restored_random(m, act(m, DRESID, 0), 1e-5f);
    for (int i = 0; i < MOST * 4; i++) CUDA_CHECK(cudaEventCreate(&event[i / 4][i % 4]), "timing");
    for (int i = -WARM_UP; i < runs; i++) {
        cudaEvent_t *const at = event[i < 0 ? 0 : i];
        restore(m, &r);
        restore(m, &y);
        CUDA_CHECK(cudaEventRecord(at[0], stream), "timing");
        block_forward(m, 0, r.original, y.original, param(m, FCPROJB, 0));
        CUDA_CHECK(cudaEventRecord(at[1], stream), "timing");
        restore(m, &dresid); // its memory may be scratch of forward
        CUDA_CHECK(cudaEventRecord(at[2], stream), "timing");
        block_backward(m, 0, true);
        CUDA_CHECK(cudaEventRecord(at[3], stream), "timing");
        if (i < 0) m->ops->synchronize(&m->exec); // plans are being made
    }
    m->ops->synchronize(&m->exec);
    for (int i = 0; i < runs; i++) {
        CUDA_CHECK(cudaEventElapsedTime(&forward[i], event[i][0], event[i][1]), "timing");
        CUDA_CHECK(cudaEventElapsedTime(&backward[i], event[i][2], event[i][3]), "timing");
    }
    for (int i = 0; i < MOST * 4; i++) CUDA_CHECK(cudaEventDestroy(event[i / 4][i % 4]), "timing");
    restored_free(m, &r);
    restored_free(m, &y);
    restored_free(m, &dresid);
    return {median(forward, runs), median(backward, runs), saved_bytes(m)};
}

// What large products reach, operations per second; fp8 0 where the GPU has none.
typedef struct {
    double bf16, fp8;
} Ceilings;

static Ceilings ceilings_measure(bool quick) {
    Bench bench = {};
    bench.quick = quick;
    config_defaults(&bench.config);
    bench.config.device = DEVICE_CUDA;
    bench_open(&bench);
    const bool fp8 = cuda_backend(&bench.exec)->capability >= 89;
    const Ceilings c = {bench_product_ceiling(&bench, FMT_BF16), fp8 ? bench_product_ceiling(&bench, FMT_E4M3) : 0};
    bench_close(&bench);
    return c;
}

// Three products per weight, of 2 operations per token and element; attention's two and five over half of the scores.
static double product_flops(const LayerShape *s) {
    const Config c = layer_config(s, &recipes[0]);
    const double C = s->channels,
                 weights = C * (4 * C + (double)(shape_hidden_width(&c.shape) + c.shape.ffn)); // of one layer
    return 3 * 2.0 * BATCH * s->length * weights;
}
static double attention_flops(const LayerShape *s) {
    return 7.0 * BATCH * s->length * (double)s->length * s->channels;
}

static Figures layer_run(const LayerShape *s, const LayerRecipe *r, bool quick) {
    Model m;
    Error err;
    Config c = layer_config(s, r);
    const CommPlace alone = {0, 1, 0, 1, "", false};
    if (!model_create(&m, &c, &alone, &err)) fatal(err.code, "%s", err.text);
    m.B = c.micro_batch;
    m.T = c.seq_len;
    m.ops->zero(&m.exec, m.arena.base, m.arena.total_bytes); // gradients are added to
    state_upload(&m);
    parameters_init(&m.arena, &m.exec, 1);
    m.ops->weights_quantize(&m.exec, m.parameters, m.parameter_count);
    Figures f = measure(&m, quick ? 7 : 25);
    state_download(&m);
    if (m.host.nonfinite) printf("WRONG: %s at %d, %d: values are not finite\n", r->name, s->channels, s->length);
    model_destroy(&m);
    return f;
}

static void print_row(const LayerShape *s, const LayerRecipe *r, Figures f, Figures bf16, const Ceilings *ceilings) {
    const double flops = product_flops(s) + attention_flops(s);
    const double ideal_ms = 1e3 * (product_flops(s) / (r->recipe == RECIPE_BF16 ? ceilings->bf16 : ceilings->fp8) +
                                   attention_flops(s) / ceilings->bf16);
    const double ms = f.forward_ms + f.backward_ms, channels = (double)BATCH * s->length * s->channels;
    printf("| %d, %d | %s | %.2f (%.2f + %.2f) | %.2f | %.0f | %.2f C | %.2f | %.0f, %.0f %% |", s->channels, s->length,
           r->name, ms, f.forward_ms, f.backward_ms, (bf16.forward_ms + bf16.backward_ms) / ms, f.saved_bytes / 1e6,
           f.saved_bytes / channels, bf16.saved_bytes / f.saved_bytes, flops / ms * 1e-9, 100 * ideal_ms / ms);
    const int column = r->recipe == RECIPE_BF16 ? 0 : r->recipe == RECIPE_FP8_LINEAR ? 1 : 2;
    if (r->paper)
        printf(" %s: %.2f ms (%.2f), %.0f MB (%.2f) |\n", r->paper, s->paper_ms[column],
               s->paper_ms[0] / s->paper_ms[column], s->paper_mb[column], s->paper_mb[0] / s->paper_mb[column]);
    else
        printf(" |\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    bool quick = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--gpt2") == 0)
            architecture = ARCHITECTURE_GPT2;
        else
            fatal(EXIT_USER, "usage: bench_layer [--quick] [--gpt2]");
    }
    const Ceilings ceilings = ceilings_measure(quick);
    printf("\nOne layer of %s's, batch %d, heads of %d; C = bytes per token and channel, MB = 10^6 bytes\n\n",
           architecture_name(architecture), BATCH, HEAD_DIM);
    printf("| hidden, length | recipe | ms (forward + backward) | times bf16's speed | saved MB | per token | times "
           "less than "
           "bf16 | TFLOP/s, of ceiling | the paper |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < SHAPES; i++) {
        Figures bf16 = {};
        for (int k = 0; k < RECIPES; k++) {
            const Figures f = layer_run(&shapes[i], &recipes[k], quick);
            if (k == 0) bf16 = f;
            print_row(&shapes[i], &recipes[k], f, bf16, &ceilings);
        }
    }
    return 0;
}
