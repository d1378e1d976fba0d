// Computes matmuls with OpenBLAS if the program is linked with it. Otherwise these functions are stubs, and the panel
// kernels are used.
#include "cpu_internal.h"

#ifdef COAT_OPENBLAS
#include <cblas.h>
#include <sys/mman.h>
extern char *openblas_get_corename(void);
// Internal functions of OpenBLAS. Declared weak, because a shared library may not export them.
extern void *blas_memory_alloc(int) __attribute__((weak));
extern void blas_memory_free(void *) __attribute__((weak));

// Bytes of address space that OpenBLAS needs for one concurrent matmul: a buffer of 128 MiB and its bookkeeping.
#define BLAS_BYTES ((size_t)129 << 20)
// maximum number of buffers to reserve; OpenBLAS limits the number of concurrent matmuls itself
#define MAX_RESERVED 64

// Sets OpenBLAS's environment variables before its constructor reads them, if it is linked statically.
// - Threads: 1, because OpenBLAS's threads are not used, and it retries forever if there is no memory for their
// buffers.
// - Kernels: OpenBLAS selects them by CPU model. For models newer than itself (Zen 4 and 5 with version 0.3.21) it
// selects AVX2 kernels, which are half as fast.
// A value set by the user is not changed.
__attribute__((constructor(101))) static void prepare_library(void) {
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
#endif
}

bool blas_open(void) {
    openblas_set_num_threads(
        1); // needed if OpenBLAS is a shared library, which has already read its environment variables
    return true;
}

const char *blas_core(void) {
    return openblas_get_corename();
}

// Returns the bytes of address space that OpenBLAS needs for matmuls on `threads` threads.
int64_t blas_bytes(int threads) {
    return (int64_t)BLAS_BYTES * (threads < MAX_RESERVED ? threads : MAX_RESERVED);
}

// Tests with mmap() whether OpenBLAS's memory is available, then makes OpenBLAS allocate it. Without this, OpenBLAS
// would allocate a buffer in each thread's first matmul, and retry forever if that fails.
bool blas_reserve(int threads) {
    void *taken[MAX_RESERVED];
    int count = threads < MAX_RESERVED ? threads : MAX_RESERVED, tried = 0;
    for (; tried < count; tried++) {
        taken[tried] = mmap(NULL, BLAS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (taken[tried] == MAP_FAILED) break;
    }
    for (int i = 0; i < tried; i++) munmap(taken[i], BLAS_BYTES);
    if (tried < count || !blas_memory_alloc || !blas_memory_free) return tried == count;
    for (int i = 0; i < count; i++) taken[i] = blas_memory_alloc(0);
    for (int i = 0; i < count; i++) blas_memory_free(taken[i]);
    return true;
}

void blas_matmul(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda, const real *b,
                 int64_t ldb, bool add, real *c, int64_t ldc) {
    CBLAS_TRANSPOSE ta = trans_a ? CblasTrans : CblasNoTrans, tb = trans_b ? CblasTrans : CblasNoTrans;
#ifdef COAT_DOUBLE
    cblas_dgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, add, c, (int)ldc);
#else
    cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, add, c, (int)ldc);
#endif
}

#else
bool blas_open(void) {
    return false;
}

const char *blas_core(void) {
    return "none";
}

bool blas_reserve(int threads) {
    (void)threads;
    return true;
}

int64_t blas_bytes(int threads) {
    (void)threads;
    return 0;
}

void blas_matmul(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const real *a, int64_t lda, const real *b,
                 int64_t ldb, bool add, real *c, int64_t ldc) {
    (void)trans_a, (void)trans_b, (void)m, (void)n, (void)k, (void)a, (void)lda, (void)b, (void)ldb, (void)add;
    (void)c, (void)ldc;
    fatal(EXIT_DEVICE, "internal error: matmul by OpenBLAS in a program built without it");
}
#endif
