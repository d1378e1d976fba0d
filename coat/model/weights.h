// Sets the initial values of parameters (random or from a file), of moments, and of the RoPE table.
#pragma once
#include "arena.h"

C_LINKAGE_BEGIN

// Sets a parameter from (rows, cols) FP32 values: writes the weight, rounded to its format, and the master weight. Does
// not change the moments.
void parameter_set(Exec *exec, const Parameter *parameter, const float *values);

// Sets the part of a parameter that this process stores, all or a shard, from the FP32 values of the entire tensor.
void parameter_set_local(const Arena *arena, Exec *exec, TensorId id, int layer, const float *values);

// Sets all moments of this process to zero.
void parameters_zero_moments(const Arena *arena, Exec *exec);

// Draws initial values by --init and sets the moments to zero. Norm weights are 1; biases and the vocabulary's padding
// rows are 0. For all other weights:
//   normal (GPT-2)      N(0, 0.02); residual projections scaled by 1 / sqrt(2 layers)
//   mitchell (OLMo 1)   deviation 1 / sqrt(inputs); 1 / sqrt(2 inputs (l + 1)) for residual projections of layer l, from
//                       0; redrawn beyond 3 deviations
//   truncated (OLMo 2)  N(0, 0.02); redrawn beyond 3 deviations
// A value depends only on seed, tensor, layer and element: not on threads, device, ranks or padding.
void parameters_init(const Arena *arena, Exec *exec, uint64_t seed);

// Fills ROPE_TABLE: for each position a row with the cosines of its head_dim / 2 angles, then their sines. Does nothing
// if the model has learned positions.
void rope_table_set(const Arena *arena, Exec *exec);

C_LINKAGE_END
