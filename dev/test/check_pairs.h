// Fixture for checks of GPU operations against the CPU backend: opens both backends, creates tensors in both memories,
// and compares FP8 values, scales and unscaled values.
#pragma once
#include "bench_cuda.h"
#include "check_gpu.h"
#include "coat/numerics/quantize.h"
#include "texts.h"

#include <math.h>

#define CHECK_MOST 96    // maximum number of tensors per check
#define POISON 0xff      // fill byte of outputs: NaN in every format
#define CODES_OFF 1e-3   // expected fraction of FP8 values that differ by one step between GPU and CPU
#define SCALE_ERROR 1e-5 // maximum relative error of a GPU scale against the CPU's scale
#define ROWS_OFF 1e-2    // maximum fraction of rows whose GPU scale may be twice or half the CPU's scale
#define ROW_SCALES -1    // value of check_new()'s parameter `group` for one scale per row

// A tensor that exists in CPU memory and in GPU memory.
typedef struct {
    Tensor cpu, gpu;
} CheckPair;

typedef struct {
    Bench bench; // the GPU device and its workspace
    Exec cpu;
    CheckPair pair[CHECK_MOST];
    int pairs;
    uint64_t draws;
    int failures, checks;
    char shape[96]; // description of the shape under test, for error messages
} Check;

static inline Exec *check_gpu(Check *c) {
    return &c->bench.exec;
}

// Opens the CPU and the GPU backend with the configuration c->bench.config.
static inline void check_open(Check *c) {
    Exec *const sides[] = {&c->cpu, check_gpu(c)};
    const StepState zero = {};
    Error err = {};
    bench_exec_open(&c->cpu, cpu_ops(), DEVICE_CPU, &c->bench.config);
    bench_exec_open(check_gpu(c), cuda_ops(), DEVICE_CUDA, &c->bench.config);
    for (Exec *e : sides) {
        e->state = (StepState *)e->ops->allocate(e, sizeof zero, &err);
        if (!e->state) fatal(err.code, "%s", err.text);
        e->ops->upload(e, e->state, &zero, sizeof zero);
    }
}

static inline void check_close(Check *c) {
    Exec *const sides[] = {&c->cpu, check_gpu(c)};
    for (Exec *e : sides) {
        e->ops->release(e, e->state);
        bench_exec_close(e);
    }
}

static inline void check_say(Check *c, bool ok, const char *what, const char *detail) {
    c->checks++;
    c->failures += !ok;
    if (!ok) printf("  %s, %s: %s\n", what, c->shape, detail);
}

// Runs an operation on both backends. Among its arguments, `e` is the backend's Exec, and SIDE(t) is the tensor in the
// backend's memory.
#define CHECK_BOTH(c, operation, side_arguments)                                                                       \
    for (int gpu = 0; gpu < 2; gpu++) {                                                                                \
        Exec *e = gpu ? check_gpu(c) : &(c)->cpu;                                                                      \
        e->ops->operation side_arguments;                                                                              \
    }
#define SIDE(t) (gpu ? (t).gpu : (t).cpu)

// --- creation and transfer of tensors in both memories ------------------------------------------------------
static inline size_t check_data_bytes(Tensor t) {
    return (size_t)(t.stride * (t.transposed ? t.cols : t.rows)) * format_bytes(t.format);
}

static inline size_t check_scale_bytes(Tensor t) {
    if (t.granularity == SCALE_GROUP) return (size_t)(t.rows * ((t.cols + t.group - 1) / t.group)) * sizeof(uint16_t);
    if (t.granularity == SCALE_ROW) return (size_t)t.rows * sizeof(float);
    return t.granularity == SCALE_TENSOR ? 16 : 0;
}

static inline void *check_memory(Check *c, size_t bytes, bool gpu, const void *source) {
    if (bytes == 0) return NULL;
    if (!gpu) return memset(xmalloc(bytes), POISON, bytes);
    void *memory = bench_allocate(&c->bench, bytes);
    check_gpu(c)->ops->upload(check_gpu(c), memory, source, bytes);
    return memory;
}

// Returns a tensor in both memories, filled with NaN. group: group size; 0: one scale (FP8) or none; ROW_SCALES: one
// scale per row. share: the tensor whose scale the new tensor uses, or NULL.
static inline CheckPair check_new(Check *c, int64_t rows, int64_t cols, Format format, int group, bool transposed,
                                  const CheckPair *share) {
    CheckPair t = {};
    t.cpu.rows = rows, t.cpu.cols = cols, t.cpu.format = format, t.cpu.transposed = transposed;
    t.cpu.group = group == ROW_SCALES ? 0 : group;
    t.cpu.stride = transposed ? rows + 32 : cols;
    if (format_is_fp8(format)) t.cpu.granularity = group == ROW_SCALES ? SCALE_ROW : group ? SCALE_GROUP : SCALE_TENSOR;
    t.gpu = t.cpu;
    t.cpu.data = check_memory(c, check_data_bytes(t.cpu), false, NULL);
    t.gpu.data = check_memory(c, check_data_bytes(t.cpu), true, t.cpu.data);
    t.cpu.scale = share ? share->cpu.scale : check_memory(c, check_scale_bytes(t.cpu), false, NULL);
    t.gpu.scale = share ? share->gpu.scale : check_memory(c, check_scale_bytes(t.cpu), true, t.cpu.scale);
    if (c->pairs == CHECK_MOST) fatal(EXIT_USER, "a check has more than %d tensors", CHECK_MOST);
    c->pair[c->pairs] = t;
    // clears the scale, because check_free() frees it with the tensor that owns it
    if (share) c->pair[c->pairs].cpu.scale = c->pair[c->pairs].gpu.scale = NULL;
    c->pairs++;
    return t;
}

static inline CheckPair check_plain(Check *c, int64_t rows, int64_t cols, Format format) {
    return check_new(c, rows, cols, format, 0, false, NULL);
}

static inline void check_upload(Check *c, CheckPair t) {
    check_gpu(c)->ops->upload(check_gpu(c), t.gpu.data, t.cpu.data, check_data_bytes(t.cpu));
}

static inline CheckPair with_maxima(Check *c, CheckPair t) {
    const CheckPair amax = check_plain(c, t.cpu.rows, 1, FMT_I32);
    t.cpu.amax = (uint32_t *)amax.cpu.data;
    t.gpu.amax = (uint32_t *)amax.gpu.data;
    return t;
}

static inline void check_free(Check *c) {
    for (int i = 0; i < c->pairs; i++) {
        free(c->pair[i].cpu.data);
        free(c->pair[i].cpu.scale);
        check_gpu(c)->ops->release(check_gpu(c), c->pair[i].gpu.data);
        if (c->pair[i].gpu.scale) check_gpu(c)->ops->release(check_gpu(c), c->pair[i].gpu.scale);
    }
    c->pairs = 0;
}

static inline void *check_download(Check *c, const void *data, size_t bytes) {
    void *have = xmalloc(bytes);
    check_gpu(c)->ops->download(check_gpu(c), have, data, bytes);
    return have;
}

// --- comparisons of GPU tensors with CPU tensors ------------------------------------------------------------
static inline int code_order(uint8_t code) {
    const int magnitude = code & 0x7f;
    return code & 0x80 ? -magnitude : magnitude;
}

// Passes if the GPU's FP8 values differ from the CPU's by at most one step, and no value after the end of a row was
// written. The number of different values may exceed the fraction `off` of all values by three standard deviations.
// Skips rows i for which passed[i] is true (NULL: skips none).
static inline void check_code_rows(Check *c, CheckPair t, double off, const bool *passed, const char *what) {
    uint8_t *have = (uint8_t *)check_download(c, t.gpu.data, check_data_bytes(t.cpu));
    const uint8_t *want = (const uint8_t *)t.cpu.data;
    const int64_t inner = t.cpu.transposed ? t.cpu.rows : t.cpu.cols,
                  outer = t.cpu.transposed ? t.cpu.cols : t.cpu.rows;
    int64_t differ = 0, far = 0, first = -1;
    for (int64_t i = 0; i < outer; i++) {
        for (int64_t j = 0; j < inner; j++) {
            const int64_t at = i * t.cpu.stride + j;
            const int steps = abs(code_order(have[at]) - code_order(want[at]));
            if (passed && passed[t.cpu.transposed ? j : i]) continue;
            differ += steps > 0;
            far += steps > 1;
            if (steps > 0 && first < 0) first = at;
        }
        for (int64_t j = inner; j < t.cpu.stride; j++)
            far += have[i * t.cpu.stride + j] != POISON; // counts writes after the end of a row
    }
    const char *text = formatted("%lld of %lld FP8 values differ, %lld by more than a step; first at %lld",
                                 (long long)differ, (long long)(inner * outer), (long long)far, (long long)first);
    const double expected = off * (double)(inner * outer);
    check_say(c, far == 0 && (double)differ <= expected + 3 * sqrt(expected), what, text);
    free(have);
}

static inline void check_code_bytes(Check *c, CheckPair t, double off, const char *what) {
    check_code_rows(c, t, off, NULL, what);
}

static inline double check_scale_at(Tensor t, const void *scales, size_t i) {
    return t.granularity == SCALE_GROUP ? (double)bf16_decode(((const uint16_t *)scales)[i])
                                        : (double)((const float *)scales)[i];
}

static inline void check_scales(Check *c, CheckPair t, double error, const char *what) {
    const size_t bytes = check_scale_bytes(t.cpu), count = t.cpu.granularity == SCALE_GROUP ? bytes / sizeof(uint16_t)
                                                           : t.cpu.granularity == SCALE_ROW ? bytes / sizeof(float)
                                                                                            : 1;
    void *have = check_download(c, t.gpu.scale, bytes);
    size_t wrong = 0;
    double x = 0, y = 0;
    for (size_t i = 0; i < count; i++) {
        const double a = check_scale_at(t.cpu, have, i), b = check_scale_at(t.cpu, t.cpu.scale, i);
        if (fabs(a - b) <= error * fabs(b)) continue; // false for NaN, which therefore counts as a wrong scale
        if (wrong++ == 0) x = a, y = b;
    }
    check_say(c, wrong == 0, what, formatted("%zu of %zu scales are wrong: %g for %g", wrong, count, x, y));
    free(have);
}

// True if the largest E4M3 magnitude of the CPU's row is 224 or 448. The row's amax is then at the boundary between two
// power-of-two scales.
static inline bool amax_at_boundary(Tensor t, int64_t row) {
    const uint8_t *codes = (const uint8_t *)t.data + row * t.stride;
    int largest = 0;
    for (int64_t i = 0; i < t.cols; i++) largest = (codes[i] & 0x7f) > largest ? codes[i] & 0x7f : largest;
    return largest == 0x76 || largest == 0x7e;
}

// Passes if the GPU's row scales equal the CPU's. For a fraction of at most ROWS_OFF of the rows, the scales may differ
// by a factor of 2 if the row's amax is at the boundary between two scales. Compares the FP8 values of rows with equal
// scales.
static inline void check_scaled_rows(Check *c, CheckPair t, const char *what) {
    const int64_t rows = t.cpu.rows;
    float *have = (float *)check_download(c, t.gpu.scale, (size_t)rows * sizeof *have);
    const float *want = (const float *)t.cpu.scale;
    bool *other = (bool *)xcalloc((size_t)rows, sizeof *other);
    int64_t next = 0, wrong = 0, first = -1;
    for (int64_t i = 0; i < rows; i++) {
        other[i] = !(have[i] == want[i]); // true if the scales differ or one is NaN
        const bool close = have[i] == 2 * want[i] || 2 * have[i] == want[i];
        next += other[i];
        wrong += other[i] && !(close && amax_at_boundary(t.cpu, i));
        if (other[i] && first < 0) first = i;
    }
    check_say(c, wrong == 0 && (double)next <= ROWS_OFF * (double)rows, what,
              formatted("%lld of %lld rows have another scale, %lld of them not at a boundary; first %lld",
                        (long long)next, (long long)rows, (long long)wrong, (long long)first));
    check_code_rows(c, t, CODES_OFF, other, what);
    free(other);
    free(have);
}

static inline void check_codes(Check *c, CheckPair t, const char *what) {
    if (t.cpu.granularity == SCALE_ROW) {
        check_scaled_rows(c, t, what);
        return;
    }
    check_scales(c, t, SCALE_ERROR, what);
    check_code_bytes(c, t, CODES_OFF, what);
}

// Passes if the relative root mean square error of the GPU's BF16 or FP32 values is at most `limit`.
static inline void check_values(Check *c, CheckPair t, double limit, const char *what) {
    void *have = check_download(c, t.gpu.data, check_data_bytes(t.cpu));
    double error = 0, size = 0;
    for (int64_t i = 0; i < tensor_elements(t.cpu); i++) {
        const bool bf16 = t.cpu.format == FMT_BF16;
        const double x = bf16 ? (double)bf16_decode(((uint16_t *)have)[i]) : (double)((float *)have)[i];
        const double y = bf16 ? (double)bf16_decode(((uint16_t *)t.cpu.data)[i]) : (double)((float *)t.cpu.data)[i];
        error += (x - y) * (x - y);
        size += y * y;
    }
    const double relative = sqrt(error / (size > 0 ? size : 1));
    check_say(c, relative <= limit, what,
              formatted("%s (%lld, %lld), relative error %.2e", format_name(t.cpu.format), (long long)t.cpu.rows,
                        (long long)t.cpu.cols, relative)); // the comparison is false for NaN, so NaN fails
    free(have);
}

// Passes if the GPU's row amax values (the bits of FP32 numbers) have a relative error of at most `limit`.
static inline void check_maxima(Check *c, CheckPair t, double limit, const char *what) {
    CheckPair maxima = {};
    maxima.cpu.rows = t.cpu.rows, maxima.cpu.cols = maxima.cpu.stride = 1, maxima.cpu.format = FMT_FP32;
    maxima.gpu = maxima.cpu;
    maxima.cpu.data = t.cpu.amax, maxima.gpu.data = t.gpu.amax;
    check_values(c, maxima, limit, what);
}

// Passes if the two GPU tensors a and b are bit-identical.
static inline void check_same(Check *c, CheckPair a, CheckPair b, const char *what) {
    const size_t bytes = check_data_bytes(a.cpu);
    void *first = check_download(c, a.gpu.data, bytes), *second = check_download(c, b.gpu.data, bytes);
    check_say(c, memcmp(first, second, bytes) == 0, what, "the bits differ");
    free(first);
    free(second);
}

// Passes if state->nonfinite on the GPU is `expected`. Clears the GPU's state.
static inline void check_flag(Check *c, int expected, const char *what) {
    StepState state;
    check_gpu(c)->ops->download(check_gpu(c), &state, check_gpu(c)->state, sizeof state);
    check_say(c, state.nonfinite == expected, what,
              expected ? "the flag does not report a non-finite value" : "the flag is set, but all values are finite");
    check_gpu(c)->ops->zero(check_gpu(c), check_gpu(c)->state, sizeof state);
}
