// Reports how much host memory is available, and allocates memory in huge pages.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "c_linkage.h"

C_LINKAGE_BEGIN

// Returns how many more bytes of memory this process may use under ulimit -v and the memory.max of its control group
// (cgroup version 2). Files in /dev/shm count as used. The group's page cache does not, because the kernel can evict
// it. Returns INT64_MAX if there is no limit. Sets *limit to the name of the tightest limit unless `limit` is NULL.
int64_t memory_limit_left(const char **limit);

// Returns the bytes of memory that this process can still use: the minimum of memory_limit_left() and the machine's
// available memory, which includes evictable page cache.
int64_t memory_available(void);

#define MEMORY_RESERVE ((size_t)64 << 20) // bytes that memory_fits() keeps free for files, stacks and libraries

// True if `bytes` bytes and MEMORY_RESERVE are available. malloc() cannot tell, because Linux grants memory that does
// not exist and kills the process when it writes to that memory.
bool memory_fits(size_t bytes);

#define HUGE_PAGE ((size_t)2 << 20) // size of a huge page in bytes

// Returns `bytes` rounded up to a multiple of the huge page size, at least one huge page.
size_t memory_whole_pages(size_t bytes);
// Allocates memory_whole_pages(bytes) bytes, in huge pages if the system grants them, to reduce TLB misses. Returns
// NULL if memory is exhausted. Release the memory with free().
void *memory_in_huge_pages(size_t bytes);

C_LINKAGE_END
