// Implements activation_bound and activation_backward_recompute. The scales of dh's rows are computed from an upper
// bound of |dh| instead of the amax. Therefore no value has to wait for the rest of its row. One pass over tiles writes
// dh, dh's transpose and the transpose of g.
//
// Bytes of memory per element of g with groups of 16: reads dg (2) and h (1.125), writes dh and the transposes of dh
// and g (1 each). SwiGLU doubles h and dh. activation_bound reads dy, w and SwiGLU's scales of h once.
#include "fp8_act.h"
#include "fp8_tile.h"

namespace {

// --- upper bound of |dh| per row, which determines dh's scale -----------------------------------------------
constexpr int SQUARES_WARPS = 8, SQUARES_BLOCKS = 256; // warps per block; maximum number of blocks that read w
static_assert(SQUARES_SPAN == SPAN, "a thread must add one span");

// Returns the sum of squares of a row of FP8 values, without their scale, in every lane of the warp that processes the
// row.
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

// Returns the maximum of `value` over the block's threads in every thread. NaN is ignored, as in the CPU reference.
__device__ inline double block_largest_squares(double value) {
    __shared__ double shared[SQUARES_WARPS];
#pragma unroll
    for (int mask = 1; mask < WARP; mask *= 2) value = fmax(value, __shfl_xor_sync(ALL_LANES, value, mask));
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < SQUARES_WARPS; w++) value = fmax(value, shared[w]);
    return value;
}

// A matrix of FP8 values.
struct CodeRows {
    const uint8_t *codes;
    int64_t rows;
    int cols, stride;
};

// Each block computes the sums of squares of some columns of the weight w, and writes the largest of these sums to
// largest[blockIdx.x]. w is stored transposed, so these columns are rows in memory.
__global__ __launch_bounds__(SQUARES_WARPS *WARP) void column_squares_kernel(CodeRows w, double *largest) {
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    double most = 0.0;
    for (int64_t row = (int64_t)blockIdx.x * SQUARES_WARPS + warp; row < w.rows; row += gridDim.x * SQUARES_WARPS)
        most = fmax(most, row_squares(w.codes + row * w.stride, w.cols, lane));
    most = block_largest_squares(most);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// Upper bound of the activation function's derivative. For SwiGLU, the bound is computed from the group scales of h:
// groups [0, gate) of a row belong to gate, the others to up. For GELU, scales is NULL.
struct Slopes {
    const uint8_t *codes;   // h in E4M3
    const uint16_t *scales; // group scales of h in BF16, (rows, groups)
    int64_t stride;
    int groups, gate, group;
    bool wide; // true if 8 scales can be loaded at a time

    // True if group i of h's row contains only zeros. The bound must ignore such a group, because a group of zeros has
    // scale 1, which could make the bound far too large.
    __device__ bool zeros(int64_t row, int i) const {
        uint32_t any = 0;
        for (int j = 0; j < group; j += 4) any |= *(const uint32_t *)(codes + row * stride + (int64_t)i * group + j);
        return (any & 0x7f7f7f7fu) == 0;
    }
    // Raises of[0] to the largest scale of those of gate's groups that this lane reads, and of[1] likewise for up's
    // groups. Loads V scales at a time; all of them belong to gate, or all to up.
    template <int V> __device__ void largest(int64_t row, int lane, float of[2]) const {
#pragma unroll 4
        for (int i = lane * V; i < groups; i += WARP * V) {
            const Pack<uint16_t, V> loaded = load<V>(scales + row * groups + i);
            uint32_t ones = 0;
            float most = 0.0f;
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float scale = bf16_decode(loaded.value[j]);
                if (scale == 1.0f)
                    ones |= 1u << j;
                else
                    most = fmaxf(most, scale);
            }
            for (; ones; ones &= ones - 1)
                if (!zeros(row, i + __ffs((int)ones) - 1)) most = fmaxf(most, 1.0f);
            if (i < gate)
                of[0] = fmaxf(of[0], most);
            else
                of[1] = fmaxf(of[1], most);
        }
    }
    // Returns the bound for a row, in every lane. All lanes of the warp must call this function.
    __device__ float of_row(int64_t row, int lane) const {
        if (!scales) return GELU_MAX_SLOPE;
        float of[2] = {0.0f, 0.0f};
        if (wide)
            largest<8>(row, lane, of);
        else
            largest<1>(row, lane, of);
        return swiglu_slope(__uint_as_float(warp_amax_bits(of[0])), __uint_as_float(warp_amax_bits(of[1])));
    }
};

// Writes the row scales of dh (gradient of the activation function's input), computed from gradient_bound().
__global__ __launch_bounds__(SQUARES_WARPS *WARP) void bound_kernel(CodeRows dy, const double *largest, int blocks,
                                                                    const float *scale, const float *weight_scale,
                                                                    Slopes slopes, float *scales, StepState *state) {
    static_assert(SQUARES_BLOCKS <= SQUARES_WARPS * WARP, "each block's result needs a thread");
    const double columns = block_largest_squares((int)threadIdx.x < blocks ? largest[threadIdx.x] : 0.0);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int64_t row = (int64_t)blockIdx.x * SQUARES_WARPS + warp; row < dy.rows; row += gridDim.x * SQUARES_WARPS) {
        const double squares = row_squares(dy.codes + row * dy.stride, dy.cols, lane);
        const float bound = gradient_bound(squares, columns, *scale, *weight_scale, slopes.of_row(row, lane));
        row_scale(__float_as_uint(bound), scales + row, lane == 0, state);
    }
}

// --- fused pass: activation function's backward and recomputation of g -----------------------------------------------
// Source of the fused backward pass for GELU.
//   load(row, column) -> Loaded, word(loaded)   as in fp8_act.h
//   values(loaded, reciprocal, d, g)            d: 16 values of dh, for each of the HALVES parts of h (gate, up)
//                                               g: 16 values of the activation's output, times reciprocal
// COLUMNS: tile width. BLOCKS: minimum number of resident blocks per SM.
template <ActivationKind K> struct GeluBoth {
    static constexpr int HALVES = 1, COLUMNS = 128, BLOCKS = 2;
    struct Loaded {
        Bf16Words<SPAN> dg;
        GroupReader<true>::Loaded h;
    };
    Bf16Reader<true> dg;
    GroupReader<true> h;

    __device__ Loaded load(int row, int column) const { return {dg.load(row, column), h.load(row, column)}; }
    __device__ static uint32_t word(const Loaded &loaded) {
        return loaded.dg.word[SPAN / 2 - 1] ^ GroupReader<true>::word(loaded.h);
    }
    // Computes d = dg * gelu'(h) and g = gelu(h) * reciprocal (1 / g's scale) with one evaluation of GELU's gate.
    __device__ static void values(const Loaded &now, float reciprocal, float d[1][SPAN], float g[SPAN]) {
        const float scale = GroupReader<true>::scale(now.h);
        const GeluScaled<K> gelu(scale);
        // The limit keeps 0 * inf out of g. The factor exceeds the limit only if h's scale is more than 2^100 times g's
        // scale. h is then 0 or so negative that gelu(h) is negligible.
        const float factor = fminf(scale * reciprocal, 0x1p100f);
        float t[SPAN];
        GroupReader<true>::unscaled(now.h, t);
        unpack<SPAN>(now.dg, d[0]);
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            const float gate = gelu.gate(t[i]);
            g[i] = t[i] * factor * gate;
            d[0][i] = gelu.gradient(t[i], d[0][i], gate);
        }
    }
};

struct SwigluBoth {
    static constexpr int HALVES = 2, COLUMNS = 64, BLOCKS = 3;
    struct Loaded {
        Bf16Words<SPAN> dg;
        GroupReader<true>::Loaded gate, up;
    };
    Bf16Reader<true> dg;
    GroupReader<true> h;
    int width;

    __device__ Loaded load(int row, int column) const {
        return {dg.load(row, column), h.load(row, column), h.load(row, column + width)};
    }
    __device__ static uint32_t word(const Loaded &loaded) {
        return loaded.dg.word[SPAN / 2 - 1] ^ GroupReader<true>::word(loaded.gate) ^ GroupReader<true>::word(loaded.up);
    }
    __device__ static void values(const Loaded &now, float reciprocal, float d[2][SPAN], float g[SPAN]) {
        float dg_here[SPAN];
        GroupReader<true>::values(now.gate, d[0]);
        GroupReader<true>::values(now.up, d[1]);
        unpack<SPAN>(now.dg, dg_here);
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            const float gate = d[0][i], up = d[1][i], s = sigmoid(gate), silu = gate * s;
            g[i] = silu * up * reciprocal;
            d[0][i] = dg_here[i] * (up * fmaf(silu, 1.0f - s, s));
            d[1][i] = dg_here[i] * silu;
        }
    }
};

// Arguments of one_pass_kernel.
struct OnePass {
    const float *row_scales; // row scales of dh
    const float *scale_t;    // scale of dh's transpose
    const float *scale_g;    // scale of g's transpose
    char *codes;             // dh in FP8, (rows, HALVES cols)
    uint8_t *dh_t, *g_t;     // transposes of dh, (HALVES cols, rows), and of g, (cols, rows)
    float *sums;             // (gridDim.y, cols) partial column sums; NULL: not computed
    int rows, cols, codes_bytes, dh_t_bytes, g_t_bytes;
    LoadOrder order;
};

// Kernel of the activation function's fused backward pass. A block processes tiles blockIdx.y, blockIdx.y + gridDim.y,
// ... of a column of tiles. A thread loads its next row in advance.
template <typename Source>
__global__ __launch_bounds__(TILE_THREADS<Source::COLUMNS>,
                             Source::BLOCKS) void one_pass_kernel(const __grid_constant__ Source source,
                                                                  const __grid_constant__ OnePass w) {
    constexpr int COLUMNS = Source::COLUMNS, HALVES = Source::HALVES;
    __shared__ Tile<COLUMNS> tiles[HALVES + 1]; // tiles of dh, followed by the tile of g
    second_stage_allow();
    const int first_column = (int)blockIdx.x * COLUMNS;
    const int column = first_column + (int)threadIdx.x % TILE_LANES<COLUMNS> * SPAN;
    const int from = min(column, w.cols - SPAN), limit = column < w.cols ? w.rows : 0;
    const int step = (int)gridDim.y * TILE_ROWS;
    int row = (int)blockIdx.y * TILE_ROWS + (int)threadIdx.x / TILE_LANES<COLUMNS> * THREAD_ROWS;
    typename Source::Loaded next = source.load(min(row, w.rows - 1), from);
    float next_scale = w.row_scales[min(row, w.rows - 1)];
    const float reciprocal_t = row_scale_reciprocal(*w.scale_t), reciprocal_g = scale_reciprocal(*w.scale_g);
    float sum[SPAN] = {};
    for (int first_row = (int)blockIdx.y * TILE_ROWS; first_row < w.rows; first_row += step, row += step) {
        uint32_t code[HALVES + 1][THREAD_ROWS][SPAN / 4];
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++) {
            const typename Source::Loaded now = next;
            const float scale = next_scale;
            const uint32_t came = (Source::word(now) ^ __float_as_uint(scale)) & w.order.opaque_zero;
            const int here = row + r, ahead = r + 1 < THREAD_ROWS ? here + 1 : row + step;
            const int then = min(ahead + (int)came, w.rows - 1);
            next = source.load(then, from), next_scale = w.row_scales[then];
            if (here == w.order.no_row) continue;
            float d[HALVES][SPAN], g[SPAN];
            Source::values(now, reciprocal_g, d, g);
            const bool inside = here < limit;
            encode<FMT_E4M3, SPAN>(g, 1.0f, code[HALVES][r]);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                Pack<uint32_t, SPAN / 4> words;
                encode<FMT_E4M3, SPAN>(d[half], row_scale_reciprocal(scale), words.value);
                rescale_codes<FMT_E5M2, SPAN>(words.value, scale * reciprocal_t, code[half][r]);
                char *const to = (w.codes + column + half * w.cols) + (int64_t)here * w.codes_bytes;
                if (inside) store((uint32_t *)to, words);
            }
            if constexpr (HALVES == 1) {
#pragma unroll
                for (int i = 0; i < SPAN; i++) sum[i] += inside ? d[0][i] : 0.0f;
            }
        }
#pragma unroll
        for (int t = 0; t <= HALVES; t++) tile_put(&tiles[t], code[t]);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < HALVES; t++)
            tile_write(&tiles[t], w.dh_t + (int64_t)t * w.cols * w.dh_t_bytes, w.dh_t_bytes, first_row, first_column,
                       w.rows, w.cols);
        tile_write(&tiles[HALVES], w.g_t, w.g_t_bytes, first_row, first_column, w.rows, w.cols);
        __syncthreads();
    }
    if constexpr (HALVES == 1) {
        if (w.sums)
            tile_sums(&tiles[0], sum, w.sums + (int64_t)blockIdx.y * w.cols + first_column, w.cols - first_column);
    }
}

template <typename Source>
void one_pass_run(Exec *exec, const char *operation, const Source &source, OnePass w, Tensor dbias, bool accumulate) {
    const int64_t across = ceil_div(w.cols, Source::COLUMNS), down = ceil_div(w.rows, TILE_ROWS);
    const int64_t splits = tile_splits(across, down, (int64_t)cuda_backend(exec)->sm_count * Source::BLOCKS,
                                       tile_sum_parts(exec, operation, w.cols));
    one_pass_kernel<<<dim3((unsigned)across, (unsigned)splits), TILE_THREADS<Source::COLUMNS>, 0,
                      cuda_backend(exec)->stream>>>(source, w);
    LAUNCH_CHECK("one_pass_kernel");
    if (w.sums) partials_sum(exec, (float *)dbias.data, w.sums, (int)splits, w.cols, accumulate);
}

// Returns the memory layout of an E4M3 tensor with a single scale; calls fatal() for other tensors.
CodeRows code_rows(const char *operation, const char *what, Tensor t) {
    require_format(operation, what, t, FMT_E4M3);
    require_spans(operation, what, t);
    if (t.granularity != SCALE_TENSOR)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: %s must have a single scale", operation, what);
    return {(const uint8_t *)t.data, t.transposed ? t.cols : t.rows, (int)(t.transposed ? t.rows : t.cols),
            (int)t.stride};
}

} // namespace

void cuda_activation_bound(Exec *exec, Tensor dh_q, Tensor dy, Weight w, Tensor h, ActivationKind kind) {
    const char *operation = "activation_bound";
    const CodeRows rows = code_rows(operation, "dy", dy), columns = code_rows(operation, "the transposed w", w.codes_t);
    require_format(operation, "dh", dh_q, FMT_E4M3);
    if (!scaled_by_row(dh_q)) fatal(EXIT_DEVICE, "internal error: %s on the GPU: dh must have row scales", operation);
    if (rows.rows == 0) return;
    Slopes slopes = {};
    if (kind == ACT_SWIGLU) {
        if (!is_grouped(h) || columns.rows % h.group)
            fatal(EXIT_DEVICE,
                  "internal error: %s on the GPU: SwiGLU needs h with group scales and a width of whole groups",
                  operation);
        slopes = {(const uint8_t *)h.data,
                  (const uint16_t *)h.scale,
                  h.stride,
                  (int)ceil_div(h.cols, h.group),
                  (int)(columns.rows / h.group),
                  h.group,
                  false};
        slopes.wide = slopes.groups % 8 == 0 && slopes.gate % 8 == 0 && (uintptr_t)slopes.scales % 16 == 0;
    }
    cudaStream_t stream = cuda_backend(exec)->stream;
    double *const largest = (double *)exec->workspace;
    const int64_t needed = ceil_div(columns.rows, SQUARES_WARPS), most = 8 * (int64_t)cuda_backend(exec)->sm_count;
    const int blocks = (int)(needed < SQUARES_BLOCKS ? needed : SQUARES_BLOCKS);
    column_squares_kernel<<<blocks, SQUARES_WARPS * WARP, 0, stream>>>(columns, largest);
    LAUNCH_CHECK("column_squares_kernel");
    const int64_t row_blocks = ceil_div(rows.rows, SQUARES_WARPS);
    bound_kernel<<<grid_of(row_blocks < most ? row_blocks : most), SQUARES_WARPS * WARP, 0, stream>>>(
        rows, largest, blocks, (const float *)dy.scale, (const float *)w.codes_t.scale, slopes, (float *)dh_q.scale,
        exec->state);
    LAUNCH_CHECK("bound_kernel");
}

void cuda_activation_backward_recompute(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor g_t, Tensor g,
                                        Tensor dg, Tensor h, bool accumulate, ActivationKind kind) {
    const char *operation = "activation_backward_recompute";
    const Tensor all[] = {dh_q, dh_qt, g_t, dg, h};
    const char *const names[] = {"dh", "the transposed dh", "the transposed g", "dg", "h"};
    for (int i = 0; i < 5; i++) require_spans(operation, names[i], all[i]);
    require_format(operation, "dg", dg, FMT_BF16);
    require_format(operation, "dh", dh_q, FMT_E4M3);
    require_format(operation, "the transposed g", g_t, FMT_E4M3);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    require_gradient_formats(operation, dh_q, dh_qt);
    const bool gated = kind == ACT_SWIGLU;
    if (!is_grouped(h) || !scaled_by_row(dh_q) || (gated && (dbias.data || dg.cols % h.group)))
        fatal(EXIT_DEVICE,
              "internal error: %s on the GPU needs h with group scales and dh with row scales; with SwiGLU also whole "
              "groups and no bias",
              operation);
    if (dg.rows == 0 || dg.cols == 0) return;
    scale_over_rows(exec, dh_qt, dh_q);
    scale_over_rows(exec, g_t, g);
    const OnePass w = {(const float *)dh_q.scale,
                       (const float *)dh_qt.scale,
                       (const float *)g_t.scale,
                       (char *)dh_q.data,
                       (uint8_t *)dh_qt.data,
                       (uint8_t *)g_t.data,
                       dbias.data ? (float *)exec->workspace : NULL,
                       (int)dg.rows,
                       (int)dg.cols,
                       (int)dh_q.stride,
                       (int)dh_qt.stride,
                       (int)g_t.stride,
                       LOAD_ORDER};
    const auto run = [&](const auto &source) { one_pass_run(exec, operation, source, w, dbias, accumulate); };
    if (gated)
        run(SwigluBoth{bf16_reader<true>(dg), group_reader<true>(h), (int)dg.cols});
    else
        for_gelu(kind, [&](auto k) { run(GeluBoth<k()>{bf16_reader<true>(dg), group_reader<true>(h)}); });
}
