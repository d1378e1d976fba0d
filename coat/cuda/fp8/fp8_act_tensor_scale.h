// Activation pass over rows that computes amaxes, or casts to BF16 or to FP8 with one scale per tensor. The grid has as
// many blocks as the SMs can hold, or more if a block would otherwise process over ACT_WALK_ROWS rows. A thread loads
// its next values while it converts the values loaded before.
#pragma once
#include "fp8_act.h"

namespace {

// --- row walk: the kernel of an activation pass over rows ------------------------------------------------------------
// A block processes rows blockIdx.x, blockIdx.x + gridDim.x, ... in the order of the pass. Its warps process the chunks
// of 32 spans (512 columns) of these rows in turn, as if the rows were concatenated. `Op` is a WalkOf around a source:
//   begin() -> the thread's state `own`; load(row, column) -> Loaded; word(loaded); finish(own)
//   apply(row, column, inside, loaded, &own) -> largest magnitude; 0 if outside the tensor
// If Op::amaxes, the row amaxes are written to amaxes, and the tensor's scale is computed from them.
constexpr int ACT_WALK_WARPS = 8;
constexpr int ACT_WALK_ROWS = 1024; // maximum number of rows that a block processes

struct Walk {
    int rows, cols, chunks; // chunks: number of chunks of 32 spans per row
    // distance from one chunk of a warp to its next chunk, in rows and chunks: ACT_WALK_WARPS chunks in total
    int step_rows, step_chunks;
    uint32_t *amaxes;                  // row amaxes to write; NULL: not computed
    float *scale, *scale_transposed;   // scale_transposed is NULL if the transpose shares the scale
    float largest, largest_transposed; // largest finite values of the formats of the output and of its transpose
    StepState *state;
    BlockTally *tally;
    LoadOrder order;
};

struct WalkAt {
    int turn, chunk; // turn: index of the current row among this block's rows; chunk: current chunk of that row

    __device__ void advance(const Walk &w) {
        turn += w.step_rows;
        chunk += w.step_chunks;
        if (chunk >= w.chunks) chunk -= w.chunks, turn++;
    }
};

// Combines the amaxes of all blocks. The last block writes the scales of the tensor and of its transpose, and sets the
// step's nonfinite flag if the amax is inf or NaN.
__device__ inline void walk_scale(const Walk &w, uint32_t amax) {
    if (!last_block(w.tally, &amax)) return;
    *w.scale = scale_from_amax(amax, w.largest);
    if (w.scale_transposed) *w.scale_transposed = scale_from_amax(amax, w.largest_transposed);
    if (amax >= NONFINITE_BITS && w.state) w.state->nonfinite = 1;
}

template <int BATCH, int BLOCKS, bool BACKWARD, typename Op>
__global__ __launch_bounds__(ACT_WALK_WARPS *WARP, BLOCKS) void act_walk_kernel(const __grid_constant__ Op op,
                                                                                const __grid_constant__ Walk w) {
    __shared__ uint32_t amax[Op::amaxes ? ACT_WALK_ROWS + 1 : 1]; // amax of each row, followed by the amax of all rows
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    if constexpr (Op::amaxes) {
        second_stage_allow();
        for (int i = (int)threadIdx.x; i <= ACT_WALK_ROWS; i += ACT_WALK_WARPS * WARP) amax[i] = 0;
        __syncthreads();
    } else {
        first_stage_wait();
    }
    float own = op.begin();
    const auto row_of = [&](int turn) { return (int)blockIdx.x + turn * (int)gridDim.x; };
    const auto fetch = [&](WalkAt at, uint32_t came, typename Op::Loaded *loaded) {
        const int row = min(row_of(at.turn), w.rows - 1), column = min((at.chunk * WARP + lane) * SPAN, w.cols - SPAN);
        *loaded = op.load((BACKWARD ? w.rows - 1 - row : row) + (int)came, column);
    };
    WalkAt use = {warp / w.chunks, warp % w.chunks}, next = use;
    typename Op::Loaded loaded[BATCH]; // w.order keeps these loads before the computation (see LoadOrder in fp8_act.h)
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
        fetch(next, 0, &loaded[u]);
        next.advance(w);
    }
#pragma unroll 2
    while (row_of(use.turn) < w.rows) {
        typename Op::Loaded now[BATCH];
        uint32_t came = 0;
#pragma unroll
        for (int u = 0; u < BATCH; u++) now[u] = loaded[u], came |= Op::word(now[u]);
        came &= w.order.opaque_zero;
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            fetch(next, came, &loaded[u]);
            next.advance(w);
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            const int row = row_of(use.turn), column = (use.chunk * WARP + lane) * SPAN;
            float largest = 0.0f;
            if (row != w.order.no_row)
                largest = op.apply(BACKWARD ? w.rows - 1 - row : row, column,
                                   column < w.cols && (BATCH == 1 || row < w.rows), now[u], &own);
            if constexpr (Op::amaxes) {
                const uint32_t bits = warp_amax_bits(largest);
                if (lane == 0 && (BATCH == 1 || row < w.rows)) atomicMax(&amax[use.turn], bits);
            }
            use.advance(w);
        }
    }
    op.finish(own);
    if constexpr (Op::amaxes) {
        if (!w.amaxes) return;
        __syncthreads();
        uint32_t largest = 0;
        for (int turn = (int)threadIdx.x; row_of(turn) < w.rows; turn += ACT_WALK_WARPS * WARP) {
            w.amaxes[BACKWARD ? w.rows - 1 - row_of(turn) : row_of(turn)] = amax[turn];
            largest = max(largest, amax[turn]);
        }
        largest = __reduce_max_sync(ALL_LANES, largest);
        if (lane == 0) atomicMax(&amax[ACT_WALK_ROWS], largest);
        __syncthreads();
        if (threadIdx.x == 0) walk_scale(w, amax[ACT_WALK_ROWS]);
    }
}

// Outputs that a pass over rows can compute: amaxes only, FP8 values, or BF16 values.
enum WalkMakes { MAKES_AMAXES, MAKES_CODES, MAKES_BF16 };

template <WalkMakes MAKES, typename Source> struct WalkOf : Source {
    static constexpr bool amaxes = MAKES == MAKES_AMAXES;
    struct Loaded {
        typename Source::Loaded source;
        Bf16Words<SPAN> parameter;
    };
    char *out;
    int row_bytes;
    const float *scale; // scale of the FP8 output, which an earlier kernel has written

    __device__ float begin() const { return MAKES == MAKES_CODES ? scale_reciprocal(*scale) : 0.0f; }
    __device__ Loaded load(int row, int column) const {
        Loaded loaded = {Source::load(row, column), {}};
        if constexpr (Source::parameters) loaded.parameter = Source::parameter(column);
        return loaded;
    }
    __device__ static uint32_t word(const Loaded &loaded) {
        return Source::word(loaded.source) ^ loaded.parameter.word[SPAN / 2 - 1];
    }
    __device__ float apply(int row, int column, bool inside, const Loaded &loaded, float *own) const {
        float value[1][SPAN];
        char *const to = (out + column * (MAKES == MAKES_BF16 ? 2 : 1)) + (int64_t)row * row_bytes;
        if constexpr (MAKES == MAKES_CODES) {
            Source::multiplied(loaded.source, *own, value[0]);
            Pack<uint32_t, SPAN / 4> codes;
            encode<FMT_E4M3, SPAN>(value[0], 1.0f, codes.value);
            if (inside) store((uint32_t *)to, codes);
            return 0.0f;
        }
        Source::values(row, column, inside, loaded.source, 1.0f, loaded.parameter, value, own);
        if constexpr (MAKES == MAKES_BF16) {
            if (inside) store((bf16 *)to, packed<bf16, SPAN>(value[0]));
            return 0.0f;
        }
        const float largest = largest_magnitude<SPAN>(value[0], 0.0f);
        return inside ? largest : 0.0f;
    }
};

// Runs the activation pass over rows. t: the output, `cols` wide; with MAKES_AMAXES, the tensor whose scale is
// computed. transposed: the transpose of t; if the transpose has its own scale, that scale is written, too.
template <WalkMakes MAKES, int BATCH, int BLOCKS, bool BACKWARD, typename Source>
void act_walk_run(Exec *exec, const Source &source, int64_t rows, int64_t cols, Tensor t, uint32_t *amaxes = NULL,
                  Tensor transposed = Tensor{}) {
    if (rows == 0 || cols == 0) return;
    const int64_t chunks = ceil_div(cols, WARP * SPAN), slots = (int64_t)cuda_backend(exec)->sm_count * BLOCKS;
    int64_t blocks = slots < rows ? slots : rows;
    if (blocks < ceil_div(rows, ACT_WALK_ROWS)) blocks = ceil_div(rows, ACT_WALK_ROWS);
    const Walk w = {(int)rows,
                    (int)cols,
                    (int)chunks,
                    (int)(ACT_WALK_WARPS / chunks),
                    (int)(ACT_WALK_WARPS % chunks),
                    amaxes,
                    (float *)t.scale,
                    transposed.scale != t.scale ? (float *)transposed.scale : NULL,
                    format_max(t.format),
                    format_max(transposed.format),
                    exec->state,
                    cuda_backend(exec)->tally,
                    LOAD_ORDER};
    typedef WalkOf<MAKES, Source> Op;
    const Op op = {source, (char *)t.data, (int)(t.stride * (MAKES == MAKES_BF16 ? 2 : 1)), (const float *)t.scale};
    launch_after(exec, "launching the kernel act_walk_kernel", act_walk_kernel<BATCH, BLOCKS, BACKWARD, Op>,
                 grid_of(blocks), ACT_WALK_WARPS * WARP, !Op::amaxes, op, w);
}

} // namespace
