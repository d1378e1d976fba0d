#include "outdir.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "events.h"
#include "files.h"
#include "manifest.h"
#include "matmul_choices.h"

// step-00000020, or what was left of writing one.
static bool is_checkpoint_name(const char *name) {
    if (*name == '.') name++;
    return strncmp(name, "step-", 5) == 0 && strspn(name + 5, "0123456789") >= 8;
}

static bool is_run_file(const char *name) {
    return strcmp(name, "log.jsonl") == 0 || strcmp(name, "loss.svg") == 0 || strcmp(name, MATMUL_TABLE_NAME) == 0 ||
           events_is_name(name) || is_checkpoint_name(name);
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

bool out_check(const Config *config, Error *err) {
    char actual[PATH_MAX], path[PATH_MAX], run[PATH_MAX], number[32] = "";
    const char *out = config->out;
    if (!out[0]) return true;
    const bool exists = realpath(out, actual) != NULL;
    const int64_t step = checkpoint_step(exists ? actual : out);
    const bool whole = exists && has_file(actual, MANIFEST_NAME) && has_file(actual, "state.json");
    if (step < 0 && !whole) return true;
    if (step < 0) // a copy under another name
        return error_set(
            err, EXIT_DATA,
            "--out %s: this is a checkpoint; name another folder for the run, and start it from this one's "
            "weights by --model %s",
            out, out);
    // as the user wrote it, unless that is a link or "."
    snprintf(path, sizeof path, "%s", checkpoint_step(out) == step ? out : actual);
    for (size_t length = strlen(path); length > 1 && path[length - 1] == '/';) path[--length] = '\0';
    if (!path_folder(run, sizeof run, path, err)) return false;
    if (!is_newest(run, step)) snprintf(number, sizeof number, "=%lld", (long long)step);
    return error_set(err, EXIT_DATA, "--out %s: this is %s; its run is %s: --out %s --resume%s%s", out,
                     exists ? "a checkpoint" : "the name of a checkpoint", run, run, exists ? number : "",
                     config->resume ? "" : ", or choose another folder");
}

bool out_prepare(const Config *config, Lock *lock, Error *err) {
    lock->fd = -1;
    Error why;
    if (!folder_make(config->out, &why))
        return error_set(err, why.code, "--out %.300s: %.600s; name a folder that can be made and written", config->out,
                         why.text);
    if (access(config->out, W_OK | X_OK) != 0)
        return error_set(err, EXIT_DATA, "--out %s: the folder cannot be written: %s", config->out, strerror(errno));
    if (!lock_take(lock, config->out, err)) return false;
    if (config->resume || config->overwrite) return true;
    DIR *dir = opendir(config->out);
    if (!dir) return error_set(err, EXIT_DATA, "--out %s: cannot be read: %s", config->out, strerror(errno));
    char found[256] = ""; // the last by name, whatever the order of the folder: the newest checkpoint if there is one
    for (struct dirent *e; (e = readdir(dir));)
        if (is_run_file(e->d_name) && strcmp(e->d_name, found) > 0) snprintf(found, sizeof found, "%s", e->d_name);
    closedir(dir);
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
        if (is_run_file(e->d_name)) ok = remove_entry(path, err);
    }
    closedir(dir);
    return ok;
}
