// FP8 health: statistics in the log that show how well the scales of FP8 tensors fit. For each layer and tensor: amax,
// the fractions of saturated and of zero values and, for moments, the fraction of groups whose exponent is clamped.
// - Tensors are measured as the last micro-batch and update left them in memory. With --recompute 3, only the first
// block's saved activations still exist.
// - Gradients, which each layer overwrites, are counted during backward in the step's first micro-batch: fractions of
// saturated, zero and subnormal values.
// Each process reports the tensors and shards that it stores.
#pragma once
#include "model/arena.h"

C_LINKAGE_BEGIN

// A warning is printed if more than this fraction of a tensor's FP8 values is saturated. It applies to tensors with one
// scale per tensor or row. Groups have separate amaxes, so several of their values may equal the amax without harm.
#define HEALTH_SATURATED 0.01
// A warning is printed if more than this fraction of the FP8 values of a gradient that wgrad reads is zero or
// subnormal. Zeros of masked targets are ignored.
#define HEALTH_SMALL 0.5
// A warning is printed if the bias of an FP8 wgrad relative to BF16 exceeds this limit; HEALTH_ERROR limits its error.
#define HEALTH_BIAS 0.02
#define HEALTH_ERROR 0.2

#define HEALTH_WARNING 4096 // size of a warning's text in bytes

// Warnings that this run has already printed. Each warning is printed once.
typedef struct {
    // true: a warning about the FP8 values of this gradient, or of its transpose, was printed
    bool codes[GRADIENT_COUNT][2];
    bool matmuls;     // true: a warning about an inexact FP8 wgrad was printed
    double uncounted; // fraction of masked targets in the last step, which the caller sets
} HealthWarned;

// Returns the index of a gradient's CodeCounts in the CODE_COUNTS tensor. The next index belongs to its transpose, if
// that has a separate format or scale.
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
// Writes one line per problem to `warning`, without the last newline; "" if there are none. If `warned` is NULL, checks
// only amax and saturation of tensors. Waits for the device.
char *health_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// Compares the FP8 wgrad a of qkv with the BF16 wgrad b, from the step's first micro-batch. Returns JSON to be freed:
//   {"qkvw":{"error":[|a - b| / |b| per layer],"bias":[<a, b> / <b, b> - 1 per layer]}}
// Random rounding is in the error only; a bias does not average out over steps. Writes a line to `warning` if a layer
// exceeds HEALTH_BIAS or HEALTH_ERROR, otherwise "". If `warned` is NULL, never warns. Waits for the device.
char *health_matmuls_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

C_LINKAGE_END
