// Benchmarks the matmuls of GPT-2's and a vision tower's linear layers, forward and backward, in BF16 and FP8. Prints
// the time, TFLOP/s, and the percentage of the rate of a large matmul in the same format. Checks sampled elements of
// each result against dot products computed in double precision.
// Usage: build/bench_matmul_gpu [--quick] [--matmul-table FILE] [--autotune [--micro-batch N]]
//   --quick: fewer repetitions, and only GPT-2 124M
//   --matmul-table: file of GEMM algorithms that take precedence over the built-in table, as in train_gpt2_fp8
//   --autotune: times the library's algorithms for every shape, and prints rows for
//   coat/cuda/matmul/matmul_table_rows.h
#include "bench_ceiling.h"

#define SAMPLES 512

typedef enum { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT } Direction;

// One linear layer, with the operands and results of its forward matmul, dgrad and wgrad.
typedef struct {
    int64_t tokens, in, out;
    bool fp8, with_bias;
    Direction direction;
    bool accumulate;
    Tensor y, x, bias, dx, dy, dw, dy_t, x_t;
    Weight w;
} Linear;

typedef struct {
    const char *name;
    int64_t tokens, channels, vocab_rows, chunk;
    int64_t patch; // number of values of an image patch if the model is a vision tower, which has no head; otherwise 0
} Model;

static void run_matmul(Bench *bench, void *context) {
    const Linear *l = (const Linear *)context;
    const Ops *ops = bench->exec.ops;
    if (l->direction == FORWARD) ops->linear_forward(&bench->exec, l->y, l->x, l->w, l->bias);
    if (l->direction == BACKWARD_DATA) ops->linear_backward_data(&bench->exec, l->dx, l->dy, l->w);
    if (l->direction == BACKWARD_WEIGHT)
        ops->linear_backward_weight(&bench->exec, l->dw, l->fp8 ? l->dy_t : l->dy, l->fp8 ? l->x_t : l->x,
                                    l->accumulate);
}

// Returns the two factors of term k of the dot product that gives element (i, j) of the forward matmul, dgrad or wgrad.
__device__ static void reference(const Linear &l, int64_t i, int64_t j, int64_t k, float *a, float *b) {
    if (l.direction == FORWARD) {
        *a = bench_element(l.x, i, k);
        *b = bench_element(l.fp8 ? l.w.codes : l.w.value, j, k);
    } else if (l.direction == BACKWARD_DATA) {
        *a = bench_element(l.dy, i, k);
        *b = bench_element(l.fp8 ? l.w.codes_t : l.w.value, k, j);
    } else {
        *a = bench_element(l.fp8 ? l.dy_t : l.dy, k, i);
        *b = bench_element(l.fp8 ? l.x_t : l.x, k, j);
    }
}

// Checks sampled elements of a matmul's result, one per thread block. Adds the number of wrong elements to wrong[0].
__global__ static void check_kernel(Linear l, Tensor result, int64_t depth, float tolerance, int *wrong) {
    __shared__ double sums[256], squares[256];
    uint64_t bits = rng_hash(7, 0, blockIdx.x);
    int64_t i = (int64_t)(bits % (uint64_t)result.rows), j = (int64_t)((bits >> 32) % (uint64_t)result.cols);
    double sum = 0, square = 0;
    for (int64_t k = threadIdx.x; k < depth; k += blockDim.x) {
        float a, b;
        reference(l, i, j, k, &a, &b);
        sum += (double)a * b;
        square += (double)a * b * a * b;
    }
    sums[threadIdx.x] = sum, squares[threadIdx.x] = square;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (unsigned t = 1; t < blockDim.x; t++) sum += sums[t], square += squares[t];
    if (l.direction == FORWARD && l.with_bias) sum += bench_element(l.bias, 0, j);
    double found = bench_element(result, i, j);
    // The tolerance covers rounding the output to BF16 (at most 2^-8 of it) and the error of accumulation.
    double allowed = fabs(sum) / 256 + tolerance * sqrt(square);
    if (!(fabs(found - sum) <= allowed)) {
        if (atomicAdd(wrong, 1) == 0)
            printf("  (%lld, %lld): %.6g, expected %.6g\n", (long long)i, (long long)j, found, sum);
    }
}

static bool check_matmul(Bench *bench, Linear l) {
    Exec *exec = &bench->exec;
    l.accumulate = false;
    run_matmul(bench, &l);
    Tensor result = l.direction == FORWARD ? l.y : l.direction == BACKWARD_DATA ? l.dx : l.dw;
    int64_t depth = l.direction == FORWARD ? l.in : l.direction == BACKWARD_DATA ? l.out : l.tokens;
    bool fast = l.fp8 && l.direction == FORWARD;
    float tolerance = fast ? 0.03f : 0.002f;
    int *wrong = (int *)bench_allocate(bench, sizeof *wrong), count = 0;
    exec->ops->zero(exec, wrong, sizeof *wrong);
    check_kernel<<<SAMPLES, 256, 0, cuda_backend(exec)->stream>>>(l, result, depth, tolerance, wrong);
    LAUNCH_CHECK("bench_matmul check");
    exec->ops->download(exec, &count, wrong, sizeof count);
    exec->ops->release(exec, wrong);
    if (count) printf("  WRONG: %d of %d samples differ\n", count, SAMPLES);
    return count == 0;
}

static Linear layer_make(Bench *bench, int64_t tokens, int64_t in, int64_t out, bool fp8, bool with_bias) {
    Linear l = {};
    l.tokens = tokens, l.in = in, l.out = out, l.fp8 = fp8, l.with_bias = with_bias;
    Format forward = fp8 ? FMT_E4M3 : FMT_BF16;
    Format gradient = fp8 ? recipe_gradient_format(&bench->config.recipe) : FMT_BF16;
    l.x = bench_tensor(bench, tokens, in, forward, 1.0f);
    l.dy = bench_tensor(bench, tokens, out, gradient, 1.0f);
    l.y = bench_tensor(bench, tokens, out, FMT_BF16, 1.0f);
    l.dx = bench_tensor(bench, tokens, in, FMT_BF16, 1.0f);
    l.dw = bench_tensor(bench, out, in, FMT_BF16, 1.0f);
    l.w.value = bench_tensor(bench, out, in, FMT_BF16, 0.5f);
    if (with_bias) l.bias = bench_tensor(bench, 1, out, FMT_BF16, 1.0f);
    if (!fp8) return l;
    l.w.codes = bench_tensor(bench, out, in, FMT_E4M3, 1.0f);
    l.w.codes_t = bench_tensor_transposed(bench, out, in, FMT_E4M3, 1.0f);
    l.x_t = bench_tensor_transposed(bench, tokens, in, FMT_E4M3, 1.0f);
    l.dy_t = bench_tensor_transposed(bench, tokens, out, FMT_E5M2, 1.0f);
    return l;
}

static void layer_release(Bench *bench, Linear l) {
    Tensor all[] = {l.y, l.x, l.bias, l.dx, l.dy, l.dw, l.dy_t, l.x_t, l.w.value, l.w.codes, l.w.codes_t};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) bench_release(bench, all[i]);
}

// Times and checks the three matmuls of a layer. limit: the FLOP/s of a large matmul. Returns the number of wrong
// results.
static int bench_layer(Bench *bench, const char *name, Linear l, double limit) {
    static const char *const directions[] = {"forward", "dgrad", "wgrad"};
    int wrong = 0;
    for (int d = FORWARD; d <= BACKWARD_WEIGHT; d++) {
        l.direction = (Direction)d;
        bool right = check_matmul(bench, l);
        wrong += !right;
        l.accumulate = true;
        const double ms = bench_median_ms(bench, run_matmul, &l);
        const double rate = 2.0 * (double)l.tokens * (double)l.in * (double)l.out / ms * 1e3;
        printf("%-8s %-4s %-8s %7lld x %5lld <- %5lld  %8.3f ms  %7.0f TFLOP/s  %5.1f %%  %s\n", name,
               l.fp8 ? "fp8" : "bf16", directions[d], (long long)l.tokens, (long long)l.out, (long long)l.in, ms,
               rate * 1e-12, 100 * rate / limit, right ? "ok" : "WRONG");
    }
    return wrong;
}

static int bench_model(Bench *bench, const Model *model, bool fp8, double limit) {
    int64_t C = model->channels;
    const struct {
        const char *name;
        int64_t tokens, in, out;
        bool bias;
    } layers[] = {
        {"qkv", model->tokens, C, 3 * C, true},
        {"proj", model->tokens, C, C, false},
        {"fc", model->tokens, C, 4 * C, false},
        {"fcproj", model->tokens, 4 * C, C, false},
        {"head", model->chunk, C, model->vocab_rows, false},
        {"patch", model->tokens, model->patch, C, false},
    };
    int wrong = 0;
    printf("\n%s, %lld tokens, %s\n", model->name, (long long)model->tokens, fp8 ? "fp8" : "bf16");
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        if (i == (model->patch ? 4 : 5)) continue;
        Linear l = layer_make(bench, layers[i].tokens, layers[i].in, layers[i].out, fp8, layers[i].bias);
        wrong += bench_layer(bench, layers[i].name, l, limit);
        layer_release(bench, l);
    }
    return wrong;
}

int main(int argc, char **argv) {
    Bench bench = {};
    int64_t batch = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            bench.quick = true;
        else if (strcmp(argv[i], "--matmul-table") == 0 && i + 1 < argc)
            snprintf(bench.config.matmul_table, sizeof bench.config.matmul_table, "%s", argv[++i]);
        else if (strcmp(argv[i], "--autotune") == 0)
            bench.config.autotune = true;
        else if (strcmp(argv[i], "--micro-batch") == 0 && i + 1 < argc)
            batch = atoll(argv[++i]);
        else
            fatal(EXIT_USER,
                  "%s: unknown flag, or its value is missing; usage: bench_matmul_gpu [--quick] "
                  "[--matmul-table FILE] [--autotune [--micro-batch N]]",
                  argv[i]);
    }
    recipe_apply(&bench.config.recipe, RECIPE_COAT);
    bench.config.recipe.precision = PRECISION_FP32; // FP32, because this benchmark does not run attention
    bench_open(&bench);
    bench.exec.trains = bench.config.autotune;
    bool fp8 = cuda_backend(&bench.exec)->capability >= 89;
    double limit_bf16 = bench_matmul_ceiling(&bench, FMT_BF16),
           limit_fp8 = fp8 ? bench_matmul_ceiling(&bench, FMT_E4M3) : 0;
    Model models[] = {{"GPT-2 124M", (batch ? batch : 64) * 1024, 768, 50304, 8192, 0},
                      {"GPT-2 1558M", (batch ? batch : 16) * 1024, 1600, 50304, 8192, 0},
                      {"CLIP-L/14 336", (batch ? batch : 64) * 577, 1024, 0, 0, 588}};
    int wrong = 0;
    for (int m = 0; m < (bench.quick ? 1 : 3); m++) {
        wrong += bench_model(&bench, &models[m], false, limit_bf16);
        if (fp8 && !models[m].patch) wrong += bench_model(&bench, &models[m], true, limit_fp8);
    }
    char *rows = bench.config.autotune ? bench.exec.ops->algos_text(&bench.exec) : NULL;
    if (rows) fputs(rows, stdout);
    free(rows);
    bench_close(&bench);
    printf("\n%s\n", wrong ? "WRONG results, see above" : "all matmuls are right");
    return wrong ? EXIT_USER : EXIT_DONE;
}
