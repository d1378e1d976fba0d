#include "outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "io/files.h"
#include "log/events.h"
#include "log/terminal.h"

bool out_is_run_file(const char *name) {
    return strcmp(name, "log.jsonl") == 0 || strcmp(name, "loss.svg") == 0 || strcmp(name, MATMUL_TABLE_NAME) == 0 ||
           events_is_name(name) || checkpoint_step(name) >= 0 || checkpoint_is_leftover(name, ".tmp") ||
           checkpoint_is_leftover(name, ".old");
}

// Finds a file of an earlier run. Of several files, picks the last name in alphabetical order, so that a complete
// checkpoint is preferred. Sets found to the name, or to "" if there is no such file. Fails (EXIT_DATA) if the folder
// cannot be read.
static bool find_run(const char *folder, char found[256], Error *err) {
    DIR *dir = opendir(folder);
    found[0] = 0;
    if (!dir) return error_set(err, EXIT_DATA, "--out %s: cannot be read: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));)
        if (out_is_run_file(e->d_name) && strcmp(e->d_name, found) > 0) snprintf(found, 256, "%s", e->d_name);
    closedir(dir);
    return true;
}

static bool make_folder(const char *path, Error *err) {
    Error why;
    return folder_make(path, &why) ||
           error_set(err, why.code, "--out %.300s: %.600s; name a folder that can be created and written", path,
                     why.text);
}

// Locks the existing folder at out->path.
static bool lock_folder(OutFolder *out, Error *err) {
    if (!lock_acquire(&out->lock, out->path, err)) return false;
    out->fd = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return true;
}

void out_close(OutFolder *out) {
    lock_release(&out->lock);
    if (out->fd >= 0) close(out->fd);
    out->fd = -1;
}

bool out_prepare(const Config *config, OutFolder *out, Error *err) {
    char found[256];
    snprintf(out->path, sizeof out->path, "%s", config->out);
    out->fd = out->lock.fd = -1;
    if (!make_folder(config->out, err)) return false;
    if (access(config->out, W_OK | X_OK) != 0)
        return error_set(err, EXIT_DATA,
                         "--out %s: the folder cannot be written: %s; change its permissions or name another folder",
                         config->out, strerror(errno));
    if (!lock_folder(out, err)) return false;
    if (config->resume || config->overwrite) return true;
    if (!find_run(config->out, found, err)) return false;
    return !found[0] ||
           error_set(err, EXIT_DATA,
                     "--out %s: already contains a run (%s); continue it with --resume, replace it with --overwrite, "
                     "or choose another folder",
                     config->out, found);
}

bool out_ensure(OutFolder *out, bool *taken, Error *err) {
    char found[256] = "";
    *taken = false;
    if (lock_is_held(&out->lock)) return true;
    OutFolder now = *out;
    // true if out->path is still the same folder and only its .lock file was removed
    const bool same = path_is_open(out->path, out->fd);
    if (!make_folder(out->path, err)) return false;
    if (!lock_folder(&now, err)) {
        *taken = now.lock.taken;
        return false;
    }
    if (!same && (!find_run(out->path, found, err) || found[0])) {
        out_close(&now);
        *taken = found[0] != 0;
        return found[0] && error_set(err, EXIT_DATA, "--out %s: contains another run (%s); choose another folder",
                                     out->path, found);
    }
    out_close(out);
    *out = now;
    print_remark("warning: ", "--out %s: %s was removed, renamed or replaced during the run; it is created again",
                 out->path, same ? "its .lock" : "the folder");
    return true;
}

// Calls act() for each file or folder in `out` that a run creates there, until a call fails.
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
                         "--overwrite: %.800s; nothing is deleted; change the permissions or name another --out",
                         why.text);
    return each_run_file(config->out, folder_remove, err);
}
