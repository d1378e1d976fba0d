// Activation pass that writes FP8 with a scale per row. A block holds a whole row in registers until the row's amax is
// known, then writes scale and FP8 values. Included by fp8_activation.cu only.
#pragma once
#include "fp8_act.h"

namespace {

// bytes of shared memory for the columns' biases, within the default limit of 48 KiB per block
constexpr size_t PARAMETER_BYTES = 40 << 10;

__device__ inline void store_sums(float *to, const float sum[SPAN]) {
#pragma unroll
    for (int i = 0; i < SPAN; i += 4) *(float4 *)(to + i) = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
}

// Arguments of act_row_kernel. A block processes every gridDim.x-th row. A thread owns SPANS spans of 16 columns,
// THREADS spans apart, and loads these spans of the next row while it computes the current row. Each row needs one
// barrier, for the row's amax. Biases are held in shared memory if they fit in PARAMETER_BYTES. For a gradient, the
// scale of the transpose is computed from the largest row scale. `Op` is a source (fp8_act.h).
struct RowWalk {
    char *codes;       // output: E4M3 values, (rows, outputs * cols)
    float *scales;     // output: row scales, (rows)
    float *over_rows;  // output: scale of the transpose, from the largest row scale (scale_in_format()); NULL: none
    Format transposed; // format of the transpose
    float *sums;       // output: partial column sums, (gridDim.x, cols); NULL: not computed
    StepState *state;
    BlockTally *tally;
    int rows, cols, row_bytes; // cols: number of columns of one output
    LoadOrder order;
};

template <int THREADS, int SPANS, int BLOCKS, typename Op>
__global__ __launch_bounds__(THREADS, BLOCKS) void act_row_kernel(const __grid_constant__ Op op,
                                                                  const __grid_constant__ RowWalk w) {
    constexpr int WARPS = THREADS / WARP, OUTPUTS = Op::outputs;
    static_assert(!Op::sums || OUTPUTS == 1, "SwiGLU has no bias");
    static_assert(WARPS <= WARP, "one warp must read the amaxes of all warps");
    constexpr bool IN_SHARED = Op::parameters && SPANS * THREADS * sizeof(Bf16Words<SPAN>) <= PARAMETER_BYTES;
    __shared__ uint32_t amaxes[2][WARPS];
    // needs no barrier, because each entry is used by one thread only
    __shared__ Bf16Words<SPAN> parameters[IN_SHARED ? SPANS : 1][IN_SHARED ? THREADS : 1];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const auto column_of = [&](int s) { return ((int)threadIdx.x + s * THREADS) * SPAN; };
    const auto fetch = [&](int row, typename Op::Loaded loaded[SPANS], float *factor) {
        row = min(row, w.rows - 1);
        *factor = op.row_factor(row);
#pragma unroll
        for (int s = 0; s < SPANS; s++) loaded[s] = op.load(row, min(column_of(s), w.cols - SPAN));
    };
    if constexpr (IN_SHARED) {
#pragma unroll
        for (int s = 0; s < SPANS; s++) parameters[s][threadIdx.x] = op.parameter(min(column_of(s), w.cols - SPAN));
    }
    typename Op::Loaded next[SPANS];
    float next_factor, own = 0.0f, largest_scale = SCALE_MIN;
    float sum[Op::sums ? SPANS : 1][SPAN] = {};
    fetch((int)blockIdx.x, next, &next_factor);
    int turn = 0;
#pragma unroll 2
    for (int row = (int)blockIdx.x; row < w.rows; row += (int)gridDim.x, turn ^= 1) {
        typename Op::Loaded now[SPANS];
        const float factor = next_factor;
        uint32_t came = 0;
#pragma unroll
        for (int s = 0; s < SPANS; s++) now[s] = next[s], came |= Op::word(now[s]);
        fetch(row + (int)gridDim.x + (int)(came & w.order.opaque_zero), next, &next_factor);
        float value[SPANS][OUTPUTS][SPAN], largest = 0.0f;
#pragma unroll
        for (int s = 0; s < SPANS; s++) {
            const bool inside = column_of(s) < w.cols;
            Bf16Words<SPAN> parameter = {};
            if constexpr (IN_SHARED)
                parameter = parameters[s][threadIdx.x];
            else if constexpr (Op::parameters)
                parameter = op.parameter(min(column_of(s), w.cols - SPAN));
            op.values(row, column_of(s), inside, now[s], factor, parameter, value[s], &own);
            if constexpr (Op::sums) {
#pragma unroll
                for (int i = 0; i < SPAN; i++) sum[s][i] += value[s][0][i];
            }
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                const float here = largest_magnitude<SPAN>(value[s][o], 0.0f);
                largest = larger_magnitude(largest, inside ? here : 0.0f);
            }
        }
        uint32_t bits = warp_amax_bits(largest);
        if (lane == 0) amaxes[turn][warp] = bits;
        __syncthreads(); // one barrier per row suffices, because `amaxes` is double-buffered
        bits = __reduce_max_sync(ALL_LANES, lane < WARPS ? amaxes[turn][lane] : 0u);
        const float scale = row_scale(bits, w.scales + row, threadIdx.x == 0, w.state);
        const float reciprocal = row_scale_reciprocal(scale);
        if constexpr (Op::gradient) largest_scale = fmaxf(largest_scale, scale);
#pragma unroll
        for (int s = 0; s < SPANS; s++) {
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                Pack<uint32_t, SPAN / 4> codes;
                encode<FMT_E4M3, SPAN>(value[s][o], reciprocal, codes.value);
                if (column_of(s) < w.cols)
                    store((uint32_t *)((w.codes + column_of(s) + o * w.cols) + (int64_t)row * w.row_bytes), codes);
            }
        }
    }
    op.finish(own);
    if constexpr (Op::gradient) {
        uint32_t over_rows = __float_as_uint(largest_scale);
        if (w.over_rows && threadIdx.x == 0 && last_block(w.tally, &over_rows))
            *w.over_rows = scale_in_format(__uint_as_float(over_rows), FMT_E4M3, w.transposed);
    }
    if constexpr (Op::sums) {
        if (!w.sums) return;
#pragma unroll
        for (int s = 0; s < SPANS; s++)
            if (column_of(s) < w.cols) store_sums(w.sums + (int64_t)blockIdx.x * w.cols + column_of(s), sum[s]);
    }
}

template <int THREADS, int SPANS, int BLOCKS, typename Op>
void act_rows_launch(Exec *exec, const char *operation, const Op &op, RowWalk w, Tensor dbias, bool accumulate) {
    int64_t blocks = (int64_t)cuda_backend(exec)->sm_count * BLOCKS;
    if (blocks > w.rows) blocks = w.rows;
    const bool sums = Op::sums && dbias.data;
    if (sums) { // limits the number of blocks so that their partial sums fit in the workspace
        const int64_t most = (int64_t)(exec->workspace_bytes / ((size_t)w.cols * sizeof(float)));
        if (most < 1)
            fatal(EXIT_DEVICE, "internal error: %s on the GPU: %d column sums do not fit the workspace", operation,
                  w.cols);
        if (blocks > most) blocks = most;
        w.sums = (float *)exec->workspace;
    }
    act_row_kernel<THREADS, SPANS, BLOCKS><<<grid_of(blocks), THREADS, 0, cuda_backend(exec)->stream>>>(op, w);
    LAUNCH_CHECK("act_row_kernel");
    if (sums) partials_sum(exec, (float *)dbias.data, w.sums, (int)blocks, w.cols, accumulate);
}

// Writes q's FP8 values and row scales. For a gradient, also writes its column sums and the scale of its transpose q_t.
// The number of threads is close to the number of 16-column spans of common widths. More blocks per SM load more rows
// at a time. Fewer blocks per SM leave each thread more registers for column sums or for SwiGLU's two inputs.
template <typename Op>
void act_rows_run(Exec *exec, const char *operation, const Op &op, Tensor q, Tensor q_t = Tensor{},
                  Tensor dbias = Tensor{}, bool accumulate = false) {
    const int cols = (int)q.cols / Op::outputs, spans = cols / SPAN;
    const RowWalk w = {(char *)q.data, (float *)q.scale,          (float *)q_t.scale, q_t.format, NULL,
                       exec->state,    cuda_backend(exec)->tally, (int)q.rows,        cols,       (int)q.stride,
                       LOAD_ORDER};
    if (w.rows == 0 || w.cols == 0) return;
    if (!Op::sums && dbias.data)
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: SwiGLU does not support biases", operation);
    static_assert(2048 * SPAN == FP8_MAX_ACTIVATION_WIDTH, "the widest activation must fit 2048 spans");
    if (spans > 2048)
        fatal(EXIT_DEVICE,
              "%s on the GPU: FP8 with a scale per token supports at most %d columns (is %d); use --recipe coat-paper",
              operation, FP8_MAX_ACTIVATION_WIDTH, w.cols);
    const auto launch = [&](auto run) { run(exec, operation, op, w, dbias, accumulate); };
    if constexpr (Op::gated) // uses 640 threads, because 512 threads would spill ten times as many registers
        if (spans > 1024 && spans <= 1280) return launch(act_rows_launch<640, 2, 1, Op>);
    if (spans > 1024) return launch(act_rows_launch<512, 4, 1, Op>);
    if (spans > 512) return launch(act_rows_launch<512, 2, 1, Op>);
    if constexpr (Op::gated) {
        if (spans > 192) return launch(act_rows_launch<256, 2, 2, Op>);
        return launch(act_rows_launch < 192, 1, Op::outputs == 2 ? 3 : 4, Op >);
    } else {
        if (spans > 416) return launch(act_rows_launch<512, 1, 2, Op>);
        if (spans > 192) return launch(act_rows_launch < 416, 1, Op::sums ? 2 : 3, Op >);
        return launch(act_rows_launch < 192, 1, Op::sums ? 4 : 6, Op >);
    }
}

} // namespace
