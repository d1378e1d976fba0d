// Fixture for tests of CPU operations, which owns tensors with random values or NaN. A test runs in FP32 and BF16, on
// every instruction set of this machine, and with 1, 2 and 3 threads, which must give the same bits.
#pragma once
#include <math.h>

#include "coat/cpu/cpu_internal.h"
#include "dev/test/unit.h"

#define MAX_TENSORS 1024

typedef struct {
    Exec exec;
    Config config;
    Format format;   // format of activations and weights
    double bad;      // NaN or inf that the test writes into a tensor; 0: none
    StepState state; // see watch()
    uint64_t draws;
    void *memory[MAX_TENSORS];
    size_t bytes[MAX_TENSORS];
    int count;
} Fixture;

// Returns a pseudo-random number in [-1, 1). The n-th call after fixture_begin() always returns the same number.
static inline double draw(Fixture *f) {
    uint64_t z = (f->draws += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (double)(int64_t)((z ^ (z >> 31)) >> 11) / (double)(1ull << 52) - 1;
}

static inline double value(Tensor t, int64_t i, int64_t j) {
    if (t.format == FMT_FP32) return (double)((const real *)t.data)[i * t.stride + j];
    if (t.format == FMT_BF16) return (double)bf16_decode(((const uint16_t *)t.data)[i * t.stride + j]);
    return (double)((const int32_t *)t.data)[i * t.stride + j];
}

static inline void set_value(Tensor t, int64_t i, int64_t j, double x) {
    if (t.format == FMT_FP32)
        ((real *)t.data)[i * t.stride + j] = (real)x;
    else if (t.format == FMT_BF16)
        ((uint16_t *)t.data)[i * t.stride + j] = bf16_encode((float)x);
    else
        ((int32_t *)t.data)[i * t.stride + j] = (int32_t)x;
}

// Returns a new tensor filled with 0xff bytes, which are NaN in every format, so that elements that an operation skips
// are detected.
static inline Tensor poisoned(Fixture *f, Format format, int64_t rows, int64_t cols) {
    Tensor t = {0};
    size_t bytes = (size_t)(rows * cols) * format_bytes(format);
    t.data = xmalloc(bytes);
    memset(t.data, 0xff, bytes);
    t.rows = rows;
    t.cols = t.stride = cols;
    t.format = format;
    assert_true(f->count < MAX_TENSORS);
    f->memory[f->count] = t.data;
    f->bytes[f->count++] = bytes;
    return t;
}

static inline Tensor random_tensor(Fixture *f, Format format, int64_t rows, int64_t cols, double size) {
    Tensor t = poisoned(f, format, rows, cols);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) set_value(t, i, j, size * draw(f));
    return t;
}

static inline Tensor copy_of(Fixture *f, Tensor x) {
    Tensor t = poisoned(f, x.format, x.rows, x.cols);
    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t j = 0; j < x.cols; j++) set_value(t, i, j, value(x, i, j));
    return t;
}

static inline bool same_bits(Tensor a, Tensor b) {
    for (int64_t i = 0; i < a.rows; i++) {
        size_t row = (size_t)a.cols * format_bytes(a.format), step = (size_t)a.stride * format_bytes(a.format);
        size_t other = (size_t)b.stride * format_bytes(b.format);
        if (memcmp((char *)a.data + (size_t)i * step, (char *)b.data + (size_t)i * other, row) != 0) return false;
    }
    return true;
}

// Asserts that element (i, j) of t is `expected`, within the rounding error of t's format and 2e-6 * slack.
//   slack: magnitude of the terms whose sum is the element
//   roundings: 2 if `expected` was rounded to t's format as well, otherwise 1
static inline void assert_rounded(Tensor t, int64_t i, int64_t j, double expected, double slack, int roundings) {
    double x = value(t, i, j), rounding = t.format == FMT_BF16 ? 1.0 / 256 : 1e-6;
    if (fabs(x - expected) <= roundings * rounding * fabs(expected) + 2e-6 * slack) return;
    fail_msg("element (%ld, %ld) is %.9g, expected %.9g", (long)i, (long)j, x, expected);
}

static inline void assert_value(Tensor t, int64_t i, int64_t j, double expected, double slack) {
    assert_rounded(t, i, j, expected, slack, 1);
}

static inline void fixture_begin(Fixture *f, Format format, int threads) {
    Error err;
    memset(f, 0, sizeof *f);
    f->format = format;
    f->config.threads = threads;
    f->config.micro_batch = 3;
    f->config.seq_len = 100;
    f->config.shape.heads = f->config.shape.kv_heads = 4;
    f->config.shape.head_dim = 24;
    f->config.shape.channels = 96;
    f->config.shape.ffn = 1200; // the largest width that any test uses
    f->exec.ops = cpu_ops();
    assert_true(f->exec.ops->open(&f->exec, &f->config, &err));
    f->exec.workspace_bytes = cpu_workspace(&f->config).bytes;
    f->exec.workspace = f->exec.ops->allocate(&f->exec, f->exec.workspace_bytes, &err);
    assert_non_null(f->exec.workspace);
    memset(f->exec.workspace, 0xff, f->exec.workspace_bytes);
}

// Frees the fixture. Returns a hash of the bytes of all its tensors.
static inline uint64_t fixture_end(Fixture *f) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (int i = 0; i < f->count; i++) {
        for (size_t b = 0; b < f->bytes[i]; b++) hash = (hash ^ ((const uint8_t *)f->memory[i])[b]) * 0x100000001b3ull;
        free(f->memory[i]);
    }
    f->exec.ops->release(&f->exec, f->exec.workspace);
    f->exec.ops->close(&f->exec);
    return hash;
}

// One implementation of the CPU backend: the kernels of an instruction set, with or without the BLAS library's matmuls.
typedef struct {
    const CpuKernels *kernels;
    bool blas;
} Variant;

static inline int fixture_variants(Variant list[CPU_VARIANTS + 1]) {
    const CpuKernels *kernels[CPU_VARIANTS];
    int count = cpu_kernels_supported(kernels);
    for (int i = 0; i < count; i++) {
        list[i].kernels = kernels[i];
        list[i].blas = false;
    }
    if (!blas_open()) return count;
    list[count].kernels = kernels[count - 1];
    list[count].blas = true;
    return count + 1;
}

// Runs `body` on every implementation of the CPU backend, in FP32 and BF16, with 1, 2 and 3 threads. Asserts that the
// number of threads changes no bit. bad: see Fixture.
static inline void run_with(void (*body)(Fixture *), double bad) {
    const Format formats[2] = {FMT_FP32, FMT_BF16};
    Variant variants[CPU_VARIANTS + 1];
    int count = fixture_variants(variants);
    for (int i = 0; i < 2 * count; i++) {
        uint64_t first = 0;
        for (int threads = 1; threads <= 3; threads++) {
            Fixture f;
            fixture_begin(&f, formats[i % 2], threads);
            ((Cpu *)f.exec.backend)->kernels = variants[i / 2].kernels;
            ((Cpu *)f.exec.backend)->blas = variants[i / 2].blas;
            f.bad = bad;
            body(&f);
            uint64_t hash = fixture_end(&f);
            if (threads == 1) first = hash;
            assert_true(hash == first);
        }
    }
}
static inline void run_with_nonfinite(void (*body)(Fixture *)) {
    run_with(body, INFINITY);
    run_with(body, NAN);
}

// Defines a test whose block runs, with `Fixture *f`, on every CPU implementation, format and number of threads.
#define TEST_EVERYWHERE(function)                                                                                      \
    static void function##_on(Fixture *f);                                                                             \
    UNIT_TEST(function) {                                                                                              \
        run_with(function##_on, 0);                                                                                    \
    }                                                                                                                  \
    static void function##_on(Fixture *f)
