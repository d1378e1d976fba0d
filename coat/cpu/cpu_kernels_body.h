// Defines the CPU backend's inner loops. cpu_kernels.c includes this file once per instruction set; VARIANT(name) gives
// each copy a separate name. The compiler vectorizes element-wise loops. Sums use LANES independent partial sums that
// are added in a fixed order. The order of a sum therefore depends only on the number of elements.
#ifdef VARIANT

typedef real VARIANT(vector) __attribute__((vector_size(LANES * sizeof(real))));

#define INLINE static inline __attribute__((always_inline))

INLINE VARIANT(vector) VARIANT(load)(const real *x) {
    VARIANT(vector) v;
    memcpy(&v, x, sizeof v);
    return v;
}

INLINE real VARIANT(sum_lanes)(const VARIANT(vector) * acc) {
    real lanes[LANES];
    memcpy(lanes, acc, sizeof lanes);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

static void VARIANT(decode_bf16)(real *restrict out, const uint16_t *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = (real)bf16_decode(x[i]);
}

// Encodes n values to BF16 with the same result as bf16_encode(), but without branches.
static void VARIANT(encode_bf16)(uint16_t *restrict out, const real *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = float_bits((float)x[i]);
        uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
        out[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

#include "cpu_fp8_body.h"

static void VARIANT(add)(real *restrict acc, const real *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) acc[i] += x[i];
}

static real VARIANT(dot)(const real *x, const real *y, int64_t n) {
    VARIANT(vector) acc = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) acc += VARIANT(load)(x + i) * VARIANT(load)(y + i);
    real tail = 0;
    for (; i < n; i++) tail += x[i] * y[i];
    return VARIANT(sum_lanes)(&acc) + tail;
}

static real VARIANT(maximum)(const real *x, int64_t n) {
    real lanes[LANES], best = -(real)INFINITY;
    for (int j = 0; j < LANES; j++) lanes[j] = best;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    for (int j = 0; j < LANES; j++) best = lanes[j] > best ? lanes[j] : best;
    return best;
}

static double VARIANT(sum_of_squares)(const real *x, int64_t n) {
    double lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += (double)x[i + j] * (double)x[i + j];
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

static NormStatistics VARIANT(norm_statistics)(const real *x, int64_t n, real eps, bool centred) {
    NormStatistics s = {0, 0};
    int64_t i = 0;
    real tail = 0;
    VARIANT(vector) acc = {0};
    if (centred) {
        for (; i + LANES <= n; i += LANES) acc += VARIANT(load)(x + i);
        for (; i < n; i++) tail += x[i];
        s.mean = (VARIANT(sum_lanes)(&acc) + tail) / (real)n;
        tail = 0;
    }
    VARIANT(vector) squares = {0};
    for (i = 0; i + LANES <= n; i += LANES) {
        VARIANT(vector) d = VARIANT(load)(x + i) - s.mean;
        squares += d * d;
    }
    for (; i < n; i++) tail += (x[i] - s.mean) * (x[i] - s.mean);
    s.rstd = 1 / real_sqrt((VARIANT(sum_lanes)(&squares) + tail) / (real)n + eps);
    return s;
}

static void VARIANT(norm_apply)(real *restrict out, const real *restrict x, NormStatistics s,
                                const real *restrict weight, const real *restrict bias, int64_t n) {
    if (bias)
        for (int64_t i = 0; i < n; i++) out[i] = (x[i] - s.mean) * s.rstd * weight[i] + bias[i];
    else
        for (int64_t i = 0; i < n; i++) out[i] = (x[i] - s.mean) * s.rstd * weight[i];
}

static void VARIANT(norm_gradient)(real *restrict g, real *restrict dweight, real *restrict dbias,
                                   const real *restrict dn, const real *restrict x, NormStatistics s,
                                   const real *restrict weight, int64_t n, bool centred, bool add) {
    VARIANT(vector) sum = {0}, dot = {0}; // partial sums of d = dn * weight, and of d * xhat
    real sum_tail = 0, dot_tail = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        VARIANT(vector) d = VARIANT(load)(dn + i) * VARIANT(load)(weight + i);
        sum += d;
        dot += d * ((VARIANT(load)(x + i) - s.mean) * s.rstd);
    }
    for (; i < n; i++) {
        real d = dn[i] * weight[i];
        sum_tail += d;
        dot_tail += d * ((x[i] - s.mean) * s.rstd);
    }
    real mean_d = centred ? (VARIANT(sum_lanes)(&sum) + sum_tail) / (real)n : 0;
    real mean_dot = (VARIANT(sum_lanes)(&dot) + dot_tail) / (real)n;
    if (!add) memset(g, 0, (size_t)n * sizeof(real));
    for (i = 0; i < n; i++) {
        real xhat = (x[i] - s.mean) * s.rstd;
        g[i] += s.rstd * (dn[i] * weight[i] - mean_d - xhat * mean_dot);
        dweight[i] += dn[i] * xhat;
    }
    if (dbias) VARIANT(add)(dbias, dn, n);
}

#ifdef COAT_DOUBLE
INLINE real VARIANT(exponential)(real x) {
    return exp(x);
}
#else
// Returns exp(x) to within 2 ulp, without branches. Splits x = n ln 2 + r with |r| <= ln 2 / 2, then multiplies a
// polynomial in r by 2^n. Returns 0 if x < -87.3365 (a result below 2^-126), and infinity if x > 88.
INLINE float VARIANT(exponential)(float x) {
    // round_shift is 1.5 * 2^23. Adding round_shift to a float rounds the float to an integer.
    const float lowest = -87.3365f, highest = 88.0f, round_shift = 12582912.0f;
    float clamped = x < lowest ? lowest : x;
    clamped = clamped > highest ? highest : clamped;
    float shifted = clamped * 1.44269504088896341f + round_shift;
    float n = shifted - round_shift;
    float r = clamped - n * 0.693359375f; // first part of ln 2, chosen so that n times this part is exact
    r = r - n * -2.12194440054690581e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    float power = bits_float((float_bits(shifted) + (127u - 0x4b400000u)) << 23); // computes 2^n
    float result = x > highest ? INFINITY : p * power;
    return x < lowest ? 0.0f : result;
}
#endif

// Coefficients of GELU as h / (1 + exp(-u)) with u = slope * (h + cubic h^3), which needs one exponential:
//   tanh    equals h (1 + tanh(u / 2)) / 2 with slope 2 sqrt(2/pi), but has no cancellation if the tanh is near -1
//   quick   equals h * sigmoid(1.702 h)
typedef struct {
    real slope, cubic;
} VARIANT(GeluSigmoid);

INLINE VARIANT(GeluSigmoid) VARIANT(gelu_sigmoid)(ActivationKind kind) {
    const VARIANT(GeluSigmoid) tanh_form = {(real)1.59576912160573071176, (real)0.044715}, quick = {(real)1.702, 0};
    return kind == ACT_GELU_QUICK ? quick : tanh_form;
}

// Returns the standard normal distribution function of x.
INLINE real VARIANT(normal_cdf)(real x) {
    const real root_half = (real)0.70710678118654752440;
#ifdef COAT_DOUBLE
    return erfc(-x * root_half) / 2;
#else
    return erfcf(-x * root_half) / 2;
#endif
}

static void VARIANT(gelu)(real *g, const real *h, int64_t n, ActivationKind kind) {
    const VARIANT(GeluSigmoid) u = VARIANT(gelu_sigmoid)(kind);
    if (kind == ACT_GELU_ERF) {
        for (int64_t i = 0; i < n; i++) g[i] = h[i] * VARIANT(normal_cdf)(h[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        real x = h[i];
        g[i] = x / (1 + VARIANT(exponential)(-u.slope * (x + u.cubic * x * x * x)));
    }
}

static void VARIANT(gelu_gradient)(real *dh, const real *dg, const real *h, int64_t n, ActivationKind kind) {
    const VARIANT(GeluSigmoid) u = VARIANT(gelu_sigmoid)(kind);
    const real density = (real)0.39894228040143267794; // 1 / sqrt(2 pi)
    for (int64_t i = 0; kind == ACT_GELU_ERF && i < n; i++) {
        real x = h[i];
        dh[i] = dg[i] * (VARIANT(normal_cdf)(x) + x * density * VARIANT(exponential)(-x * x / 2));
    }
    for (int64_t i = 0; kind != ACT_GELU_ERF && i < n; i++) {
        real x = h[i];
        real exponent = -u.slope * (x + u.cubic * x * x * x);
        real e = VARIANT(exponential)(exponent > 80 ? 80 : exponent); // limited so that e * s stays finite
        real s = 1 / (1 + e), slope = u.slope * (1 + 3 * u.cubic * x * x);
        dh[i] = dg[i] * (s + x * slope * (s * (e * s)));
    }
}

static void VARIANT(swiglu)(real *g, const real *gate, const real *up, int64_t n) {
    for (int64_t i = 0; i < n; i++) g[i] = gate[i] / (1 + VARIANT(exponential)(-gate[i])) * up[i];
}

static void VARIANT(swiglu_gradient)(real *dgate, real *dup, const real *dg, const real *gate, const real *up,
                                     int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        // limited so that e * s stays finite; below -80, the gradients are negligible
        real x = gate[i] < -80 ? -80 : gate[i], d = dg[i], u = up[i];
        real e = VARIANT(exponential)(-x);
        real s = 1 / (1 + e);
        dgate[i] = d * u * (s + x * (s * (e * s)));
        dup[i] = d * (x * s);
    }
}

static real VARIANT(exponentials)(real *p, const real *x, real scale, real shift, int64_t n) {
    VARIANT(vector) acc = {0};
    real tail = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) p[i + j] = VARIANT(exponential)(scale * x[i + j] - shift);
        acc += VARIANT(load)(p + i);
    }
    for (; i < n; i++) {
        p[i] = VARIANT(exponential)(scale * x[i] - shift);
        tail += p[i];
    }
    return VARIANT(sum_lanes)(&acc) + tail;
}

static void VARIANT(score_gradient)(real *restrict p, const real *restrict dp, real delta, real scale, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = p[i] * (dp[i] - delta) * scale;
}

static void VARIANT(adamw)(real *restrict p, real *restrict m, real *restrict v, const real *restrict g,
                           const AdamwStep *s, real decay, int64_t n) {
    const AdamwStep step = *s;
    for (int64_t i = 0; i < n; i++) {
        real grad = g[i] * step.clip;
        real mi = step.beta1 * m[i] + (1 - step.beta1) * grad;
        real vi = step.beta2 * v[i] + (1 - step.beta2) * grad * grad;
        m[i] = mi;
        v[i] = vi;
        real update = mi * step.correction1 / (real_sqrt(vi * step.correction2) + step.eps);
        p[i] = p[i] - step.lr * update - decay * p[i];
    }
}

#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast") // fp-contract=fast lets GCC fuse multiply and add if the CPU has FMA
#include "cpu_matmul_body.h"
#pragma GCC pop_options

static const CpuKernels VARIANT(table) = {
    VARIANT_NAME,
    &VARIANT(panels),
    VARIANT(decode_bf16),
    VARIANT(encode_bf16),
    VARIANT(decode_fp8),
    VARIANT(encode_fp8),
    VARIANT(encode_stochastic),
    VARIANT(amax_bits),
    VARIANT(decode_groups),
    VARIANT(encode_groups),
    VARIANT(add),
    VARIANT(dot),
    VARIANT(maximum),
    VARIANT(sum_of_squares),
    VARIANT(norm_statistics),
    VARIANT(norm_apply),
    VARIANT(norm_gradient),
    VARIANT(gelu),
    VARIANT(gelu_gradient),
    VARIANT(swiglu),
    VARIANT(swiglu_gradient),
    VARIANT(exponentials),
    VARIANT(score_gradient),
    VARIANT(adamw),
};

#undef INLINE
#endif
