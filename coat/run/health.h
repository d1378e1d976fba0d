// How well the FP8 tensors of a run fit their scales. Per layer the largest magnitude, the shares of saturated and of
// zero codes, and the share of the moments' groups whose exponent is clamped, counted where the last micro-batch and
// the last update left them in memory: with --recompute 3, of saved activations the first block's alone. Of gradients,
// whose codes one layer writes over another's, the shares of saturated, zero and subnormal codes are counted during
// backward, in the first micro-batch of the step. Each process counts what it holds.
#pragma once
#include "model/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

// More than this share of a tensor's codes saturated is worth a line. Only of codes with one scale per tensor: groups
// have several large values often enough, and cannot saturate, since each has its own maximum.
#define HEALTH_SATURATED 0.01
// The same of codes that are zero or subnormal, of a gradient that the matmul of a weight gradient reads. Where some
// targets do not count, as many may be 0 and are left out.
#define HEALTH_SMALL 0.5

#define HEALTH_WARNING 4096 // bytes that lines of warning may take

// A weight gradient by FP8 matmuls that is farther than this from BF16's is worth a
// line, too: its bias, and its error.
#define HEALTH_BIAS 0.02
#define HEALTH_ERROR 0.2

// What a run was warned of, and is warned of once: of which gradients (and of their transposes) the codes do not fit;
// and that a matmul is wrong. NULL instead of it: no warning.
typedef struct {
    bool codes[GRADIENT_COUNT][2], matmuls;
    double uncounted; // the share of the last step's targets that do not count
} HealthWarned;

// Where the CodeCounts of a gradient lie in CODE_COUNTS. The next ones are those of its transpose, where that has a
// format or a scale of its own.
static inline int code_counts_at(QuantizedGradient what, int layer) {
    return 2 * (layer * GRADIENT_COUNT + (int)what);
}

// Counts over all FP8 tensors as one JSON object, to be freed; NULL where the recipe has none:
//   {"x_in":{"amax":[..per layer],"saturated":[..],"zero":[..]},"qkvw.m":{..,"clamped":[..]},"n1":{"amax":[..]},
//    "dh_q":{"amax":[..],"saturated":[..],"zero":[..],"subnormal":[..]},"dh_qt":{"saturated":[..],..},..}
// Of what is recomputed in backward only amax is left. Gradients have their shares where the step has counted them. The
// residual stream's is quantised twice per layer: dresid_q has the amax of the attention half, and dresid_q_fcproj and
// dresid_q_proj have the shares of both halves. Transposes (dh_qt, ..) are there where they have codes of their own. An
// amax that is not finite is null. `warning` becomes a line for each thing that is wrong, without the last '\n', else
// it is empty. Waits for the device.
char *health_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

// The weight gradient a of qkv by FP8 matmuls against the same in BF16, b, in the step's first micro-batch:
//   {"qkvw":{"error":[|a - b| / |b| per layer],"bias":[<a, b> / <b, b> - 1 per layer]}}
// What codes lose at random is error; what is lost in one direction is bias, and does not average out over steps. The
// rest as above.
char *health_matmuls_json(const Arena *arena, Exec *exec, HealthWarned *warned, char warning[HEALTH_WARNING]);

#ifdef __cplusplus
}
#endif
