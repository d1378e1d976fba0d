#include "appender.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void appender_open(Appender *a, int fd, const char *path) {
    struct stat file;
    memset(a, 0, sizeof *a);
    a->fd = fd;
    a->path = path;
    if (fd >= 0 && fstat(fd, &file) == 0) a->written = file.st_size;
}

void appender_add(Appender *a, const void *piece, size_t bytes) {
    if (a->fd < 0) return;
    char *grown = (char *)realloc(a->pending, a->pending_bytes + bytes);
    if (!grown) return;
    a->pending = grown;
    memcpy(a->pending + a->pending_bytes, piece, bytes);
    a->pending_bytes += bytes;
}

// A signal or a short write does not tear a piece; *done: the bytes that were written.
static bool write_all(int fd, const char *bytes, size_t count, size_t *done) {
    for (*done = 0; *done < count;) {
        ssize_t n = write(fd, bytes + *done, count - *done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        *done += (size_t)n;
    }
    return true;
}

// Back to the end of the last whole piece. Readers see no half ones, and the next does not come behind one.
static bool cut_off(Appender *a) {
    if (ftruncate(a->fd, (off_t)a->written) == 0 && lseek(a->fd, (off_t)a->written, SEEK_SET) >= 0) a->torn = false;
    return !a->torn;
}

bool appender_flush(Appender *a) {
    size_t done;
    if (a->pending_bytes == 0) return true;
    if (a->torn && !cut_off(a)) return false;
    if (write_all(a->fd, a->pending, a->pending_bytes, &done)) {
        a->written += (int64_t)a->pending_bytes;
        a->pending_bytes = 0;
        return true;
    }
    int why = errno;
    a->torn = done > 0;
    if (a->torn) cut_off(a);
    errno = why;
    return false;
}

bool appender_flush_say(Appender *a, int64_t step) {
    bool good = appender_flush(a);
    if (!good && !a->failing)
        fprintf(stderr, "warning: %s: cannot be written: %s; what it gets from step %" PRId64 " on waits in memory\n",
                a->path, strerror(errno), step);
    if (good && a->failing) fprintf(stderr, "note: %s: can be written again, nothing is missing\n", a->path);
    a->failing = !good;
    return good;
}

bool appender_is_there(const Appender *a) {
    struct stat ours, named;
    return a->fd < 0 || (fstat(a->fd, &ours) == 0 && stat(a->path, &named) == 0 && ours.st_ino == named.st_ino &&
                         ours.st_dev == named.st_dev);
}

// The first `bytes` bytes of a file, or as many as it has. False with errno.
static bool copy_file(int to, int from, int64_t bytes, int64_t *copied) {
    char piece[1 << 16];
    for (*copied = 0; *copied < bytes;) {
        size_t done, wanted = bytes - *copied < (int64_t)sizeof piece ? (size_t)(bytes - *copied) : sizeof piece;
        ssize_t n = pread(from, piece, wanted, (off_t)*copied);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        if (n == 0) break; // somebody has cut it off
        if (!write_all(to, piece, (size_t)n, &done)) return false;
        *copied += n;
    }
    return true;
}

bool appender_restore(Appender *a) {
    int64_t copied;
    int fd = open(a->path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    if (!copy_file(fd, a->fd, a->written, &copied)) {
        int why = errno;
        unlink(a->path);
        close(fd);
        errno = why;
        return false;
    }
    close(a->fd);
    a->fd = fd;
    a->written = copied;
    a->torn = false;
    return true;
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
