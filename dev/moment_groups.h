// For the tests of the 8-bit moments: one group as it is stored, and groups of known spread.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "coat/cpu/cpu_moments.h"
#include "coat/moments.h"

enum { GROUP = 128 };

typedef struct {
    uint8_t codes[GROUP], k;
    float a;
} Stored;

static inline Tensor tensor_of(Stored *s, int n, Format format) {
    Tensor t = {s->codes, &s->a, &s->k, NULL, 1, n, n, format, SCALE_EXPAND, GROUP, false};
    return t;
}

static inline bool store(Stored *s, const float *x, int n, Format format, const MomentStore *how) {
    memset(s, 0xa5, sizeof *s);
    return moments_store(tensor_of(s, n, format), 0, n, x, how, 0);
}

static inline void load(const Stored *s, float *x, int n, Format format) {
    Stored copy = *s;
    moments_load(tensor_of(&copy, n, format), 0, n, x);
}

// exp(spread * normal), with random signs if `sign`.
static inline void lognormal(float *x, int n, double spread, bool sign, uint64_t stream) {
    for (int i = 0; i < n; i++) {
        double value = exp(spread * (double)rng_normal(11, stream, (uint64_t)i));
        x[i] = (float)(sign && rng_hash(12, stream, (uint64_t)i) & 1 ? -value : value);
    }
}

// Mean of |y / x - 1| over the elements that are not zero.
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
