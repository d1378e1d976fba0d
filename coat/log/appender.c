#include "appender.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/files.h"
#include "step_line.h"

#define ASIDE_BYTES 4096            // of the longest path
#define MAX_HELD ((size_t)64 << 20) // bytes of a file: those of a hundred thousand steps and more

static void hold_none(Appender *a) {
    free(a->held);
    a->held = NULL;
    a->held_room = a->most_held = 0;
}

// Room for so many bytes of what is written.
static bool hold(Appender *a, size_t bytes) {
    if (bytes <= a->held_room) return a->most_held > 0;
    const size_t room = bytes < a->most_held / 2 ? 2 * bytes : a->most_held;
    char *grown = bytes <= a->most_held ? (char *)realloc(a->held, room) : NULL;
    if (!grown) {
        hold_none(a);
        return false;
    }
    a->held = grown;
    a->held_room = room;
    return true;
}

void appender_open(Appender *a, int fd, const char *path) {
    struct stat file;
    memset(a, 0, sizeof *a);
    a->fd = fd;
    a->path = path;
    if (fd < 0 || fstat(fd, &file) != 0) return;
    a->written = file.st_size;
    a->most_held = S_ISREG(file.st_mode) ? MAX_HELD : 0;
    const size_t bytes = (size_t)a->written;
    if (hold(a, bytes) && bytes > 0 && pread(fd, a->held, bytes, 0) != (ssize_t)bytes) hold_none(a);
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
        if (hold(a, (size_t)a->written + a->pending_bytes)) memcpy(a->held + a->written, a->pending, a->pending_bytes);
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
        print_remark("warning: ", "%s: cannot be written: %s; what it gets from step %" PRId64 " on waits in memory",
                     a->path, strerror(errno), step);
    if (good && a->failing) print_remark("note: ", "%s: can be written again, nothing is missing", a->path);
    a->failing = !good;
    return good;
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

// The bytes of whole pieces among so many of a file, as far as their end is known.
static int64_t whole_pieces(const Appender *a, int fd, int64_t bytes) {
    char last;
    while (a->end && bytes > 0 && pread(fd, &last, 1, (off_t)bytes - 1) == 1 && last != a->end) bytes--;
    return bytes;
}

// What was written so far, or as much as there is. False with errno.
static bool write_before(const Appender *a, int fd, int64_t *copied) {
    size_t done = 0;
    if (!a->most_held) return copy_file(fd, a->fd, a->written, copied);
    const bool good = write_all(fd, a->held, (size_t)a->written, &done);
    *copied = (int64_t)done;
    return good;
}

// Creates the file again under its name, which is free. False with errno: the appender continues with the old file.
static bool restore(Appender *a) {
    int64_t copied;
    Error ignored;
    int fd = file_open_write(a->path, O_EXCL | O_APPEND, &ignored);
    if (fd < 0) return false;
    bool good = write_before(a, fd, &copied);
    if (good && copied < a->written) copied = whole_pieces(a, fd, copied);
    if (!good || ftruncate(fd, (off_t)copied) != 0) {
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

// What has the file's name goes out of its way. aside: its new name, "" where there was nothing. False with errno.
static bool move_aside(const char *path, const char *stem, const char *ending, char *aside, size_t size) {
    struct stat st;
    aside[0] = 0;
    if (stat(path, &st) != 0) return true; // a link that leads nowhere leads to the new one
    for (int number = 1; number < 1000; number++) {
        snprintf(aside, size, "%.*s%s-replaced-%d%s", (int)(path_base(path) - path), path, stem, number, ending);
        if (lstat(aside, &st) == 0) continue;
        if (errno == ENOENT && rename(path, aside) == 0) return true;
        aside[0] = 0;
        return false;
    }
    aside[0] = 0;
    errno = EEXIST; // a thousand of them
    return false;
}

// Whether the file has lost bytes, and how many it has now.
static bool was_cut(const Appender *a, int64_t *left) {
    struct stat file;
    if (fstat(a->fd, &file) != 0 || !S_ISREG(file.st_mode)) return false;
    *left = file.st_size;
    return *left < a->written;
}

// Whether so many bytes of the file are the first or the latest of what was written, which is held.
static bool has_ours(const Appender *a, int64_t bytes) {
    char *now = (char *)malloc((size_t)bytes + 1);
    const bool read = now && pread(a->fd, now, (size_t)bytes, 0) == bytes;
    const bool ours = read && (memcmp(now, a->held, (size_t)bytes) == 0 ||
                               memcmp(now, a->held + a->written - bytes, (size_t)bytes) == 0);
    free(now);
    return ours;
}

// All of it waits in memory again, and is written from the beginning.
static bool write_again(Appender *a) {
    const size_t bytes = (size_t)a->written + a->pending_bytes;
    char *all = (char *)malloc(bytes);
    if (!all || ftruncate(a->fd, 0) != 0 || lseek(a->fd, 0, SEEK_SET) < 0) {
        free(all);
        return false;
    }
    memcpy(all, a->held, (size_t)a->written);
    if (a->pending_bytes) memcpy(all + a->written, a->pending, a->pending_bytes);
    free(a->pending);
    a->pending = all;
    a->pending_bytes = bytes;
    a->written = 0;
    a->torn = false;
    appender_flush(a);
    return true;
}

// Mends a file that has only some of our bytes left. KEPT: it has others', and goes out of the way.
static FileState mend_cut(Appender *a, int64_t left, const char *pieces, char *text, size_t size) {
    const int64_t written = a->written;
    if (a->most_held && !has_ours(a, left)) return FILE_KEPT;
    if (a->most_held && write_again(a)) {
        snprintf(text, size, "%s was cut off during the run; it is written again with all of its %s", a->path, pieces);
        return FILE_AGAIN;
    }
    lseek(a->fd, 0, SEEK_END);
    a->written = left;
    hold_none(a);
    snprintf(text, size, "%s was cut off during the run; %lld of its %lld bytes are lost", a->path,
             (long long)(written - left), (long long)written);
    return FILE_CHANGED;
}

FileState appender_keep(Appender *a, const char *stem, const char *ending, const char *pieces, char *text,
                        size_t size) {
    char aside[ASIDE_BYTES], with[96], kept[ASIDE_BYTES + 32] = "";
    int64_t written = a->written, left = 0;
    bool said = a->lost;
    text[0] = 0;
    a->lost = false;
    if (a->fd < 0) return FILE_KEPT;
    if (path_is_open(a->path, a->fd)) {
        if (!was_cut(a, &left)) return FILE_KEPT;
        const FileState mended = mend_cut(a, left, pieces, text, size);
        if (mended != FILE_KEPT) return mended;
    }
    bool moved = move_aside(a->path, stem, ending, aside, sizeof aside), good = moved && restore(a);
    const char *what = moved && !aside[0] ? "removed" : "replaced";
    if (aside[0])
        snprintf(kept, sizeof kept, "%s other file kept as %s", good ? ", and the" : "; the", path_base(aside));
    a->lost = !good;
    if (!good) {
        if (!said)
            snprintf(text, size, "%s was %s during the run and cannot be made again: %s%s", a->path, what,
                     strerror(errno), kept);
        return FILE_LOST;
    }
    bool whole = a->written == written;
    snprintf(with, sizeof with, whole ? "all of its %s" : "%s of %lld of its %lld bytes", pieces, (long long)a->written,
             (long long)written);
    snprintf(text, size, "%s was %s during the run; it is made again with %s%s", a->path, what, with, kept);
    return whole && !aside[0] ? FILE_AGAIN : FILE_CHANGED;
}

void appender_close(Appender *a) {
    if (a->fd >= 0) {
        appender_flush(a);
        close(a->fd);
    }
    free(a->pending);
    hold_none(a);
    a->pending = NULL;
    a->fd = -1;
}
