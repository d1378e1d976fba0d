// Benchmarks the output head of GPT-2 124M and 1558M, forward and backward, in BF16 and FP8 (--head fp8). First prints
// the rates of a large copy and of large BF16 and FP8 matmuls. Then prints the milliseconds of each operation per
// micro-batch and their sum, for several chunk sizes. For matmuls, also prints TFLOP/s, and the percentage of a large
// matmul's TFLOP/s in the same format. For the loss kernel, also prints GB/s, and the percentage of a large copy's. The
// loss kernel moves 4 bytes per logit in BF16 (2 read, 2 written) and 5 in FP8 (2 read, 1 written; transpose: 1 read, 1
// written).
// Usage: build/bench_head_gpu [--quick]
//   --quick: fewer repetitions, and only chunks of 8192 tokens
#include "bench_ceiling.h"

#define VOCAB 50257
#define PADDED 50304

typedef struct {
    const char *name;
    int64_t tokens, channels;
} Model;

typedef struct {
    bool fp8;
    int64_t chunk;
    Tensor n, n_t, logits, dlogits, dlogits_t, losses, targets, dn, dwte;
    Weight wte;
    StepState *state;
} Head;

static void run_logits(Bench *bench, void *context) {
    const Head *h = (const Head *)context;
    bench->exec.ops->linear_forward(&bench->exec, h->logits, h->n, h->wte, Tensor{});
}

static void run_loss(Bench *bench, void *context) {
    const Head *h = (const Head *)context;
    bench->exec.ops->loss_forward_backward(&bench->exec, h->dlogits, h->dlogits_t, h->losses, Tensor{}, h->logits,
                                           h->targets, 0, VOCAB, h->state);
}

static void run_data(Bench *bench, void *context) {
    const Head *h = (const Head *)context;
    bench->exec.ops->linear_backward_data(&bench->exec, h->dn, h->dlogits, h->wte);
}

static void run_weight(Bench *bench, void *context) {
    const Head *h = (const Head *)context;
    bench->exec.ops->linear_backward_weight(&bench->exec, h->dwte, h->dlogits_t, h->n_t, true);
}

// Returns an FP8 transpose of `of` that shares the scale of `of`.
static Tensor transpose_made(Bench *bench, Tensor of) {
    Tensor t = bench_tensor_transposed(bench, of.rows, of.cols, of.format, 1.0f);
    bench->exec.ops->release(&bench->exec, t.scale);
    t.scale = of.scale;
    return t;
}

static Head head_make(Bench *bench, const Model *m, bool fp8, int64_t chunk) {
    const Format code = fp8 ? FMT_E4M3 : FMT_BF16;
    Head h = {};
    h.fp8 = fp8, h.chunk = chunk;
    h.n = bench_tensor(bench, chunk, m->channels, code, 1.0f);
    h.wte.value = bench_tensor(bench, PADDED, m->channels, FMT_BF16, 0.05f);
    h.logits = bench_tensor(bench, chunk, PADDED, FMT_BF16, 2.0f);
    h.losses = bench_tensor(bench, chunk, 1, FMT_FP32, 1.0f);
    h.dn = bench_tensor(bench, chunk, m->channels, FMT_BF16, 1.0f);
    h.dwte = bench_tensor(bench, PADDED, m->channels, FMT_FP32, 1.0f);
    h.state = (StepState *)bench_allocate(bench, sizeof *h.state);
    StepState state = {};
    state.loss_scale = 1.0f / 65536.0f;
    bench->exec.ops->upload(&bench->exec, h.state, &state, sizeof state);
    h.targets = h.losses;
    h.targets.format = FMT_I32;
    h.targets.data = bench_allocate(bench, (size_t)chunk * sizeof(int32_t));
    int32_t *targets = (int32_t *)xmalloc((size_t)chunk * sizeof *targets);
    for (int64_t i = 0; i < chunk; i++) targets[i] = (int32_t)(rng_hash(3, 1, (uint64_t)i) % VOCAB);
    bench->exec.ops->upload(&bench->exec, h.targets.data, targets, (size_t)chunk * sizeof *targets);
    free(targets);
    h.n_t = h.n, h.dlogits = h.dlogits_t = h.logits;
    if (!fp8) return h;
    h.wte.codes = bench_tensor(bench, PADDED, m->channels, FMT_E4M3, 1.0f);
    h.wte.codes_t = transpose_made(bench, h.wte.codes);
    h.n_t = transpose_made(bench, h.n);
    h.dlogits = bench_tensor(bench, chunk, PADDED, FMT_E5M2, 1.0f);
    h.dlogits_t = transpose_made(bench, h.dlogits);
    return h;
}

static void head_release(Bench *bench, Head *h) {
    if (h->fp8) {
        h->n_t.scale = h->dlogits_t.scale = h->wte.codes_t.scale = NULL;
        const Tensor fp8[] = {h->n_t, h->dlogits, h->dlogits_t, h->wte.codes, h->wte.codes_t};
        for (const Tensor &t : fp8) bench_release(bench, t);
    }
    const Tensor all[] = {h->n, h->wte.value, h->logits, h->losses, h->dn, h->dwte, h->targets};
    for (const Tensor &t : all) bench_release(bench, t);
    bench->exec.ops->release(&bench->exec, h->state);
}

// Bytes per second of a large copy and FLOP/s of large BF16 and FP8 matmuls, measured in the same run.
typedef struct {
    double copy, bf16, fp8;
} Ceilings;

static void print_matmul(double ms, double flops, double ceiling) {
    printf(" %.2f (%.0f, %.0f %%) |", ms, flops / ms * 1e-9, 100.0 * flops / ms * 1e3 / ceiling);
}

// Times the head's operations for one chunk size, and prints a table row. Returns their milliseconds per micro-batch.
static double bench_head(Bench *bench, const Model *m, bool fp8, int64_t chunk, const Ceilings *ceilings) {
    Head h = head_make(bench, m, fp8, chunk);
    const double chunks = (double)m->tokens / (double)chunk;
    const double logits = chunks * bench_median_ms(bench, run_logits, &h);
    const double loss = chunks * bench_median_ms(bench, run_loss, &h);
    const double data = chunks * bench_median_ms(bench, run_data, &h);
    const double weight = chunks * bench_median_ms(bench, run_weight, &h);
    const double flops = 2.0 * (double)m->tokens * (double)m->channels * PADDED, sum = logits + loss + data + weight;
    const double rate = (fp8 ? 5.0 : 4.0) * (double)m->tokens * PADDED / loss * 1e3;
    const double matmul = fp8 ? ceilings->fp8 : ceilings->bf16;
    printf("| %s | %lld x %lld x %d | %lld | %s |", m->name, (long long)m->tokens, (long long)m->channels, PADDED,
           (long long)chunk, fp8 ? "fp8" : "bf16");
    print_matmul(logits, flops, matmul);
    printf(" %.2f (%.0f, %.0f %%) |", loss, rate * 1e-9, 100.0 * rate / ceilings->copy);
    print_matmul(data, flops, matmul);
    print_matmul(weight, flops, matmul);
    printf(" %.2f |", sum);
    head_release(bench, &h);
    return sum;
}

int main(int argc, char **argv) {
    Bench bench = {};
    bench_flags(&bench, "[--quick]", argc, argv);
    config_defaults(&bench.config);
    recipe_apply(&bench.config.recipe, RECIPE_BF16);
    bench.config.recipe.cache_transposed = true;
    bench.config.device = DEVICE_CUDA;
    bench_open(&bench);
    const Ceilings ceilings = {bench_copy_ceiling(&bench), bench_matmul_ceiling(&bench, FMT_BF16),
                               bench_matmul_ceiling(&bench, FMT_E4M3)};
    printf("\n| model | tokens x channels x vocabulary | chunk | head | logits, ms (TFLOP/s, of ceiling) "
           "| loss, ms (GB/s, of copy) | dn, ms (TFLOP/s, of ceiling) | dwte, ms (TFLOP/s, of ceiling) | sum, ms "
           "| times bf16's speed |\n");
    printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    const Model models[] = {{"124M", 65536, 768}, {"1558M", 16384, 1600}};
    for (const Model &m : models) {
        for (int64_t chunk = bench.quick ? 8192 : 2048; chunk <= (bench.quick ? 8192 : 16384); chunk *= 2) {
            const double bf16 = bench_head(&bench, &m, false, chunk, &ceilings);
            printf(" 1.00 |\n");
            const double fp8 = bench_head(&bench, &m, true, chunk, &ceilings);
            printf(" %.2f |\n", bf16 / fp8);
            fflush(stdout);
        }
    }
    bench_close(&bench);
    return 0;
}
