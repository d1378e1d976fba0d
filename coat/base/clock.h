// Reads the monotonic clock, which does not change when the system clock is set.
#pragma once
#include <time.h>

static inline double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static inline double now_seconds(void) {
    return now_ms() * 1e-3;
}
