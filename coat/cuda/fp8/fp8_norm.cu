// Forward norms and their recompute for wgrad: residual add, norm, the norm's input saved in E4M3 with a scale per
// group or in BF16, and the result n in E4M3 or BF16. Recipes without FP8 use these kernels for BF16, too. If n has one
// scale per tensor (Group Scaling), n is never stored in BF16: the first pass computes n's amaxes, the second pass
// recomputes n and casts n to E4M3.
//
// Bytes of memory per element: r_in, y, r_out 2 each; x 1.125 (FP8 in groups of 16); FP8 n and its transpose 1 each.
//                                                           reads      writes
//   residual_norm_forward, a scale per row                  r_in, y    r_out, x, n
//   residual_norm_forward, a scale per tensor, pass 1       r_in, y    r_out, x
//   residual_norm_forward, a scale per tensor, pass 2       x          n               INPUT_RESIDUAL: reads r_out
//   postnorm_residual_forward, a scale per row              r_in, y    r_out, x, n
//   postnorm_residual_forward, a scale per tensor, pass 1   r_in, y    r_out, x
//   postnorm_residual_forward, a scale per tensor, pass 2   r_out      n
//   norm_recompute                                          x          n's transpose   FP8 n: reads n
#include "fp8_cast.h"
#include "fp8_norm.h"
#include "fp8_rows.h"

#include <initializer_list>

namespace {

// Storage of the norm's input, which is the residual stream (pre-norm) or the sublayer's output (post-norm).
//   PLAIN      saved in BF16
//   SAVED      saved in E4M3 with group scales; the forward norm is computed from the FP8 values
//   RESIDUAL   saved in E4M3 with group scales for backward; the forward norm is computed from the input in BF16
enum NormInput { INPUT_PLAIN, INPUT_SAVED, INPUT_RESIDUAL };

struct Fp8NormForward {
    Matrix<const bf16> r_in, y; // with pre-norm, y.data may be NULL; then r_out = r_in
    Matrix<bf16> x, r_out;      // outputs that are not written if their data is NULL
    Matrix<bf16> n;             // norm in BF16; data is NULL if the norm is FP8 or not computed. Unused with post-norm
    RowCodes n_codes;      // norm in E4M3 with row scales, written in the same pass; its scales are NULL if not written
    uint32_t *amaxes;      // row amaxes of the norm's result n, for a later quantization; NULL: not computed
    Matrix<uint8_t> codes; // FP8 values of x, saved with group scales
    bf16 *scales;          // group scales of x, (rows, groups)
    const float *y_scales; // row scales of the sublayer's output y, (rows); NULL: y is unscaled
    const bf16 *y_bias, *weight, *bias; // y_bias and bias may be NULL
    float *mean, *rstd;                 // mean and 1 / standard deviation of each row; mean is NULL for RMSNorm
    StepState *state;
    int64_t rows;
    int cols, groups, group_bits;
    float eps;
};

// Loads the norm's parameters (weight or bias) of N columns; returns 0 if address is NULL.
template <int N> __device__ inline void parameters(const bf16 *address, float out[N]) {
    Bf16Words<N> words = {};
    if (address) words = load_words<N, CACHE_PARAMETER>(address);
    unpack<N>(words, out);
}

// Quantizes a row of the norm's input per group and stores FP8 values and scales. x, value: the input in BF16 and in
// FP32. With INPUT_SAVED, replaces `value` with the decoded FP8 values. A group is 2, 4, 8 or 16 adjacent lanes.
template <NormInput INPUT, typename Shape>
__device__ inline void store_groups(const Fp8NormForward &a, const RowPart<Shape> &at, const Bf16Words<ROW_WIDTH> *x,
                                    float (*value)[ROW_WIDTH]) {
    constexpr int V = ROW_WIDTH, VECTORS = Shape::VECTORS;
    const int group_lanes = (1 << a.group_bits) / V;
    uint8_t *const codes_here = a.codes.at(at.row, at.column);
    bf16 *const scales_here = a.scales + at.row * a.groups + (at.column >> a.group_bits);
    const bool writes_scale = at.lane % group_lanes == 0;
    float amax[VECTORS], largest = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) amax[k] = at.has(k) ? largest_magnitude(x[k], 0.0f) : 0.0f;
    for (int mask = 1; mask < group_lanes; mask *= 2) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
            amax[k] = larger_magnitude(amax[k], __shfl_xor_sync(ALL_LANES, amax[k], mask));
    }
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!at.has(k)) continue;
        float scale;
        const bf16 rounded = group_scale(amax[k], &scale);
        largest = larger_magnitude(largest, amax[k]);
        Pack<uint32_t, V / 4> codes;
        encode<FMT_E4M3, V>(value[k], group_scale_reciprocal(scale), codes.value);
        store((uint32_t *)(codes_here + k * Shape::STEP), codes);
        if (writes_scale) scales_here[k * Shape::STEP >> a.group_bits] = rounded;
        if (INPUT == INPUT_SAVED) decode<V>(codes.value, scale, value[k]);
    }
    const uint32_t bits = warp_amax_bits(largest);
    if (bits >= NONFINITE_BITS && at.lane % WARP == 0 && a.state) a.state->nonfinite = 1;
}

// Computes the mean and then the reciprocal standard deviation of a row held in registers (`value`), and stores both.
// Every thread of the row gets both results. With RMSNorm (a.mean is NULL), the mean is 0.
template <typename Shape>
__device__ inline void row_statistics(const Fp8NormForward &a, const RowPart<Shape> &at,
                                      const float (*value)[ROW_WIDTH], float *mean, float *rstd) {
    constexpr int WARPS = Shape::WARPS, VECTORS = Shape::VECTORS;
    __shared__ float shared[2][ROW_WARPS];
    float sum = 0.0f, squares = 0.0f;
    *mean = 0.0f;
    if (a.mean) {
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
#pragma unroll
            for (int i = 0; i < ROW_WIDTH; i++) sum += at.has(k) ? value[k][i] : 0.0f;
        }
        *mean = block_sum<WARPS>(sum, shared[0]) / (float)a.cols;
    }
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!at.has(k)) continue;
#pragma unroll
        for (int i = 0; i < ROW_WIDTH; i++) {
            const float centred = value[k][i] - *mean;
            squares = fmaf(centred, centred, squares);
        }
    }
    *rstd = 1.0f / sqrtf(block_sum<WARPS>(squares, shared[1]) / (float)a.cols + a.eps);
    if (at.lane == 0) {
        if (a.mean) a.mean[at.row] = *mean;
        if (a.rstd) a.rstd[at.row] = *rstd;
    }
}

// Loads a row of a.r_in to r and a row of a.y to y. Below, s is the row's entry of a.y_scales, or 1 without y_scales.
//   post-norm              y becomes y * s
//   pre-norm               r and `value` become r_in + y * s + y_bias
//   pre-norm without a.y   r is r_in, and `value` is not set
template <NormPlace PLACE, typename Shape>
__device__ inline void row_sum(const Fp8NormForward &a, const RowPart<Shape> &at, Bf16Words<ROW_WIDTH> *r,
                               Bf16Words<ROW_WIDTH> *y, float (*value)[ROW_WIDTH]) {
    constexpr int V = ROW_WIDTH, VECTORS = Shape::VECTORS, STEP = Shape::STEP;
    constexpr bool AFTER = PLACE == NORM_POST;
    const bf16 *const r_in = a.r_in.at(at.row, at.column);
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
        if (at.has(k)) r[k] = load_words<V, CACHE_STREAM>(r_in + k * STEP);
    if (AFTER || a.y.data) {
        const bf16 *const y_row = a.y.at(at.row, at.column);
        const bf16 *const y_bias = a.y_bias ? a.y_bias + at.column : NULL;
        const float y_scale = a.y_scales ? a.y_scales[at.row] : 1.0f;
#pragma unroll
        for (int k = 0; k < VECTORS; k++)
            if (at.has(k)) y[k] = load_words<V, CACHE_STREAM>(y_row + k * STEP);
#pragma unroll
        for (int k = 0; k < VECTORS; k++) {
            if (!at.has(k)) continue;
            float add[V];
            unpack<V>(y[k], add);
            if constexpr (AFTER) {
#pragma unroll
                for (int i = 0; i < V; i++) add[i] *= y_scale;
                y[k] = packed_words<V>(add);
            } else {
                float bias[V];
                unpack<V>(r[k], value[k]);
                parameters<V>(y_bias ? y_bias + k * STEP : NULL, bias);
#pragma unroll
                for (int i = 0; i < V; i++) value[k][i] = fmaf(add[i], y_scale, value[k][i]) + bias[i];
                r[k] = packed_words<V>(value[k]);
            }
        }
    }
}

// Replaces a row's norm input in `value` with the norm, and stores the norm in BF16 if a.n has data. With post-norm,
// instead adds the norm to r, stores r_out, and replaces `value` with r_out. Returns the largest magnitude of this
// thread's values; 0 if the norm is stored in BF16 and its amaxes are not computed.
template <NormPlace PLACE, typename Shape>
__device__ inline float row_norm(const Fp8NormForward &a, const RowPart<Shape> &at, HatOf hat, Bf16Words<ROW_WIDTH> *r,
                                 bf16 *r_out, float (*value)[ROW_WIDTH]) {
    constexpr int V = ROW_WIDTH, VECTORS = Shape::VECTORS, STEP = Shape::STEP;
    float largest = 0.0f;
    const bf16 *const norm_bias = a.bias ? a.bias + at.column : NULL;
    bf16 *const n = a.n.at(at.row, at.column);
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!at.has(k)) continue;
        float weight[V], bias[V];
        parameters<V>(a.weight + at.column + k * STEP, weight);
        parameters<V>(norm_bias ? norm_bias + k * STEP : NULL, bias);
#pragma unroll
        for (int i = 0; i < V; i++) value[k][i] = norm_affine(value[k][i], hat, weight[i], bias[i]);
        if constexpr (PLACE == NORM_POST) {
            float stream[V];
            unpack<V>(r[k], stream);
#pragma unroll
            for (int i = 0; i < V; i++) stream[i] += value[k][i];
            r[k] = packed_words<V>(stream);
            store_words(r_out + k * STEP, r[k]);
            unpack<V>(r[k], value[k]); // r_out rounded to BF16, from which n's FP8 values are computed
            largest = largest_magnitude(r[k], largest);
        } else if (a.n.data) {
            store(n + k * STEP, packed<bf16, V>(value[k]));
            if (a.amaxes) largest = largest_magnitude<V>(value[k], largest);
        } else {
            largest = largest_magnitude<V>(value[k], largest);
        }
    }
    return largest;
}

// Kernel of the forward norms. Processes the first rows last, because the second pass starts with the first rows and
// then finds them in the L2 cache.
template <NormInput INPUT, NormPlace PLACE, typename Shape>
__global__
__launch_bounds__(ROW_THREADS,
                  Shape::WARPS == 1 ? 4 : 1) void fp8_norm_forward_kernel(const __grid_constant__ Fp8NormForward a) {
    constexpr int V = ROW_WIDTH, VECTORS = Shape::VECTORS, STEP = Shape::STEP;
    constexpr bool AFTER = PLACE == NORM_POST;
    second_stage_allow();
    const int64_t row = a.rows - 1 - RowPart<Shape>::index();
    if (row < 0) return; // all threads of a warp or block return together, so that no barrier is missed
    const RowPart<Shape> at(row, a.cols);

    Bf16Words<V> r[VECTORS], y[VECTORS];
    float value[VECTORS][V];
    row_sum<PLACE>(a, at, r, y, value);
    bf16 *const r_out = a.r_out.at(row, at.column), *const x = a.x.at(row, at.column);
    const Bf16Words<V>(&input)[VECTORS] = AFTER ? y : r;
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        if (!at.has(k)) continue;
        unpack<V>(input[k], value[k]);
        if (!AFTER && a.r_out.data) store_words(r_out + k * STEP, r[k]);
        if (INPUT == INPUT_PLAIN && a.x.data) store_words(x + k * STEP, input[k]);
    }
    if constexpr (INPUT != INPUT_PLAIN) store_groups<INPUT>(a, at, input, value);

    float mean, rstd;
    row_statistics(a, at, value, &mean, &rstd);
    if (!AFTER && !a.n.data && !a.amaxes && !a.n_codes.scales) return;
    const float largest = row_norm<PLACE>(a, at, hat_of(mean, rstd), r, r_out, value);
    // Writes the norm's result n in FP8 with a row scale, or only its row amax.
    if (!a.amaxes && !a.n_codes.scales) return;
    const uint32_t bits = row_amax(at, largest);
    if (a.amaxes && at.lane == 0) a.amaxes[row] = bits;
    if (!a.n_codes.scales) return;
    row_encode(a.n_codes, at, bits, [&](int k, float out[V]) {
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = value[k][i];
    });
}

template <NormInput INPUT, NormPlace PLACE> void fp8_norm_forward_launch(cudaStream_t stream, const Fp8NormForward &a) {
    const auto run = [&]<typename Shape>(Shape) {
        fp8_norm_forward_kernel<INPUT, PLACE, Shape>
            <<<grid_of(ceil_div(a.rows, Shape::ROWS)), ROW_THREADS, 0, stream>>>(a);
        LAUNCH_CHECK("fp8_norm_forward_kernel");
    };
    if (for_rows_of_a_warp(a.cols, run)) return;
    static_assert(8 * ROW_THREADS * ROW_WIDTH == FP8_MAX_NORM_WIDTH, "the widest norm must fit 8 vectors per thread");
    switch (ceil_div(a.cols, ROW_THREADS * ROW_WIDTH)) {
    case 2: return run(RowShape<4, 2>{});
    case 3: return run(RowShape<4, 3>{});
    case 4: return run(RowShape<4, 4>{});
    case 5: return run(RowShape<4, 5>{});
    case 6: return run(RowShape<4, 6>{});
    case 7: return run(RowShape<4, 7>{});
    case 8: return run(RowShape<4, 8>{});
    }
    fatal(EXIT_DEVICE, "internal error: FP8 norms on the GPU support at most %d channels (is %d)", FP8_MAX_NORM_WIDTH,
          a.cols);
}

// Runs the first pass of a norm. Returns the row amaxes of n if n is FP8 with one scale per tensor and needs a second
// pass; otherwise returns NULL.
template <NormPlace PLACE>
uint32_t *norm_forward(Exec *exec, const char *operation, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y,
                       Tensor y_bias, bool from_saved) {
    const bool codes = is_fp8(n), one_pass = scaled_by_row(n);
    Fp8NormForward a = {};
    a.r_in = matrix_of<const bf16>(r_in);
    a.y = matrix_of<const bf16>(y);
    a.r_out = matrix_of<bf16>(r_out);
    if (!codes) a.n = matrix_of<bf16>(n);
    if (one_pass) a.n_codes = row_codes(exec, n);
    if (codes && !one_pass) a.amaxes = amaxes_of(exec, operation, n);
    if (!codes) a.amaxes = n.amax; // an unscaled n is quantized in backward, which needs n's row amaxes
    a.y_scales = scaled_by_row(y) ? (const float *)y.scale : NULL;
    a.y_bias = (const bf16 *)y_bias.data;
    a.weight = (const bf16 *)norm.weight.data;
    a.bias = (const bf16 *)norm.bias.data;
    a.mean = (float *)norm.mean.data;
    a.rstd = (float *)norm.rstd.data;
    a.state = exec->state;
    a.rows = r_in.rows;
    a.cols = (int)r_in.cols;
    a.eps = norm.eps;
    cudaStream_t stream = cuda_backend(exec)->stream;
    if (is_grouped(norm.x)) {
        a.codes = matrix_of<uint8_t>(norm.x);
        a.scales = (bf16 *)norm.x.scale;
        a.groups = (int)ceil_div(norm.x.cols, norm.x.group);
        a.group_bits = group_bits_of(norm.x);
        if (from_saved)
            fp8_norm_forward_launch<INPUT_SAVED, PLACE>(stream, a);
        else
            fp8_norm_forward_launch<INPUT_RESIDUAL, PLACE>(stream, a);
    } else {
        a.x = matrix_of<bf16>(norm.x);
        fp8_norm_forward_launch<INPUT_PLAIN, PLACE>(stream, a);
    }
    return codes ? a.amaxes : NULL;
}

// --- cast pass that computes the norm from its saved input -----------------------------------------------------------
// Source for a cast pass (fp8_cast.h) that computes norm values from the saved input and its statistics.
template <typename S> struct NormOf {
    static constexpr bool makes_codes = false, scaled = true;
    struct Loaded {
        typename S::Loaded x;
        float mean, rstd;
    };
    S x;
    const bf16 *weight, *bias; // bias may be NULL
    const float *mean, *rstd;  // mean and 1 / standard deviation of each row; mean is NULL for RMSNorm
    float weight_here[SPAN], bias_here[SPAN];

    __device__ void begin(int column) {
        parameters<SPAN>(weight + column, weight_here);
        parameters<SPAN>(bias ? bias + column : NULL, bias_here);
    }
    __device__ void scale_by(float reciprocal) {
#pragma unroll
        for (int i = 0; i < SPAN; i++) weight_here[i] *= reciprocal, bias_here[i] *= reciprocal;
    }
    __device__ Loaded load(int row, int column) const {
        return {x.load(row, column), mean ? mean[row] : 0.0f, rstd[row]};
    }
    __device__ void values(const Loaded &loaded, float out[SPAN]) const {
        const HatOf hat = hat_of(loaded.mean, loaded.rstd);
        const float scale = S::scale(loaded.x);
        S::unscaled(loaded.x, out);
#pragma unroll
        for (int i = 0; i < SPAN; i++) out[i] = norm_affine(out[i] * scale, hat, weight_here[i], bias_here[i]);
    }
};

// Computes the norm n from its input x, in the format of n's descriptor. n's scale must already be in memory.
void norm_cast(Exec *exec, const char *operation, Tensor n, Tensor x, Norm norm, bool overlaps) {
    const TileOut out = n.transposed ? tile_out(Tensor{}, n) : tile_out(n, Tensor{});
    for_reader<true>(x, [&](auto reader) {
        NormOf<decltype(reader)> source = {};
        source.x = reader;
        source.weight = (const bf16 *)norm.weight.data;
        source.bias = (const bf16 *)norm.bias.data;
        source.mean = (const float *)norm.mean.data;
        source.rstd = (const float *)norm.rstd.data;
        if (n.transposed)
            cast_run<FMT_E4M3, FMT_E4M3, true, false, 4>(exec, operation, source, out, x, overlaps);
        else if (n.format == FMT_BF16)
            cast_run<FMT_BF16, FMT_BF16, false, false, 4>(exec, operation, source, out, x, overlaps);
        else
            cast_run<FMT_E4M3, FMT_E4M3, false, false, 4>(exec, operation, source, out, x, overlaps);
    });
}

// Calls fatal() unless the norm kernels support the formats of n, norm.x, the weight and the bias, and unless n and
// norm.x can be accessed SPAN columns at a time.
void require_norm(const char *operation, Tensor n, Norm norm) {
    if (n.data && n.format != FMT_BF16) require_format(operation, "n", n, FMT_E4M3);
    if (!is_grouped(norm.x)) require_format(operation, "x", norm.x, FMT_BF16);
    require_format(operation, "the weight", norm.weight, FMT_BF16);
    require_format(operation, "the bias", norm.bias, FMT_BF16);
    require_spans(operation, "n", n);
    require_spans(operation, "x", norm.x);
}

// Calls fatal() unless all tensors are BF16 and can be accessed 16 columns at a time.
void require_residual(const char *operation, std::initializer_list<Tensor> tensors) {
    for (const Tensor &t : tensors) {
        require_format(operation, "the residual", t, FMT_BF16);
        require_spans(operation, "the residual", t);
    }
}

} // namespace

void fp8_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y, Tensor y_bias) {
    const char *operation = "residual_norm_forward";
    require_residual(operation, {r_out, r_in, y, y_bias});
    require_norm(operation, n, norm);
    if (r_in.rows == 0) return;
    const bool grouped = is_grouped(norm.x), cast = is_fp8(n) && !scaled_by_row(n);
    const bool from_saved = grouped && (norm.from_saved || !r_out.data);
    const bool x_holds_sum = !grouped && norm.x.data; // without r_out, only x stores the sum
    const Tensor residual = r_out.data ? r_out : (x_holds_sum ? norm.x : r_in);
    // Outputs may share memory with inputs (operations.h). An output that already contains its result is not written.
    const bool sum_is_input = !y.data;
    if (norm.x.data == r_out.data || (sum_is_input && norm.x.data == r_in.data)) norm.x.data = NULL;
    if (sum_is_input && r_out.data == r_in.data) r_out.data = NULL;
    if (cast && y.data && !r_out.data && !grouped && !norm.x.data)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: the second pass needs r_out or x", operation);
    const uint32_t *amaxes = norm_forward<NORM_PRE>(exec, operation, n, norm, r_out, r_in, y, y_bias, from_saved);
    if (!amaxes) return;
    scale_after_amaxes(exec, n, amaxes, r_in.rows);
    norm_cast(exec, operation, n, from_saved ? norm.x : residual, norm, true);
}

void fp8_postnorm_residual_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y) {
    const char *operation = "postnorm_residual_forward";
    require_residual(operation, {r_out, r_in, y});
    require_norm(operation, n, norm);
    if (r_in.rows == 0) return;
    if (norm.x.data == y.data) norm.x.data = NULL; // norm.x need not be written, because it shares y's memory
    const uint32_t *amaxes =
        norm_forward<NORM_POST>(exec, operation, n, norm, r_out, r_in, y, Tensor{}, norm.from_saved);
    if (amaxes) fp8_cast_after_amaxes(exec, operation, n, r_out, amaxes);
}

void fp8_norm_recompute(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
    const char *operation = "norm_recompute";
    require_norm(operation, n_t, norm);
    if (is_fp8(n)) {
        if (n_t.transposed)
            fp8_transpose_codes(exec, n_t, n);
        else
            fp8_decode(exec, operation, n_t, n);
    } else {
        norm_cast(exec, operation, n_t, norm.x, norm, scale_over_rows(exec, n_t, n));
    }
}
