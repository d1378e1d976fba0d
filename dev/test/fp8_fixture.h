// Fixture for tests of FP8 operations: creates FP8 tensors filled with NaN, and computes expected FP8 values, scales
// and amax element by element, with coat/numerics/formats.h and quantize.h only.
#pragma once
#include "ops_fixture.h"

#include "coat/numerics/quantize.h"

// Returns an E4M3 or E5M2 tensor with one scale, filled with NaN.
static inline Tensor coded(Fixture *f, Format format, int64_t rows, int64_t cols) {
    Tensor t = poisoned(f, format, rows, cols);
    t.granularity = SCALE_TENSOR;
    t.scale = poisoned(f, FMT_FP32, 1, 4).data;
    t.amax = (uint32_t *)poisoned(f, FMT_FP32, rows, 1).data;
    return t;
}

// Returns an FP8 tensor with one scale per row, filled with NaN. No operation may write its amax.
static inline Tensor coded_rows(Fixture *f, Format format, int64_t rows, int64_t cols) {
    Tensor t = coded(f, format, rows, cols);
    t.granularity = SCALE_ROW;
    t.scale = poisoned(f, FMT_FP32, rows, 1).data;
    return t;
}

// Returns memory, filled with NaN, for a transpose of `of` with the scale of `of` and 5 unused elements per row.
static inline Tensor coded_transpose(Fixture *f, Tensor of) {
    Tensor t = of;
    t.stride = of.rows + 5;
    t.data = poisoned(f, of.format, of.cols, t.stride).data;
    t.transposed = true;
    t.amax = NULL;
    return t;
}

// Returns memory for a transpose of `of` in `format` with its own scale, filled with NaN.
static inline Tensor coded_transpose_in(Fixture *f, Format format, Tensor of) {
    Tensor t = coded_transpose(f, of);
    t.format = format;
    t.granularity = SCALE_TENSOR;
    t.scale = poisoned(f, FMT_FP32, 1, 4).data;
    return t;
}

// Returns memory, filled with NaN, for a transpose with one scale of a tensor that has row scales.
static inline Tensor coded_rows_transpose(Fixture *f, Tensor of) {
    return coded_transpose_in(f, of.format, of);
}

static inline Tensor grouped(Fixture *f, int64_t rows, int64_t cols, int group) {
    Tensor t = poisoned(f, FMT_E4M3, rows, cols);
    t.granularity = SCALE_GROUP;
    t.group = group;
    t.scale = poisoned(f, FMT_BF16, rows, (cols + group - 1) / group).data;
    return t;
}

// Asserts that an operation since watch() has set state->nonfinite, and clears state->nonfinite.
static inline void expect_flag(Fixture *f) {
    assert_int_equal(f->exec.state->nonfinite, 1);
    f->exec.state->nonfinite = 0;
}

static inline uint8_t code_at(Tensor t, int64_t i, int64_t j) {
    return ((const uint8_t *)t.data)[t.transposed ? j * t.stride + i : i * t.stride + j];
}

static inline float group_scale(Tensor t, int64_t i, int64_t j) {
    return bf16_decode(((const uint16_t *)t.scale)[i * ((t.cols + t.group - 1) / t.group) + j / t.group]);
}

static inline float row_scale(Tensor t, int64_t i) {
    return ((const float *)t.scale)[i];
}

// Returns element (i, j) of a tensor of any format as a float, multiplied by its scale.
static inline float element(Tensor t, int64_t i, int64_t j) {
    if (t.granularity == SCALE_NONE) return (float)value(t, i, j);
    float scale = t.granularity == SCALE_GROUP ? group_scale(t, i, j)
                  : t.granularity == SCALE_ROW ? row_scale(t, i)
                                               : *(const float *)t.scale;
    if (!format_is_fp8(t.format)) return (float)value(t, i, j) * scale;
    return fp8_decode(t.format, code_at(t, i, j)) * scale;
}

// Returns an FP32 copy of a tensor of any format, multiplied by its scales.
static inline Tensor decoded(Fixture *f, Tensor x) {
    Tensor t = poisoned(f, FMT_FP32, x.rows, x.cols);
    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t j = 0; j < x.cols; j++) set_value(t, i, j, (double)element(x, i, j));
    return t;
}

// Asserts that q's FP8 values, scale and amax are those of x, quantized with one scale.
static inline void assert_quantised(Tensor q, Tensor x) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < x.rows; i++) {
        uint32_t row = 0;
        for (int64_t j = 0; j < x.cols; j++) {
            uint32_t bits = magnitude_bits(element(x, i, j));
            row = bits > row ? bits : row;
        }
        if (q.amax) assert_int_equal(q.amax[i], row);
        largest = row > largest ? row : largest;
    }
    float scale = scale_from_amax(largest, format_max(q.format)), r = scale_reciprocal(scale);
    assert_int_equal(float_bits(*(const float *)q.scale), float_bits(scale));
    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t j = 0; j < x.cols; j++)
            assert_int_equal(code_at(q, i, j), fp8_encode(q.format, element(x, i, j) * r));
}

// Asserts that q's FP8 values and row scales are those of x, quantized by rows, and that q's amax is unwritten.
static inline void assert_quantised_rows(Tensor q, Tensor x) {
    for (int64_t i = 0; i < x.rows; i++) {
        uint32_t largest = 0;
        for (int64_t j = 0; j < x.cols; j++) {
            uint32_t bits = magnitude_bits(element(x, i, j));
            largest = bits > largest ? bits : largest;
        }
        float scale = SCALE_MIN; // expected scale: the smallest power of two for which amax / scale is in range
        while (bits_float(largest) / scale > format_max(q.format)) scale *= 2;
        assert_int_equal(float_bits(row_scale(q, i)), float_bits(scale));
        assert_int_equal(q.amax[i], 0xffffffffu);
        for (int64_t j = 0; j < x.cols; j++)
            assert_int_equal(code_at(q, i, j), fp8_encode(q.format, element(x, i, j) / scale));
    }
}

// Asserts that q_t consists of x's FP8 values with one scale: the largest row scale of q, converted to q_t's format.
static inline void assert_scale_over_rows(Tensor q_t, Tensor q, Tensor x) {
    float largest = 0;
    for (int64_t i = 0; i < q.rows; i++) largest = row_scale(q, i) > largest ? row_scale(q, i) : largest;
    // ratio of the largest E5M2 and E4M3 values: 57344 / 448 = 128
    if (q_t.format != q.format && (largest /= 128) < SCALE_MIN) largest = SCALE_MIN;
    assert_int_equal(float_bits(*(const float *)q_t.scale), float_bits(largest));
    for (int64_t i = 0; i < q.rows; i++)
        for (int64_t j = 0; j < q.cols; j++)
            assert_int_equal(code_at(q_t, i, j), fp8_encode(q_t.format, element(x, i, j) / largest));
}

// Asserts that q's FP8 values and group scales are those of x, quantized in groups.
static inline void assert_quantised_groups(Tensor q, Tensor x) {
    for (int64_t i = 0; i < x.rows; i++)
        for (int64_t begin = 0; begin < x.cols; begin += q.group) {
            uint32_t largest = 0;
            int64_t end = begin + q.group < x.cols ? begin + q.group : x.cols;
            for (int64_t j = begin; j < end; j++) {
                uint32_t bits = magnitude_bits(element(x, i, j));
                largest = bits > largest ? bits : largest;
            }
            float scale = bf16_decode(group_scale_from_amax(largest, E4M3_MAX)), r = scale_reciprocal(scale);
            assert_int_equal(float_bits(group_scale(q, i, begin)), float_bits(scale));
            for (int64_t j = begin; j < end; j++) assert_int_equal(code_at(q, i, j), e4m3_encode(element(x, i, j) * r));
        }
}

static inline void assert_same_codes(Tensor a, Tensor b) {
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < a.cols; j++) assert_int_equal(code_at(a, i, j), code_at(b, i, j));
}

// Returns random values and zeros. Magnitudes differ by many powers of two, as in activations and gradients.
static inline Tensor uneven_tensor(Fixture *f, int64_t rows, int64_t cols, double size) {
    Tensor t = random_tensor(f, f->format, rows, cols, size);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) set_value(t, i, j, draw(f) < -0.8 ? 0 : value(t, i, j) * exp2(12 * draw(f)));
    return t;
}

// Clears f->state and gives it to the backend, so that operations report NaN and inf there.
static inline void watch(Fixture *f) {
    memset(&f->state, 0, sizeof f->state);
    f->exec.state = &f->state;
}

static inline Norm make_norm(Fixture *f, Tensor x, bool from_saved) {
    Norm norm;
    memset(&norm, 0, sizeof norm);
    norm.x = x;
    norm.mean = poisoned(f, FMT_FP32, x.rows, 1);
    norm.rstd = poisoned(f, FMT_FP32, x.rows, 1);
    norm.weight = random_tensor(f, f->format, 1, x.cols, 1);
    norm.bias = random_tensor(f, f->format, 1, x.cols, 1);
    norm.eps = 1e-5f;
    norm.from_saved = from_saved;
    return norm;
}

// Returns norm(x) in FP32, computed with the saved mean and rstd. Asserts that these two agree with a computation in
// double precision.
static inline Tensor normalised(Fixture *f, Norm norm, Tensor x) {
    Tensor n = poisoned(f, FMT_FP32, x.rows, x.cols);
    for (int64_t i = 0; i < x.rows; i++) {
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < x.cols; j++) mean += (double)element(x, i, j) / (double)x.cols;
        for (int64_t j = 0; j < x.cols; j++)
            variance += ((double)element(x, i, j) - mean) * ((double)element(x, i, j) - mean) / (double)x.cols;
        assert_value(norm.mean, i, 0, mean, 1);
        assert_value(norm.rstd, i, 0, 1 / sqrt(variance + (double)norm.eps), 1);
        float m = (float)value(norm.mean, i, 0), rstd = (float)value(norm.rstd, i, 0);
        for (int64_t j = 0; j < x.cols; j++) {
            float scaled = (element(x, i, j) - m) * rstd * element(norm.weight, 0, j);
            set_value(n, i, j, (double)(scaled + element(norm.bias, 0, j)));
        }
    }
    return n;
}

// Returns gelu(h) in FP32 for a tensor h in any format.
static inline Tensor plain_gelu(Fixture *f, Tensor h, ActivationKind kind) {
    Tensor x = decoded(f, h), g = poisoned(f, FMT_FP32, h.rows, h.cols);
    f->exec.ops->activation_forward(&f->exec, g, x, x, no_tensor(), true, kind);
    return g;
}

static inline Tensor plain_gelu_gradient(Fixture *f, Tensor dg, Tensor h, ActivationKind kind) {
    Tensor dh = decoded(f, dg);
    f->exec.ops->activation_backward(&f->exec, dh, dh, no_tensor(), dh, decoded(f, h), false, kind);
    return dh;
}

// Returns an FP8 tensor of whole numbers from -15 to 15, whose sums are exact in any order.
static inline Tensor whole_codes(Fixture *f, Format format, int64_t rows, int64_t cols, float scale) {
    Tensor t = coded(f, format, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) ((uint8_t *)t.data)[i] = fp8_encode(format, (float)(int)(16 * draw(f)));
    *(float *)t.scale = scale;
    return t;
}

static inline void transpose_into(Tensor t, Tensor of) {
    for (int64_t i = 0; i < of.rows; i++)
        for (int64_t j = 0; j < of.cols; j++) ((uint8_t *)t.data)[j * t.stride + i] = code_at(of, i, j);
}

static inline float code_value(Tensor t, int64_t i, int64_t j) {
    return fp8_decode(t.format, code_at(t, i, j));
}

static inline float stored_as(Tensor t, float x) {
    return t.format == FMT_BF16 ? bf16_decode(bf16_encode(x)) : x;
}
