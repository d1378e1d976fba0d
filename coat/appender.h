// A file that grows by whole pieces (lines, records). Pieces that it cannot take, on a full disk for example, wait in
// memory and come in order as soon as it can again; what a failed write left of one is cut off.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int fd;          // -1: none, and what is added is dropped
    int64_t written; // bytes of whole pieces in the file
    char *pending;   // pieces that it could not take yet
    size_t pending_bytes;
    bool torn;        // there is a part of a piece behind `written` that could not be cut off yet
    bool failing;     // and that has been said
    const char *path; // the caller's, for what is said
} Appender;

// Goes on at the end of the file fd, open for reading too, which the appender closes; path outlives it. With fd -1: nothing is written.
void appender_open(Appender *appender, int fd, const char *path);

// Adds one piece, to be written by the next of the two functions below.
void appender_add(Appender *appender, const void *piece, size_t bytes);

// Writes what waits. False where the file cannot take it now; errno says why.
bool appender_flush(Appender *appender);

// The same with a line on stderr where the file can no longer be written, and one where it can be again. step: the one
// that the newest piece belongs to.
bool appender_flush_say(Appender *appender, int64_t step);

// Whether the file is still the one of that name: it may have been removed, renamed or replaced. True where there is none.
bool appender_is_there(const Appender *appender);

// Makes the file again by its name, which nothing has, with all that was written to the one before, and goes on with it.
// False where that cannot be done now: errno says why, and it goes on with the one before.
bool appender_restore(Appender *appender);

// Tries once more, and closes the file.
void appender_close(Appender *appender);

#ifdef __cplusplus
}
#endif
