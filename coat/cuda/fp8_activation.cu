// The activation function between FP8 products (COAT sections 3 and 4): h is kept in E4M3 with a scale per group,
// gelu is always that of the kept h, and its codes have one scale, by Group Scaling. gelu and its derivative are
// made again for every pass instead of being stored.
//
// Bytes per element of device memory, h per group of 16: gelu_forward 2 read, 1.125 written; 1.125 read, 1 written.
// gelu_rebuild 1.125 and 1. gelu_backward 3.125 read; 3.125 read, 1 + 1 written.
#include "fp8_tiles.h"

namespace {

// --- gelu ---------------------------------------------------------------------------------------------------
// gelu(x) = x * gate(x), gate(x) = 1 / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh u) without
// the cancellation that the sum suffers for negative u. The hardware makes powers of two: the logarithm's factor is
// in the constants. These passes are as short of instructions as of bandwidth.
constexpr float GELU_LINEAR = -2.0f * 0.7978845608028654f * 1.4426950408889634f;
constexpr float GELU_CUBIC = GELU_LINEAR * 0.044715f;
constexpr float SLOPE = 2.0f * 0.7978845608028654f; // 2 u'(x) = SLOPE + SLOPE_SQUARE x^2
constexpr float SLOPE_SQUARE = 3.0f * 0.044715f * SLOPE;

__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float gelu_gate(float x) {
    return fast_reciprocal(1.0f + power_of_two(x * fmaf(GELU_CUBIC * x, x, GELU_LINEAR)));
}

__device__ inline void gelu_span(float x[SPAN]) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) x[i] *= gelu_gate(x[i]);
}

// d *= gelu'(x) = gate + 2 x u'(x) gate (1 - gate)
__device__ inline void gelu_gradient_span(const float x[SPAN], float d[SPAN]) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
        const float gate = gelu_gate(x[i]);
        const float twice = x[i] * fmaf(SLOPE_SQUARE * x[i], x[i], SLOPE) * gate;
        d[i] *= fmaf(twice, 1.0f - gate, gate);
    }
}

// --- sources ------------------------------------------------------------------------------------------------
template <typename S> struct GeluOf {
    typedef typename S::Loaded Loaded;
    S h;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const { return h.load(row, column); }
    __device__ void values(const Loaded &loaded, float out[SPAN]) const {
        S::values(loaded, out);
        gelu_span(out);
    }
};

template <typename S, bool LAST> struct GeluGradientOf {
    struct Loaded {
        Bf16Span dg;
        typename S::Loaded h;
    };
    StoredBf16<LAST> dg;
    S h;

    __device__ void begin(int64_t) {}
    __device__ Loaded load(int64_t row, int64_t column) const { return {dg.load(row, column), h.load(row, column)}; }
    __device__ void values(const Loaded &loaded, float out[SPAN]) const {
        float x[SPAN];
        S::values(loaded.h, x);
        unpack<SPAN>(loaded.dg, out);
        gelu_gradient_span(x, out);
    }
};

// --- forward: h, and gelu's maxima --------------------------------------------------------------------------
struct Hidden {
    const bf16 *y, *bias; // bias may be NULL
    uint8_t *codes;
    bf16 *scales;     // (rows, groups)
    bf16 *g;          // NULL: only the maxima
    uint32_t *maxima; // of the rows of g; NULL where g is made
    StepState *state;
    int64_t y_stride, codes_stride, g_stride;
    int64_t rows;
    int cols, groups, group_bits;
};

constexpr int HIDDEN_WARPS = 8;
constexpr int HIDDEN_UNROLL = 2;

// A warp per row, the last rows first. A lane's 16 columns lie in one group; larger groups span 2, 4 or 8 lanes.
__global__ __launch_bounds__(HIDDEN_WARPS *WARP, 3) void hidden_kernel(const __grid_constant__ Hidden a) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t row = a.rows - 1 - ((int64_t)blockIdx.x * HIDDEN_WARPS + warp);
    if (row < 0) return;
    const int group_lanes = (1 << a.group_bits) / SPAN;
    const bool writes_scale = lane % group_lanes == 0;
    const bf16 *const y_row = a.y + row * a.y_stride;
    uint8_t *const codes_row = a.codes + row * a.codes_stride;
    bf16 *const scales_row = a.scales + row * a.groups, *const g_row = a.g + row * a.g_stride;
    float largest = 0.0f, largest_h = 0.0f;
    for (int first = 0; first < a.cols; first += HIDDEN_UNROLL * WARP * SPAN) {
        Bf16Span y[HIDDEN_UNROLL], bias[HIDDEN_UNROLL] = {};
#pragma unroll
        for (int u = 0; u < HIDDEN_UNROLL; u++) {
            const int column = first + (u * WARP + lane) * SPAN;
            if (column < a.cols) {
                y[u] = load_streaming<SPAN>(y_row + column);
                if (a.bias) bias[u] = load_parameter<SPAN>(a.bias + column);
            }
        }
#pragma unroll
        for (int u = 0; u < HIDDEN_UNROLL; u++) {
            const int column = first + (u * WARP + lane) * SPAN;
            const bool inside = column < a.cols;
            float x[SPAN] = {}, add[SPAN];
            if (inside) {
                unpack<SPAN>(y[u], x);
                unpack<SPAN>(bias[u], add);
#pragma unroll
                for (int i = 0; i < SPAN; i++) x[i] += add[i];
            }
            const float maximum = lanes_maximum(largest_magnitude<SPAN>(x, 0.0f), group_lanes);
            if (!inside) continue;
            largest_h = larger_magnitude(largest_h, maximum);
            float scale;
            const bf16 rounded = group_scale(maximum, &scale);
            Pack<uint32_t, SPAN / 4> codes;
            encode<FMT_E4M3, SPAN>(x, group_scale_reciprocal(scale), codes.value);
            store((uint32_t *)(codes_row + column), codes);
            if (writes_scale) scales_row[column >> a.group_bits] = rounded;
            decode<SPAN>(codes.value, scale, x);
            gelu_span(x);
            if (a.g)
                store(g_row + column, packed<bf16, SPAN>(x));
            else
                largest = largest_magnitude<SPAN>(x, largest);
        }
    }
    const uint32_t bits = warp_maximum_bits(largest), bits_h = warp_maximum_bits(largest_h);
    if (lane > 0) return;
    if (a.maxima) a.maxima[row] = bits;
    if (bits_h >= NONFINITE_BITS && a.state) a.state->nonfinite = 1;
}

void hidden_launch(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, uint32_t *maxima) {
    const bool plain = g.data && g.format == FMT_BF16;
    const Hidden a = {(const bf16 *)y.data,
                      (const bf16 *)bias.data,
                      (uint8_t *)h.data,
                      (bf16 *)h.scale,
                      plain ? (bf16 *)g.data : NULL,
                      maxima,
                      exec->state,
                      y.stride,
                      h.stride,
                      g.stride,
                      y.rows,
                      (int)y.cols,
                      (int)ceil_div(h.cols, h.group),
                      group_bits_of(h)};
    hidden_kernel<<<grid_of(ceil_div(a.rows, HIDDEN_WARPS)), HIDDEN_WARPS * WARP, 0, cuda_backend(exec)->stream>>>(a);
    LAUNCH_CHECK("hidden_kernel");
}

// g = gelu(h) in the form that g's descriptor asks for, with the scale that it has.
void gelu_cast(Exec *exec, const char *operation, Tensor g, Tensor h) {
    const TileOut out = g.transposed ? tile_out(Tensor{}, g) : tile_out(g, Tensor{});
    for_stored<true>(h, [&](auto stored) {
        const GeluOf<decltype(stored)> source = {stored};
        if (g.transposed)
            tile_run<FMT_E4M3, true, false, 2, 3>(exec, operation, source, out, h.rows, h.cols, Tensor{}, false);
        else if (g.format == FMT_BF16)
            tile_run<FMT_BF16, false, false, 2, 4>(exec, operation, source, out, h.rows, h.cols, Tensor{}, false);
        else
            tile_run<FMT_E4M3, false, false, 2, 4>(exec, operation, source, out, h.rows, h.cols, Tensor{}, false);
    });
}

void require_gelu(const char *operation, Tensor g, Tensor h) {
    if (g.data && g.format != FMT_BF16) require_format(operation, "g", g, FMT_E4M3);
    if (!is_grouped(h)) require_format(operation, "h", h, FMT_BF16);
    require_spans(operation, "g", g);
    require_spans(operation, "h", h);
}

} // namespace

void fp8_gelu_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias) {
    const char *operation = "gelu_forward";
    require_format(operation, "y", y, FMT_BF16);
    require_format(operation, "the bias", bias, FMT_BF16);
    require_spans(operation, "y", y);
    require_gelu(operation, g, h);
    if (y.rows == 0) return;
    const bool cast = g.data && format_is_fp8(g.format);
    uint32_t *const maxima = cast ? maxima_of(exec, operation, g) : NULL;
    if (is_grouped(h)) {
        hidden_launch(exec, g, h, y, bias, maxima);
    } else {
        cuda_gelu_forward(exec, Tensor{}, h, y, bias); // h is complete, or becomes so
        if (!h.data) h = y;
        const GeluOf<StoredBf16<false>> source = {stored_bf16<false>(h)};
        if (cast) row_maxima_run<2>(exec, source, maxima, h.rows, h.cols);
    }
    if (!cast) return;
    scale_from_maxima(exec, g, maxima, y.rows);
    gelu_cast(exec, operation, g, h);
}

void fp8_gelu_rebuild(Exec *exec, Tensor g_t, Tensor g, Tensor h) {
    const char *operation = "gelu_rebuild";
    if (!g_t.data || g_t.data == g.data) return;
    require_gelu(operation, g_t, h);
    if (g.data && format_is_fp8(g.format))
        fp8_transpose_codes(exec, g_t, g);
    else
        gelu_cast(exec, operation, g_t, h);
}

void fp8_gelu_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h, bool accumulate) {
    const char *operation = "gelu_backward";
    require_format(operation, "dg", dg, FMT_BF16);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    require_format(operation, "the transposed dh", dh_qt, dh_q.format);
    require_spans(operation, "dg", dg);
    require_spans(operation, "dh", dh_q);
    require_spans(operation, "the transposed dh", dh_qt);
    require_gelu(operation, Tensor{}, h);
    const int64_t rows = dg.rows, cols = dg.cols;
    if (rows == 0) return;
    if (format_is_fp8(dh_q.format)) {
        uint32_t *const maxima = maxima_of(exec, operation, dh_q);
        for_stored<false>(h, [&](auto stored) {
            const GeluGradientOf<decltype(stored), false> source = {stored_bf16<false>(dg), stored};
            row_maxima_run<2>(exec, source, maxima, rows, cols);
        });
        scale_from_maxima(exec, dh_q, maxima, rows);
    }
    for_stored<true>(h, [&](auto stored) {
        const GeluGradientOf<decltype(stored), true> source = {stored_bf16<true>(dg), stored};
        const TileOut out = tile_out(dh_q, format_is_fp8(dh_q.format) ? dh_qt : Tensor{});
        if (dh_q.format == FMT_BF16)
            tile_run<FMT_BF16, false, true, 2, 2>(exec, operation, source, out, rows, cols, dbias, accumulate);
        else if (dh_q.format == FMT_E5M2)
            tile_run<FMT_E5M2, true, true, 2, 2>(exec, operation, source, out, rows, cols, dbias, accumulate);
        else
            tile_run<FMT_E4M3, true, true, 2, 2>(exec, operation, source, out, rows, cols, dbias, accumulate);
    });
}
