// Scales from maxima, and the casts of what products read: the attention's output, gradients and weights (COAT
// sections 1 and 4).
//
// Bytes per element of device memory: quantize_forward 2 + 2 read, 1 written, with a scale per row 2 and 1;
// quantize_rebuild 2 and 1; grad_quantize 2 read, 1 + 1 written, with 2 more read where the gradient's producer left no
// maxima; weights_quantize 2 and 1 + 1 (1 without cached transposes), with 2 more read where the optimizer has not just
// left the maxima.
#include "fp8_walk.h"

namespace {

// --- scales -------------------------------------------------------------------------------------------------
constexpr int SCALE_THREADS = 1024;

// The largest of `count` maxima, in thread 0 of a block.
template <int THREADS> __device__ inline uint32_t block_maximum(const uint32_t *maxima, int64_t count) {
    __shared__ uint32_t shared[THREADS / WARP];
    uint32_t largest = 0;
    const bool wide = (uintptr_t)maxima % 16 == 0;
    const int64_t vectors = wide ? count / 4 : 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < vectors; i += THREADS) {
        const uint4 v = ((const uint4 *)maxima)[i];
        largest = max(max(max(largest, v.x), max(v.y, v.z)), v.w);
    }
    for (int64_t i = 4 * vectors + threadIdx.x; i < count; i += THREADS) largest = max(largest, maxima[i]);
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = largest;
    __syncthreads();
    for (int w = 0; threadIdx.x == 0 && w < THREADS / WARP; w++) largest = max(largest, shared[w]);
    return largest;
}

__device__ inline void scale_write(float *scale, uint32_t maximum, float largest, StepState *state) {
    *scale = scale_from_maximum(maximum, largest);
    if (maximum >= NONFINITE_BITS && state) state->nonfinite = 1;
}

__global__ __launch_bounds__(SCALE_THREADS) void scale_kernel(float *scale, const uint32_t *maxima, int64_t count,
                                                              float largest, StepState *state) {
    first_stage_wait();
    second_stage_allow(); // whoever starts now may read all that the kernels before this one wrote
    const uint32_t maximum = block_maximum<SCALE_THREADS>(maxima, count);
    if (threadIdx.x == 0) scale_write(scale, maximum, largest, state);
}

// The largest of the rows' scales, which are positive.
__global__ __launch_bounds__(SCALE_THREADS) void scale_over_rows_kernel(float *scale, const float *scales,
                                                                        int64_t rows) {
    first_stage_wait();
    second_stage_allow();
    const uint32_t largest = block_maximum<SCALE_THREADS>((const uint32_t *)scales, rows);
    if (threadIdx.x == 0) *scale = fmaxf(__uint_as_float(largest), SCALE_SMALLEST);
}

// --- maxima of BF16 -----------------------------------------------------------------------------------------
// A warp per row, the last rows first; the next pass reads the tensor again.
__global__ __launch_bounds__(MAXIMUM_WARPS *WARP) void bf16_maxima_kernel(const bf16 *x, int64_t stride,
                                                                          uint32_t *maxima, int64_t rows,
                                                                          int64_t cols) {
    constexpr int V = 8, UNROLL = 8;
    second_stage_allow();
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t row = rows - 1 - ((int64_t)blockIdx.x * MAXIMUM_WARPS + warp);
    if (row < 0) return;
    float maximum = 0.0f;
    for (int64_t first = lane * V; first < cols; first += UNROLL * WARP * V) {
        Pack<bf16, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WARP * V < cols) pack[u] = load<V>(x + row * stride + first + u * WARP * V);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WARP * V < cols) maximum = largest_magnitude(pack[u], maximum);
    }
    const uint32_t bits = warp_maximum_bits(maximum);
    if (lane == 0) maxima[row] = bits;
}

} // namespace

uint32_t *maxima_of(Exec *exec, const char *operation, Tensor t) {
    if (t.amax) return t.amax;
    if ((size_t)t.rows * sizeof(uint32_t) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "%s: the maxima of %lld rows do not fit the workspace", operation, (long long)t.rows);
    return (uint32_t *)exec->workspace;
}

static void scale_launch(Exec *exec, Tensor t, const uint32_t *maxima, int64_t count, bool overlaps) {
    launch_behind(exec, "launching the kernel scale_kernel", scale_kernel, dim3(1), SCALE_THREADS, 0, overlaps,
                  (float *)t.scale, maxima, count, format_max(t.format), exec->state);
}

void scale_from_maxima(Exec *exec, Tensor t, const uint32_t *maxima, int64_t count) {
    scale_launch(exec, t, maxima, count, false);
}

void scale_behind_maxima(Exec *exec, Tensor t, const uint32_t *maxima, int64_t count) {
    scale_launch(exec, t, maxima, count, true);
}

void scale_over_rows(Exec *exec, Tensor q_t, Tensor q) {
    if (q.granularity != SCALE_ROW) return;
    launch_behind(exec, "launching the kernel scale_over_rows_kernel", scale_over_rows_kernel, dim3(1), SCALE_THREADS,
                  0, false, (float *)q_t.scale, (const float *)q.scale, q.rows);
}

void bf16_row_maxima(Exec *exec, Tensor x, uint32_t *maxima) {
    if (x.rows == 0) return;
    bf16_maxima_kernel<<<grid_of(ceil_div(x.rows, MAXIMUM_WARPS)), MAXIMUM_WARPS * WARP, 0,
                         cuda_backend(exec)->stream>>>((const bf16 *)x.data, x.stride, maxima, x.rows, x.cols);
    LAUNCH_CHECK("bf16_maxima_kernel");
}

static void transpose_rescaled(Exec *exec, Tensor out, Tensor x, bool overlaps) {
    const TileOut to = tile_out(Tensor{}, out);
    if (x.format == FMT_E5M2) {
        const RescaledCodes<FMT_E5M2> source = {(const uint8_t *)x.data, (const float *)x.scale, x.stride};
        walk_run<FMT_E5M2, true, false, 6>(exec, "transpose_codes", source, to, x.rows, x.cols, Tensor{}, false,
                                           overlaps);
    } else {
        const RescaledCodes<FMT_E4M3> source = {(const uint8_t *)x.data, (const float *)x.scale, x.stride};
        walk_run<FMT_E4M3, true, false, 6>(exec, "transpose_codes", source, to, x.rows, x.cols, Tensor{}, false,
                                           overlaps);
    }
}

void fp8_transpose_rescaled(Exec *exec, Tensor out, Tensor x) {
    transpose_rescaled(exec, out, x, false);
}

void fp8_transpose_codes(Exec *exec, Tensor out, Tensor x) {
    require_spans("transpose_codes", "the result", out);
    require_spans("transpose_codes", "the codes", x);
    if (scaled_by_row(x)) {
        scale_over_rows(exec, out, x);
        transpose_rescaled(exec, out, x, true);
        return;
    }
    const CodesOf source = {(const uint8_t *)x.data, x.stride};
    walk_run<FMT_E4M3, true, false, 6>(exec, "transpose_codes", source, tile_out(Tensor{}, out), x.rows, x.cols,
                                       Tensor{}, false, false);
}

// --- the attention's output ---------------------------------------------------------------------------------
namespace {

// Codes with a scale per row in one pass: a row is in the registers of WARPS warps, VECTORS vectors of 8 columns per
// thread, of which with one warp only the last may be missing.
constexpr int ROW_WIDTH = 8;
constexpr int ROW_THREADS = 128;

struct RowCast {
    const bf16 *x;
    uint8_t *q;
    float *scale;
    StepState *state;
    int64_t x_stride, q_stride, rows;
    int cols;
};

template <int WARPS, int VECTORS>
__global__ __launch_bounds__(ROW_THREADS) void row_cast_kernel(const __grid_constant__ RowCast a) {
    constexpr int V = ROW_WIDTH, LANES = WARPS * WARP, STEP = LANES * V;
    __shared__ uint32_t shared[ROW_THREADS / WARP];
    const int lane = (int)threadIdx.x % LANES, column = lane * V;
    const int64_t row = (int64_t)blockIdx.x * (ROW_THREADS / LANES) + threadIdx.x / LANES;
    if (row >= a.rows) return; // whole warps, or the whole block
    const bool last = column + (VECTORS - 1) * STEP < a.cols;
    const auto has = [&](int k) { return WARPS > 1 ? column + k * STEP < a.cols : k < VECTORS - 1 || last; };
    const bf16 *const from = a.x + row * a.x_stride + column;
    Bf16Words<V> x[VECTORS];
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (has(k)) x[k] = load_words<V, CACHE_DEFAULT>(from + k * STEP);
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (has(k)) largest = largest_magnitude(x[k], largest);
    uint32_t bits = warp_maximum_bits(largest);
    if constexpr (WARPS > 1) {
        if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = bits;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WARPS; w++) bits = max(bits, shared[w]);
    }
    const float reciprocal = scale_reciprocal(row_scale<FMT_E4M3>(bits, a.scale + row, lane == 0, a.state));
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!has(k)) continue;
        float value[V];
        unpack<V>(x[k], value);
        Pack<uint32_t, V / 4> codes;
        encode<FMT_E4M3, V>(value, reciprocal, codes.value);
        store((uint32_t *)(a.q + row * a.q_stride + column + k * STEP), codes);
    }
}

// VECTORS rises until it covers the width: a warp per row up to 1792 columns, a block of 4 up to 16384.
template <int WARPS, int VECTORS> void row_cast_launch(cudaStream_t stream, const RowCast &a) {
    if (a.cols <= WARPS * WARP * ROW_WIDTH * VECTORS) {
        const int64_t blocks = ceil_div(a.rows, ROW_THREADS / WARP / WARPS);
        row_cast_kernel<WARPS, VECTORS><<<grid_of(blocks), ROW_THREADS, 0, stream>>>(a);
        LAUNCH_CHECK("row_cast_kernel");
    } else if constexpr (WARPS == 1 && VECTORS < 7)
        row_cast_launch<1, VECTORS + 1>(stream, a);
    else if constexpr (WARPS == 1)
        row_cast_launch<ROW_THREADS / WARP, 2>(stream, a);
    else if constexpr (VECTORS < 16)
        row_cast_launch<WARPS, VECTORS * 2>(stream, a);
    else
        fatal(EXIT_DEVICE,
              "quantize_forward on the GPU: %d columns where at most %d are built with scales per token: use --scaling "
              "tensor",
              a.cols, VECTORS * ROW_THREADS * ROW_WIDTH);
}

} // namespace

void fp8_quantize_forward(Exec *exec, Tensor q, Tensor x) {
    const char *operation = "quantize_forward";
    require_format(operation, "q", q, FMT_E4M3);
    require_format(operation, "x", x, FMT_BF16);
    require_spans(operation, "q", q);
    require_spans(operation, "x", x);
    if (x.rows == 0) return;
    if (scaled_by_row(q)) {
        const RowCast a = {
            (const bf16 *)x.data, (uint8_t *)q.data, (float *)q.scale, exec->state, x.stride, q.stride, x.rows,
            (int)x.cols};
        row_cast_launch<1, 1>(cuda_backend(exec)->stream, a);
        return;
    }
    uint32_t *const maxima = maxima_of(exec, operation, q);
    bf16_row_maxima(exec, x, maxima);
    scale_behind_maxima(exec, q, maxima, x.rows);
    const ValuesOf<WalkBf16> source = {{(const bf16 *)x.data, x.stride}};
    walk_run<FMT_E4M3, false, false, 5>(exec, operation, source, tile_out(q, Tensor{}), x.rows, x.cols, Tensor{}, false,
                                        true);
}

void fp8_quantize_rebuild(Exec *exec, Tensor q_t, Tensor q, Tensor x) {
    const char *operation = "quantize_rebuild";
    require_format(operation, "q_t", q_t, FMT_E4M3);
    require_format(operation, "x", x, FMT_BF16);
    require_spans(operation, "q_t", q_t);
    require_spans(operation, "x", x);
    const ValuesOf<WalkBf16> source = {{(const bf16 *)x.data, x.stride}};
    const bool own_scale = q.granularity == SCALE_ROW;
    scale_over_rows(exec, q_t, q);
    walk_run<FMT_E4M3, true, false, 5>(exec, operation, source, tile_out(Tensor{}, q_t), x.rows, x.cols, Tensor{},
                                       false, own_scale);
}

// --- gradients ----------------------------------------------------------------------------------------------
void fp8_grad_quantize(Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate) {
    const char *operation = "grad_quantize";
    require_format(operation, "dy", dy, FMT_BF16);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    require_format(operation, "the transposed dy", dy_qt, dy_q.format);
    require_spans(operation, "dy", dy);
    require_spans(operation, "dy_q", dy_q);
    require_spans(operation, "dy_qt", dy_qt);
    const uint32_t *maxima = dy.amax;
    if (!maxima) {
        uint32_t *const own = maxima_of(exec, operation, dy_q);
        bf16_row_maxima(exec, dy, own);
        maxima = own;
    }
    scale_launch(exec, dy_q, maxima, dy.rows, !dy.amax);
    const ValuesOf<WalkBf16> source = {{(const bf16 *)dy.data, dy.stride}};
    const TileOut out = tile_out(dy_q, dy_qt);
    if (dy_q.format == FMT_E5M2)
        walk_run<FMT_E5M2, true, true, 5>(exec, operation, source, out, dy.rows, dy.cols, dbias, accumulate, true);
    else
        walk_run<FMT_E4M3, true, true, 5>(exec, operation, source, out, dy.rows, dy.cols, dbias, accumulate, true);
}

// --- weights ------------------------------------------------------------------------------------------------
namespace {

// Entries of one launch's table, which travels as a kernel parameter of at most 4 KiB.
constexpr int WEIGHT_ENTRIES = 60;
constexpr int WEIGHT_THREADS = 256;
constexpr int64_t WEIGHT_ELEMENTS = 32768; // per block, when maxima are looked for

struct WeightEntry {
    const bf16 *value;
    uint8_t *codes, *codes_t; // codes_t NULL: made when it is needed
    float *scale;
    uint32_t *maximum; // as the optimizer leaves it; NULL: not kept
    uint32_t *amax;    // of the whole weight, where this is a share of it; else NULL
    int rows, cols;
};

struct WeightTable {
    WeightEntry entry[WEIGHT_ENTRIES];
    int first_block[WEIGHT_ENTRIES + 1]; // of the blocks that look for maxima
    int first_tile[WEIGHT_ENTRIES + 1];
    int count;
    uint32_t *maxima; // one per block; NULL: the entries' own are known
    StepState *state;
};
static_assert(sizeof(WeightTable) <= 4096, "a table is a kernel parameter");

// The entry whose share includes `index`; first has count + 1 rising values.
__device__ inline int weight_find(const int *first, int count, int index) {
    int low = 0, high = count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

__global__ __launch_bounds__(WEIGHT_THREADS) void weight_maxima_kernel(const __grid_constant__ WeightTable table) {
    constexpr int V = 8, UNROLL = 4;
    __shared__ uint32_t shared[WEIGHT_THREADS / WARP];
    const int at = weight_find(table.first_block, table.count, (int)blockIdx.x);
    const WeightEntry &e = table.entry[at];
    const int64_t begin = ((int)blockIdx.x - table.first_block[at]) * WEIGHT_ELEMENTS;
    const int64_t left = (int64_t)e.rows * e.cols - begin;
    const int64_t count = left < WEIGHT_ELEMENTS ? left : WEIGHT_ELEMENTS;
    float maximum = 0.0f;
    for (int64_t first = threadIdx.x * V; first < count; first += UNROLL * WEIGHT_THREADS * V) {
        Pack<bf16, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WEIGHT_THREADS * V < count)
                pack[u] = load<V>(e.value + begin + first + u * WEIGHT_THREADS * V);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WEIGHT_THREADS * V < count) maximum = largest_magnitude(pack[u], maximum);
    }
    uint32_t bits = warp_maximum_bits(maximum);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = bits;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (uint32_t other : shared) bits = max(bits, other);
    table.maxima[blockIdx.x] = bits;
}

__global__ __launch_bounds__(WEIGHT_THREADS) void weight_scales_kernel(const __grid_constant__ WeightTable table) {
    const WeightEntry &e = table.entry[blockIdx.x];
    const int first = table.first_block[blockIdx.x], count = table.first_block[blockIdx.x + 1] - first;
    const uint32_t maximum = table.maxima ? block_maximum<WEIGHT_THREADS>(table.maxima + first, count) : *e.maximum;
    if (threadIdx.x > 0) return;
    if (e.maximum) *e.maximum = maximum; // stays if the next update is skipped
    scale_write(e.scale, maximum, E4M3_MAX, table.state);
}

// Shares: their own maxima out, and the scale from the maxima of the whole weights.
__global__ __launch_bounds__(WEIGHT_THREADS) void share_maxima_kernel(const __grid_constant__ WeightTable table) {
    const int first = table.first_block[blockIdx.x], count = table.first_block[blockIdx.x + 1] - first;
    const uint32_t maximum = block_maximum<WEIGHT_THREADS>(table.maxima + first, count);
    if (threadIdx.x == 0) *table.entry[blockIdx.x].amax = maximum;
}

__global__ void share_scales_kernel(const __grid_constant__ WeightTable table) {
    const WeightEntry &e = table.entry[blockIdx.x];
    scale_write(e.scale, *e.amax, E4M3_MAX, table.state);
}

__global__ __launch_bounds__(TILE_THREADS, 2) void weight_codes_kernel(const __grid_constant__ WeightTable table) {
    __shared__ uint4 tile[TILE * TILE / sizeof(uint4)];
    const int at = weight_find(table.first_tile, table.count, (int)blockIdx.x);
    const WeightEntry &e = table.entry[at];
    const int index = (int)blockIdx.x - table.first_tile[at], across = (e.cols + TILE - 1) / TILE;
    const ValuesOf<StoredBf16<true>> source = {{e.value, e.cols}};
    const TileOut out = {e.codes, e.codes_t, NULL, e.scale, e.cols, e.rows};
    const float reciprocal = scale_reciprocal(*e.scale);
    const int64_t row = index / across * TILE, column = index % across * TILE;
    float sum[SPAN];
    if (e.codes_t)
        tile_pass<FMT_E4M3, true, false, 4>(source, out, reciprocal, e.rows, e.cols, row, column, (uint32_t *)tile,
                                            sum);
    else
        tile_pass<FMT_E4M3, false, false, 4>(source, out, reciprocal, e.rows, e.cols, row, column, (uint32_t *)tile,
                                             sum);
}

// Transposes that several layers take turns in are made before the product that reads them, not here.
bool keeps_transpose(const Parameter *parameters, int count, int index) {
    const void *const memory = parameters[index].weight.codes_t.data;
    for (int i = 0; i < count; i++)
        if (i != index && parameters[i].weight.codes_t.data == memory) return false;
    return memory != NULL;
}

enum WeightWork { QUANTIZE_WEIGHTS, QUANTIZE_SHARES, SHARE_MAXIMA };

void weights_launch(Exec *exec, WeightTable *table, WeightWork work) {
    const int blocks = table->first_block[table->count], tiles = table->first_tile[table->count];
    const unsigned entries = (unsigned)table->count;
    cudaStream_t stream = cuda_backend(exec)->stream;
    if (entries == 0) return;
    if ((size_t)blocks * sizeof(uint32_t) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "weights_quantize: the maxima of the weights do not fit the workspace");
    if (work != QUANTIZE_SHARES && table->maxima && blocks > 0) {
        weight_maxima_kernel<<<grid_of(blocks), WEIGHT_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("weight_maxima_kernel");
    }
    if (work == QUANTIZE_WEIGHTS) {
        weight_scales_kernel<<<entries, WEIGHT_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("weight_scales_kernel");
    } else if (work == QUANTIZE_SHARES) {
        share_scales_kernel<<<entries, 1, 0, stream>>>(*table);
        LAUNCH_CHECK("share_scales_kernel");
    } else {
        share_maxima_kernel<<<entries, WEIGHT_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("share_maxima_kernel");
    }
    if (work != SHARE_MAXIMA && tiles > 0) {
        weight_codes_kernel<<<grid_of(tiles), TILE_THREADS, 0, stream>>>(*table);
        LAUNCH_CHECK("weight_codes_kernel");
    }
    table->count = 0;
}

// Goes through the weights that have codes: either all of them are whole, or all are shares (with amax).
void weights_run(Exec *exec, const char *operation, const Parameter *parameters, int count, WeightWork work) {
    CudaBackend *backend = cuda_backend(exec);
    bool left = backend->maxima_left && work == QUANTIZE_WEIGHTS;
    backend->maxima_left = false; // whoever changes the values next need not be the optimizer
    for (int i = 0; i < count; i++) left = left && (!parameters[i].weight.codes.data || parameters[i].weight.maximum);
    WeightTable table = {};
    table.maxima = left ? NULL : (uint32_t *)exec->workspace;
    table.state = exec->state;
    for (int i = 0; i < count; i++) {
        const Weight w = parameters[i].weight;
        if (!w.codes.data) continue;
        require_format(operation, "a weight", w.value, FMT_BF16);
        require_spans(operation, "a weight", w.value);
        require_spans(operation, "a weight's codes", w.codes);
        require_spans(operation, "a weight's transposed codes", w.codes_t);
        if (w.value.stride != w.value.cols || w.codes.stride != w.codes.cols)
            fatal(EXIT_DEVICE, "%s on the GPU: a weight has gaps", operation);
        const int at = table.count++;
        const int64_t rows = w.value.rows, cols = w.value.cols;
        table.entry[at] = {(const bf16 *)w.value.data,
                           (uint8_t *)w.codes.data,
                           keeps_transpose(parameters, count, i) ? (uint8_t *)w.codes_t.data : NULL,
                           (float *)w.codes.scale,
                           w.maximum,
                           w.codes.amax,
                           (int)rows,
                           (int)cols};
        table.first_block[at + 1] = table.first_block[at] + (int)ceil_div(rows * cols, WEIGHT_ELEMENTS);
        table.first_tile[at + 1] = table.first_tile[at] + (int)(ceil_div(rows, TILE) * ceil_div(cols, TILE));
        if (table.count == WEIGHT_ENTRIES) weights_launch(exec, &table, work);
    }
    weights_launch(exec, &table, work);
}

} // namespace

void cuda_weights_quantize(Exec *exec, const Parameter *parameters, int count) {
    bool shares = false;
    for (int i = 0; i < count; i++) shares = shares || parameters[i].weight.codes.amax;
    weights_run(exec, "weights_quantize", parameters, count, shares ? QUANTIZE_SHARES : QUANTIZE_WEIGHTS);
}

void cuda_weights_maxima(Exec *exec, const Parameter *parameters, int count) {
    weights_run(exec, "weights_maxima", parameters, count, SHARE_MAXIMA);
}
