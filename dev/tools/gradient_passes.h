// Passes over matrices for dev/tools/gradient_stats.cu. A pass calls a function for every element, on the host or the
// GPU. PASS_OVER_ROWS defines the loops: OpenMP on the host, one thread block per row on the GPU. A pass returns one
// RowResult per row, summed in double in a fixed order; the host adds the rows' results.
#pragma once
#include <math.h>
#include <string.h>

#include "coat/numerics/quantize.h"
#include "coat/ops.h"

#ifdef __CUDACC__
#include "coat/cuda/common/cuda_internal.h"
#endif

enum { MAX_PARTS = 3, ROW_SUMS = 4 };

// Ranges of columns that may have separate amaxes and scales: q, k and v in a packed gradient, otherwise all columns.
typedef struct {
    int count;
    int64_t end[MAX_PARTS]; // first column after each column range
} Parts;

typedef struct {
    double sum[ROW_SUMS];
    double largest[MAX_PARTS]; // amax of each column range
} RowResult;

COAT_HD static inline void row_result_add(RowResult *to, const RowResult *from) {
    for (int k = 0; k < ROW_SUMS; k++) to->sum[k] += from->sum[k];
    for (int p = 0; p < MAX_PARTS; p++)
        if (from->largest[p] > to->largest[p]) to->largest[p] = from->largest[p];
}

COAT_HD static inline int part_of(const Parts *parts, int64_t column) {
    int part = 0;
    for (int p = 0; p < MAX_PARTS - 1; p++)
        if (p < parts->count - 1 && column >= parts->end[p]) part = p + 1;
    return part;
}

// Returns element (i, j) of a tensor in FP32. The tensor is unscaled or has one scale. FP8 values are multiplied by the
// scale, with a relative rounding error of 2^-24.
COAT_HD static inline float element_at(const Tensor *t, int64_t i, int64_t j) {
    const int64_t at = t->transposed ? j * t->stride + i : i * t->stride + j;
    switch (t->format) {
    case FMT_BF16: return bf16_decode(((const uint16_t *)t->data)[at]);
    case FMT_E4M3:
    case FMT_E5M2: return fp8_decode(t->format, ((const uint8_t *)t->data)[at]) * *(const float *)t->scale;
    default: return ((const float *)t->data)[at];
    }
}

typedef struct {
    Exec *exec;
    const Ops *ops;        // operations of the device on which the model runs
    bool on_gpu;           // true: passes run on the GPU; false: passes run on the host
    RowResult *row_memory; // results of a pass, one per row, in device memory
    RowResult *row;        // results of the last pass, one per row, in host memory
    int64_t most_rows;     // maximum number of rows that a pass may have
} PassPlace;

// Returns the sum of the row results of the last pass.
static inline RowResult pass_total(const PassPlace *place, int64_t rows) {
    RowResult total;
    memset(&total, 0, sizeof total);
    for (int64_t i = 0; i < rows; i++) row_result_add(&total, &place->row[i]);
    return total;
}

static inline void pass_begin(const PassPlace *place, int64_t rows) {
    if (rows > place->most_rows)
        fatal(EXIT_DEVICE, "internal error: a pass over %lld rows exceeds its buffer", (long long)rows);
}

static inline void pass_end(PassPlace *place, int64_t rows) {
    place->ops->download(place->exec, place->row, place->row_memory, (size_t)rows * sizeof(RowResult));
}

#ifdef __CUDACC__
enum { PASS_THREADS = 128 };

__device__ static inline void block_result(const RowResult *mine, RowResult *out) {
    __shared__ RowResult shared[PASS_THREADS];
    shared[threadIdx.x] = *mine;
    for (int step = PASS_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) row_result_add(&shared[threadIdx.x], &shared[threadIdx.x + step]);
    }
    if (threadIdx.x == 0) *out = shared[0];
}

#define PASS_KERNEL(name, Args)                                                                                        \
    __global__ static void name##_kernel(const __grid_constant__ Args args, int64_t cols, RowResult *results) {        \
        RowResult result = {};                                                                                         \
        const int64_t i = blockIdx.x;                                                                                  \
        for (int64_t j = threadIdx.x; j < cols; j += PASS_THREADS) name##_element(&args, i, j, &result);               \
        block_result(&result, results + i);                                                                            \
    }                                                                                                                  \
    static inline void name##_on_gpu(PassPlace *place, const Args *args, int64_t rows, int64_t cols) {                 \
        name##_kernel<<<(unsigned)rows, PASS_THREADS, 0, cuda_backend(place->exec)->stream>>>(*args, cols,             \
                                                                                              place->row_memory);      \
        LAUNCH_CHECK(#name);                                                                                           \
    }
#else
#define PASS_KERNEL(name, Args)                                                                                        \
    static inline void name##_on_gpu(PassPlace *place, const Args *args, int64_t rows, int64_t cols) {                 \
        (void)place, (void)args, (void)rows, (void)cols;                                                               \
    }
#endif

// Defines a pass function name(place, args, rows, cols) that calls name_element(const Args *, i, j, RowResult *) for
// every element. rows must be at least 1.
#define PASS_OVER_ROWS(name, Args)                                                                                     \
    static inline void name##_on_host(PassPlace *place, const Args *args, int64_t rows, int64_t cols) {                \
        _Pragma("omp parallel for schedule(static)") for (int64_t i = 0; i < rows; i++) {                              \
            RowResult result;                                                                                          \
            memset(&result, 0, sizeof result);                                                                         \
            for (int64_t j = 0; j < cols; j++) name##_element(args, i, j, &result);                                    \
            place->row_memory[i] = result;                                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    PASS_KERNEL(name, Args)                                                                                            \
    static inline void name(PassPlace *place, Args args, int64_t rows, int64_t cols) {                                 \
        pass_begin(place, rows);                                                                                       \
        (place->on_gpu ? name##_on_gpu : name##_on_host)(place, &args, rows, cols);                                    \
        pass_end(place, rows);                                                                                         \
    }

// --- pass that converts a tensor to FP32 and computes sums and amaxes ---------------------------------------

typedef struct {
    Tensor from; // tensor to convert to FP32, (rows, cols)
    float *to;   // converted tensor in FP32, (rows, cols)
    Parts parts; // column ranges with separate amaxes
} ReadValues;

enum { SUM_SQUARES, SUM_NONZERO, SUM_NONFINITE };

COAT_HD static inline void read_values_element(const ReadValues *a, int64_t i, int64_t j, RowResult *r) {
    const float x = element_at(&a->from, i, j);
    const double magnitude = fabs((double)x);
    const int part = part_of(&a->parts, j);
    a->to[i * a->from.cols + j] = x;
    r->sum[SUM_SQUARES] += magnitude * magnitude;
    r->sum[SUM_NONZERO] += x != 0.0f;
    r->sum[SUM_NONFINITE] += magnitude_bits(x) >= NONFINITE_BITS;
    for (int p = 0; p < MAX_PARTS; p++)
        if (p == part && magnitude > r->largest[p]) r->largest[p] = magnitude;
}
PASS_OVER_ROWS(read_values, ReadValues)

// --- pass that quantizes and dequantizes a gradient and counts values that become 0 or subnormal ------------

typedef struct {
    const float *from;  // unquantized gradient, (rows, cols)
    float *to;          // quantized and dequantized values (rows, cols)
    const float *scale; // scales (ceil(rows / block), parts.count)
    int64_t cols, block;
    Parts parts;
    Format format;
} QuantiseValues;

enum { SUM_FLUSHED, SUM_FLUSHED_SQUARES, SUM_SUBNORMAL };

COAT_HD static inline void quantise_values_element(const QuantiseValues *a, int64_t i, int64_t j, RowResult *r) {
    const float x = a->from[i * a->cols + j];
    const float scale = a->scale[i / a->block * a->parts.count + part_of(&a->parts, j)];
    const uint8_t code = fp8_encode(a->format, x * scale_reciprocal(scale));
    const int magnitude = code & 0x7f, smallest_normal = fp8_smallest_normal_code(a->format);
    a->to[i * a->cols + j] = fp8_decode(a->format, code) * scale;
    if (x != 0.0f && magnitude == 0) {
        r->sum[SUM_FLUSHED] += 1.0;
        r->sum[SUM_FLUSHED_SQUARES] += (double)x * (double)x;
    }
    r->sum[SUM_SUBNORMAL] += magnitude > 0 && magnitude < smallest_normal;
}
PASS_OVER_ROWS(quantise_values, QuantiseValues)

// --- pass that compares a matmul's result with the exact result ---------------------------------------------

typedef struct {
    Tensor matmul; // result of the matmul under test (rows, cols)
    Tensor before; // tensor (rows, cols) that the matmul accumulated into; data NULL: the matmul overwrote its output
    Tensor exact;  // exact matmul result, (rows, cols)
} CompareValues;

enum { SUM_DIFFERENCE, SUM_EXACT, SUM_CROSS };

COAT_HD static inline void compare_values_element(const CompareValues *a, int64_t i, int64_t j, RowResult *r) {
    double matmul = element_at(&a->matmul, i, j);
    if (a->before.data) matmul -= (double)element_at(&a->before, i, j);
    const double exact = element_at(&a->exact, i, j), difference = matmul - exact;
    r->sum[SUM_DIFFERENCE] += difference * difference;
    r->sum[SUM_EXACT] += exact * exact;
    r->sum[SUM_CROSS] += matmul * exact;
}
PASS_OVER_ROWS(compare_values, CompareValues)
