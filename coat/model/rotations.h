// The rotary position embedding's table: of each position the cosines and sines of its angles.
#pragma once
#include "arena.h"

#ifdef __cplusplus
extern "C" {
#endif

// The frequency of angle i of head_dim / 2, in radians per position, as transformers computes it in FP32: theta to the
// power -2 i / head_dim, and Llama 3.1's scaling on top.
float rotary_frequency(const ModelShape *shape, int i);

// Fills ROTATIONS. Nothing where positions are learned.
void rotations_set(const Arena *arena, Exec *exec);

#ifdef __cplusplus
}
#endif
