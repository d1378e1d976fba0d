// Computes matmuls with OpenBLAS if the program is built with it. Otherwise, these functions are stubs, and matmuls use
// the panel kernels of cpu_matmul_body.h.
#include "cpu_internal.h"

#ifdef COAT_OPENBLAS
#include <cblas.h>
#include <sys/mman.h>
extern char *openblas_get_corename(void);
// Internal functions of OpenBLAS, declared weak because OpenBLAS as a shared library may not export them.
extern void *blas_memory_alloc(int) __attribute__((weak));
extern void blas_memory_free(void *) __attribute__((weak));

// Bytes of address space that OpenBLAS needs per thread that runs a matmul: a buffer of 128 MiB and its bookkeeping.
#define BLAS_BYTES ((size_t)129 << 20)
// Maximum number of OpenBLAS buffers to reserve. OpenBLAS itself limits how many matmuls run at a time.
#define MAX_RESERVED 64

// Sets OpenBLAS's environment variables before the constructor of a statically linked OpenBLAS reads them:
// - OPENBLAS_NUM_THREADS=1, because OpenBLAS's own threads are not used, and OpenBLAS retries forever if there is no
//   memory for their buffers.
// - OPENBLAS_CORETYPE, unless the user has set it, because OpenBLAS selects AVX2 kernels for CPU models newer than
//   itself (Zen 4 and 5 with version 0.3.21). AVX2 kernels are half as fast as AVX-512 kernels.
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
    // repeats the setting of prepare_library(), because a shared OpenBLAS reads OPENBLAS_NUM_THREADS before that call
    openblas_set_num_threads(1);
    return true;
}

const char *blas_core(void) {
    return openblas_get_corename();
}

int64_t blas_bytes(int threads) {
    return (int64_t)BLAS_BYTES * (threads < MAX_RESERVED ? threads : MAX_RESERVED);
}

// Tests with mmap() whether memory for OpenBLAS's buffers is available, then makes OpenBLAS allocate them. Without this
// call, OpenBLAS would allocate a buffer in each thread's first matmul, and retry forever if there is no memory.
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
