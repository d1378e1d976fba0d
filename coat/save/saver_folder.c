#include "saver_folder.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "checkpoint.h"
#include "io/files.h"
#include "log/step_line.h"

void saver_folder_open(SaverFolder *f, const Config *config, Log *log) {
    memset(f, 0, sizeof *f);
    f->config = config;
    f->log = log;
    f->log_fd = log_descriptor(log);
    f->left_fd = -1;
    snprintf(f->out, sizeof f->out, "%s", config->out);
    snprintf(f->agreed, sizeof f->agreed, "%s", config->out);
}

void saver_folder_close(SaverFolder *f) {
    if (f->log_fd >= 0) close(f->log_fd);
    if (f->left_fd >= 0) close(f->left_fd);
}

bool saver_folder_is_locked(const SaverFolder *f) {
    return !f->folder || lock_is_held(&f->folder->lock);
}

bool saver_folder_is_ours(const void *folder, Error *err) {
    const SaverFolder *f = (const SaverFolder *)folder;
    if (!f->folder) return true;
    if (!out_is_there(f->folder))
        return error_set(err, EXIT_DATA, "%s: the folder was removed, renamed or replaced", f->out);
    return saver_folder_is_locked(f) || error_set(err, EXIT_DATA, "%s: its .lock was removed", f->out);
}

// The log in the folder, after `what`, and our descriptor of it.
static void keep_log(SaverFolder *f, const char *what) {
    log_keep(f->log, f->out, what);
    if (f->log_fd >= 0) close(f->log_fd);
    f->log_fd = log_descriptor(f->log);
}

// Whether another run has written in our folder while its lock was gone: log.jsonl is not our file.
static bool has_other_log(const SaverFolder *f) {
    char path[PATH_MAX_LENGTH + 48];
    if (f->log_fd < 0 || saver_folder_is_locked(f) || !out_is_there(f->folder)) return false;
    snprintf(path, sizeof path, "%s/log.jsonl", f->out);
    return path_is_file(path) && !path_is_open(path, f->log_fd);
}

bool saver_folder_look(SaverFolder *f) {
    char what[2 * PATH_MAX_LENGTH + 128] = "";
    Error err;
    if (!f->folder || f->taken.code != EXIT_DONE) return false;
    f->looked_ms = now_ms();
    const bool other = has_other_log(f);
    OutState state = other ? OUT_TAKEN : out_keep(f->folder, what, sizeof what, &err);
    if (other)
        error_set(&err, EXIT_DATA, "its .lock was removed during the run, and another run has written its log there");
    f->away.code = EXIT_DONE;
    if (state == OUT_AWAY) f->away = err;
    if (state == OUT_TAKEN) f->taken = err;
    if (state == OUT_AWAY || state == OUT_TAKEN) return false;
    snprintf(f->out, sizeof f->out, "%s", f->folder->path);
    const bool back = state == OUT_OURS && f->failed;
    if (back) snprintf(what, sizeof what, "--out %s can be used again, and the run is saved there", f->out);
    if (state == OUT_AGAIN || back) print_remark(back ? "note: " : "warning: ", "%s", what);
    f->failed = false;
    keep_log(f, state == OUT_AGAIN || back ? what : NULL);
    return state == OUT_AGAIN;
}

bool saver_folder_is_gone(const SaverFolder *f) {
    char place[PATH_MAX_LENGTH];
    return f->away.code != EXIT_DONE && !out_place(f->folder, place, sizeof place);
}

// Where the folder that the run has left is by now; "": nowhere.
static void find_left(const SaverFolder *f, char place[PATH_MAX_LENGTH]) {
    const OutFolder left = {.fd = f->left_fd};
    out_place(&left, place, PATH_MAX_LENGTH);
}

// Goes over to the folder that is now in the place of the run's own.
static void go_over(SaverFolder *f, const Error *why, bool away) {
    char text[sizeof why->text + 4 * PATH_MAX_LENGTH], left[PATH_MAX_LENGTH];
    find_left(f, left);
    snprintf(text, sizeof text, "--out %s cannot be used: %s; what it wrote before is %s%s; %s in %s", f->out,
             why->text, left[0] ? "in " : "gone", left, away ? "the run continues" : "it is saved", f->folder->path);
    if (away && !f->last) print_remark("warning: ", "%s", text);
    snprintf(f->out, sizeof f->out, "%s", f->folder->path);
    f->taken.code = f->away.code = EXIT_DONE;
    f->failed = false;
    keep_log(f, text);
}

bool saver_folder_prepare(SaverFolder *f, int64_t *saved, Error *err) {
    saver_folder_look(f);
    const bool taken = f->taken.code != EXIT_DONE, away = f->away.code != EXIT_DONE;
    Error none;
    if (!taken && !away) return true;
    *err = taken ? f->taken : f->away;
    const int left = fcntl(f->folder->fd, F_DUPFD_CLOEXEC, 0);
    if (!out_rescue(f->folder, away, &none)) {
        if (left >= 0) close(left);
        if (taken) *err = none;
        f->failed |= away;
        return false;
    }
    f->lost = *err;
    f->ends |= taken;
    f->left_saved = *saved;
    *saved = 0;
    if (f->left_fd >= 0) close(f->left_fd);
    f->left_fd = left;
    if (left >= 0) flock(left, LOCK_UN); // who finds it may go on from it
    go_over(f, err, away);
    return true;
}

void saver_folder_share(SaverFolder *f, Comm *comm) {
    const bool moved = comm_rank(comm) == 0 && strcmp(f->out, f->agreed) != 0;
    if (comm_max_i64(comm, moved)) comm_share_text(comm, 0, f->out, sizeof f->out);
    snprintf(f->agreed, sizeof f->agreed, "%s", f->out);
}

// What has happened, and where the run is saved, which is never cut; the folder's name where there is room for it.
static void set_lost(const SaverFolder *f, const char *why, const char *where, Error *err) {
    char text[sizeof f->lost.text + sizeof f->out];
    int room = (int)sizeof err->text - (int)strlen(where) - 3;
    int length = snprintf(text, sizeof text, "--out %s: %s", f->config->out, why);
    error_set(err, EXIT_DATA, "%.*s; %s", room > 0 ? room : 0, length > room ? why : text, where);
}

bool saver_folder_is_lost(const SaverFolder *f, bool good, int64_t saved, Error *err) {
    char left[PATH_MAX_LENGTH], place[PATH_MAX_LENGTH],
        last[PATH_MAX_LENGTH + 64] = "", before[PATH_MAX_LENGTH + 64] = "", step[64] = "", where[sizeof err->text];
    const bool taken = f->taken.code != EXIT_DONE, lost = f->lost.code != EXIT_DONE;
    if (!taken && !lost) return false;
    const bool here = lost && !f->ends; // it has gone on elsewhere, and may have lost that, too
    const int64_t earlier = lost && saved == 0 ? f->left_saved : saved;
    find_left(f, left);
    snprintf(place, sizeof place, "%s", left);
    if (!lost || (taken && saved > 0)) out_place(f->folder, place, sizeof place);
    if (place[0] && earlier > 0) snprintf(last, sizeof last, "%s/step-%08lld", place, (long long)earlier);
    if (here) snprintf(before, sizeof before, "; what it wrote before is %s%s", left[0] ? "in " : "gone", left);
    if (!good && saved > 0) snprintf(step, sizeof step, " up to step %lld", (long long)saved);
    if (lost && !taken && (good || saved > 0))
        snprintf(where, sizeof where, "this one is saved%s: go on with --out %s --resume%s", step, f->out, before);
    else if (path_is_folder(last))
        snprintf(where, sizeof where, "the last checkpoint of this one is %s", last);
    else
        snprintf(where, sizeof where, "no checkpoint of this one is left");
    set_lost(f, taken ? f->taken.text : f->lost.text, where, err);
    return true;
}
