// Matmuls by cuBLASLt of linear layers (forward, dgrad, wgrad) and of the Muon optimizer. Their formats are BF16, FP8
// and FP32. The FP8 forward always uses the tensor cores' fast accumulation. FP8 dgrad uses fast accumulation only with
// --fast-accumulation-data. Otherwise, and for FP8 wgrad, algorithms that accumulate in FP32 are chosen
// (matmul_plan.h).
//
// cuBLASLt is column-major: a row-major (rows, cols) matrix with a row stride is a column-major (cols, rows) matrix
// whose leading dimension is that stride. Therefore y = x w^T is computed as y^T = w x^T. On Hopper, both FP8 operands
// must be contiguous along k, the dimension that the matmul sums over. Therefore dgrad and wgrad need transposed copies
// of FP8 tensors.
#include "cuda/common/cuda_internal.h"
#include "cuda/fp8/fp8_ops.h"
#include "matmul_plan.h"
#include "matmul_table_rows.h"

#include <algorithm>

// Returns the largest power of two, at most 256, that divides an address.
static int alignment(const void *address) {
    uintptr_t bits = (uintptr_t)address | 256;
    return (int)(bits & (~bits + 1));
}

// --- the three matmuls of a linear layer -------------------------------------------------------------------
static void matmul_run(Exec *exec, const Matmul *p) {
    const MatmulShape *s = &p->key.shape;
    if (s->m == 0 || s->n == 0 || s->k == 0) return;
    if (format_is_fp8(s->a) != format_is_fp8(s->b)) matmul_fail(p, "FP8 and wider operands cannot be mixed");
    if (format_is_fp8(s->a)) {
        if (s->m % 16 || s->n % 16 || s->k % 16 || p->key.lda % 16 || p->key.ldb % 16)
            matmul_fail(p, "FP8 matmuls need all sizes and strides to be multiples of 16");
        if (!p->scale_a || alignment(p->scale_a) < 16 || (p->scale_b && alignment(p->scale_b) < 16))
            matmul_fail(p, "the scales of FP8 operands must be 16-byte aligned");
    }
    matmul_launch(exec, p);
}

// Returns a description of the matmul D = op(A) * op(B) without its sizes, which matmul_size() sets.
static Matmul matmul_make(const char *name, Tensor d, Tensor a, Tensor b, bool transpose_a, bool transpose_b) {
    Matmul p = {};
    p.name = name;
    p.a = a.data, p.b = b.data, p.c = p.d = d.data, p.alpha = 1.0f, p.count = 1;
    if (format_is_fp8(a.format)) p.scale_a = a.scale, p.scale_b = b.scale;
    p.key.shape.a = a.format, p.key.shape.b = b.format, p.key.shape.d = d.format;
    p.key.shape.transpose_a = transpose_a, p.key.shape.transpose_b = transpose_b;
    p.key.lda = a.stride, p.key.ldb = b.stride, p.key.ldd = d.stride;
    p.key.align_a = alignment(a.data), p.key.align_b = alignment(b.data), p.key.align_d = alignment(d.data);
    return p;
}

static void matmul_size(Matmul *p, int64_t m, int64_t n, int64_t k) {
    p->key.shape.m = m, p->key.shape.n = n, p->key.shape.k = k;
}

// If b and d have row scales, b's row scales are not applied in the matmul: d has the same row scales, by the same
// pointer. Calls fatal() if only one of b and d has row scales, if their scale pointers differ, or if there is a bias.
static void carry_scales(Matmul *p, Tensor d, Tensor b) {
    if (b.granularity != SCALE_ROW && d.granularity != SCALE_ROW) return;
    if (b.granularity != d.granularity || b.scale != d.scale || p->bias)
        matmul_fail(p, "a result with row scales must share its input's scales and have no bias");
    p->scale_b = NULL;
}

// Computes a linear layer's forward matmul: y^T (out, M) = w (out, in) * x^T (in, M).
void cuda_linear_forward(Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias) {
    bool fp8 = format_is_fp8(x.format);
    Matmul p = matmul_make("linear_forward", y, fp8 ? w.codes : w.value, x, true, false);
    matmul_size(&p, w.value.rows, x.rows, w.value.cols);
    p.key.shape.fast = fp8;
    if (bias.data) p.key.shape.bias = bias.format, p.bias = bias.data;
    carry_scales(&p, y, x);
    matmul_run(exec, &p);
}

// Computes a linear layer's dgrad: dx^T (in, M) = w^T (in, out) * dy^T (out, M).
void cuda_linear_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    bool fp8 = format_is_fp8(dy.format);
    // Without --cache-transposed, the transposed FP8 weights of all layers share one buffer. Therefore this layer's
    // transpose is written just before dgrad reads the buffer.
    if (fp8 && !cuda_backend(exec)->recipe.cache_transposed) fp8_transpose_codes(exec, w.codes_t, w.codes);
    Matmul p = matmul_make("linear_backward_data", dx, fp8 ? w.codes_t : w.value, dy, fp8, false);
    matmul_size(&p, w.value.cols, dy.rows, w.value.rows);
    p.key.shape.fast = fp8 && cuda_backend(exec)->matmul->fast_data;
    carry_scales(&p, dx, dy);
    matmul_run(exec, &p);
}

// Computes a linear layer's wgrad: dw^T (in, out) = (accumulate ? dw^T : 0) + x^T (in, M) * dy (M, out).
void cuda_linear_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    if (!dw.data) return;
    bool fp8 = format_is_fp8(dy.format);
    Matmul p = matmul_make("linear_backward_weight", dw, x, dy, fp8, !fp8);
    if (fp8 && !(x.transposed && dy.transposed)) matmul_fail(&p, "FP8 operands must be stored transposed");
    matmul_size(&p, dw.cols, dw.rows, x.rows);
    p.key.accumulate = accumulate, p.beta = accumulate ? 1.0f : 0.0f;
    matmul_run(exec, &p);
}

// Returns the distance in elements between the starts of consecutive matrices; tensor t consists of `count` matrices.
// Sets *aligned to false if that distance is not a multiple of 256 bytes, because the matrices may then differ in
// alignment.
static int64_t matrix_distance(Tensor t, int count, bool *aligned) {
    const int64_t distance = t.rows / count * t.stride;
    *aligned = *aligned && distance * (int64_t)format_bytes(t.format) % 256 == 0;
    return distance;
}

void matmul_add(Exec *exec, int count, Tensor d, float alpha, Tensor a, Tensor b, bool transpose_a, bool transpose_b,
                int64_t k, float beta, Tensor c) {
    bool aligned = true;
    Matmul p = matmul_make("muon_orthogonalize", d, b, a, transpose_b, transpose_a);
    matmul_size(&p, d.cols, d.rows / count, k);
    p.alpha = alpha, p.beta = beta;
    p.count = count;
    p.distance_a = matrix_distance(b, count, &aligned), p.distance_b = matrix_distance(a, count, &aligned);
    p.distance_d = matrix_distance(d, count, &aligned);
    for (int i = 0; i < count && count > 1 && !aligned; i++)
        matmul_add(exec, 1, tensor_matrix(d, count, i), alpha, tensor_matrix(a, count, i), tensor_matrix(b, count, i),
                   transpose_a, transpose_b, k, beta, tensor_matrix(c, count, i));
    if (count > 1 && !aligned) return;
    if (c.data) {
        if (c.stride != d.stride || c.format != d.format)
            matmul_fail(&p, "the addend does not have the result's layout");
        p.c = c.data;
        p.key.align_d = std::min(p.key.align_d, alignment(c.data));
    }
    matmul_run(exec, &p);
}

// --- opening and closing cuBLASLt, and reading the tables of algorithms ----------------------------------------------
// Returns the committed table's rows for this GPU. For shapes without such a row, any Hopper GPU with 132 SMs uses the
// H200's rows: the 80 GB H100 is the same chip with different memory.
static MatmulAlgos committed_algos(const CudaBackend *backend, size_t cublas_version) {
    MatmulAlgos algos = algos_read(matmul_table_rows, backend->device_name, cublas_version);
    if (backend->capability == 90 && backend->sm_count == 132)
        algos_add(&algos, matmul_table_rows, "NVIDIA H200", cublas_version);
    return algos;
}

static bool read_tables(MatmulState *state, const Exec *exec, const Config *config, Error *err) {
    const char *file = config->matmul_table, *gpu = state->gpu;
    state->committed = committed_algos((const CudaBackend *)exec->backend, state->cublas_version);
    if (!file[0]) return true;
    if (!algos_read_file(file, gpu, state->cublas_version, &state->given, err)) return false;
    if (state->given.count > 0 || exec->rank > 0 || config->quiet) return true;
    Error note;
    error_set(&note, EXIT_DONE, "--matmul-table %s has no row for %s with cuBLAS %zu and has no effect", file, gpu,
              state->cublas_version);
    fprintf(stderr, "note: %s\n", note.text);
    return true;
}

MatmulState *matmul_open(const Exec *exec, const Config *config, Error *err) {
    MatmulState *state = (MatmulState *)xcalloc(1, sizeof *state);
    cublasStatus_t status = cublasLtCreate(&state->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(state);
        error_set(err, EXIT_DEVICE, "cuBLASLt cannot be initialized: %s; check the GPU's free memory with nvidia-smi",
                  cublasLtGetStatusString(status));
        return NULL;
    }
    state->cublas_version = cublasLtGetVersion();
    state->fast_data = config->recipe.fast_accumulation_data;
    state->autotune = config->autotune;
    snprintf(state->gpu, sizeof state->gpu, "%s", ((const CudaBackend *)exec->backend)->device_name);
    state->samples = matmul_samples_open();
    if (read_tables(state, exec, config, err)) return state;
    matmul_close(state);
    return NULL;
}

char *cuda_algos_text(Exec *exec) {
    const MatmulState *state = cuda_backend(exec)->matmul;
    MatmulAlgo *rows = (MatmulAlgo *)xcalloc((size_t)state->count, sizeof *rows);
    int count = 0;
    for (int i = 0; i < state->count; i++) {
        const Plan *plan = &state->plans[i];
        if (!plan->trained) continue;
        rows[count].key = plan->key;
        memcpy(rows[count++].algorithm, &plan->algorithm, sizeof rows->algorithm);
    }
    char *text = algos_text(rows, count, state->gpu, state->cublas_version);
    free(rows);
    return text;
}

void cuda_algos_load(Exec *exec, const char *text) {
    MatmulState *state = cuda_backend(exec)->matmul;
    free(state->resumed.rows);
    state->resumed = algos_read(text, state->gpu, state->cublas_version);
}

void matmul_visit(Exec *exec, MatmulVisitor visitor) {
    cuda_backend(exec)->matmul->visitor = visitor;
}

void matmul_close(MatmulState *state) {
    if (!state) return;
    for (int i = 0; i < state->count; i++) {
        cublasLtMatrixLayoutDestroy(state->plans[i].a);
        cublasLtMatrixLayoutDestroy(state->plans[i].b);
        cublasLtMatrixLayoutDestroy(state->plans[i].d);
        cublasLtMatmulDescDestroy(state->plans[i].operation);
    }
    matmul_samples_close(state->samples);
    free(state->resumed.rows);
    free(state->given.rows);
    free(state->committed.rows);
    cublasLtDestroy(state->handle);
    free(state);
}
