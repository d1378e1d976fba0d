// How much memory the process may still take.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Bytes that the process's own limits leave: of ulimit -v, and of its control group, where page cache counts as used
// but gives way. INT64_MAX: none is set. *limit, where not NULL, becomes the name of the one that leaves least.
int64_t memory_limit_left(const char **limit);

// The smaller of that and what the machine has, with what Linux holds of files and would give back.
int64_t memory_available(void);

#define MEMORY_RESERVE ((size_t)64 << 20) // that is left to everything else: files, stacks of threads, libraries

// Whether so many bytes can really be given, with some left to everything else: Linux grants memory that it does not
// have, and ends the process when that is used.
bool memory_fits(size_t bytes);

#define HUGE_PAGE ((size_t)2 << 20)

// Whole huge pages, at least one, and memory in them where the system has any: fewer TLB misses. NULL: refused. Its
// pages are given when they are first written; free() releases them.
size_t memory_whole_pages(size_t bytes);
void *memory_in_huge_pages(size_t bytes);

#ifdef __cplusplus
}
#endif
