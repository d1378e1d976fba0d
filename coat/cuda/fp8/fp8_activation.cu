// The activation function between FP8 matmuls (COAT: saved activations, FP8 flow), gelu or SwiGLU: h is kept in E4M3
// with a scale per group, gelu is always that of the kept h. Codes with a scale per row are made in one pass; with one
// scale, by Group Scaling, gelu and its derivative are made again for every pass instead of being stored.
//
// Bytes per element of device memory, h per group of 16: activation_forward 2 read, 1.125 written; 1.125 read, 1
// written. activation_recompute 1.125 and 1. activation_backward 3.125 read; 3.125 read, 1 + 1 written. With scales per
// row: activation_forward 2 read, 1.125 + 1 written; activation_backward 3.125 read, 1 written; 1 read, 1 written.
#include "fp8_act_row_scale.h"
#include "fp8_act_tensor_scale.h"
#include "fp8_act_transpose.h"
#include "fp8_hidden.h"
#include "fp8_swiglu.h"

namespace {

// --- forward ------------------------------------------------------------------------------------------------
// h from y, and g in the same pass: its codes where they have a scale per row, BF16, or its maxima.
template <bool SAVED>
void hidden_run(Exec *exec, const char *operation, Tensor g, Tensor h, Tensor y, Tensor bias, uint32_t *maxima) {
    const int64_t width = g.data ? g.cols : y.cols;
    for_hidden<SAVED>(exec, width, h, y, bias, [&](auto source) {
        if (g.data && g.format == FMT_BF16)
            act_walk_run<MAKES_BF16, 1, 3, true>(exec, source, y.rows, width, g);
        else if constexpr (SAVED)
            act_walk_run<MAKES_MAXIMA, 1, 3, true>(exec, source, y.rows, width, g, maxima);
        else
            act_rows_run(exec, operation, source, g, Tensor{}, Tensor{}, false);
    });
}

// The scale of g from the maxima of gelu(h).
void act_maxima(Exec *exec, Tensor g, Tensor h, uint32_t *maxima) {
    for_activation<false>(h, g.cols, [&](auto function) {
        act_walk_run<MAKES_MAXIMA, 1, 4, true>(exec, source_of<false, 1>(function), h.rows, g.cols, g, maxima);
    });
}

// g's codes with a scale per row, from an h that is kept as it is.
void act_rows(Exec *exec, const char *operation, Tensor g, Tensor h) {
    for_activation<false>(h, g.cols, [&](auto function) {
        act_rows_run(exec, operation, source_of<false, 1>(function), g, Tensor{}, Tensor{}, false);
    });
}

// g from h, with the scale that it has.
void act_cast(Exec *exec, const char *operation, Tensor g, Tensor h) {
    for_activation<true>(h, g.cols, [&](auto function) {
        if (g.transposed)
            act_tiles_run<FMT_E4M3, FMT_E4M3, false>(exec, operation, function, Tensor{}, g, h.rows, g.cols, Tensor{},
                                                     false);
        else if (g.format == FMT_BF16)
            act_walk_run<MAKES_BF16, 2, 4, false>(exec, source_of<false, 1>(function), h.rows, g.cols, g);
        else
            act_walk_run<MAKES_CODES, 2, 4, false>(exec, source_of<false, 1>(function), h.rows, g.cols, g);
    });
}

// --- backward -----------------------------------------------------------------------------------------------
void gradient_maxima(Exec *exec, Tensor dh, Tensor dh_t, Tensor dg, Tensor h, uint32_t *maxima) {
    for_gradient<false>(dg, h, [&](auto function) {
        act_walk_run<MAKES_MAXIMA, 1, 4, true>(exec, source_of<true, 1>(function), h.rows, h.cols, dh, maxima, dh_t);
    });
}

void gradient_cast(Exec *exec, const char *operation, Tensor dh, Tensor dh_t, Tensor dbias, Tensor dg, Tensor h,
                   bool accumulate) {
    for_gradient<true>(dg, h, [&]<typename Function>(Function function) {
        const auto cast = [&](auto run, Tensor transposed) {
            run(exec, operation, function, dh, transposed, h.rows, h.cols, dbias, accumulate);
        };
        if (dh.format == FMT_BF16)
            cast(act_tiles_run<FMT_BF16, FMT_BF16, true, Function>, Tensor{});
        else
            cast(act_tiles_run<FMT_E5M2, FMT_E5M2, true, Function>, dh_t);
    });
}

// dh's codes with a scale per row, and the sums of its columns; then their transpose, with one scale.
void gradient_rows(Exec *exec, const char *operation, Tensor dh, Tensor dh_t, Tensor dbias, Tensor dg, Tensor h,
                   bool accumulate) {
    for_gradient<true>(dg, h, [&]<typename Function>(Function function) {
        constexpr int outputs = Function::gated ? 2 : 1;
        act_rows_run(exec, operation, source_of<true, outputs>(function), dh, dh_t, dbias, accumulate);
    });
    fp8_transpose_rescaled(exec, dh_t, dh);
}

void require_gelu(const char *operation, Tensor g, Tensor h) {
    if (g.data && g.format != FMT_BF16) require_format(operation, "g", g, FMT_E4M3);
    if (!is_grouped(h)) require_format(operation, "h", h, FMT_BF16);
    require_spans(operation, "g", g);
    require_spans(operation, "h", h);
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
    uint32_t *const maxima = cast ? maxima_of(exec, operation, g) : NULL;
    if (by_row && from_saved && is_grouped(h)) fatal(EXIT_DEVICE, "%s on the GPU: g has scales of its rows", operation);
    if (is_grouped(h)) { // with one scale, the next pass reads the saved h
        (from_saved || !g.data || cast ? hidden_run<true> : hidden_run<false>)(exec, operation, g, h, y, bias, maxima);
    } else {
        plain_activation_forward(exec, Tensor{}, h, y, bias, true); // h is complete, or becomes so
        if (!h.data) h = y;
        if (by_row) act_rows(exec, operation, g, h);
        if (cast) act_maxima(exec, g, h, maxima);
    }
    if (cast) act_cast(exec, operation, g, h);
}

void fp8_activation_recompute(Exec *exec, Tensor g_t, Tensor g, Tensor h) {
    const char *operation = "activation_recompute";
    if (!g_t.data || g_t.data == g.data) return;
    require_gelu(operation, g_t, h);
    if (g.data && format_is_fp8(g.format)) {
        fp8_transpose_codes(exec, g_t, g);
    } else {
        scale_over_rows(exec, g_t, g);
        act_cast(exec, operation, g_t, h);
    }
}

void fp8_activation_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h,
                             bool accumulate) {
    const char *operation = "activation_backward";
    require_format(operation, "dg", dg, FMT_BF16);
    require_format(operation, "the bias gradient", dbias, FMT_FP32);
    require_gradient_formats(operation, dh_q, dh_qt);
    require_spans(operation, "dg", dg);
    require_spans(operation, "dh", dh_q);
    require_spans(operation, "the transposed dh", dh_qt);
    require_gelu(operation, Tensor{}, h);
    if (dg.rows == 0) return;
    if (format_is_fp8(dh_q.format)) require_format(operation, "dh", dh_q, scaled_by_row(dh_q) ? FMT_E4M3 : FMT_E5M2);
    if (scaled_by_row(dh_q)) {
        gradient_rows(exec, operation, dh_q, dh_qt, dbias, dg, h, accumulate);
        return;
    }
    if (format_is_fp8(dh_q.format)) gradient_maxima(exec, dh_q, dh_qt, dg, h, maxima_of(exec, operation, dh_q));
    gradient_cast(exec, operation, dh_q, dh_qt, dbias, dg, h, accumulate);
}
