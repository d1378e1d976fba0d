// The guard against outliers (--skip-loss-z, --skip-grad-z): an update whose loss or gradient norm lies many standard
// deviations above those of the last steps would undo more than it brings, and is left out. Part of what a checkpoint
// records, so that a resumed run decides alike.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GUARD_WINDOW 128

// The last values of steps that were accepted, oldest first.
typedef struct {
    int64_t count; // up to GUARD_WINDOW
    double values[GUARD_WINDOW];
} GuardWindow;

typedef struct {
    GuardWindow loss, grad_norm;
} Guard;

// Standard deviations from the window's mean up to the value; 0 until the window is full, and where all its values are
// equal. A value that is not finite is infinitely far.
double guard_z(const GuardWindow *window, double value);

// Whether a step is to be skipped, with limits in standard deviations; a limit <= 0 is off.
bool guard_refuses(const Guard *guard, double loss, double grad_norm, double loss_limit, double grad_limit);

// Remembers a step. Values that are not finite are not taken.
void guard_accept(Guard *guard, double loss, double grad_norm);

#ifdef __cplusplus
}
#endif
