// Fixture for GPU benchmarks and tests: opens a device with a workspace, fills tensors with random values (because
// speed depends on the values), and times operations. bench_ceiling.h measures the GPU's peak rates, with which
// benchmarks compare.
#pragma once
#include "coat/cuda/common/cuda_internal.h"
#include "coat/numerics/rng.h"

typedef struct {
    Exec exec;
    Config config;
    bool quick; // true (--quick): benchmarks run fewer comparisons and repetitions, and only one model
    bool check; // true (--check): benchmarks compare results but measure no times
    bool alone; // true (--alone): bench_steady_ms() times every operation alone, as bench_median_ms() does
} Bench;

#define SETS 3 // number of operand sets; benchmarks rotate through them so that operands are not in the L2 cache

// --- generation of random tensors on the GPU ----------------------------------------------------------------
__device__ static inline float bench_decode(const void *data, Format format, int64_t index) {
    switch (format) {
    case FMT_BF16: return bf16_decode(((const uint16_t *)data)[index]);
    case FMT_E4M3: return e4m3_decode(((const uint8_t *)data)[index]);
    case FMT_E5M2: return e5m2_decode(((const uint8_t *)data)[index]);
    default: return ((const float *)data)[index];
    }
}

__device__ static inline void bench_encode(void *data, Format format, int64_t index, float x) {
    switch (format) {
    case FMT_BF16: ((uint16_t *)data)[index] = bf16_encode(x); break;
    case FMT_E4M3: ((uint8_t *)data)[index] = e4m3_encode(x); break;
    case FMT_E5M2: ((uint8_t *)data)[index] = e5m2_encode(x); break;
    default: ((float *)data)[index] = x;
    }
}

// Returns element (i, j) of tensor t as a float, multiplied by the tensor's scale.
__device__ static inline float bench_element(Tensor t, int64_t i, int64_t j) {
    float scale = t.granularity == SCALE_TENSOR ? *(const float *)t.scale : 1.0f;
    return bench_decode(t.data, t.format, t.transposed ? j * t.stride + i : i * t.stride + j) * scale;
}

// Returns normally distributed random number `index` of the series `seed` (Box-Muller transform).
__device__ static inline float bench_normal(uint64_t seed, uint64_t index) {
    uint64_t bits = rng_hash(seed, 0, index);
    float u = ((float)(bits >> 40) + 1.0f) * 0x1p-24f, angle = (float)(bits & 0xffffff) * 0x1p-24f;
    return sqrtf(-2.0f * logf(u)) * cospif(2.0f * angle);
}

__global__ static void bench_fill_kernel(void *data, Format format, int64_t count, uint64_t seed, float deviation) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        bench_encode(data, format, i, bench_normal(seed, (uint64_t)i) * deviation);
}

// --- opening the device and allocating tensors --------------------------------------------------------------
static inline void *bench_allocate(Bench *bench, size_t bytes) {
    Error err = {};
    void *memory = bench->exec.ops->allocate(&bench->exec, bytes, &err);
    if (!memory) fatal(err.code, "%s", err.text);
    return memory;
}

// Reads the command line of a benchmark that accepts `flags`, such as "[--quick] [--check]", and sets the flags' fields
// of Bench. Calls fatal() for other arguments.
static inline void bench_flags(Bench *bench, const char *flags, int argc, char **argv) {
    const struct {
        const char *flag;
        bool *value;
    } known[] = {{"[--quick]", &bench->quick}, {"[--check]", &bench->check}, {"[--alone]", &bench->alone}};
    for (int i = 1; i < argc; i++) {
        char flag[64];
        bool found = false;
        snprintf(flag, sizeof flag, "[%s]", argv[i]);
        for (const auto &k : known)
            if (strcmp(flag, k.flag) == 0 && strstr(flags, flag)) *k.value = found = true;
        if (!found) fatal(EXIT_USER, "%s: unknown flag; usage: %s %s", argv[i], program_invocation_short_name, flags);
    }
}

// Sets the config of benchmarks of single operations without attention. The device plans a workspace for B sequences of
// 1024 tokens with these widths.
static inline void bench_configure(Config *config, int B, int channels, int ffn) {
    config->recipe.precision = PRECISION_FP32;
    config->micro_batch = B, config->seq_len = 1024;
    config->shape.heads = config->shape.kv_heads = 1, config->shape.head_dim = 64;
    config->shape.channels = channels, config->shape.ffn = ffn;
}

// Opens a device with the workspace that training with this configuration needs. Fills the workspace with 0xff bytes,
// which are NaN in every format, so that a read before a write is detected.
static inline void bench_exec_open(Exec *exec, const Ops *ops, DeviceKind device, const Config *config) {
    Error err = {};
    exec->ops = ops;
    exec->ranks = 1;
    if (!exec->ops->open(exec, config, &err)) fatal(err.code, "%s", err.text);
    // Rounds the workspace size up as the trainer's arena does.
    exec->workspace_bytes = align_up(ops_workspace(config, device).bytes);
    exec->workspace = exec->ops->allocate(exec, exec->workspace_bytes, &err);
    if (!exec->workspace) fatal(err.code, "%s", err.text);
    void *const poison = xmalloc(exec->workspace_bytes);
    memset(poison, 0xff, exec->workspace_bytes);
    exec->ops->upload(exec, exec->workspace, poison, exec->workspace_bytes);
    free(poison);
}

static inline void bench_exec_close(Exec *exec) {
    exec->ops->release(exec, exec->workspace);
    exec->ops->close(exec);
}

// Opens the GPU with the configuration in bench->config.
static inline void bench_open(Bench *bench) {
    bench_exec_open(&bench->exec, cuda_ops(), DEVICE_CUDA, &bench->config);
    char text[256];
    bench->exec.ops->describe(&bench->exec, text, sizeof text);
    printf("%s\n", text);
}

static inline void bench_close(Bench *bench) {
    bench_exec_close(&bench->exec);
}

// Returns a new (rows, cols) device tensor of normally distributed values. FP8 tensors get the scale 0.5.
static inline Tensor bench_tensor(Bench *bench, int64_t rows, int64_t cols, Format format, float deviation) {
    static uint64_t seed = 1;
    Tensor t = {};
    t.rows = rows, t.cols = cols, t.stride = cols, t.format = format;
    t.data = bench_allocate(bench, (size_t)(rows * cols) * format_bytes(format));
    bench_fill_kernel<<<1024, 256, 0, cuda_backend(&bench->exec)->stream>>>(t.data, format, rows * cols, seed++,
                                                                            deviation);
    LAUNCH_CHECK("bench_fill");
    if (format_is_fp8(format)) {
        const float scale = 0.5f;
        t.granularity = SCALE_TENSOR;
        t.scale = bench_allocate(bench, sizeof scale);
        bench->exec.ops->upload(&bench->exec, t.scale, &scale, sizeof scale);
    }
    return t;
}

// Returns a new device tensor of normally distributed values, stored transposed in memory.
static inline Tensor bench_tensor_transposed(Bench *bench, int64_t rows, int64_t cols, Format format, float deviation) {
    Tensor t = bench_tensor(bench, cols, rows, format, deviation);
    t.transposed = true;
    t.rows = rows, t.cols = cols;
    return t;
}

static inline void bench_release(Bench *bench, Tensor t) {
    if (t.scale) bench->exec.ops->release(&bench->exec, t.scale);
    if (t.data) bench->exec.ops->release(&bench->exec, t.data);
}

// --- timing an operation ------------------------------------------------------------------------------------
static inline int bench_compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

#define BENCH_RUNS 21 // maximum number of timed runs; the reported time is their median

// Keeps the GPU stream busy, so that the host can enqueue all operations before the first one is timed.
static __global__ void bench_busy_kernel(uint64_t nanoseconds) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}

// Returns the milliseconds per operation: the median of `runs` runs. Each run enqueues a kernel that keeps the GPU busy
// for `busy` nanoseconds (0: none), then `ahead` untimed operations, then `repeats` timed ones.
static inline double bench_runs_ms(Bench *bench, void (*operation)(Bench *, void *), void *context, int runs, int ahead,
                                   int repeats, uint64_t busy) {
    const char *doing = "timing";
    cudaStream_t stream = cuda_backend(&bench->exec)->stream;
    float ms[BENCH_RUNS];
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin), doing);
    CUDA_CHECK(cudaEventCreate(&end), doing);
    for (int i = 0; i < runs; i++) {
        if (busy) {
            bench_busy_kernel<<<1, 1, 0, stream>>>(busy);
            LAUNCH_CHECK("bench_busy");
        }
        for (int k = 0; k < ahead; k++) operation(bench, context);
        CUDA_CHECK(cudaEventRecord(begin, stream), doing);
        for (int k = 0; k < repeats; k++) operation(bench, context);
        CUDA_CHECK(cudaEventRecord(end, stream), doing);
        CUDA_CHECK(cudaEventSynchronize(end), doing);
        CUDA_CHECK(cudaEventElapsedTime(&ms[i], begin, end), doing);
    }
    CUDA_CHECK(cudaEventDestroy(begin), doing);
    CUDA_CHECK(cudaEventDestroy(end), doing);
    qsort(ms, (size_t)runs, sizeof ms[0], bench_compare);
    return (double)ms[runs / 2] / repeats;
}

// Returns the median milliseconds of an operation that runs alone, after warm-up. The device is synchronized before and
// after each run.
static inline double bench_median_ms(Bench *bench, void (*operation)(Bench *, void *), void *context) {
    enum { WARM_UP = 3, QUICK = 7 };
    for (int i = 0; i < WARM_UP; i++) operation(bench, context);
    return bench_runs_ms(bench, operation, context, bench->quick ? QUICK : BENCH_RUNS, 0, 1, 0);
}

// Returns the milliseconds per operation in a back-to-back sequence of about 2 ms, as in a training step. The host
// enqueues launches ahead, so the launch of an operation overlaps with the previous operation.
static inline double bench_steady_ms(Bench *bench, void (*operation)(Bench *, void *), void *context) {
    enum { RUNS = 11, QUICK = 5, AHEAD = 3, REPEATS = 40, BUSY = 500000 };
    const double once = bench_median_ms(bench, operation, context);
    if (bench->alone) return once;
    const int repeats = once > 2.0 ? 1 : once < 0.05 ? REPEATS : (int)(2.0 / once);
    return bench_runs_ms(bench, operation, context, bench->quick ? QUICK : RUNS, AHEAD, repeats,
                         once < 0.05 ? BUSY : 0);
}
