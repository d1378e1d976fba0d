// Benchmarks attention on the GPU for shapes of GPT-2, Llama-like models and vision towers. Uses this project's kernels
// if they support the GPU and the shape, otherwise cuDNN. cuDNN's deterministic backward processes a slice at a time:
// several sequences, or some heads of one sequence. Prints the time, TFLOP/s, the percentage of a large matmul's rate
// measured in the same run, and the workspace. With a causal mask, counts only the FLOPs of the visible half of the
// scores. Compares the first and last sequence with the FP32 kernels, and checks that a repeated backward run gives the
// same bits. Also times the FP32 kernels, which test_gpt2 checks.
// Usage: build/bench_attention_gpu [--quick]
//   --quick: fewer repetitions
#include "bench_attention.h"

#define TOLERANCE 0.02 // maximum relative root mean square error of the BF16 results compared with the FP32 kernels

static void run_forward(Bench *bench, void *context) {
    Attention *a = (Attention *)context;
    bench->exec.ops->attention_forward(&bench->exec, a->o, a->lse, part(a->shape, a->qkv, 0), part(a->shape, a->qkv, 1),
                                       part(a->shape, a->qkv, 2), Tensor{}, a->shape);
}

static void run_backward(Bench *bench, void *context) {
    Attention *a = (Attention *)context;
    AttentionShape s = a->shape;
    bench->exec.ops->attention_backward(&bench->exec, part(s, a->dqkv, 0), part(s, a->dqkv, 1), part(s, a->dqkv, 2),
                                        a->d_o, a->o, a->lse, part(s, a->qkv, 0), part(s, a->qkv, 1),
                                        part(s, a->qkv, 2), Tensor{}, Tensor{}, s);
}

// Adds to out[0] the sum of (a - b)^2 and to out[1] the sum of b^2.
__global__ static void distance_kernel(Tensor a, Tensor b, double *out) {
    int64_t count = a.rows * a.cols, step = (int64_t)gridDim.x * blockDim.x;
    double error = 0, size = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        double x = bench_element(a, i / a.cols, i % a.cols), y = bench_element(b, i / a.cols, i % a.cols);
        error += (x - y) * (x - y);
        size += y * y;
    }
    atomicAdd(&out[0], error);
    atomicAdd(&out[1], size);
}

// True if the relative RMS error of `found` is at most TOLERANCE. Otherwise prints the error.
static bool same(Bench *bench, const char *name, Tensor found, Tensor expected) {
    Exec *exec = &bench->exec;
    double *sums = (double *)bench_allocate(bench, 2 * sizeof *sums), host[2];
    exec->ops->zero(exec, sums, 2 * sizeof *sums);
    distance_kernel<<<512, 256, 0, cuda_backend(exec)->stream>>>(found, expected, sums);
    LAUNCH_CHECK("distance");
    exec->ops->download(exec, host, sums, sizeof host);
    exec->ops->release(exec, sums);
    double relative = sqrt(host[0] / host[1]);
    if (!(relative <= TOLERANCE)) printf("  WRONG: %s has a relative error of %.3g\n", name, relative);
    return relative <= TOLERANCE;
}

// True if the results for sequence b match those of the FP32 kernels for the same inputs, which are BF16 values.
static bool check_sequence(Bench *bench, const Attention *a, int b) {
    Attention one = {};
    one.shape = a->shape;
    one.shape.B = 1;
    int64_t T = a->shape.T, first = b * T;
    Tensor qkv = tensor_rows(a->qkv, first, T), o = tensor_rows(a->o, first, T), d_o = tensor_rows(a->d_o, first, T);
    Tensor lse = tensor_rows(a->lse, (int64_t)b * a->shape.heads, a->shape.heads);
    Tensor dqkv = tensor_rows(a->dqkv, first, T);
    one.qkv = widened(bench, qkv), one.d_o = widened(bench, d_o);
    one.o = bench_tensor(bench, T, o.cols, FMT_FP32, 1.0f);
    one.lse = bench_tensor(bench, a->shape.heads, T, FMT_FP32, 1.0f);
    one.dqkv = bench_tensor(bench, T, qkv.cols, FMT_FP32, 1.0f);
    run_forward(bench, &one);
    run_backward(bench, &one);
    bool right = same(bench, "o", o, one.o) && same(bench, "lse", lse, one.lse);
    static const char *const names[] = {"dq", "dk", "dv"};
    for (int i = 0; i < 3; i++)
        right = same(bench, names[i], part(a->shape, dqkv, i), part(a->shape, one.dqkv, i)) && right;
    attention_release(bench, &one);
    return right;
}

// True if a second run of attention backward gives the same gradient bits as the first.
static bool check_repeats(Bench *bench, Attention *a) {
    Exec *exec = &bench->exec;
    size_t bytes = (size_t)tensor_elements(a->dqkv) * format_bytes(FMT_BF16);
    void *first = xmalloc(bytes), *second = xmalloc(bytes);
    exec->ops->download(exec, first, a->dqkv.data, bytes);
    exec->ops->zero(exec, a->dqkv.data, bytes);
    run_backward(bench, a);
    exec->ops->download(exec, second, a->dqkv.data, bytes);
    bool equal = memcmp(first, second, bytes) == 0;
    if (!equal) printf("  WRONG: two backward runs differ\n");
    free(first);
    free(second);
    return equal;
}

// Times attention forward and backward of one shape. BF16 results are also checked; returns true if they are right.
// limit: the FLOP/s of a large matmul in `format`.
static bool bench_shape(Bench *bench, const char *name, AttentionShape s, Format format, double limit) {
    Attention a = attention_make(bench, s, format);
    double forward = bench_median_ms(bench, run_forward, &a), backward = bench_median_ms(bench, run_backward, &a);
    // Attention has two matmuls forward and five backward. With a causal mask, each computes half of the scores.
    double flops = (s.bidirectional ? 4.0 : 2.0) * (double)s.B * s.heads * (double)s.T * s.T * s.head_dim;
    double rate_forward = flops / forward * 1e3, rate_backward = 2.5 * flops / backward * 1e3;
    printf("%-12s B %2d T %4d heads %2d/%2d of %3d  forward %7.3f ms %4.0f TFLOP/s %4.1f %%  backward %7.3f ms %4.0f "
           "TFLOP/s %4.1f %%",
           name, s.B, s.T, s.heads, s.kv_heads, s.head_dim, forward, rate_forward * 1e-12, 100 * rate_forward / limit,
           backward, rate_backward * 1e-12, 100 * rate_backward / limit);
    bool right = true;
    if (format == FMT_BF16) {
        const AttentionSlice slice = attention_slice(s, ATTENTION_WORKSPACE_LIMIT);
        right = check_sequence(bench, &a, 0);
        right = check_sequence(bench, &a, s.B - 1) && right;
        right = check_repeats(bench, &a) && right;
        printf("  slices of %d sequences x %d KV heads, workspace %zu MB planned, %zu MB used  %s", slice.sequences,
               slice.kv_heads, attention_workspace_bytes(s) / 1000000,
               attention_workspace_used(cuda_backend(&bench->exec)->attention) / 1000000, right ? "ok" : "WRONG");
    }
    printf("\n");
    attention_release(bench, &a);
    return right;
}

int main(int argc, char **argv) {
    Bench bench = {};
    bench_flags(&bench, "[--quick]", argc, argv);
    const NamedShape shapes[] = {
        {"GPT-2 124M", {64, 1024, 12, 12, 64, false}},  {"GPT-2 1558M", {16, 1024, 25, 25, 64, false}},
        {"odd batch", {11, 1024, 12, 12, 64, false}},   {"narrow", {4, 256, 2, 2, 32, false}},
        {"Llama 7B", {4, 2048, 32, 32, 128, false}},    {"grouped", {2, 4096, 32, 8, 128, false}},
        {"grouped", {4, 2048, 32, 8, 128, false}},      {"grouped", {64, 1024, 12, 4, 64, false}},
        {"grouped, wide", {4, 1024, 8, 2, 80, false}},  {"CLIP-L 336", {64, 577, 16, 16, 64, true}},
        {"SigLIP-400m", {64, 729, 16, 16, 72, true}},   {"SigLIP-B 224", {64, 196, 12, 12, 64, true}},
        {"SigLIP-B 512", {64, 1024, 12, 12, 64, true}}, {"one head of 80", {64, 576, 16, 16, 80, true}},
    };
    bench_open_attention(&bench, shapes, sizeof shapes / sizeof shapes[0]);
    double limit = bench_matmul_ceiling(&bench, FMT_BF16);
    int wrong = 0;
    for (const NamedShape &s : shapes) wrong += !bench_shape(&bench, s.name, s.shape, FMT_BF16, limit);
    bench_shape(&bench, "FP32", {4, 1024, 12, 12, 64, false}, FMT_FP32, bench_matmul_ceiling(&bench, FMT_FP32));
    bench_close(&bench);
    printf("\n%s\n", wrong ? "WRONG results, see above" : "all results are right and repeat bit for bit");
    return wrong ? EXIT_USER : EXIT_DONE;
}
