// Finds the largest micro-batch that fits a memory limit (--plan), and advises runs that need too much memory.
#pragma once
#include "arena.h"

C_LINKAGE_BEGIN

// Returns the largest micro-batch whose memory plan is within `limit` bytes and that a run accepts; 0 if there is none.
// Sets *fits to the largest micro-batch by memory alone. If a run rejects *fits, for example because FP8 matmuls need a
// multiple of 16 tokens, sets *why to the reason.
int plan_largest_micro_batch(const Config *config, int ranks, DeviceKind device, size_t limit, int *fits, Error *why);

// Sets c->micro_batch to the largest micro-batch that fits in --memory-limit and that a run accepts. A run that only
// samples keeps its micro-batch. Fails (EXIT_USER), with advice, if there is no such micro-batch or the sample does not
// fit.
bool plan_take_largest(Config *c, int ranks, DeviceKind device, Error *err);

#define ADVICE_TEXT 512 // size in bytes of the text that plan_advice() writes
// Writes advice for a run that needs more than `limit` bytes (0: unknown): the largest micro-batch that fits, and the
// three largest categories of memory, each with the flags that reduce the category and that a run accepts.
void plan_advice(const Config *config, int ranks, DeviceKind device, size_t limit, char *text, size_t size);

// Appends advice to the message in err, which arena_allocate() has set: the text of plan_advice() or, if host memory
// could not be allocated, the largest categories of host memory with flags that reduce them. Always returns false.
bool plan_advise(const Arena *arena, Exec *exec, Error *err);

C_LINKAGE_END
