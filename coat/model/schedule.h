// Computes the learning rate of each optimizer step.
#pragma once
#include <math.h>

#include "config/config.h"

// True if the learning rate decays after the warm-up.
static inline bool schedule_falls(const Config *config) {
    return config->schedule != SCHEDULE_CONSTANT && config->lr_final != 1.0f;
}

// Returns the learning rate of optimizer step `step` (counted from 0) in a run of total_steps.
// The schedule determines the rate, with w = warmup, T = total_steps, top = lr and low = lr * lr_final:
//   step < w          top * (step + 1) / w, with every schedule; the warm-up may be longer than the run
//   constant          top
//   cosine, linear    x = (step - w) / (T - w):  low + (top - low) * (1 + cos(pi x)) / 2,  top - (top - low) * x
//   wsd               top until step D = max(w, round((1 - decay_fraction) * T)), then with
//                     x = (step - D) / (T - D):  low + (top - low) * (1 - sqrt(x))
// x is clamped to [0, 1]: steps after the end have the rate `low`.
static inline float schedule_lr(const Config *config, int64_t step, int64_t total_steps) {
    const double top = config->lr, low = top * config->lr_final, pi = 3.14159265358979323846;
    int64_t begin = config->warmup; // first step after the warm-up
    if (step < begin) return (float)(top * (double)(step + 1) / (double)begin);
    if (config->schedule == SCHEDULE_WSD) {
        int64_t decay = llround((1.0 - config->decay_fraction) * (double)total_steps);
        if (decay > begin) begin = decay;
    }
    double x = step >= total_steps ? 1.0 : (double)(step - begin) / (double)(total_steps - begin);
    if (x < 0.0) x = 0.0;
    switch (config->schedule) {
    case SCHEDULE_COSINE: return (float)(low + (top - low) * 0.5 * (1.0 + cos(pi * x)));
    case SCHEDULE_LINEAR: return (float)(top - (top - low) * x);
    case SCHEDULE_WSD: return (float)(low + (top - low) * (1.0 - sqrt(x)));
    case SCHEDULE_CONSTANT: break;
    }
    return (float)top;
}
