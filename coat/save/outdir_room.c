// Checks how many checkpoints fit on the disk of a run's folder.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "checkpoint.h"
#include "outdir.h"

// number of blocks that one checkpoint loses to rounding: one partly filled block per file, and one for its folder
#define CHECKPOINT_BLOCKS 12
#define STEP_BYTES 512 // estimated bytes per step in log.jsonl and the event file, with evaluations and FP8 health
#define MARGIN 1.02    // factor that allows for the file system's own data

// Returns the bytes that a file, or the files in a folder, occupy on the disk.
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
    room->block = (double)disk.f_frsize;
    DIR *dir = opendir(config->out);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char path[PATH_MAX_LENGTH + 512];
        snprintf(path, sizeof path, "%s/%s", config->out, e->d_name);
        const bool own = out_is_run_file(e->d_name), incomplete = own && e->d_name[0] == '.';
        if (incomplete || (own && config->overwrite))
            room->free += bytes_on_disk(path);
        else
            room->held += checkpoint_step(e->d_name) >= 0;
    }
    if (dir) closedir(dir);
    return true;
}

// Returns how many multiples of `every` are greater than begun and at most steps.
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

// Returns the largest number of new checkpoints that exist at the same time. These are the checkpoints that
// --keep-every retains for the whole run, the --keep newest, and the one being written. The `held` checkpoints that
// exist at the start count for --keep, too, and are deleted first. Therefore up to --keep of them reduce the number.
static int64_t max_new_checkpoints(const Config *c, int64_t held, int64_t begun, int64_t steps) {
    // the last step is always saved, even if --save-every does not include it
    bool end = c->save_every == 0 || steps % c->save_every != 0;
    int64_t saves = multiples(begun, steps, c->save_every) + end, permanent = 0;
    if (c->keep == 0) return saves;
    if (c->keep_every > 0) {
        if (c->save_every > 0) permanent = multiples(begun, steps, common_multiple(c->save_every, c->keep_every));
        permanent += end && steps % c->keep_every == 0;
    }
    int64_t kept = c->keep + 1 - (held < c->keep ? held : c->keep) + permanent;
    return saves < kept ? saves : kept;
}

bool out_fits(const Config *config, OutRoom room, int64_t begun, int64_t steps, double bytes, char *note, size_t size,
              Error *err) {
    char one[MEMORY_TEXT], there[MEMORY_TEXT], fix[64] = "";
    const double least = bytes + CHECKPOINT_BLOCKS * room.block, logs = STEP_BYTES * (double)(steps - begun);
    const int64_t count = max_new_checkpoints(config, room.held, begun, steps);
    int64_t fit = room.free > logs ? (int64_t)((room.free - logs) / (MARGIN * least)) : 0;
    // a single checkpoint needs neither the margin nor room for the log, which is buffered while the disk is full
    if (fit < 1) fit = room.free >= least;
    note[0] = 0;
    memory_text(one, (size_t)least);
    memory_text(there, (size_t)room.free);
    if (fit < 1)
        return error_set(err, EXIT_DATA,
                         "--out %s: a checkpoint needs %s, but only %s are free there; free space or choose another "
                         "folder",
                         config->out, one, there);
    if (fit >= count) return true;
    if (config->keep_every == 0 && fit > 1)
        snprintf(fix, sizeof fix, ", or set --keep %lld", (long long)(room.held + fit - 1));
    snprintf(note, size,
             "--out %s: a checkpoint needs %s, and %s are free there, enough for %lld of the %lld more checkpoints "
             "that --save-every and --keep retain at a time; free space%s",
             config->out, one, there, (long long)fit, (long long)count, fix);
    return true;
}
