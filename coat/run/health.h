// Health: statistics in the log that give early warning of a failing training run. health_bounds.c measures attention
// logits, outliers and second moments. health.c measures FP8 health, which shows how well the scales of FP8 tensors fit
// their values. For each layer and tensor, FP8 health logs the amax, the fractions of saturated and of zero values and,
// for moments, the fraction of groups with a clamped exponent.
//   - Tensors are measured after the step's update. With --recompute 3, the saved activations of block 0 alone are then
//     still in memory.
//   - The FP8 values of gradients and norm outputs are counted during the step's first micro-batch, because the next
//     layer overwrites these tensors. FP8 health logs their fractions of saturated, zero and subnormal values.
// The functions measure only the tensors and shards that the calling process stores. The run logs rank 0's results.
#pragma once
#include "model/arena.h"

C_LINKAGE_BEGIN

// A logged value that gives early warning of a failing training run. A note is printed once when a layer's value
// exceeds the bound. docs/log.md has the same table, and the origin of the bounds.
typedef enum {
    BOUND_LSE,
    BOUND_OUTLIER,
    BOUND_KURTOSIS,
    BOUND_LAG,
    BOUND_UNCHANGED,
    // not checked for tensors with a scale per group, because several values of a group may equal the group's amax
    BOUND_SATURATED,
    BOUND_COUNT
} HealthBoundId;
typedef struct {
    const char *line, *tensor, *figure; // keys in log.jsonl: {line:{tensor:{figure:..}}}; tensor "*": several tensors
    double bound;
    const char *meaning, *remedy;
} HealthBound;
extern const HealthBound health_bounds[BOUND_COUNT];

// Fraction of zero or subnormal FP8 values above which a warning is printed, for gradients (except dlogits) and norm
// outputs that wgrad reads. Ignores the zeros in the gradients of masked targets.
#define HEALTH_SMALL 0.5
// Limits of the FP8 wgrad's bias and error relative to the BF16 wgrad, above which a warning is printed.
#define HEALTH_BIAS 0.02
#define HEALTH_ERROR 0.2

#define HEALTH_WARNING 4096 // size of a warning's text in bytes

// Records which warnings this run has already printed, because each is printed only once. Warnings about an infinity, a
// NaN or saturated FP8 values of an entire tensor (amax, saturated) are not recorded and can repeat.
typedef struct {
    // true after a warning about the FP8 values of a counted tensor ([0]) or of its transpose ([1])
    bool codes[COUNTED_TENSORS][2];
    bool matmuls;            // true after a warning about an inexact FP8 wgrad
    bool bound[BOUND_COUNT]; // true after a note about a value above its bound
    double uncounted;        // fraction of masked targets in the last step; the caller sets it
    uint8_t *sample;         // 8-bit values of moments before the last update (health_sample()); NULL: none
} HealthWarned;

// Returns the index of a tensor's counts in CODE_COUNTS. The next index belongs to the tensor's transpose, which has
// counts only if it does not share the tensor's scale.
static inline int code_counts_at(CountedTensor what, int layer) {
    return 2 * (layer * COUNTED_TENSORS + (int)what);
}

// Copies HEALTH_SAMPLE consecutive FP8 or INT8 values of each 8-bit moment to warned->sample, which the caller frees.
// Call it before the update of a step that logs its health. health_json() then reports the fraction of these values
// that the update left unchanged.
void health_sample(const Arena *arena, Exec *exec, HealthWarned *warned);
#define HEALTH_SAMPLE 16384

// Returns the statistics of all FP8 and INT8 tensors as one JSON object, which the caller frees; NULL if there is none:
//   {"x_in":{"amax":[..per layer],"saturated":[..],"zero":[..]},"qkvw.m":{..,"clamped":[..]},"g":{"amax":[..]},
//    "dh_q":{"amax":[..],"saturated":[..],"zero":[..],"subnormal":[..]},"dh_qt":{"saturated":[..],..},..}
//   - If a tensor's FP8 values are overwritten during the step, the tensor has only an amax, except gradients and norm
//     outputs, whose values the step counts. An amax that is not finite is null.
//   - The fractions of norm outputs are those of the step's first micro-batch.
//   - The transpose (dh_qt) has fractions only if it does not share dh_q's scale.
//   - A moment has the key "unchanged" if health_sample() was called before the update and `warned` is not NULL.
//   - The residual stream's gradient is quantized twice per layer, for the MLP and then for the attention sublayer.
//     dresid_q has the amax for the attention sublayer. dresid_q_fcproj has the fractions for the MLP, dresid_q_proj
//     those for the attention sublayer.
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
// free: {"lse":{"max":[..per layer]}}. The log-sum-exp is at least the largest logit, and at most ln(sequence length)
// larger. With --recompute 3, only block 0's value is still in memory. Writes a note to `warning` the first time that a
// layer exceeds BOUND_LSE, otherwise "". If `warned` is NULL, never writes a note. Waits for the device.
char *health_attention_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// Returns outliers of the activation function's output in the step's first micro-batch as JSON for the caller to free:
//   {"g":{"outlier":[amax / RMS per layer],"kurtosis":[mean of x^4 / square of the mean of x^2 per layer]}}
// NULL if no layer was measured. Writes notes like health_attention_json().
char *health_activation_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// Returns JSON for the caller to free: {"wte":{"lag":[RMS of g / sqrt(v) per layer]},..} with an entry per matrix.
// g is the clipped gradient, v the second moment of AdamW with bias correction. A lag much above 1 means that v follows
// g too slowly. Measures the shards of this process. NULL if no matrix has a second moment, or before the first update.
// Call health_activation_json() first, because this function overwrites the measurements that health_activation_json()
// reads. Call both after an update, before the next step computes gradients. Writes notes like health_attention_json().
char *health_optimizer_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// Prints "name":[one value per layer]. A value that is not finite is printed as null.
void health_print_values(FILE *out, const char *name, const double value[], int layers);

// Appends a line to the text of a warning.
__attribute__((format(printf, 2, 3))) void health_add_line(char warning[HEALTH_WARNING], const char *format, ...);

// Appends a note to `warning` if the largest of a tensor's values, one per layer, exceeds the bound. Each bound causes
// at most one note per run. Never appends a note if `warned` is NULL. NaN is ignored.
void health_note(HealthBoundId id, const char *tensor, const double value[], int layers, HealthWarned *warned,
                 char warning[HEALTH_WARNING]);

C_LINKAGE_END
