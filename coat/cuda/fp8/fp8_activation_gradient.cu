// The gradient of gelu and gelu again in one pass (COAT: saved activations, FP8 flow). Where scales of dh's rows come from a
// bound, no code has to wait for the whole row: one walk down tiles writes dh's codes, their transpose and gelu's.
//
// Bytes per element of device memory, h per group of 16: 3.125 read, 3 written; activation_bound reads dy and w once.
#include "fp8_gelu.h"
#include "fp8_tile.h"

namespace {

// --- the bound ----------------------------------------------------------------------------------------------
constexpr int SQUARES_WARPS = 8, SQUARES_BLOCKS = 256;
static_assert(SQUARES_SPAN == SPAN, "a thread adds up a span");

// The sum of squares of a row of codes, in every lane of the warp that has it.
__device__ inline double row_squares(const uint8_t *row, int cols, int lane) {
    double sum = 0.0;
    for (int first = lane * SPAN; first < cols; first += WARP * SPAN) {
        const Pack<uint32_t, SPAN / 4> codes = load<SPAN / 4>((const uint32_t *)(row + first));
        float value[SPAN];
        decode_unscaled<SPAN>(codes.value, value);
        sum += squares_of(value, SPAN);
    }
#pragma unroll
    for (int mask = 1; mask < WARP; mask *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, mask);
    return sum;
}

// The largest of `value` over the threads of a block, in every one of them; NaN is passed over, as the twin does.
__device__ inline double block_largest(double value) {
    __shared__ double shared[SQUARES_WARPS];
#pragma unroll
    for (int mask = 1; mask < WARP; mask *= 2) value = fmax(value, __shfl_xor_sync(ALL_LANES, value, mask));
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < SQUARES_WARPS; w++) value = fmax(value, shared[w]);
    return value;
}

struct CodeRows {
    const uint8_t *codes;
    int64_t rows;
    int cols, stride;
};

// Of every block the largest squares of its rows: of the transpose, w's columns.
__global__ __launch_bounds__(SQUARES_WARPS *WARP) void column_squares_kernel(CodeRows w, double *largest) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    double most = 0.0;
    for (int64_t row = (int64_t)blockIdx.x * SQUARES_WARPS + warp; row < w.rows; row += gridDim.x * SQUARES_WARPS)
        most = fmax(most, row_squares(w.codes + row * w.stride, w.cols, lane));
    most = block_largest(most);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

__global__ __launch_bounds__(SQUARES_WARPS *WARP) void bound_kernel(CodeRows dy, const double *largest, int blocks,
                                                                    const float *scale, const float *weight_scale,
                                                                    float *scales, StepState *state) {
    static_assert(SQUARES_BLOCKS <= SQUARES_WARPS * WARP, "a thread has one of them");
    const double columns = block_largest((int)threadIdx.x < blocks ? largest[threadIdx.x] : 0.0);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int64_t row = (int64_t)blockIdx.x * SQUARES_WARPS + warp; row < dy.rows; row += gridDim.x * SQUARES_WARPS) {
        const double squares = row_squares(dy.codes + row * dy.stride, dy.cols, lane);
        const float bound = activation_bound(squares, columns, *scale, *weight_scale);
        row_scale<FMT_E4M3>(__float_as_uint(bound), scales + row, lane == 0, state);
    }
}

// --- the pass -----------------------------------------------------------------------------------------------
constexpr int COLUMNS = 128, BLOCKS = 2;

struct OnePass {
    Bf16Reader<true> dg;
    GroupReader<true> h;
    const float *row_scales; // of dh's codes
    const float *scale_t;    // of their transpose
    const float *scale_g;    // of gelu's transpose
    char *codes;             // (rows, cols)
    uint8_t *dh_t, *g_t;     // (cols, rows)
    float *sums;             // (gridDim.y, cols)
    int rows, cols, codes_bytes, dh_t_bytes, g_t_bytes;
    LoadOrder order;

    struct Loaded {
        Bf16Words<SPAN> dg;
        GroupReader<true>::Loaded h;
        float row_scale;
    };
    __device__ Loaded load(int row, int column) const {
        return {dg.load(row, column), h.load(row, column), row_scales[row]};
    }
    __device__ static uint32_t word(const Loaded &loaded) {
        return loaded.dg.word[SPAN / 2 - 1] ^ GroupReader<true>::word(loaded.h) ^ __float_as_uint(loaded.row_scale);
    }
};

// dg gelu'(h), and gelu(h) times a reciprocal: both from one gate.
__device__ inline void gradient_and_gelu(const OnePass::Loaded &now, float reciprocal_g, float d[SPAN], float g[SPAN]) {
    const float scale = GroupReader<true>::scale(now.h);
    const GeluScaled gelu(scale);
    const float factor = scale * reciprocal_g;
    float t[SPAN];
    GroupReader<true>::unscaled(now.h, t);
    unpack<SPAN>(now.dg, d);
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        const float gate = fast_reciprocal(1.0f + gelu.power(t[i]));
        g[i] = t[i] * factor * gate;
        d[i] = d[i] * gate * fmaf(fmaf(gelu.slope_square, t[i] * t[i], gelu.slope), fmaf(-gate, t[i], t[i]), 1.0f);
    }
}

// A block takes the tiles blockIdx.y, blockIdx.y + gridDim.y, ... down the tensor; a thread has its next row on its way.
template <Format T>
__global__ __launch_bounds__(TILE_THREADS<COLUMNS>, BLOCKS) void one_pass_kernel(const __grid_constant__ OnePass w) {
    __shared__ Tile<COLUMNS> dh_tile, g_tile;
    second_stage_allow();
    const int first_column = (int)blockIdx.x * COLUMNS;
    const int column = first_column + (int)threadIdx.x % TILE_LANES<COLUMNS> * SPAN;
    const int from = min(column, w.cols - SPAN), limit = column < w.cols ? w.rows : 0;
    const int step = (int)gridDim.y * TILE_ROWS;
    int row = (int)blockIdx.y * TILE_ROWS + (int)threadIdx.x / TILE_LANES<COLUMNS> * THREAD_ROWS;
    OnePass::Loaded next = w.load(min(row, w.rows - 1), from);
    const float reciprocal_t = row_scale_reciprocal(*w.scale_t), reciprocal_g = scale_reciprocal(*w.scale_g);
    float sum[SPAN] = {};
    for (int first_row = (int)blockIdx.y * TILE_ROWS; first_row < w.rows; first_row += step, row += step) {
        uint32_t dh_code[THREAD_ROWS][SPAN / 4], g_code[THREAD_ROWS][SPAN / 4];
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++) {
            const OnePass::Loaded now = next;
            const int here = row + r, ahead = r + 1 < THREAD_ROWS ? here + 1 : row + step;
            next = w.load(min(ahead + (int)(OnePass::word(now) & w.order.zero), w.rows - 1), from);
            if (here == w.order.never) continue;
            float d[SPAN], g[SPAN];
            gradient_and_gelu(now, reciprocal_g, d, g);
            const bool inside = here < limit;
#pragma unroll
            for (int i = 0; i < SPAN; i++) sum[i] += inside ? d[i] : 0.0f;
            Pack<uint32_t, SPAN / 4> words;
            encode<FMT_E4M3, SPAN>(d, row_scale_reciprocal(now.row_scale), words.value);
            encode<FMT_E4M3, SPAN>(g, 1.0f, g_code[r]);
            rescale_codes<FMT_E4M3, T, SPAN>(words.value, now.row_scale * reciprocal_t, dh_code[r]);
            if (inside) store((uint32_t *)((w.codes + column) + (int64_t)here * w.codes_bytes), words);
        }
        tile_put(&dh_tile, dh_code);
        tile_put(&g_tile, g_code);
        __syncthreads();
        tile_write(&dh_tile, w.dh_t, w.dh_t_bytes, first_row, first_column, w.rows, w.cols);
        tile_write(&g_tile, w.g_t, w.g_t_bytes, first_row, first_column, w.rows, w.cols);
        __syncthreads();
    }
    if (w.sums) tile_sums(&dh_tile, sum, w.sums + (int64_t)blockIdx.y * w.cols + first_column, w.cols - first_column);
}

CodeRows code_rows(const char *operation, const char *what, Tensor t) {
    require_format(operation, what, t, FMT_E4M3);
    require_spans(operation, what, t);
    if (t.granularity != SCALE_TENSOR)
        fatal(EXIT_DEVICE, "%s on the GPU: %s has more scales than one", operation, what);
    return {(const uint8_t *)t.data, t.transposed ? t.cols : t.rows, (int)(t.transposed ? t.rows : t.cols),
            (int)t.stride};
}

} // namespace

void cuda_activation_bound(Exec *exec, Tensor dh_q, Tensor dy, Weight w) {
    const char *operation = "activation_bound";
    const CodeRows rows = code_rows(operation, "dy", dy), columns = code_rows(operation, "the transposed w", w.codes_t);
    require_format(operation, "dh", dh_q, FMT_E4M3);
    if (!scaled_by_row(dh_q)) fatal(EXIT_DEVICE, "%s on the GPU: dh has no scales of its rows", operation);
    if (rows.rows == 0) return;
    cudaStream_t stream = cuda_backend(exec)->stream;
    double *const largest = (double *)exec->workspace;
    const int64_t needed = ceil_div(columns.rows, SQUARES_WARPS), most = 8 * (int64_t)cuda_backend(exec)->sm_count;
    const int blocks = (int)(needed < SQUARES_BLOCKS ? needed : SQUARES_BLOCKS);
    column_squares_kernel<<<blocks, SQUARES_WARPS * WARP, 0, stream>>>(columns, largest);
    LAUNCH_CHECK("column_squares_kernel");
    const int64_t row_blocks = ceil_div(rows.rows, SQUARES_WARPS);
    bound_kernel<<<grid_of(row_blocks < most ? row_blocks : most), SQUARES_WARPS * WARP, 0, stream>>>(
        rows, largest, blocks, (const float *)dy.scale, (const float *)w.codes_t.scale, (float *)dh_q.scale,
        exec->state);
    LAUNCH_CHECK("bound_kernel");
}

void cuda_activation_backward_rebuild(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor g_t, Tensor g,
                                      Tensor dg, Tensor h, bool accumulate) {
    const char *operation = "activation_backward_rebuild";
    const Tensor all[] = {dh_q, dh_qt, g_t, dg, h};
    const char *const names[] = {"dh", "the transposed dh", "the transposed g", "dg", "h"};
    for (int i = 0; i < 5; i++) require_spans(operation, names[i], all[i]);
    require_format(operation, "dg", dg, FMT_BF16);
    require_format(operation, "dh", dh_q, FMT_E4M3);
    require_format(operation, "the transposed g", g_t, FMT_E4M3);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    require_gradient_codes(operation, dh_q, dh_qt);
    if (!is_grouped(h) || !scaled_by_row(dh_q) || h.cols != dg.cols)
        fatal(EXIT_DEVICE, "%s on the GPU is built for gelu, with grouped h and scales of dh's rows", operation);
    if (dg.rows == 0) return;
    scale_over_rows(exec, dh_qt, dh_q);
    scale_over_rows(exec, g_t, g);
    const int rows = (int)h.rows, cols = (int)h.cols;
    const int64_t across = ceil_div(cols, COLUMNS), down = ceil_div(rows, TILE_ROWS);
    const int64_t splits = tile_splits(across, down, (int64_t)cuda_backend(exec)->sm_count * BLOCKS,
                                       tile_sum_parts(exec, operation, cols));
    const OnePass w = {bf16_reader<true>(dg),
                       group_reader<true>(h),
                       (const float *)dh_q.scale,
                       (const float *)dh_qt.scale,
                       (const float *)g_t.scale,
                       (char *)dh_q.data,
                       (uint8_t *)dh_qt.data,
                       (uint8_t *)g_t.data,
                       dbias.data ? (float *)exec->workspace : NULL,
                       rows,
                       cols,
                       (int)dh_q.stride,
                       (int)dh_qt.stride,
                       (int)g_t.stride,
                       LOAD_ORDER};
    const dim3 grid((unsigned)across, (unsigned)splits);
    cudaStream_t stream = cuda_backend(exec)->stream;
    if (dh_qt.format == FMT_E5M2)
        one_pass_kernel<FMT_E5M2><<<grid, TILE_THREADS<COLUMNS>, 0, stream>>>(w);
    else
        one_pass_kernel<FMT_E4M3><<<grid, TILE_THREADS<COLUMNS>, 0, stream>>>(w);
    LAUNCH_CHECK("one_pass_kernel");
    if (dbias.data) partials_sum(exec, (float *)dbias.data, w.sums, (int)splits, cols, accumulate);
}
