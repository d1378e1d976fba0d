#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/files.h"

#define HOLDER_BYTES 512
#define OLD_GUARD_SECONDS 60

// "HOST PID SINCE", one line.
static bool write_holder(const Lock *lock) {
    char text[HOLDER_BYTES], host[256] = "?", since[64];
    time_t now = time(NULL);
    struct tm local;
    gethostname(host, sizeof host - 1);
    strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    int length = snprintf(text, sizeof text, "%s %ld %s\n", host, (long)getpid(), since);
    return ftruncate(lock->fd, 0) == 0 && pwrite(lock->fd, text, (size_t)length, 0) == length;
}

typedef struct {
    char host[256], since[64];
    long pid; // 0: the file does not say
} Holder;

static Holder read_holder(const char *path) {
    char *text;
    size_t size;
    Holder holder = {"?", "?", 0};
    Error ignored;
    if (!file_read_all(path, HOLDER_BYTES, &text, &size, &ignored)) return holder;
    if (sscanf(text, "%255s %ld %63[^\n]", holder.host, &holder.pid, holder.since) < 2) holder.pid = 0;
    free(text);
    return holder;
}

static bool held(Lock *lock, const char *folder, const char *path, const char *fix, Error *err) {
    Holder holder = read_holder(path);
    if (holder.pid > 0)
        snprintf(lock->holder, sizeof lock->holder, "process %ld on %s, since %s", holder.pid, holder.host,
                 holder.since);
    else
        snprintf(lock->holder, sizeof lock->holder, "its .lock %s",
                 path_is_file(path) ? "does not say which" : "was removed");
    return error_set(err, EXIT_DATA, "--out %s: another run is writing there: %s; stop it or choose another folder%s",
                     folder, lock->holder, fix);
}

bool lock_refuse(Lock *lock, const char *folder, Error *err) {
    char path[1100];
    snprintf(path, sizeof path, "%s/.lock", folder);
    return held(lock, folder, path, "", err);
}

static bool cannot_write(const char *path, Error *err) {
    return error_set(err, EXIT_DATA, "%s: the lock of the run cannot be written: %s; %s", path, strerror(errno),
                     errno == ENOSPC || errno == EDQUOT ? "make room there" : "name an --out that can be written");
}

bool lock_is_held(const Lock *lock) {
    return path_is_open(lock->path, lock->fd);
}

static void drop(Lock *lock) {
    close(lock->fd);
    lock->fd = -1;
}

static bool is_dead(const Holder *holder) {
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    return holder->pid > 0 && strcmp(holder->host, host) == 0 && kill((pid_t)holder->pid, 0) != 0 && errno == ESRCH;
}

// Whether a run that lives, or may live on another machine, has written the other kind of file: flock() may work on one
// machine that sees the folder, and not on the next.
static bool held_otherwise(Lock *lock, const char *folder, const char *name, Error *err) {
    char path[1100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    Holder holder = read_holder(path);
    if (holder.pid == 0 || is_dead(&holder)) return false;
    char fix[64];
    snprintf(fix, sizeof fix, ", or delete its %s if that run is dead", name);
    return !held(lock, folder, path, fix, err);
}

// Removes a dead run's file. Of several processes that find it one does so, after another look: the file may be a new
// run's by then.
static bool remove_dead(const char *path, const char *folder) {
    char guard[1100];
    struct stat st;
    snprintf(guard, sizeof guard, "%s/.lock-removal", folder);
    // there for a moment only: an old one is of a process that was killed here
    if (stat(guard, &st) == 0 && time(NULL) - st.st_mtime > OLD_GUARD_SECONDS) unlink(guard);
    Error ignored;
    int fd = file_open_write(guard, O_EXCL, &ignored);
    if (fd < 0) return false;
    Holder holder = read_holder(path);
    if (is_dead(&holder)) unlink(path);
    unlink(guard);
    close(fd);
    return true;
}

bool lock_take(Lock *lock, const char *folder, Error *err) {
    snprintf(lock->path, sizeof lock->path, "%s/.lock", folder);
    lock->holder[0] = 0;
    for (;;) {
        lock->fd = file_open_write(lock->path, 0, err);
        if (lock->fd < 0) return false;
        if (flock(lock->fd, LOCK_EX | LOCK_NB) != 0) {
            const int why = errno;
            drop(lock);
            if (why == EWOULDBLOCK) return held(lock, folder, lock->path, "", err);
            errno = why;
            if (!call_is_unsupported(why)) return cannot_write(lock->path, err);
            if (held_otherwise(lock, folder, ".lock", err)) return false;
            return lock_take_by_presence(lock, folder, err);
        }
        if (lock_is_held(lock)) break; // a run that ends removes its own file
        drop(lock);
    }
    if (held_otherwise(lock, folder, ".lock-holder", err)) {
        lock_release(lock);
        return false;
    }
    char other[1100]; // a dead run's: its process's number may be another's one day
    snprintf(other, sizeof other, "%s/.lock-holder", folder);
    if (path_is_file(other)) remove_dead(other, folder);
    if (write_holder(lock)) return true;
    cannot_write(lock->path, err);
    lock_release(lock);
    return false;
}

bool lock_take_by_presence(Lock *lock, const char *folder, Error *err) {
    snprintf(lock->path, sizeof lock->path, "%s/.lock-holder", folder);
    lock->holder[0] = 0;
    for (int attempt = 0; attempt < 2; attempt++) {
        lock->fd = file_open_write(lock->path, O_EXCL, err);
        if (lock->fd >= 0) {
            if (write_holder(lock)) return true;
            cannot_write(lock->path, err);
            lock_release(lock);
            return false;
        }
        if (errno != EEXIST) return false;
        Holder holder = read_holder(lock->path);
        if (!is_dead(&holder) || !remove_dead(lock->path, folder)) break;
    }
    return held(lock, folder, lock->path, ", or delete its .lock-holder if that run is dead", err);
}

bool lock_was_left(const char *folder) {
    static const char *const names[] = {".lock", ".lock-holder"};
    char path[1100], host[256] = "?";
    bool left = false;
    gethostname(host, sizeof host - 1);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        Holder holder = read_holder(path);
        bool ours = holder.pid == (long)getpid() && strcmp(holder.host, host) == 0;
        if (ours && i == 1) unlink(path); // it would lock us out
        left |= ours;
    }
    return left;
}

void lock_release(Lock *lock) {
    if (lock->fd < 0) return;
    if (lock_is_held(lock)) unlink(lock->path); // the folder may have been replaced, and be another run's by now
    drop(lock);
}
