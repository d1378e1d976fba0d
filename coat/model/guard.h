// Detects steps to skip because their loss or gradient norm is many standard deviations above the mean of recent steps
// (--skip-loss-z, --skip-grad-z). Checkpoints store the guard, so that a resumed run skips the same steps.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/c_linkage.h"

C_LINKAGE_BEGIN

#define GUARD_WINDOW 128

// Losses or gradient norms of the most recent steps that were not skipped, oldest first.
typedef struct {
    int64_t count; // number of stored values, at most GUARD_WINDOW
    double values[GUARD_WINDOW];
} GuardWindow;

typedef struct {
    GuardWindow loss, grad_norm;
} Guard;

// Returns by how many standard deviations the value exceeds the window's mean. Returns 0 if the window is not full or
// all its values are equal, and INFINITY if the value is not finite.
double guard_z(const GuardWindow *window, double value);

// True if the step's loss or gradient norm exceeds its limit, in standard deviations above the mean of recent steps. A
// limit <= 0 disables the check.
bool outlier_should_skip(const Guard *guard, double loss, double grad_norm, double loss_limit, double grad_limit);

// Adds a step's loss and gradient norm to the windows of recent values. Ignores values that are not finite.
void outlier_record(Guard *guard, double loss, double grad_norm);

C_LINKAGE_END
