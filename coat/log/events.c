#include "events.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/config.h"
#include "io/files.h"

#define NAME_PREFIX "events.out.tfevents."
#define EVENT_BYTES 2048 // maximum size of an event in bytes; an event of log_object() may have about 900

struct EventWriter {
    Appender file;
    char path[PATH_MAX_LENGTH + 160];
    bool has_scalars; // true: the file contains scalars; false: only the format's version and a session's start
};

// --- encoding of TFRecords: length, bytes and checksums ------------------------------------------------------------

uint32_t crc32c(const void *bytes, size_t count) {
    const uint8_t *p = (const uint8_t *)bytes;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < count; i++) {
        crc ^= p[i];
        // 0x82F63B78 is CRC-32C's polynomial 0x1EDC6F41 with reversed bits. No lookup table is used, because a training
        // step checksums only a few hundred bytes.
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ ((crc & 1) ? 0x82F63B78u : 0);
    }
    return ~crc;
}

uint32_t crc32c_masked(const void *bytes, size_t count) {
    uint32_t crc = crc32c(bytes, count);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

// Buffer in which a message is built in protobuf's wire format.
typedef struct {
    uint8_t bytes[EVENT_BYTES];
    size_t size;
    bool overflow; // true: the message did not fit and must not be written
} Message;

static void put_raw(Message *m, const void *bytes, size_t count) {
    if (count > sizeof m->bytes - m->size) {
        m->overflow = true;
        return;
    }
    memcpy(m->bytes + m->size, bytes, count);
    m->size += count;
}

// Appends the lowest `count` bytes of value to the message in little-endian order.
static void put_little_endian(Message *m, uint64_t value, int count) {
    uint8_t bytes[8];
    for (int i = 0; i < count; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    put_raw(m, bytes, (size_t)count);
}

// Appends the event as a TFRecord to the pending records. Returns false if the event is too long.
static bool add_record(EventWriter *writer, const Message *event) {
    Message record;
    record.size = 0;
    record.overflow = false;
    put_little_endian(&record, event->size, 8);
    put_little_endian(&record, crc32c_masked(record.bytes, 8), 4);
    put_raw(&record, event->bytes, event->size);
    put_little_endian(&record, crc32c_masked(event->bytes, event->size), 4);
    if (event->overflow || record.overflow) return false;
    appender_add(&writer->file, record.bytes, record.size);
    return true;
}

// --- protobuf encoding of events -----------------------------------------------------------------------------------
// Field numbers are those of TensorFlow's event.proto and summary.proto.

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_varint(Message *m, uint64_t value) {
    for (; value >= 0x80; value >>= 7) put_little_endian(m, (value & 0x7F) | 0x80, 1);
    put_little_endian(m, value, 1);
}

static void put_key(Message *m, int field, int wire) {
    put_varint(m, (uint64_t)(field << 3 | wire));
}

static void put_bytes(Message *m, int field, const void *bytes, size_t count) {
    put_key(m, field, WIRE_BYTES);
    put_varint(m, count);
    put_raw(m, bytes, count);
}

static void put_double(Message *m, int field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, WIRE_64);
    put_little_endian(m, bits, 8);
}

static void put_float(Message *m, int field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(m, field, WIRE_32);
    put_little_endian(m, bits, 4);
}

// Begins an Event message: fields 1, wall_time (double), and 2, step (int64). The caller must append one more field.
static void event_begin(Message *m, int64_t step) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    m->size = 0;
    m->overflow = false;
    put_double(m, 1, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    put_key(m, 2, WIRE_VARINT);
    put_varint(m, (uint64_t)step);
}

static void add_version(EventWriter *writer) {
    static const char version[] = "brain.Event:2";
    Message event;
    event_begin(&event, 0);
    put_bytes(&event, 3, version, sizeof version - 1); // field file_version
    add_record(writer, &event);
}

static void add_session_start(EventWriter *writer, int64_t first_step) {
    static const uint8_t start[] = {1 << 3 | WIRE_VARINT, 1}; // SessionLog message whose field `status` is START
    Message event;
    event_begin(&event, first_step > 1 ? first_step : 0);
    put_bytes(&event, 7, start, sizeof start); // field session_log
    add_record(writer, &event);
}

// --- creating, writing and closing event files -----------------------------------------------------------------------

bool events_is_name(const char *name) {
    return strncmp(name, NAME_PREFIX, sizeof NAME_PREFIX - 1) == 0;
}

// Returns SECONDS for the name of a new event file: the current time, but at least 1 more than in the newest existing
// name. File names thus sort by start, even if two starts occur in the same second or the clock was set back.
static int64_t name_time(const char *folder) {
    int64_t seconds = (int64_t)time(NULL);
    DIR *dir = opendir(folder);
    if (!dir) return seconds;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!events_is_name(e->d_name)) continue;
        int64_t other = strtoll(e->d_name + sizeof NAME_PREFIX - 1, NULL, 10);
        if (other >= seconds && other < 9999999999) seconds = other + 1;
    }
    closedir(dir);
    return seconds;
}

EventWriter *events_open(const char *folder, int64_t first_step, Error *err) {
    EventWriter *writer = (EventWriter *)xcalloc(1, sizeof *writer);
    char host[65] = "";
    if (gethostname(host, sizeof host - 1) != 0 || !name_is_plain(host)) snprintf(host, sizeof host, "localhost");
    snprintf(writer->path, sizeof writer->path, "%s/" NAME_PREFIX "%010lld.%s", folder, (long long)name_time(folder),
             host);
    appender_open(&writer->file, file_open_write(writer->path, O_EXCL | O_APPEND, err), writer->path);
    if (writer->file.fd >= 0) {
        add_version(writer);
        add_session_start(writer, first_step);
        if (appender_flush(&writer->file)) return writer;
    }
    error_set(err, EXIT_DATA, "%s: cannot be written: %s", writer->path, strerror(errno));
    events_close(writer);
    return NULL;
}

bool events_write(EventWriter *writer, int64_t step, const Scalar *scalars, int count) {
    Message event, summary, value;
    summary.size = 0;
    summary.overflow = false;
    for (int i = 0; i < count; i++) {
        value.size = 0;
        value.overflow = false;
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag)); // field tag
        put_float(&value, 2, (float)scalars[i].value);                // field simple_value
        put_bytes(&summary, 1, value.bytes, value.size);              // adds the value to the summary
        summary.overflow |= value.overflow;
    }
    event_begin(&event, step);
    put_bytes(&event, 5, summary.bytes, summary.size); // field summary
    event.overflow |= summary.overflow;
    writer->has_scalars = true;
    return add_record(writer, &event) && appender_flush_or_warn(&writer->file, step);
}

bool events_in_place(const EventWriter *writer) {
    return path_is_open(writer->path, writer->file.fd);
}

const char *events_path(const EventWriter *writer) {
    return writer->path;
}

void events_close(EventWriter *writer) {
    if (!writer) return;
    const bool empty = !writer->has_scalars && events_in_place(writer);
    appender_close(&writer->file);
    if (empty) unlink(writer->path);
    free(writer);
}
