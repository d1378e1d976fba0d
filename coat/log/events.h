// TensorBoard event files, written without TensorFlow or protobuf: OUT/events.out.tfevents.SECONDS.HOST, beside
// log.jsonl and with the same figures.
//
// A file is a sequence of TFRecords (length, CRC, bytes, CRC), each an Event message of TensorFlow's event.proto:
// first the format's version, then the start of a session, then one event per log line with its scalars. Every start
// of the program writes a file of its own, whose name sorts after those that are there: readers go through them in
// that order, and the session's start makes them drop what earlier files hold for its step and later ones. So the
// curves of a run that was killed and resumed from an earlier checkpoint have no doubled steps, and no file that
// exists is ever rewritten.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "appender.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct EventWriter EventWriter;

typedef struct {
    const char *tag; // the curve's name
    double value;    // stored as float; may be inf or NaN
} Scalar;

// Starts a new file in `folder`, which exists. first_step: the first step that this process will log; what earlier
// files hold from it on is dropped by readers (1 or less: all that they hold). NULL with err (EXIT_DATA).
EventWriter *events_open(const char *folder, int64_t first_step, Error *err);

// One event with the scalars of a step, written when it returns. False where the file cannot take it now, which is said
// on stderr once: then it ends with the event before, and this one waits in memory until a later call (appender.h); or
// where it is too long.
bool events_write(EventWriter *writer, int64_t step, const Scalar *scalars, int count);

// Makes the file again, with all that it held, where it was removed or replaced, or where it is to be in another
// folder. A file that has its name by then is kept as events-replaced-1 or the next number that is free, which
// TensorBoard does not read. text: what has happened, as appender_keep() says it.
FileState events_keep(EventWriter *writer, const char *folder, char *text, size_t size);

const char *events_path(const EventWriter *writer);
void events_close(EventWriter *writer); // removes a file without events of steps; NULL is allowed

// Whether a name in a run's folder is that of an event file.
bool events_is_name(const char *name);

// CRC-32C (Castagnoli) of the bytes, and the masked form in which TFRecords store it.
uint32_t crc32c(const void *bytes, size_t count);
uint32_t crc32c_masked(const void *bytes, size_t count);

#ifdef __cplusplus
}
#endif
