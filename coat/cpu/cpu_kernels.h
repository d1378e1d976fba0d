// Declares the CPU backend's inner loops, which are functions on contiguous rows of `real`. They are compiled once per
// instruction set, and the best set that the machine supports is selected at run time.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "numerics/formats.h"

// Scalars of an AdamW step that are the same for all parameters.
typedef struct {
    real lr, beta1, beta2, eps;
    real correction1, correction2; // bias corrections of the moments: 1 / (1 - beta^t)
    real clip;                     // factor that multiplies every gradient element, for gradient clipping
} AdamwStep;

// Mean and reciprocal standard deviation of a normalized row; mean is 0 for RMSNorm.
typedef struct {
    real mean, rstd;
} NormStatistics;

// Returns the distance in elements between two packed panels of a matmul operand. The gap of 16 elements after a panel
// prevents cache conflicts, which panels at a distance of a multiple of 4096 bytes would have.
static inline int64_t panel_stride(int64_t width, int64_t depth) {
    return width * depth + 16;
}

// Inner loops of matmuls, implemented in cpu_matmul_body.h.
typedef struct {
    int rows, columns; // number of rows of a panel of A, and of columns of a panel of B
    // Computes c (m, n) = (add ? c : 0) + a b from packed panels. First rounds m up to a multiple of rows / 3, and n up
    // to a multiple of columns. Elements of c outside (m, n) are therefore overwritten, too.
    void (*multiply)(real *c, int64_t ldc, const real *a, const real *b, int64_t m, int64_t n, int64_t depth, bool add);
    // Packs one panel from `rows` rows of x, whose columns are the summation index: out[k * width + r] = x[r * ld + k]
    // for k < depth; 0 for r >= rows. width: the panel's full number of rows or columns.
    void (*transpose_a)(real *out, const real *x, int64_t ld, int64_t rows, int64_t depth);
    void (*transpose_b)(real *out, const real *x, int64_t ld, int64_t rows, int64_t depth);
    // Packs one row x of `count` elements into consecutive panels of `depth` rows, for operands whose row number is the
    // summation index. Fills the rest of the row in the last panel with zeros. out: address of the row in the first
    // panel.
    void (*deal_a)(real *out, const real *x, int64_t count, int64_t depth);
    void (*deal_b)(real *out, const real *x, int64_t count, int64_t depth);
} PanelKernels;

typedef struct {
    const char *name;
    const PanelKernels *panels;

    void (*decode_bf16)(real *out, const uint16_t *x, int64_t n);
    void (*encode_bf16)(uint16_t *out, const real *x, int64_t n); // rounds to nearest even
    // out = FP8 value * scale
    void (*decode_fp8)(real *out, const uint8_t *codes, int64_t n, float scale, Format format);
    void (*encode_fp8)(uint8_t *codes, const real *x, int64_t n, float r, Format format); // codes = cast(x * r)
    // codes = e5m2_encode_stochastic(x * r, random)
    void (*encode_stochastic)(uint8_t *codes, const real *x, const uint8_t *random, int64_t n, float r);
    uint32_t (*amax_bits)(const real *x, int64_t n); // returns the FP32 bits of max |x|; 0 if n is 0
    // Decode and encode E4M3 with one BF16 scale per `group` elements; the last group may be shorter. encode_groups
    // returns the FP32 bits of the amax of all n elements.
    void (*decode_groups)(real *out, const uint8_t *codes, const uint16_t *scales, int64_t n, int group);
    uint32_t (*encode_groups)(uint8_t *codes, uint16_t *scales, const real *x, int64_t n, int group);
    void (*add)(real *acc, const real *x, int64_t n); // computes acc += x
    real (*dot)(const real *x, const real *y, int64_t n);
    real (*maximum)(const real *x, int64_t n); // returns the largest element, ignoring NaN; -inf if n is 0
    double (*sum_of_squares)(const real *x, int64_t n);

    // Returns mean: the row's mean, or 0 if centred is false (RMSNorm); rstd: 1 / sqrt(mean of (x - mean)^2 + eps).
    NormStatistics (*norm_statistics)(const real *x, int64_t n, real eps, bool centred);
    // Computes the norm: out = (x - mean) * rstd * weight + bias. bias may be NULL.
    void (*norm_apply)(real *out, const real *x, NormStatistics s, const real *weight, const real *bias, int64_t n);
    // Computes a norm's backward: g = (add ? g : 0) + dn * d norm / d x; dweight += dn * xhat; dbias += dn, unless
    // dbias is NULL.
    void (*norm_gradient)(real *g, real *dweight, real *dbias, const real *dn, const real *x, NormStatistics s,
                          const real *weight, int64_t n, bool centred, bool add);

    // Compute g = gelu(h) and dh = dg * gelu'(h). kind: ACT_GELU_TANH, _QUICK or _ERF
    void (*gelu)(real *g, const real *h, int64_t n, ActivationKind kind);
    void (*gelu_gradient)(real *dh, const real *dg, const real *h, int64_t n, ActivationKind kind);

    void (*swiglu)(real *g, const real *gate, const real *up, int64_t n); // computes g = silu(gate) * up
    void (*swiglu_gradient)(real *dgate, real *dup, const real *dg, const real *gate, const real *up, int64_t n);

    // Computes p = exp(scale * x - shift) and returns the sum of p. p may be x.
    real (*exponentials)(real *p, const real *x, real scale, real shift, int64_t n);
    // Replaces attention's probabilities p with the gradient of the scores: p * (dp - delta) * scale. dp: gradient of
    // the probabilities.
    void (*score_gradient)(real *p, const real *dp, real delta, real scale, int64_t n);

    // Runs one AdamW step on n elements of a parameter p with moments m and v. decay: lr * weight_decay, or 0.
    void (*adamw)(real *p, real *m, real *v, const real *g, const AdamwStep *s, real decay, int64_t n);
} CpuKernels;

#define CPU_VARIANTS 3
// Lists the kernel variants that this machine supports, best first. Returns their number.
int cpu_kernels_supported(const CpuKernels *list[CPU_VARIANTS]);
