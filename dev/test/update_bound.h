// Bound for the distance between the CPU's and the GPU's parameters after an AdamW step (COAT, section 4) from the same
// 8-bit states, gradients and parameters. Each element has its own bound, derived from the arithmetic of both backends.
//
// Errors. The CPU rounds every FP32 operation to nearest: a relative error of u = 2^-24. The GPU does the same (it is
// compiled with -fmad=false), except for its special functions, whose errors PTX documents: lg2 2^-22 (absolute if
// |log2| < 1, otherwise relative), ex2 2^-22, square root and reciprocal 2^-23. The CPU's log2 and exp2
// (coat/numerics/moments.h) have errors of 2 u; log2's is absolute below 1, too. d(x) is the distance between CPU's and
// GPU's x. Errors of second order are below a thousandth of the first-order terms and are ignored.
//
// Decoding |x| = a 2^E, E = L / k, L = log2(code / F), where F is the largest FP8 value:
//   d(L) <= (4 + 2) u max(1, |L|)
//   d(E) <= d(L) / k + 2 u |E|
//   d(x) <= |x| (ln 2 d(E) + (4 + 2) u n + 2 u n)      n powers and n multiplications: 1, or 3 for a deep group
// Moments. CPU and GPU have the same bits of the clipped gradient g, of (1 - beta2) g, and of new moments whose old
// ones are 0. Otherwise the GPU decodes with beta a instead of a, and uses a fused multiply-add:
//   d(m') <= beta1 (d(m) + 2 u |m|) + u |(1 - beta1) g| + 2 u |m'|
//   d(v') <= beta2 (d(v) + 2 u v) + u (1 - beta2) g^2 + 2 u v'
// If beta1 m and (1 - beta1) g nearly cancel, d(m') / |m'| is unbounded, but d(m') is not. Therefore the bound is
// computed per element.
// Divisor D = s + eps, s = sqrt(v' c2), with the bias correction c2. On the CPU, c2, the
// multiplication, the root and the sum are each rounded (u). The GPU computes D / sqrt(c2). Its errors are 2 u for the
// root, which is 0 for subnormal numbers, u for eps / sqrt(c2), which is at least 2^-63, and u for the sum:
//   d(s) <= s (d(v') / v' + u + u) / 2 + s (u + 2 u) + 2^-63 sqrt(c2)
//   d(D) <= d(s) + 3 u D
// Update U = lr c1 m' / D. The CPU rounds three times, plus c1. The GPU rounds lr c1 / sqrt(c2), a multiplication and a
// reciprocal:
//   d(U) <= lr c1 / D d(m') + |U| (d(D) / D + (4 + 2 + 2) u)
// Parameter p' = p - U - decay p. The CPU rounds three times, the GPU twice:
//   d(p') <= d(U) + 2 u |p - U| + u |decay p| + 2 u |p'|
#pragma once
#include "coat/ops.h"

#include <math.h>

#include "coat/numerics/moments.h"

#define BOUND_U 0x1p-24
#define BOUND_SECOND_ORDER (1 + 0x1p-10)
#define BOUND_TINY 0x1p-146 // absolute rounding error of subnormal FP32 numbers

// A computed value, and the allowed distance between the CPU's and the GPU's results.
typedef struct {
    double value, error;
} Bounded;

// Returns the value of an FP8 moment.
static inline Bounded decode_bound(uint8_t code, MomentGroup group, Format format) {
    Bounded x;
    x.value = (double)moment_decode(code, group, format);
    x.error = 0;
    if (x.value == 0) return x;
    const double L = fabs((double)code_log2(code, format)), k_inv = (double)group.k_inv, steps = group.deep ? 3 : 1;
    const double log2_error = 6 * BOUND_U * (L > 1 ? L : 1);
    const double exponent_error = log2_error * k_inv + 2 * BOUND_U * L * k_inv;
    x.error = fabs(x.value) * (0.6931471805599453 * exponent_error + 8 * BOUND_U * steps) + BOUND_TINY;
    return x;
}

// Scalars of an AdamW step, which CPU and GPU compute from its StepState.
typedef struct {
    double lr, beta1, beta2, eps, weight_decay, clip, c1, c2;
} BoundStep;

static inline BoundStep bound_step(const StepState *s, int64_t t) {
    BoundStep b;
    const bool clip = s->grad_clip > 0 && s->grad_norm > s->grad_clip;
    b.lr = (double)s->lr;
    b.beta1 = (double)s->beta1;
    b.beta2 = (double)s->beta2;
    b.eps = (double)s->eps;
    b.weight_decay = (double)s->weight_decay;
    b.clip = clip ? (double)(s->grad_clip / s->grad_norm) : 1.0;
    b.c1 = 1 / (1 - pow(b.beta1, (double)t));
    b.c2 = 1 / (1 - pow(b.beta2, (double)t));
    return b;
}

// Returns an element of the parameter after an AdamW step, before it is rounded to its storage format, and its bound.
static inline Bounded update_bound(const BoundStep *s, bool decays, double p, double gradient, Bounded m, Bounded v) {
    const double u = BOUND_U, g = gradient * s->clip, decay = decays ? s->lr * s->weight_decay : 0;
    const double g_of_m = (1 - s->beta1) * g, g_of_v = (1 - s->beta2) * g * g;
    const double fresh_m = s->beta1 * m.value + g_of_m, fresh_v = s->beta2 * v.value + g_of_v;
    const double m_error = m.value == 0 ? 0
                                        : s->beta1 * (m.error + 2 * u * fabs(m.value)) + u * fabs(g_of_m) +
                                              2 * u * fabs(fresh_m) + BOUND_TINY;
    const double v_error =
        v.value == 0 ? 0 : s->beta2 * (v.error + 2 * u * v.value) + u * g_of_v + 2 * u * fresh_v + BOUND_TINY;
    const double root = sqrt(fresh_v * s->c2), divisor = root + s->eps;
    const double root_error =
        (fresh_v == 0 ? 0 : root * ((v_error / fresh_v + 2 * u) / 2 + 3 * u)) + 0x1p-63 * sqrt(s->c2);
    const double divisor_error = root_error + 3 * u * divisor;
    const double update = s->lr * s->c1 * fresh_m / divisor;
    const double update_error = s->lr * s->c1 / divisor * m_error + fabs(update) * (divisor_error / divisor + 8 * u);
    Bounded after;
    after.value = p - update - decay * p;
    after.error = update_error + 2 * u * fabs(p - update) + u * fabs(decay * p) + 2 * u * fabs(after.value);
    after.error = after.error * BOUND_SECOND_ORDER + BOUND_TINY;
    return after;
}

// Returns the distance between neighboring BF16 numbers near x.
static inline double bf16_step(float x) {
    const uint32_t exponent = float_bits(x) >> 23 & 0xffu;
    return ldexp(1.0, (int)(exponent == 0 ? 1 : exponent) - 127 - 7);
}

// Returns the fraction of the bound that the difference uses; 1 or more means that CPU and GPU disagree. Stochastic
// rounding to BF16 uses the same random number on CPU and GPU, so results rarely differ, and then by one BF16 step.
// Adds the expected number of such differences to *expected.
static inline double bound_used(float want, float have, double bound, bool stochastic_bf16, double *expected) {
    const double apart = fabs((double)want - (double)have);
    if (float_bits(want) == float_bits(have)) {
        if (stochastic_bf16) *expected += fmin(1.0, bound / bf16_step(want));
        return 0;
    }
    if (!(apart < (double)INFINITY)) return (double)INFINITY;
    if (!stochastic_bf16) return apart / bound;
    const double step = fmax(bf16_step(want), bf16_step(have));
    *expected += fmin(1.0, bound / step);
    return apart <= step ? 0.5 : apart / (step + bound);
}
