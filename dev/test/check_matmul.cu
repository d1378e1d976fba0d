// Checks that FP8 matmuls accumulate in FP32. Runs every algorithm that training could use (from the committed table,
// cuBLASLt's first choice, candidates of --autotune) at training sizes. Fails only for algorithms of the first two
// kinds without fast accumulation; results of the others are only printed. The operands make accumulation with fewer
// bits visibly wrong.
#include "bench_cuda.h"
#include "check_gpu.h"
#include "coat/cuda/matmul/matmul_plan.h"

// --- generation of matmul operands --------------------------------------------------------------------------
// Operand values are exact in both E4M3 and E5M2, so their conversion to FP8 adds no error to the result.
typedef enum {
    OPERANDS_MIXED,       // operands 2^-6 to 2^7 with random signs: partial sums are much larger than single terms
    OPERANDS_EQUAL_SIGNS, // operands 2^-6 to 2^7; 78 % of the terms are positive, so sums grow with k
    OPERANDS_OUTLIERS     // one operand value in 4096 is 2^12 times as large as the others and has the opposite sign
} Operands;

__global__ static void fill_kernel(uint8_t *codes, Format format, int64_t count, uint64_t seed, Operands kind) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const uint64_t bits = rng_hash(seed, 0, (uint64_t)i);
        // Draws only two mantissa bits, because E5M2 has two.
        const float mantissa = 1.0f + 0.25f * (float)(bits >> 16 & 3);
        float x = ldexpf(mantissa, (int)(bits % 13) - 6);
        if (kind == OPERANDS_MIXED && (bits >> 32 & 1)) x = -x;
        if (kind == OPERANDS_EQUAL_SIGNS && (bits >> 32 & 7) == 0)
            x = -x; // negates 1/8 of the values, so that 22 % of the terms (a value times a value) are negative
        if (kind == OPERANDS_OUTLIERS) x = mantissa * ((bits >> 32) % 4096 == 0 ? -64.0f : 0x1p-6f);
        codes[i] = format == FMT_E5M2 ? e5m2_encode(x) : e4m3_encode(x);
    }
}

static void fill(Bench *bench, Tensor t, Operands kind) {
    static uint64_t seed = 100;
    fill_kernel<<<1024, 256, 0, cuda_backend(&bench->exec)->stream>>>((uint8_t *)t.data, t.format, t.rows * t.cols,
                                                                      seed++, kind);
    LAUNCH_CHECK("check_matmul, operands");
}

// --- results of a matmul check ------------------------------------------------------------------------------
typedef enum { FROM_TABLE, FIRST_CHOICE, ANY_OTHER, SOURCES } Source;

// Maximum relative error and bias of FP32 accumulation, for each kind of operands; derived in matmul_samples.h.
static const MatmulError limits[] = {{0.003, 0.001}, {0.003, 0.001}, {MATMUL_ERROR_LIMIT, MATMUL_BIAS_LIMIT}};

// Results for one kind of matmul: number of algorithms, number of wrong algorithms, and the largest error and bias.
typedef struct {
    int count, wrong;
    double error, bias;
} Found;

typedef struct {
    const char *what; // name of the matmul under test, for error messages
    Operands kind;
    // results, indexed by: fast accumulation, E5M2 gradient, accumulation into the output (0 or 1 each), and Source
    Found found[2][2][2][SOURCES];
    int printed;
} Findings;

static void report(void *context, const MatmulKey *key, int index, MatmulError e) {
    Findings *f = (Findings *)context;
    const MatmulShape *s = &key->shape;
    const bool wide = s->a == FMT_E5M2 || s->b == FMT_E5M2;
    Found *const found = &f->found[s->fast][wide][key->accumulate][index < 0    ? FROM_TABLE
                                                                   : index == 0 ? FIRST_CHOICE
                                                                                : ANY_OTHER];
    found->count++;
    if (e.error > found->error || e.error != e.error) found->error = e.error;
    if (fabs(e.bias) > fabs(found->bias)) found->bias = e.bias;
    if (e.error <= limits[f->kind].error && fabs(e.bias) <= limits[f->kind].bias) return;
    found->wrong++;
    if (!s->fast && f->printed++ < 40)
        printf("  wrong: %s, m %lld n %lld k %lld, %s x %s -> %s%s, algorithm %d: error %.2g, bias %+.2g\n", f->what,
               (long long)s->m, (long long)s->n, (long long)s->k, format_name(s->a), format_name(s->b),
               format_name(s->d), key->accumulate ? ", adding" : "", index, e.error, e.bias);
}

// --- checks of all matmuls of a layer and of a model --------------------------------------------------------
// Checks the matmuls of a layer's backward pass. wgrad (out, in) is a sum over `tokens`, with and without accumulation.
// dgrad (tokens, in) reads E5M2 gradients and, except for the output head, E4M3 gradients.
static void run_layer(Bench *bench, Findings *f, int64_t tokens, int64_t in, int64_t out, Operands kind, bool head) {
    Exec *exec = &bench->exec;
    const Tensor x_t = bench_tensor_transposed(bench, tokens, in, FMT_E4M3, 1.0f);
    const Tensor dy_t = bench_tensor_transposed(bench, tokens, out, FMT_E5M2, 1.0f);
    const Tensor dw = bench_tensor(bench, out, in, head ? FMT_FP32 : FMT_BF16, 1.0f);
    fill(bench, x_t, kind);
    fill(bench, dy_t, kind);
    f->what = "wgrad";
    exec->ops->linear_backward_weight(exec, dw, dy_t, x_t, false);
    exec->ops->linear_backward_weight(exec, dw, dy_t, x_t, true);
    Weight w = {};
    w.codes_t = bench_tensor_transposed(bench, out, in, FMT_E4M3, 1.0f);
    w.value.rows = out, w.value.cols = in;
    Tensor dy = dy_t; // dy has the same memory as dy_t, but is not transposed
    dy.transposed = false, dy.stride = out;
    const Tensor dx = bench_tensor(bench, tokens, in, FMT_BF16, 1.0f);
    fill(bench, w.codes_t, kind);
    f->what = "dgrad";
    for (Format gradient : {FMT_E5M2, FMT_E4M3}) {
        if (head && gradient == FMT_E4M3) continue;
        dy.format = gradient;
        fill(bench, dy, kind);
        exec->ops->linear_backward_data(exec, dx, dy, w);
    }
    bench_release(bench, dx);
    bench_release(bench, w.codes_t);
    bench_release(bench, dw);
    bench_release(bench, dy_t);
    bench_release(bench, x_t);
}

typedef struct {
    const char *name;
    int64_t channels, tokens;
} Sizes;

static void run_model(Bench *bench, Findings *f, const Sizes *size, Operands kind) {
    const int64_t C = size->channels, layers[][2] = {{C, 3 * C}, {C, C}, {C, 4 * C}, {4 * C, C}};
    for (const auto &layer : layers) run_layer(bench, f, size->tokens, layer[0], layer[1], kind, false);
    run_layer(bench, f, 8192, C, 50304, kind, true); // the output head, with one chunk of 8192 logit rows
}

static void bench_begin(Bench *bench, Findings *f, bool fast) {
    memset(bench, 0, sizeof *bench);
    recipe_apply(&bench->config.recipe, RECIPE_COAT);
    bench->config.recipe.precision = PRECISION_FP32; // FP32, because this check does not run attention
    bench->config.recipe.fast_accumulation_data = fast;
    bench_exec_open(&bench->exec, cuda_ops(), DEVICE_CUDA, &bench->config);
    bench->exec.trains = true;
    matmul_visit(&bench->exec, {report, f});
}

int check_matmul(bool small) {
    static const Sizes sizes[] = {{"124M", 768, 65536},  {"124M, 16", 768, 16384}, {"124M, 256", 768, 262144},
                                  {"350M", 1024, 32768}, {"774M", 1280, 16384},    {"1558M", 1600, 16384},
                                  {"7B", 4096, 8192}};
    static const Sizes small_size = {"small", 128, 4096};
    static const char *const kinds[] = {"mixed signs", "mostly equal signs", "rare outliers"};
    static Bench bench;
    int comparisons = 0, wrong = 0;
    for (int kind = 0; kind < 3; kind++) {
        static Findings f;
        memset(&f, 0, sizeof f);
        f.kind = (Operands)kind;
        for (int fast = 0; fast < (small ? 1 : 2); fast++) {
            bench_begin(&bench, &f, fast);
            if (cuda_backend(&bench.exec)->capability < 89) {
                bench_close(&bench);
                printf("skip - GPU against CPU: FP8 matmuls accumulate in FP32: the GPU has no FP8\n");
                return 0;
            }
            if (small)
                run_model(&bench, &f, &small_size, (Operands)kind);
            else
                for (const Sizes &size : sizes) run_model(&bench, &f, &size, (Operands)kind);
            bench_close(&bench);
        }
        for (int fast = 0; fast < 2; fast++)
            for (int wide = 0; wide < 2; wide++)
                for (int add = 0; add < 2; add++)
                    for (int source = 0; source < SOURCES; source++) {
                        const Found *x = &f.found[fast][wide][add][source];
                        if (x->count == 0) continue;
                        static const char *const names[] = {"table", "first choice", "others"};
                        printf("# matmuls, %-13s %s, e4m3 x %s, %-11s %-12s %4d algorithms, error at most %.2g, bias "
                               "%+.2g, %d wrong\n",
                               kinds[kind], fast ? "fast " : "exact", wide ? "e5m2" : "e4m3",
                               add ? "adding" : "overwriting", names[source], x->count, x->error, x->bias, x->wrong);
                        if (!fast && source != ANY_OTHER) comparisons += x->count, wrong += x->wrong;
                    }
    }
    return check_report("FP8 matmuls accumulate in FP32", comparisons, wrong);
}
