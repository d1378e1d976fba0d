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

#define LONGEST_PLACE 100 // of a folder's new name, in a message that has more to say
#define RESCUES 1000      // folders beside one, at most

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

// The last by name of a run's files in the folder, whatever its order: the newest checkpoint if there is one; "": none.
static bool find_run(const char *folder, char found[256], Error *err) {
    DIR *dir = opendir(folder);
    found[0] = 0;
    if (!dir) return error_set(err, EXIT_DATA, "--out %s: cannot be read: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));)
        if (out_is_run_file(e->d_name) && strcmp(e->d_name, found) > 0) snprintf(found, 256, "%s", e->d_name);
    closedir(dir);
    return true;
}

// Locks the folder that is at out->path now, in place of the one before. The folder itself, too: its .lock may be deleted.
// before: the folder of this run so far, which may be the same; NULL: none.
static bool take(OutFolder *out, const OutFolder *before, Error *err) {
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
    if (!take(out, NULL, err)) return false;
    if (config->resume || config->overwrite) return true;
    char found[256];
    if (!find_run(config->out, found, err)) return false;
    if (!found[0]) return true;
    return error_set(err, EXIT_DATA,
                     "--out %s: holds a run already (%s); continue it with --resume, replace it with --overwrite, or "
                     "choose another folder",
                     config->out, found);
}

// --- while the run goes on -----------------------------------------------------------------------------------------

bool out_is_there(const OutFolder *out) {
    return path_is_open(out->path, out->fd);
}

// What the system calls the open folder; "": it does not say. Returns the length.
static size_t name_of_open(const OutFolder *out, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", out->fd);
    ssize_t length = out->fd < 0 ? -1 : readlink(link, path, size - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0 ? (size_t)length : 0;
}

bool out_place(const OutFolder *out, char *path, size_t size) {
    return name_of_open(out, path, size) > 0 && path_is_open(path, out->fd);
}

// Whether the run's folder was deleted, and not renamed or put out of reach.
static bool is_deleted(const OutFolder *out) {
    static const char mark[] = " (deleted)";
    char path[PATH_MAX];
    const size_t length = name_of_open(out, path, sizeof path), end = sizeof mark - 1;
    return length > end && strcmp(path + length - end, mark) == 0;
}

// Makes the folder, or the one that a link of that name leads to. Its parents where it was deleted, with them perhaps;
// else, where these are gone, a disk is no longer mounted.
static bool make_again(const char *path, bool parents, Error *err) {
    char at[PATH_MAX], target[PATH_MAX], folder[PATH_MAX];
    int why = ELOOP;
    snprintf(at, sizeof at, "%s", path);
    for (size_t length = strlen(at); length > 1 && at[length - 1] == '/';) at[--length] = 0;
    for (int hops = 0; hops < 8; hops++) {
        why = mkdir(at, 0777) == 0 ? 0 : errno;
        if (why == ENOENT && parents && folder_make(at, err)) return true;
        if (!why || (why == EEXIST && path_is_folder(at))) return true;
        ssize_t length = why == EEXIST ? readlink(at, target, sizeof target - 1) : -1;
        if (length < 0) break;
        target[length] = 0;
        if (target[0] == '/')
            snprintf(at, sizeof at, "%s", target);
        else if (!path_folder(folder, sizeof folder, at, err) || !path_join(at, sizeof at, folder, target, err))
            return false;
    }
    return error_set(err, EXIT_DATA, "cannot create the folder %.600s: %s", at, strerror(why));
}

// Whether the folder is where it was, and its name, a link, leads elsewhere.
static bool has_turned(const OutFolder *out) {
    char place[PATH_MAX_LENGTH];
    return !out_is_there(out) && out_place(out, place, sizeof place) && strcmp(place, out->real) == 0;
}

// What has happened to the folder; of the name that it has now so many characters of the end.
static void say_lost(const OutFolder *out, size_t longest, char *text, size_t size) {
    char place[PATH_MAX_LENGTH];
    bool same = out_is_there(out), exists = !same && out_place(out, place, sizeof place);
    size_t length = exists ? strlen(place) : 0, cut = length > longest ? length - longest : 0;
    const char *dots = cut ? "..." : "";
    if (same)
        snprintf(text, size, "its .lock was removed during the run");
    else if (has_turned(out))
        snprintf(text, size, "the name no longer leads to the run's folder %s%s", dots, place + cut);
    else if (exists)
        snprintf(text, size, "the folder was renamed to %s%s during the run", dots, place + cut);
    else
        snprintf(text, size, "the folder was removed during the run");
}

OutState out_keep(OutFolder *out, char *text, size_t size, Error *err) {
    char lost[PATH_MAX_LENGTH + 64], found[256];
    if (lock_is_held(&out->lock)) return OUT_OURS;
    bool same = out_is_there(out);
    bool left = !same && lock_was_left(out->path), back = left && path_is_open(out->path, out->first);
    say_lost(out, PATH_MAX_LENGTH, lost, sizeof lost);
    snprintf(text, size, "--out %s: %s; %s%s", out->path, lost,
             back                                           ? "the one of before is there again"
             : has_turned(out) && path_is_folder(out->path) ? "it is begun again there"
                                                            : "it is made again",
             same ? "" : ", with the whole log, and the run goes on in it");
    if (!same && !make_again(out->path, is_deleted(out), err)) return OUT_AWAY;
    say_lost(out, LONGEST_PLACE, lost, sizeof lost);
    OutFolder now = {"", "", -1, -1, {-1, "", ""}};
    snprintf(now.path, sizeof now.path, "%s", out->path);
    if (!take(&now, out, err)) {
        if (!now.lock.holder[0]) return OUT_AWAY;
        error_set(err, EXIT_DATA, "%.200s, and another run is writing there: %s", lost, now.lock.holder);
        return OUT_TAKEN;
    }
    bool ours = same || back, read = ours || find_run(out->path, found, err);
    if (!ours && (!read || found[0])) {
        out_close(&now);
        if (!read) return OUT_AWAY;
        error_set(err, EXIT_DATA, "%.200s, and the one of that name %s (%.100s)", lost,
                  left ? "is a copy of it" : "holds another run", found);
        return OUT_TAKEN;
    }
    now.first = out->first < 0 ? out->fd : out->first; // stays open: no other folder gets its number
    if (!same) flock(now.first, LOCK_UN);              // who has renamed it may go on from it
    out->fd = out->first < 0 ? -1 : out->fd;
    out->first = -1;
    out_close(out);
    *out = now;
    return OUT_AGAIN;
}

void out_say_away(const OutFolder *out, const Error *why) {
    char place[PATH_MAX_LENGTH], saved[PATH_MAX_LENGTH + 32] = "";
    if (out_place(out, place, sizeof place)) snprintf(saved, sizeof saved, "what it has written is in %s; ", place);
    fprintf(stderr,
            "warning: --out %s cannot be used: %s; %sthe run goes on, and saves there once it can, or its last step "
            "beside it\n",
            out->path, why->text, saved);
}

// number: RESCUES for each folder above, and the one in the name.
bool out_rescue_path(char *path, size_t size, const char *out, int number) {
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/') length--;
    size_t name = length;
    while (name > 0 && out[name - 1] != '/') name--;
    size_t folder = name; // with its slash
    for (int above = number / RESCUES; above > 0; above--) {
        while (folder > 0 && out[folder - 1] == '/') folder--;
        if (folder == 0) return false;
        size_t end = folder;
        while (folder > 0 && out[folder - 1] != '/') folder--;
        if (out[end - 1] == '.' && end - folder <= 2 && out[folder] == '.') return false; // . and .. are no names
    }
    snprintf(path, size, "%.*s%.*s-rescued-%d", (int)folder, out, (int)(length - name), out + name, number % RESCUES);
    return true;
}

int out_rescue(OutFolder *out, bool above, Error *err) {
    OutFolder beside = {"", "", -1, -1, {-1, "", ""}};
    bool said = false;
    for (int number = 1; out_rescue_path(beside.path, sizeof beside.path, out->path, number);) {
        if (mkdir(beside.path, 0777) == 0) {
            if (!take(&beside, NULL, err)) return 0;
            out_close(out);
            *out = beside;
            return number;
        }
        bool next = errno == EEXIST && number % RESCUES + 1 < RESCUES;
        if (!next && !said)
            said = !error_set(err, EXIT_DATA, "cannot create the folder %s: %s", beside.path, strerror(errno));
        if (!next && !above) return 0;
        number = next ? number + 1 : (number / RESCUES + 1) * RESCUES + 1;
    }
    return 0;
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
