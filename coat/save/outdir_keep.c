// The folder of a run while it continues: whether it is still there, and what takes its place.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/files.h"
#include "outdir_take.h"

#define LONGEST_PLACE 100 // of a folder's new name, in a message that has more to say
#define RESCUES 1000      // folders beside one, at most

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
    const bool known = name_of_open(out, path, size) > 0 && path_is_open(path, out->fd);
    if (!known) path[0] = 0; // what the system says of one that was deleted is no path
    return known;
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

// Where the working directory was removed a relative path leads nowhere, also where another one has its name by now.
static void leave_directory(OutFolder *out) {
    char current[PATH_MAX];
    const bool there = getcwd(current, sizeof current) && current[0] == '/';
    if (out->path[0] != '/' && !there && out->absolute[0]) snprintf(out->path, sizeof out->path, "%s", out->absolute);
}

OutState out_keep(OutFolder *out, char *text, size_t size, Error *err) {
    char lost[PATH_MAX_LENGTH + 64], found[256];
    if (lock_is_held(&out->lock)) return OUT_OURS;
    leave_directory(out);
    bool same = out_is_there(out);
    bool left = !same && lock_was_left(out->path), back = left && path_is_open(out->path, out->first);
    say_lost(out, PATH_MAX_LENGTH, lost, sizeof lost);
    snprintf(text, size, "--out %s: %s; %s%s", out->path, lost,
             back                                           ? "the earlier one is there again"
             : has_turned(out) && path_is_folder(out->path) ? "it is begun again there"
                                                            : "it is made again",
             same ? "" : ", with the whole log, and the run continues in it");
    if (!same && !make_again(out->path, is_deleted(out), err)) return OUT_AWAY;
    say_lost(out, LONGEST_PLACE, lost, sizeof lost);
    OutFolder now = {.fd = -1, .first = -1, .lock.fd = -1};
    snprintf(now.path, sizeof now.path, "%s", out->path);
    if (!out_take(&now, out, err)) {
        if (!now.lock.holder[0]) return OUT_AWAY;
        error_set(err, EXIT_DATA, "%.200s, and another run is writing there: %s", lost, now.lock.holder);
        return OUT_TAKEN;
    }
    bool ours = same || back, read = ours || out_find_run(out->path, found, err);
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

// Beside `path`, which is that of the run's folder.
static int rescue_by(OutFolder *out, const char *path, bool above, Error *err) {
    OutFolder beside = {.fd = -1, .first = -1, .lock.fd = -1};
    bool said = false;
    for (int number = 1; out_rescue_path(beside.path, sizeof beside.path, path, number);) {
        if (mkdir(beside.path, 0777) == 0) {
            if (!out_take(&beside, NULL, err)) return 0;
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

int out_rescue(OutFolder *out, bool above, Error *err) {
    Error ignored;
    char absolute[sizeof out->absolute];
    snprintf(absolute, sizeof absolute, "%s", out->absolute);
    const int number = rescue_by(out, out->path, above, err);
    if (number || !above || !absolute[0] || strcmp(absolute, out->path) == 0) return number;
    return rescue_by(out, absolute, above, &ignored);
}
