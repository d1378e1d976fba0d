#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "io/files.h"

#define HOLDER_BYTES 512

// Writes "HOST PID START" and a newline to the .lock file.
static bool write_holder(const Lock *lock) {
    char text[HOLDER_BYTES], host[256] = "?", start[64];
    time_t now = time(NULL);
    struct tm local;
    gethostname(host, sizeof host - 1);
    strftime(start, sizeof start, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    int length = snprintf(text, sizeof text, "%s %ld %s\n", host, (long)getpid(), start);
    return ftruncate(lock->fd, 0) == 0 && pwrite(lock->fd, text, (size_t)length, 0) == length;
}

// Sets err to an error that names the run that holds the lock. Returns false.
static bool refuse(Lock *lock, const char *folder, const char *remedy, Error *err) {
    char *text = NULL, host[256], start[64], holder[400] = "its .lock does not name the process";
    size_t size;
    long pid;
    Error ignored;
    lock->taken = true;
    if (file_read_all(lock->path, HOLDER_BYTES, &text, &size, &ignored) &&
        sscanf(text, "%255s %ld %63[^\n]", host, &pid, start) == 3)
        snprintf(holder, sizeof holder, "process %ld on %s, since %s", pid, host, start);
    free(text);
    return error_set(err, EXIT_DATA, "--out %s: another run is writing there: %s; stop it or choose another folder%s",
                     folder, holder, remedy);
}

static bool cannot_write(const Lock *lock, const char *folder, int why, Error *err) {
    const bool full = why == ENOSPC || why == EDQUOT;
    return error_set(err, EXIT_DATA, "%s: the run's lock cannot be written: %s; %s%s", lock->path, strerror(why),
                     full ? "free disk space in " : "set --out to a folder that can be written", full ? folder : "");
}

bool lock_is_held(const Lock *lock) {
    return path_is_open(lock->path, lock->fd);
}

static void close_lock(Lock *lock) {
    close(lock->fd);
    lock->fd = -1;
}

bool lock_acquire(Lock *lock, const char *folder, Error *err) {
    snprintf(lock->path, sizeof lock->path, "%s/.lock", folder);
    lock->taken = false;
    for (;;) {
        lock->fd = file_open_write(lock->path, O_EXCL, err);
        const bool created = lock->fd >= 0;
        if (!created && errno == EEXIST) lock->fd = file_open_write(lock->path, 0, err);
        if (lock->fd < 0) return false;
        const int why = flock(lock->fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        const bool unsupported = why && call_is_unsupported(why), locked = why == 0 || (unsupported && created);
        if (locked && lock_is_held(lock)) break;
        close_lock(lock);
        if (locked)
            continue; // the file that was locked is gone, because the run that held it has just ended; try again
        if (why == EWOULDBLOCK) return refuse(lock, folder, "", err);
        if (unsupported) return refuse(lock, folder, ", or delete its .lock if that run is dead", err);
        return cannot_write(lock, folder, why, err);
    }
    if (write_holder(lock)) return true;
    const int why = errno;
    lock_release(lock);
    return cannot_write(lock, folder, why, err);
}

void lock_release(Lock *lock) {
    if (lock->fd < 0) return;
    if (lock_is_held(lock)) unlink(lock->path);
    close_lock(lock);
}
