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
#include "log/events.h"
#include "manifest.h"
#include "outdir_take.h"

bool out_is_checkpoint_name(const char *name) {
    if (*name == '.') name++;
    return strncmp(name, "step-", 5) == 0 && strspn(name + 5, "0123456789") >= 8;
}

// A copy that the user made, "step-00000020-good", is none.
static bool is_own_checkpoint(const char *name) {
    if (*name != '.') return checkpoint_step(name) >= 0;
    const char *end = strrchr(name, '.');
    return out_is_checkpoint_name(name) && (strcmp(end, ".tmp") == 0 || strcmp(end, ".old") == 0);
}

bool out_is_run_file(const char *name) {
    return strcmp(name, "log.jsonl") == 0 || strcmp(name, "loss.svg") == 0 || strcmp(name, MATMUL_TABLE_NAME) == 0 ||
           events_is_name(name) || is_own_checkpoint(name);
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
        return error_set(err, EXIT_DATA, "--out %s: the folder cannot be written: %s; name another, or mend that",
                         config->out, strerror(errno));
    if (!out_take(out, NULL, err)) return false;
    if (config->resume || config->overwrite) return true;
    char found[256];
    if (!out_find_run(config->out, found, err)) return false;
    if (!found[0]) {
        out_note_inside(config);
        return true;
    }
    return error_set(err, EXIT_DATA,
                     "--out %s: holds a run already (%s); continue it with --resume, replace it with --overwrite, or "
                     "choose another folder",
                     config->out, found);
}

static bool each_run_file(const char *out, bool (*act)(const char *path, Error *err), Error *err) {
    DIR *dir = opendir(out);
    if (!dir) return error_set(err, EXIT_DATA, "--out %s: cannot be read: %s", out, strerror(errno));
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(dir));) {
        char path[PATH_MAX_LENGTH + 512];
        snprintf(path, sizeof path, "%s/%s", out, e->d_name);
        if (out_is_run_file(e->d_name)) ok = act(path, err);
    }
    closedir(dir);
    return ok;
}

bool out_clear(const Config *config, Error *err) {
    Error why;
    if (!config->overwrite) return true;
    if (!each_run_file(config->out, folder_may_remove, &why))
        return error_set(err, why.code,
                         "--overwrite: %.800s; nothing is deleted: change the permissions or name another --out",
                         why.text);
    return each_run_file(config->out, folder_remove, err);
}
