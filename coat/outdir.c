#include "outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "checkpoint.h"
#include "events.h"
#include "files.h"
#include "manifest.h"
#include "matmul_choices.h"

#define LONGEST_PLACE 100 // of a folder's new name, in a message that has more to say
#define RESCUES 1000      // folders beside one, at most

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

// The last by name of a run's files in the folder, whatever its order: the newest checkpoint if there is one; "": none.
static bool find_run(const char *folder, char found[256], Error *err) {
    DIR *dir = opendir(folder);
    found[0] = 0;
    if (!dir) return error_set(err, EXIT_DATA, "--out %s: cannot be read: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));)
        if (is_run_file(e->d_name) && strcmp(e->d_name, found) > 0) snprintf(found, 256, "%s", e->d_name);
    closedir(dir);
    return true;
}

// Locks the folder that is at out->path now, in place of the one before.
static bool take(OutFolder *out, Error *err) {
    Lock lock;
    if (!lock_take(&lock, out->path, err)) {
        snprintf(out->lock.holder, sizeof out->lock.holder, "%s", lock.holder);
        return false;
    }
    out_close(out);
    out->lock = lock;
    out->fd = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
    if (!take(out, err)) return false;
    if (config->resume || config->overwrite) return true;
    char found[256];
    if (!find_run(config->out, found, err)) return false;
    if (!found[0]) return true;
    return error_set(err, EXIT_DATA,
                     "--out %s: holds a run already (%s); continue it with --resume, replace it with --overwrite, or "
                     "choose another folder",
                     config->out, found);
}

// --- room for checkpoints ---------------------------------------------------------------------------------------------

// Of a file, or of a folder's files.
static double bytes_on_disk(const char *path) {
    struct stat st;
    if (lstat(path, &st) != 0) return 0;
    double bytes = 512.0 * (double)st.st_blocks;
    DIR *dir = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            bytes += 512.0 * (double)st.st_blocks;
    if (dir) closedir(dir);
    return bytes;
}

bool out_room(const Config *config, OutRoom *room) {
    struct statvfs disk;
    if (statvfs(config->out, &disk) != 0 || disk.f_blocks == 0) return false;
    room->free = (double)(geteuid() == 0 ? disk.f_bfree : disk.f_bavail) * (double)disk.f_frsize;
    room->held = 0;
    DIR *dir = opendir(config->out);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[PATH_MAX_LENGTH + 512];
        snprintf(path, sizeof path, "%s/%s", config->out, e->d_name);
        bool checkpoint = is_checkpoint_name(e->d_name), half = checkpoint && e->d_name[0] == '.';
        if (half || (config->overwrite && is_run_file(e->d_name)))
            room->free += bytes_on_disk(path);
        else
            room->held += checkpoint;
    }
    if (dir) closedir(dir);
    return true;
}

// Multiples of `every` among the steps after begun up to steps.
static int64_t multiples(int64_t begun, int64_t steps, int64_t every) {
    return every > 0 ? steps / every - begun / every : 0;
}

static int64_t common_multiple(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x > INT64_MAX / b ? INT64_MAX : a / x * b;
}

// New checkpoints that lie there at the same time: of those that are kept for good all, and of the others as many as
// --keep says and the one that is being written, in place of those that are there already.
static int64_t most_at_a_time(const Config *c, int64_t held, int64_t begun, int64_t steps) {
    bool end = c->save_every == 0 || steps % c->save_every != 0; // is saved, too
    int64_t saves = multiples(begun, steps, c->save_every) + end, good = 0;
    if (c->keep == 0) return saves;
    if (c->keep_every > 0) {
        if (c->save_every > 0) good = multiples(begun, steps, common_multiple(c->save_every, c->keep_every));
        good += end && steps % c->keep_every == 0;
    }
    int64_t kept = c->keep + 1 - (held < c->keep ? held : c->keep) + good;
    return saves < kept ? saves : kept;
}

bool out_fits(const Config *config, OutRoom room, int64_t begun, int64_t steps, double bytes, char *note, size_t size,
              Error *err) {
    char one[MEMORY_TEXT], there[MEMORY_TEXT], fix[64] = "";
    int64_t count = most_at_a_time(config, room.held, begun, steps), fit = (int64_t)(room.free / bytes);
    note[0] = 0;
    memory_text(one, (size_t)bytes);
    memory_text(there, (size_t)room.free);
    if (fit < 1)
        return error_set(err, EXIT_DATA,
                         "--out %s: a checkpoint takes %s, and %s are free there; make room or choose another folder",
                         config->out, one, there);
    if (fit >= count) return true;
    if (config->keep_every == 0 && fit > 1)
        snprintf(fix, sizeof fix, ", or set --keep %lld", (long long)(room.held + fit - 1));
    snprintf(note, size,
             "--out %s: a checkpoint takes %s, and %s are free there, for %lld of the %lld more that --save-every and "
             "--keep hold at a time: the others cannot be saved; make room%s",
             config->out, one, there, (long long)fit, (long long)count, fix);
    return true;
}

// --- while the run goes on -----------------------------------------------------------------------------------------

static bool is_same_folder(int fd, const char *path) {
    struct stat ours, named;
    return fd >= 0 && fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

bool out_is_there(const OutFolder *out) {
    return is_same_folder(out->fd, out->path);
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
    return name_of_open(out, path, size) > 0 && is_same_folder(out->fd, path);
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

// What has happened to the folder; of the name that it has now so many characters of the end.
static void say_lost(const OutFolder *out, bool same, size_t longest, char *text, size_t size) {
    char place[PATH_MAX_LENGTH];
    bool renamed = !same && out_place(out, place, sizeof place);
    size_t length = renamed ? strlen(place) : 0, cut = length > longest ? length - longest : 0;
    if (same)
        snprintf(text, size, "its .lock was removed during the run");
    else if (renamed)
        snprintf(text, size, "the folder was renamed to %s%s during the run", cut ? "..." : "", place + cut);
    else
        snprintf(text, size, "the folder was removed during the run");
}

OutState out_keep(OutFolder *out, char *text, size_t size, Error *err) {
    char lost[PATH_MAX_LENGTH + 64], found[256];
    if (lock_is_held(&out->lock)) return OUT_OURS;
    bool same = out_is_there(out);
    bool back = !same && is_same_folder(out->first, out->path) && lock_was_left(out->path);
    say_lost(out, same, PATH_MAX_LENGTH, lost, sizeof lost);
    snprintf(text, size, "--out %s: %s; %s%s", out->path, lost,
             back ? "the one of before is there again" : "it is made again",
             same ? "" : ", with the whole log, and the run goes on in it");
    if (!same && !make_again(out->path, is_deleted(out), err)) return OUT_AWAY;
    say_lost(out, same, LONGEST_PLACE, lost, sizeof lost);
    OutFolder now = {"", -1, -1, {-1, "", ""}};
    snprintf(now.path, sizeof now.path, "%s", out->path);
    if (!take(&now, err)) {
        if (!now.lock.holder[0]) return OUT_AWAY;
        error_set(err, EXIT_DATA, "%.200s, and another run is writing there: %s", lost, now.lock.holder);
        return OUT_TAKEN;
    }
    bool ours = same || back, read = ours || find_run(out->path, found, err);
    if (!ours && (!read || found[0])) {
        out_close(&now);
        if (!read) return OUT_AWAY;
        error_set(err, EXIT_DATA, "%.200s, and the one of that name holds another run (%.100s)", lost, found);
        return OUT_TAKEN;
    }
    now.first = out->first < 0 ? out->fd : out->first; // stays open: no other folder gets its number
    out->fd = out->first < 0 ? -1 : out->fd;
    out->first = -1;
    out_close(out);
    *out = now;
    return OUT_AGAIN;
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
    OutFolder beside = {"", -1, -1, {-1, "", ""}};
    bool said = false;
    for (int number = 1; out_rescue_path(beside.path, sizeof beside.path, out->path, number);) {
        if (mkdir(beside.path, 0777) == 0) {
            if (!take(&beside, err)) return 0;
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
        if (is_run_file(e->d_name)) ok = remove_entry(path, err);
    }
    closedir(dir);
    return ok;
}
