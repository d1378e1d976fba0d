#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool path_is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool path_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool folder_has_file(const char *folder, const char *name) {
    char path[PATH_BUFFER];
    Error ignored;
    return path_join(path, sizeof path, folder, name, &ignored) && path_is_file(path);
}

bool path_is_open(const char *path, int fd) {
    struct stat ours, named;
    return fd >= 0 && fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

bool path_is_link(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool path_check_no_link(const char *path, Error *err) {
    return !path_is_link(path) ||
           error_set(err, EXIT_DATA, "%s is a link; replace it with the file that it points to, or remove it", path);
}

const char *path_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// True if the folder of this program contains a program called `name`.
static bool is_installed(const char *name) {
    char path[PATH_BUFFER];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0) return false;
    path[length] = 0;
    const size_t folder = (size_t)(path_base(path) - path);
    return (size_t)snprintf(path + folder, sizeof path - folder, "%s", name) < sizeof path - folder &&
           path_is_file(path);
}

const char *prepare_name(void) {
    return is_installed("coat-prepare") ? "coat-prepare" : "data/prepare.py";
}

const char *prepare_bytes_name(void) {
    return is_installed("coat-prepare-bytes") ? "coat-prepare-bytes" : "build/prepare_bytes";
}

bool path_join(char *out, size_t size, const char *folder, const char *name, Error *err) {
    size_t length = strlen(folder);
    const char *between = length && folder[length - 1] == '/' ? "" : "/";
    int n = snprintf(out, size, "%s%s%s", folder, between, name);
    if (n < 0 || (size_t)n >= size)
        return error_set(err, EXIT_DATA, "path too long: %.200s.../%.100s; use a shorter folder name", folder, name);
    return true;
}

bool path_folder(char *out, size_t size, const char *path, Error *err) {
    const char *base = path_base(path);
    size_t length = (size_t)(base - path);
    if (length > 1) length--; // excludes the slash before the base name, unless the folder is the root
    if (length >= size) return error_set(err, EXIT_DATA, "path too long: %.200s...; use a shorter path", path);
    if (length == 0) {
        snprintf(out, size, ".");
    } else {
        memcpy(out, path, length);
        out[length] = 0;
    }
    return true;
}

bool name_is_plain(const char *name) {
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

bool folder_make(const char *path, Error *err) {
    char part[PATH_BUFFER];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return error_set(err, EXIT_DATA, "cannot create the folder '%.200s': the name is empty or too long", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0) continue;
        memcpy(part, path, i);
        part[i] = 0;
        int why = mkdir(part, 0777) == 0 ? 0 : errno;
        if (why && !path_is_folder(part))
            return error_set(err, EXIT_DATA, "cannot create the folder %s: %s", part,
                             why == EEXIST ? "a file has that name" : strerror(why));
    }
    return true;
}

bool call_is_unsupported(int why) {
    switch (why) {
    case EINVAL:     // CIFS and FUSE reject fsync() on a folder; some file systems reject flags of renameat2()
    case ENOSYS:     // the kernel is too old for renameat2(), or a sandbox lacks the system call
    case EOPNOTSUPP: // the same number as ENOTSUP
    case ENOTTY:     // some FUSE file systems return ENOTTY for calls that they lack
    case EBADF:      // some file systems flush or lock only files that are open for writing, and a folder cannot be
    case EPERM:      // sandboxes forbid the call
    case EACCES:     // the folder lacks the read permission that open() needs
    case ENOLCK:     // NFS without its lock service
        return true;
    default: return false;
    }
}

bool folder_sync(const char *path, Error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // accepts file systems that cannot flush folders: a power failure may undo renames, but the run can save
    bool good = (fd >= 0 && fsync(fd) == 0) || call_is_unsupported(errno);
    if (!good) error_set(err, EXIT_DATA, "cannot flush the folder %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return good;
}

#define WALK_OPEN 16 // number of folders that nftw() keeps open at a time

static __thread Error *walk_err; // filled by the callbacks of nftw(), to which no argument can be passed

static int may_remove(const char *path, const struct stat *st, int kind, struct FTW *at) {
    char folder[PATH_BUFFER];
    (void)st, (void)at;
    if (!path_folder(folder, sizeof folder, path, walk_err)) return 1;
    if (access(folder, W_OK | X_OK) != 0)
        error_set(walk_err, EXIT_DATA, "cannot remove the contents of %s: %s", folder, strerror(errno));
    else if (kind == FTW_DNR)
        error_set(walk_err, EXIT_DATA, "cannot remove %s: its contents cannot be listed", path);
    else
        return 0;
    return 1;
}

static int remove_visited(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    if (remove(path) == 0 || errno == ENOENT) return 0;
    error_set(walk_err, EXIT_DATA, "cannot remove %s: %s", path, strerror(errno));
    return 1;
}

// Calls visit() for the contents of a folder, then for the folder, without following links, until a call fails. Returns
// true if no call failed, also if `path` does not exist.
static bool walk(const char *path, int (*visit)(const char *, const struct stat *, int, struct FTW *), Error *err) {
    walk_err = err;
    const int result = nftw(path, visit, WALK_OPEN, FTW_DEPTH | FTW_PHYS);
    if (result >= 0 || errno == ENOENT) return result <= 0;
    return error_set(err, EXIT_DATA, "cannot remove %s: %s", path, strerror(errno));
}

bool folder_may_remove(const char *path, Error *err) {
    return walk(path, may_remove, err);
}

bool folder_remove(const char *path, Error *err) {
    return walk(path, remove_visited, err);
}

static bool cannot(Error *err, const char *doing, const char *path) {
    const int why = errno;
    error_set(err, EXIT_DATA, "cannot %s %s: %s", doing, path, strerror(why));
    err->unread = why == ENOENT || why == ENOTDIR ? 0 : why;
    return false;
}

bool file_open(const char *path, int *fd, uint64_t *size, Error *err) {
    char head[sizeof LFS_POINTER - 1];
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK, because opening a pipe must not block
    if (*fd < 0) return cannot(err, "open", path);
    const bool regular = fstat(*fd, &st) == 0 && S_ISREG(st.st_mode);
    const bool pointer = regular && pread(*fd, head, sizeof head, 0) == (ssize_t)sizeof head &&
                         memcmp(head, LFS_POINTER, sizeof head) == 0;
    if (regular && !pointer) {
        *size = (uint64_t)st.st_size;
        return true;
    }
    close(*fd);
    *fd = -1;
    if (pointer) return error_set(err, EXIT_DATA, "%s is a Git LFS pointer, not the file; run git lfs pull", path);
    return error_set(err, EXIT_DATA, "%s is not a regular file", path);
}

bool file_read_at(int fd, const char *path, uint64_t offset, void *to, size_t bytes, Error *err) {
    char *at = (char *)to;
    while (bytes) {
        ssize_t n = pread(fd, at, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cannot(err, "read", path);
        if (n == 0)
            return error_set(err, EXIT_DATA, "%s ends early; if it was truncated while it was read, copy it again",
                             path);
        at += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

bool file_read_all(const char *path, size_t limit, char **data, size_t *size, Error *err) {
    int fd;
    uint64_t length;
    *data = NULL;
    *size = 0;
    if (!file_open(path, &fd, &length, err)) return false;
    bool good = length <= limit || error_set(err, EXIT_DATA, "%s has %llu bytes, more than the maximum of %zu", path,
                                             (unsigned long long)length, limit);
    if (good) {
        *data = (char *)xmalloc((size_t)length + 1);
        *size = (size_t)length;
        (*data)[length] = 0;
        good = file_read_at(fd, path, 0, *data, *size, err);
    }
    close(fd);
    if (!good) {
        free(*data);
        *data = NULL;
    }
    return good;
}

FILE *file_open_lines(const char *path, Error *err) {
    int fd;
    uint64_t size;
    if (!file_open(path, &fd, &size, err)) return NULL;
    FILE *file = fdopen(fd, "r");
    if (file) return file;
    cannot(err, "open", path);
    close(fd);
    return NULL;
}

size_t file_read_line(FILE *file, char *line, size_t size) {
    size_t length = 0;
    for (int c; (c = getc_unlocked(file)) != EOF;) {
        if (length < size) line[length] = (char)c;
        length++;
        if (c != '\n') continue;
        if (length <= size) return length;
        length = 0;
    }
    return length <= size ? length : 0;
}

bool file_append(int fd, const char *path, const void *data, size_t bytes, Error *err) {
    const char *at = (const char *)data;
    while (bytes) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_set(err, EXIT_DATA, "cannot write %s: %s", path, strerror(errno));
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

int file_open_write(const char *path, int flags, Error *err) {
    struct stat st;
    const int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0666);
    const int why = fd < 0 ? errno : EINVAL;
    const bool there = fd >= 0 ? fstat(fd, &st) == 0 : lstat(path, &st) == 0;
    if (fd >= 0 && there && S_ISREG(st.st_mode) && st.st_nlink <= 1) return fd;
    const char *is = !there                 ? NULL
                     : S_ISLNK(st.st_mode)  ? "a link; remove it"
                     : !S_ISREG(st.st_mode) ? "not a regular file; remove it"
                     : fd >= 0 ? "a hard link to a file with another name; remove it or replace it with a copy"
                               : NULL;
    if (is)
        error_set(err, EXIT_DATA, "%s is %s", path, is);
    else
        error_set(err, EXIT_DATA, "cannot %s %s: %s", there && !(flags & O_EXCL) ? "write" : "create", path,
                  strerror(why));
    if (fd >= 0) close(fd);
    errno = why;
    return -1;
}

FILE *file_create_stream(const char *path, Error *err) {
    const int fd = file_open_write(path, O_EXCL, err);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && !file) fatal(EXIT_DEVICE, "host memory: could not open a stream for %s", path);
    return file;
}

bool file_create(const char *path, const void *data, size_t bytes, Error *err) {
    int fd = file_open_write(path, O_EXCL, err);
    if (fd < 0) return false;
    bool good = file_append(fd, path, data, bytes, err);
    if (good && fsync(fd) != 0) good = error_set(err, EXIT_DATA, "cannot flush %s: %s", path, strerror(errno));
    if (close(fd) != 0 && good) good = error_set(err, EXIT_DATA, "cannot close %s: %s", path, strerror(errno));
    return good;
}

bool file_replace(const char *path, const void *data, size_t bytes, Error *err) {
    char temporary[PATH_BUFFER], folder[PATH_BUFFER];
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    if (n < 0 || (size_t)n >= sizeof temporary)
        return error_set(err, EXIT_DATA, "path too long: %.200s...; use a shorter path", path);
    if (!path_folder(folder, sizeof folder, path, err)) return false;
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return error_set(err, EXIT_DATA, "%s is not a regular file; use another name", path);
    unlink(temporary); // removes a temporary file that a crashed program left, or a link of that name
    bool good = file_create(temporary, data, bytes, err);
    if (good && rename(temporary, path) != 0)
        good = error_set(err, EXIT_DATA, "cannot rename %s to %s: %s", temporary, path, strerror(errno));
    if (!good) unlink(temporary);
    return good && folder_sync(folder, err);
}
