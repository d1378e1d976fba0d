// Measures the drift of 8-bit moments from FP32 moments over 10,000 updates on both backends. Gradients are constant,
// alternate in sign, occur once in 100 steps, or are noise like most gradients in training.
#pragma once
#include <math.h>
#include <stdbool.h>

#include "coat/numerics/rng.h"

enum { STEPS = 10000, MEASURED = 1000 };

typedef enum { CONSTANT, ALTERNATING, RARE, NOISE, PATTERNS } Pattern;

static const char *const pattern_names[PATTERNS] = {"constant", "alternating", "1 in 100", "noise"};

// Returns the magnitude of element i's gradient. Magnitudes differ by a factor of about e^spread.
static inline float drift_size(double spread, int i) {
    return 1e-4f * (float)exp(spread * (double)rng_normal(3, 1, (uint64_t)i));
}

static inline float drift_gradient(Pattern pattern, float size, int64_t t, int i) {
    switch (pattern) {
    case CONSTANT: return size;
    case ALTERNATING: return t % 2 ? size : -size;
    case RARE: return (t + i * 37) % 100 == 0 ? size : 0.0f; // the nonzero step differs from element to element
    default: return size * (float)rng_normal(3, 2 + (uint64_t)(t % 100), (uint64_t)i);
    }
}

typedef struct {
    double error, total; // squared errors of the updates, and squared updates of FP32 moments (sums)
    double along;        // inner product of the updates with 8-bit moments and the updates with FP32 moments
    double v_error;      // sum of the signed relative errors of v
    double count;
} DriftSums;

typedef struct {
    double v_mean; // mean signed relative error of the 8-bit second moment v
    double update; // root mean square error of the update, relative to the update with FP32 moments
    double rate;   // update's component along the update of FP32 moments, minus 1: relative change of the learning rate
} Drift;

static inline void drift_add(DriftSums *sums, double update, double update_exact, double v, double v_exact) {
    sums->error += (update - update_exact) * (update - update_exact);
    sums->total += update_exact * update_exact;
    sums->along += update * update_exact;
    sums->v_error += v / v_exact - 1;
    sums->count++;
}

static inline Drift drift_of(const DriftSums *sums) {
    Drift drift = {sums->v_error / sums->count, sqrt(sums->error / sums->total), sums->along / sums->total - 1};
    return drift;
}

// True if the drift of 8-bit from FP32 moments is within the limits for training (nearest rounding, beta2 = 0.95). If
// gradients are noise, a rounding error of v persists for about 1 / (1 - beta2) steps. If v is unbiased with relative
// variance s, 1 / sqrt(v) has relative variance s / 4, and its mean is too large by the fraction 3/8 s.
static inline bool drift_is_small(Drift drift, Pattern pattern) {
    if (pattern == NOISE)
        return fabs(drift.v_mean) < 0.03 && fabs(drift.rate) < 0.02 &&
               fabs(drift.rate - 1.5 * drift.update * drift.update) < 0.01 && drift.update < 0.05;
    return fabs(drift.v_mean) < 0.01 && fabs(drift.rate) < 0.01 && drift.update < (pattern == RARE ? 0.08 : 0.03);
}
