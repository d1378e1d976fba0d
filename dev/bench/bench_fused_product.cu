// Does an FP8 product with activation and quantisation in its epilogue beat the library's product followed by a pass?
// GPT-2 1558M's fc, forward: y (16384, 6400) = x (16384, 1600) w^T in E4M3 with a scale per token of x, bias, gelu, h
// kept in E4M3, g in E4M3 with a power of two per token. See below for the ways; every result is checked.
//
//   bench_fused_product [--quick]
//
// What is expected, at 1,226 TFLOP/s of the library's on this shape and a copy of 2.9 to 3.0 TB/s (H100), 105 M
// elements:
//
//   the product           335.5 GFLOP               0.274 ms; reads 36 MB; writes BF16 210 MB, h's codes 118, g's 105
//   A  the program's      BF16, and a pass of 2 + 1.125 + 1 bytes        433 MB, 0.147 ms (0.122 to 0.158 measured)
//   B  codes from cuBLASLt  E4M3 with a scale known ahead, and a pass of 1 + 1       210 MB, 0.071 ms
//   C  h from the epilogue  codes per group of 16, and a pass of 1.125 + 1           223 MB, 0.076 ms
//   D  and g                with scales of rows known ahead (what a bound would give), no pass at all
//
// So B and C save about 0.07 ms of 0.42 where their product is as fast as the library's, D 0.147; 48 such layers are
// 3.4 and 7 ms of a micro-batch's 235. Every percent that the product is slower costs 0.003 ms.
//
// Our product, per multiprocessor and stage of 128 columns: 64 x 256 x 128 are 512 clocks of the tensor cores; 40 KB
// written to shared memory and 4 * 10 KB read by the products, 640 clocks at 128 bytes each: so 80 % of the tensor
// cores' peak at most, 1,583 TFLOP/s at 1.83 GHz. From the L2 cache 16 KB with clusters of 4, 24 with clusters of 2:
// 26 and 38 bytes per clock of 640. Both warpgroups together on 128 x 256: 128 KB in 1,024 clocks, all that shared
// memory can, but then the epilogue is hidden as far as the ring of 4 stages lets one warpgroup run ahead. In turns
// the epilogue has the time of the other warpgroup's tile, 12.5 stages, 8,000 clocks: per warp about 2,000
// instructions keep h, with gelu 3,800; of clusters 1,600 tiles are 50 each for 32 clusters of 4.
#include "bench_ceiling.h"
#include "bench_fused_kernel.h"
#include "bench_fused_passes.h"

#include <cublasLt.h>

#define TOKENS 16384
#define CHANNELS 1600
#define HIDDEN 6400
#define CODES_FACTOR 2.0f // B: y's codes are of y times this, |y| being below 224

typedef struct {
    Tensor x, y, bias, h, g; // the program's operands
    Weight w;
    float *row_scales, *g_scales;
    // ours
    bf16 *y_own;
    uint8_t *h_own, *g_own;
    bf16 *h_scales;
    uint32_t *maxima;
    float *g_scales_own, *codes_factor;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t layout_w, layout_x, layout_c, layout_d;
    cublasLtMatmulAlgo_t algorithm;
    Difference *difference;
    const char *failed; // the first result that was wrong
} Fused;

static uint8_t *codes_of(Tensor t) {
    return (uint8_t *)t.data;
}

// --- A: the program's operations ----------------------------------------------------------------------------
static void run_product(Bench *bench, void *context) {
    Fused *f = (Fused *)context;
    bench->exec.ops->linear_forward(&bench->exec, f->y, f->x, f->w, Tensor{});
}

static void run_activation(Bench *bench, void *context) {
    Fused *f = (Fused *)context;
    bench->exec.ops->activation_forward(&bench->exec, f->g, f->h, f->y, f->bias, true);
}

static Tensor rows_of(Tensor t, int64_t first, int64_t rows) {
    t.data = (char *)t.data + (size_t)(first * t.stride) * format_bytes(t.format);
    t.rows = rows;
    if (t.granularity == SCALE_ROW) t.scale = (float *)t.scale + first;
    if (t.granularity == SCALE_GROUP) t.scale = (bf16 *)t.scale + first * (t.cols / t.group);
    return t;
}

// Part of the tokens after part, so that a pass finds its y in the L2 cache.
template <int PARTS> static void run_parts(Bench *bench, void *context) {
    Fused *f = (Fused *)context;
    Exec *exec = &bench->exec;
    const int64_t rows = TOKENS / PARTS;
    for (int64_t first = 0; first < TOKENS; first += rows) {
        const Tensor y = rows_of(f->y, first, rows);
        exec->ops->linear_forward(exec, y, rows_of(f->x, first, rows), f->w, Tensor{});
        exec->ops->activation_forward(exec, rows_of(f->g, first, rows), rows_of(f->h, first, rows), y, f->bias, true);
    }
}

// --- B: cuBLASLt's product in codes -------------------------------------------------------------------------
static void library_check(cublasStatus_t status, const char *doing) {
    if (status != CUBLAS_STATUS_SUCCESS) fatal(EXIT_DEVICE, "cuBLASLt, %s: %s", doing, cublasLtGetStatusString(status));
}

static cublasStatus_t codes_product(Bench *bench, Fused *f) {
    const float one = 1.0f, zero = 0.0f;
    return cublasLtMatmul(f->handle, f->operation, &one, f->w.codes.data, f->layout_w, f->x.data, f->layout_x, &zero,
                          f->y_own, f->layout_c, f->h_own, f->layout_d, &f->algorithm, bench->exec.workspace,
                          MATMUL_WORKSPACE_BYTES, cuda_backend(&bench->exec)->stream);
}

static void run_codes_product(Bench *bench, void *context) {
    library_check(codes_product(bench, (Fused *)context), "a product in codes");
}

static void codes_set(Fused *f, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
    library_check(cublasLtMatmulDescSetAttribute(f->operation, attribute, value, bytes), "describing a product");
}

// Describes it, and takes the fastest of the library's candidates; false where it has none.
static bool codes_product_open(Bench *bench, Fused *f) {
    enum { CANDIDATES = 16 };
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const int8_t fast = 1;
    const void *w_scale = f->w.codes.scale;
    const size_t workspace = MATMUL_WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES] = {};
    int count = 0;
    library_check(cublasLtCreate(&f->handle), "starting");
    library_check(cublasLtMatmulDescCreate(&f->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
    codes_set(f, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    codes_set(f, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    codes_set(f, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w_scale, sizeof w_scale);
    codes_set(f, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, &f->codes_factor, sizeof f->codes_factor);
    library_check(cublasLtMatrixLayoutCreate(&f->layout_w, CUDA_R_8F_E4M3, CHANNELS, HIDDEN, CHANNELS), "describing w");
    library_check(cublasLtMatrixLayoutCreate(&f->layout_x, CUDA_R_8F_E4M3, CHANNELS, TOKENS, CHANNELS), "describing x");
    library_check(cublasLtMatrixLayoutCreate(&f->layout_c, CUDA_R_16BF, HIDDEN, TOKENS, HIDDEN), "describing c");
    library_check(cublasLtMatrixLayoutCreate(&f->layout_d, CUDA_R_8F_E4M3, HIDDEN, TOKENS, HIDDEN), "describing y");
    library_check(cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");
    library_check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                       sizeof workspace),
                  "choosing an algorithm");
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(f->handle, f->operation, f->layout_w, f->layout_x, f->layout_c, f->layout_d,
                                       preference, CANDIDATES, found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
        printf("B: cuBLASLt has no product in codes here (%s)\n", cublasLtGetStatusString(status));
        return false;
    }
    int best = -1;
    double least = INFINITY;
    for (int i = 0; i < count; i++) {
        f->algorithm = found[i].algo;
        if (codes_product(bench, f) != CUBLAS_STATUS_SUCCESS) continue;
        const double ms = bench_median_ms(bench, run_codes_product, f);
        if (ms < least) least = ms, best = i;
    }
    if (best < 0) return false;
    f->algorithm = found[best].algo;
    printf("B: candidate %d of %d\n", best, count);
    return true;
}

static TokenHidden token_hidden(const Fused *f) {
    return {f->h_own, f->row_scales, (const bf16 *)f->bias.data, HIDDEN, 1.0f / CODES_FACTOR};
}

template <int ROWS> static void run_codes_pass(Bench *bench, void *context) {
    Fused *f = (Fused *)context;
    pass_launch<TokenHidden, FINDS_IT, ROWS>(cuda_backend(&bench->exec), token_hidden(f), f->g_own, f->g_scales_own,
                                             NULL, 0, TOKENS, HIDDEN);
}

// --- C: our product -----------------------------------------------------------------------------------------
static GroupHidden group_hidden(const uint8_t *codes, const void *scales) {
    GroupHidden hidden = {};
    hidden.reader.codes = codes;
    hidden.reader.scales = (const char *)scales;
    hidden.reader.row_bytes = HIDDEN, hidden.reader.scale_bytes = 2 * HIDDEN / GROUP, hidden.reader.group_bits = 4;
    return hidden;
}

// Of the rows of one of PARTS parts.
template <typename D, Epilogue E, int PARTS> static void part_launch(Bench *bench, Fused *f, int part, bool say) {
    constexpr int rows = TOKENS / PARTS;
    static FusedProduct parts[PARTS] = {};
    FusedProduct &p = parts[part];
    if (p.N == 0) {
        p = fused_product<D>(codes_of(f->x), codes_of(f->w.codes), (const float *)f->w.codes.scale, part * rows, rows,
                             HIDDEN, CHANNELS);
        p.y = f->y_own, p.row_scales = f->row_scales, p.bias = (const bf16 *)f->bias.data;
        p.h = f->h_own, p.h_scales = f->h_scales, p.maxima = f->maxima;
        p.g = f->g_own, p.g_scales = f->g_scales;
    }
    product_launch<D, CHANNELS % DEPTH ? CHANNELS % DEPTH / 32 : 4, E>(cuda_backend(&bench->exec), p, say);
}

static void zero_maxima(Bench *bench, Fused *f) {
    CUDA_CHECK(cudaMemsetAsync(f->maxima, 0, TOKENS * sizeof *f->maxima, cuda_backend(&bench->exec)->stream),
               "zeroing maxima");
}

template <typename D, Epilogue E> static void run_own(Bench *bench, void *context) {
    Fused *f = (Fused *)context;
    if (E == KEEPS_LARGEST || E == KEEPS_GELU) zero_maxima(bench, f);
    part_launch<D, E, 1>(bench, f, 0, false);
}

template <RowMaximum MAXIMUM, int ROWS> static void own_pass(Bench *bench, Fused *f, int64_t first, int64_t rows) {
    pass_launch<GroupHidden, MAXIMUM, ROWS>(cuda_backend(&bench->exec), group_hidden(f->h_own, f->h_scales), f->g_own,
                                            f->g_scales_own, f->maxima, first, rows, HIDDEN);
}

template <RowMaximum MAXIMUM, int ROWS> static void run_own_pass(Bench *bench, void *context) {
    own_pass<MAXIMUM, ROWS>(bench, (Fused *)context, 0, TOKENS);
}

template <typename D, int PARTS> static void run_own_parts(Bench *bench, void *context) {
    Fused *f = (Fused *)context;
    zero_maxima(bench, f);
    for (int part = 0; part < PARTS; part++) {
        part_launch<D, KEEPS_LARGEST, PARTS>(bench, f, part, false);
        own_pass<LARGEST_H_KNOWN, 4>(bench, f, part * (TOKENS / PARTS), TOKENS / PARTS);
    }
}

// --- checks -------------------------------------------------------------------------------------------------
static Difference difference_get(Bench *bench, Fused *f) {
    Difference d = {};
    bench->exec.ops->download(&bench->exec, &d, f->difference, sizeof d);
    bench->exec.ops->zero(&bench->exec, f->difference, sizeof d);
    return d;
}

static void say_right(Fused *f, const char *what, bool right) {
    printf("  %s  %s\n", right ? "right:" : "WRONG:", what);
    if (!right && !f->failed) f->failed = what;
    fflush(stdout);
}

// Ours against the library's: sums differ in their order, and then in the rounding to BF16.
static void check_y(Bench *bench, Fused *f, const bf16 *y, const Tensor &expected, const char *what) {
    const int64_t count = expected.rows * expected.cols;
    compare_y<<<1024, 256, 0, cuda_backend(&bench->exec)->stream>>>(y, (const bf16 *)expected.data, count,
                                                                    f->difference);
    LAUNCH_CHECK("compare_y");
    const Difference d = difference_get(bench, f);
    const double root = sqrt(d.size / (double)count), off = sqrt(d.error / d.size);
    float largest;
    memcpy(&largest, &d.largest, sizeof largest);
    printf("  relative error %.2e (allowed 5e-3), largest %.3g of the root mean square (0.1)\n", off, largest / root);
    say_right(f, what, off < 5e-3 && largest < 0.1 * root);
}

// Counts, and how many there may be.
static void check_counts(Bench *bench, Fused *f, const char *what, unsigned scales_allowed) {
    const Difference d = difference_get(bench, f);
    if (d.wrong || d.wrong_scales)
        printf("  %u codes and %u scales differ (allowed 0 and %u)\n", d.wrong, d.wrong_scales, scales_allowed);
    say_right(f, what, d.wrong == 0 && d.wrong_scales <= scales_allowed);
}

static void check_codes(Bench *bench, Fused *f) {
    const float room = 2.0f; // a tenth of y's root mean square
    compare_codes<<<1024, 256, 0, cuda_backend(&bench->exec)->stream>>>(
        f->h_own, 1.0f / CODES_FACTOR, (const bf16 *)f->y.data, (int64_t)TOKENS * HIDDEN, room, f->difference);
    LAUNCH_CHECK("compare_codes");
    check_counts(bench, f, "B's codes of y, to half a step and what its sums may be off", 0);
}

static void check_hidden(Bench *bench, Fused *f, const char *what) {
    const int64_t groups = (int64_t)TOKENS * HIDDEN / GROUP;
    compare_hidden<<<(unsigned)ceil_div(groups, 256), 256, 0, cuda_backend(&bench->exec)->stream>>>(
        f->h_own, f->h_scales, f->y_own, f->row_scales, (const bf16 *)f->bias.data, HIDDEN, groups, f->difference);
    LAUNCH_CHECK("compare_hidden");
    check_counts(bench, f, what, 0);
}

// A maximum next to a power of two may give the neighbouring scale: of one row in 1000.
template <typename Hidden>
static void check_g(Bench *bench, Fused *f, const Hidden &hidden, const uint8_t *g, const float *scales,
                    const char *what) {
    compare_g<Hidden><<<TOKENS, 256, 0, cuda_backend(&bench->exec)->stream>>>(hidden, g, scales, HIDDEN, f->difference);
    LAUNCH_CHECK("compare_g");
    check_counts(bench, f, what, TOKENS / 1000);
}

static void check_own_g(Bench *bench, Fused *f, const float *scales, const char *what) {
    check_g(bench, f, group_hidden(f->h_own, f->h_scales), f->g_own, scales, what);
}

// Nothing of what was made before may pass for a result.
static void forget(Bench *bench, Fused *f) {
    const size_t count = (size_t)TOKENS * HIDDEN;
    bench->exec.ops->zero(&bench->exec, f->h_own, count);
    bench->exec.ops->zero(&bench->exec, f->h_scales, count / GROUP * sizeof(bf16));
    bench->exec.ops->zero(&bench->exec, f->g_own, count);
    bench->exec.ops->zero(&bench->exec, f->g_scales_own, TOKENS * sizeof(float));
}

// --- times --------------------------------------------------------------------------------------------------
typedef struct {
    void (*first)(Bench *, void *), (*second)(Bench *, void *);
    void *context;
} Pair;

static void run_pair(Bench *bench, void *context) {
    Pair *p = (Pair *)context;
    p->first(bench, p->context);
    p->second(bench, p->context);
}

// A product's line.
static void say_rate(const char *name, double ms, double operations, double limit) {
    const double rate = operations / ms * 1e3;
    printf("%-58s %8.4f ms %7.0f TFLOP/s %6.1f %%\n", name, ms, rate * 1e-12, 100 * rate / limit);
    fflush(stdout);
}

static void time_product(Bench *bench, Fused *f, const char *name, double limit, void (*operation)(Bench *, void *)) {
    say_rate(name, bench_steady_ms(bench, operation, f), 2.0 * TOKENS * HIDDEN * CHANNELS, limit);
}

static void time_pass(Bench *bench, Fused *f, const char *name, double bytes_per_element, double copy_rate,
                      void (*operation)(Bench *, void *)) {
    const double ms = bench_steady_ms(bench, operation, f);
    const double rate = bytes_per_element * TOKENS * HIDDEN / ms * 1e3;
    printf("%-58s %8.4f ms %7.0f GB/s    %6.1f %%\n", name, ms, rate * 1e-9, 100 * rate / copy_rate);
    fflush(stdout);
}

static double time_both(Bench *bench, Fused *f, const char *name, double today, void (*product)(Bench *, void *),
                        void (*pass)(Bench *, void *)) {
    Pair pair = {product, pass, f};
    const double ms = pass ? bench_steady_ms(bench, run_pair, &pair) : bench_steady_ms(bench, product, f);
    printf("%-58s %8.4f ms", name, ms);
    if (today > 0) printf(" %+8.4f ms %+.1f %%", ms - today, 100 * (ms / today - 1));
    printf("\n");
    fflush(stdout);
    return ms;
}

// --- operands -----------------------------------------------------------------------------------------------
static void open_operands(Bench *bench, Fused *f) {
    const size_t count = (size_t)TOKENS * HIDDEN, rows = TOKENS * sizeof(float);
    f->x = bench_tensor(bench, TOKENS, CHANNELS, FMT_E4M3, 1.0f);
    f->w.codes = bench_tensor(bench, HIDDEN, CHANNELS, FMT_E4M3, 1.0f);
    f->w.value = f->w.codes; // of which the product reads the shape only
    f->y = bench_tensor(bench, TOKENS, HIDDEN, FMT_BF16, 1.0f);
    f->bias = bench_tensor(bench, 1, HIDDEN, FMT_BF16, 0.5f);
    f->h = bench_tensor(bench, TOKENS, HIDDEN, FMT_E4M3, 1.0f);
    f->g = bench_tensor(bench, TOKENS, HIDDEN, FMT_E4M3, 1.0f);
    f->row_scales = (float *)bench_allocate(bench, rows);
    f->g_scales = (float *)bench_allocate(bench, rows);
    float *host = (float *)xmalloc(rows); // y has a root mean square of 20, h then of about 1
    for (int i = 0; i < TOKENS; i++) host[i] = i % 3 == 0 ? 0x1p-3f : i % 3 == 1 ? 0x1p-4f : 0x1p-5f;
    bench->exec.ops->upload(&bench->exec, f->row_scales, host, rows);
    free(host);
    f->x.granularity = f->y.granularity = f->g.granularity = SCALE_ROW;
    f->x.scale = f->y.scale = f->row_scales, f->g.scale = f->g_scales;
    f->h.granularity = SCALE_GROUP, f->h.group = GROUP;
    f->h.scale = bench_allocate(bench, count / GROUP * sizeof(bf16));
    f->y_own = (bf16 *)bench_allocate(bench, count * sizeof(bf16));
    f->h_own = (uint8_t *)bench_allocate(bench, count);
    f->g_own = (uint8_t *)bench_allocate(bench, count);
    f->h_scales = (bf16 *)bench_allocate(bench, count / GROUP * sizeof(bf16));
    f->maxima = (uint32_t *)bench_allocate(bench, TOKENS * sizeof(uint32_t));
    f->g_scales_own = (float *)bench_allocate(bench, rows);
    f->codes_factor = (float *)bench_allocate(bench, sizeof(float));
    const float factor = CODES_FACTOR;
    bench->exec.ops->upload(&bench->exec, f->codes_factor, &factor, sizeof factor);
    f->difference = (Difference *)bench_allocate(bench, sizeof(Difference));
    bench->exec.ops->zero(&bench->exec, f->difference, sizeof(Difference));
}

// --- all ways -----------------------------------------------------------------------------------------------
typedef struct {
    double product, copy; // ceilings: operations and bytes per second
    double today, least;  // ms of A, and of the fastest other way
} Times;

static void bench_today(Bench *bench, Fused *f, Times *t) {
    const double group = 1 + 2.0 / GROUP;
    run_product(bench, f);
    run_activation(bench, f);
    check_g(bench, f, group_hidden(codes_of(f->h), f->h.scale), codes_of(f->g), f->g_scales, "A's g");
    time_product(bench, f, "A  cuBLASLt, BF16", t->product, run_product);
    time_pass(bench, f, "A  activation_forward", 2 + group + 1, t->copy, run_activation);
    t->today = time_both(bench, f, "A  both", 0, run_product, run_activation);
    t->least = INFINITY;
    t->least = fmin(t->least, time_both(bench, f, "A  both, in 2 parts of the tokens", t->today, run_parts<2>, NULL));
    t->least = fmin(t->least, time_both(bench, f, "A  both, in 4 parts", t->today, run_parts<4>, NULL));
    t->least = fmin(t->least, time_both(bench, f, "A  both, in 8 parts", t->today, run_parts<8>, NULL));
    run_product(bench, f);
}

static void bench_codes(Bench *bench, Fused *f, Times *t) {
    printf("\n");
    forget(bench, f);
    if (!codes_product_open(bench, f)) return;
    run_codes_product(bench, f);
    check_codes(bench, f);
    run_codes_pass<2>(bench, f);
    check_g(bench, f, token_hidden(f), f->g_own, f->g_scales_own, "B's g");
    time_product(bench, f, "B  cuBLASLt, E4M3 with a scale known ahead", t->product, run_codes_product);
    time_pass(bench, f, "B  pass that finds the maxima, one row per block", 2, t->copy, run_codes_pass<1>);
    time_pass(bench, f, "B  two rows", 2, t->copy, run_codes_pass<2>);
    t->least = fmin(t->least, time_both(bench, f, "B  both, two rows", t->today, run_codes_product, run_codes_pass<2>));
}

// Ways C and D by one design.
template <typename D> static void bench_own(Bench *bench, Fused *f, Times *t) {
    const double group = 1 + 2.0 / GROUP;
    const auto both = [&](const char *name, void (*product)(Bench *, void *), void (*pass)(Bench *, void *)) {
        t->least = fmin(t->least, time_both(bench, f, name, t->today, product, pass));
    };
    printf("\n");
    part_launch<D, STORES_Y, 1>(bench, f, 0, true);
    bench->exec.ops->zero(&bench->exec, f->y_own, (size_t)TOKENS * HIDDEN * sizeof(bf16));
    run_own<D, STORES_Y>(bench, f);
    check_y(bench, f, f->y_own, f->y, "our product in BF16");
    time_product(bench, f, "C  our product, BF16", t->product, run_own<D, STORES_Y>);

    forget(bench, f);
    run_own<D, KEEPS_LARGEST>(bench, f);
    check_hidden(bench, f, "C's h, exactly as its own BF16 gives it");
    run_own_pass<LARGEST_H_KNOWN, 4>(bench, f);
    check_own_g(bench, f, f->g_scales_own, "C's g, from the largest h");
    time_product(bench, f, "C  our product, h and the largest h of rows", t->product, run_own<D, KEEPS_LARGEST>);
    time_pass(bench, f, "C  pass, maxima known, two rows per block", group + 1, t->copy,
              run_own_pass<LARGEST_H_KNOWN, 2>);
    time_pass(bench, f, "C  four rows", group + 1, t->copy, run_own_pass<LARGEST_H_KNOWN, 4>);
    time_pass(bench, f, "C  pass that finds the maxima, two rows", group + 1, t->copy, run_own_pass<FINDS_IT, 2>);
    both("C  both, two rows", run_own<D, KEEPS_LARGEST>, run_own_pass<LARGEST_H_KNOWN, 2>);
    both("C  both, four rows", run_own<D, KEEPS_LARGEST>, run_own_pass<LARGEST_H_KNOWN, 4>);
    forget(bench, f);
    both("C  both, in 4 parts of the tokens", run_own_parts<D, 4>, NULL);
    check_own_g(bench, f, f->g_scales_own, "C's g, in parts");

    forget(bench, f);
    run_own<D, KEEPS_GELU>(bench, f);
    check_hidden(bench, f, "the same h with gelu in the epilogue");
    run_own_pass<LARGEST_G_KNOWN, 4>(bench, f);
    check_own_g(bench, f, f->g_scales_own, "C's g, from the largest |gelu(h)|");
    time_product(bench, f, "C  our product, h and the largest |gelu(h)| of rows", t->product, run_own<D, KEEPS_GELU>);
    both("C  both, four rows", run_own<D, KEEPS_GELU>, run_own_pass<LARGEST_G_KNOWN, 4>);

    CUDA_CHECK(cudaMemcpyAsync(f->g_scales, f->g_scales_own, TOKENS * sizeof(float), cudaMemcpyDeviceToDevice,
                               cuda_backend(&bench->exec)->stream),
               "copying scales, which are then known ahead");
    forget(bench, f);
    run_own<D, WRITES_G>(bench, f);
    check_hidden(bench, f, "D's h");
    check_own_g(bench, f, f->g_scales, "D's g");
    both("D  our product, h and g, scales of rows known ahead", run_own<D, WRITES_G>, NULL);
}

// --- the product alone, of other shapes ---------------------------------------------------------------------
typedef struct {
    SquareProduct library;
    FusedProduct own;
} Plain;

template <typename D> static void run_plain(Bench *bench, void *context) {
    product_launch<D, 4, STORES_Y>(cuda_backend(&bench->exec), ((Plain *)context)->own);
}

static void run_plain_library(Bench *bench, void *context) {
    square_product_run(bench, &((Plain *)context)->library);
}

template <typename D>
static void bench_plain_design(Bench *bench, Fused *f, Plain *p, const char *name, double operations, double limit) {
    const SquareProduct *o = &p->library;
    p->own = fused_product<D>(codes_of(o->x), codes_of(o->w.codes), (const float *)o->w.codes.scale, 0, o->x.rows,
                              o->y.cols, o->x.cols);
    p->own.y = (bf16 *)bench_allocate(bench, (size_t)(o->y.rows * o->y.cols) * sizeof(bf16));
    bench->exec.ops->zero(&bench->exec, p->own.y, (size_t)(o->y.rows * o->y.cols) * sizeof(bf16));
    run_plain<D>(bench, p);
    check_y(bench, f, p->own.y, o->y, name);
    say_rate(name, bench_median_ms(bench, run_plain<D>, p), operations, limit);
    bench->exec.ops->release(&bench->exec, p->own.y);
}

// K in whole stages.
static void bench_plain(Bench *bench, Fused *f, int64_t M, int64_t N, int64_t K, double limit) {
    const double operations = 2.0 * (double)M * (double)N * (double)K;
    static Plain p;
    SquareProduct *o = &p.library;
    printf("\nthe product alone, %lld tokens, K %lld, N %lld\n", (long long)M, (long long)K, (long long)N);
    o->y = bench_tensor(bench, M, N, FMT_BF16, 1.0f);
    o->x = bench_tensor(bench, M, K, FMT_E4M3, 1.0f);
    o->w.codes = bench_tensor(bench, N, K, FMT_E4M3, 1.0f);
    o->w.value = o->w.codes;
    const float one = 1.0f; // ours leaves x's scale to who reads y
    bench->exec.ops->upload(&bench->exec, o->x.scale, &one, sizeof one);
    say_rate("cuBLASLt", bench_median_ms(bench, run_plain_library, &p), operations, limit);
    bench_plain_design<Design<4, false>>(bench, f, &p, "ours in turns, clusters of 4", operations, limit);
    bench_plain_design<Design<2, false>>(bench, f, &p, "ours in turns, clusters of 2", operations, limit);
    bench_plain_design<Design<2, true>>(bench, f, &p, "ours together, clusters of 2", operations, limit);
    bench_release(bench, o->y);
    bench_release(bench, o->x);
    bench_release(bench, o->w.codes);
}

int main(int argc, char **argv) {
    static Bench bench; // zero; its configuration is large
    static Fused f;
    if (bench_flags(&bench, "bench_fused_product", argc, argv)) fatal(EXIT_USER, "--check is part of every run");
    recipe_apply(&bench.config.recipe, RECIPE_COAT);
    bench_configure(&bench.config, 16, CHANNELS, HIDDEN);
    bench_open(&bench);
    if (cuda_backend(&bench.exec)->capability != 90) {
        printf("needs a GPU of 9.0\n");
        bench_close(&bench);
        return EXIT_DONE;
    }
    Times t = {};
    t.product = bench_product_ceiling(&bench, FMT_E4M3);
    t.copy = bench_copy_ceiling(&bench);
    printf("\n%d tokens, K %d, N %d; shares are of these, differences to A's both\n", TOKENS, CHANNELS, HIDDEN);
    open_operands(&bench, &f);
    bench_today(&bench, &f, &t);
    bench_codes(&bench, &f, &t);
    bench_own<Design<4, false>>(&bench, &f, &t);
    bench_own<Design<2, false>>(&bench, &f, &t);
    bench_own<Design<2, true>>(&bench, &f, &t);
    bench_plain(&bench, &f, CEILING_SIZE, CEILING_SIZE, CEILING_SIZE, t.product);
    if (!bench.quick) bench_plain(&bench, &f, 8192, 2 * 11008, 4096, t.product); // Llama-2-7B's gate and up
    printf("\nat %d tokens, K %d, N %d the fastest other way takes %.1f %% of A's time\n", TOKENS, CHANNELS, HIDDEN,
           100 * t.least / t.today);
    if (f.failed)
        printf("WRONG: %s\n", f.failed);
    else
        printf("all results are right\n");
    bench_close(&bench);
    return f.failed ? EXIT_USER : EXIT_DONE;
}
