// A file to which complete records (log lines, TFRecords) are appended. Records that cannot be written, for example
// because the disk is full, are buffered in memory and written later, in order. The bytes of a failed write are removed
// from the file.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct {
    int fd;           // file descriptor, opened with O_APPEND; -1: there is no file, and records are dropped
    const char *path; // file name for messages, which the caller owns
    char *pending;    // buffer of records that are not yet in the file
    size_t pending_bytes;
    // file offset from which an incomplete write could not be removed yet; -1: the file ends with a complete record
    int64_t torn_at;
    bool failing; // true: the last write failed and a warning was printed
} Appender;

// Initializes an appender for the open file fd, which appender_close() closes. `path` must stay valid until then.
void appender_open(Appender *appender, int fd, const char *path);

// Switches to another open file fd and closes the previous one. Pending records go to the new file.
void appender_reopen(Appender *appender, int fd);

// Adds a record to the pending records. Drops the record if there is no file or no memory for it.
void appender_add(Appender *appender, const void *record, size_t bytes);

// Writes the pending records to the file. Returns false with errno if that fails; the records remain pending.
bool appender_flush(Appender *appender);

// Writes the pending records like appender_flush(). Prints a line on stderr when writing first fails and when writing
// works again. step: training step of the newest record, which the line on stderr names.
bool appender_flush_or_warn(Appender *appender, int64_t step);

// Tries to write the pending records, then closes the file.
void appender_close(Appender *appender);
