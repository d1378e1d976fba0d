// Benchmarks forward and backward of one transformer layer, without embedding, head and optimizer, as in the paper's
// table 6. The batch is 4. The recipes are BF16 (saving everything, or recomputing activation and norms), FP8 matmuls,
// and COAT. Prints milliseconds, the bytes that the plan saves for backward, and both relative to BF16. Runs the
// trainer's own model code on normally distributed values.
// Usage: build/bench_layer_gpu [--quick] [--block NAME] [--model NAME]...
//   --block NAME: block type of the layer (olmo as in the paper, the default; gpt2, llama ...). The hidden sizes and
//   lengths are 2048 and 4096, the heads have 128 channels, and the paper's values (H100) are printed alongside.
//   --model NAME: the layer of a named model (the trainer's --model) at lengths 2048 and 4096; may be repeated
// U, the paper's unit of memory, is 2 C bytes per token for C channels. The paper's MB match a batch of 8, although its
// times match a batch of 4. The paper's U are therefore computed from its MB for eight sequences.
// TFLOP/s count the matmuls and the causal half of attention. The ceiling is the time at the rates of large matmuls
// measured in the same run: the FP8 rate for FP8 matmuls, the BF16 rate for other matmuls and attention.
#define TESTING
// The included trainer defines functions that this benchmark does not call.
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma nv_diag_suppress 177
#include "train_gpt2_fp8.cu"

#include "bench_ceiling.h"
#include "coat/config/shapes.h"

#define BATCH 4
#define PAPER_BATCH 8 // batch size that matches the megabytes of the paper's table 6
#define HEAD_DIM 128
#define WARM_UP 4

typedef struct {
    // name: name of the recipe. paper: its column in the paper's table 6; NULL if the table does not have it
    const char *name, *paper;
    RecipeKind recipe;
    int recompute;
} LayerRecipe;

enum { RECIPES = 4, PAPER_SHAPES = 4, PAPER_COLUMNS = 3, MAX_SHAPES = 16 };
static const LayerRecipe recipes[RECIPES] = {{"bf16", "BF16", RECIPE_BF16, 0},
                                             {"bf16 --recompute 2", NULL, RECIPE_BF16, 2},
                                             {"fp8-linear", "TE", RECIPE_FP8_LINEAR, 0},
                                             {"coat", "COAT", RECIPE_COAT, 1}};

// One row of the paper's table 6: milliseconds and megabytes (2^20 bytes) with BF16, TransformerEngine and COAT.
typedef struct {
    int channels, length;
    double ms[PAPER_COLUMNS], mb[PAPER_COLUMNS];
} PaperShape;

static const PaperShape paper[PAPER_SHAPES] = {{2048, 2048, {11.83, 8.28, 8.04}, {1457, 1210, 883}},
                                               {2048, 4096, {24.12, 17.23, 16.71}, {2914, 2420, 1766}},
                                               {4096, 2048, {26.55, 17.98, 16.85}, {2914, 2420, 1766}},
                                               {4096, 4096, {54.80, 37.24, 35.60}, {5828, 4840, 3533}}};

// A model with one transformer layer, at one sequence length.
typedef struct {
    const char *name; // name of the block type or of the model
    ModelShape shape;
    int length;
    const PaperShape *paper; // row of the paper's table 6; NULL if the table does not have this shape
} LayerShape;

typedef struct {
    double forward_ms, backward_ms, saved_bytes;
} Figures;

// A tensor that forward or backward overwrites, with a copy of its data and row amax to restore it from.
typedef struct {
    Tensor original, copy;
} Restored;

// Returns a layer of the given architecture with the hidden size and sequence length of one of the paper's rows.
static LayerShape block_shape(Architecture architecture, const PaperShape *p) {
    LayerShape s = {architecture_name(architecture), {}, p->length, p};
    architecture_shape(architecture, &s.shape);
    s.shape.channels = p->channels;
    s.shape.heads = s.shape.kv_heads = p->channels / HEAD_DIM;
    s.shape.head_dim = HEAD_DIM;
    s.shape.ffn = s.shape.activation == ACT_SWIGLU ? p->channels / 16 * 43 : 4 * p->channels;
    return s;
}

// Returns the configuration of a model with one layer of the shape s. It sets bf16_blocks to 0, because by default the
// first block of a model runs the forward matmuls of norm and attention outputs in BF16.
static Config layer_config(const LayerShape *s, const LayerRecipe *r) {
    Config c;
    config_defaults(&c);
    recipe_apply(&c.recipe, r->recipe);
    c.recipe.recompute = r->recompute;
    c.recipe.bf16_blocks = 0;
    c.shape = s->shape;
    c.shape.layers = 1;
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

// Returns a copy of the BF16 tensor t with normally distributed values of the given deviation, and their row amaxes if
// t has any. restore() writes the copy to t.
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

// Returns the number of bytes that one layer saves for backward.
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

// Times forward and backward of a layer in the middle of a model, whose first norm also adds the previous layer's
// output to the residual stream.
static Figures measure(Model *m, int runs) {
    enum { MAX_RUNS = 25 };
    cudaStream_t stream = cuda_backend(&m->exec)->stream;
    cudaEvent_t event[MAX_RUNS][4];
    float forward[MAX_RUNS], backward[MAX_RUNS];
    Restored r = restored_random(m, act(m, RESID_MID, 0), 1.0f), y = restored_random(m, act(m, Y, 0), 0.3f);
    Restored dresid = restored_random(m, act(m, DRESID, 0), 1e-5f);
    for (int i = 0; i < MAX_RUNS * 4; i++) CUDA_CHECK(cudaEventCreate(&event[i / 4][i % 4]), "timing");
    for (int i = -WARM_UP; i < runs; i++) {
        cudaEvent_t *const at = event[i < 0 ? 0 : i];
        restore(m, &r);
        restore(m, &y);
        CUDA_CHECK(cudaEventRecord(at[0], stream), "timing");
        block_forward(m, 0, r.original, y.original, param(m, FCPROJB, 0), NO_KV_CACHE);
        block_output(m, 0);
        CUDA_CHECK(cudaEventRecord(at[1], stream), "timing");
        restore(m, &dresid); // Restores the gradient after forward, because forward may use its memory as scratch.
        CUDA_CHECK(cudaEventRecord(at[2], stream), "timing");
        block_backward(m, 0, true);
        CUDA_CHECK(cudaEventRecord(at[3], stream), "timing");
        if (i < 0) m->ops->synchronize(&m->exec); // Warm-up (i < 0): the libraries create their plans.
    }
    m->ops->synchronize(&m->exec);
    for (int i = 0; i < runs; i++) {
        CUDA_CHECK(cudaEventElapsedTime(&forward[i], event[i][0], event[i][1]), "timing");
        CUDA_CHECK(cudaEventElapsedTime(&backward[i], event[i][2], event[i][3]), "timing");
    }
    for (int i = 0; i < MAX_RUNS * 4; i++) CUDA_CHECK(cudaEventDestroy(event[i / 4][i % 4]), "timing");
    restored_free(m, &r);
    restored_free(m, &y);
    restored_free(m, &dresid);
    return {median(forward, runs), median(backward, runs), saved_bytes(m)};
}

// FLOP/s of large BF16 and FP8 matmuls. fp8 is 0 if the GPU does not support FP8.
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
    const Ceilings c = {bench_matmul_ceiling(&bench, FMT_BF16), fp8 ? bench_matmul_ceiling(&bench, FMT_E4M3) : 0};
    bench_close(&bench);
    return c;
}

// Returns the FLOPs of one layer's matmuls with weights, forward and backward: three matmuls per weight, each with 2
// FLOPs per token and element.
static double matmul_flops(const LayerShape *s) {
    const ModelShape *m = &s->shape;
    const double C = m->channels, o = (double)m->heads * m->head_dim;
    const double weights = C * ((double)shape_qkv_width(m) + o + (double)(shape_hidden_width(m) + m->ffn));
    return 3 * 2.0 * BATCH * s->length * weights;
}
// Returns the FLOPs of one layer's attention: two matmuls forward and five backward, each on half of the scores.
static double attention_flops(const LayerShape *s) {
    return 7.0 * BATCH * s->length * (double)s->length * (double)(s->shape.heads * s->shape.head_dim);
}

static bool wrong; // true if a result was NaN or inf, which makes the times meaningless

static Figures layer_run(const LayerShape *s, const LayerRecipe *r, bool quick) {
    Model m;
    Error err;
    Config c = layer_config(s, r);
    const CommPlace alone = {0, 1, 0, 1, "", false, ""};
    if (!model_create(&m, &c, &alone, &err)) fatal(err.code, "%s", err.text);
    m.B = c.micro_batch;
    m.T = c.seq_len;
    m.ops->zero(&m.exec, m.arena.base, m.arena.total_bytes); // Clears the gradients because backward adds to them.
    state_upload(&m);
    parameters_init(&m.arena, &m.exec, 1);
    m.ops->weights_quantize(&m.exec, m.parameters, m.parameter_count);
    Figures f = measure(&m, quick ? 7 : 25);
    state_download(&m);
    wrong |= m.host.nonfinite;
    if (m.host.nonfinite) printf("WRONG: %s at %d, %d: values are not finite\n", r->name, s->shape.channels, s->length);
    model_destroy(&m);
    return f;
}

static void print_row(const LayerShape *s, const LayerRecipe *r, Figures f, Figures bf16, const Ceilings *ceilings) {
    const double flops = matmul_flops(s) + attention_flops(s);
    const double ideal_ms = 1e3 * (matmul_flops(s) / (r->recipe == RECIPE_BF16 ? ceilings->bf16 : ceilings->fp8) +
                                   attention_flops(s) / ceilings->bf16);
    const double ms = f.forward_ms + f.backward_ms, bytes = f.saved_bytes / BATCH / s->length;
    const double unit = 2.0 * s->shape.channels;
    printf("| %s | %d, %d | %s | %.3f | %.3f | %.3f | %.2f | %.0f | %.2f | %.2f | %.0f, %.0f %% |", s->name,
           s->shape.channels, s->length, r->name, f.forward_ms, f.backward_ms, ms,
           (bf16.forward_ms + bf16.backward_ms) / ms, bytes, bytes / unit, bf16.saved_bytes / f.saved_bytes,
           flops / ms * 1e-9, 100 * ideal_ms / ms);
    const int column = r->recipe == RECIPE_BF16 ? 0 : r->recipe == RECIPE_FP8_LINEAR ? 1 : 2;
    if (r->paper && s->paper)
        printf(" %s: %.2f ms (%.2f), %.2f U (%.2f) |\n", r->paper, s->paper->ms[column],
               s->paper->ms[0] / s->paper->ms[column], s->paper->mb[column] * 1048576 / PAPER_BATCH / s->length / unit,
               s->paper->mb[0] / s->paper->mb[column]);
    else
        printf(" |\n");
    fflush(stdout);
}

static Architecture named_architecture(const char *name) {
    int architecture = 0;
    while (architecture < ARCHITECTURE_COUNT && strcmp(name, architecture_name((Architecture)architecture)) != 0)
        architecture++;
    if (architecture == ARCHITECTURE_COUNT)
        fatal(EXIT_USER, "--block %s: is not a known block type; use gpt2, llama, olmo or another family", name);
    return (Architecture)architecture;
}

// Parses the command line. Fills `list` with the shapes to benchmark and returns their number.
static int asked_shapes(int argc, char **argv, LayerShape *list, bool *quick) {
    static const int lengths[] = {2048, 4096};
    int count = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--quick") == 0) {
            *quick = true;
        } else if (strcmp(argv[i], "--block") == 0 && value && count + PAPER_SHAPES <= MAX_SHAPES) {
            const Architecture architecture = named_architecture(argv[++i]);
            for (const PaperShape &p : paper) list[count++] = block_shape(architecture, &p);
        } else if (strcmp(argv[i], "--model") == 0 && value && count + 2 <= MAX_SHAPES) {
            LayerShape s = {argv[++i], {}, 0, NULL};
            if (!model_shape_named(s.name, &s.shape))
                fatal(EXIT_USER, "--model %s: must be one of %s", s.name, model_names());
            for (const int length : lengths) {
                s.length = length;
                list[count++] = s;
            }
        } else {
            fatal(EXIT_USER,
                  "%s: is unknown, its value is missing, or there are more than %d shapes; usage: bench_layer_gpu "
                  "[--quick] [--block NAME] [--model NAME]...",
                  argv[i], MAX_SHAPES);
        }
    }
    if (count > 0) return count;
    for (const PaperShape &p : paper) list[count++] = block_shape(ARCHITECTURE_OLMO, &p);
    return count;
}

int main(int argc, char **argv) {
    LayerShape shapes[MAX_SHAPES];
    bool quick = false;
    const int count = asked_shapes(argc, argv, shapes, &quick);
    const Ceilings ceilings = ceilings_measure(quick);
    printf("\nOne layer, batch %d; U = 2 C bytes per token\n\n", BATCH);
    printf("| layer of | hidden, length | recipe | forward, ms | backward, ms | both, ms | times bf16's speed | saved, "
           "bytes per token | U | times less than bf16 | TFLOP/s, of ceiling | the paper |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int i = 0; i < count; i++) {
        Figures bf16 = {};
        for (int k = 0; k < RECIPES; k++) {
            const Figures f = layer_run(&shapes[i], &recipes[k], quick);
            if (k == 0) bf16 = f;
            print_row(&shapes[i], &recipes[k], f, bf16, &ceilings);
        }
    }
    return wrong;
}
