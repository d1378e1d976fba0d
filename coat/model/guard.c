#include "guard.h"

#include <math.h>
#include <string.h>

// Computes mean and deviation from the entire window each time, because running sums would accumulate rounding errors.
double guard_z(const GuardWindow *window, double value) {
    if (!isfinite(value)) return INFINITY;
    if (window->count < GUARD_WINDOW) return 0;
    double sum = 0, squares = 0;
    for (int i = 0; i < GUARD_WINDOW; i++) sum += window->values[i];
    double mean = sum / GUARD_WINDOW;
    for (int i = 0; i < GUARD_WINDOW; i++) squares += (window->values[i] - mean) * (window->values[i] - mean);
    double deviation = sqrt(squares / GUARD_WINDOW);
    return deviation > 0 ? (value - mean) / deviation : 0;
}

bool outlier_should_skip(const Guard *guard, double loss, double grad_norm, double loss_limit, double grad_limit) {
    return (loss_limit > 0 && !(guard_z(&guard->loss, loss) <= loss_limit)) ||
           (grad_limit > 0 && !(guard_z(&guard->grad_norm, grad_norm) <= grad_limit));
}

static void push(GuardWindow *window, double value) {
    if (!isfinite(value)) return;
    if (window->count == GUARD_WINDOW)
        memmove(window->values, window->values + 1, (GUARD_WINDOW - 1) * sizeof *window->values);
    else
        window->count++;
    window->values[window->count - 1] = value;
}

void outlier_record(Guard *guard, double loss, double grad_norm) {
    push(&guard->loss, loss);
    push(&guard->grad_norm, grad_norm);
}
