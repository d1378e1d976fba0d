// Giving parameters their first values: random initialisation, and values that were read from a file.
#pragma once
#include "arena.h"

#ifdef __cplusplus
extern "C" {
#endif

// Sets one parameter from FP32 values in its native layout (rows, cols): the value rounded to its format and
// the master that belongs to it. Moments are left alone.
void parameter_set(Exec *exec, const Parameter *parameter, const float *values);

// The same from the whole tensor's values, where this process may hold a share of it only.
void parameter_set_held(const Arena *arena, Exec *exec, TensorId id, int layer, const float *values);

// Clears the moments of all parameters, or of this process's shares.
void parameters_zero_moments(const Arena *arena, Exec *exec);

// First values by --init. normal (GPT-2): N(0, 0.02), residual projections scaled by 1 / sqrt(2 layers). mitchell (OLMo
// 1): deviation 1 / sqrt(inputs), of the residual projections of layer l from 0 on 1 / sqrt(2 inputs (l + 1)), redrawn
// beyond 3 deviations. truncated (OLMo 2): N(0, 0.02), redrawn too. Norms 1, biases 0, padding rows of the vocabulary
// 0. Values depend on the seed, the tensor, its layer and the element alone, not on threads, device or padding.
void parameters_init(const Arena *arena, Exec *exec, uint64_t seed);

#ifdef __cplusplus
}
#endif
