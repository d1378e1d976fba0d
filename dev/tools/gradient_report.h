// Prints the results of dev/tools/gradient_stats.cu: tables by gradient, a summary, and JSON lines.
#pragma once
#include "coat/io/json.h"
#include "gradient_accumulation.h"

// Gradients that dgrad and wgrad of the linear layers read, in the order of the model's layers.
typedef enum { GRADIENT_QKV, GRADIENT_PROJ, GRADIENT_FC, GRADIENT_FCPROJ, GRADIENT_HEAD, GRADIENT_KINDS } GradientKind;

static const char *const gradient_names[GRADIENT_KINDS] = {"dqkv", "dresid at proj", "dh", "dresid at fcproj",
                                                           "dlogits"};

typedef struct {
    GradientStats stats;
    Accumulation accumulation[GRADIENT_FORMATS];
} GradientRow;

typedef struct {
    int layers;
    GradientRow *rows; // one row per gradient kind and layer (GRADIENT_KINDS, layers); the head uses only layer 0
} GradientTable;

static inline int kind_layers(const GradientTable *t, GradientKind kind) {
    return kind == GRADIENT_HEAD ? 1 : t->layers;
}

static inline GradientRow *gradient_row(const GradientTable *t, GradientKind kind, int layer) {
    return &t->rows[kind * t->layers + layer];
}

static const char legend[] =
    "flushed: fraction of the non-zero values that become 0, and their fraction of the sum of squares\n"
    "subnormal: fraction of the non-zero values that become subnormal\n"
    "data, dw: dgrad dy W and wgrad dy^T X; p is the result with the rounded dy, e the result with the exact dy:\n"
    "          error |p - e| / |e|, bias <p, e> / <e, e> - 1\n"
    "worst row: largest error of a row of dw, without rows whose norm is below 1e-3 of the largest\n"
    "scale: tensor: one FP32 scale; part: one FP32 scale each for q, k and v; 128, token: a power of two per 128\n"
    "       tokens or per token\n";

static inline void print_variant(FILE *out, const char *layer, Format format, const char *scale,
                                 const VariantStats *v) {
    fprintf(out, "%5s  %-4s %-6s %8.3f%% %9.2e %8.3f%% %10.5f %+10.2e %10.5f %+10.2e %9.4f\n", layer,
            format_name(format), scale, 100.0 * v->flushed, v->flushed_squares, 100.0 * v->subnormal, v->data.error,
            v->data.bias, v->weight.error, v->weight.bias, v->worst_row);
}

static inline void print_variants(FILE *out, const GradientTable *t, GradientKind kind) {
    const GradientStats *first = &gradient_row(t, kind, 0)->stats;
    fprintf(out, "\n%s: %lld tokens, %lld columns; w (%lld, %lld)\n", gradient_names[kind], (long long)first->tokens,
            (long long)first->out, (long long)first->out, (long long)first->in);
    fprintf(out, "%5s  %-11s %9s %9s %9s %10s %10s %10s %10s %9s\n", "layer", "FP8  scale", "flushed", "of squares",
            "subnormal", "data error", "bias", "dw error", "bias", "worst row");
    for (int l = 0; l < kind_layers(t, kind); l++) {
        const GradientStats *s = &gradient_row(t, kind, l)->stats;
        char layer[16];
        snprintf(layer, sizeof layer, "%d", l);
        fprintf(
            out,
            "%5s  max/rms %.1f; tokens' amaxes: largest / median 2^%.1f, median / 1st percentile 2^%.1f; %lld small "
            "rows\n",
            layer, s->rms > 0.0 ? s->largest / s->rms : 0.0, s->above, s->below, (long long)s->small_rows);
        for (int f = 0; f < GRADIENT_FORMATS; f++)
            for (int r = 0; r < SCALE_RULES; r++)
                if (s->variant[f][r].measured)
                    print_variant(out, "", gradient_formats[f], scale_rules[r].name, &s->variant[f][r]);
    }
}

static inline void print_deviation(FILE *out, const Deviation *d) {
    fprintf(out, " %8.1e %+8.1e", d->error, d->bias);
}

// Prints the errors of accumulation in FP8 matmuls. "added": the matmul accumulated into its output.
static inline void print_accumulations(FILE *out, const GradientTable *t) {
    fprintf(out, "\nFP8 matmuls compared with FP32 matmuls of the same FP8 values: relative error and bias\n");
    fprintf(out, "%-16s %5s FP8   %17s %17s %17s %17s %17s\n", "", "", "data, FP32", "data, BF16", "dw, FP32",
            "dw, FP32, added", "dw, BF16, added");
    for (int k = 0; k < GRADIENT_KINDS; k++) {
        for (int l = 0; l < kind_layers(t, (GradientKind)k); l++) {
            for (int f = 0; f < GRADIENT_FORMATS; f++) {
                const Accumulation *a = &gradient_row(t, (GradientKind)k, l)->accumulation[f];
                if (!a->measured) continue;
                fprintf(out, "%-16s %5d %-4s ", gradient_names[k], l, format_name(gradient_formats[f]));
                for (int o = 0; o < OUTPUTS; o++) print_deviation(out, &a->data[o]);
                print_deviation(out, &a->weight[OUTPUT_FP32][0]);
                for (int o = 0; o < OUTPUTS; o++) print_deviation(out, &a->weight[o][1]);
                fprintf(out, "\n");
            }
        }
    }
}

static inline void take_worst(double *worst, double value) {
    if (fabs(value) > fabs(*worst)) *worst = value;
}

// Returns the worst value of each figure of one gradient kind, FP8 format f and scale rule r over all layers.
static inline VariantStats worst_variant(const GradientTable *t, GradientKind kind, int f, int r) {
    VariantStats worst;
    memset(&worst, 0, sizeof worst);
    for (int l = 0; l < kind_layers(t, kind); l++) {
        const VariantStats *v = &gradient_row(t, kind, l)->stats.variant[f][r];
        worst.measured |= v->measured;
        take_worst(&worst.flushed, v->flushed);
        take_worst(&worst.flushed_squares, v->flushed_squares);
        take_worst(&worst.subnormal, v->subnormal);
        take_worst(&worst.data.error, v->data.error);
        take_worst(&worst.data.bias, v->data.bias);
        take_worst(&worst.weight.error, v->weight.error);
        take_worst(&worst.weight.bias, v->weight.bias);
        take_worst(&worst.worst_row, v->worst_row);
    }
    return worst;
}

static inline void print_summary(FILE *out, const GradientTable *t) {
    fprintf(out, "\nThe worst layer of each figure\n%-16s %-11s %9s %9s %10s %10s %10s %10s %9s\n", "", "FP8  scale",
            "flushed", "of squares", "data error", "bias", "dw error", "bias", "worst row");
    for (int k = 0; k < GRADIENT_KINDS; k++) {
        for (int f = 0; f < GRADIENT_FORMATS; f++) {
            for (int r = 0; r < SCALE_RULES; r++) {
                const VariantStats v = worst_variant(t, (GradientKind)k, f, r);
                if (!v.measured) continue;
                fprintf(out, "%-16s %-4s %-6s %8.3f%% %9.2e %10.5f %+10.2e %10.5f %+10.2e %9.4f\n", gradient_names[k],
                        format_name(gradient_formats[f]), scale_rules[r].name, 100.0 * v.flushed, v.flushed_squares,
                        v.data.error, v.data.bias, v.weight.error, v.weight.bias, v.worst_row);
            }
        }
    }
}

static inline void print_report(FILE *out, const GradientTable *t) {
    fputs(legend, out);
    for (int k = 0; k < GRADIENT_KINDS; k++) print_variants(out, t, (GradientKind)k);
    print_accumulations(out, t);
    print_summary(out, t);
}

static inline void json_line_begin(JsonText *line, const char *what, GradientKind kind, int layer) {
    memset(line, 0, sizeof *line);
    json_text_open(line, NULL, '{');
    json_text_string(line, "line", what);
    json_text_string(line, "gradient", gradient_names[kind]);
    if (kind != GRADIENT_HEAD) json_text_int(line, "layer", layer);
}

static inline void json_line_end(JsonText *line, FILE *out) {
    json_text_close(line, '}');
    fprintf(out, "%s\n", line->text);
    json_text_free(line);
}

static inline void json_deviation(JsonText *line, const char *error, const char *bias, const Deviation *d) {
    json_text_double(line, error, d->error);
    json_text_double(line, bias, d->bias);
}

static inline void json_gradient(FILE *out, GradientKind kind, int layer, const GradientStats *s) {
    JsonText line;
    json_line_begin(&line, "gradient", kind, layer);
    json_text_int(&line, "tokens", s->tokens);
    json_text_int(&line, "out", s->out);
    json_text_int(&line, "in", s->in);
    json_text_double(&line, "largest", s->largest);
    json_text_double(&line, "rms", s->rms);
    json_text_double(&line, "log2_largest_median", s->above);
    json_text_double(&line, "log2_median_percentile", s->below);
    json_text_int(&line, "small_rows", s->small_rows);
    json_line_end(&line, out);
}

static inline void json_variant(FILE *out, GradientKind kind, int layer, int f, int r, const VariantStats *v) {
    JsonText line;
    json_line_begin(&line, "variant", kind, layer);
    json_text_string(&line, "format", format_name(gradient_formats[f]));
    json_text_string(&line, "scale", scale_rules[r].name);
    json_text_double(&line, "flushed", v->flushed);
    json_text_double(&line, "flushed_squares", v->flushed_squares);
    json_text_double(&line, "subnormal", v->subnormal);
    json_deviation(&line, "data_error", "data_bias", &v->data);
    json_deviation(&line, "weight_error", "weight_bias", &v->weight);
    json_text_double(&line, "worst_row", v->worst_row);
    json_text_int(&line, "worst_row_index", v->worst_row_index);
    json_line_end(&line, out);
}

static inline void json_matmul(FILE *out, GradientKind kind, int layer, int f, const char *matmul, int output,
                               bool adds, const Deviation *d) {
    JsonText line;
    json_line_begin(&line, "product", kind, layer);
    json_text_string(&line, "format", format_name(gradient_formats[f]));
    json_text_string(&line, "product", matmul);
    json_text_string(&line, "output", format_name(output_formats[output]));
    json_text_bool(&line, "added", adds);
    json_deviation(&line, "error", "bias", d);
    json_line_end(&line, out);
}

static inline void json_row(FILE *out, GradientKind kind, int layer, const GradientRow *row) {
    json_gradient(out, kind, layer, &row->stats);
    for (int f = 0; f < GRADIENT_FORMATS; f++)
        for (int r = 0; r < SCALE_RULES; r++)
            if (row->stats.variant[f][r].measured) json_variant(out, kind, layer, f, r, &row->stats.variant[f][r]);
    for (int f = 0; f < GRADIENT_FORMATS; f++) {
        const Accumulation *a = &row->accumulation[f];
        for (int o = 0; a->measured && o < OUTPUTS; o++) {
            json_matmul(out, kind, layer, f, "data", o, false, &a->data[o]);
            for (int adds = 0; adds < 2; adds++)
                json_matmul(out, kind, layer, f, "weight", o, adds == 1, &a->weight[o][adds]);
        }
    }
}

static inline void json_report(FILE *out, const GradientTable *t) {
    for (int k = 0; k < GRADIENT_KINDS; k++)
        for (int l = 0; l < kind_layers(t, (GradientKind)k); l++)
            json_row(out, (GradientKind)k, l, gradient_row(t, (GradientKind)k, l));
}
