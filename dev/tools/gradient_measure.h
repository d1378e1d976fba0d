// Measures how well an FP8 format and a scale granularity represent a gradient dy in the two matmuls that read dy:
// dgrad (dy W) and wgrad (dy^T X). Only dy is quantized. W, X and the matmuls are in FP32; errors are summed in double.
#pragma once
#include "gradient_passes.h"

enum { GRADIENT_FORMATS = 2, SCALE_RULES = 4 };
static const Format gradient_formats[GRADIENT_FORMATS] = {FMT_E4M3, FMT_E5M2};

typedef struct {
    const char *name;
    // number of rows of dy that share one scale, which row_scale_from_amax() rounds to a power of two; 0: all rows
    // share one scale from scale_from_amax()
    int64_t rows;
    bool by_parts; // true if q, k and v (column ranges of dy) have separate scales
} ScaleRule;

static const ScaleRule scale_rules[SCALE_RULES] = {
    {"tensor", 0, false}, {"part", 0, true}, {"128", 128, false}, {"token", 1, false}};

static inline float rule_scale(const ScaleRule *rule, float maximum, Format format) {
    const uint32_t bits = float_bits(maximum);
    return rule->rows ? row_scale_from_amax(bits, format) : scale_from_amax(bits, format_max(format));
}

// Deviation of a matmul's result p from the exact result e: error |p - e| / |e|, and bias <p, e> / <e, e> - 1.
typedef struct {
    double error, bias;
} Deviation;

typedef struct {
    bool measured;
    double flushed;         // fraction of dy's non-zero values that quantization rounds to 0
    double flushed_squares; // sum of squares of the values rounded to 0, as a fraction of dy's
    double subnormal;       // fraction of dy's non-zero values that quantization makes subnormal
    Deviation data, weight;
    double worst_row; // largest relative error of a row of dw (because Adam normalizes each element)
    int64_t worst_row_index;
} VariantStats;

#define SMALL_ROW 1e-3 // worst_row ignores rows of dw whose norm is less than this fraction of the largest row norm

typedef struct {
    int64_t tokens, out, in; // sizes of dy (tokens, out), x (tokens, in) and w (out, in)
    int64_t nonfinite;       // number of NaN and inf in dy; if it is not 0, nothing else is measured
    double largest, rms;     // amax and root mean square of dy
    double above, below;     // spread of dy's row amaxes: log2(largest / median), log2(median / 1st percentile)
    int64_t small_rows;      // number of rows of dw that worst_row ignores
    VariantStats variant[GRADIENT_FORMATS][SCALE_RULES];
} GradientStats;

// Maximum sizes of the gradients that will be measured, in elements.
typedef struct {
    int64_t gradient, input, weight; // elements of dy (tokens * out), x (tokens * in) and w (out * in)
    int64_t rows;                    // capacity for one value per row: the maximum of tokens and out
} MeterSize;

// Buffers for measuring gradients, all in one device allocation.
typedef struct {
    PassPlace place;
    char *base;
    size_t used;
    float *dy, *dy_quantised; // gradient dy (tokens, out), exact and after quantization
    float *x, *w;             // x (tokens, in) and w (out, in) in FP32
    float *dx, *dx_other;     // dgrad (tokens, in), exact and from the quantized dy
    float *dw, *dw_other;     // wgrad (out, in), exact and from the quantized dy
    float *dw_before;         // values (out, in) to which an accumulating matmul adds
    float *scale;             // scales of dy, at most one per token
    float *dbias;             // bias gradient, one value per output (out)
    uint8_t *code[3];         // FP8 values of dy, x and w
    uint8_t *code_t[3];       // FP8 transposes of dy, x and w
    float *code_scale[3];
    float *scale_host, *row_maxima;
} Meter;

// Returns the next buffer of the device allocation. Before the allocation exists, only adds up its size in m->used, and
// returns NULL.
static inline void *meter_take(Meter *m, int64_t count, size_t bytes) {
    void *piece = m->base ? m->base + m->used : NULL;
    m->used += ((size_t)count * bytes + 255) / 256 * 256;
    return piece;
}

static inline void meter_lay_out(Meter *m, const MeterSize *size) {
    const int64_t code_bytes[3] = {size->gradient, size->input, size->weight};
    m->used = 0;
    m->dy = (float *)meter_take(m, size->gradient, sizeof(float));
    m->dy_quantised = (float *)meter_take(m, size->gradient, sizeof(float));
    m->x = (float *)meter_take(m, size->input, sizeof(float));
    m->w = (float *)meter_take(m, size->weight, sizeof(float));
    m->dx = (float *)meter_take(m, size->input, sizeof(float));
    m->dx_other = (float *)meter_take(m, size->input, sizeof(float));
    m->dw = (float *)meter_take(m, size->weight, sizeof(float));
    m->dw_other = (float *)meter_take(m, size->weight, sizeof(float));
    m->dw_before = (float *)meter_take(m, size->weight, sizeof(float));
    m->scale = (float *)meter_take(m, size->rows + MAX_PARTS, sizeof(float));
    m->dbias = (float *)meter_take(m, size->rows, sizeof(float));
    for (int k = 0; k < 3; k++) {
        m->code[k] = (uint8_t *)meter_take(m, code_bytes[k], 1);
        m->code_t[k] = (uint8_t *)meter_take(m, code_bytes[k], 1);
        m->code_scale[k] = (float *)meter_take(m, 1, sizeof(float));
    }
    m->place.row_memory = (RowResult *)meter_take(m, size->rows, sizeof(RowResult));
}

// Allocates the buffers for gradients of at most these sizes.
static inline bool meter_open(Meter *m, Exec *exec, const Ops *ops, const MeterSize *size, Error *err) {
    memset(m, 0, sizeof *m);
    m->place.exec = exec;
    m->place.ops = ops;
    m->place.on_gpu = ops->device == DEVICE_CUDA;
    m->place.most_rows = size->rows;
    meter_lay_out(m, size);
    m->base = (char *)ops->allocate(exec, m->used, err);
    if (!m->base) return false;
    meter_lay_out(m, size);
    m->place.row = (RowResult *)xmalloc((size_t)size->rows * sizeof(RowResult));
    m->row_maxima = (float *)xmalloc((size_t)size->rows * MAX_PARTS * sizeof(float));
    m->scale_host = (float *)xmalloc((size_t)(size->rows + MAX_PARTS) * sizeof(float));
    return true;
}

static inline void meter_close(Meter *m) {
    if (m->base) m->place.ops->release(m->place.exec, m->base);
    free(m->place.row);
    free(m->row_maxima);
    free(m->scale_host);
}

// Computes dgrad in FP32: dx (tokens, in) = dy (tokens, out) w (out, in).
static inline void exact_data(Meter *m, float *dx, float *dy, const GradientStats *s) {
    Weight w;
    memset(&w, 0, sizeof w);
    w.value = tensor_of(m->w, s->out, s->in, FMT_FP32);
    m->place.ops->linear_backward_data(m->place.exec, tensor_of(dx, s->tokens, s->in, FMT_FP32),
                                       tensor_of(dy, s->tokens, s->out, FMT_FP32), w);
}

// Computes wgrad in FP32: dw (out, in) = dy^T x.
static inline void exact_weight(Meter *m, float *dw, float *dy, const GradientStats *s) {
    m->place.ops->linear_backward_weight(m->place.exec, tensor_of(dw, s->out, s->in, FMT_FP32),
                                         tensor_of(dy, s->tokens, s->out, FMT_FP32),
                                         tensor_of(m->x, s->tokens, s->in, FMT_FP32), false);
}

static inline Deviation deviation_of(const RowResult *r) {
    Deviation d = {0.0, 0.0};
    if (r->sum[SUM_EXACT] > 0.0) {
        d.error = sqrt(r->sum[SUM_DIFFERENCE] / r->sum[SUM_EXACT]);
        d.bias = r->sum[SUM_CROSS] / r->sum[SUM_EXACT] - 1.0;
    } else if (r->sum[SUM_DIFFERENCE] > 0.0) {
        d.error = INFINITY;
    }
    return d;
}

// Compares a matmul's result with the exact result. before: the tensor that the matmul accumulated into; its data is
// NULL if the matmul overwrote its output.
static inline Deviation deviation(Meter *m, Tensor matmul, Tensor before, Tensor exact) {
    const CompareValues values = {matmul, before, exact};
    compare_values(&m->place, values, exact.rows, exact.cols);
    const RowResult total = pass_total(&m->place, exact.rows);
    return deviation_of(&total);
}

static inline Parts one_part(int64_t cols) {
    const Parts parts = {1, {cols, cols, cols}};
    return parts;
}

// Converts the tensor x to FP32 and writes it to `to`. Returns sums over the elements of x.
static inline RowResult read_all(Meter *m, float *to, Tensor x, Parts parts) {
    const ReadValues values = {x, to, parts};
    read_values(&m->place, values, x.rows, x.cols);
    return pass_total(&m->place, x.rows);
}

static inline int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static inline double log2_ratio(double a, double b) {
    return a == b ? 0.0 : log2(a / b); // infinite if only b is 0
}

static inline float row_maximum(const RowResult *row) {
    double largest = row->largest[0];
    for (int p = 1; p < MAX_PARTS; p++) largest = fmax(largest, row->largest[p]);
    return (float)largest;
}

// Measures the spread of the tokens' amaxes in dy. Stores each token's amax of each column range in m->row_maxima
// (tokens, MAX_PARTS).
static inline void measure_rows(Meter *m, GradientStats *s) {
    const RowResult *row = m->place.row;
    float *sorted = (float *)xmalloc((size_t)s->tokens * sizeof *sorted);
    for (int64_t i = 0; i < s->tokens; i++) {
        sorted[i] = row_maximum(&row[i]);
        for (int p = 0; p < MAX_PARTS; p++) m->row_maxima[i * MAX_PARTS + p] = (float)row[i].largest[p];
    }
    qsort(sorted, (size_t)s->tokens, sizeof *sorted, compare_floats);
    const double median = sorted[(s->tokens - 1) / 2];
    s->largest = sorted[s->tokens - 1];
    s->above = log2_ratio(s->largest, median);
    s->below = log2_ratio(median, sorted[(s->tokens - 1) / 100]);
    free(sorted);
}

// Computes the scales of dy for one scale rule and format from the row amaxes, and uploads them.
static inline void make_scales(Meter *m, const GradientStats *s, const ScaleRule *rule, Format format, int64_t block,
                               int parts) {
    int64_t count = 0;
    for (int64_t begin = 0; begin < s->tokens; begin += block) {
        const int64_t end = s->tokens - begin < block ? s->tokens : begin + block;
        float largest[MAX_PARTS] = {0};
        for (int64_t i = begin; i < end; i++)
            for (int p = 0; p < MAX_PARTS; p++) {
                float *of = &largest[parts > 1 ? p : 0];
                *of = fmaxf(*of, m->row_maxima[i * MAX_PARTS + p]);
            }
        for (int p = 0; p < parts; p++) m->scale_host[count++] = rule_scale(rule, largest[p], format);
    }
    m->place.ops->upload(m->place.exec, m->scale, m->scale_host, (size_t)count * sizeof(float));
}

// Quantizes dy with one scale rule and format, and writes the dequantized values to m->dy_quantised. Counts the values
// that become 0 or subnormal.
static inline void quantise(Meter *m, const GradientStats *s, const ScaleRule *rule, Format format, Parts parts,
                            double squares, double nonzero, VariantStats *v) {
    const int64_t block = rule->rows ? rule->rows : s->tokens;
    const Parts used = rule->by_parts ? parts : one_part(s->out);
    make_scales(m, s, rule, format, block, used.count);
    const QuantiseValues values = {m->dy, m->dy_quantised, m->scale, s->out, block, used, format};
    quantise_values(&m->place, values, s->tokens, s->out);
    const RowResult total = pass_total(&m->place, s->tokens);
    v->flushed = nonzero > 0.0 ? total.sum[SUM_FLUSHED] / nonzero : 0.0;
    v->flushed_squares = squares > 0.0 ? total.sum[SUM_FLUSHED_SQUARES] / squares : 0.0;
    v->subnormal = nonzero > 0.0 ? total.sum[SUM_SUBNORMAL] / nonzero : 0.0;
}

// Finds the row of dw with the largest relative error, ignoring small rows. Reads the row results of the last pass,
// which must be that of deviation() for dw. Returns the number of small rows.
static inline int64_t find_worst_row(const Meter *m, int64_t rows, VariantStats *v) {
    const RowResult *row = m->place.row;
    double largest = 0.0;
    int64_t small = 0;
    for (int64_t i = 0; i < rows; i++) largest = fmax(largest, row[i].sum[SUM_EXACT]);
    v->worst_row = 0.0;
    v->worst_row_index = -1;
    for (int64_t i = 0; i < rows; i++) {
        if (row[i].sum[SUM_EXACT] < largest * (SMALL_ROW * SMALL_ROW)) {
            small++;
            continue;
        }
        const double error = deviation_of(&row[i]).error;
        if (v->worst_row_index >= 0 && error <= v->worst_row) continue;
        v->worst_row = error;
        v->worst_row_index = i;
    }
    return small;
}

// Measures a gradient with all formats and scale rules. dy (tokens, out), x (tokens, in) and w (out, in) are unscaled.
// parts: ranges of dy's columns that may have separate scales.
static inline void measure_gradient(Meter *m, Tensor dy, Tensor x, Tensor w, Parts parts, GradientStats *s) {
    memset(s, 0, sizeof *s);
    s->tokens = dy.rows;
    s->out = dy.cols;
    s->in = x.cols;
    read_all(m, m->x, x, one_part(x.cols));
    read_all(m, m->w, w, one_part(w.cols));
    const RowResult total = read_all(m, m->dy, dy, parts);
    s->nonfinite = (int64_t)total.sum[SUM_NONFINITE];
    if (s->nonfinite) return;
    s->rms = sqrt(total.sum[SUM_SQUARES] / (double)tensor_elements(dy));
    measure_rows(m, s);
    exact_data(m, m->dx, m->dy, s);
    exact_weight(m, m->dw, m->dy, s);
    const Tensor nothing = no_tensor();
    for (int f = 0; f < GRADIENT_FORMATS; f++) {
        for (int r = 0; r < SCALE_RULES; r++) {
            VariantStats *v = &s->variant[f][r];
            if (scale_rules[r].by_parts && parts.count == 1) continue;
            v->measured = true;
            quantise(m, s, &scale_rules[r], gradient_formats[f], parts, total.sum[SUM_SQUARES], total.sum[SUM_NONZERO],
                     v);
            exact_data(m, m->dx_other, m->dy_quantised, s);
            v->data = deviation(m, tensor_of(m->dx_other, s->tokens, s->in, FMT_FP32), nothing,
                                tensor_of(m->dx, s->tokens, s->in, FMT_FP32));
            exact_weight(m, m->dw_other, m->dy_quantised, s);
            v->weight = deviation(m, tensor_of(m->dw_other, s->out, s->in, FMT_FP32), nothing,
                                  tensor_of(m->dw, s->out, s->in, FMT_FP32));
            s->small_rows = find_worst_row(m, s->out, v);
        }
    }
}
