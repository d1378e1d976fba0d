// Writes the metrics of log.jsonl to TensorBoard event files, OUT/events.out.tfevents.SECONDS.HOST. Uses neither
// TensorFlow nor protobuf.
//
// A file is a sequence of TFRecords (length, CRC, bytes, CRC). Each record contains an Event message of TensorFlow's
// event.proto: first the version of the format, then the start of a session, then events with the scalars of log lines.
// Each start of the program creates a new file, whose name sorts after the existing ones. Readers read the files in
// this order. The start of a session names the session's first step. At this start, readers drop the events of this
// step and of later steps that they have read from earlier files. Therefore a resumed run's curves have no step twice,
// although no file is rewritten.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "appender.h"

typedef struct EventWriter EventWriter;

typedef struct {
    const char *tag; // name of the curve
    double value;    // value of the scalar, which the file stores as a float; inf and NaN are allowed
} Scalar;

// Creates a new event file in the existing folder. Returns NULL with err (EXIT_DATA) on failure. first_step: first step
// that will be written. Readers ignore earlier files' events of first_step and later steps. If first_step is 1 or less,
// they ignore all events of earlier files.
EventWriter *events_open(const char *folder, int64_t first_step, Error *err);

// Writes one event with the scalars of a step. If the event is too long, drops the event and returns false. If the file
// cannot be written, buffers the event (appender.h) and returns false; the first failure prints a warning.
bool events_write(EventWriter *writer, int64_t step, const Scalar *scalars, int count);

// True if events_path() still names the open file. False after the file or its folder was removed or replaced.
bool events_in_place(const EventWriter *writer);

const char *events_path(const EventWriter *writer); // returns a text that is valid until events_close()

// Closes the event file, frees the writer, and removes the file if it has no scalars. The argument may be NULL.
void events_close(EventWriter *writer);

// True if `name` is the name of an event file.
bool events_is_name(const char *name);

// crc32c() returns the CRC-32C (Castagnoli) of the bytes, crc32c_masked() the same in TFRecords' masked form.
uint32_t crc32c(const void *bytes, size_t count);
uint32_t crc32c_masked(const void *bytes, size_t count);
