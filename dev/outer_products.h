// FP8 products by cuBLASLt with either kind of scales: one per tensor, as cuda_matmul.cu makes them, or outer vectors,
// one scale per token and one per output channel. Descriptors, preferences and choice of the algorithm are the same for
// both, so that only the scales differ. Included by bench_outer_vector.cu.
#pragma once
#include "bench_operands.h"

#include <cublasLt.h>

#define PRODUCT_CANDIDATES 16
#define CODE_DEVIATION 64.0f // of the random codes
#define EQUAL_SCALE 0.5f     // a power of two: scaling is exact, in whichever order

typedef enum { BY_TENSOR, BY_ROW, WAYS } Way;
static const char *const way_names[WAYS] = {"tensor", "outer"};

// y (tokens, out) BF16 = x (tokens, in) w^T + bias. Column-major: y^T (out, tokens) = w x^T, so that A is the weight,
// with out scales, and B the activation, with as many scales as tokens.
typedef struct {
    const char *name;
    Way way;
    Tensor x, w, y, bias; // x, w: E4M3; bias.data NULL: none
    float *scale_x, *scale_w;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t found[PRODUCT_CANDIDATES];
    int count, chosen; // of the algorithms found, those that run come first
} OuterProduct;

static void product_check(const OuterProduct *p, cublasStatus_t status, const char *doing) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fatal(EXIT_DEVICE, "%s with %s scales: cuBLASLt, %s: %s", p->name, way_names[p->way], doing,
          cublasLtGetStatusString(status));
}

static void product_attribute(OuterProduct *p, cublasLtMatmulDescAttributes_t attribute, const void *value,
                              size_t bytes) {
    product_check(p, cublasLtMatmulDescSetAttribute(p->operation, attribute, value, bytes), "describing it");
}

// false where the library does not know outer vectors.
static bool product_describe(OuterProduct *p) {
    const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    const int8_t fast = 1;
    product_check(p, cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing it");
    product_attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    product_attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain);
    product_attribute(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    product_attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->scale_w, sizeof p->scale_w);
    product_attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->scale_x, sizeof p->scale_x);
    if (p->bias.data) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const cudaDataType_t type = CUDA_R_16BF;
        product_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        product_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
        product_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias.data, sizeof p->bias.data);
    }
    const uint64_t in = (uint64_t)p->x.cols, out = (uint64_t)p->w.rows, tokens = (uint64_t)p->x.rows;
    product_check(p, cublasLtMatrixLayoutCreate(&p->a, CUDA_R_8F_E4M3, in, out, p->w.stride), "describing A");
    product_check(p, cublasLtMatrixLayoutCreate(&p->b, CUDA_R_8F_E4M3, in, tokens, p->x.stride), "describing B");
    product_check(p, cublasLtMatrixLayoutCreate(&p->d, CUDA_R_16BF, out, tokens, p->y.stride), "describing D");
    if (p->way == BY_TENSOR) return true;
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    return cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode) ==
               CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t product_launch(Bench *bench, const OuterProduct *p) {
    const float alpha = 1.0f, beta = 0.0f;
    return cublasLtMatmul(p->handle, p->operation, &alpha, p->w.data, p->a, p->x.data, p->b, &beta, p->y.data, p->d,
                          p->y.data, p->d, &p->found[p->chosen].algo, bench->exec.workspace, MATMUL_WORKSPACE_BYTES,
                          cuda_backend(&bench->exec)->stream);
}

static void run_outer_product(Bench *bench, void *context) {
    const OuterProduct *p = (const OuterProduct *)context;
    product_check(p, product_launch(bench, p), "starting it");
}

// Fills `found` with the library's algorithms, best first by its own estimate. Partial sums of a split k are added in
// FP32 only, as the trainer asks for.
static void product_candidates(OuterProduct *p) {
    const size_t workspace = MATMUL_WORKSPACE_BYTES;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t preference;
    const char *doing = "choosing an algorithm";
    product_check(p, cublasLtMatmulPreferenceCreate(&preference), doing);
    product_check(p,
                  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                       sizeof workspace),
                  doing);
    product_check(p,
                  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                       &reduction, sizeof reduction),
                  doing);
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(p->handle, p->operation, p->a, p->b, p->d, p->d,
                                                                 preference, PRODUCT_CANDIDATES, p->found, &p->count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS) p->count = 0; // not supported, or a mode that this version does not know
}

// Keeps the algorithms that run: with some descriptors the heuristic answers and the product then refuses.
static void product_keep_runnable(Bench *bench, OuterProduct *p) {
    int kept = 0;
    for (int i = 0; i < p->count; i++) {
        p->chosen = i;
        if (product_launch(bench, p) == CUBLAS_STATUS_SUCCESS) p->found[kept++] = p->found[i];
    }
    p->count = kept;
    p->chosen = 0;
    CUDA_CHECK(cudaStreamSynchronize(cuda_backend(&bench->exec)->stream), "trying a product's algorithms");
}

static void product_close(OuterProduct *p) {
    if (p->d) cublasLtMatrixLayoutDestroy(p->d);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->operation) cublasLtMatmulDescDestroy(p->operation);
    if (p->handle) cublasLtDestroy(p->handle);
    p->a = p->b = p->d = NULL, p->operation = NULL, p->handle = NULL;
}

// Descriptors and algorithms; false, with a line that says so, where the library has none. A bias that it cannot add
// with these scales is left out.
static bool product_open(Bench *bench, OuterProduct *p) {
    for (;;) {
        product_check(p, cublasLtCreate(&p->handle), "starting the library");
        p->count = 0;
        if (product_describe(p)) product_candidates(p);
        product_keep_runnable(bench, p);
        if (p->count > 0) return true;
        product_close(p);
        printf("%-8s %-7s cuBLASLt %zu has no algorithm for %s scales%s on this GPU\n", p->name, way_names[p->way],
               cublasLtGetVersion(), way_names[p->way], p->bias.data ? " with a bias" : "");
        if (!p->bias.data) return false;
        p->bias.data = NULL;
    }
}

// The fastest of the algorithms, each timed by itself.
static void product_choose(Bench *bench, OuterProduct *p) {
    double best_ms = INFINITY;
    int best = 0;
    for (int i = 0; i < p->count; i++) {
        p->chosen = i;
        const double ms = bench_median_ms(bench, run_outer_product, p);
        if (ms < best_ms) best_ms = ms, best = i;
    }
    p->chosen = best;
}

// --- scales -------------------------------------------------------------------------------------------------
// Vectors of scales: all alike, or all over a range of about 100, in no order that a swapped index would meet again.
static void scales_fill(Bench *bench, float *scales, int64_t count, bool equal, int64_t step) {
    float *host = (float *)xmalloc((size_t)count * sizeof *host);
    for (int64_t i = 0; i < count; i++) host[i] = equal ? EQUAL_SCALE : 0.004f * (float)(1 + i * step % 101);
    bench->exec.ops->upload(&bench->exec, scales, host, (size_t)count * sizeof *host);
    free(host);
}

static void product_scales(Bench *bench, const OuterProduct *p, bool equal) {
    scales_fill(bench, p->scale_x, p->way == BY_ROW ? p->x.rows : 1, equal, 37);
    scales_fill(bench, p->scale_w, p->way == BY_ROW ? p->w.rows : 1, equal, 23);
}

// --- check --------------------------------------------------------------------------------------------------
typedef struct {
    unsigned long long different, wrong; // elements whose bits differ; that differ by more than rounding
    uint32_t largest;                    // bits of the largest difference
} Differences;

// typical: the size of an element.
__global__ static void differences_kernel(Differences *out, Tensor a, Tensor b, float typical) {
    const int64_t count = a.rows * a.cols, step = (int64_t)gridDim.x * blockDim.x;
    unsigned long long different = 0, wrong = 0;
    float largest = 0.0f;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const float x = bench_decode(a.data, FMT_BF16, i), y = bench_decode(b.data, FMT_BF16, i);
        const float difference = fabsf(x - y);
        different += float_bits(x) != float_bits(y);
        wrong += !(difference <= fmaxf(fabsf(x), fabsf(y)) / 128.0f + 0.03f * typical);
        largest = fmaxf(largest, difference);
    }
    if (different) atomicAdd(&out->different, different);
    if (wrong) atomicAdd(&out->wrong, wrong);
    atomicMax(&out->largest, float_bits(largest));
}

// With all entries of the vectors equal to the tensor's scale both ways must give the same numbers; other algorithms
// add in another order, so that what is rounded may differ.
static bool products_agree(Bench *bench, OuterProduct product[WAYS]) {
    Exec *exec = &bench->exec;
    for (int way = 0; way < WAYS; way++) {
        product_scales(bench, &product[way], true);
        run_outer_product(bench, &product[way]);
    }
    const double size = (double)CODE_DEVIATION * (double)EQUAL_SCALE;
    const float typical = (float)(size * size * sqrt((double)product[0].x.cols));
    Differences *sums = (Differences *)bench_allocate(bench, sizeof *sums), found;
    exec->ops->zero(exec, sums, sizeof *sums);
    differences_kernel<<<1024, 256, 0, cuda_backend(exec)->stream>>>(sums, product[0].y, product[1].y, typical);
    LAUNCH_CHECK("differences");
    exec->ops->download(exec, &found, sums, sizeof found);
    exec->ops->release(exec, sums);
    printf("%-8s equal scales: %llu of %lld elements differ, by %.2g of an element's size at most: %s\n",
           product[0].name, found.different, (long long)tensor_elements(product[0].y),
           (double)bits_float(found.largest) / (double)typical, found.wrong ? "WRONG" : "ok");
    return found.wrong == 0;
}

enum { SAMPLE_TOKENS = 16, SAMPLE_CHANNELS = 32 };

// Sample `index` of `count` among `size`, the first and the last among them.
static int64_t sample_of(int index, int count, int64_t size) {
    return index * (size - 1) / (count - 1);
}

// Rows of `width` bytes of a tensor in the device's memory, one below the other.
static uint8_t *rows_download(Bench *bench, const void *data, size_t width, int count, int64_t rows) {
    uint8_t *host = (uint8_t *)xmalloc(width * (size_t)count);
    for (int i = 0; i < count; i++)
        bench->exec.ops->download(&bench->exec, host + (size_t)i * width,
                                  (const uint8_t *)data + (size_t)sample_of(i, count, rows) * width, width);
    return host;
}

// Outer vectors of unequal scales against sums on the host, in samples.
static bool product_right(Bench *bench, OuterProduct *p) {
    const int64_t K = p->x.cols, N = p->w.rows, M = p->x.rows;
    product_scales(bench, p, false);
    run_outer_product(bench, p);
    uint8_t *x = rows_download(bench, p->x.data, (size_t)K, SAMPLE_TOKENS, M);
    uint8_t *w = rows_download(bench, p->w.data, (size_t)K, SAMPLE_CHANNELS, N);
    uint16_t *y = (uint16_t *)rows_download(bench, p->y.data, (size_t)N * sizeof *y, SAMPLE_TOKENS, M);
    float *scale_x = (float *)rows_download(bench, p->scale_x, sizeof *scale_x, SAMPLE_TOKENS, M);
    float *scale_w = (float *)rows_download(bench, p->scale_w, sizeof *scale_w, SAMPLE_CHANNELS, N);
    uint16_t *bias =
        p->bias.data ? (uint16_t *)rows_download(bench, p->bias.data, sizeof *bias, SAMPLE_CHANNELS, N) : NULL;
    int wrong = 0;
    for (int s = 0; s < SAMPLE_TOKENS * SAMPLE_CHANNELS; s++) {
        const int i = s / SAMPLE_CHANNELS, j = s % SAMPLE_CHANNELS;
        double sum = 0, square = 0;
        for (int64_t k = 0; k < K; k++) {
            const double term = (double)e4m3_decode(x[i * K + k]) * (double)e4m3_decode(w[j * K + k]);
            sum += term;
            square += term * term;
        }
        const double scale = (double)scale_x[i] * (double)scale_w[j];
        const double expected = sum * scale + (bias ? (double)bf16_decode(bias[j]) : 0.0);
        const double found = (double)bf16_decode(y[i * N + sample_of(j, SAMPLE_CHANNELS, N)]);
        // the output's rounding, and what fast accumulation may lose
        if (fabs(found - expected) <= fabs(expected) / 256 + 0.03 * scale * sqrt(square)) continue;
        if (wrong++ == 0) printf("  sample (%d, %d): %.6g, expected %.6g\n", i, j, found, expected);
    }
    printf("%-8s unequal scales: %d of %d samples as summed on the host%s\n", p->name,
           SAMPLE_TOKENS * SAMPLE_CHANNELS - wrong, SAMPLE_TOKENS * SAMPLE_CHANNELS, wrong ? ": WRONG" : "");
    free(x), free(w), free(y), free(scale_x), free(scale_w), free(bias);
    return wrong == 0;
}
