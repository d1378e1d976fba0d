// Benchmarks the CPU backend's operations for GPT-2 124M. Compares matmuls and attention with the machine's sgemm rate,
// and all other operations with the rates of a large memory copy and of a copy of the operation's size. Measures these
// rates in the same run.
// Usage: bench_cpu [TOKENS [THREADS]]
//   TOKENS: tokens per micro-batch (default 1024). THREADS: number of CPU threads (default: all CPUs)
#include "coat/base/clock.h"
#include "coat/cpu/cpu_internal.h"

#ifdef COAT_OPENBLAS
#include <cblas.h>
#endif

#define LAYERS 12
#define CHANNELS 768
#define HEADS 12
#define VOCAB 50304
#define SEQUENCE 1024
#define HEAD_CHUNK 256 // number of tokens whose logits the head computes at a time
#define SIDE 1536      // rows and columns of the square matmuls that measure the machine's peak FLOP/s

typedef struct {
    Exec exec;
    Config config;
    int threads;
    double peak_flops, copy_bytes; // measured peaks of the machine: FLOP/s, and bytes per second of a copy
} Bench;

static Tensor make(Format format, int64_t rows, int64_t cols) {
    const size_t bytes = (size_t)(rows * cols) * format_bytes(format);
    const Tensor t = tensor_of(aligned_alloc(64, (bytes + 63) / 64 * 64), rows, cols, format);
    if (!t.data) fatal(EXIT_DEVICE, "host memory: could not allocate %zu bytes", bytes);
    uint32_t seed = 1;
    for (int64_t i = 0; i < rows * cols; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(int32_t)seed / 2147483648.0f;
        if (format == FMT_BF16)
            ((uint16_t *)t.data)[i] = bf16_encode(x);
        else if (format == FMT_FP32)
            ((real *)t.data)[i] = (real)x;
        else
            ((int32_t *)t.data)[i] = (int32_t)(seed >> 8) % 50257;
    }
    return t;
}

#ifdef COAT_OPENBLAS
// Returns the peak FLOP/s of the BLAS library: the faster of one square matmul per thread and one large matmul on all
// threads.
static double sgemm_rate(Bench *b) {
    const int threads = b->threads, large = 2 * SIDE;
    double best = 0;
    Tensor x = make(FMT_FP32, large, large), y = make(FMT_FP32, large, large), z = make(FMT_FP32, SIDE * threads, SIDE);
    Tensor result = make(FMT_FP32, large, large);
    for (int attempt = 0; attempt < 3; attempt++) {
        double start = now_seconds();
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int i = 0; i < threads; i++)
            blas_matmul(false, false, SIDE, SIDE, SIDE, (const real *)x.data, SIDE, (const real *)y.data, SIDE, false,
                        (real *)z.data + (size_t)i * SIDE * SIDE, SIDE);
        best = fmax(best, 2.0 * SIDE * SIDE * SIDE * threads / (now_seconds() - start));
        openblas_set_num_threads(threads);
        start = now_seconds();
        blas_matmul(false, false, large, large, large, (const real *)x.data, large, (const real *)y.data, large, false,
                    (real *)result.data, large);
        best = fmax(best, 2.0 * large * large * large / (now_seconds() - start));
        openblas_set_num_threads(1);
    }
    free(x.data);
    free(y.data);
    free(z.data);
    free(result.data);
    return best;
}
#else
// Returns the FLOP/s of the CPU backend's own matmul of large FP32 matrices. Used if there is no BLAS library.
static double sgemm_rate(Bench *b) {
    double best = 0;
    Weight w = {0};
    Tensor x = make(FMT_FP32, 2 * SIDE, SIDE), y = make(FMT_FP32, 2 * SIDE, 2 * SIDE), none = {0};
    w.value = make(FMT_FP32, 2 * SIDE, SIDE);
    for (int attempt = 0; attempt < 3; attempt++) {
        double start = now_seconds();
        b->exec.ops->linear_forward(&b->exec, y, x, w, none);
        best = fmax(best, 8.0 * SIDE * SIDE * SIDE / (now_seconds() - start));
    }
    free(x.data);
    free(y.data);
    free(w.value.data);
    return best;
}
#endif

#define LARGE_COPY ((int64_t)1 << 29) // bytes that the large copy reads and writes

// Returns the bytes per second of a copy that reads and writes `moved` bytes in total. Small copies stay in the CPU
// caches, as the operands of small operations do.
static double copy_rate(int threads, int64_t moved) {
    const int64_t page = 4096, most = (int64_t)1 << 20, pages = (moved / 2 + page - 1) / page, bytes = pages * page;
    int64_t piece = (pages + threads - 1) / threads * page;
    if (piece > most) piece = most;
    Tensor from = make(FMT_FP32, 1, bytes / 4), to = make(FMT_FP32, 1, bytes / 4);
    double best = 0;
    for (int attempt = 0; attempt < 6; attempt++) {
        double start = now_seconds();
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t at = 0; at < bytes; at += piece)
            memcpy((char *)to.data + at, (char *)from.data + at, (size_t)(bytes - at < piece ? bytes - at : piece));
        best = fmax(best, 2.0 * (double)bytes / (now_seconds() - start));
    }
    free(from.data);
    free(to.data);
    return best;
}

typedef struct {
    double flops, seconds;
} Total;

static double report_matmul(const Bench *b, const char *name, int64_t M, int64_t out, int64_t in, double seconds) {
    double flops = 2.0 * (double)M * (double)out * (double)in;
    printf("%-10s %6ld x %5ld x %5ld  %9.2f ms %8.1f GFLOP/s %5.0f %%\n", name, (long)M, (long)out, (long)in,
           seconds * 1e3, flops / seconds * 1e-9, 100 * flops / seconds / b->peak_flops);
    return flops;
}

// Times the forward matmul, dgrad and wgrad of one linear layer. times: how often a training step runs each of them.
static void bench_linear(Bench *b, Total *total, int64_t M, int64_t out, int64_t in, double times) {
    const Ops *ops = b->exec.ops;
    Weight w = {0};
    w.value = make(FMT_BF16, out, in);
    Tensor x = make(FMT_BF16, M, in), y = make(FMT_BF16, M, out), dx = make(FMT_BF16, M, in);
    Tensor dw = make(out == VOCAB ? FMT_FP32 : FMT_BF16, out, in), bias = make(FMT_BF16, 1, out);
    double best[3] = {1e9, 1e9, 1e9};
    for (int attempt = 0; attempt < 4; attempt++) {
        double t0 = now_seconds();
        ops->linear_forward(&b->exec, y, x, w, bias);
        double t1 = now_seconds();
        ops->linear_backward_data(&b->exec, dx, y, w);
        double t2 = now_seconds();
        ops->linear_backward_weight(&b->exec, dw, y, x, true);
        double t3 = now_seconds();
        best[0] = fmin(best[0], t1 - t0);
        best[1] = fmin(best[1], t2 - t1);
        best[2] = fmin(best[2], t3 - t2);
    }
    const char *const names[3] = {"forward", "dgrad", "wgrad"};
    for (int i = 0; i < 3; i++) {
        total->flops += times * report_matmul(b, names[i], M, out, in, best[i]);
        total->seconds += times * best[i];
    }
    free(w.value.data);
    free(x.data);
    free(y.data);
    free(dx.data);
    free(dw.data);
    free(bias.data);
}

// Operands of the memory-bound operations of one transformer block.
typedef struct {
    Tensor r, y, n, h, g, bias, bias_f, dweight, dbias, dbias_f;
    Tensor qkv, dqkv, o, lse, logits, losses, targets, tokens, wte, wpe, dwte, dwpe;
    Norm norm;
    Parameter parameter;
    StepState state;
    AttentionShape attention;
} Block;

static void run_residual_norm(Exec *e, Block *k) {
    e->ops->residual_norm_forward(e, k->n, k->norm, k->r, k->r, k->y, k->bias);
}
static void run_norm_backward(Exec *e, Block *k) {
    e->ops->norm_backward(e, k->y, k->dweight, k->dbias, k->n, k->norm, true, true);
}
static void run_gelu(Exec *e, Block *k) {
    e->ops->activation_forward(e, k->g, k->h, k->h, k->bias_f, true, ACT_GELU_TANH);
}
static void run_activation_backward(Exec *e, Block *k) {
    e->ops->activation_backward(e, k->g, k->g, k->dbias_f, k->g, k->h, true, ACT_GELU_TANH);
}
static void run_bias_gradient(Exec *e, Block *k) {
    e->ops->grad_quantize(e, k->y, k->y, k->dbias, k->y, true);
}
static void run_loss(Exec *e, Block *k) {
    e->ops->loss_forward_backward(e, k->logits, k->logits, k->losses, (Tensor){0}, k->logits, k->targets, 0, 50257,
                                  &k->state);
}
static void run_embed(Exec *e, Block *k) {
    e->ops->embed_forward(e, k->r, k->tokens, (Tensor){0}, k->wte, k->wpe, SEQUENCE);
}
static void run_embed_backward(Exec *e, Block *k) {
    e->ops->embed_backward(e, k->dwte, k->dwpe, k->r, k->tokens, (Tensor){0}, SEQUENCE, true);
}
static void run_grad_norm(Exec *e, Block *k) {
    e->ops->grad_norm(e, &k->parameter, 1, &k->state);
}
static void run_adamw(Exec *e, Block *k) {
    k->state.nonfinite = 0;
    e->ops->adamw_update(e, &k->parameter, 1, &k->state);
}
static void run_attention(Exec *e, Block *k) {
    Tensor q = tensor_cols(k->qkv, 0, CHANNELS), key = tensor_cols(k->qkv, CHANNELS, CHANNELS);
    e->ops->attention_forward(e, k->o, k->lse, q, key, tensor_cols(k->qkv, 2 * CHANNELS, CHANNELS), (Tensor){0},
                              k->attention);
}
static void run_attention_backward(Exec *e, Block *k) {
    Tensor q = tensor_cols(k->qkv, 0, CHANNELS), key = tensor_cols(k->qkv, CHANNELS, CHANNELS);
    Tensor value = tensor_cols(k->qkv, 2 * CHANNELS, CHANNELS), dq = tensor_cols(k->dqkv, 0, CHANNELS);
    e->ops->attention_backward(e, dq, tensor_cols(k->dqkv, CHANNELS, CHANNELS),
                               tensor_cols(k->dqkv, 2 * CHANNELS, CHANNELS), k->n, k->o, k->lse, q, key, value,
                               (Tensor){0}, (Tensor){0}, k->attention);
}

static Block make_block(int64_t M) {
    const int64_t C = CHANNELS, F = 4 * CHANNELS;
    Block k = {0};
    k.r = make(FMT_BF16, M, C), k.y = make(FMT_BF16, M, C), k.n = make(FMT_BF16, M, C);
    k.h = make(FMT_BF16, M, F), k.g = make(FMT_BF16, M, F);
    k.bias = make(FMT_BF16, 1, C), k.bias_f = make(FMT_BF16, 1, F);
    k.dweight = make(FMT_FP32, 1, C), k.dbias = make(FMT_FP32, 1, C), k.dbias_f = make(FMT_FP32, 1, F);
    k.norm.x = k.r, k.norm.mean = make(FMT_FP32, M, 1), k.norm.rstd = make(FMT_FP32, M, 1);
    k.norm.weight = make(FMT_BF16, 1, C), k.norm.bias = make(FMT_BF16, 1, C), k.norm.eps = 1e-5f;
    k.qkv = make(FMT_BF16, M, 3 * C), k.dqkv = make(FMT_BF16, M, 3 * C), k.o = make(FMT_BF16, M, C);
    k.attention.T = M < SEQUENCE ? (int)M : SEQUENCE;
    k.attention.B = (int)(M / k.attention.T);
    k.attention.heads = k.attention.kv_heads = HEADS;
    k.attention.head_dim = CHANNELS / HEADS;
    k.lse = make(FMT_FP32, (int64_t)k.attention.B * HEADS, k.attention.T);
    k.logits = make(FMT_BF16, HEAD_CHUNK, VOCAB), k.losses = make(FMT_FP32, HEAD_CHUNK, 1);
    k.targets = make(FMT_I32, HEAD_CHUNK, 1), k.tokens = make(FMT_I32, M, 1);
    k.wte = make(FMT_BF16, VOCAB, C), k.wpe = make(FMT_BF16, SEQUENCE, C);
    k.dwte = make(FMT_FP32, VOCAB, C), k.dwpe = make(FMT_FP32, SEQUENCE, C);
    k.parameter.weight.value = make(FMT_BF16, F, C);
    k.parameter.grad = make(FMT_BF16, F, C);
    k.parameter.m = make(FMT_FP32, F, C), k.parameter.v = make(FMT_FP32, F, C);
    k.parameter.master = make(FMT_FP32, F, C);
    k.state.lr = 1e-3f, k.state.beta1 = 0.9f, k.state.beta2 = 0.95f, k.state.eps = 1e-8f, k.state.loss_scale = 1e-3f;
    return k;
}

// Times an operation and prints its rate. amount: bytes that it must move, or its FLOPs. Also prints the rate in
// percent of `ceiling` and, if `second` is not 0, of `second`, both in amounts per second.
static void report(Bench *b, Block *k, const char *name, const char *shape, void (*run)(Exec *, Block *), double amount,
                   const char *unit, double ceiling, double second) {
    double best = 1e9;
    for (int attempt = 0; attempt < 6; attempt++) {
        double start = now_seconds();
        run(&b->exec, k);
        best = fmin(best, now_seconds() - start);
    }
    printf("%-20s %-16s %9.2f ms %8.1f %-7s %5.0f %%", name, shape, best * 1e3, amount / best * 1e-9, unit,
           100 * amount / best / ceiling);
    if (second > 0) printf(" %5.0f %%", 100 * amount / best / second);
    printf("\n");
}

// Times a memory-bound operation on tensors (rows, cols) and prints its rate. bytes: bytes that it must move.
static void report_memory(Bench *b, Block *k, const char *name, int64_t rows, int64_t cols,
                          void (*run)(Exec *, Block *), double bytes) {
    char shape[48];
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)rows, (long long)cols);
    report(b, k, name, shape, run, bytes, "GB/s", b->copy_bytes, copy_rate(b->threads, (int64_t)bytes));
}

static void bench_memory(Bench *b, int64_t M) {
    const int64_t C = CHANNELS;
    Block k = make_block(M);
    // row: bytes of a BF16 tensor (M, C). weights: elements of an MLP weight matrix (4 C, C).
    const double row = 2.0 * (double)M * CHANNELS, weights = 4.0 * CHANNELS * CHANNELS;
    // flops: FLOPs of causal attention forward, which computes the lower half of the scores
    double T = k.attention.T, flops = 2.0 * k.attention.B * T * T * CHANNELS;
    printf("\nmemory-bound operations, in %% of the large copy's %.1f GB/s and of a copy of the same size\n",
           b->copy_bytes * 1e-9);
    report_memory(b, &k, "residual + norm", M, C, run_residual_norm, 4 * row);
    report_memory(b, &k, "norm backward", M, C, run_norm_backward, 4 * row);
    report_memory(b, &k, "gelu", M, 4 * C, run_gelu, 12 * row);
    report_memory(b, &k, "gelu backward", M, 4 * C, run_activation_backward, 12 * row);
    report_memory(b, &k, "bias gradient", M, C, run_bias_gradient, row);
    report_memory(b, &k, "loss", HEAD_CHUNK, VOCAB, run_loss, 4.0 * HEAD_CHUNK * VOCAB);
    report_memory(b, &k, "embedding", M, C, run_embed, 3 * row);
    report_memory(b, &k, "embedding backward", M, C, run_embed_backward, 5 * row + 8.0 * T * CHANNELS);
    report_memory(b, &k, "gradient norm", 4 * C, C, run_grad_norm, 2 * weights);
    report_memory(b, &k, "adamw", 4 * C, C, run_adamw, (2 + 2 + 8 * 3) * weights);
    printf("\nattention (sequences x tokens x heads x width), causal half only, in %% of the machine's sgemm rate\n");
    char shape[64];
    snprintf(shape, sizeof shape, "%d x %d x %d x %d", k.attention.B, k.attention.T, HEADS, CHANNELS / HEADS);
    report(b, &k, "attention", shape, run_attention, flops, "GFLOP/s", b->peak_flops, 0);
    report(b, &k, "attention backward", shape, run_attention_backward, 2.5 * flops, "GFLOP/s", b->peak_flops, 0);
}

// Returns the number that `text` spells, -1 if `text` is not a number.
static int64_t number_of(const char *text) {
    char *end;
    const long long number = strtoll(text, &end, 10);
    return *text && !*end ? number : -1;
}

int main(int argc, char **argv) {
    Bench b = {0};
    Error err;
    const char *const usage = "usage: bench_cpu [TOKENS [THREADS]]";
    const int64_t M = argc > 1 ? number_of(argv[1]) : 1024, threads = argc > 2 ? number_of(argv[2]) : 0;
    if (M < 1 || (M > SEQUENCE && M % SEQUENCE))
        fatal(EXIT_USER, "%s: TOKENS must be from 1 to %d, or a multiple of %d; %s", argv[1], SEQUENCE, SEQUENCE,
              usage);
    if (threads < 0 || threads > 1024)
        fatal(EXIT_USER, "%s: THREADS must be a number from 0 (all CPUs) to 1024; %s", argv[2], usage);
    if (argc > 3) fatal(EXIT_USER, "%s", usage);
    b.config.threads = (int)threads;
    b.config.micro_batch = (int)(M / SEQUENCE > 0 ? M / SEQUENCE : 1);
    b.config.seq_len = SEQUENCE;
    b.config.shape.heads = b.config.shape.kv_heads = HEADS;
    b.config.shape.head_dim = CHANNELS / HEADS;
    b.config.shape.channels = CHANNELS;
    b.config.shape.ffn = 4 * CHANNELS;
    b.exec.ops = cpu_ops();
    if (!b.exec.ops->open(&b.exec, &b.config, &err)) fatal(err.code, "%s", err.text);
    b.threads = cpu_threads(&b.config);
    b.exec.workspace_bytes = cpu_workspace(&b.config).bytes;
    b.exec.workspace = b.exec.ops->allocate(&b.exec, b.exec.workspace_bytes, &err);
    if (!b.exec.workspace) fatal(err.code, "%s", err.text);
    char text[256];
    b.exec.ops->describe(&b.exec, text, sizeof text);
    b.peak_flops = sgemm_rate(&b);
    b.copy_bytes = copy_rate(b.threads, LARGE_COPY);
    printf("%s\nsgemm of %s%s %.1f GFLOP/s, memory copy %.1f GB/s (read + write)\n", text,
           blas_open() ? "OpenBLAS " : "the CPU backend", blas_open() ? blas_core() : "", b.peak_flops * 1e-9,
           b.copy_bytes * 1e-9);
    printf("\nmatmuls (tokens x out x in), stored in BF16, in %% of the machine's sgemm rate\n");
    Total total = {0};
    bench_linear(&b, &total, M, 3 * CHANNELS, CHANNELS, LAYERS);
    bench_linear(&b, &total, M, CHANNELS, CHANNELS, LAYERS);
    bench_linear(&b, &total, M, 4 * CHANNELS, CHANNELS, LAYERS);
    bench_linear(&b, &total, M, CHANNELS, 4 * CHANNELS, LAYERS);
    bench_linear(&b, &total, HEAD_CHUNK, VOCAB, CHANNELS, (double)M / HEAD_CHUNK);
    bench_memory(&b, M);
    printf("\nall matmuls of a step of %ld tokens: %.1f GFLOP in %.0f ms = %.1f GFLOP/s = %.0f %% of sgemm\n", (long)M,
           total.flops * 1e-9, total.seconds * 1e3, total.flops / total.seconds * 1e-9,
           100 * total.flops / total.seconds / b.peak_flops);
    return 0;
}
