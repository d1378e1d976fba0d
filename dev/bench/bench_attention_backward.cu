// Compares this project's attention kernels with the FP32 kernels, on shapes that isolate errors: the Hopper kernels
// (coat/cuda/attention/attention_hopper.h; skipped on other GPUs) and the portable kernels (attention_portable.h). Then
// times both and cuDNN (with a deterministic backward), and both with documents of 300 tokens. Prints TFLOP/s, and
// percentages of the rates of a large BF16 matmul and of cuDNN in the same run. TFLOP/s count the causal half of entire
// sequences, even with documents.
//
// Usage: build/bench_attention_backward_gpu [--quick] [--check]
//   --quick: fewer repetitions
//   --check: no timing
//
// For each of the first few wrong gradients, prints the first wrong element and maps of the errors in that head,
// relative to the gradient's size: tiles of 64 tokens (one warpgroup) by groups of 8 columns, then the 64 rows of the
// first wrong tile.
#include "bench_attention.h"
#include "coat/cuda/attention/attention_hopper.h"
#include "coat/cuda/attention/attention_portable.h"

#define TOLERANCE 0.01     // maximum relative root mean square error of the BF16 results compared with the FP32 kernels
#define ROW_TOLERANCE 0.10 // maximum error of one element, relative to its row's RMS plus 5 % of the gradient's RMS
#define PART 64            // number of tokens in a line of the error map
#define MAXIMUM_ROWS 16    // number of consecutive tokens for which the Hopper kernels store one amax
#define LSE_TOLERANCE 1e-4 // maximum absolute error of the log-sum-exp, because the order of FP32 sums differs
#define POISON 0xff        // fill byte for outputs: 0xffff is NaN in BF16
#define REPEATS 5          // number of repeated backward runs whose results must match the first run's bit for bit

static void run_ours(Bench *bench, void *context) {
    Attention *a = (Attention *)context;
    AttentionShape s = a->shape;
    const Tensor q = part(s, a->qkv, 0), k = part(s, a->qkv, 1), v = part(s, a->qkv, 2);
    const Tensor dq = part(s, a->dqkv, 0), dk = part(s, a->dqkv, 1), dv = part(s, a->dqkv, 2);
    if (a->portable)
        attention_portable_backward(&bench->exec, dq, dk, dv, a->d_o, a->o, a->lse, q, k, v, a->positions, s);
    else if (!attention_backward_hopper(&bench->exec, dq, dk, dv, a->d_o, a->o, a->lse, q, k, v, a->positions, Tensor{},
                                        s))
        fatal(EXIT_DEVICE, "the kernel does not support B %d T %d heads %d/%d of %d on this GPU", s.B, s.T, s.heads,
              s.kv_heads, s.head_dim);
}

static void run_cudnn(Bench *bench, void *context) {
    Attention *a = (Attention *)context;
    AttentionShape s = a->shape;
    attention_backward(cuda_backend(&bench->exec)->attention, part(s, a->dqkv, 0), part(s, a->dqkv, 1),
                       part(s, a->dqkv, 2), a->d_o, a->o, a->lse, part(s, a->qkv, 0), part(s, a->qkv, 1),
                       part(s, a->qkv, 2), s, bench->exec.workspace, bench->exec.workspace_bytes);
}

static void run_our_forward(Bench *bench, void *context) {
    Attention *a = (Attention *)context;
    AttentionShape s = a->shape;
    const Tensor q = part(s, a->qkv, 0), k = part(s, a->qkv, 1), v = part(s, a->qkv, 2);
    if (a->portable)
        attention_portable_forward(&bench->exec, a->o, a->lse, q, k, v, a->positions, s);
    else if (!attention_forward_hopper(&bench->exec, a->o, a->lse, q, k, v, a->positions, s))
        fatal(EXIT_DEVICE, "the kernel does not support B %d T %d heads %d/%d of %d on this GPU", s.B, s.T, s.heads,
              s.kv_heads, s.head_dim);
}

static void run_cudnn_forward(Bench *bench, void *context) {
    Attention *a = (Attention *)context;
    AttentionShape s = a->shape;
    attention_forward(cuda_backend(&bench->exec)->attention, a->o, a->lse, part(s, a->qkv, 0), part(s, a->qkv, 1),
                      part(s, a->qkv, 2), s, bench->exec.workspace, bench->exec.workspace_bytes);
}

// Computes attention's o and lse with the FP32 reference kernels, and rounds o to BF16.
static void forward(Bench *bench, Attention *a) {
    Tensor qkv = widened(bench, a->qkv), o = widened(bench, a->o);
    AttentionShape s = a->shape;
    attention_plain_forward(&bench->exec, o, a->lse, part(s, qkv, 0), part(s, qkv, 1), part(s, qkv, 2), a->positions,
                            s);
    convert(bench, a->o, o);
    bench_release(bench, qkv);
    bench_release(bench, o);
}

// Computes the packed QKV gradient with the FP32 reference kernels from the same BF16 operands as the tested kernels,
// and returns it.
static Tensor reference(Bench *bench, const Attention *a) {
    AttentionShape s = a->shape;
    Tensor qkv = widened(bench, a->qkv), o = widened(bench, a->o), d_o = widened(bench, a->d_o);
    Tensor dqkv = bench_tensor(bench, a->qkv.rows, a->qkv.cols, FMT_FP32, 1.0f);
    attention_plain_backward(&bench->exec, part(s, dqkv, 0), part(s, dqkv, 1), part(s, dqkv, 2), d_o, o, a->lse,
                             part(s, qkv, 0), part(s, qkv, 1), part(s, qkv, 2), a->positions, s);
    bench_release(bench, qkv);
    bench_release(bench, o);
    bench_release(bench, d_o);
    return dqkv;
}

// A packed QKV gradient to check, and the gradient of the FP32 kernels. Both have `stride` elements per token.
typedef struct {
    AttentionShape shape;
    const uint16_t *found;
    const float *expected;
    int64_t stride;
} Pair;

// Returns the index of channel d of a head of dq, dk or dv (`which` 0, 1 or 2) at token t of sequence b.
static int64_t at(const Pair *p, int which, int b, int t, int head, int d) {
    const int64_t row = (int64_t)b * p->shape.T + t;
    return row * p->stride + ((int64_t)first_head(p->shape, which) + head) * p->shape.head_dim + d;
}

// Sums the squared errors and the squared expected values over a rectangle of one head's gradient.
static void squares(const Pair *p, int which, int b, int head, int t0, int t1, int d0, int d1, double *error,
                    double *size) {
    for (int t = t0; t < t1 && t < p->shape.T; t++)
        for (int d = d0; d < d1; d++) {
            int64_t i = at(p, which, b, t, head, d);
            double e = p->expected[i], f = (double)bf16_decode(p->found[i]) - e;
            *error += f == f ? f * f : 1e30;
            *size += e * e;
        }
}

static void print_map(const Pair *p, int which, int b, int head, int wrong_t, double deviation) {
    printf("    RMS error by tokens (down) and groups of 8 columns (across), relative to the gradient's RMS:\n");
    for (int t = 0; t < p->shape.T && t < 24 * PART; t += PART) {
        printf("    t %5d", t);
        for (int d = 0; d < p->shape.head_dim; d += 8) {
            double error = 0, size = 0;
            squares(p, which, b, head, t, t + PART, d, d + 8, &error, &size);
            printf(" %8.2g", sqrt(error / (8 * PART)) / deviation);
        }
        printf("\n");
    }
    printf("    RMS error by token from %d, relative to the gradient's RMS:", wrong_t / PART * PART);
    for (int t = wrong_t / PART * PART, i = 0; i < PART && t < p->shape.T; i++, t++) {
        double error = 0, size = 0;
        squares(p, which, b, head, t, t + 1, 0, p->shape.head_dim, &error, &size);
        printf("%s %.1g", i % 16 ? "" : "\n     ", sqrt(error / p->shape.head_dim) / deviation);
    }
    printf("\n    columns of token %d, found and expected:", wrong_t);
    for (int d = 0; d < p->shape.head_dim; d++) {
        int64_t i = at(p, which, b, wrong_t, head, d);
        printf("%s %.3g/%.3g", d % 8 ? "" : "\n     ", (double)bf16_decode(p->found[i]), (double)p->expected[i]);
    }
    printf("\n");
}

// Compares one of dq, dk and dv with the reference. If an element's error is too large, prints a map of the errors.
static bool compare(const Pair *p, int which) {
    static const char *const names[] = {"dq", "dk", "dv"};
    AttentionShape s = p->shape;
    const int heads = heads_of(s, which);
    double error = 0, size = 0, count = (double)s.B * s.T * heads * s.head_dim;
    for (int b = 0; b < s.B; b++)
        for (int head = 0; head < heads; head++) squares(p, which, b, head, 0, s.T, 0, s.head_dim, &error, &size);
    double deviation = sqrt(size / count), worst = 0;
    int64_t wrong = 0;
    int first[4] = {-1, 0, 0, 0};
    for (int b = 0; b < s.B; b++)
        for (int head = 0; head < heads; head++)
            for (int t = 0; t < s.T; t++) {
                double row_error = 0, row_size = 0;
                squares(p, which, b, head, t, t + 1, 0, s.head_dim, &row_error, &row_size);
                double limit = ROW_TOLERANCE * (sqrt(row_size / s.head_dim) + 0.05 * deviation);
                for (int d = 0; d < s.head_dim; d++) {
                    int64_t i = at(p, which, b, t, head, d);
                    double off = fabs((double)bf16_decode(p->found[i]) - p->expected[i]);
                    if (off > worst) worst = off;
                    if (off <= limit) continue;
                    if (wrong++ == 0) first[0] = b, first[1] = head, first[2] = t, first[3] = d;
                }
            }
    double relative = sqrt(error / size);
    printf("  %s: relative error %.2e, largest error %.2e of the RMS, %lld of %.0f elements wrong%s\n", names[which],
           relative, worst / deviation, (long long)wrong, count, wrong || !(relative < TOLERANCE) ? "  WRONG" : "");
    if (wrong == 0) return relative < TOLERANCE;
    int64_t i = at(p, which, first[0], first[2], first[1], first[3]);
    printf("    first: sequence %d head %d token %d column %d: found %g (bits %04x), expected %g\n", first[0], first[1],
           first[2], first[3], (double)bf16_decode(p->found[i]), p->found[i], (double)p->expected[i]);
    static int maps = 6; // number of error maps that compare() may still print
    if (maps-- > 0) print_map(p, which, first[0], first[1], first[2], deviation);
    return false;
}

// True if, in every group of 16 tokens, the first token's entry of `maxima` is the amax of the group's gradient and the
// other entries are 0.
static bool compare_maxima(const Pair *p, const float *maxima) {
    const int width = (p->shape.heads + 2 * p->shape.kv_heads) * p->shape.head_dim;
    for (int b = 0; b < p->shape.B; b++) {
        double largest = 0;
        for (int t = p->shape.T - 1; t >= 0; t--) {
            const int64_t row = (int64_t)b * p->shape.T + t;
            for (int column = 0; column < width; column++)
                largest = fmax(largest, fabs((double)bf16_decode(p->found[row * p->stride + column])));
            const bool first = t % MAXIMUM_ROWS == 0;
            if ((double)maxima[row] != (first ? largest : 0)) {
                printf("  WRONG amax: sequence %d token %d: found %g, expected %g\n", b, t, (double)maxima[row],
                       first ? largest : 0);
                return false;
            }
            if (first) largest = 0;
        }
    }
    return true;
}

static Attention open_shape(Bench *bench, AttentionShape s) {
    Attention a = attention_make(bench, s, FMT_BF16);
    a.maxima = bench_tensor(bench, a.qkv.rows, 1, FMT_FP32, 1.0f);
    a.dqkv.amax = (uint32_t *)a.maxima.data;
    return a;
}

// Returns each token's position in its document. The documents' lengths cycle through `lengths`; the end of a sequence
// also ends a document.
static Tensor documents_of(Bench *bench, AttentionShape s, const int lengths[], int count) {
    const int64_t rows = (int64_t)s.B * s.T;
    const Tensor positions = tensor_of(bench_allocate(bench, (size_t)rows * sizeof(int32_t)), rows, 1, FMT_I32);
    int32_t *host = (int32_t *)xmalloc((size_t)positions.rows * sizeof *host);
    for (int64_t row = 0, document = 0, position = 0; row < positions.rows; row++) {
        if (position == lengths[document % count]) position = 0, document++;
        if (row % s.T == 0) position = 0;
        host[row] = (int32_t)position++;
    }
    bench->exec.ops->upload(&bench->exec, positions.data, host, (size_t)positions.rows * sizeof *host);
    free(host);
    return positions;
}

// Fills the outputs with NaN, runs our attention backward, and downloads the gradient and its amax.
static void run_poisoned(Bench *bench, Attention *a, uint16_t *found, float *maxima) {
    Exec *exec = &bench->exec;
    const cudaStream_t stream = cuda_backend(exec)->stream;
    const size_t bytes = (size_t)tensor_elements(a->dqkv) * sizeof *found;
    const size_t maxima_bytes = (size_t)a->maxima.rows * sizeof *maxima;
    CUDA_CHECK(cudaMemsetAsync(a->dqkv.data, POISON, bytes, stream), "poisoning the gradient");
    CUDA_CHECK(cudaMemsetAsync(a->maxima.data, POISON, maxima_bytes, stream), "poisoning the amax");
    run_ours(bench, a);
    exec->ops->download(exec, found, a->dqkv.data, bytes);
    exec->ops->download(exec, maxima, a->maxima.data, maxima_bytes);
}

// Fills the outputs with NaN, runs our attention forward, and downloads o and lse.
static void run_poisoned_forward(Bench *bench, Attention *a, uint16_t *o, float *lse) {
    Exec *exec = &bench->exec;
    const cudaStream_t stream = cuda_backend(exec)->stream;
    const size_t bytes = (size_t)tensor_elements(a->o) * sizeof *o,
                 lse_bytes = (size_t)tensor_elements(a->lse) * sizeof *lse;
    CUDA_CHECK(cudaMemsetAsync(a->o.data, POISON, bytes, stream), "poisoning o");
    CUDA_CHECK(cudaMemsetAsync(a->lse.data, POISON, lse_bytes, stream), "poisoning lse");
    run_our_forward(bench, a);
    exec->ops->download(exec, o, a->o.data, bytes);
    exec->ops->download(exec, lse, a->lse.data, lse_bytes);
}

// Compares o and lse of our attention forward with those of the FP32 kernels. On return, a->o and a->lse contain the
// results of the FP32 kernels.
static bool check_forward(Bench *bench, Attention *a) {
    const size_t count = (size_t)tensor_elements(a->o), rows = (size_t)tensor_elements(a->lse);
    uint16_t *expected = (uint16_t *)xmalloc(3 * count * sizeof *expected), *found = expected + count,
             *again = found + count;
    float *lse = (float *)xmalloc(3 * rows * sizeof *lse), *found_lse = lse + rows, *lse_again = found_lse + rows;
    Exec *exec = &bench->exec;
    forward(bench, a);
    exec->ops->download(exec, expected, a->o.data, count * sizeof *expected);
    exec->ops->download(exec, lse, a->lse.data, rows * sizeof *lse);
    run_poisoned_forward(bench, a, found, found_lse);
    int other = 0;
    for (int i = 0; i < REPEATS; i++) {
        run_poisoned_forward(bench, a, again, lse_again);
        other +=
            memcmp(found, again, count * sizeof *found) != 0 || memcmp(found_lse, lse_again, rows * sizeof *lse) != 0;
    }
    const int width = a->shape.head_dim;
    double worst = 0, worst_lse = 0;
    for (size_t head = 0; head < count; head += (size_t)width) {
        double error = 0, size = 0;
        for (size_t i = head; i < head + (size_t)width; i++) {
            const double e = (double)bf16_decode(expected[i]), off = (double)bf16_decode(found[i]) - e;
            error += off == off ? off * off : 1e30;
            size += e * e;
        }
        worst = fmax(worst, sqrt(error / size));
    }
    for (size_t i = 0; i < rows; i++) {
        const double off = fabs((double)found_lse[i] - (double)lse[i]);
        worst_lse = fmax(worst_lse, off == off ? off : 1e30);
    }
    const bool right = worst < TOLERANCE && worst_lse < LSE_TOLERANCE && other == 0;
    printf(
        "  forward: largest errors %.2e of a row (relative), %.2e of lse (absolute); bits differ in %d of %d runs%s\n",
        worst, worst_lse, other, REPEATS, right ? "" : "  WRONG");
    exec->ops->upload(exec, a->o.data, expected, count * sizeof *expected);
    exec->ops->upload(exec, a->lse.data, lse, rows * sizeof *lse);
    free(expected);
    free(lse);
    return right;
}

static bool check_shape(Bench *bench, AttentionShape s, bool masked, bool portable) {
    static const int lengths[] = {70, 59, 1, 62, 64, 700, 68, 63, 65, 127, 128, 129, 300};
    printf("check %s kernels, B %d T %d heads %d/%d of %d%s%s\n", portable ? "portable" : "Hopper", s.B, s.T, s.heads,
           s.kv_heads, s.head_dim, masked ? ", documents masked" : "", s.bidirectional ? ", bidirectional" : "");
    fflush(stdout);
    Attention a = open_shape(bench, s);
    a.portable = portable;
    Exec *exec = &bench->exec;
    if (masked) a.positions = documents_of(bench, s, lengths, sizeof lengths / sizeof *lengths);
    const bool forward_right = check_forward(bench, &a);
    Tensor expected_tensor = reference(bench, &a);
    size_t elements = (size_t)tensor_elements(a.dqkv), bytes = elements * sizeof(uint16_t);
    float *expected = (float *)xmalloc(elements * sizeof(float));
    uint16_t *found = (uint16_t *)xmalloc(bytes), *again = (uint16_t *)xmalloc(bytes);
    float *maxima = (float *)xmalloc((size_t)a.maxima.rows * sizeof *maxima);
    exec->ops->download(exec, expected, expected_tensor.data, elements * sizeof(float));
    run_poisoned(bench, &a, found, maxima);
    Pair pair = {s, found, expected, a.dqkv.stride};
    bool right = forward_right;
    for (int which = 0; which < 3; which++) right = compare(&pair, which) && right;
    if (!portable) right = compare_maxima(&pair, maxima) && right;
    for (int i = 0; i < REPEATS; i++) {
        run_poisoned(bench, &a, again, maxima);
        if (memcmp(found, again, bytes) == 0) continue;
        size_t first = 0, differ = 0;
        for (size_t j = elements; j-- > 0;)
            if (found[j] != again[j]) first = j, differ++;
        printf("  WRONG: run %d differs from the first in %zu elements, first in row %zu column %zu\n", i + 2, differ,
               first / (size_t)a.dqkv.cols, first % (size_t)a.dqkv.cols);
        right = false;
        break;
    }
    free(expected);
    free(found);
    free(again);
    free(maxima);
    bench_release(bench, expected_tensor);
    attention_release(bench, &a);
    return right;
}

enum { FORWARD = 2, BACKWARD = 5 }; // attention's matmuls per pass; each computes the causal half of the scores

// Prints a time and its rate. limit: the FLOP/s of a large BF16 matmul. cudnn: cuDNN's time for the same work, 0 if
// unknown.
static void print_time(const char *name, double ms, int matmuls, AttentionShape s, double limit, double cudnn) {
    const double rate = matmuls * (double)s.B * s.heads * (double)s.T * s.T * s.head_dim / ms * 1e3;
    printf("  %-30s %8.3f ms %5.0f TFLOP/s %5.1f %%", name, ms, rate * 1e-12, 100 * rate / limit);
    if (cudnn > 0) printf("  %4.0f %% of cuDNN", 100 * cudnn / ms);
    printf("\n");
}

static bool has_hopper_kernels(Bench *bench, AttentionShape s) {
    return attention_hopper_supported(s, cuda_backend(&bench->exec)->hopper);
}

// Times our attention and cuDNN's for one shape. limit: the FLOP/s of a large BF16 matmul.
static void time_shape(Bench *bench, const char *name, AttentionShape s, double limit) {
    Attention a = open_shape(bench, s);
    Exec *exec = &bench->exec;
    const int length = 300;
    const Tensor documents = documents_of(bench, s, &length, 1);
    exec->ops->attention_forward(exec, a.o, a.lse, part(s, a.qkv, 0), part(s, a.qkv, 1), part(s, a.qkv, 2), Tensor{},
                                 s);
    const double forward_ms = bench_median_ms(bench, run_cudnn_forward, &a);
    const double backward_ms = bench_median_ms(bench, run_cudnn, &a);
    printf("%s, B %d T %d heads %d/%d of %d: workspace %.1f MB\n", name, s.B, s.T, s.heads, s.kv_heads, s.head_dim,
           (double)attention_backward_bytes(s) / 1e6);
    print_time("forward, cuDNN", forward_ms, FORWARD, s, limit, 0);
    print_time("backward, cuDNN", backward_ms, BACKWARD, s, limit, 0);
    for (int portable = !has_hopper_kernels(bench, s); portable < 2; portable++) {
        a.portable = portable;
        for (int masked = 0; masked < 2; masked++) {
            char text[64];
            const char *kernels = portable ? "portable" : "Hopper", *how = masked ? ", documents" : "";
            a.positions = masked ? documents : Tensor{};
            snprintf(text, sizeof text, "forward, %s%s", kernels, how);
            print_time(text, bench_median_ms(bench, run_our_forward, &a), FORWARD, s, limit, masked ? 0 : forward_ms);
            snprintf(text, sizeof text, "backward, %s%s", kernels, how);
            print_time(text, bench_median_ms(bench, run_ours, &a), BACKWARD, s, limit, masked ? 0 : backward_ms);
        }
    }
    a.positions = documents;
    attention_release(bench, &a);
}

// Checks attention on shapes that isolate errors: one complete or partial tile, many complete tiles, a partial last
// tile of different lengths, many work units per thread block, and grouped-query attention. The first shapes are also
// checked without a causal mask, which the portable kernels support. Returns the number of wrong results.
static int check_shapes(Bench *bench, int head_dim) {
    const AttentionShape checks[] = {
        {1, 64, 1, 1, head_dim, false},     {1, 128, 1, 1, head_dim, false},    {1, 256, 2, 2, head_dim, false},
        {3, 100, 5, 5, head_dim, false},    {1, 1000, 1, 1, head_dim, false},   {3, 1000, 12, 12, head_dim, false},
        {5, 1024, 12, 12, head_dim, false}, {3, 1024, 25, 25, head_dim, false}, {1, 2048, 6, 6, head_dim, false},
        {2, 4097, 3, 3, head_dim, false},   {7, 33, 3, 3, head_dim, false},     {1, 1090, 31, 31, head_dim, false},
        {1, 64, 2, 1, head_dim, false},     {1, 128, 4, 2, head_dim, false},    {3, 100, 6, 2, head_dim, false},
        {2, 1000, 12, 4, head_dim, false},  {5, 33, 28, 4, head_dim, false},    {1, 1090, 32, 8, head_dim, false},
        {1, 4097, 6, 1, head_dim, false},   {9, 1024, 16, 8, head_dim, false},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        AttentionShape s = checks[i];
        for (int portable = !has_hopper_kernels(bench, s); portable < 2; portable++)
            wrong += !check_shape(bench, s, false, portable) + !check_shape(bench, s, true, portable);
        s.bidirectional = true;
        if (i < 6) wrong += !check_shape(bench, s, false, true);
    }
    return wrong;
}

int main(int argc, char **argv) {
    Bench bench = {};
    bench_flags(&bench, "[--quick] [--check]", argc, argv);
    const NamedShape times[] = {
        {"GPT-2 124M", {64, 1024, 12, 12, 64, false}},
        {"GPT-2 1558M", {16, 1024, 25, 25, 64, false}},
        {"GPT-2 350M", {32, 1024, 16, 16, 64, false}},
        {"longer", {16, 4096, 12, 12, 64, false}},
        {"2048 channels, shorter", {16, 1024, 16, 16, 128, false}},
        {"2048 channels", {4, 2048, 16, 16, 128, false}},
        {"2048 channels, longer", {4, 4096, 16, 16, 128, false}},
        {"4096 channels", {4, 2048, 32, 32, 128, false}},
        {"4096 channels, longer", {4, 4096, 32, 32, 128, false}},
        {"grouped", {64, 1024, 12, 4, 64, false}},
        {"grouped, 4096 channels", {4, 2048, 32, 8, 128, false}},
        {"grouped, 28 heads", {4, 2048, 28, 4, 128, false}},
    };
    const size_t time_count = sizeof times / sizeof times[0];
    bench_open_attention(&bench, times, time_count);
    int wrong = 0;
    for (int head_dim : {64, 72, 80, 96, 128}) wrong += check_shapes(&bench, head_dim);
    const double limit = bench.check ? 0.0 : bench_matmul_ceiling(&bench, FMT_BF16);
    for (size_t i = 0; i < time_count && !bench.check; i++) time_shape(&bench, times[i].name, times[i].shape, limit);
    bench_close(&bench);
    printf("\n%s\n", wrong ? "WRONG results, see above" : "all results are right and repeat bit for bit");
    return wrong ? EXIT_USER : EXIT_DONE;
}
