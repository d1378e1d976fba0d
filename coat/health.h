// How well the FP8 tensors of a run fit their scales: per layer the largest magnitude, the shares of saturated and of
// zero codes, and the share of the moments' groups whose exponent is clamped, counted where the last micro-batch and
// the last update left them in memory. Each process counts what it holds.
#pragma once
#include "arena.h"

#ifdef __cplusplus
extern "C" {
#endif

// More than this share of a tensor's codes saturated is worth a line. Only of codes with one scale per tensor: groups
// have several large values often enough, and cannot saturate, since each has its own maximum.
#define HEALTH_SATURATED 0.01

// Counts over all FP8 tensors as one JSON object, to be freed; NULL where the recipe has none:
//   {"x_in":{"amax":[..per layer],"saturated":[..],"zero":[..]},"qkvw.m":{..,"clamped":[..]},"dh_q":{"amax":[..]}, ..}
// Of what is rebuilt in backward, and of gradients, whose codes one layer writes over another's, only amax is left (of
// dresid_q that of the attention half). An amax that is not finite is null. `warning` becomes one line where something
// is wrong, else empty. Waits for the device.
char *health_json(const Arena *arena, Exec *exec, char *warning, size_t size);

#ifdef __cplusplus
}
#endif
