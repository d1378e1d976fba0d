// GELU and SwiGLU between FP8 matmuls. The input h is saved in E4M3 with a scale per group, or in BF16. Outputs with a
// scale per row are written in one pass; g is then computed from h before h is quantized. With one scale per tensor
// (Group Scaling), each of two passes computes g or dh from the saved h, so that g and dh are never stored in BF16.
//
// Bytes of device memory per element: y and dg 2, h 1.125 (groups of 16), g and dh and their transposes 1 each.
//                                               reads                       writes
//   activation_forward, a scale per tensor      y, then h                   h, then g
//   activation_forward, a scale per row         y                           h, g
//   activation_recompute                        h; FP8 g: g instead of h    g's transpose
//   activation_backward, a scale per tensor     dg, h, then again dg, h     second pass: dh, dh's transpose
//   activation_backward, a scale per row        dg, h, then dh              dh, then dh's transpose
#include "fp8_act_row_scale.h"
#include "fp8_act_tensor_scale.h"
#include "fp8_act_transpose.h"
#include "fp8_hidden.h"
#include "fp8_swiglu.h"

namespace {

// --- forward of the activation function: h from the matmul's output y, then g from h ---------------------------------
// Computes h from y, saves h with group scales and, in the same pass, computes the output g in BF16 or in E4M3 with row
// scales, or only g's amaxes. With SAVED, g is computed from the saved h.
template <bool SAVED>
void hidden_run(Exec *exec, const char *operation, Tensor g, Tensor h, Tensor y, Tensor bias, uint32_t *amaxes,
                ActivationKind kind) {
    const int64_t width = g.data ? g.cols : y.cols;
    if (g.data && g.format == FMT_BF16)
        for_hidden<SAVED, false>(exec, width, h, y, bias, kind, [&](auto source) {
            act_walk_run<MAKES_BF16, 1, 3, true>(exec, source, y.rows, width, g);
        });
    else if constexpr (SAVED)
        for_hidden<SAVED, false>(exec, width, h, y, bias, kind, [&](auto source) {
            act_walk_run<MAKES_AMAXES, 1, 3, true>(exec, source, y.rows, width, g, amaxes);
        });
    else
        for_hidden<SAVED, true>(exec, width, h, y, bias, kind,
                                [&](auto source) { act_rows_run(exec, operation, source, g); });
}

// Computes the row amaxes of g, the activation function's output, from h in BF16, and then g's scale.
void act_amaxes(Exec *exec, Tensor g, Tensor h, uint32_t *amaxes, ActivationKind kind) {
    for_activation<false>(bf16_reader<false>(h), h, g.cols, kind, [&](auto function) {
        act_walk_run<MAKES_AMAXES, 1, 4, true>(exec, source_of<false, 1>(function), h.rows, g.cols, g, amaxes);
    });
}

// Computes g, the activation function's output, in FP8 with a scale per row, from h in BF16.
void act_rows(Exec *exec, const char *operation, Tensor g, Tensor h, ActivationKind kind) {
    for_activation<false>(bf16_reader<false>(h), h, g.cols, kind,
                          [&](auto function) { act_rows_run(exec, operation, source_of<false, 1>(function), g); });
}

// Computes g, the activation function's output, from h. If g is FP8, its scale must already be in memory. If g is BF16,
// h has group scales, because plain_activation.cu computes g if neither g nor h is FP8.
void act_cast(Exec *exec, const char *operation, Tensor g, Tensor h, ActivationKind kind) {
    const auto walk = [&](auto run, auto reader) {
        for_activation<false>(reader, h, g.cols, kind, [&](auto function) { run(source_of<false, 1>(function)); });
    };
    if (g.transposed)
        for_reader<true>(h, [&](auto reader) {
            for_activation<reader.grouped>(reader, h, g.cols, kind, [&](auto function) {
                act_tiles_run<FMT_E4M3, FMT_E4M3, false>(exec, operation, function, Tensor{}, g, h.rows, g.cols);
            });
        });
    else if (g.format == FMT_BF16)
        walk([&](auto source) { act_walk_run<MAKES_BF16, 2, 4, false>(exec, source, h.rows, g.cols, g); },
             group_reader<true>(h));
    else
        for_reader<true>(h, [&](auto reader) {
            walk([&](auto source) { act_walk_run<MAKES_CODES, 2, 4, false>(exec, source, h.rows, g.cols, g); }, reader);
        });
}

// --- backward of the activation function: its input's gradient dh, dh's transpose and column sums --------------------
// Computes the row amaxes of dh, the gradient of the activation function's input, and then the scales of dh and of its
// transpose.
void gradient_amaxes(Exec *exec, Tensor dh, Tensor dh_t, Tensor dg, Tensor h, uint32_t *amaxes, ActivationKind kind) {
    for_reader<false>(h, [&](auto reader) {
        for_gradient<false>(reader, dg, h, kind, [&](auto function) {
            act_walk_run<MAKES_AMAXES, 1, 4, true>(exec, source_of<true, 1>(function), h.rows, h.cols, dh, amaxes,
                                                   dh_t);
        });
    });
}

// Computes the input's gradient dh, dh's column sums and, unless dh is BF16, dh's transpose. The scales of dh and of
// the transpose must already be in memory. If dh is BF16, h has group scales, because otherwise plain_activation.cu
// computes dh.
void gradient_cast(Exec *exec, const char *operation, Tensor dh, Tensor dh_t, Tensor dbias, Tensor dg, Tensor h,
                   bool accumulate, ActivationKind kind) {
    if (dh.format == FMT_BF16)
        for_gradient<false>(group_reader<true>(h), dg, h, kind, [&](auto function) {
            act_tiles_run<FMT_BF16, FMT_BF16, true>(exec, operation, function, dh, Tensor{}, h.rows, h.cols, dbias,
                                                    accumulate);
        });
    else
        for_reader<true>(h, [&](auto reader) {
            for_gradient<false>(reader, dg, h, kind, [&](auto function) {
                act_tiles_run<FMT_E5M2, FMT_E5M2, true>(exec, operation, function, dh, dh_t, h.rows, h.cols, dbias,
                                                        accumulate);
            });
        });
}

// Computes the input's gradient dh with row scales, from h with group scales, and sums dh's columns. Then writes dh's
// transpose, which has one scale.
void gradient_rows(Exec *exec, const char *operation, Tensor dh, Tensor dh_t, Tensor dbias, Tensor dg, Tensor h,
                   bool accumulate, ActivationKind kind) {
    if (!is_grouped(h))
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: dh with row scales needs h with group scales", operation);
    for_gradient<true>(group_reader<true>(h), dg, h, kind, [&]<typename Function>(Function function) {
        constexpr int outputs = Function::gated ? 2 : 1;
        act_rows_run(exec, operation, source_of<true, outputs>(function), dh, dh_t, dbias, accumulate);
    });
    fp8_transpose_rescaled(exec, dh_t, dh);
}

// Calls fatal() unless the kernels support the formats of the activation function's output g and input h.
void require_gelu(const char *operation, Tensor g, Tensor h) {
    if (g.data && g.format != FMT_BF16) require_format(operation, "g", g, FMT_E4M3);
    if (!is_grouped(h)) require_format(operation, "h", h, FMT_BF16);
    require_spans(operation, "g", g);
    require_spans(operation, "h", h);
}

} // namespace

void fp8_activation_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved,
                            ActivationKind kind) {
    const char *operation = "activation_forward";
    require_format(operation, "y", y, FMT_BF16);
    require_format(operation, "the bias", bias, FMT_BF16);
    require_spans(operation, "y", y);
    require_gelu(operation, g, h);
    if (y.rows == 0) return;
    const bool by_row = scaled_by_row(g), cast = is_fp8(g) && !by_row;
    if (scaled_by_row(y) && !(by_row && is_grouped(h)))
        fatal(EXIT_DEVICE,
              "internal error: %s on the GPU: y with row scales needs h with group scales and g with row scales",
              operation);
    const bool gated = g.data && kind == ACT_SWIGLU;
    if (gated && (bias.data || (is_grouped(h) && g.cols % h.group)))
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: SwiGLU needs a width of whole groups and no bias",
              operation);
    uint32_t *const amaxes = cast ? amaxes_of(exec, operation, g) : NULL;
    if (by_row && from_saved && is_grouped(h))
        fatal(EXIT_DEVICE, "internal error: %s on the GPU: g from the saved h cannot have row scales", operation);
    if (is_grouped(h)) { // if g has one scale per tensor, its second pass reads the saved h
        (from_saved || !g.data || cast ? hidden_run<true> : hidden_run<false>)(exec, operation, g, h, y, bias, amaxes,
                                                                               kind);
    } else {
        plain_activation_forward(exec, Tensor{}, h, y, bias, true, kind); // after this call, h is complete
        if (!h.data) h = y;
        if (by_row) act_rows(exec, operation, g, h, kind);
        if (cast) act_amaxes(exec, g, h, amaxes, kind);
    }
    if (cast) act_cast(exec, operation, g, h, kind);
}

void fp8_activation_recompute(Exec *exec, Tensor g_t, Tensor g, Tensor h, ActivationKind kind) {
    const char *operation = "activation_recompute";
    require_gelu(operation, g_t, h);
    if (is_fp8(g)) {
        fp8_transpose_codes(exec, g_t, g);
    } else {
        scale_over_rows(exec, g_t, g);
        act_cast(exec, operation, g_t, h, kind);
    }
}

void fp8_activation_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h, bool accumulate,
                             ActivationKind kind) {
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
        gradient_rows(exec, operation, dh_q, dh_qt, dbias, dg, h, accumulate, kind);
        return;
    }
    if (format_is_fp8(dh_q.format)) gradient_amaxes(exec, dh_q, dh_qt, dg, h, amaxes_of(exec, operation, dh_q), kind);
    gradient_cast(exec, operation, dh_q, dh_qt, dbias, dg, h, accumulate, kind);
}
