// Computes scales from amaxes, and quantizes matmul inputs: the attention's output and gradients. fp8_weights.cu
// quantizes weights.
//
// Memory traffic per element (BF16 2 bytes, FP8 1):
//                        reads                                        writes
//   quantize_forward     x, twice unless q has row scales             q
//   quantize_recompute   x                                            q_t
//   grad_quantize        dy, twice unless dy.amax exists              dy_q, dy_qt
#include "fp8_cast.h"
#include "fp8_rows.h"

namespace {

// --- scales of tensors, computed from row amaxes or row scales -------------------------------------------------------
constexpr int SCALE_THREADS = 1024;

// A scale to write: a tensor's scale, or the scale of its transpose if the transpose has a different format.
struct ScaleOf {
    float *scale;  // address of the scale; NULL: not written
    float largest; // largest finite value of the FP8 format
};

__global__ __launch_bounds__(SCALE_THREADS) void scale_kernel(ScaleOf q, ScaleOf q_t, const uint32_t *amaxes,
                                                              int64_t count, StepState *state) {
    first_stage_wait();
    // allows the next kernel to start; the next kernel may read all results except the scale that this kernel writes
    second_stage_allow();
    const uint32_t amax = block_amax<SCALE_THREADS>(amaxes, count);
    if (threadIdx.x != 0) return;
    scale_write(q.scale, amax, q.largest, state);
    if (q_t.scale) scale_write(q_t.scale, amax, q_t.largest, state);
}

// Writes the largest row scale to *scale, converted from format `from` to format `to` (scale_in_format()). Scales are
// positive, so their bits can be compared as unsigned integers.
__global__ __launch_bounds__(SCALE_THREADS) void scale_over_rows_kernel(float *scale, const float *scales, int64_t rows,
                                                                        Format from, Format to) {
    first_stage_wait();
    second_stage_allow();
    const uint32_t largest = block_amax<SCALE_THREADS>((const uint32_t *)scales, rows);
    if (threadIdx.x == 0) *scale = scale_in_format(fmaxf(__uint_as_float(largest), SCALE_MIN), from, to);
}

// --- row amaxes of BF16 tensors, and rescaling of FP8 tensors --------------------------------------------------------
constexpr int AMAX_WARPS = 8;

// Writes the amax of each row; one warp processes a row. The first rows come last, so that they are still in the L2
// cache when the next pass starts with them.
__global__ __launch_bounds__(AMAX_WARPS *WARP) void bf16_amaxes_kernel(const bf16 *x, int64_t stride, uint32_t *amaxes,
                                                                       int64_t rows, int64_t cols) {
    constexpr int V = 8, UNROLL = 8;
    second_stage_allow();
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t row = rows - 1 - ((int64_t)blockIdx.x * AMAX_WARPS + warp);
    if (row < 0) return;
    float amax = 0.0f;
    for (int64_t first = lane * V; first < cols; first += UNROLL * WARP * V) {
        Pack<bf16, V> pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WARP * V < cols) pack[u] = load<V>(x + row * stride + first + u * WARP * V);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * WARP * V < cols) amax = largest_magnitude(pack[u], amax);
    }
    const uint32_t bits = warp_amax_bits(amax);
    if (lane == 0) amaxes[row] = bits;
}

} // namespace

uint32_t *amaxes_of(Exec *exec, const char *operation, Tensor t) {
    if (t.amax) return t.amax;
    if ((size_t)t.rows * sizeof(uint32_t) > exec->workspace_bytes)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: the amaxes of %lld rows do not fit the workspace", operation,
              (long long)t.rows);
    return (uint32_t *)exec->workspace;
}

static void scale_launch(Exec *exec, Tensor q, Tensor q_t, const uint32_t *amaxes, int64_t count, bool overlaps) {
    const bool other = q_t.scale && q_t.scale != q.scale;
    const ScaleOf of_q = {(float *)q.scale, format_max(q.format)};
    const ScaleOf of_q_t = {other ? (float *)q_t.scale : NULL, format_max(q_t.format)};
    launch_after(exec, "launching the kernel scale_kernel", scale_kernel, dim3(1), SCALE_THREADS, overlaps, of_q,
                 of_q_t, amaxes, count, exec->state);
}

void scale_from_amaxes(Exec *exec, Tensor t, const uint32_t *amaxes, int64_t count) {
    scale_launch(exec, t, Tensor{}, amaxes, count, false);
}

void scale_after_amaxes(Exec *exec, Tensor t, const uint32_t *amaxes, int64_t count) {
    scale_launch(exec, t, Tensor{}, amaxes, count, true);
}

bool scale_over_rows(Exec *exec, Tensor q_t, Tensor q) {
    const bool from_amaxes = q.amax && !format_is_fp8(q.format) && format_is_fp8(q_t.format);
    if (from_amaxes) scale_from_amaxes(exec, q_t, q.amax, q.rows);
    if (q.granularity != SCALE_ROW) return from_amaxes;
    launch_after(exec, "launching the kernel scale_over_rows_kernel", scale_over_rows_kernel, dim3(1), SCALE_THREADS,
                 false, (float *)q_t.scale, (const float *)q.scale, q.rows, q.format, q_t.format);
    return true;
}

void bf16_row_amaxes(Exec *exec, Tensor x, uint32_t *amaxes) {
    if (x.rows == 0) return;
    bf16_amaxes_kernel<<<grid_of(ceil_div(x.rows, AMAX_WARPS)), AMAX_WARPS * WARP, 0, cuda_backend(exec)->stream>>>(
        (const bf16 *)x.data, x.stride, amaxes, x.rows, x.cols);
    LAUNCH_CHECK("bf16_amaxes_kernel");
}

template <Format TO> static void rescale_cast(Exec *exec, Tensor out, Tensor x, bool overlaps) {
    const RescaledCodes<TO> source = {{(const uint8_t *)x.data, (int)x.stride}, (const float *)x.scale};
    cast_run<TO, TO, true, false, 6>(exec, "transpose_codes", source, tile_out(Tensor{}, out), x, overlaps);
}

static void transpose_rescaled(Exec *exec, Tensor out, Tensor x, bool overlaps) {
    require_format("transpose_codes", "the input", x, FMT_E4M3);
    if (out.format == FMT_E5M2)
        rescale_cast<FMT_E5M2>(exec, out, x, overlaps);
    else
        rescale_cast<FMT_E4M3>(exec, out, x, overlaps);
}

void fp8_transpose_rescaled(Exec *exec, Tensor out, Tensor x) {
    transpose_rescaled(exec, out, x, false);
}

void fp8_transpose_codes(Exec *exec, Tensor out, Tensor x) {
    require_spans("transpose_codes", "the result", out);
    require_spans("transpose_codes", "the input", x);
    if (scaled_by_row(x)) {
        scale_over_rows(exec, out, x);
        transpose_rescaled(exec, out, x, true);
        return;
    }
    const CodesOf source = {(const uint8_t *)x.data, (int)x.stride};
    cast_run<FMT_E4M3, FMT_E4M3, true, false, 6>(exec, "transpose_codes", source, tile_out(Tensor{}, out), x, false);
}

void fp8_decode(Exec *exec, const char *operation, Tensor out, Tensor x) {
    require_format(operation, "the result", out, FMT_BF16);
    require_format(operation, "the input", x, FMT_E4M3);
    require_spans(operation, "the result", out);
    require_spans(operation, "the input", x);
    const DecodedCodes source = {{(const uint8_t *)x.data, (int)x.stride}, (const float *)x.scale, scaled_by_row(x)};
    cast_run<FMT_BF16, FMT_BF16, false, false, 4>(exec, operation, source, tile_out(out, Tensor{}), x, false);
}

// --- quantization with a scale per row, used for attention's output --------------------------------------------------
namespace {

struct RowCast {
    Matrix<const bf16> x;
    RowCodes q;
    int64_t rows;
    int cols;
};

// Quantizes x with a scale per row in one pass.
template <typename Shape>
__global__ __launch_bounds__(ROW_THREADS) void row_cast_kernel(const __grid_constant__ RowCast a) {
    constexpr int V = ROW_WIDTH, VECTORS = Shape::VECTORS;
    const int64_t row = RowPart<Shape>::index();
    if (row >= a.rows) return; // all threads of a warp or block return together, so that no barrier is missed
    const RowPart<Shape, (Shape::WARPS > 1)> at(row, a.cols);
    const bf16 *const from = a.x.at(row, at.column);
    Bf16Words<V> x[VECTORS];
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (at.has(k)) x[k] = load_words<V, CACHE_DEFAULT>(from + k * Shape::STEP);
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (at.has(k)) largest = largest_magnitude(x[k], largest);
    row_encode(a.q, at, row_amax(at, largest), [&](int k, float out[V]) { unpack<V>(x[k], out); });
}

void row_cast_launch(cudaStream_t stream, const RowCast &a) {
    const auto run = [&]<typename Shape>(Shape) {
        row_cast_kernel<Shape><<<grid_of(ceil_div(a.rows, Shape::ROWS)), ROW_THREADS, 0, stream>>>(a);
        LAUNCH_CHECK("row_cast_kernel");
    };
    if (for_rows_of_a_warp(a.cols, run)) return;
    const int64_t vectors = ceil_div(a.cols, ROW_THREADS * ROW_WIDTH);
    if (vectors <= 2) return run(RowShape<4, 2>{});
    if (vectors <= 4) return run(RowShape<4, 4>{});
    if (vectors <= 8) return run(RowShape<4, 8>{});
    if (vectors <= 16) return run(RowShape<4, 16>{});
    static_assert(16 * ROW_THREADS * ROW_WIDTH == FP8_MAX_CAST_WIDTH, "the widest cast must fit 16 vectors per thread");
    fatal(EXIT_DEVICE,
          "quantize_forward on the GPU: FP8 with a scale per token supports at most %d columns (is %d); use --recipe "
          "coat-paper",
          FP8_MAX_CAST_WIDTH, a.cols);
}

} // namespace

void fp8_cast_after_amaxes(Exec *exec, const char *operation, Tensor q, Tensor x, const uint32_t *amaxes) {
    const ValuesOf<Bf16Reader<true>> source = {bf16_reader<true>(x)};
    scale_after_amaxes(exec, q, amaxes, x.rows);
    cast_run<FMT_E4M3, FMT_E4M3, false, false, 5>(exec, operation, source, tile_out(q, Tensor{}), x, true);
}

void fp8_quantize_forward(Exec *exec, Tensor q, Tensor x) {
    const char *operation = "quantize_forward";
    require_format(operation, "q", q, FMT_E4M3);
    require_format(operation, "x", x, FMT_BF16);
    require_spans(operation, "q", q);
    require_spans(operation, "x", x);
    if (x.rows == 0) return;
    if (scaled_by_row(q)) {
        row_cast_launch(cuda_backend(exec)->stream,
                        {matrix_of<const bf16>(x), row_codes(exec, q), x.rows, (int)x.cols});
        return;
    }
    uint32_t *const amaxes = amaxes_of(exec, operation, q);
    bf16_row_amaxes(exec, x, amaxes);
    fp8_cast_after_amaxes(exec, operation, q, x, amaxes);
}

void fp8_quantize_recompute(Exec *exec, Tensor q_t, Tensor q, Tensor x) {
    const char *operation = "quantize_recompute";
    require_format(operation, "q_t", q_t, FMT_E4M3);
    require_format(operation, "x", x, FMT_BF16);
    require_spans(operation, "q_t", q_t);
    require_spans(operation, "x", x);
    const ValuesOf<Bf16Reader<true>> source = {bf16_reader<true>(x)};
    const bool own_scale = scale_over_rows(exec, q_t, q);
    cast_run<FMT_E4M3, FMT_E4M3, true, false, 5>(exec, operation, source, tile_out(Tensor{}, q_t), x, own_scale);
}

// --- quantization of gradients, with their transposes ----------------------------------------------------------------
void fp8_grad_quantize(Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate) {
    const char *operation = "grad_quantize";
    require_format(operation, "dy", dy, FMT_BF16);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    require_gradient_formats(operation, dy_q, dy_qt);
    require_spans(operation, "dy", dy);
    require_spans(operation, "dy_q", dy_q);
    require_spans(operation, "dy_qt", dy_qt);
    const uint32_t *amaxes = dy.amax;
    if (!amaxes) {
        uint32_t *const own = amaxes_of(exec, operation, dy_q);
        bf16_row_amaxes(exec, dy, own);
        amaxes = own;
    }
    scale_launch(exec, dy_q, dy_qt, amaxes, dy.rows, !dy.amax);
    const ValuesOf<Bf16Reader<true>> source = {bf16_reader<true>(dy)};
    const TileOut out = tile_out(dy_q, dy_qt);
    if (dy_q.format == FMT_E5M2)
        cast_run<FMT_E5M2, FMT_E5M2, true, true, 5>(exec, operation, source, out, dy, true, dbias, accumulate);
    else
        cast_run<FMT_E4M3, FMT_E5M2, true, true, 5>(exec, operation, source, out, dy, true, dbias, accumulate);
}
