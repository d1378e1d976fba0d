// Skips the update of a step whose loss or gradient norm is many standard deviations above those of recent steps
// (--skip-loss-z, --skip-grad-z). Checkpoints store the guard, so that a resumed run skips the same steps.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/c_linkage.h"

C_LINKAGE_BEGIN

#define GUARD_WINDOW 128

// Values (losses or gradient norms) of recent steps that were not skipped, oldest first.
typedef struct {
    int64_t count; // number of stored values, at most GUARD_WINDOW
    double values[GUARD_WINDOW];
} GuardWindow;

typedef struct {
    GuardWindow loss, grad_norm;
} Guard;

// Returns how many standard deviations the value is above the window's mean: 0 if the window is not full or all its
// values are equal, INFINITY if the value is not finite.
double guard_z(const GuardWindow *window, double value);

// True if the step's loss or gradient norm is above its limit, which is given in standard deviations. A limit <= 0
// disables the check.
bool outlier_should_skip(const Guard *guard, double loss, double grad_norm, double loss_limit, double grad_limit);

// Adds a step's loss and gradient norm to the windows. Ignores values that are not finite.
void outlier_record(Guard *guard, double loss, double grad_norm);

C_LINKAGE_END
