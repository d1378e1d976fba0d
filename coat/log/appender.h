// A file that grows by whole pieces (lines, records). Pieces that it cannot take, on a full disk for example, wait in
// memory and come in order as soon as it can again; what a failed write left of one is cut off.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int fd;          // -1: none, and what is added is dropped
    int64_t written; // bytes of whole pieces in the file
    char *pending;   // pieces that it could not take yet
    size_t pending_bytes;
    char *held; // what is written, too, in case somebody cuts the file off; NULL with most_held 0: it is too much
    size_t held_room, most_held;
    bool torn;        // there is a part of a piece behind `written` that could not be cut off yet
    bool failing;     // and that has been said
    bool lost;        // it has lost its name, and that has been said
    const char *path; // the caller's, for what is said
    char end;         // what every piece ends with and has nowhere else, '\n' of lines; 0: none
} Appender;

// Goes on at the end of the file fd, open for reading too, which the appender closes; path outlives it.
// With fd -1: nothing is written.
void appender_open(Appender *appender, int fd, const char *path);

// Adds one piece, to be written by the next of the two functions below.
void appender_add(Appender *appender, const void *piece, size_t bytes);

// Writes what waits. False where the file cannot take it now; errno says why.
bool appender_flush(Appender *appender);

// The same with a line on stderr where the file can no longer be written, and one where it can be again. step: the one
// that the newest piece belongs to.
bool appender_flush_say(Appender *appender, int64_t step);

// Looks whether the file is still the one of its name. Where it was removed or replaced it is made again, with all
// that was written to the one before, and continues there; a file that has the name by then is renamed to
// STEM-replaced-1ENDING or the next number that is free. The same for one that was cut off or written over in
// place, whose bytes are kept only where they are no part of ours. Where not all of it can be had, it continues
// behind the last whole piece. pieces: what it holds, for the text, which says what has happened: "" where nothing
// has, or where it has been said.
typedef enum {
    FILE_KEPT,    // it is, or there is none
    FILE_AGAIN,   // it was removed or cut off, and is whole again
    FILE_CHANGED, // it is made again: another one had its name, or not all of it is there
    FILE_LOST     // it cannot be made again now, and continues with the one before
} FileState;
FileState appender_keep(Appender *appender, const char *stem, const char *ending, const char *pieces, char *text,
                        size_t size);

// Tries once more, and closes the file.
void appender_close(Appender *appender);

#ifdef __cplusplus
}
#endif
