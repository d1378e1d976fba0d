// The products of the linear layers by cuBLASLt: BF16, FP8 (COAT, FP8 products: accumulation in FP32, one scale per
// tensor), and FP32 for exact comparisons.
//
// The library counts column-major: a row-major (rows, cols) matrix with a row stride is a column-major
// (cols, rows) matrix with that leading dimension. So y = x w^T becomes y^T = w x^T, and so on. On Hopper FP8
// operands must both have k as the contiguous dimension, which is why FP8 tensors come with their transposes.
//
// A plan (descriptors and algorithm) is made when a shape is first met and kept.
#include "cuda_internal.h"
#include "fp8_ops.h"
#include "matmul_choices.h"
#include "matmul_table_rows.h"

#include <cublasLt.h>

#define MAX_PLANS 512
#define FIND_CANDIDATES 16 // algorithms that --autotune compares

typedef struct {
    MatmulKey key;
    bool trained; // a product of training: checkpoints record its algorithm
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
} Plan;

struct MatmulState {
    cublasLtHandle_t handle;
    size_t cublas_version;
    char gpu[256];
    bool fast_backward, autotune;
    MatmulChoices resumed, given, committed; // of the checkpoint, of --matmul-table, of the program: in this order
    Plan plans[MAX_PLANS];
    int count;
};

// One product to be made: its plan's key and the memory.
typedef struct {
    const char *name;
    MatmulKey key;
    const void *a, *b, *bias;
    const void *scale_a, *scale_b; // FP8: one FP32 each, 16-byte aligned; scale_b NULL: the rows' scales are left out
    void *d;
} Product;

static const cublasLtMatmulDescAttributes_t SCALE_A = CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
static const cublasLtMatmulDescAttributes_t SCALE_B = CUBLASLT_MATMUL_DESC_B_SCALE_POINTER;
static const cublasLtMatmulDescAttributes_t BIAS = CUBLASLT_MATMUL_DESC_BIAS_POINTER;

[[noreturn]] static void product_fail(const Product *p, const char *why) {
    const MatmulShape *s = &p->key.shape;
    fatal(EXIT_DEVICE, "%s: the product m %lld n %lld k %lld (%s x %s -> %s%s): %s", p->name, (long long)s->m,
          (long long)s->n, (long long)s->k, format_name(s->a), format_name(s->b), format_name(s->d),
          s->bias == FMT_NONE ? "" : ", bias", why);
}

static void check(const Product *p, cublasStatus_t status, const char *doing) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    char why[256];
    snprintf(why, sizeof why, "cuBLASLt, %s: %s", doing, cublasLtGetStatusString(status));
    product_fail(p, why);
}

static cudaDataType_t library_type(Format format) {
    switch (format) {
    case FMT_BF16: return CUDA_R_16BF;
    case FMT_E4M3: return CUDA_R_8F_E4M3;
    case FMT_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
    }
}

// The largest power of two up to 256 that divides an address.
static int alignment(const void *address) {
    uintptr_t bits = (uintptr_t)address | 256;
    return (int)(bits & (~bits + 1));
}

// --- plans --------------------------------------------------------------------------------------------------
static void set_attribute(const Product *p, const Plan *plan, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t bytes) {
    check(p, cublasLtMatmulDescSetAttribute(plan->operation, attribute, value, bytes), "describing it");
}

// The pointers that differ from layer to layer.
static void set_pointers(const Product *p, const Plan *plan) {
    if (format_is_fp8(p->key.shape.a)) {
        set_attribute(p, plan, SCALE_A, &p->scale_a, sizeof p->scale_a);
        set_attribute(p, plan, SCALE_B, &p->scale_b, sizeof p->scale_b);
    }
    if (p->bias) set_attribute(p, plan, BIAS, &p->bias, sizeof p->bias);
}

static void describe(const Product *p, Plan *plan) {
    const MatmulKey *key = &p->key;
    const MatmulShape *s = &key->shape;
    cublasOperation_t op_a = s->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = s->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(p, cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing it");
    set_attribute(p, plan, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    set_attribute(p, plan, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    if (format_is_fp8(s->a)) {
        int8_t fast = s->fast;
        set_attribute(p, plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    }
    if (s->bias != FMT_NONE) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cudaDataType_t type = library_type(s->bias);
        set_attribute(p, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        set_attribute(p, plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    }
    set_pointers(p, plan);
    uint64_t rows_a = (uint64_t)(s->transpose_a ? s->k : s->m), cols_a = (uint64_t)(s->transpose_a ? s->m : s->k);
    uint64_t rows_b = (uint64_t)(s->transpose_b ? s->n : s->k), cols_b = (uint64_t)(s->transpose_b ? s->k : s->n);
    check(p, cublasLtMatrixLayoutCreate(&plan->a, library_type(s->a), rows_a, cols_a, key->lda), "describing A");
    check(p, cublasLtMatrixLayoutCreate(&plan->b, library_type(s->b), rows_b, cols_b, key->ldb), "describing B");
    check(p, cublasLtMatrixLayoutCreate(&plan->d, library_type(s->d), (uint64_t)s->m, (uint64_t)s->n, key->ldd),
          "describing D");
}

static void set_preference(const Product *p, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes) {
    check(p, cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes), "choosing an algorithm");
}

// The library's choices, best first; returns their number. Partial sums of a split k may only be added up in
// FP32 in the workspace: adding them in the output would round to BF16 in between.
static int candidates(MatmulState *state, const Product *p, const Plan *plan, int most,
                      cublasLtMatmulHeuristicResult_t found[]) {
    cublasLtMatmulPreference_t preference;
    check(p, cublasLtMatmulPreferenceCreate(&preference), "choosing an algorithm");
    const MatmulKey *key = &p->key;
    size_t workspace = MATMUL_WORKSPACE_BYTES;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t align_a = (uint32_t)key->align_a, align_b = (uint32_t)key->align_b, align_d = (uint32_t)key->align_d;
    set_preference(p, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    set_preference(p, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
    set_preference(p, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_a, sizeof align_a);
    set_preference(p, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_b, sizeof align_b);
    set_preference(p, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_d, sizeof align_d);
    set_preference(p, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d);
    int count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(state->handle, plan->operation, plan->a, plan->b, plan->d,
                                                           plan->d, preference, most, found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(p, status, "choosing an algorithm");
    if (count == 0) product_fail(p, "cuBLASLt has no algorithm for it on this GPU");
    return count;
}

static cublasStatus_t launch(Exec *exec, const Product *p, const Plan *plan) {
    CudaBackend *backend = cuda_backend(exec);
    if (exec->workspace_bytes < MATMUL_WORKSPACE_BYTES) product_fail(p, "the workspace is smaller than planned");
    const float alpha = 1.0f, beta = p->key.accumulate ? 1.0f : 0.0f;
    return cublasLtMatmul(backend->matmul->handle, plan->operation, &alpha, p->a, plan->a, p->b, plan->b, &beta, p->d,
                          plan->d, p->d, plan->d, &plan->algorithm, exec->workspace, MATMUL_WORKSPACE_BYTES,
                          backend->stream);
}

// Milliseconds of one product, the fastest of a few runs.
static float timed(Exec *exec, const Product *p, const Plan *plan) {
    enum { WARM_UP = 2, RUNS = 8 };
    cudaStream_t stream = cuda_backend(exec)->stream;
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin), "timing a product");
    CUDA_CHECK(cudaEventCreate(&end), "timing a product");
    float best = INFINITY;
    for (int run = 0; run < WARM_UP + RUNS; run++) {
        float ms = INFINITY;
        CUDA_CHECK(cudaEventRecord(begin, stream), "timing a product");
        bool launched = launch(exec, p, plan) == CUBLAS_STATUS_SUCCESS;
        CUDA_CHECK(cudaEventRecord(end, stream), "timing a product");
        CUDA_CHECK(cudaEventSynchronize(end), "timing a product");
        if (!launched) break;
        CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end), "timing a product");
        if (run >= WARM_UP && ms < best) best = ms;
    }
    CUDA_CHECK(cudaEventDestroy(begin), "timing a product");
    CUDA_CHECK(cudaEventDestroy(end), "timing a product");
    return best;
}

// Whether an algorithm from elsewhere (the table, the plan without accumulation) serves this plan.
static bool usable(MatmulState *state, const Plan *plan, const cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(state->handle, plan->operation, plan->a, plan->b, plan->d, plan->d, algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= MATMUL_WORKSPACE_BYTES;
}

// The product's own row, else one of its shape where `others` may stand for it.
static bool from_table(MatmulState *state, const MatmulChoices *table, bool others, Plan *plan) {
    for (int i = 0; i < (others ? 2 : 1) * table->count; i++) {
        const MatmulChoice *choice = &table->rows[i % table->count];
        if (!matmul_choice_fits(choice, &plan->key, i < table->count)) continue;
        cublasLtMatmulAlgo_t algorithm;
        static_assert(sizeof algorithm == sizeof choice->algorithm, "the table keeps an algorithm in 64 bytes");
        memcpy(&algorithm, choice->algorithm, sizeof algorithm);
        if (!usable(state, plan, &algorithm)) continue;
        plan->algorithm = algorithm;
        return true;
    }
    return false;
}

// An accumulating product must not be timed, which would add to its output again and again: it takes what was
// found for the overwriting product, which comes first in every step.
static bool from_tuned(MatmulState *state, const Product *p, Plan *plan) {
    for (int i = 0; i < state->count; i++) {
        const Plan *other = &state->plans[i];
        if (!other->trained || other->key.accumulate) continue;
        if (!matmul_same_shape(&other->key.shape, &p->key.shape)) continue;
        if (!usable(state, plan, &other->algorithm)) continue;
        plan->algorithm = other->algorithm;
        return true;
    }
    return false;
}

// What a resumed run has used it goes on with, also under --autotune, which times products of training alone: a run
// that is resumed does not make again all the evaluations that the whole run has made. What a checkpoint does not name,
// the whole run has not met in training either, and chooses as if it had not been cut.
static void choose(Exec *exec, MatmulState *state, const Product *p, Plan *plan) {
    cublasLtMatmulHeuristicResult_t found[FIND_CANDIDATES] = {};
    if (from_table(state, &state->resumed, false, plan) || from_table(state, &state->given, true, plan)) return;
    bool tunes = state->autotune && exec->trains, compare = tunes && !p->key.accumulate;
    if (!tunes && from_table(state, &state->committed, true, plan)) return;
    if (tunes && !compare && from_tuned(state, p, plan)) return;
    int count = candidates(state, p, plan, compare ? FIND_CANDIDATES : 1, found), best = 0;
    float best_ms = INFINITY;
    for (int i = 0; compare && i < count; i++) {
        plan->algorithm = found[i].algo;
        float ms = timed(exec, p, plan);
        if (ms < best_ms) best_ms = ms, best = i;
    }
    plan->algorithm = found[best].algo;
}

static const Plan *plan_get(Exec *exec, const Product *p) {
    MatmulState *state = cuda_backend(exec)->matmul;
    for (int i = 0; i < state->count; i++) {
        Plan *plan = &state->plans[i];
        if (!matmul_same_key(&plan->key, &p->key)) continue;
        if (exec->trains && !plan->trained) {
            if (state->autotune) choose(exec, state, p, plan); // an evaluation has met it first
            plan->trained = true;
        }
        return plan;
    }
    if (state->count == MAX_PLANS) product_fail(p, "the run uses more different shapes than plans can be kept");
    Plan *plan = &state->plans[state->count];
    plan->key = p->key;
    describe(p, plan);
    choose(exec, state, p, plan);
    plan->trained = exec->trains;
    state->count++;
    return plan;
}

// --- the three products of a linear layer -------------------------------------------------------------------
static void product_run(Exec *exec, const Product *p) {
    const MatmulShape *s = &p->key.shape;
    if (s->m == 0 || s->n == 0 || s->k == 0) return;
    if (format_is_fp8(s->a) != format_is_fp8(s->b)) product_fail(p, "FP8 and wider operands cannot be mixed");
    if (format_is_fp8(s->a)) {
        if (s->m % 16 || s->n % 16 || s->k % 16 || p->key.lda % 16 || p->key.ldb % 16)
            product_fail(p, "FP8 products need all sizes to be multiples of 16: change --micro-batch, --seq-len or "
                            "the model's shape, or use --linear bf16");
        if (!p->scale_a || alignment(p->scale_a) < 16 || (p->scale_b && alignment(p->scale_b) < 16))
            product_fail(p, "the scales of FP8 operands must be 16-byte aligned");
    }
    const Plan *plan = plan_get(exec, p);
    set_pointers(p, plan);
    check(p, launch(exec, p, plan), "starting it");
}

static Product product_make(const char *name, Tensor d, Tensor a, Tensor b, bool transpose_a, bool transpose_b) {
    Product p = {};
    p.name = name;
    p.a = a.data, p.b = b.data, p.d = d.data;
    if (format_is_fp8(a.format)) p.scale_a = a.scale, p.scale_b = b.scale;
    p.key.shape.a = a.format, p.key.shape.b = b.format, p.key.shape.d = d.format;
    p.key.shape.transpose_a = transpose_a, p.key.shape.transpose_b = transpose_b;
    p.key.lda = a.stride, p.key.ldb = b.stride, p.key.ldd = d.stride;
    p.key.align_a = alignment(a.data), p.key.align_b = alignment(b.data), p.key.align_d = alignment(d.data);
    return p;
}

static void product_size(Product *p, int64_t m, int64_t n, int64_t k) {
    p->key.shape.m = m, p->key.shape.n = n, p->key.shape.k = k;
}

// Codes with a scale per row are multiplied as they are, and the result carries their scales.
static void carry_scales(Product *p, Tensor d, Tensor b) {
    if (b.granularity != SCALE_ROW && d.granularity != SCALE_ROW) return;
    if (b.granularity != d.granularity || b.scale != d.scale || p->bias)
        product_fail(p, "the result does not carry the scales of its rows");
    p->scale_b = NULL;
}

// y^T (out, M) = w (out, in) * x^T (in, M)
void cuda_linear_forward(Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias) {
    bool fp8 = format_is_fp8(x.format);
    Product p = product_make("linear_forward", y, fp8 ? w.codes : w.value, x, true, false);
    product_size(&p, w.value.rows, x.rows, w.value.cols);
    p.key.shape.fast = fp8;
    if (bias.data) p.key.shape.bias = bias.format, p.bias = bias.data;
    carry_scales(&p, y, x);
    product_run(exec, &p);
}

// dx^T (in, M) = w^T (in, out) * dy^T (out, M)
void cuda_linear_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    bool fp8 = format_is_fp8(dy.format);
    // without --cache-transposed all layers' weights share the memory of one transpose, made just before its use
    if (fp8 && !cuda_backend(exec)->recipe.cache_transposed) fp8_transpose_codes(exec, w.codes_t, w.codes);
    Product p = product_make("linear_backward_data", dx, fp8 ? w.codes_t : w.value, dy, fp8, false);
    product_size(&p, w.value.cols, dy.rows, w.value.rows);
    p.key.shape.fast = fp8 && cuda_backend(exec)->matmul->fast_backward;
    carry_scales(&p, dx, dy);
    product_run(exec, &p);
}

// dw^T (in, out) (+)= x^T (in, M) * dy (M, out)
void cuda_linear_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    bool fp8 = format_is_fp8(dy.format);
    Product p = product_make("linear_backward_weight", dw, x, dy, fp8, !fp8);
    if (fp8 && !(x.transposed && dy.transposed)) product_fail(&p, "FP8 operands must be stored transposed");
    product_size(&p, dw.cols, dw.rows, x.rows);
    p.key.shape.fast = fp8 && cuda_backend(exec)->matmul->fast_backward;
    p.key.accumulate = accumulate;
    product_run(exec, &p);
}

// --- open, close, tables ------------------------------------------------------------------------------------
static bool read_tables(MatmulState *state, const Exec *exec, const Config *config, Error *err) {
    const char *file = config->matmul_table, *gpu = state->gpu;
    state->committed = matmul_choices_read(matmul_table_rows, gpu, state->cublas_version);
    if (!file[0]) return true;
    if (!matmul_choices_read_file(file, gpu, state->cublas_version, &state->given, err)) return false;
    if (state->given.count == 0 && exec->rank == 0 && !config->quiet)
        fprintf(stderr, "note: --matmul-table %s has no row for %s with cuBLAS %zu\n", file, gpu,
                state->cublas_version);
    return true;
}

MatmulState *matmul_open(const Exec *exec, const Config *config, Error *err) {
    MatmulState *state = (MatmulState *)xcalloc(1, sizeof *state);
    cublasStatus_t status = cublasLtCreate(&state->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(state);
        error_set(err, EXIT_DEVICE, "cuBLASLt does not start: %s", cublasLtGetStatusString(status));
        return NULL;
    }
    state->cublas_version = cublasLtGetVersion();
    state->fast_backward = config->recipe.fast_accumulation_backward;
    state->autotune = config->autotune;
    snprintf(state->gpu, sizeof state->gpu, "%s", ((const CudaBackend *)exec->backend)->device_name);
    if (read_tables(state, exec, config, err)) return state;
    matmul_close(state);
    return NULL;
}

char *cuda_choices_text(Exec *exec) {
    const MatmulState *state = cuda_backend(exec)->matmul;
    MatmulChoice *rows = (MatmulChoice *)xcalloc((size_t)state->count, sizeof *rows);
    int count = 0;
    for (int i = 0; i < state->count; i++) {
        const Plan *plan = &state->plans[i];
        if (!plan->trained) continue;
        rows[count].key = plan->key;
        memcpy(rows[count++].algorithm, &plan->algorithm, sizeof rows->algorithm);
    }
    char *text = matmul_choices_text(rows, count, state->gpu, state->cublas_version);
    free(rows);
    return text;
}

void cuda_choices_load(Exec *exec, const char *text) {
    MatmulState *state = cuda_backend(exec)->matmul;
    free(state->resumed.rows);
    state->resumed = matmul_choices_read(text, state->gpu, state->cublas_version);
}

void matmul_close(MatmulState *state) {
    if (!state) return;
    for (int i = 0; i < state->count; i++) {
        cublasLtMatrixLayoutDestroy(state->plans[i].a);
        cublasLtMatrixLayoutDestroy(state->plans[i].b);
        cublasLtMatrixLayoutDestroy(state->plans[i].d);
        cublasLtMatmulDescDestroy(state->plans[i].operation);
    }
    free(state->resumed.rows);
    free(state->given.rows);
    free(state->committed.rows);
    cublasLtDestroy(state->handle);
    free(state);
}
