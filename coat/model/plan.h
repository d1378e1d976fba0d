// Computes the memory that a run needs without a device (--plan), and advice for a run that needs too much.
#pragma once
#include "arena.h"

C_LINKAGE_BEGIN

// Returns the bytes of device memory that each process of the run needs.
size_t plan_bytes(const Config *config, int ranks, DeviceKind device);

// Returns the largest micro-batch whose memory plan is within `limit` bytes and that a run accepts, or 0. FP8 matmuls
// and --batch-tokens may require certain multiples. Sets *fits to the largest micro-batch by memory alone. If a run
// rejects *fits, sets *why to the reason.
int plan_largest_micro_batch(const Config *config, int ranks, DeviceKind device, size_t limit, int *fits, Error *why);

// Sets c->micro_batch to the largest micro-batch that fits --memory-limit. Fails (EXIT_USER) with advice if micro-batch
// 1 does not fit.
bool plan_take_largest(Config *c, int ranks, DeviceKind device, Error *err);

// Size of the text that plan_advise() writes for a run that needs more than `limit` bytes (0: unknown). The text names
// the largest micro-batch that fits and the three largest categories of memory, each with the flags that reduce it and
// that a run accepts.
#define ADVICE_TEXT 512
void plan_advice(const Config *config, int ranks, DeviceKind device, size_t limit, char *text, size_t size);

// Appends plan_advice() to the error of arena_allocate(). Returns false.
bool plan_advise(const Arena *arena, Exec *exec, Error *err);

C_LINKAGE_END
