// Host memory: how much is available, and allocation in huge pages.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns how many more bytes the process's limits allow: ulimit -v, and its control group without the page cache,
// which is evicted on demand. INT64_MAX if there is no limit. If limit is not NULL, sets it to the tightest one's name.
int64_t memory_limit_left(const char **limit);

// Returns the smaller of memory_limit_left() and the machine's available memory, which includes evictable page cache.
int64_t memory_available(void);

#define MEMORY_RESERVE ((size_t)64 << 20) // left free for files, stacks of threads and libraries

// True if `bytes` bytes and MEMORY_RESERVE are available. A successful malloc() does not tell, because Linux grants
// memory that it does not have and kills the process when that memory is written.
bool memory_fits(size_t bytes);

#define HUGE_PAGE ((size_t)2 << 20)

// Returns `bytes` rounded up to whole huge pages, at least one.
size_t memory_whole_pages(size_t bytes);
// Allocates memory_whole_pages(bytes) bytes, in huge pages if the system has any, for fewer TLB misses. Release it with
// free(). NULL if there is no memory.
void *memory_in_huge_pages(size_t bytes);

#ifdef __cplusplus
}
#endif
