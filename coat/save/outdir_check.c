// Checks whether a path can be the folder of a run.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "io/files.h"
#include "manifest.h"
#include "outdir.h"
#include "run_state.h"

static bool is_newest(const char *out, int64_t step) {
    int64_t *steps;
    Error ignored;
    bool newest = checkpoint_steps(out, &steps, &ignored) > 0 && steps[0] == step;
    free(steps);
    return newest;
}

// Cuts `path` after its last component that is a checkpoint or has a checkpoint's name, without a trailing slash.
// Returns false if there is no such component.
static bool cut_to_checkpoint(char *path) {
    for (size_t length = strlen(path); length > 0;) {
        while (length > 1 && path[length - 1] == '/') length--;
        path[length] = 0;
        if (checkpoint_step(path) >= 0 || (folder_has_file(path, MANIFEST_NAME) && folder_has_file(path, STATE_NAME)))
            return true;
        while (length > 0 && path[length - 1] != '/') length--;
        if (length == 1) break; // the root folder is reached
    }
    return false;
}

// Fails if `path`, the value of the flag `name`, is a file or folder that --overwrite deletes, or is inside one.
static bool check_kept(const Config *config, const char *name, const char *path, Error *err) {
    char out[PATH_MAX], input[PATH_MAX];
    if (!path[0] || !realpath(config->out, out) || !realpath(path, input)) return true;
    const size_t length = strlen(out);
    if (strncmp(input, out, length) != 0 || input[length] != '/') return true;
    char *file = input + length + 1;
    file[strcspn(file, "/")] = '\0';
    return !out_is_run_file(file) || error_set(err, EXIT_USER,
                                               "--overwrite: would delete %s/%s, which %s %s needs; choose another "
                                               "--out, or move that folder elsewhere",
                                               config->out, file, name, path);
}

bool out_check(const Config *config, Error *err) {
    char path[PATH_MAX], run[PATH_MAX], actual[PATH_MAX], number[32] = "";
    const char *out = config->out;
    if (out[0] == '~')
        return error_set(err, EXIT_USER, "--out %s: the shell did not expand ~; write the full path, or ./%s", out,
                         out);
    if (realpath(out, actual) && strcmp(actual, "/") == 0)
        return error_set(err, EXIT_USER, "--out %s: this is the root folder; name a folder for the run, such as %s",
                         out, "runs/mine");
    snprintf(path, sizeof path, "%s", out);
    if (!cut_to_checkpoint(path))
        return !config->overwrite ||
               (check_kept(config, "--model", config->model_from_files ? config->model : "", err) &&
                check_kept(config, "--vision", config->vision_from_files ? config->vision : "", err) &&
                check_kept(config, "--tokenizer", config->tokenizer_file, err));
    const bool exists = realpath(path, actual);
    // if `path` has no step in its name, for example if it is a link or ".", uses the folder's real path
    if (exists && checkpoint_step(path) < 0) snprintf(path, sizeof path, "%s", actual);
    const int64_t step = checkpoint_step(path);
    if (step < 0)
        return error_set(err, EXIT_DATA,
                         "--out %s: %s is a checkpoint; choose another folder, and start from these weights with "
                         "--model %s",
                         out, path, path);
    if (!path_folder(run, sizeof run, path, err)) return false;
    if (exists && !is_newest(run, step)) snprintf(number, sizeof number, "=%lld", (long long)step);
    return error_set(
        err, EXIT_DATA,
        "--out %s: %s %s a checkpoint; continue its run with --out %s --resume%s, or choose another folder", out, path,
        exists ? "is" : "has the name of", run, number);
}
