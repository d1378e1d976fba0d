// The matrix products of the linear layers. C is cut into tiles by its shape alone, so that the result does
// not depend on the number of threads; a thread decodes the panels of A and B that a tile needs to FP32 (they
// stay in its cache) and multiplies them with a single-threaded library call.
#include "cpu_internal.h"

#include <stdlib.h>
#include <string.h>

#ifdef COAT_OPENBLAS
#include <cblas.h>
extern char *openblas_get_corename(void);

// OpenBLAS picks its kernels by the CPU's model, and versions older than a CPU (0.3.21 on Zen 4 and later) take
// the AVX2 ones though it has AVX-512, at half the speed. Linked statically it reads this variable in its
// constructor, so an earlier constructor can help; what the user has set stays.
__attribute__((constructor(101))) static void choose_openblas_kernels(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
#endif
}

void gemm_open(void) {
    openblas_set_num_threads(1); // the threads are ours, and the tiles fixed
}

const char *gemm_name(void) {
    static char name[64];
    snprintf(name, sizeof name, "OpenBLAS (%s)", openblas_get_corename());
    return name;
}

void gemm_block(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda, const real *b,
                int64_t ldb, real beta, real *c, int64_t ldc) {
#ifdef COAT_DOUBLE
    cblas_dgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n,
                (int)k, 1, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
#else
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n,
                (int)k, 1, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
#endif
}
#else
void gemm_open(void) {}

const char *gemm_name(void) {
    return "own loops";
}

void gemm_block(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda, const real *b,
                int64_t ldb, real beta, real *c, int64_t ldc) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
        for (int64_t l = 0; l < k; l++) {
            real x = trans_a ? a[l * lda + i] : a[i * lda + l];
            if (trans_b)
                for (int64_t j = 0; j < n; j++) c[i * ldc + j] += x * b[j * ldb + l];
            else
                for (int64_t j = 0; j < n; j++) c[i * ldc + j] += x * b[l * ldb + j];
        }
    }
}
#endif

// c (m, n) = a b (+ c) + bias; a and b as gemm_block has them.
typedef struct {
    Tensor a, b, c;
    bool trans_a, trans_b, accumulate;
    const real *bias; // (n), or NULL
    int64_t m, n, k;
} Product;

static void product_tile(const Cpu *cpu, Scratch slot, const Product *p, int64_t i, int64_t j) {
    int64_t rows = smaller(CPU_TILE_M, p->m - i), cols = smaller(CPU_TILE_N, p->n - j), lda, ldb;
    real *a_buffer = scratch_take(&slot, CPU_TILE_M * CPU_TILE_K);
    real *b_buffer = scratch_take(&slot, CPU_TILE_N * CPU_TILE_K);
    real *tile = scratch_take(&slot, CPU_TILE_M * CPU_TILE_N);
    bool direct = p->c.format == FMT_FP32;
    real *c = direct ? (real *)row_address(p->c, i) + j : tile;
    int64_t ldc = direct ? p->c.stride : cols;
    if (p->accumulate && !direct)
        for (int64_t row = 0; row < rows; row++) row_load(cpu, p->c, i + row, j, cols, tile + row * cols);
    for (int64_t k = 0; k < p->k; k += CPU_TILE_K) {
        int64_t depth = smaller(CPU_TILE_K, p->k - k);
        const real *a = p->trans_a ? block_load(cpu, p->a, k, depth, i, rows, a_buffer, &lda)
                                   : block_load(cpu, p->a, i, rows, k, depth, a_buffer, &lda);
        const real *b = p->trans_b ? block_load(cpu, p->b, j, cols, k, depth, b_buffer, &ldb)
                                   : block_load(cpu, p->b, k, depth, j, cols, b_buffer, &ldb);
        gemm_block(p->trans_a, p->trans_b, rows, cols, depth, a, lda, b, ldb, k > 0 || p->accumulate, c, ldc);
    }
    for (int64_t row = 0; row < rows; row++) {
        if (p->bias) cpu->kernels->add(c + row * ldc, p->bias + j, cols);
        if (!direct) row_store(cpu, p->c, i + row, j, cols, c + row * ldc);
    }
}

static void product(Exec *exec, Product *p, Tensor bias) {
    require_plain("product", p->a);
    require_plain("product", p->b);
    require_plain("product", p->c);
    const Cpu *cpu = cpu_of(exec);
    Scratch scratch = scratch_begin(exec);
    p->bias = scratch_vector(&scratch, cpu, bias);
    int64_t columns = (p->n + CPU_TILE_N - 1) / CPU_TILE_N, tiles = (p->m + CPU_TILE_M - 1) / CPU_TILE_M * columns;
    int threads = scratch_slots(&scratch, cpu, cpu_gemm_slot());
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t tile = 0; tile < tiles; tile++)
        product_tile(cpu, scratch_slot(&scratch), p, tile / columns * CPU_TILE_M, tile % columns * CPU_TILE_N);
}

void cpu_linear_forward(Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias) {
    Product p = {.a = x, .b = w.value, .c = y, .trans_b = true, .m = x.rows, .n = w.value.rows, .k = x.cols};
    product(exec, &p, bias);
}

void cpu_linear_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    Product p = {.a = dy, .b = w.value, .c = dx, .m = dy.rows, .n = w.value.cols, .k = dy.cols};
    Tensor none = {0};
    product(exec, &p, none);
}

void cpu_linear_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    Product p = {
        .a = dy, .b = x, .c = dw, .trans_a = true, .accumulate = accumulate, .m = dy.cols, .n = x.cols, .k = dy.rows};
    Tensor none = {0};
    product(exec, &p, none);
}
