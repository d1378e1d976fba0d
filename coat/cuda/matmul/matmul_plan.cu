// Implements plans of cuBLASLt matmuls: creates descriptors, chooses the algorithm and launches the matmul.
#include "matmul_plan.h"

#include <algorithm>

static const cublasLtMatmulDescAttributes_t SCALE_A = CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
static const cublasLtMatmulDescAttributes_t SCALE_B = CUBLASLT_MATMUL_DESC_B_SCALE_POINTER;
static const cublasLtMatmulDescAttributes_t BIAS = CUBLASLT_MATMUL_DESC_BIAS_POINTER;

[[noreturn]] void matmul_fail(const Matmul *p, const char *why) {
    const MatmulShape *s = &p->key.shape;
    fatal(EXIT_DEVICE, "internal error: %s: matmul m %lld n %lld k %lld (%s x %s -> %s%s): %s", p->name,
          (long long)s->m, (long long)s->n, (long long)s->k, format_name(s->a), format_name(s->b), format_name(s->d),
          s->bias == FMT_NONE ? "" : ", bias", why);
}

// Calls fatal() with a description of the matmul if cuBLASLt's status is an error.
static void check(const Matmul *p, cublasStatus_t status, const char *doing) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    char why[256];
    snprintf(why, sizeof why, "cuBLASLt failed while %s: %s", doing, cublasLtGetStatusString(status));
    matmul_fail(p, why);
}

static cudaDataType_t library_type(Format format) {
    switch (format) {
    case FMT_BF16: return CUDA_R_16BF;
    case FMT_E4M3: return CUDA_R_8F_E4M3;
    case FMT_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
    }
}

static void set_attribute(const Matmul *p, const Plan *plan, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t bytes) {
    check(p, cublasLtMatmulDescSetAttribute(plan->operation, attribute, value, bytes), "describing the matmul");
}

// Sets a plan's scale and bias pointers. These pointers differ between layers of the same shape, which share the plan.
static void set_pointers(const Matmul *p, const Plan *plan) {
    if (format_is_fp8(p->key.shape.a)) {
        set_attribute(p, plan, SCALE_A, &p->scale_a, sizeof p->scale_a);
        set_attribute(p, plan, SCALE_B, &p->scale_b, sizeof p->scale_b);
    }
    if (p->bias) set_attribute(p, plan, BIAS, &p->bias, sizeof p->bias);
}

static void describe(const Matmul *p, Plan *plan) {
    const MatmulKey *key = &p->key;
    const MatmulShape *s = &key->shape;
    cublasOperation_t op_a = s->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = s->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(p, cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing the matmul");
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

static void set_preference(const Matmul *p, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes) {
    check(p, cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes), "choosing an algorithm");
}

// True if cuBLASLt accepts the algorithm for this plan and the algorithm's workspace fits.
static bool usable(const MatmulState *state, const Plan *plan, const cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(state->handle, plan->operation, plan->a, plan->b, plan->d, plan->d, algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= MATMUL_WORKSPACE_BYTES;
}

// Rebuilds the algorithm of an FP32 matmul from its attributes, so that all its bytes are defined. cuBLASLt leaves some
// bytes unset, but checkpoints store all bytes, and identical runs must write identical checkpoints. Keeps the original
// if cuBLASLt rejects the copy.
static void set_all_bytes(const MatmulState *state, const Matmul *p, const Plan *plan,
                          cublasLtMatmulAlgo_t *algorithm) {
    const MatmulShape *s = &p->key.shape;
    cublasLtMatmulAlgo_t same = {};
    int32_t id = 0;
    size_t bytes = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &bytes) !=
            CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoInit(state->handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, library_type(s->a), library_type(s->b),
                               library_type(s->d), library_type(s->d), id, &same) != CUBLAS_STATUS_SUCCESS)
        return;
    const struct {
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        size_t bytes;
    } settings[] = {{CUBLASLT_ALGO_CONFIG_TILE_ID, 4},          {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4}, {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},    {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},   {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
    for (const auto &setting : settings) {
        uint32_t value = 0;
        if (cublasLtMatmulAlgoConfigGetAttribute(algorithm, setting.attribute, &value, setting.bytes, &bytes) ==
            CUBLAS_STATUS_SUCCESS)
            cublasLtMatmulAlgoConfigSetAttribute(&same, setting.attribute, &value, setting.bytes);
    }
    if (usable(state, plan, &same)) *algorithm = same;
}

// Lists up to `most` of cuBLASLt's algorithms for a plan, best first, and returns their number. Excludes split-k
// algorithms that store partial sums in the output's format, because this would round the partial sums.
static int candidates(MatmulState *state, const Matmul *p, const Plan *plan, int most,
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
    if (count == 0) matmul_fail(p, "cuBLASLt has no algorithm for this matmul on this GPU");
    for (int i = 0; i < count && key->shape.a == FMT_FP32; i++) set_all_bytes(state, p, plan, &found[i].algo);
    return count;
}

static cublasStatus_t launch(Exec *exec, const Matmul *p, const Plan *plan) {
    CudaBackend *backend = cuda_backend(exec);
    if (exec->workspace_bytes < MATMUL_WORKSPACE_BYTES) matmul_fail(p, "the workspace is smaller than planned");
    return cublasLtMatmul(backend->matmul->handle, plan->operation, &p->alpha, p->a, plan->a, p->b, plan->b, &p->beta,
                          p->c, plan->d, p->d, plan->d, &plan->algorithm, exec->workspace, MATMUL_WORKSPACE_BYTES,
                          backend->stream);
}

// Returns the time per matmul in milliseconds, measured over several runs in succession; INFINITY if cuBLASLt fails.
static float timed(Exec *exec, const Matmul *p, const Plan *plan) {
    constexpr int RUNS = 4;
    cudaStream_t stream = cuda_backend(exec)->stream;
    cudaEvent_t begin, end;
    float ms = INFINITY;
    bool launched = true;
    CUDA_CHECK(cudaEventCreate(&begin), "timing a matmul");
    CUDA_CHECK(cudaEventCreate(&end), "timing a matmul");
    CUDA_CHECK(cudaEventRecord(begin, stream), "timing a matmul");
    for (int run = 0; run < RUNS && launched; run++) launched = launch(exec, p, plan) == CUBLAS_STATUS_SUCCESS;
    CUDA_CHECK(cudaEventRecord(end, stream), "timing a matmul");
    CUDA_CHECK(cudaEventSynchronize(end), "timing a matmul");
    if (launched) CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end), "timing a matmul");
    CUDA_CHECK(cudaEventDestroy(begin), "timing a matmul");
    CUDA_CHECK(cudaEventDestroy(end), "timing a matmul");
    return ms / (float)RUNS;
}

// Sets the plan's algorithm from the first usable table row whose key equals the plan's. If there is none and `others`
// is true, uses a row of the same shape for another memory layout (algo_matches()). Returns false if no row is usable.
static bool from_table(MatmulState *state, const MatmulAlgos *table, bool others, Plan *plan) {
    for (int i = 0; i < (others ? 2 : 1) * table->count; i++) {
        const MatmulAlgo *algo = &table->rows[i % table->count];
        if (!algo_matches(algo, &plan->key, i < table->count)) continue;
        cublasLtMatmulAlgo_t algorithm;
        static_assert(sizeof algorithm == sizeof algo->algorithm, "a table row stores an algorithm in 64 bytes");
        memcpy(&algorithm, algo->algorithm, sizeof algorithm);
        if (!usable(state, plan, &algorithm)) continue;
        plan->algorithm = algorithm;
        return true;
    }
    return false;
}

// Chooses the algorithm of a matmul that adds to D without running it, because trying or timing algorithms would change
// D. Uses the algorithm of the matmul with the same shape that overwrites D; every step runs that matmul first. If no
// such matmul has run, uses the algorithm of an overwriting matmul that differs only in k. Returns false if no
// algorithm is usable.
static bool from_overwriting(MatmulState *state, const Matmul *p, Plan *plan) {
    for (int i = 0; i < 2 * state->count; i++) {
        const Plan *other = &state->plans[i % state->count];
        MatmulShape shape = other->key.shape;
        if (i >= state->count) shape.k = p->key.shape.k;
        if (other->key.accumulate || !matmul_same_shape(&shape, &p->key.shape)) continue;
        if (!usable(state, plan, &other->algorithm)) continue;
        plan->algorithm = other->algorithm;
        return true;
    }
    return false;
}

// Runs the matmul with this plan's algorithm. Returns the error of samples of the matmul's output, or an error of
// INFINITY if cuBLASLt fails.
static MatmulError make_and_judge(Exec *exec, MatmulState *state, const Matmul *p, const Plan *plan) {
    const SampledMatmul sampled = {p->key, p->a, p->b, p->d, (const float *)p->scale_a, (const float *)p->scale_b};
    matmul_samples_before(exec, state->samples, &sampled);
    if (launch(exec, p, plan) != CUBLAS_STATUS_SUCCESS) return {INFINITY, 0};
    return matmul_samples_after(exec, state->samples, &sampled);
}

// Calls the test's visitor with the error of the committed table's algorithm, if there is one, and of each algorithm
// that cuBLASLt suggests. If the matmul adds to D, reports at most one algorithm: the committed table's or, without a
// table row, that of the matmul that overwrites D.
static void visit(Exec *exec, MatmulState *state, const Matmul *p, Plan *plan) {
    cublasLtMatmulHeuristicResult_t found[FIND_CANDIDATES] = {};
    const MatmulVisitor *v = &state->visitor;
    const bool in_table = from_table(state, &state->committed, true, plan);
    if (in_table || (p->key.accumulate && from_overwriting(state, p, plan)))
        v->report(v->context, &p->key, in_table ? -1 : 0, make_and_judge(exec, state, p, plan));
    if (p->key.accumulate) return;
    const int count = candidates(state, p, plan, FIND_CANDIDATES, found);
    for (int i = 0; i < count; i++) {
        plan->algorithm = found[i].algo;
        v->report(v->context, &p->key, i, make_and_judge(exec, state, p, plan));
    }
}

// Chooses cuBLASLt's first algorithm or, if `exact`, the first that accumulates in FP32. If none does, prints a warning
// and chooses the algorithm with the least error. If the operands are all 0 or not finite, as in a skipped step, errors
// cannot be measured. Then chooses the first algorithm.
static void choose_first(Exec *exec, MatmulState *state, const Matmul *p, Plan *plan, bool exact) {
    cublasLtMatmulHeuristicResult_t found[FIND_CANDIDATES] = {};
    candidates(state, p, plan, 1, found);
    plan->algorithm = found[0].algo;
    if (!exact) return;
    const MatmulError first = make_and_judge(exec, state, p, plan);
    if (isnan(first.error) || matmul_is_exact(first)) return;
    double least = INFINITY;
    int best = 0;
    const int count = candidates(state, p, plan, FIND_CANDIDATES, found);
    for (int i = 0; i < count; i++) {
        plan->algorithm = found[i].algo;
        const MatmulError e = make_and_judge(exec, state, p, plan);
        if (matmul_is_exact(e)) return;
        if (e.error < least) least = e.error, best = i;
    }
    plan->algorithm = found[best].algo;
    const MatmulShape *s = &p->key.shape;
    fprintf(
        stderr,
        "warning: %s, m %lld n %lld k %lld, %s x %s: no algorithm of this cuBLAS accumulates in FP32; the best has an "
        "error of %.2g %%; use --linear bf16 for FP32 sums\n",
        p->name, (long long)s->m, (long long)s->n, (long long)s->k, format_name(s->a), format_name(s->b), 100 * least);
}

// Chooses the fastest of cuBLASLt's algorithms; if `exact`, the fastest that accumulates in FP32. Returns false if no
// algorithm is usable. The GPU's clock falls under load. Each round therefore times every algorithm once, so that all
// algorithms are timed at similar clocks.
static bool choose_fastest(Exec *exec, MatmulState *state, const Matmul *p, Plan *plan, bool exact) {
    constexpr int ROUNDS = 6; // number of rounds that time every algorithm; the first one warms up
    cublasLtMatmulHeuristicResult_t found[FIND_CANDIDATES] = {};
    float ms[FIND_CANDIDATES];
    const int count = candidates(state, p, plan, FIND_CANDIDATES, found);
    for (int i = 0; i < count; i++) {
        plan->algorithm = found[i].algo;
        ms[i] = exact && !matmul_is_exact(make_and_judge(exec, state, p, plan)) ? INFINITY : 0.0f;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            plan->algorithm = found[i].algo;
            const float now = ms[i] < INFINITY ? timed(exec, p, plan) : 0.0f;
            if (round > 0 || now == INFINITY) ms[i] += now;
        }
    const int best = (int)(std::min_element(ms, ms + count) - ms);
    if (ms[best] == INFINITY) return false;
    plan->algorithm = found[best].algo;
    return true;
}

// Chooses a plan's algorithm. A resumed run uses the algorithms recorded in its checkpoint, even with --autotune. A
// matmul that the checkpoint does not list has not run in training, so its algorithm is chosen as in an uninterrupted
// run. --autotune tunes only the matmuls of training, because a resumed run does not repeat earlier evaluations.
static void choose(Exec *exec, MatmulState *state, const Matmul *p, Plan *plan) {
    const bool tunes = state->autotune && exec->trains;
    const bool exact = format_is_fp8(p->key.shape.a) && !p->key.shape.fast && !p->key.accumulate;
    if (state->visitor.report && format_is_fp8(p->key.shape.a)) visit(exec, state, p, plan);
    if (from_table(state, &state->resumed, false, plan) || from_table(state, &state->given, true, plan)) return;
    if (!tunes && from_table(state, &state->committed, true, plan)) return;
    if (p->key.accumulate && from_overwriting(state, p, plan)) return;
    if (tunes && !p->key.accumulate && choose_fastest(exec, state, p, plan, exact)) return;
    choose_first(exec, state, p, plan, exact);
}

// Returns the plan of a matmul. Creates the plan when the matmul's key first occurs.
static const Plan *plan_get(Exec *exec, const Matmul *p) {
    MatmulState *state = cuda_backend(exec)->matmul;
    for (int i = 0; i < state->count; i++) {
        Plan *plan = &state->plans[i];
        if (!matmul_same_key(&plan->key, &p->key)) continue;
        if (exec->trains && !plan->trained) {
            // an evaluation created this plan without tuning it, so it is tuned at its first use in training
            if (state->autotune) choose(exec, state, p, plan);
            plan->trained = true;
        }
        return plan;
    }
    if (state->count == MAX_PLANS) matmul_fail(p, "the run uses more different matmuls than the table of plans holds");
    Plan *plan = &state->plans[state->count];
    plan->key = p->key;
    describe(p, plan);
    choose(exec, state, p, plan);
    plan->trained = exec->trains;
    state->count++;
    return plan;
}

static void set_batch(const Matmul *p, cublasLtMatrixLayout_t layout, int32_t count, int64_t distance) {
    const cublasLtMatrixLayoutAttribute_t STRIDE = CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
    check(p, cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
          "describing a batch");
    check(p, cublasLtMatrixLayoutSetAttribute(layout, STRIDE, &distance, sizeof distance), "describing a batch");
}

// Returns the address of matrix number i of a batch.
static char *batch_address(const void *first, int64_t i, int64_t distance, Format format) {
    return (char *)first + i * distance * (int64_t)format_bytes(format);
}

// Runs p->count matmuls with the algorithm chosen for a single one, so that no result depends on p->count. Runs them
// one by one if cuBLASLt refuses this algorithm for the batch.
static void launch_batch(Exec *exec, const Matmul *p, const Plan *plan) {
    const MatmulShape *s = &p->key.shape;
    set_batch(p, plan->a, p->count, p->distance_a);
    set_batch(p, plan->b, p->count, p->distance_b);
    set_batch(p, plan->d, p->count, p->distance_d);
    const bool together = usable(cuda_backend(exec)->matmul, plan, &plan->algorithm);
    if (together) check(p, launch(exec, p, plan), "starting a batch of matmuls");
    set_batch(p, plan->a, 1, 0);
    set_batch(p, plan->b, 1, 0);
    set_batch(p, plan->d, 1, 0);
    for (int i = 0; i < p->count && !together; i++) {
        Matmul one = *p;
        one.a = batch_address(p->a, i, p->distance_a, s->a);
        one.b = batch_address(p->b, i, p->distance_b, s->b);
        one.c = batch_address(p->c, i, p->distance_d, s->d);
        one.d = batch_address(p->d, i, p->distance_d, s->d);
        check(p, launch(exec, &one, plan), "starting the matmul");
    }
}

void matmul_launch(Exec *exec, const Matmul *p) {
    const Plan *plan = plan_get(exec, p);
    set_pointers(p, plan);
    if (p->count > 1)
        launch_batch(exec, p, plan);
    else
        check(p, launch(exec, p, plan), "starting the matmul");
}
