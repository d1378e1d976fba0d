// Tells how much host memory is available, and allocates memory in huge pages.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "c_linkage.h"

C_LINKAGE_BEGIN

// Returns how many more bytes the process's limits allow: ulimit -v, and its control group (not counting page cache,
// which the kernel can evict). INT64_MAX if there is no limit. Sets *limit to the name of the tightest limit unless
// limit is NULL.
int64_t memory_limit_left(const char **limit);

// Returns the bytes of memory that this process can still use: the minimum of memory_limit_left() and the machine's
// available memory, which includes evictable page cache.
int64_t memory_available(void);

#define MEMORY_RESERVE ((size_t)64 << 20) // number of bytes that stay free for files, stacks of threads and libraries

// True if `bytes` bytes and MEMORY_RESERVE are available. malloc() cannot tell, because Linux grants memory that it
// does not have and kills the process when that memory is written.
bool memory_fits(size_t bytes);

#define HUGE_PAGE ((size_t)2 << 20)

// Returns `bytes` rounded up to a multiple of the huge page size, at least one huge page.
size_t memory_whole_pages(size_t bytes);
// Allocates memory_whole_pages(bytes) bytes, in huge pages if the system has any, to reduce TLB misses. Returns NULL if
// there is no memory. Release it with free().
void *memory_in_huge_pages(size_t bytes);

C_LINKAGE_END
