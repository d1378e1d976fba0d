// SwiGLU and its gradient on saved tensors, as function objects for the passes of fp8_act.h. h has `width` columns of
// gate, then `width` columns of up.
#pragma once
#include "fp8_act.h"

namespace {

// Function object that computes SwiGLU's forward: g = silu(gate) * up.
template <typename S> struct SwigluOf {
    static constexpr bool gated = true;
    struct Loaded {
        typename S::Loaded gate, up;
    };
    S h;
    int width;

    __device__ Loaded load(int row, int column) const { return {h.load(row, column), h.load(row, column + width)}; }
    __device__ static uint32_t word(const Loaded &loaded) { return S::word(loaded.gate) ^ S::word(loaded.up); }
    __device__ static void values(const Loaded &loaded, float out[SPAN]) {
        float up[SPAN];
        S::values(loaded.gate, out);
        S::values(loaded.up, up);
#pragma unroll
        for (int i = 0; i < SPAN; i++) out[i] *= sigmoid(out[i]) * up[i];
    }
    __device__ static void multiplied(const Loaded &loaded, float reciprocal, float out[SPAN]) {
        values(loaded, out);
#pragma unroll
        for (int i = 0; i < SPAN; i++) out[i] *= reciprocal;
    }
};

// Function object that computes SwiGLU's gradient dh: dg * up * silu'(gate) in gate's columns, dg * silu(gate) in up's.
// A pass that computes these columns separately reads dg, gate and up twice; the second read hits the caches.
template <typename S, bool LAST> struct SwigluGradientOf {
    static constexpr bool gated = true;
    struct Loaded {
        Bf16Words<SPAN> dg;
        typename S::Loaded gate, up;
        bool of_up;
    };
    Bf16Reader<LAST> dg;
    S h;
    int width;

    __device__ Loaded load(int row, int column) const {
        const bool of_up = column >= width;
        const int at = of_up ? column - width : column;
        return {dg.load(row, at), h.load(row, at), h.load(row, at + width), of_up};
    }
    __device__ static uint32_t word(const Loaded &loaded) {
        return loaded.dg.word[SPAN / 2 - 1] ^ S::word(loaded.gate) ^ S::word(loaded.up);
    }
    __device__ void values(const Loaded &loaded, float out[SPAN]) const {
        float gate[SPAN], up[SPAN];
        S::values(loaded.gate, gate);
        S::values(loaded.up, up);
        unpack<SPAN>(loaded.dg, out);
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            const float s = sigmoid(gate[i]), silu = gate[i] * s;
            out[i] *= loaded.of_up ? silu : up[i] * fmaf(silu, 1.0f - s, s);
        }
    }
    // Computes the gradients of gate and of up from the data loaded for one column of gate.
    __device__ void both(const Loaded &loaded, float of_gate[SPAN], float of_up[SPAN]) const {
        float dg_here[SPAN];
        S::values(loaded.gate, of_gate);
        S::values(loaded.up, of_up);
        unpack<SPAN>(loaded.dg, dg_here);
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            const float s = sigmoid(of_gate[i]), silu = of_gate[i] * s;
            of_gate[i] = dg_here[i] * (of_up[i] * fmaf(silu, 1.0f - s, s));
            of_up[i] = dg_here[i] * silu;
        }
    }
};

// Calls f(function) with the function object that computes the output g, `width` columns wide, from the input h, which
// `reader` reads: the GELU `kind` if h has `width` columns, SwiGLU if h is wider. ALL: supports all forms of GELU.
template <bool ALL, typename Reader, typename F>
void for_activation(Reader reader, Tensor h, int64_t width, ActivationKind kind, F f) {
    if (h.cols == width)
        for_fp8_gelu<ALL>(kind, [&](auto k) { f(GeluOf<Reader, k()>{reader}); });
    else
        f(SwigluOf<Reader>{reader, (int)width});
}

// Calls f(function) with the function object that computes the input's gradient dh from dg and from h, which `reader`
// reads: for the GELU `kind` if h is as wide as dg, for SwiGLU if h is wider. ALL: supports all forms of GELU.
template <bool ALL, bool LAST, template <bool> typename Reader, typename F>
void for_gradient(Reader<LAST> reader, Tensor dg, Tensor h, ActivationKind kind, F f) {
    if (h.cols == dg.cols)
        for_fp8_gelu<ALL>(kind, [&](auto k) {
            f(GeluGradientOf<Reader<LAST>, LAST, k()>{bf16_reader<LAST>(dg), reader});
        });
    else
        f(SwigluGradientOf<Reader<LAST>, LAST>{bf16_reader<LAST>(dg), reader, (int)dg.cols});
}

} // namespace
