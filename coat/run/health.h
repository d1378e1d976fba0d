// FP8 health: statistics in the log that show how well the scales of FP8 tensors fit. For each layer and tensor: amax,
// the fractions of saturated and of zero values and, for moments, the fraction of groups whose exponent is clamped.
//   - Tensors are measured after the last micro-batch and update. --recompute 3 leaves only block 0's saved
//     activations.
//   - Gradients are counted during backward in the step's first micro-batch, because each layer overwrites them. The
//     counts are the fractions of saturated, zero and subnormal values.
// Each process reports only the tensors and shards that it stores.
#pragma once
#include "model/arena.h"

C_LINKAGE_BEGIN

// Fraction of saturated FP8 values above which a warning is printed, for tensors with one scale per tensor or row.
// Groups are exempt, because several values of a group may equal its amax without harm.
#define HEALTH_SATURATED 0.01
// Fraction of zero or subnormal FP8 values above which a warning is printed, for gradients that wgrad reads. Zeros of
// masked targets are ignored.
#define HEALTH_SMALL 0.5
// Bias of the FP8 wgrad relative to BF16 above which a warning is printed; HEALTH_ERROR is the limit of its error.
#define HEALTH_BIAS 0.02
#define HEALTH_ERROR 0.2

// Log-sum-exp of attention logits above which a warning is printed. Runs in which attention has become unstable had
// logits above 100.
#define HEALTH_LSE 100

#define HEALTH_WARNING 4096 // size of a warning's text in bytes

// Tells which warnings this run has already printed, because each warning is printed only once.
typedef struct {
    // true after a warning about the FP8 values of a gradient ([0]) or of its transpose ([1])
    bool codes[GRADIENT_COUNT][2];
    bool matmuls;     // true after a warning about an inexact FP8 wgrad
    bool attention;   // true after a warning about large attention logits
    double uncounted; // fraction of masked targets in the last step; the caller sets it
} HealthWarned;

// Returns the index of a gradient's counts in the tensor CODE_COUNTS. The next index belongs to the gradient's
// transpose, which has counts if its format or scale differs.
static inline int code_counts_at(QuantizedGradient what, int layer) {
    return 2 * (layer * GRADIENT_COUNT + (int)what);
}

// Returns the statistics of all FP8 tensors as one JSON object, which the caller frees; NULL if no tensor is FP8:
//   {"x_in":{"amax":[..per layer],"saturated":[..],"zero":[..]},"qkvw.m":{..,"clamped":[..]},"n1":{"amax":[..]},
//    "dh_q":{"amax":[..],"saturated":[..],"zero":[..],"subnormal":[..]},"dh_qt":{"saturated":[..],..},..}
//   - A tensor that backward recomputes has only an amax. An amax that is not finite is null.
//   - A gradient has fractions only if this step counted them, its transpose (dh_qt) only if its FP8 values differ.
//   - The residual stream's gradient is quantized twice per layer. dresid_q has the amax of the attention sublayer;
//     dresid_q_fcproj and dresid_q_proj have the fractions of the MLP and of the attention sublayer.
// Writes one line per problem to `warning`, without a final newline; "" if there is no problem. If `warned` is NULL,
// checks only the amax and saturation of tensors. Waits for the device.
char *health_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// Compares qkv's FP8 wgrad a with its BF16 wgrad b in the step's first micro-batch. Returns JSON for the caller to
// free:
//   {"qkvw":{"error":[|a - b| / |b| per layer],"bias":[<a, b> / <b, b> - 1 per layer]}}
// Random rounding affects only the error; a bias does not average out over steps. Writes a line to `warning` if a layer
// exceeds HEALTH_BIAS or HEALTH_ERROR, otherwise "". If `warned` is NULL, never warns. Waits for the device.
char *health_matmuls_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// Returns the largest log-sum-exp of each layer's attention logits in the last micro-batch as JSON for the caller to
// free: {"lse":{"max":[..per layer]}}. It is at least the largest logit, and at most ln(sequence length) larger.
// --recompute 3 leaves only block 0's. Writes a line to `warning` if a layer exceeds HEALTH_LSE, otherwise "". If
// `warned` is NULL, never warns. Waits for the device.
char *health_attention_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

C_LINKAGE_END
