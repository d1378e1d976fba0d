// A file that grows by whole records (lines of a log, TFRecords). Records that cannot be written, for example because
// the disk is full, wait in memory and are written in order later. A record that was written in part is cut off.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int fd;           // opened with O_APPEND; -1: no file, and records are dropped
    const char *path; // for messages; owned by the caller
    char *pending;    // records that are not yet in the file
    size_t pending_bytes;
    int64_t torn_at; // where an incomplete record begins that could not be cut off yet; -1: the file ends with a record
    bool failing;    // the last write failed and a warning was printed
} Appender;

// Takes over fd, which appender_close() closes. The caller keeps `path` until then.
void appender_open(Appender *appender, int fd, const char *path);

// Continues in another file. Takes over fd and closes the previous file; pending records go to the new one.
void appender_reopen(Appender *appender, int fd);

// Adds a record to the pending ones.
void appender_add(Appender *appender, const void *record, size_t bytes);

// Writes the pending records. Returns false with errno if the file cannot take them; they stay pending.
bool appender_flush(Appender *appender);

// Like appender_flush(), and prints a line on stderr when writing begins to fail and when it works again. step: the
// step of the newest record, for the message.
bool appender_flush_or_warn(Appender *appender, int64_t step);

// Tries to write the pending records and closes the file.
void appender_close(Appender *appender);

#ifdef __cplusplus
}
#endif
