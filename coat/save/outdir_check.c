// Whether a path can be that of a run's folder.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "io/files.h"
#include "log/step_line.h"
#include "manifest.h"
#include "outdir_take.h"
#include "run_state.h"

static bool is_newest(const char *out, int64_t step) {
    int64_t *steps;
    Error ignored;
    bool newest = checkpoint_steps(out, &steps, &ignored) > 0 && steps[0] == step;
    free(steps);
    return newest;
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
        if (checkpoint_step(folder) >= 0 ||
            (folder_has_file(folder, MANIFEST_NAME) && folder_has_file(folder, STATE_NAME)))
            return length;
        while (length > 0 && folder[length - 1] != '/') length--;
        if (length == 1) break; // the root
    }
    return 0;
}

// The end of the part of a path that has the name of a checkpoint that was set aside, as damaged-1-step-00000020, or of
// one that is being written; 0: none.
static size_t set_aside_in(const char *path, size_t *begin) {
    for (size_t at = 0, length; path[at]; at += length) {
        *begin = at += strspn(path + at, "/");
        length = strcspn(path + at, "/");
        const char *name = path + at;
        const char *after = strncmp(name, "damaged-", 8) == 0      ? name + 8
                            : strncmp(name, "abandoned-", 10) == 0 ? name + 10
                            : name[0] == '.'                       ? name + 1
                                                                   : NULL;
        if (!after) continue;
        const size_t number = strspn(after, "0123456789");
        if (number && after[number] == '-') after += number + 1;
        if (out_is_checkpoint_name(after)) return at + length;
    }
    return 0;
}

// What no run's folder can be, whatever is there.
static bool check_name(const char *out, const char *actual, Error *err) {
    const char *home = getenv("HOME");
    size_t begin = 0, end = set_aside_in(out, &begin);
    const char *path = end ? out : actual;
    if (out[0] == '~' && (out[1] == '/' || !out[1]) && home)
        return error_set(err, EXIT_USER, "--out %s: the shell has left ~ as it is, as in quotes or after =: write %s%s",
                         out, home, out + 1);
    if (out[0] == '~')
        return error_set(err, EXIT_USER, "--out %s: the shell has left ~ as it is: write the whole path, or ./%s", out,
                         out);
    if (strcmp(actual, "/") == 0)
        return error_set(err, EXIT_USER, "--out %s: this is the root of all files; name a folder for the run, as %s",
                         out, "runs/mine");
    if (!end) end = set_aside_in(actual, &begin);
    if (!end) return true;
    size_t run = begin;
    while (run > 1 && path[run - 1] == '/') run--;
    return error_set(err, EXIT_DATA,
                     "--out %s: this %s the name of a checkpoint that a run has set aside or left half-written; its "
                     "run is %.*s: --out %.*s --resume, or choose another folder",
                     out, path[end + strspn(path + end, "/")] ? "lies below" : "is", run ? (int)run : 1,
                     run ? path : ".", run ? (int)run : 1, run ? path : ".");
}

// Whether a run has its log or checkpoints in the folder.
static bool is_run(const char *folder) {
    char found[256];
    Error ignored;
    return folder_has_file(folder, "log.jsonl") ||
           (out_find_run(folder, found, &ignored) && out_is_checkpoint_name(found));
}

void out_note_inside(const Config *config) {
    char folder[PATH_MAX];
    real_path(config->out, folder);
    for (char *slash; !config->quiet && (slash = strrchr(folder, '/')) && slash > folder;) {
        *slash = 0;
        if (!is_run(folder)) continue;
        print_remark(
            "note: ", "--out %s lies in the folder of another run, %s; that one continues with --out %s --resume",
            config->out, folder, folder);
        return;
    }
}

bool out_check(const Config *config, Error *err) {
    char actual[PATH_MAX], path[PATH_MAX], run[PATH_MAX], number[32] = "";
    const char *out = config->out;
    if (!out[0]) return true;
    real_path(out, actual);
    if (!check_name(out, actual, err)) return false;
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
