// Stores and loads one group of 8-bit moments on the host, for tests.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "coat/numerics/moments_host.h"
#include "coat/ops.h"
#include "moment_cases.h"

typedef struct {
    uint8_t codes[GROUP], k;
    float a;
} Stored;

static inline Tensor stored_tensor(Stored *s, int n, Format format) {
    Tensor t = {s->codes, &s->a, &s->k, NULL, 1, n, n, format, SCALE_EXPAND, GROUP, false};
    return t;
}

static inline bool store(Stored *s, const float *x, int n, Format format, const MomentStore *how) {
    memset(s, 0xa5, sizeof *s);
    return moments_store(stored_tensor(s, n, format), 0, n, x, how);
}

static inline void load(const Stored *s, float *x, int n, Format format) {
    Stored copy = *s;
    moments_load(stored_tensor(&copy, n, format), 0, n, x);
}
