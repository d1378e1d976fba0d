// Computes GELU, SwiGLU and their gradients on saved activations, 16 values at a time. The passes of fp8_activation.cu
// use this file: over rows with one scale per tensor (fp8_act_tensor_scale.h) or per row (fp8_act_row_scale.h), and
// over tiles (fp8_act_transpose.h).
//
// A pass over tiles takes a function object:
//   load(row, column) -> Loaded; word(loaded): a word that depends on the loads; values(loaded, out): 16 values
//   multiplied(loaded, reciprocal, out): values * reciprocal, to be rounded to FP8; gradients lack this function
//   gated: true for SwiGLU
// A pass over rows takes a source, made from a function object (SourceOf) or from a matmul's output (fp8_hidden.h):
//   load(row, column) -> Loaded; word(loaded); row_factor(row) -> the row's scale, loaded in advance as well
//   parameters: true if there is a bias; parameter(column) -> 16 values of the bias
//   outputs: number of outputs; 2 for SwiGLU's gradient (gate's, then up's), otherwise 1
//   values(row, column, inside, loaded, factor, parameter, out, own): 16 values of each output; may also store h, from
//     which the output is computed, and raise *own, the thread's amax of h. inside: the columns exist
//   gated: true for SwiGLU; gradient: true for gradients; sums: true if columns may be summed
//   finish(own): called after a thread's last row
//
// A pass that computes amaxes goes from the last row to the first. The cast pass that follows goes from the first row
// to the last. The cast pass thus starts with the rows that the previous pass left in the L2 cache.
#pragma once
#include "fp8_readers.h"

namespace {

// --- GELU and its derivative as functions of an FP8 value and its scale ----------------------------------------------
// Coefficients of tanh-GELU and quick GELU: gelu(x) = x * gate(x), gate(x) = 1 / (1 + exp(-2 u)), and gelu'(x) = gate +
// 2 x u'(x) gate (1 - gate). The constants include 1 / ln 2, because the hardware computes powers of two.
//   tanh   u = sqrt(2/pi) (x + 0.044715 x^3); the gate equals 0.5 (1 + tanh u) without cancellation for negative u
//   quick  u = 0.851 x
//
// For x = t * scale, t being an unscaled FP8 value, GELU's exponent is a polynomial in t whose coefficients contain the
// scale. Therefore x itself is not computed. ACT_GELU_ERF computes x; its gate is the normal distribution function.
template <ActivationKind K> struct GeluConstants {
    static constexpr bool quick = K == ACT_GELU_QUICK;
    static constexpr float U = quick ? 0.851f : 0.7978845608028654f, U_CUBIC = 0.044715f;
    static constexpr float LINEAR = -2.0f * U * 1.4426950408889634f, CUBIC = LINEAR * U_CUBIC;
    static constexpr float SLOPE = 2.0f * U,
                           SLOPE_SQUARE = 3.0f * U_CUBIC * SLOPE; // 2 u'(x) = SLOPE + SLOPE_SQUARE x^2
};

// GELU's coefficients are computed from min(scale, this limit), because larger scales would overflow. The limit
// changes no result, because at this scale even the smallest nonzero FP8 value, 2^-9, saturates the gate.
constexpr float GATE_SCALE_MAX = 0x1p30f;

template <ActivationKind K> struct GeluScaled {
    typedef GeluConstants<K> Constants;
    float scale;
    float linear, cubic;       // coefficients of the exponent of GELU's gate, a polynomial in the FP8 value t
    float slope, slope_square; // coefficients of 2 u'(x) x = t (slope + slope_square t^2)

    __device__ explicit GeluScaled(float of) : scale(fminf(of, GATE_SCALE_MAX)) {
        const float cube = scale * scale * scale;
        linear = Constants::LINEAR * scale, cubic = Constants::CUBIC * cube;
        slope = Constants::SLOPE * scale, slope_square = Constants::SLOPE_SQUARE * cube;
    }
    // Returns constant + square * t^2, without the square for quick GELU, whose exponent is linear.
    __device__ static float polynomial(float constant, float square, float t) {
        return Constants::quick ? constant : fmaf(square, t * t, constant);
    }
    __device__ float power(float t) const { return fast_exp2(t * polynomial(linear, cubic, t)); }
    __device__ float gate(float t) const {
        return K == ACT_GELU_ERF ? normcdff(t * scale) : fast_reciprocal(1.0f + power(t));
    }
    // Returns d * gelu'(x), given gate(t).
    __device__ float gradient(float t, float d, float gate) const {
        if (K == ACT_GELU_ERF) {
            const float x = t * scale;
            return d * fmaf(x * 0.3989422804014327f, expf(-0.5f * x * x), gate); // the factor is 1 / sqrt(2 pi)
        }
        return d * gate * fmaf(polynomial(slope, slope_square, t), fmaf(-gate, t, t), 1.0f);
    }
};

template <ActivationKind K> __device__ inline void gelu_span(float x[SPAN]) {
    const GeluScaled<K> gelu(1.0f);
#pragma unroll
    for (int i = 0; i < SPAN; i++) x[i] *= gelu.gate(x[i]);
}

// Calls run(std::integral_constant<ActivationKind, kind>()) for a kind of GELU. In FP8, only vision towers with
// --vision-recipe coat use the quick and erf forms, which double the time to compile a kernel. ALL is true for the
// passes that such a tower runs. Other passes support tanh-GELU only and call fatal() for the other forms.
template <bool ALL, typename Run> void for_fp8_gelu(ActivationKind kind, Run run) {
    if constexpr (ALL)
        return for_gelu(kind, run);
    else if (kind != ACT_GELU_TANH)
        fatal(EXIT_DEVICE, "internal error: FP8 activation on the GPU: quick and erf GELU need a bias, h with group "
                           "scales, and g and dh with row scales");
    else
        run(std::integral_constant<ActivationKind, ACT_GELU_TANH>());
}

// --- order in which a thread loads operands and computes -------------------------------------------------------------
// Fixes the order of a thread's loads. A thread should start its next loads as soon as its previous loads have arrived,
// and then compute. The compiler would move the next loads later, or so early that waiting for the previous loads also
// waits for the next loads. Two values that the compiler cannot know prevent this. A load's address includes (words of
// the previous loads) & opaque_zero. The computation is inside a branch on row != no_row, which is always true.
struct LoadOrder {
    uint32_t opaque_zero;
    int no_row;
};
constexpr LoadOrder LOAD_ORDER = {0, -1};

constexpr float RATIO_MIN = 0x1p-126f; // smallest normal FP32 number, whose reciprocal is a normal number, too

template <typename S, ActivationKind K> struct GeluOf : S {
    static constexpr bool gated = false;
    typedef typename S::Loaded Loaded;

    __device__ static void values(const Loaded &loaded, float out[SPAN]) {
        S::values(loaded, out);
        gelu_span<K>(out);
    }
    // Computes gelu(x) * reciprocal as t / (ratio + ratio * power) with ratio = 1 / (scale * reciprocal), which saves
    // two multiplications. Use the result only if it is rounded to FP8; for values stored in BF16, use values().
    __device__ static void multiplied(const Loaded &loaded, float reciprocal, float out[SPAN]) {
        const float scale = S::scale(loaded);
        const float factor = fminf(fmaxf(scale * reciprocal, RATIO_MIN), 1.0f / RATIO_MIN);
        const float ratio = fast_reciprocal(factor);
        const GeluScaled<K> gelu(scale);
        S::unscaled(loaded, out);
#pragma unroll
        for (int i = 0; i < SPAN; i++)
            out[i] *= K == ACT_GELU_ERF ? factor * gelu.gate(out[i])
                                        : fast_reciprocal(fmaf(gelu.power(out[i]), ratio, ratio));
    }
};

template <typename S, bool LAST, ActivationKind K> struct GeluGradientOf {
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
        const GeluScaled<K> gelu(S::scale(loaded.h));
#pragma unroll
        for (int i = 0; i < SPAN; i++) out[i] = gelu.gradient(t[i], out[i], gelu.gate(t[i]));
    }
};

// Makes a source (input of a pass over rows) from a function object. A source with two outputs computes both halves of
// SwiGLU's gradient.
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

// --- amax over all blocks of a kernel --------------------------------------------------------------------------------
// Counts a finished block, whose amax is *amax. One thread of each block of a one-dimensional grid calls this function.
// In the block that finishes last, returns true, sets *amax to the amax of all blocks, and resets the tally for the
// next kernel. In the other blocks, returns false.
__device__ inline bool last_block(BlockTally *tally, uint32_t *amax) {
    atomicMax(&tally->amax, *amax);
    __threadfence();
    if (atomicInc(&tally->blocks, gridDim.x - 1) + 1 < gridDim.x) return false;
    __threadfence();
    *amax = atomicExch(&tally->amax, 0u);
    return true;
}

} // namespace
