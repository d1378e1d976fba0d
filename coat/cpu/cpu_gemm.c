// Products of small FP32 blocks on one thread, for attention: OpenBLAS where it is linked, else plain loops.
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
