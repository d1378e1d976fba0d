// FP8 health: how well the scales of a run's FP8 tensors fit. Reported per layer and tensor: amax, the fractions of
// saturated and of zero values, and, for moments, the fraction of groups whose exponent is clamped.
// - Tensors are measured as the last micro-batch and the last update left them in memory. With --recompute 3, only the
//   first block's saved activations are still there.
// - Gradients, which each layer overwrites, are counted during backward in the first micro-batch of the step: fractions
//   of saturated, zero and subnormal values.
// Each process reports the tensors and shards that it holds.
#pragma once
#include "model/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

// A tensor is worth a warning if a larger fraction of its FP8 values is saturated. Only with one scale per tensor or
// row: groups have their own amax, so several of their values may equal it without harm.
#define HEALTH_SATURATED 0.01
// A gradient that a wgrad reads is worth a warning if a larger fraction of its FP8 values is zero or subnormal. Zeros
// of masked targets are left out.
#define HEALTH_SMALL 0.5
// An FP8 wgrad is worth a warning if its bias or its error relative to BF16 is larger.
#define HEALTH_BIAS 0.02
#define HEALTH_ERROR 0.2

#define HEALTH_WARNING 4096 // size of a warning's text in bytes

// The warnings that a run has printed; each is printed once.
typedef struct {
    bool codes[GRADIENT_COUNT][2]; // a gradient, and its transpose, has bad FP8 values
    bool matmuls;                  // an FP8 wgrad is inexact
    double uncounted;              // in: the fraction of the last step's targets that are masked
} HealthWarned;

// Returns the index of a gradient's CodeCounts in the CODE_COUNTS tensor. The next index is its transpose's, used if
// the transpose has its own format or scale.
static inline int code_counts_at(QuantizedGradient what, int layer) {
    return 2 * (layer * GRADIENT_COUNT + (int)what);
}

// Returns the figures of all FP8 tensors as one JSON object, to be freed; NULL if the recipe has no FP8 tensors:
//   {"x_in":{"amax":[..per layer],"saturated":[..],"zero":[..]},"qkvw.m":{..,"clamped":[..]},"n1":{"amax":[..]},
//    "dh_q":{"amax":[..],"saturated":[..],"zero":[..],"subnormal":[..]},"dh_qt":{"saturated":[..],..},..}
// - Tensors that backward recomputes have only amax. An amax that is not finite is null.
// - Gradients have fractions only if the step has counted them, transposes (dh_qt, ..) only if their FP8 values differ.
// - The residual stream's gradient is quantized twice per layer: dresid_q has the amax of the attention sublayer,
//   dresid_q_fcproj and dresid_q_proj have the fractions of the MLP and attention sublayers.
// Writes one line per problem to `warning`, without the last newline; "" if there are none. warned NULL: only looks at
// amax and saturation of tensors. Waits for the device.
char *health_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// Compares the FP8 wgrad a of qkv with the BF16 wgrad b, from the step's first micro-batch. Returns JSON to be freed:
//   {"qkvw":{"error":[|a - b| / |b| per layer],"bias":[<a, b> / <b, b> - 1 per layer]}}
// Random rounding is in the error only; a bias does not average out over steps. Writes a line to `warning` if a layer
// exceeds HEALTH_BIAS or HEALTH_ERROR, otherwise "". warned NULL: never warns. Waits for the device.
char *health_matmuls_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

#ifdef __cplusplus
}
#endif
