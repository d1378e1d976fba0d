// The activation function of kept tensors (COAT: saved activations, FP8 flow), and the walk over rows that finds maxima
// or casts. Included by fp8_activation.cu only, as is the walk down tiles (fp8_gelu_tiles.h). The walk over rows
// keeps as many blocks as fit the multiprocessors, each with its next loads on their way while it converts what came.
//
// Order of the passes: one that finds maxima goes from the last row to the first, the cast after it from the first to
// the last. So each begins with what the one before it left in the L2 cache.
#pragma once
#include "fp8_readers.h"

namespace {

// --- gelu ---------------------------------------------------------------------------------------------------
// gelu(x) = x * gate(x), gate(x) = 1 / (1 + exp(-2 u)), u = sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh u) without
// the cancellation that the sum suffers for negative u; gelu'(x) = gate + 2 x u'(x) gate (1 - gate). The hardware makes
// powers of two: the logarithm's factor is in the constants.
//
// x = t * scale, t the value of a code: the exponent is a polynomial of t too, with the scale in its factors, so that x
// itself need not be made.
constexpr float GELU_LINEAR = -2.0f * 0.7978845608028654f * 1.4426950408889634f;
constexpr float GELU_CUBIC = GELU_LINEAR * 0.044715f;
constexpr float SLOPE = 2.0f * 0.7978845608028654f; // 2 u'(x) = SLOPE + SLOPE_SQUARE x^2
constexpr float SLOPE_SQUARE = 3.0f * 0.044715f * SLOPE;

// A larger scale than this one changes no gate, as the smallest code is 2^-9, but would overflow.
constexpr float GATE_SCALE_LARGEST = 0x1p30f;

struct GeluScaled {
    float linear, cubic;       // of the exponent
    float slope, slope_square; // 2 u'(x) x = t (slope + slope_square t^2)

    __device__ explicit GeluScaled(float scale) {
        scale = fminf(scale, GATE_SCALE_LARGEST);
        const float cube = scale * scale * scale;
        linear = GELU_LINEAR * scale, cubic = GELU_CUBIC * cube;
        slope = SLOPE * scale, slope_square = SLOPE_SQUARE * cube;
    }
    __device__ float power(float t) const { return fast_exp2(t * fmaf(cubic, t * t, linear)); }
    // d * gelu'(x)
    __device__ float gradient(float t, float d) const {
        const float gate = fast_reciprocal(1.0f + power(t));
        return d * gate * fmaf(fmaf(slope_square, t * t, slope), fmaf(-gate, t, t), 1.0f);
    }
};

__device__ inline float gelu_of(float x) {
    return x * fast_reciprocal(1.0f + GeluScaled(1.0f).power(x));
}

__device__ inline void gelu_span(float x[SPAN]) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) x[i] = gelu_of(x[i]);
}

// --- the order of loads -------------------------------------------------------------------------------------
// A thread asks for its next values as soon as the last have come, and then works on those. Left to itself the
// compiler asks later, or earlier: then the wait for the last values, which counts all that is on its way, takes in
// the next. Two values that it cannot know keep the order. A load's address depends on the values that came, by
// their words & zero; and the work stands behind a branch on never, a number that no row has.
struct LoadOrder {
    uint32_t zero;
    int never;
};
constexpr LoadOrder LOAD_ORDER = {0, -1};

constexpr float RATIO_SMALLEST = 0x1p-126f; // the smallest normal number, whose reciprocal is normal too

template <typename S> struct GeluOf : S {
    typedef typename S::Loaded Loaded;

    __device__ static void values(const Loaded &loaded, float out[SPAN]) {
        S::values(loaded, out);
        gelu_span(out);
    }
    // gelu(x) * reciprocal = t / (ratio + ratio * power), ratio = 1 / (scale * reciprocal): no product for either. For
    // codes; values that are stored as BF16 are values().
    __device__ static void multiplied(const Loaded &loaded, float reciprocal, float out[SPAN]) {
        const float scale = S::scale(loaded);
        const float ratio = fast_reciprocal(fminf(fmaxf(scale * reciprocal, RATIO_SMALLEST), 1.0f / RATIO_SMALLEST));
        const GeluScaled gelu(scale);
        S::unscaled(loaded, out);
#pragma unroll
        for (int i = 0; i < SPAN; i++) out[i] *= fast_reciprocal(fmaf(gelu.power(out[i]), ratio, ratio));
    }
};

template <typename S, bool LAST> struct GeluGradientOf {
    struct Loaded {
        Bf16Words<SPAN> dg;
        typename S::Loaded h;
    };
    Bf16Reader<LAST> dg;
    S h;

    __device__ Loaded load(int row, int column) const { return {dg.load(row, column), h.load(row, column)}; }
    __device__ static uint32_t word(const Loaded &loaded) { return loaded.dg.word[SPAN / 2 - 1] ^ S::word(loaded.h); }
    __device__ void values(const Loaded &loaded, float out[SPAN]) const {
        float t[SPAN];
        S::unscaled(loaded.h, t);
        unpack<SPAN>(loaded.dg, out);
        const GeluScaled gelu(S::scale(loaded.h));
#pragma unroll
        for (int i = 0; i < SPAN; i++) out[i] = gelu.gradient(t[i], out[i]);
    }
};

// --- the walk over rows -------------------------------------------------------------------------------------
// A block has the rows blockIdx.x, blockIdx.x + gridDim.x, ... in the order of the pass; its warps take turns in their
// chunks of 32 spans, as if the rows lay one behind the other. `Op`:
//   begin() -> a thread's own value; load(row, column) -> Loaded; word(loaded); finish(own)
//   apply(row, column, inside, loaded, &own) -> the largest magnitude, 0 where it is not inside the tensor
// Op::maxima: those of the rows go to maxima, and the tensor's scale follows from them.
constexpr int GELU_WALK_WARPS = 8;
constexpr int GELU_WALK_ROWS = 1024; // of a block, at most

struct Walk {
    int rows, cols, chunks;            // chunks of a row
    int step_rows, step_chunks;        // GELU_WALK_WARPS chunks further
    uint32_t *maxima;                  // NULL: none wanted
    float *scale, *scale_transposed;   // the latter NULL: the transpose has none of its own
    float largest, largest_transposed; // of the codes
    StepState *state;
    BlockTally *tally;
    LoadOrder order;
};

struct WalkAt {
    int turn, chunk; // turn: which of the block's rows

    __device__ void advance(const Walk &w) {
        turn += w.step_rows;
        chunk += w.step_chunks;
        if (chunk >= w.chunks) chunk -= w.chunks, turn++;
    }
};

// By one thread of each block: true in the last, with the maximum of all. The last block leaves the tally at 0 for the next
// pass; operations run one after the other.
__device__ inline bool last_block(BlockTally *tally, uint32_t *maximum) {
    atomicMax(&tally->maximum, *maximum);
    __threadfence();
    if (atomicInc(&tally->blocks, gridDim.x - 1) + 1 < gridDim.x) return false;
    __threadfence();
    *maximum = atomicExch(&tally->maximum, 0u);
    return true;
}

__device__ inline void walk_scale(const Walk &w, uint32_t maximum) {
    if (!last_block(w.tally, &maximum)) return;
    *w.scale = scale_from_maximum(maximum, w.largest);
    if (w.scale_transposed) *w.scale_transposed = scale_from_maximum(maximum, w.largest_transposed);
    if (maximum >= NONFINITE_BITS && w.state) w.state->nonfinite = 1;
}

template <int BATCH, int BLOCKS, bool BACKWARD, typename Op>
__global__ __launch_bounds__(GELU_WALK_WARPS *WARP, BLOCKS) void gelu_walk_kernel(const __grid_constant__ Op op,
                                                                                  const __grid_constant__ Walk w) {
    __shared__ uint32_t maximum[Op::maxima ? GELU_WALK_ROWS + 1 : 1]; // of the rows, then of all
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    if constexpr (Op::maxima) {
        second_stage_allow();
        for (int i = (int)threadIdx.x; i <= GELU_WALK_ROWS; i += GELU_WALK_WARPS * WARP) maximum[i] = 0;
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
    typename Op::Loaded loaded[BATCH];
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
        came &= w.order.zero;
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            fetch(next, came, &loaded[u]);
            next.advance(w);
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            const int row = row_of(use.turn), column = (use.chunk * WARP + lane) * SPAN;
            float largest = 0.0f;
            if (row != w.order.never)
                largest = op.apply(BACKWARD ? w.rows - 1 - row : row, column,
                                   column < w.cols && (BATCH == 1 || row < w.rows), now[u], &own);
            if constexpr (Op::maxima) {
                const uint32_t bits = warp_maximum_bits(largest);
                if (lane == 0 && (BATCH == 1 || row < w.rows)) atomicMax(&maximum[use.turn], bits);
            }
            use.advance(w);
        }
    }
    op.finish(own);
    if constexpr (Op::maxima) {
        if (!w.maxima) return;
        __syncthreads();
        uint32_t largest = 0;
        for (int turn = (int)threadIdx.x; row_of(turn) < w.rows; turn += GELU_WALK_WARPS * WARP) {
            w.maxima[BACKWARD ? w.rows - 1 - row_of(turn) : row_of(turn)] = maximum[turn];
            largest = max(largest, maximum[turn]);
        }
        largest = __reduce_max_sync(ALL_LANES, largest);
        if (lane == 0) atomicMax(&maximum[GELU_WALK_ROWS], largest);
        __syncthreads();
        if (threadIdx.x == 0) walk_scale(w, maximum[GELU_WALK_ROWS]);
    }
}

// t: whose scale follows from maxima, and that of transposed where it has another; without maxima the pass does not look
// for them.
template <int BATCH, int BLOCKS, bool BACKWARD, typename Op>
void gelu_walk_run(Exec *exec, const Op &op, int64_t rows, int64_t cols, Tensor t, uint32_t *maxima,
                   Tensor transposed = Tensor{}) {
    if (rows == 0 || cols == 0) return;
    const int64_t chunks = ceil_div(cols, WARP * SPAN), slots = (int64_t)cuda_backend(exec)->sm_count * BLOCKS;
    int64_t blocks = slots < rows ? slots : rows;
    if (blocks < ceil_div(rows, GELU_WALK_ROWS)) blocks = ceil_div(rows, GELU_WALK_ROWS);
    const Walk w = {(int)rows,
                    (int)cols,
                    (int)chunks,
                    (int)(GELU_WALK_WARPS / chunks),
                    (int)(GELU_WALK_WARPS % chunks),
                    maxima,
                    (float *)t.scale,
                    transposed.scale != t.scale ? (float *)transposed.scale : NULL,
                    format_max(t.format),
                    format_max(transposed.format),
                    exec->state,
                    cuda_backend(exec)->tally,
                    LOAD_ORDER};
    if (Op::maxima) {
        gelu_walk_kernel<BATCH, BLOCKS, BACKWARD>
            <<<grid_of(blocks), GELU_WALK_WARPS * WARP, 0, cuda_backend(exec)->stream>>>(op, w);
        LAUNCH_CHECK("gelu_walk_kernel");
    } else {
        launch_behind(exec, "launching the kernel gelu_walk_kernel", gelu_walk_kernel<BATCH, BLOCKS, BACKWARD, Op>,
                      grid_of(blocks), GELU_WALK_WARPS * WARP, 0, true, op, w);
    }
}

template <typename Source> struct MaximaOf : Source {
    static constexpr bool maxima = true;

    __device__ float begin() const { return 0.0f; }
    __device__ float apply(int, int, bool inside, const typename Source::Loaded &loaded, float *) const {
        float value[SPAN];
        Source::values(loaded, value);
        const float largest = largest_magnitude<SPAN>(value, 0.0f);
        return inside ? largest : 0.0f;
    }
    __device__ void finish(float) const {}
};

template <Format F, typename Source> struct CastOf : Source {
    static constexpr bool maxima = false;
    char *out;
    int row_bytes;
    const float *scale;

    __device__ float begin() const { return F == FMT_BF16 ? 1.0f : scale_reciprocal(*scale); }
    __device__ float apply(int row, int column, bool inside, const typename Source::Loaded &loaded,
                           const float *reciprocal) const {
        float value[SPAN];
        if constexpr (F == FMT_BF16)
            Source::values(loaded, value);
        else
            Source::multiplied(loaded, *reciprocal, value);
        char *const to = (out + column * (F == FMT_BF16 ? 2 : 1)) + (int64_t)row * row_bytes;
        if constexpr (F == FMT_BF16) {
            if (inside) store((bf16 *)to, packed<bf16, SPAN>(value));
        } else {
            Pack<uint32_t, SPAN / 4> codes;
            encode<F, SPAN>(value, 1.0f, codes.value);
            if (inside) store((uint32_t *)to, codes);
        }
        return 0.0f;
    }
    __device__ void finish(float) const {}
};

} // namespace
