// Groups of values with which both backends' 8-bit moments (COAT, section 4) are tested, and the definition of 8-bit
// moments in double precision.
#pragma once
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coat/numerics/moments.h"
#include "coat/numerics/quantize.h"

#define GROUP 128 // number of elements that share the scale of an 8-bit moment
#define WHY 160   // size of the buffer for a text that explains a failure

// --- groups of values that are difficult to store in 8-bit moments -------------------------------------------------

// Fills x with n values exp(spread * z), where z is normally distributed. With `sign`, signs are random.
static inline void lognormal(float *x, int n, double spread, bool sign, uint64_t stream) {
    for (int i = 0; i < n; i++) {
        double value = exp(spread * (double)rng_normal(11, stream, (uint64_t)i));
        x[i] = (float)(sign && rng_hash(12, stream, (uint64_t)i) & 1 ? -value : value);
    }
}

// Fills x with lognormal values, all multiplied by one random power of two. `s` and `g` select the random numbers.
static inline void group_scaled(float x[GROUP], double spread, uint64_t s, uint64_t g) {
    float scale = exp2f(60 * rng_uniform(13, s, g) - 30);
    lognormal(x, GROUP, spread, true, g);
    for (int i = 0; i < GROUP; i++) x[i] *= scale;
}

enum { SINGLE_VALUES = 6, SINGLE_PLACES = 8 };
static const float single_values[SINGLE_VALUES] = {1.0f, 0.1f, 3e-30f, 1e-42f, 3e38f, 1e-20f};

static inline void group_constant(float x[GROUP], float value) {
    for (int i = 0; i < GROUP; i++) x[i] = i % 3 ? value : -value;
}

// Fills x with zeros and one element `value` at index 0, 1, 64 or 127 (selected by place / 2). Odd `place` negates the
// value.
static inline void group_single(float x[GROUP], float value, int place) {
    static const int places[] = {0, 1, 64, GROUP - 1};
    memset(x, 0, GROUP * sizeof *x);
    x[places[place / 2]] = place % 2 ? -value : value;
}

// Fills x with lognormal values of random signs and replaces a third of them by zeros of both signs.
static inline void group_sprinkled(float x[GROUP], uint64_t g) {
    lognormal(x, GROUP, 1, true, g);
    for (int i = 0; i < GROUP; i++)
        if (rng_hash(14, g, (uint64_t)i) % 3 == 0) x[i] = i % 2 ? 0.0f : -0.0f;
}

// Fills x with values whose magnitudes fall from 1 to 2^-bits by equal factors.
static inline void group_range(float x[GROUP], int bits) {
    for (int i = 0; i < GROUP; i++) x[i] = (i % 2 ? 1.0f : -1.0f) * exp2f(-(float)bits * (float)i / (GROUP - 1));
}

// Fills x with values of only two magnitudes, 1e38 and 1e-38, a ratio of 2^252.
static inline void group_ends(float x[GROUP]) {
    for (int i = 0; i < GROUP; i++) x[i] = i % 2 ? 1e38f : -1e-38f;
}

// Fills x with values of all FP32 exponents, including subnormals.
static inline void group_all_exponents(float x[GROUP]) {
    for (int i = 0; i < GROUP; i++) x[i] = ldexpf(1.0f + (float)i / GROUP, 127 - i * 276 / (GROUP - 1));
}
static inline void group_subnormal(float x[GROUP]) {
    for (int i = 0; i < GROUP; i++) x[i] = bits_float(1 + (uint32_t)(rng_hash(15, 0, (uint64_t)i) % 0x7fffffu));
}

// --- definition of 8-bit moments, in double precision --------------------------------------------------------------

// Returns 16 k, where k is the exponent of the 8-bit moments before it is rounded down to sixteenths. Returns infinity
// if all nonzero elements have the same magnitude.
static inline double exponent_exact(const float *x, int n, Format format) {
    double a = 0, b = INFINITY, largest = (double)moment_largest(format), smallest = (double)fp8_decode(format, 1);
    for (int i = 0; i < n; i++) {
        double magnitude = fabs((double)x[i]);
        if (magnitude > a) a = magnitude;
        if (magnitude > 0 && magnitude < b) b = magnitude;
    }
    return 16 * log2(largest / (2 * smallest)) / (log2(a) - log2(b)) + 0.02;
}

// True if `code` is the FP8 value nearest to p = F (|x| / a)^k, where F is the largest stored FP8 value.
//   E5M2 second moments: p is multiplied by 1 + 0.0042 (1 - 1/k) or, if that is larger, by 0.95.
//   A nonzero second moment may be stored as the smallest FP8 value if 0 is nearer.
//   If p is within 1e-4 of the midpoint of two FP8 values, both are accepted. On the GPU, the error of its logarithms
//       (2^-22) is added to this tolerance.
static inline bool code_follows(float x, uint8_t code, float a, uint8_t k_16ths, Format format, bool second) {
    const int magnitude = code & 0x7f;
    if ((code >> 7) != (!second && signbit(x))) return false;
    if (x == 0.0f) return magnitude == 0;
    const double largest = (double)moment_largest(format), k = k_16ths / 16.0;
    const double log2_x = log2(fabs((double)x)), log2_a = log2((double)a);
    const double raise = second && format == FMT_E5M2 ? fmax(1 + 0.0042 * (1 - 1 / k), 0.95) : 1;
    const double position = largest * exp2(k * (log2_x - log2_a)) * raise;
#ifdef __CUDACC__
    const double hardware = k * (fabs(log2_x) + fabs(log2_a) + 2) * 0x1p-22;
#else
    const double hardware = 0;
#endif
    const double slack = position * (1e-4 + hardware);
    const double here = (double)fp8_decode(format, (uint8_t)magnitude);
    if (magnitude > (second ? 1 : 0))
        if (position < ((double)fp8_decode(format, (uint8_t)(magnitude - 1)) + here) / 2 - slack) return false;
    if (magnitude < moment_max_code(format))
        if (position > (here + (double)fp8_decode(format, (uint8_t)(magnitude + 1))) / 2 + slack) return false;
    if (magnitude == 0) return true;
    // `code` must decode to a (code / F)^(1/k).
    const double decoded = (double)moment_decode(code, moment_group(a, k_16ths, format), format);
    const double exact = exp2(log2_a + log2(here / largest) / k);
    return fabs(fabs(decoded) - exact) <= 5e-5 * exact + 0x1p-149 && decoded != 0 && (decoded < 0) == (code >> 7);
}

// True if codes, a and k are the 8-bit moments of the n elements of x. Without `expand`, k must be 1. If false, `why`
// explains what differs.
static inline bool group_follows(const float *x, int n, const uint8_t *codes, float a, uint8_t k, Format format,
                                 bool expand, bool second, char why[WHY]) {
    float largest = 0;
    for (int i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    const double exact = largest == 0.0f || !expand ? 16.5 : exponent_exact(x, n, format); // a k that rounds down to 16
    const int least = (int)fmin(255, fmax(1, floor(exact - 0.01))), most = (int)fmin(255, fmax(1, floor(exact + 0.01)));
    if (a != largest) {
        snprintf(why, WHY, "the maximum is stored as %g, not %g", (double)a, (double)largest);
        return false;
    }
    if (k < least || k > most) {
        snprintf(why, WHY, "k is %d / 16, not %d to %d", k, least, most);
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (code_follows(x[i], codes[i], a, k, format, second)) continue;
        snprintf(why, WHY, "element %d, %.9g, is stored as %02x where a is %.9g and k %d / 16", i, (double)x[i],
                 codes[i], (double)a, k);
        return false;
    }
    return true;
}

// --- gradients and initial parameters of a test update -------------------------------------------------------------

// Returns the gradient of element i in step t. Its magnitude varies by orders of magnitude; 200 of every 4096 are 0.
static inline float update_gradient(uint64_t t, int i) {
    const float scale = 1e-3f * exp2f(8 * rng_uniform(32, 0, (uint64_t)i) - 4);
    return i % 4096 < 200 ? 0.0f : scale * rng_normal(33, t, (uint64_t)i);
}
static inline float update_start(int i) {
    return 0.02f * rng_normal(31, 0, (uint64_t)i);
}

// True if `after` is the correct parameter after the first step from zero states (lr 1e-3, decay 0.1, eps 1e-8). The
// step is lr * sign(g), because the update uses moments before they are rounded. A parameter without gradient only
// decays.
static inline bool first_step_follows(float before, float g, float after) {
    const float expected = before - 1e-3f * ((g > 0) - (g < 0) * 1.0f) - 1e-4f * before;
    return fabsf(after - expected) < 1e-6f + 1e-3f * 1e-8f / (fabsf(g) + 1e-30f) * (g != 0);
}

// --- relative error of stored moments ------------------------------------------------------------------------------

// Returns the mean relative error |y / x - 1| over the nonzero elements of x.
static inline double relative_error(const float *x, const float *y, int n) {
    double sum = 0;
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (x[i] == 0.0f) continue;
        sum += fabs((double)y[i] - (double)x[i]) / fabs((double)x[i]);
        count++;
    }
    return count ? sum / count : 0;
}

enum { SPREADS = 4, SPREAD_GROUPS = 500, SPREAD_STREAM = 1000 };
#define SPREAD_MARGIN 0.04 // relative tolerance of the mean errors in spread_errors

// Expected mean relative errors, in percent, of SPREAD_GROUPS lognormal groups in E4M3, with and without expansion.
typedef struct {
    double spread, expanded, plain;
} SpreadError;

static const SpreadError spread_errors[SPREADS] = {{0.1, 0.14, 2.3}, {1, 1.07, 2.23}, {2, 2.13, 2.32}, {4, 4.35, 31.9}};
