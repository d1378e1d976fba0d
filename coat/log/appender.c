#include "appender.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "terminal.h"

void appender_open(Appender *a, int fd, const char *path) {
    memset(a, 0, sizeof *a);
    a->fd = fd;
    a->path = path;
    a->torn_at = -1;
}

void appender_reopen(Appender *a, int fd) {
    close(a->fd);
    a->fd = fd;
    a->torn_at = -1;
}

void appender_add(Appender *a, const void *record, size_t bytes) {
    char *grown = a->fd < 0 ? NULL : (char *)realloc(a->pending, a->pending_bytes + bytes);
    if (!grown) return;
    a->pending = grown;
    memcpy(a->pending + a->pending_bytes, record, bytes);
    a->pending_bytes += bytes;
}

// Removes an incomplete record from the end of the file. Returns false with errno on failure.
static bool cut_off(Appender *a) {
    if (a->torn_at >= 0 && ftruncate(a->fd, (off_t)a->torn_at) == 0) a->torn_at = -1;
    return a->torn_at < 0;
}

bool appender_flush(Appender *a) {
    size_t done = 0;
    if (a->pending_bytes == 0) return true;
    if (!cut_off(a)) return false;
    const off_t end = lseek(a->fd, 0, SEEK_END);
    while (done < a->pending_bytes) {
        const ssize_t n = write(a->fd, a->pending + done, a->pending_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        done += (size_t)n;
    }
    if (done == a->pending_bytes) {
        a->pending_bytes = 0;
        return true;
    }
    const int why = errno;
    if (done > 0) a->torn_at = end;
    cut_off(a);
    errno = why;
    return false;
}

bool appender_flush_or_warn(Appender *a, int64_t step) {
    const bool good = appender_flush(a);
    if (!good && !a->failing)
        print_remark("warning: ", "%s: cannot be written: %s; lines from step %" PRId64 " on are buffered in memory",
                     a->path, strerror(errno), step);
    if (good && a->failing) print_remark("note: ", "%s: can be written again; no line is missing", a->path);
    a->failing = !good;
    return good;
}

void appender_close(Appender *a) {
    if (a->fd >= 0) {
        appender_flush(a);
        close(a->fd);
    }
    free(a->pending);
    a->pending = NULL;
    a->fd = -1;
}
