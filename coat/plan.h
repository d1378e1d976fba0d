// --plan: what a run would need, without a device and without allocating it.
#pragma once
#include <stdio.h>

#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

// Prints the memory plan of one of config->gpus processes, as a table or as JSON, for the GPU's layout unless
// --device cpu was given. With --memory-limit also the largest micro-batch that stays under it; false with err
// (EXIT_USER) when not even one sequence does.
bool plan_print(const Config *config, FILE *out, Error *err);

#ifdef __cplusplus
}
#endif
