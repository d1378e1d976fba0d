// Counts the floating-point operations (FLOPs) that a training step needs, for the percentage of the peak.
#pragma once
#include "config/config.h"

C_LINKAGE_BEGIN

// FLOPs of forward and backward: of the language model per token, and of the vision tower and the projector together,
// per image.
typedef struct {
    double per_token, per_image;
} TrainFlops;

// Returns the FLOPs of the configuration's model.
//   A parameter costs 2 FLOPs per row in forward, 2 in dgrad and 2 in wgrad. Frozen parameters have no wgrad.
//   The two matmuls of attention cost 4 * width FLOPs per pair of rows in forward and twice that in backward. With
//   causal attention, half of the pairs count.
//   A frozen tower has no backward. A frozen language model has dgrad.
//   The projector has dgrad if the projector or the tower trains.
//   Work that backward repeats (--recompute) does not count.
TrainFlops train_flops(const Config *config);

C_LINKAGE_END
