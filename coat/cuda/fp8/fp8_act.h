// The activation function of kept tensors, and its gradient (COAT: saved activations, FP8 flow): 16 values from what a
// reader loads. Included by fp8_activation.cu, as are the passes: over rows with one scale per tensor
// (fp8_act_tensor_scale.h) or one per row (fp8_act_row_scale.h), and down tiles (fp8_act_transpose.h).
//
// A walk down tiles takes a function as it is:
//   load(row, column) -> Loaded; word(loaded); values(loaded, out): 16 values; gated: SwiGLU
//   multiplied(loaded, reciprocal, out): values times reciprocal, for codes; a gradient has none
// A walk over rows takes a source, which is made of one (SourceOf) or of what a matmul left (fp8_hidden.h):
//   load(row, column) -> Loaded; word(loaded); row_factor(row) -> of the row, read ahead as well
//   parameters: whether there are parameters of the columns; parameter(column) -> Bf16Words<SPAN>
//   values(row, column, inside, loaded, factor, parameter, out, own): 16 values; may store what they are made from
//   outputs: 2 for SwiGLU's gradient: values() makes two such rows, of gate and of up, which lie side by side
//   gated: SwiGLU; gradient: it makes one; sums: its columns may be summed
//   finish(own): the thread has no more rows
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
// their words & opaque_zero; and the work stands behind a branch on no_row, a number that no row has.
struct LoadOrder {
    uint32_t opaque_zero;
    int no_row;
};
constexpr LoadOrder LOAD_ORDER = {0, -1};

constexpr float RATIO_SMALLEST = 0x1p-126f; // the smallest normal number, whose reciprocal is normal too

template <typename S> struct GeluOf : S {
    static constexpr bool gated = false;
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
    static constexpr bool gated = false;
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

// The source that a function of kept tensors is. With two outputs it makes both halves of SwiGLU's gradient.
template <bool GRADIENT, int OUTPUTS, typename Function> struct SourceOf : Function {
    static constexpr bool parameters = false, gradient = GRADIENT, sums = GRADIENT && OUTPUTS == 1;
    static constexpr int outputs = OUTPUTS;

    __device__ float row_factor(int) const { return 1.0f; }
    __device__ void values(int, int, bool, const typename Function::Loaded &loaded, float, const Bf16Words<SPAN> &,
                           float out[OUTPUTS][SPAN], float *) const {
        if constexpr (OUTPUTS == 2)
            Function::both(loaded, out[0], out[1]);
        else
            Function::values(loaded, out[0]);
    }
    __device__ void finish(float) const {}
};

template <bool GRADIENT, int OUTPUTS, typename Function>
SourceOf<GRADIENT, OUTPUTS, Function> source_of(const Function &function) {
    return {function};
}

// --- all blocks of a pass -----------------------------------------------------------------------------------
// By one thread of each block: true in the last, with the maximum of all. The last block leaves the tally at 0 for the
// next pass; operations run one after the other.
__device__ inline bool last_block(BlockTally *tally, uint32_t *maximum) {
    atomicMax(&tally->maximum, *maximum);
    __threadfence();
    if (atomicInc(&tally->blocks, gridDim.x - 1) + 1 < gridDim.x) return false;
    __threadfence();
    *maximum = atomicExch(&tally->maximum, 0u);
    return true;
}

} // namespace
