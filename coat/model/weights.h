// Sets the initial values of parameters (random or from a file), of moments, and of the RoPE table.
#pragma once
#include "arena.h"

C_LINKAGE_BEGIN

// Sets a parameter from (rows, cols) FP32 values: stores them as the master weight and, rounded, as the weight. Does
// not change the moments.
void parameter_set(Exec *exec, const Parameter *parameter, const float *values);

// Sets the part of a parameter that this process stores (all or a shard) from the FP32 values of the entire parameter.
void parameter_set_local(const Arena *arena, Exec *exec, TensorId id, int layer, const float *values);

// Sets all moments of this process to zero.
void parameters_zero_moments(const Arena *arena, Exec *exec);

// Sets the initial values of all parameters, and all moments to 0. Norm weights become 1; biases and the vocabulary's
// padding rows become 0. Other weights are normal random numbers with mean 0. The deviation depends on the tensor for
// INIT_FAN_IN and INIT_POSITIONS (tensors.h), and for all others on --init:
//   normal (GPT-2)      0.02; for residual projections 0.02 / sqrt(2 layers)
//   mitchell (OLMo 1)   1 / sqrt(inputs); for residual projections of layer l (from 0) 1 / sqrt(2 inputs (l + 1));
//                       values beyond 3 deviations are redrawn
//   truncated (OLMo 2)  0.02; values beyond 3 deviations are redrawn
// A value depends only on seed, tensor, layer and element: not on threads, device, ranks or padding.
void parameters_init(const Arena *arena, Exec *exec, uint64_t seed);

// Fills ROPE_TABLE. The row of a position contains the cosines of its head_dim / 2 angles, then their sines. Does
// nothing if the model has learned positions.
void rope_table_set(const Arena *arena, Exec *exec);

C_LINKAGE_END
