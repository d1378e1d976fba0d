// Measures the error of accumulation in FP8 matmuls. Runs the device's FP8 matmuls on operands with one scale each, and
// compares the results with FP32 matmuls of the same FP8 values. This excludes the error of rounding to FP8.
#pragma once
#include "gradient_measure.h"

enum { OUTPUT_FP32, OUTPUT_BF16, OUTPUTS };
static const Format output_formats[OUTPUTS] = {FMT_FP32, FMT_BF16};

typedef struct {
    bool measured;
    Deviation data[OUTPUTS];      // errors of dgrad per output format
    Deviation weight[OUTPUTS][2]; // errors of wgrad per output format; [0]: dw is overwritten, [1]: accumulated into
} Accumulation;

// True if tokens, out and in are multiples of 16, as FP8 matmuls require.
static inline bool accumulation_possible(const GradientStats *s) {
    return s->tokens % 16 == 0 && s->out % 16 == 0 && s->in % 16 == 0;
}

// Returns operand k of the matmuls (0: dy, 1: x, 2: w) in FP8, or its transpose, which has the same scale.
static inline Tensor operand_codes(const Meter *m, int k, Tensor of, Format format, bool transposed) {
    Tensor t = tensor_of(transposed ? m->code_t[k] : m->code[k], of.rows, of.cols, format);
    t.granularity = SCALE_TENSOR;
    t.scale = m->code_scale[k];
    t.transposed = transposed;
    if (transposed) t.stride = of.rows;
    return t;
}

// Quantizes operand k of the matmuls (0: dy, 1: x, 2: w) and its transpose to E4M3.
static inline void make_operand_codes(Meter *m, int k, Tensor of) {
    const Tensor codes = operand_codes(m, k, of, FMT_E4M3, false), codes_t = operand_codes(m, k, of, FMT_E4M3, true);
    m->place.ops->quantize_forward(m->place.exec, codes, of);
    m->place.ops->quantize_recompute(m->place.exec, codes_t, codes, of);
}

static inline void measure_data_matmul(Meter *m, Tensor dy_q, Tensor w, const GradientStats *s, Accumulation *a) {
    const Tensor exact = tensor_of(m->dx, s->tokens, s->in, FMT_FP32), nothing = no_tensor();
    Weight weight;
    memset(&weight, 0, sizeof weight);
    weight.value = w;
    weight.codes = operand_codes(m, 2, w, FMT_E4M3, false);
    weight.codes_t = operand_codes(m, 2, w, FMT_E4M3, true);
    read_all(m, m->dy_quantised, dy_q, one_part(s->out));
    exact_data(m, m->dx, m->dy_quantised, s);
    for (int o = 0; o < OUTPUTS; o++) {
        const Tensor dx = tensor_of(m->dx_other, s->tokens, s->in, output_formats[o]);
        m->place.ops->linear_backward_data(m->place.exec, dx, dy_q, weight);
        a->data[o] = deviation(m, dx, nothing, exact);
    }
}

static inline void copy_rows(Meter *m, Tensor to, Tensor from) {
    Norm none;
    memset(&none, 0, sizeof none);
    m->place.ops->postnorm_residual_forward(m->place.exec, no_tensor(), none, to, from, no_tensor());
}

// Sets `before` and dw to dw with its rows rotated by one, so that the accumulating matmul adds to values of a
// gradient's magnitude.
static inline void put_before(Meter *m, Tensor before, Tensor dw) {
    const int64_t last = dw.rows - 1;
    copy_rows(m, tensor_rows(before, 1, last), tensor_rows(dw, 0, last));
    copy_rows(m, tensor_rows(before, 0, 1), tensor_rows(dw, last, 1));
    copy_rows(m, dw, before);
}

static inline void measure_weight_matmul(Meter *m, Tensor dy_qt, Tensor x_qt, const GradientStats *s, Accumulation *a) {
    const Tensor exact = tensor_of(m->dw, s->out, s->in, FMT_FP32), nothing = no_tensor();
    read_all(m, m->dy_quantised, dy_qt, one_part(s->out));
    exact_weight(m, m->dw, m->dy_quantised, s);
    for (int o = 0; o < OUTPUTS; o++) {
        const Tensor dw = tensor_of(m->dw_other, s->out, s->in, output_formats[o]);
        const Tensor before = tensor_of(m->dw_before, s->out, s->in, output_formats[o]);
        m->place.ops->linear_backward_weight(m->place.exec, dw, dy_qt, x_qt, false);
        a->weight[o][0] = deviation(m, dw, nothing, exact);
        put_before(m, before, dw);
        m->place.ops->linear_backward_weight(m->place.exec, dw, dy_qt, x_qt, true);
        a->weight[o][1] = deviation(m, dw, before, exact);
    }
}

// Measures the accumulation errors of dgrad and wgrad in FP8, with dy in `format` and x and w in E4M3. Does nothing if
// dy is not finite or a size is not a multiple of 16. s: result of measure_gradient() for the same BF16 tensors.
static inline void measure_accumulation(Meter *m, Tensor dy, Tensor x, Tensor w, Format format, const GradientStats *s,
                                        Accumulation *a) {
    memset(a, 0, sizeof *a);
    if (s->nonfinite || !accumulation_possible(s)) return;
    a->measured = true;
    const Tensor dy_q = operand_codes(m, 0, dy, format, false), dy_qt = operand_codes(m, 0, dy, format, true);
    const Tensor x_qt = operand_codes(m, 1, x, FMT_E4M3, true), w_qt = operand_codes(m, 2, w, FMT_E4M3, true);
    if (format == FMT_E4M3)
        make_operand_codes(m, 0, dy); // grad_quantize would write the transpose in E5M2.
    else
        m->place.ops->grad_quantize(m->place.exec, dy_q, dy_qt, tensor_of(m->dbias, 1, s->out, FMT_FP32), dy, false);
    make_operand_codes(m, 1, x);
    make_operand_codes(m, 2, w);
    read_all(m, m->x, x_qt, one_part(s->in));
    read_all(m, m->w, w_qt, one_part(s->in));
    measure_data_matmul(m, dy_q, w, s, a);
    measure_weight_matmul(m, dy_qt, x_qt, s, a);
}
