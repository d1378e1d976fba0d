// --plan: what a run would need, without a device and without allocating it; and what helps where that is too much.
#pragma once
#include "arena.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the device holds of a run, per process.
size_t plan_bytes(const Config *config, int ranks, DeviceKind device);

// The largest micro-batch whose plan stays within `limit` bytes and that a run takes (FP8 matmuls and --batch-tokens
// may ask for certain multiples); 0 if there is none. *fits: the largest that memory alone would allow; why: what keeps
// the run from taking that one, where it is another.
int plan_largest_micro_batch(const Config *config, int ranks, DeviceKind device, size_t limit, int *fits, Error *why);

// Takes the largest under --memory-limit into the configuration; false with err (EXIT_USER) and advice where not
// even one sequence stays under it.
bool plan_take_largest(Config *c, int ranks, DeviceKind device, Error *err);

// What helps a run that needs more than `limit` bytes (0: not known): the micro-batch that would fit, the flags that
// would shrink the plan, each with what it saves, the largest first. Where it takes all of them: what they do. Where
// they are too little: by how much, the fewest GPUs, and the largest smaller model, that would fit. Made by planning
// again, so that nothing is named that is set already, that another named flag includes, or that saves less than 1 %.
// `text` begins with "; " or is empty.
#define ADVICE_TEXT 768 // room for the longest
void plan_advice(const Config *config, int ranks, DeviceKind device, size_t limit, char *text, size_t size);

// Adds to the err of arena_allocate() what most of the memory is and what helps, as far as the device tells how much
// there is. Returns false, as the allocation did.
bool plan_advise(const Arena *arena, Exec *exec, Error *err);

#ifdef __cplusplus
}
#endif
