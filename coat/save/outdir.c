#include "outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "io/files.h"
#include "io/matmul_choices.h"
#include "log/events.h"
#include "manifest.h"
#include "outdir_take.h"

bool out_is_checkpoint_name(const char *name) {
    if (*name == '.') name++;
    return strncmp(name, "step-", 5) == 0 && strspn(name + 5, "0123456789") >= 8;
}

bool out_is_run_file(const char *name) {
    return strcmp(name, "log.jsonl") == 0 || strcmp(name, "loss.svg") == 0 || strcmp(name, MATMUL_TABLE_NAME) == 0 ||
           events_is_name(name) || out_is_checkpoint_name(name);
}

// Deletes a file, or a checkpoint folder with the files in it. Links are removed, never followed.
static bool remove_entry(const char *path, Error *err) {
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) return folder_remove(path, err);
    if (unlink(path) == 0) return true;
    return error_set(err, EXIT_DATA, "%s: cannot be removed for --overwrite: %s", path, strerror(errno));
}

static bool is_newest(const char *out, int64_t step) {
    int64_t *steps;
    Error ignored;
    bool newest = checkpoint_steps(out, &steps, &ignored) > 0 && steps[0] == step;
    free(steps);
    return newest;
}

static bool has_file(const char *folder, const char *name) {
    char path[PATH_MAX];
    Error ignored;
    return path_join(path, sizeof path, folder, name, &ignored) && path_is_file(path);
}

// The path without links, also where its end does not exist yet.
static void real_path(const char *path, char actual[PATH_MAX]) {
    char above[PATH_MAX], found[PATH_MAX];
    snprintf(above, sizeof above, "%s", path);
    size_t length = strlen(above);
    while (length > 0 && !realpath(above, found)) {
        while (length > 0 && above[length - 1] == '/') length--;
        while (length > 0 && above[length - 1] != '/') length--;
        above[length] = 0;
    }
    if (length == 0 && !realpath(".", found)) found[0] = 0;
    snprintf(actual, PATH_MAX, "%.2000s%s%.2000s", found, path[length] ? "/" : "", path + length);
}

// The checkpoint that a path is, or lies in: so many characters of it, without slashes behind; 0: none.
static size_t checkpoint_in(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (size_t length = strlen(folder); length > 0;) {
        while (length > 1 && folder[length - 1] == '/') length--;
        folder[length] = 0;
        if (checkpoint_step(folder) >= 0 || (has_file(folder, MANIFEST_NAME) && has_file(folder, "state.json")))
            return length;
        while (length > 0 && folder[length - 1] != '/') length--;
        if (length == 1) break; // the root
    }
    return 0;
}

bool out_check(const Config *config, Error *err) {
    char actual[PATH_MAX], path[PATH_MAX], run[PATH_MAX], number[32] = "";
    const char *out = config->out;
    if (!out[0]) return true;
    real_path(out, actual);
    const size_t length = checkpoint_in(actual), written = checkpoint_in(out);
    if (length == 0) return true;
    const bool inside = actual[length + strspn(actual + length, "/")];
    const char *in = inside ? "lies in" : "is";
    snprintf(path, sizeof path, "%.*s", (int)length, actual);
    const int64_t step = checkpoint_step(path);
    if (step < 0) // a copy under another name
        return error_set(
            err, EXIT_DATA,
            "--out %s: this %s a checkpoint; name another folder for the run, and start it from this one's "
            "weights by --model %s",
            out, in, inside ? path : out);
    const bool exists = path_is_folder(path);
    snprintf(run, sizeof run, "%.*s", (int)written, out); // as the user wrote it, unless that is a link or "."
    if (checkpoint_step(run) == step) snprintf(path, sizeof path, "%s", run);
    if (!path_folder(run, sizeof run, path, err)) return false;
    if (!is_newest(run, step)) snprintf(number, sizeof number, "=%lld", (long long)step);
    return error_set(err, EXIT_DATA, "--out %s: this %s %s; its run is %s: --out %s --resume%s%s", out,
                     inside && !exists ? "lies below" : in, exists ? "a checkpoint" : "the name of a checkpoint", run,
                     run, exists ? number : "", config->resume ? "" : ", or choose another folder");
}

bool out_find_run(const char *folder, char found[256], Error *err) {
    DIR *dir = opendir(folder);
    found[0] = 0;
    if (!dir) return error_set(err, EXIT_DATA, "--out %s: cannot be read: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));)
        if (out_is_run_file(e->d_name) && strcmp(e->d_name, found) > 0) snprintf(found, 256, "%s", e->d_name);
    closedir(dir);
    return true;
}

// Without the working directory, which may be removed. Where it does not fit: "".
static void set_absolute(OutFolder *out) {
    char current[PATH_MAX];
    const bool relative = out->path[0] != '/', known = !relative || getcwd(current, sizeof current);
    const int length = snprintf(out->absolute, sizeof out->absolute, "%s%s%s", relative && known ? current : "",
                                relative ? "/" : "", out->path);
    if (!known || length >= (int)sizeof out->absolute) out->absolute[0] = 0;
}

bool out_take(OutFolder *out, const OutFolder *before, Error *err) {
    Lock lock = {-1, "", ""};
    char actual[PATH_MAX];
    const bool again = before && path_is_open(out->path, before->fd); // one lock for both
    int fd = again ? fcntl(before->fd, F_DUPFD_CLOEXEC, 0) : open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool other = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; // else it cannot be locked
    if (other ? !lock_refuse(&lock, out->path, err) : !lock_take(&lock, out->path, err)) {
        snprintf(out->lock.holder, sizeof out->lock.holder, "%s", lock.holder);
        if (fd >= 0) close(fd);
        return false;
    }
    out_close(out);
    out->lock = lock;
    out->fd = fd;
    set_absolute(out);
    snprintf(out->real, sizeof out->real, "%s", realpath(out->path, actual) ? actual : "");
    return true;
}

void out_close(OutFolder *out) {
    lock_release(&out->lock);
    if (out->fd >= 0) close(out->fd);
    if (out->first >= 0) close(out->first);
    out->fd = out->first = -1;
}

bool out_prepare(const Config *config, OutFolder *out, Error *err) {
    snprintf(out->path, sizeof out->path, "%s", config->out);
    out->fd = out->first = out->lock.fd = -1;
    Error why;
    if (!folder_make(config->out, &why))
        return error_set(err, why.code, "--out %.300s: %.600s; name a folder that can be made and written", config->out,
                         why.text);
    if (access(config->out, W_OK | X_OK) != 0)
        return error_set(err, EXIT_DATA, "--out %s: the folder cannot be written: %s", config->out, strerror(errno));
    if (!out_take(out, NULL, err)) return false;
    if (config->resume || config->overwrite) return true;
    char found[256];
    if (!out_find_run(config->out, found, err)) return false;
    if (!found[0]) return true;
    return error_set(err, EXIT_DATA,
                     "--out %s: holds a run already (%s); continue it with --resume, replace it with --overwrite, or "
                     "choose another folder",
                     config->out, found);
}

bool out_clear(const Config *config, Error *err) {
    if (!config->overwrite) return true;
    DIR *dir = opendir(config->out);
    if (!dir) return error_set(err, EXIT_DATA, "--out %s: cannot be read: %s", config->out, strerror(errno));
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(dir));) {
        char path[PATH_MAX_LENGTH + 512];
        snprintf(path, sizeof path, "%s/%s", config->out, e->d_name);
        if (out_is_run_file(e->d_name)) ok = remove_entry(path, err);
    }
    closedir(dir);
    return ok;
}
