// The activation function between FP8 products (COAT: saved activations, FP8 flow), gelu or SwiGLU: h is kept in E4M3 with
// a scale per group, gelu is always that of the kept h. Codes with a scale per row are made in one pass; with one scale, by Group
// Scaling, gelu and its derivative are made again for every pass instead of being stored.
//
// Bytes per element of device memory, h per group of 16: activation_forward 2 read, 1.125 written; 1.125 read, 1 written.
// activation_rebuild 1.125 and 1. activation_backward 3.125 read; 3.125 read, 1 + 1 written. With scales per row: activation_forward 2
// read, 1.125 + 1 written; activation_backward 3.125 read, 1 written; 1 read, 1 written.
#include "fp8_gelu_row_scale.h"
#include "fp8_gelu_tensor_scale.h"
#include "fp8_gelu_transpose.h"
#include "fp8_swiglu.h"

namespace {

// --- forward: h, and gelu's maxima --------------------------------------------------------------------------
// Where h is kept, as codes per group. A lane's 16 columns lie in one group; larger groups span 2, 4 or 8 lanes.
struct HiddenGroups {
    uint8_t *codes;
    char *scales; // (rows, groups) BF16
    StepState *state;
    int codes_bytes, scale_bytes, group_bits;

    // Stores the codes of x and, with SAVED, makes x what they stand for. largest_h: the magnitudes of h so far.
    template <bool SAVED>
    __device__ void keep(int row, int column, bool inside, float x[SPAN], float *largest_h) const {
        const int group_lanes = (1 << group_bits) / SPAN;
        const float largest = largest_magnitude<SPAN>(x, 0.0f);
        const float maximum = lanes_maximum(inside ? largest : 0.0f, group_lanes);
        *largest_h = larger_magnitude(*largest_h, maximum);
        float scale;
        const bf16 rounded = group_scale(maximum, &scale);
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

HiddenGroups hidden_groups(Exec *exec, Tensor h) {
    return {(uint8_t *)h.data, (char *)h.scale, exec->state, (int)h.stride, (int)(2 * ceil_div(h.cols, h.group)),
            group_bits_of(h)};
}

// h = y + bias. SAVED: gelu is that of the kept h.
template <bool BIAS, bool PLAIN, bool SAVED> struct HiddenOf : HiddenGroups {
    static constexpr bool maxima = !PLAIN;
    struct Loaded {
        Bf16Words<SPAN> y, bias;
    };
    Bf16Reader<true> y;
    const bf16 *bias;
    bf16 *g; // written with PLAIN, which needs no maxima
    int64_t g_stride;

    __device__ float begin() const { return 0.0f; }
    __device__ Loaded load(int row, int column) const {
        Loaded loaded;
        loaded.y = y.load(row, column);
        if constexpr (BIAS) loaded.bias = load_words<SPAN, CACHE_PARAMETER>(bias + column);
        return loaded;
    }
    __device__ static uint32_t word(const Loaded &loaded) {
        return loaded.y.word[SPAN / 2 - 1] ^ (BIAS ? loaded.bias.word[SPAN / 2 - 1] : 0u);
    }
    __device__ float apply(int row, int column, bool inside, const Loaded &loaded, float *largest_h) const {
        float x[SPAN];
        unpack<SPAN>(loaded.y, x);
        if constexpr (BIAS) {
            float add[SPAN];
            unpack<SPAN>(loaded.bias, add);
#pragma unroll
            for (int i = 0; i < SPAN; i++) x[i] += add[i];
        }
        keep<SAVED>(row, column, inside, x, largest_h);
        gelu_span(x);
        if constexpr (PLAIN) {
            if (inside) store(g + row * g_stride + column, packed<bf16, SPAN>(x));
            return 0.0f;
        }
        const float largest_g = largest_magnitude<SPAN>(x, 0.0f);
        return inside ? largest_g : 0.0f;
    }
};

template <bool BIAS, bool PLAIN, bool SAVED>
void hidden_launch(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, uint32_t *maxima) {
    const HiddenOf<BIAS, PLAIN, SAVED> op = {hidden_groups(exec, h), bf16_reader<true>(y), (const bf16 *)bias.data,
                                             (bf16 *)g.data, g.stride};
    gelu_walk_run<1, 3, true>(exec, op, y.rows, y.cols, g, maxima);
}

template <bool BIAS>
void hidden_run(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved, uint32_t *maxima) {
    const bool plain = g.data && g.format == FMT_BF16;
    if (plain && from_saved)
        hidden_launch<BIAS, true, true>(exec, g, h, y, bias, maxima);
    else if (plain)
        hidden_launch<BIAS, true, false>(exec, g, h, y, bias, maxima);
    else
        hidden_launch<BIAS, false, true>(exec, g, h, y, bias, maxima);
}

// h as before and gelu's codes, which have a scale per row, in one pass. y may carry scales of its rows.
template <bool BIAS, bool SAVED> struct HiddenRows : HiddenGroups {
    static constexpr bool parameters = BIAS, gated = false, gradient = false, sums = false;
    static constexpr int outputs = 1;
    typedef Bf16Words<SPAN> Loaded;
    Bf16Reader<true> y;
    const float *y_scales; // NULL: none
    const bf16 *bias;

    __device__ Bf16Words<SPAN> parameter(int column) const { return load_words<SPAN, CACHE_PARAMETER>(bias + column); }
    __device__ float row_factor(int row) const { return y_scales ? y_scales[row] : 1.0f; }
    __device__ Loaded load(int row, int column) const { return y.load(row, column); }
    __device__ static uint32_t word(const Loaded &loaded) { return loaded.word[SPAN / 2 - 1]; }
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
        gelu_span(x);
    }
};

template <bool BIAS, bool SAVED>
void hidden_rows(Exec *exec, const char *operation, Tensor g, Tensor h, Tensor y, Tensor bias) {
    const HiddenRows<BIAS, SAVED> op = {hidden_groups(exec, h), bf16_reader<true>(y),
                                        scaled_by_row(y) ? (const float *)y.scale : NULL, (const bf16 *)bias.data};
    gelu_rows_run<FMT_E4M3>(exec, operation, op, g, Tensor{}, Tensor{}, false);
}

// SwiGLU's y: gate beside up.
struct GateAndUp {
    struct Loaded {
        Bf16Words<SPAN> gate, up;
    };
    Bf16Reader<true> y;
    int width; // of either

    __device__ Loaded load(int row, int column) const { return {y.load(row, column), y.load(row, column + width)}; }
    __device__ static uint32_t word(const Loaded &loaded) {
        return loaded.gate.word[SPAN / 2 - 1] ^ loaded.up.word[SPAN / 2 - 1];
    }
    // Both are kept, and x becomes silu(gate) up.
    template <bool SAVED>
    __device__ void activate(const HiddenGroups &groups, int row, int column, bool inside, const Loaded &loaded,
                             float factor, float x[SPAN], float *largest_h) const {
        float up[SPAN];
        unpack<SPAN>(loaded.gate, x);
        unpack<SPAN>(loaded.up, up);
#pragma unroll
        for (int i = 0; i < SPAN; i++) x[i] *= factor, up[i] *= factor;
        groups.keep<SAVED>(row, column, inside, x, largest_h);
        groups.keep<SAVED>(row, column + width, inside, up, largest_h);
#pragma unroll
        for (int i = 0; i < SPAN; i++) x[i] *= sigmoid(x[i]) * up[i];
    }
};

template <bool PLAIN, bool SAVED> struct SwigluHiddenOf : GateAndUp {
    static constexpr bool maxima = !PLAIN;
    HiddenGroups groups;
    bf16 *g; // written with PLAIN, which needs no maxima
    int64_t g_stride;

    __device__ float begin() const { return 0.0f; }
    __device__ float apply(int row, int column, bool inside, const Loaded &loaded, float *largest_h) const {
        float x[SPAN];
        activate<SAVED>(groups, row, column, inside, loaded, 1.0f, x, largest_h);
        if constexpr (PLAIN) {
            if (inside) store(g + row * g_stride + column, packed<bf16, SPAN>(x));
            return 0.0f;
        }
        const float largest_g = largest_magnitude<SPAN>(x, 0.0f);
        return inside ? largest_g : 0.0f;
    }
    __device__ void finish(float largest_h) const { groups.finish(largest_h); }
};

template <bool PLAIN, bool SAVED> void swiglu_hidden(Exec *exec, Tensor g, Tensor h, Tensor y, uint32_t *maxima) {
    const SwigluHiddenOf<PLAIN, SAVED> op = {
        {bf16_reader<true>(y), (int)g.cols}, hidden_groups(exec, h), (bf16 *)g.data, g.stride};
    gelu_walk_run<1, 3, true>(exec, op, y.rows, g.cols, g, maxima);
}

template <bool SAVED> struct SwigluHiddenRows : GateAndUp {
    static constexpr bool parameters = false, gated = true, gradient = false, sums = false;
    static constexpr int outputs = 1;
    HiddenGroups groups;
    const float *y_scales; // NULL: none

    __device__ float row_factor(int row) const { return y_scales ? y_scales[row] : 1.0f; }
    __device__ void values(int row, int column, bool inside, const Loaded &loaded, float factor,
                           const Bf16Words<SPAN> &, float out[1][SPAN], float *largest_h) const {
        activate<SAVED>(groups, row, column, inside, loaded, factor, out[0], largest_h);
    }
    __device__ void finish(float largest_h) const { groups.finish(largest_h); }
};

template <bool SAVED> void swiglu_rows(Exec *exec, const char *operation, Tensor g, Tensor h, Tensor y) {
    const SwigluHiddenRows<SAVED> op = {
        {bf16_reader<true>(y), (int)g.cols}, hidden_groups(exec, h), scaled_by_row(y) ? (const float *)y.scale : NULL};
    gelu_rows_run<FMT_E4M3>(exec, operation, op, g, Tensor{}, Tensor{}, false);
}

// What a source of fp8_gelu.h makes, as rows.
template <bool GRADIENT, bool GATED, typename Source> struct RowsOf : Source {
    static constexpr bool parameters = false, gated = GATED, gradient = GRADIENT, sums = GRADIENT && !GATED;
    static constexpr int outputs = GRADIENT && GATED ? 2 : 1;

    __device__ float row_factor(int) const { return 1.0f; }
    __device__ void values(int, int, bool, const typename Source::Loaded &loaded, float, const Bf16Words<SPAN> &,
                           float out[outputs][SPAN], float *) const {
        if constexpr (outputs == 2)
            Source::both(loaded, out[0], out[1]);
        else
            Source::values(loaded, out[0]);
    }
    __device__ void finish(float) const {}
};

// The scale of g from the maxima of gelu(h).
void gelu_maxima(Exec *exec, Tensor g, Tensor h, uint32_t *maxima) {
    for_activation<false>(h, g.cols, [&](auto source) {
        const MaximaOf<decltype(source)> op = {source};
        gelu_walk_run<1, 4, true>(exec, op, h.rows, g.cols, g, maxima);
    });
}

// g's codes with a scale per row, from an h that is kept as it is.
void gelu_rows(Exec *exec, const char *operation, Tensor g, Tensor h) {
    for_activation<false>(h, g.cols, [&](auto source) {
        typedef decltype(source) Source;
        const RowsOf<false, Source::gated, Source> op = {source};
        gelu_rows_run<FMT_E4M3>(exec, operation, op, g, Tensor{}, Tensor{}, false);
    });
}

// --- g from h -----------------------------------------------------------------------------------------------
void gelu_cast_plain(Exec *exec, Tensor g, Tensor h) {
    for_activation<true>(h, g.cols, [&](auto source) {
        typedef decltype(source) Source;
        if (g.format == FMT_BF16) {
            const CastOf<FMT_BF16, Source> op = {source, (char *)g.data, (int)(2 * g.stride), NULL};
            gelu_walk_run<2, 4, false>(exec, op, h.rows, g.cols, Tensor{}, NULL);
        } else {
            const CastOf<FMT_E4M3, Source> op = {source, (char *)g.data, (int)g.stride, (const float *)g.scale};
            gelu_walk_run<2, 4, false>(exec, op, h.rows, g.cols, Tensor{}, NULL);
        }
    });
}

void gelu_cast_transposed(Exec *exec, const char *operation, Tensor g, Tensor h) {
    for_activation<true>(h, g.cols, [&](auto source) {
        gelu_tiles_run<FMT_E4M3, FMT_E4M3, false>(exec, operation, source, Tensor{}, g, h.rows, g.cols, Tensor{},
                                                  false);
    });
}

// --- backward -----------------------------------------------------------------------------------------------
void gradient_maxima(Exec *exec, Tensor dh, Tensor dh_t, Tensor dg, Tensor h, uint32_t *maxima) {
    for_gradient<false>(dg, h, [&](auto source) {
        const MaximaOf<decltype(source)> op = {source};
        gelu_walk_run<1, 4, true>(exec, op, h.rows, h.cols, dh, maxima, dh_t);
    });
}

void gradient_cast(Exec *exec, const char *operation, Tensor dh, Tensor dh_t, Tensor dbias, Tensor dg, Tensor h,
                   bool accumulate) {
    for_gradient<true>(dg, h, [&](auto source) {
        typedef decltype(source) Source;
        const auto cast = [&](auto run, Tensor transposed) {
            run(exec, operation, source, dh, transposed, h.rows, h.cols, dbias, accumulate);
        };
        if (dh.format == FMT_BF16)
            cast(gelu_tiles_run<FMT_BF16, FMT_BF16, true, Source>, Tensor{});
        else if (dh.format == FMT_E5M2)
            cast(gelu_tiles_run<FMT_E5M2, FMT_E5M2, true, Source>, dh_t);
        else if (dh_t.format == FMT_E5M2)
            cast(gelu_tiles_run<FMT_E4M3, FMT_E5M2, true, Source>, dh_t);
        else
            cast(gelu_tiles_run<FMT_E4M3, FMT_E4M3, true, Source>, dh_t);
    });
}

// dh's codes with a scale per row, and the sums of its columns; then their transpose, with one scale.
void gradient_rows(Exec *exec, const char *operation, Tensor dh, Tensor dh_t, Tensor dbias, Tensor dg, Tensor h,
                   bool accumulate) {
    for_gradient<true>(dg, h, [&](auto source) {
        typedef decltype(source) Source;
        const RowsOf<true, Source::gated, Source> op = {source};
        if (dh.format == FMT_E5M2)
            gelu_rows_run<FMT_E5M2>(exec, operation, op, dh, dh_t, dbias, accumulate);
        else
            gelu_rows_run<FMT_E4M3>(exec, operation, op, dh, dh_t, dbias, accumulate);
    });
    fp8_transpose_rescaled(exec, dh_t, dh);
}

void require_gelu(const char *operation, Tensor g, Tensor h) {
    if (g.data && g.format != FMT_BF16) require_format(operation, "g", g, FMT_E4M3);
    if (!is_grouped(h)) require_format(operation, "h", h, FMT_BF16);
    require_spans(operation, "g", g);
    require_spans(operation, "h", h);
}

void gelu_cast(Exec *exec, const char *operation, Tensor g, Tensor h) {
    if (g.transposed)
        gelu_cast_transposed(exec, operation, g, h);
    else
        gelu_cast_plain(exec, g, h);
}

} // namespace

void fp8_activation_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved) {
    const char *operation = "activation_forward";
    require_format(operation, "y", y, FMT_BF16);
    require_format(operation, "the bias", bias, FMT_BF16);
    require_spans(operation, "y", y);
    require_gelu(operation, g, h);
    if (y.rows == 0) return;
    const bool by_row = scaled_by_row(g), cast = g.data && format_is_fp8(g.format) && !by_row;
    if (scaled_by_row(y) && !(by_row && is_grouped(h)))
        fatal(EXIT_DEVICE, "%s on the GPU: scales of y's rows are built for grouped h and g with such scales",
              operation);
    const bool gated = g.data && g.cols != y.cols;
    if (gated && (bias.data || (is_grouped(h) && g.cols % h.group)))
        fatal(EXIT_DEVICE, "%s on the GPU: SwiGLU is built without a bias, in whole groups", operation);
    if (by_row && is_grouped(h) && gated) {
        (from_saved ? swiglu_rows<true> : swiglu_rows<false>)(exec, operation, g, h, y);
        return;
    }
    if (by_row && is_grouped(h)) {
        if (from_saved)
            (bias.data ? hidden_rows<true, true> : hidden_rows<false, true>)(exec, operation, g, h, y, bias);
        else
            (bias.data ? hidden_rows<true, false> : hidden_rows<false, false>)(exec, operation, g, h, y, bias);
        return;
    }
    uint32_t *const maxima = cast ? maxima_of(exec, operation, g) : NULL;
    if (is_grouped(h) && gated) {
        if (g.format != FMT_BF16)
            swiglu_hidden<false, true>(exec, g, h, y, maxima);
        else
            (from_saved ? swiglu_hidden<true, true> : swiglu_hidden<true, false>)(exec, g, h, y, maxima);
    } else if (is_grouped(h)) {
        (bias.data ? hidden_run<true> : hidden_run<false>)(exec, g, h, y, bias, from_saved, maxima);
    } else {
        plain_activation_forward(exec, Tensor{}, h, y, bias, true); // h is complete, or becomes so
        if (!h.data) h = y;
        if (by_row) gelu_rows(exec, operation, g, h);
        if (cast) gelu_maxima(exec, g, h, maxima);
    }
    if (cast) gelu_cast(exec, operation, g, h);
}

void fp8_activation_rebuild(Exec *exec, Tensor g_t, Tensor g, Tensor h) {
    const char *operation = "activation_rebuild";
    if (!g_t.data || g_t.data == g.data) return;
    require_gelu(operation, g_t, h);
    if (g.data && format_is_fp8(g.format)) {
        fp8_transpose_codes(exec, g_t, g);
    } else {
        scale_over_rows(exec, g_t, g);
        gelu_cast(exec, operation, g_t, h);
    }
}

void fp8_activation_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h,
                             bool accumulate) {
    const char *operation = "activation_backward";
    require_format(operation, "dg", dg, FMT_BF16);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    require_gradient_codes(operation, dh_q, dh_qt);
    require_spans(operation, "dg", dg);
    require_spans(operation, "dh", dh_q);
    require_spans(operation, "the transposed dh", dh_qt);
    require_gelu(operation, Tensor{}, h);
    if (dg.rows == 0) return;
    if (scaled_by_row(dh_q)) {
        gradient_rows(exec, operation, dh_q, dh_qt, dbias, dg, h, accumulate);
        return;
    }
    if (format_is_fp8(dh_q.format)) gradient_maxima(exec, dh_q, dh_qt, dg, h, maxima_of(exec, operation, dh_q));
    gradient_cast(exec, operation, dh_q, dh_qt, dbias, dg, h, accumulate);
}
