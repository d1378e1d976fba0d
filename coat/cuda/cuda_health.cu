// Computes FP8 statistics that show how well each tensor's scales fit its values. They are logged only in the steps
// that --health-every and --health-products select. Counts and amaxes are unsigned integers, so that atomics give the
// same result in any order.
#include "cuda/fp8/fp8_kernels.h"
#include "numerics/moments.h"

namespace {

constexpr int HEALTH_THREADS = 256;
constexpr int HEALTH_BLOCKS_PER_SM = 8;
// maximum number of FP8 values that a thread passes to count_codes() at a time; only used in codes_count_kernel and for
// tensors with a single scale
constexpr int TENSOR_GROUP = 128;

// Division of a tensor into groups, the units that a thread counts at a time. Each group has its own scale, except that
// all groups share one scale with SCALE_TENSOR.
struct HealthWalk {
    const uint8_t *codes;
    const void *scale;
    const uint8_t *exponent;
    int64_t cols, stride, groups, total; // stride: of rows; groups: number per row; total: number in all rows
    int group;
    Format format;
    Granularity granularity;
};

// Counts of FP8 or INT8 values by magnitude. top: number of values with the format's largest finite magnitude, inf or
// NaN. small: number of values below the smallest normal value, including zeros. largest: bits of the largest
// magnitude, without the sign bit (not a count).
struct Counts {
    uint32_t largest = 0, zero = 0, top = 0, small = 0;
};

// Counts the four FP8 or INT8 values in a 32-bit word. top: bits of the format's largest finite magnitude. normal: bits
// of its smallest normal value. The four bytes of c.largest are maxima of the respective bytes of all words.
__device__ inline void count_word(Counts &c, uint32_t word, Format format, uint32_t top, uint32_t normal) {
    const uint32_t magnitude = format == FMT_I8 ? __vabs4(word) : word & 0x7f7f7f7fu;
    c.largest = __vmaxu4(c.largest, magnitude);
    c.zero += (uint32_t)__popc(__vcmpeq4(magnitude, 0u)) / 8;
    c.top += (uint32_t)__popc(__vcmpgeu4(magnitude, top * 0x01010101u)) / 8;
    c.small += (uint32_t)__popc(__vcmpltu4(magnitude, normal * 0x01010101u)) / 8;
}

// Counts `count` FP8 or INT8 values by magnitude. Counts.small is meaningless for INT8.
__device__ inline Counts count_codes(const uint8_t *codes, int count, Format format) {
    const uint32_t top = moment_max_code(format), normal = fp8_smallest_normal_code(format);
    Counts c;
    int i = 0;
    if ((uintptr_t)codes % 16 == 0) {
        for (; i + 16 <= count; i += 16) {
            const Pack<uint32_t, 4> words = load_streaming<4>((const uint32_t *)(codes + i));
#pragma unroll
            for (uint32_t word : words.value) count_word(c, word, format, top, normal);
        }
    }
    // counts the remaining values one by one
    for (; i < count; i++) {
        const uint32_t code = format == FMT_I8 ? __vabs4(codes[i]) & 0xffu : codes[i] & 0x7fu;
        c.largest = __vmaxu4(c.largest, code);
        c.zero += code == 0;
        c.top += code >= top;
        c.small += code < normal;
    }
    c.largest = max(max(c.largest & 0xffu, c.largest >> 8 & 0xffu), max(c.largest >> 16 & 0xffu, c.largest >> 24));
    return c;
}

// Returns the amax of a group's dequantized values. largest: bits of the group's largest FP8 magnitude, without the
// sign bit. For 8-bit moments (SCALE_EXPAND), returns the amax that is stored with the group.
__device__ inline float group_amax(const HealthWalk &w, int64_t group, uint32_t largest) {
    if (largest == 0) return 0.0f;
    if (w.granularity == SCALE_EXPAND) return ((const float *)w.scale)[group];
    const float scale = w.granularity == SCALE_GROUP ? bf16_decode(((const uint16_t *)w.scale)[group])
                                                     : ((const float *)w.scale)[w.granularity == SCALE_ROW ? group : 0];
    return fp8_decode(w.format, (uint8_t)largest) * scale;
}

// Adds the sum of `value` over the lanes of the warp to *sum (global memory), by an atomic addition.
__device__ inline void warp_add(uint64_t *sum, uint64_t value) {
    const uint64_t all = warp_sum((unsigned long long)value);
    if (threadIdx.x % WARP == 0 && all) atomicAdd((unsigned long long *)sum, (unsigned long long)all);
}

__global__ __launch_bounds__(HEALTH_THREADS) void health_kernel(HealthWalk w, Health *out) {
    uint64_t saturated = 0, zero = 0, clamped = 0;
    uint32_t amax = 0, largest = 0;
    const int64_t step = (int64_t)gridDim.x * HEALTH_THREADS;
    for (int64_t g = (int64_t)blockIdx.x * HEALTH_THREADS + threadIdx.x; g < w.total; g += step) {
        const int64_t begin = g % w.groups * w.group, left = w.cols - begin;
        const int count = left < w.group ? (int)left : w.group;
        const Counts c = count_codes(w.codes + g / w.groups * w.stride + begin, count, w.format);
        zero += c.zero;
        saturated += w.granularity == SCALE_TENSOR || c.top == 0 ? c.top : c.top - 1;
        if (w.granularity == SCALE_EXPAND) clamped += w.exponent[g] <= 1 || w.exponent[g] == MOMENT_K_MAX;
        amax = max(amax, magnitude_bits(group_amax(w, g, c.largest)));
        largest = max(largest, c.largest);
    }
    warp_add(&out->saturated, saturated);
    warp_add(&out->zero, zero);
    warp_add(&out->clamped, clamped);
    amax = __reduce_max_sync(ALL_LANES, amax);
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (threadIdx.x % WARP != 0) return;
    atomicMax(&out->amax, amax);
    atomicMax(&out->largest, largest);
}

// Estimates a tensor's amax from the largest of its `rows` scales, in one warp. none: scale that quantization stores
// for all-zero values. largest: largest value of the FP8 format.
__global__ void health_scale_kernel(const float *scale, int64_t rows, float none, float largest, Health *out) {
    float most = *scale;
    for (int64_t row = threadIdx.x; row < rows; row += WARP) most = fmaxf(most, scale[row]);
    most = __uint_as_float(warp_amax_bits(most));
    if (threadIdx.x == 0) out->amax = most == none ? 0u : magnitude_bits(most * largest);
}

// Adds the counts of `lines` rows of `length` FP8 values to *out. The rows are rows in memory, so they are columns of
// the tensor if the tensor is stored transposed. Each row is divided into `pieces` pieces of at most TENSOR_GROUP
// values.
__global__ __launch_bounds__(HEALTH_THREADS) void codes_count_kernel(const uint8_t *codes, int64_t lines,
                                                                     int64_t length, int64_t stride, int64_t pieces,
                                                                     Format format, CodeCounts *out) {
    uint64_t all = 0, saturated = 0, zero = 0, small = 0;
    const int64_t step = (int64_t)gridDim.x * HEALTH_THREADS;
    for (int64_t p = (int64_t)blockIdx.x * HEALTH_THREADS + threadIdx.x; p < lines * pieces; p += step) {
        const int64_t begin = p % pieces * TENSOR_GROUP, left = length - begin;
        const int count = left < TENSOR_GROUP ? (int)left : TENSOR_GROUP;
        const Counts c = count_codes(codes + p / pieces * stride + begin, count, format);
        all += (uint64_t)count;
        saturated += c.top;
        zero += c.zero;
        small += c.small;
    }
    warp_add(&out->codes, all);
    warp_add(&out->saturated, saturated);
    warp_add(&out->zero, zero);
    warp_add(&out->subnormal, small - zero);
}

// --- comparison of an FP8 wgrad with its BF16 reference --------------------------------------------------------------
constexpr int INNER_BLOCKS = 512; // number of partial sums, the same on every GPU to fix the order of addition
constexpr int HEALTH_WARPS = HEALTH_THREADS / WARP;

// Sums ab, aa and bb over the block's threads. Thread 0 writes the three sums to *out.
__device__ inline void inner_products_store(double ab, double aa, double bb, InnerProducts *out) {
    __shared__ double shared[3][HEALTH_WARPS];
    ab = block_sum<HEALTH_WARPS>(ab, shared[0]);
    aa = block_sum<HEALTH_WARPS>(aa, shared[1]);
    bb = block_sum<HEALTH_WARPS>(bb, shared[2]);
    if (threadIdx.x == 0) *out = {ab, aa, bb};
}

template <typename T, int V>
__global__ __launch_bounds__(HEALTH_THREADS) void inner_products_kernel(const T *a, const T *b, int64_t count,
                                                                        InnerProducts *partials) {
    double ab = 0.0, aa = 0.0, bb = 0.0;
    const int64_t step = (int64_t)gridDim.x * HEALTH_THREADS * V;
    for (int64_t at = ((int64_t)blockIdx.x * HEALTH_THREADS + threadIdx.x) * V; at < count; at += step) {
        float x[V], y[V];
        unpack<V>(load_streaming<V>(a + at), x);
        unpack<V>(load_streaming<V>(b + at), y);
#pragma unroll
        for (int i = 0; i < V; i++) {
            ab += (double)x[i] * (double)y[i];
            aa += (double)x[i] * (double)x[i];
            bb += (double)y[i] * (double)y[i];
        }
    }
    inner_products_store(ab, aa, bb, partials + blockIdx.x);
}

__global__ __launch_bounds__(HEALTH_THREADS) void inner_products_sum_kernel(const InnerProducts *partials,
                                                                            InnerProducts *out) {
    double ab = 0.0, aa = 0.0, bb = 0.0;
    for (int i = (int)threadIdx.x; i < INNER_BLOCKS; i += HEALTH_THREADS) {
        ab += partials[i].ab;
        aa += partials[i].aa;
        bb += partials[i].bb;
    }
    inner_products_store(ab, aa, bb, out);
}

// --- outliers --------------------------------------------------------------------------------------------------------
// Returns the dequantized element (row, col) of a BF16, FP32 or 8-bit tensor. Groups of 8-bit moments (SCALE_EXPAND)
// may extend into the next row, so their index follows from the element's position in the whole tensor.
__device__ inline float element_of(const Tensor &t, int64_t row, int64_t col) {
    const int64_t at = row * t.stride + col;
    if (t.format == FMT_FP32) return ((const float *)t.data)[at];
    const uint8_t *code = (const uint8_t *)t.data + at;
    const float *scale = (const float *)t.scale;
    if (t.granularity == SCALE_EXPAND) {
        const int64_t group = at / t.group;
        return moment_decode(*code, moment_group(scale[group], t.exponent[group], t.format), t.format);
    }
    const float x = t.format == FMT_BF16 ? bf16_decode(((const uint16_t *)t.data)[at]) : fp8_decode(t.format, *code);
    if (t.granularity == SCALE_GROUP)
        return x * bf16_decode(((const uint16_t *)t.scale)[row * ((t.cols + t.group - 1) / t.group) + col / t.group]);
    return t.granularity == SCALE_NONE ? x : x * scale[t.granularity == SCALE_ROW ? row : 0];
}

__global__ __launch_bounds__(HEALTH_THREADS) void outliers_kernel(Tensor x, Tensor v, InnerProducts *partials,
                                                                  uint32_t *amax) {
    double sum = 0.0, squares = 0.0, elements = 0.0;
    uint32_t largest = 0;
    const int64_t total = x.rows * x.cols, step = (int64_t)gridDim.x * HEALTH_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * HEALTH_THREADS + threadIdx.x; at < total; at += step) {
        const int64_t row = at / x.cols, col = at % x.cols;
        const float value = element_of(x, row, col);
        double z = (double)value * (double)value;
        if (v.data) {
            const float moment = element_of(v, row, col);
            z = moment > 0.0f ? z / (double)moment : 0.0;
        }
        sum += z;
        squares += z * z;
        elements += 1.0;
        largest = max(largest, magnitude_bits(value));
    }
    inner_products_store(sum, squares, elements, partials + blockIdx.x);
    block_max<HEALTH_THREADS>(largest, [&](uint32_t most) { atomicMax(amax, most); });
}

HealthWalk walk_of(Tensor t) {
    HealthWalk w = {};
    // 8-bit moments count as one row, because their groups may extend into the next row
    const bool flat = t.granularity == SCALE_EXPAND;
    w.codes = (const uint8_t *)t.data;
    w.scale = t.scale;
    w.exponent = t.exponent;
    w.cols = flat ? tensor_elements(t) : t.cols;
    w.stride = flat ? w.cols : t.stride;
    w.group = t.granularity == SCALE_TENSOR ? TENSOR_GROUP : t.granularity == SCALE_ROW ? (int)t.cols : t.group;
    w.groups = ceil_div(w.cols, w.group);
    w.total = w.groups * (flat ? 1 : t.rows);
    w.format = t.format;
    w.granularity = t.granularity;
    return w;
}

} // namespace

// Returns the grid size for `pieces` work items: one thread per item, but at most as many blocks as fill the GPU.
static dim3 health_grid(const CudaBackend *backend, int64_t pieces) {
    const int64_t most = (int64_t)backend->sm_count * HEALTH_BLOCKS_PER_SM, blocks = ceil_div(pieces, HEALTH_THREADS);
    return grid_of(blocks < most ? blocks : most);
}

void cuda_codes_count(Exec *exec, Tensor codes, CodeCounts *counts) {
    if (!codes.data || !format_is_fp8(codes.format))
        fatal(EXIT_DEVICE, "internal error: codes_count on the GPU: a tensor is stored as %s, but must be FP8",
              format_name(codes.format));
    const CudaBackend *backend = cuda_backend(exec);
    const int64_t lines = codes.transposed ? codes.cols : codes.rows;
    const int64_t length = codes.transposed ? codes.rows : codes.cols, pieces = ceil_div(length, TENSOR_GROUP);
    codes_count_kernel<<<health_grid(backend, lines * pieces), HEALTH_THREADS, 0, backend->stream>>>(
        (const uint8_t *)codes.data, lines, length, codes.stride, pieces, codes.format, counts);
    LAUNCH_CHECK("codes_count_kernel");
}

void cuda_inner_products(Exec *exec, Tensor a, Tensor b, InnerProducts *out) {
    const char *operation = "inner_products";
    require_format(operation, "the second tensor", b, a.format);
    InnerProducts *const partials = (InnerProducts *)exec->workspace;
    if (a.stride != a.cols || b.stride != b.cols || exec->workspace_bytes < INNER_BLOCKS * sizeof *partials)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: a tensor has gaps, or the workspace is too small",
              operation);
    const cudaStream_t stream = cuda_backend(exec)->stream;
    for_layout(operation, a.format, tensor_wide(a) && tensor_wide(b), [&]<typename T, int V>(Layout<T, V>) {
        inner_products_kernel<T, V><<<INNER_BLOCKS, HEALTH_THREADS, 0, stream>>>((const T *)a.data, (const T *)b.data,
                                                                                 tensor_elements(a), partials);
        LAUNCH_CHECK("inner_products_kernel");
    });
    inner_products_sum_kernel<<<1, HEALTH_THREADS, 0, stream>>>(partials, out);
    LAUNCH_CHECK("inner_products_sum_kernel");
}

void cuda_outliers(Exec *exec, Tensor x, Tensor v, Outliers *out) {
    const char *operation = "outliers";
    InnerProducts *const partials = (InnerProducts *)exec->workspace;
    const bool readable = !x.transposed && x.granularity != SCALE_EXPAND && (x.scale || !format_is_fp8(x.format));
    if (!readable || (v.data && (x.stride != x.cols || v.stride != v.cols || x.cols != v.cols)) ||
        exec->workspace_bytes < INNER_BLOCKS * sizeof *partials)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: a %s tensor cannot be read, or the workspace is too small",
              operation, format_name(x.format));
    const cudaStream_t stream = cuda_backend(exec)->stream;
    cuda_zero(exec, out, sizeof *out);
    outliers_kernel<<<INNER_BLOCKS, HEALTH_THREADS, 0, stream>>>(x, v, partials, &out->amax);
    LAUNCH_CHECK("outliers_kernel");
    inner_products_sum_kernel<<<1, HEALTH_THREADS, 0, stream>>>(partials, &out->sums);
    LAUNCH_CHECK("inner_products_sum_kernel");
}

void cuda_health(Exec *exec, const Tensor tensors[], int count, Health out[]) {
    CudaBackend *backend = cuda_backend(exec);
    Health *const found = (Health *)exec->workspace;
    const size_t bytes = (size_t)count * sizeof *found;
    if (bytes > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "internal error: health on the GPU: the counts of %d tensors do not fit the workspace",
              count);
    cuda_zero(exec, found, bytes);
    for (int i = 0; i < count; i++) {
        const Tensor t = tensors[i];
        if (!format_has_groups(t.format) || !t.scale || t.transposed ||
            (!t.data && t.granularity != SCALE_TENSOR && t.granularity != SCALE_ROW))
            fatal(EXIT_DEVICE, "internal error: FP8 statistics on the GPU: a %s tensor lacks 8-bit values or scales",
                  format_name(t.format));
        if (t.data) {
            const HealthWalk w = walk_of(t);
            health_kernel<<<health_grid(backend, w.total), HEALTH_THREADS, 0, backend->stream>>>(w, found + i);
            LAUNCH_CHECK("health_kernel");
        } else {
            const bool by_row = t.granularity == SCALE_ROW;
            health_scale_kernel<<<1, WARP, 0, backend->stream>>>((const float *)t.scale, by_row ? t.rows : 1,
                                                                 by_row ? SCALE_MIN : 1.0f, format_max(t.format),
                                                                 found + i);
            LAUNCH_CHECK("health_scale_kernel");
        }
    }
    cuda_download(exec, out, found, bytes);
    for (int i = 0; i < count; i++) // the value that set the scale does not count as saturated
        if (tensors[i].granularity == SCALE_TENSOR && out[i].saturated > 0) out[i].saturated--;
}
