// Sources for passes over rows (fp8_act_row_scale.h, fp8_act_tensor_scale.h). They compute h from a matmul's output y,
// save h in E4M3 with a scale per group, and compute g: GELU of h = y + bias, or SwiGLU of h = y, which contains gate
// and up. y may have row scales. With SAVED, g is computed from the saved h, otherwise from h before quantization.
// Included by fp8_activation.cu only.
#pragma once
#include "fp8_act.h"

namespace {

// Outputs that store the activation function's input h in E4M3 with group scales. A thread's 16 columns belong to one
// group; groups of 32, 64 or 128 columns span 2, 4 or 8 adjacent lanes.
struct HiddenGroups {
    uint8_t *codes;
    char *scales; // group scales in BF16, (rows, groups)
    StepState *state;
    int codes_bytes, scale_bytes, group_bits;

    // Quantizes x, 16 values of h, and stores the FP8 values if `inside`. With SAVED, sets x to the decoded FP8 values.
    // Raises *largest_h to the amax of the unquantized group. All lanes of the warp must call this function.
    template <bool SAVED>
    __device__ void keep(int row, int column, bool inside, float x[SPAN], float *largest_h) const {
        const int group_lanes = (1 << group_bits) / SPAN;
        const float largest = largest_magnitude<SPAN>(x, 0.0f);
        const float amax = lanes_amax(inside ? largest : 0.0f, group_lanes);
        *largest_h = larger_magnitude(*largest_h, amax);
        float scale;
        const bf16 rounded = group_scale(amax, &scale);
        Pack<uint32_t, SPAN / 4> packs;
        encode<FMT_E4M3, SPAN>(x, group_scale_reciprocal(scale), packs.value);
        if (inside) store((uint32_t *)((codes + column) + (int64_t)row * codes_bytes), packs);
        if (inside && (column / SPAN & (group_lanes - 1)) == 0)
            *(bf16 *)((scales + 2 * (column >> group_bits)) + (int64_t)row * scale_bytes) = rounded;
        if constexpr (SAVED) decode<SPAN>(packs.value, scale, x);
    }
    __device__ void finish(float largest_h) const {
        if (__float_as_uint(largest_h) >= NONFINITE_BITS && state) state->nonfinite = 1;
    }
};

template <bool BIAS, bool SAVED, ActivationKind K> struct GeluHidden : HiddenGroups {
    static constexpr bool parameters = BIAS, gated = false, gradient = false, sums = false;
    static constexpr int outputs = 1;
    typedef Bf16Words<SPAN> Loaded;
    Bf16Reader<true> y;
    const float *y_scales; // row scales of the matmul's output y, (rows); NULL: y is unscaled
    const bf16 *bias;

    __device__ Bf16Words<SPAN> parameter(int column) const { return load_words<SPAN, CACHE_PARAMETER>(bias + column); }
    __device__ float row_factor(int row) const { return y_scales ? y_scales[row] : 1.0f; }
    __device__ Loaded load(int row, int column) const { return y.load(row, column); }
    __device__ static uint32_t word(const Loaded &loaded) { return Bf16Reader<true>::word(loaded); }
    __device__ void values(int row, int column, bool inside, const Loaded &loaded, float factor,
                           const Bf16Words<SPAN> &add, float out[1][SPAN], float *largest_h) const {
        float *const x = out[0];
        unpack<SPAN>(loaded, x);
        if constexpr (BIAS) {
            float bias_here[SPAN];
            unpack<SPAN>(add, bias_here);
#pragma unroll
            for (int i = 0; i < SPAN; i++) x[i] = fmaf(x[i], factor, bias_here[i]);
        } else {
#pragma unroll
            for (int i = 0; i < SPAN; i++) x[i] *= factor;
        }
        keep<SAVED>(row, column, inside, x, largest_h);
        gelu_span<K>(x);
    }
};

template <bool SAVED> struct SwigluHidden : HiddenGroups {
    static constexpr bool parameters = false, gated = true, gradient = false, sums = false;
    static constexpr int outputs = 1;
    struct Loaded {
        Bf16Words<SPAN> gate, up;
    };
    Bf16Reader<true> y;
    const float *y_scales; // row scales of the matmul's output y, (rows); NULL: y is unscaled
    int width;             // number of columns of gate, and of up

    __device__ float row_factor(int row) const { return y_scales ? y_scales[row] : 1.0f; }
    __device__ Loaded load(int row, int column) const { return {y.load(row, column), y.load(row, column + width)}; }
    __device__ static uint32_t word(const Loaded &loaded) {
        return Bf16Reader<true>::word(loaded.gate) ^ Bf16Reader<true>::word(loaded.up);
    }
    __device__ void values(int row, int column, bool inside, const Loaded &loaded, float factor,
                           const Bf16Words<SPAN> &, float out[1][SPAN], float *largest_h) const {
        float *const x = out[0];
        float up[SPAN];
        unpack<SPAN>(loaded.gate, x);
        unpack<SPAN>(loaded.up, up);
#pragma unroll
        for (int i = 0; i < SPAN; i++) x[i] *= factor, up[i] *= factor;
        keep<SAVED>(row, column, inside, x, largest_h);
        keep<SAVED>(row, column + width, inside, up, largest_h);
#pragma unroll
        for (int i = 0; i < SPAN; i++) x[i] *= sigmoid(x[i]) * up[i];
    }
};

// Calls f(source) with the source that computes the output g, `width` columns wide, from y and saves the input h: for
// SwiGLU if y is wider, otherwise for the GELU `kind`. ALL: supports all forms of GELU if there is a bias.
template <bool SAVED, bool ALL, typename F>
void for_hidden(Exec *exec, int64_t width, Tensor h, Tensor y, Tensor bias, ActivationKind kind, F f) {
    const HiddenGroups groups = {
        (uint8_t *)h.data, (char *)h.scale, exec->state, (int)h.stride, (int)(2 * ceil_div(h.cols, h.group)),
        group_bits_of(h)};
    const Bf16Reader<true> reader = bf16_reader<true>(y);
    const float *const scales = scaled_by_row(y) ? (const float *)y.scale : NULL;
    if (width != y.cols) return f(SwigluHidden<SAVED>{groups, reader, scales, (int)width});
    if (bias.data)
        for_fp8_gelu<ALL>(kind, [&](auto k) {
            f(GeluHidden<true, SAVED, k()>{groups, reader, scales, (const bf16 *)bias.data});
        });
    else
        for_fp8_gelu<false>(kind, [&](auto k) { f(GeluHidden<false, SAVED, k()>{groups, reader, scales, NULL}); });
}

} // namespace
