// The inner loops of the CPU backend: functions on contiguous rows of `real`, compiled once for every
// instruction set and chosen when the device is opened, so that one portable binary uses what the machine has.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "numerics/formats.h"

// The scalars of one optimizer step, the same for all parameters.
typedef struct {
    real lr, beta1, beta2, eps;
    real correction1, correction2; // 1 / (1 - beta^t) of the moments
    real clip;                     // factor of the gradient
} AdamwStep;

// What a row of a norm was normalised with; mean 0 for RMSNorm.
typedef struct {
    real mean, rstd;
} NormStatistics;

// Elements from one packed panel to the next. The gap keeps the panels' rows out of each other's cache sets where
// a panel is a multiple of 4096 bytes.
static inline int64_t panel_stride(int64_t width, int64_t depth) {
    return width * depth + 16;
}

// The inner loops of matmuls; see cpu_matmul_body.h.
typedef struct {
    int rows, columns; // widths of the panels of A and B
    // c (m, n) = (add ? c : 0) + a b from packed panels; writes whole panels, so c has room for m and n rounded up
    void (*multiply)(real *c, int64_t ldc, const real *a, const real *b, int64_t m, int64_t n, int64_t depth, bool add);
    // Packs one panel from rows of x along the summation index: out[k * width + r] = x[r * ld + k].
    void (*transpose_a)(real *out, const real *x, int64_t ld, int64_t rows, int64_t depth);
    void (*transpose_b)(real *out, const real *x, int64_t ld, int64_t rows, int64_t depth);
    // Packs one row across panels, where x has the summation index outermost; out is at that row of the first.
    void (*deal_a)(real *out, const real *x, int64_t count, int64_t depth);
    void (*deal_b)(real *out, const real *x, int64_t count, int64_t depth);
} PanelKernels;

typedef struct {
    const char *name;
    const PanelKernels *panels;

    void (*decode_bf16)(real *out, const uint16_t *x, int64_t n);
    void (*encode_bf16)(uint16_t *out, const real *x, int64_t n);                               // round to nearest even
    void (*decode_fp8)(real *out, const uint8_t *codes, int64_t n, float scale, Format format); // code * scale
    void (*encode_fp8)(uint8_t *codes, const real *x, int64_t n, float r, Format format);       // cast(x * r)
    uint32_t (*maximum_bits)(const real *x, int64_t n); // the largest of the bits of |x|, as FP32; 0 for n == 0
    // E4M3 with a BF16 scale per group of `group`, the last perhaps shorter; encode returns the largest bits of |x|
    void (*decode_groups)(real *out, const uint8_t *codes, const uint16_t *scales, int64_t n, int group);
    uint32_t (*encode_groups)(uint8_t *codes, uint16_t *scales, const real *x, int64_t n, int group);
    void (*add)(real *acc, const real *x, int64_t n); // acc += x
    real (*sum_of_products)(const real *x, const real *y, int64_t n);
    real (*maximum)(const real *x, int64_t n); // NaN is ignored; -inf for n == 0
    double (*sum_of_squares)(const real *x, int64_t n);

    // Two passes: mean, then variance around it. `centred` false is RMSNorm.
    NormStatistics (*norm_statistics)(const real *x, int64_t n, real eps, bool centred);
    // out = (x - mean) * rstd * weight + bias; bias may be NULL
    void (*norm_apply)(real *out, const real *x, NormStatistics s, const real *weight, const real *bias, int64_t n);
    // g = (add ? g : 0) + d norm / d x * dn; dweight += dn * xhat, dbias (may be NULL) += dn
    void (*norm_gradient)(real *g, real *dweight, real *dbias, const real *dn, const real *x, NormStatistics s,
                          const real *weight, int64_t n, bool centred, bool add);

    void (*gelu)(real *g, const real *h, int64_t n);
    void (*gelu_gradient)(real *dh, const real *dg, const real *h, int64_t n); // dh = dg * gelu'(h)

    void (*swiglu)(real *g, const real *gate, const real *up, int64_t n); // g = silu(gate) * up
    void (*swiglu_gradient)(real *dgate, real *dup, const real *dg, const real *gate, const real *up, int64_t n);

    // p = exp(scale * x - shift); returns the sum of p. p may be x.
    real (*exponentials)(real *p, const real *x, real scale, real shift, int64_t n);
    // p = p * (dp - delta) * scale, the gradient of scores from probabilities
    void (*score_gradient)(real *p, const real *dp, real delta, real scale, int64_t n);

    // m, v, p of one block of a parameter; decay = lr * weight_decay or 0
    void (*adamw)(real *p, real *m, real *v, const real *g, const AdamwStep *s, real decay, int64_t n);
} CpuKernels;

// The variants that this machine can run, the best first; returns their number.
#define CPU_VARIANTS 3
int cpu_kernels_supported(const CpuKernels *list[CPU_VARIANTS]);
