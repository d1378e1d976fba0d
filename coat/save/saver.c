#include "saver.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/background.h"
#include "base/clock.h"
#include "base/signals.h"
#include "io/files.h"
#include "log/step_line.h"
#include "saver_folder.h"
#include "snapshot.h"

#define GUESSED_BYTES_PER_MS 1e5 // of a disk, before the first save has shown it
#define LOOK_MS 1000.0           // how often the folder is looked after

struct Saver {
    const Config *config;
    Log *log;
    SaverFolder at;
    int64_t saved; // the last step that was; 0: none
    char vocabulary[PATH_MAX_LENGTH +
                    64]; // the folder of the last checkpoint with one: others may be removed; "": none yet
    Snapshot snapshot;
    Shards *shards;  // with several processes
    bool foreground; // some of which have no room for the copy
    bool agreed;     // they know whether the others have written their shards of the latest save
    BackgroundTask writing;
    atomic_bool written;
    // written aside, read once that has ended
    bool good;
    Error err;
    double ms; // of this save
    bool said; // what became of it
    int64_t step;
    double longest_ms;
};

static Saver *at_exit; // whose thread exit() waits for

// Writes the table of --autotune to the run's folder. Runs do not read it; a resumed run reads the checkpoint's.
static void write_tuned(const char *out, const char *algos) {
    char path[PATH_MAX_LENGTH + 32 + sizeof MATMUL_TABLE_NAME];
    Error err;
    snprintf(path, sizeof path, "%s/" MATMUL_TABLE_NAME, out);
    if (!file_replace(path, algos, strlen(algos), &err)) print_remark("warning: ", "%s", err.text);
}

static void write_files(Saver *s) {
    const Config *c = s->config;
    const char *vocabulary = path_is_folder(s->vocabulary) ? s->vocabulary : c->vocabulary;
    if (s->at.log_fd >= 0) fsync(s->at.log_fd); // a checkpoint never knows of steps that the log lost in a power cut
    // it may have been another run's for as long as the copy took
    s->good = saver_folder_is_ours(&s->at, &s->err) &&
              checkpoint_write(s->at.out, &s->snapshot, vocabulary, saver_folder_is_ours, &s->at, &s->err);
    if (s->good && *vocabulary)
        snprintf(s->vocabulary, sizeof s->vocabulary, "%s/step-%08lld", s->at.out, (long long)s->snapshot.run.step);
    if (s->good && c->autotune && s->snapshot.algos) write_tuned(s->at.out, s->snapshot.algos);
    // while updates are skipped or weights are not finite the checkpoints from before may be the only good ones
    int keep = s->snapshot.run.state.skipped_run > 0 || s->snapshot.nonfinite ? 0 : c->keep;
    bool ours = saver_folder_is_locked(&s->at); // what another run has put there meanwhile is not pruned
    if (s->good && ours && s->snapshot.exec->rank == 0)
        checkpoint_prune(s->at.out, s->snapshot.run.step, keep, c->keep_every);
}

static void write_now(Saver *s) {
    double begin = now_ms();
    write_files(s);
    s->ms += now_ms() - begin;
    atomic_store(&s->written, true);
}

static void *write_aside(void *argument) {
    signals_writer(true);
    write_now((Saver *)argument);
    signals_writer(false);
    return NULL;
}

static bool has_checkpoint(const Saver *s, int64_t step) {
    char folder[PATH_MAX_LENGTH + 64];
    Error err;
    return step >= 0 && checkpoint_folder(s->at.out, step, folder, sizeof folder, &err) && path_is_folder(folder);
}

// Whether the latest checkpoint is whole by now. Rank 0 makes it so: for the others it has its name then.
static void see_saved(Saver *s) {
    if (s->step <= s->saved || s->writing.running || !s->good) return;
    if (s->snapshot.exec->rank > 0 && !has_checkpoint(s, s->step)) return;
    s->saved = s->step;
    error_saved(s->at.out, s->saved);
}

static void join(Saver *s) {
    if (!s->writing.running) return;
    background_end(&s->writing);
    if (s->ms > s->longest_ms) s->longest_ms = s->ms;
}

// Tells all processes whether the others have written their shards of the latest save; those finish writing first. If
// one could not, the save has failed on all of them with that rank's reason, and rank 0 stops waiting for its file. All
// call this together. They may wait for each other's files afterwards, too: the caller ends the long timeout.
static void agree(Saver *s) {
    if (s->agreed) return;
    s->agreed = true;
    Comm *comm = s->shards->comm;
    const int rank = comm_rank(comm);
    comm_set_timeout(comm, FILES_TIMEOUT_S);
    if (rank > 0) join(s);
    Error failed = s->err;
    if (comm_all_good(comm, rank == 0 || s->good, &failed)) return; // rank 0's own thread may still be writing
    s->snapshot.others_error = failed;
    __atomic_store_n(&s->snapshot.others_failed, true, __ATOMIC_RELEASE);
    if (rank == 0) return;
    s->good = false;
    s->err = failed;
}

// After a failed save. Of a folder that is not the run's now, nothing is known.
static const char *what_stays(const Saver *s) {
    int64_t *steps;
    Error ignored;
    if (s->at.last || s->at.taken.code != EXIT_DONE || !saver_folder_is_locked(&s->at)) return "";
    bool any = checkpoint_steps(s->at.out, &steps, &ignored) > 0;
    free(steps);
    return any ? "; the run continues, and earlier checkpoints are untouched" : "; the run continues";
}

static void say(Saver *s) {
    if (s->said || s->writing.running) return;
    s->said = true;
    if (s->snapshot.exec->rank > 0) return;
    if (s->good) log_saved(s->log, s->step, s->snapshot.nonfinite);
    if (s->good)
        log_text(s->log, "saved %s/step-%08lld", s->at.out, (long long)s->step);
    else
        print_remark("warning: ", "the checkpoint of step %lld could not be saved: %s%s", (long long)s->step,
                     s->err.text, what_stays(s));
}

static void wait_at_exit(void) {
    if (at_exit) join(at_exit);
}

int64_t saver_bytes(const Arena *arena, Exec *exec) {
    Snapshot snapshot;
    snapshot_open(&snapshot, arena, exec);
    const int64_t bytes = (int64_t)snapshot.bytes;
    snapshot_close(&snapshot);
    return bytes;
}

Saver *saver_open(const Config *config, const Arena *arena, Exec *exec, Log *log) {
    static bool registered;
    char bytes[MEMORY_TEXT];
    Saver *s = (Saver *)xcalloc(1, sizeof *s);
    s->config = config;
    s->log = log;
    saver_folder_open(&s->at, config, log);
    s->step = -1;
    s->said = s->agreed = true;
    snapshot_open(&s->snapshot, arena, exec);
    if (config->save_every > 0 && !snapshot_reserve(&s->snapshot) && !config->quiet)
        print_remark("note: ",
                     "there is no room for a copy of the states (%s of host memory); training waits while "
                     "checkpoints are written",
                     memory_text(bytes, s->snapshot.bytes));
    at_exit = s;
    if (!registered) registered = atexit(wait_at_exit) == 0;
    return s;
}

void saver_vocabulary(Saver *s, const Tokenizer *tokenizer) {
    s->snapshot.tokenizer = tokenizer;
}

void saver_watch(Saver *s, OutFolder *folder) {
    s->at.folder = folder;
    s->at.looked_ms = now_ms();
}

bool saver_share(Saver *s, Shards *shards, Error *err) {
    s->shards = s->snapshot.shards = shards;
    bool gathers = shards->zero >= 3 && s->snapshot.exec->rank == 0; // which needs room, however rare the saves
    bool room = s->snapshot.memory || (gathers && snapshot_reserve(&s->snapshot));
    s->foreground = comm_max_i64(shards->comm, !room);
    if (room || !gathers) return true;
    char bytes[MEMORY_TEXT];
    return error_set(err, EXIT_DEVICE,
                     "host memory: rank 0 needs %s for a copy of the weights, which --zero 3 gathers to save them; "
                     "use --zero 2",
                     memory_text(bytes, s->snapshot.bytes));
}

// The processes wait for the save before and for the new folder.
static bool begin_together(Saver *s, const RunState *run) {
    Comm *comm = s->shards->comm;
    bool mine = s->snapshot.exec->rank > 0 ||
                (saver_folder_prepare(&s->at, &s->saved, &s->err) && checkpoint_prepare(s->at.out, run->step, &s->err));
    comm_set_timeout(comm, FILES_TIMEOUT_S); // rank 0 may still have been writing
    saver_folder_share(&s->at, comm);
    s->good = comm_all_good(comm, mine, &s->err);
    comm_set_timeout(comm, 0);
    return s->good;
}

void saver_save(Saver *s, const RunState *run) {
    agree(s);
    join(s);
    see_saved(s);
    say(s);
    double begin = now_ms();
    s->step = run->step;
    s->said = false;
    s->ms = 0;
    s->good = s->shards ? begin_together(s, run) : saver_folder_prepare(&s->at, &s->saved, &s->err);
    if (!s->good) return;
    s->agreed = !s->shards;
    s->snapshot.others_failed = false;
    snapshot_take(&s->snapshot, run);
    s->ms = now_ms() - begin;
    atomic_store(&s->written, false);
    // without a copy rank 0 cannot write and agree at the same time: the others write before it
    if (s->foreground && s->snapshot.exec->rank == 0 && !s->snapshot.memory) agree(s);
    if (!s->snapshot.memory || !background_try(&s->writing, write_aside, s)) write_now(s);
    if (!s->writing.running && s->ms > s->longest_ms) s->longest_ms = s->ms;
    if (!s->foreground) return;
    agree(s);
    comm_barrier(s->shards->comm);
    comm_set_timeout(s->shards->comm, 0);
}

// Looks after the folder between saves. One that was made again has no checkpoint, and one that is nowhere has none
// left. True where a save is due: of those, and where the last one was lost with the folder.
static bool look_again(Saver *s) {
    const bool again = saver_folder_look(&s->at), gone = saver_folder_is_gone(&s->at);
    if (again || gone) {
        if (!has_checkpoint(s, s->step)) s->step = -1;
        if (!has_checkpoint(s, s->saved)) s->saved = 0;
        error_saved(s->at.out, s->saved);
    }
    const bool missing = s->at.away.code != EXIT_DONE && (gone || !s->good) && !s->at.failed;
    return again || missing;
}

int64_t saver_step(Saver *s) {
    agree(s);
    join(s);
    see_saved(s);
    look_again(s);
    return !s->good || s->at.taken.code != EXIT_DONE ? -1 : s->step;
}

void saver_save_last(Saver *s, const RunState *run) {
    Comm *comm = s->shards ? s->shards->comm : NULL;
    s->at.last = true;
    for (int i = 0; i < 2; i++) {
        if (comm) comm_set_timeout(comm, FILES_TIMEOUT_S);
        bool missing = saver_step(s) != run->step;
        bool lost = s->step < 0 || s->at.away.code != EXIT_DONE || s->at.taken.code != EXIT_DONE;
        bool again = missing && (i == 0 || lost);
        if (comm) again = comm_max_i64(comm, again);
        if (comm) comm_set_timeout(comm, 0);
        if (!again) return;
        if (s->step == run->step || lost) s->said = true; // this one makes up for what became of it
        saver_save(s, run);
    }
}

bool saver_poll(Saver *s, Error *err) {
    if (s->writing.running && !atomic_load(&s->written)) return true;
    join(s);
    see_saved(s);
    say(s);
    if (now_ms() - s->at.looked_ms > LOOK_MS && look_again(s)) signals_ask_save();
    if (s->at.taken.code != EXIT_DONE) *err = s->at.taken;
    if (s->at.ends) *err = s->at.lost;
    return s->at.taken.code == EXIT_DONE && !s->at.ends;
}

bool saver_has_failed(const Saver *s) {
    return !s->agreed && !s->writing.running && !s->good && s->snapshot.exec->rank > 0;
}

void saver_give_up(Saver *s) {
    agree(s);
    join(s);
    say(s);
    comm_set_timeout(s->shards->comm, 0);
}

bool saver_is_taken(Saver *s, Error *err) {
    agree(s);
    join(s);
    see_saved(s);
    if (!saver_folder_is_lost(&s->at, s->good, s->saved, err)) return false;
    say(s);
    return true;
}

const char *saver_out(const Saver *s) {
    return s->at.out;
}

bool saver_finish(Saver *s, Error *err) {
    if (saver_is_taken(s, err)) return false;
    if (s->step < 0 || s->good) {
        say(s);
        return true;
    }
    s->said = true; // as an error, by the caller
    char from[64] = "";
    if (has_checkpoint(s, s->saved) && s->saved > 0)
        snprintf(from, sizeof from, "; mend this, and go on from step %lld with --resume", (long long)s->saved);
    return error_set(err, EXIT_DATA, "the checkpoint of step %lld could not be saved: %.*s%s", (long long)s->step,
                     (int)(sizeof err->text - sizeof from - 64), s->err.text, from);
}

double saver_expected_ms(const Saver *s) {
    if (s->longest_ms > 0) return s->longest_ms;
    return (double)s->snapshot.bytes / GUESSED_BYTES_PER_MS;
}

void saver_close(Saver *s) {
    if (!s) return;
    join(s);
    say(s);
    at_exit = NULL;
    saver_folder_close(&s->at);
    snapshot_close(&s->snapshot);
    free(s);
}
