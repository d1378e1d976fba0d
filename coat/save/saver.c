#include "saver.h"

#include <stdatomic.h>
#include <string.h>

#include "base/background.h"
#include "base/clock.h"
#include "base/signals.h"
#include "io/files.h"
#include "log/terminal.h"
#include "snapshot.h"

#define ESTIMATED_BYTES_PER_MS 1e5 // assumed speed of the disk in bytes per ms before the first save

struct Saver {
    const Config *config;
    Log *log;
    OutFolder *folder; // folder that this process has locked; NULL: the folder is not checked
    Error taken;       // why this run must no longer write to `folder`; its code is EXIT_DONE if this run may write
    int64_t saved;     // step of the last complete checkpoint; 0: none
    char vocabulary[PATH_MAX_LENGTH + 64]; // last checkpoint folder that contains a tokenizer; "": none
    Snapshot snapshot;
    Comm *comm; // NULL: there is one process
    // true: at least one process lacks host memory for a snapshot, so training waits on all processes during every save
    bool foreground;
    bool agreed; // true: agree() was called since the latest save, or there is one process
    BackgroundTask writing;
    atomic_bool written; // true: the background task has nothing left to write
    // The background task sets good, err and ms. The training thread reads them when the task has ended.
    bool good;         // true: the latest save succeeded
    Error err;         // why the latest save failed
    double ms;         // duration of the latest save
    bool reported;     // true: the result of the latest save was reported
    int64_t step;      // step of the latest save; -1: none
    double longest_ms; // duration of the slowest save; 0: none
};

static Saver *at_exit; // saver whose background task exit() waits for

// Writes the GEMM algorithms that --autotune chose to the run's folder. The user can pass this file to other runs with
// --matmul-table. A resumed run does not read this file but the table in its checkpoint.
static void write_tuned(const char *out, const char *algos) {
    char path[PATH_MAX_LENGTH + 32 + sizeof MATMUL_TABLE_NAME];
    Error err;
    snprintf(path, sizeof path, "%s/" MATMUL_TABLE_NAME, out);
    if (!file_replace(path, algos, strlen(algos), &err)) print_remark("warning: ", "%s", err.text);
}

// Fails if the run's folder is no longer the locked one. saver_save() has checked this, too, but the folder may change
// while the states are copied, which may take seconds.
static bool check_lock(const Saver *s, Error *err) {
    return !s->folder || lock_is_held(&s->folder->lock) ||
           error_set(err, EXIT_DATA,
                     "--out %s: the folder or its .lock was removed, renamed or replaced during the save; leave both "
                     "in place while the run continues",
                     s->config->out);
}

static void write_files(Saver *s) {
    const Config *c = s->config;
    const char *vocabulary = path_is_folder(s->vocabulary) ? s->vocabulary : c->vocabulary;
    log_sync(s->log); // flushes the log first, so that after a power failure the log has every step of the checkpoint
    char folder[sizeof s->vocabulary];
    s->good = check_lock(s, &s->err) && checkpoint_write(c->out, &s->snapshot, vocabulary, &s->err) &&
              checkpoint_folder(c->out, s->snapshot.run.step, folder, sizeof folder, &s->err);
    if (!s->good) return;
    if (tokenizer_is_in(folder)) snprintf(s->vocabulary, sizeof s->vocabulary, "%s", folder);
    if (c->autotune && s->snapshot.algos) write_tuned(c->out, s->snapshot.algos);
    // While updates are skipped or weights are not finite, no checkpoint is deleted, because the older ones may be the
    // only good ones.
    int keep = s->snapshot.run.state.skipped_run > 0 || s->snapshot.nonfinite ? 0 : c->keep;
    if (s->snapshot.exec->rank == 0) checkpoint_prune(c->out, s->snapshot.run.step, keep, c->keep_every);
}

static void write_now(Saver *s) {
    double begin = now_ms();
    write_files(s);
    s->ms += now_ms() - begin;
    atomic_store(&s->written, true);
}

static void *write_in_background(void *argument) {
    signals_writer(true);
    write_now((Saver *)argument);
    signals_writer(false);
    return NULL;
}

static bool has_checkpoint(const Saver *s, int64_t step) {
    char folder[PATH_MAX_LENGTH + 64];
    Error err;
    return step > 0 && checkpoint_folder(s->config->out, step, folder, sizeof folder, &err) && path_is_folder(folder);
}

// Updates s->saved after a save. Rank 0 has completed the checkpoint itself; other ranks check whether its folder
// exists.
static void update_saved(Saver *s) {
    if (s->step <= s->saved || s->writing.running || !s->good) return;
    if (s->snapshot.exec->rank > 0 && !has_checkpoint(s, s->step)) return;
    s->saved = s->step;
    error_saved(s->config->out, s->saved);
}

static void join(Saver *s) {
    if (!s->writing.running) return;
    background_end(&s->writing);
    if (s->ms > s->longest_ms) s->longest_ms = s->ms;
}

// Tells all processes whether every rank except 0 has written its shard of the latest save. All processes must call
// this together. Ranks other than 0 first wait for their own background task. If one of these ranks failed, the save
// fails on all ranks with that rank's error, and rank 0 stops waiting for the missing shard. Sets the timeout to
// FILES_TIMEOUT_S; the caller resets the timeout.
static void agree(Saver *s) {
    if (s->agreed) return;
    s->agreed = true;
    const int rank = comm_rank(s->comm);
    comm_set_timeout(s->comm, FILES_TIMEOUT_S);
    if (rank > 0) join(s);
    Error failed = s->err;
    if (comm_all_good(s->comm, rank == 0 || s->good, &failed)) return; // rank 0 may still be writing
    s->snapshot.others_error = failed;
    __atomic_store_n(&s->snapshot.others_failed, true, __ATOMIC_RELEASE);
    if (rank == 0) return;
    s->good = false;
    s->err = failed;
}

// Rank 0 prints the result of the latest save, unless it was printed before.
static void report_save(Saver *s) {
    if (s->reported || s->writing.running) return;
    s->reported = true;
    if (s->snapshot.exec->rank > 0) return;
    if (s->good) log_saved(s->log, s->step, s->snapshot.nonfinite);
    if (s->good)
        log_text(s->log, "saved %s/step-%08lld", s->config->out, (long long)s->step);
    else
        print_remark("warning: ", "the checkpoint of step %lld could not be saved: %s", (long long)s->step,
                     s->err.text);
}

static void wait_at_exit(void) {
    if (at_exit) join(at_exit);
}

int64_t saver_bytes(const Arena *arena, Exec *exec) {
    Snapshot snapshot;
    snapshot_open(&snapshot, arena, exec);
    const int64_t bytes = (int64_t)(snapshot.bytes + snapshot.carried_bytes);
    snapshot_close(&snapshot);
    return bytes;
}

Saver *saver_open(const Config *config, const Arena *arena, Exec *exec, Log *log) {
    static bool registered;
    char bytes[MEMORY_TEXT];
    Saver *s = (Saver *)xcalloc(1, sizeof *s);
    s->config = config;
    s->log = log;
    s->taken.code = EXIT_DONE;
    s->step = -1;
    s->reported = s->agreed = true;
    snapshot_open(&s->snapshot, arena, exec);
    snapshot_read_carried(&s->snapshot);
    if (config->save_every > 0 && !snapshot_reserve(&s->snapshot) && !config->quiet)
        print_remark("note: ",
                     "there is no room for a copy of the training state (%s of host memory); training waits while "
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
    s->folder = folder;
}

bool saver_set_shards(Saver *s, Shards *shards, Error *err) {
    s->comm = shards->comm;
    s->snapshot.shards = shards;
    bool gathers = shards->zero >= 3 && s->snapshot.exec->rank == 0;
    bool room = s->snapshot.memory || (gathers && snapshot_reserve(&s->snapshot));
    s->foreground = comm_max_i64(s->comm, !room);
    if (room || !gathers) return true;
    char bytes[MEMORY_TEXT];
    return error_set(err, EXIT_DEVICE,
                     "host memory: rank 0 needs %s for a copy of the weights, which --zero 3 gathers to save them; "
                     "use --zero 2",
                     memory_text(bytes, s->snapshot.bytes));
}

// Checks the run's folder before a save. out_ensure() recreates a missing folder, and log_reopen() reopens lost log
// files there. Sets s->saved to 0 if its checkpoint no longer exists. Returns false with s->err if the folder cannot be
// used. If another run uses the folder, sets s->taken, too.
static bool ensure_folder(Saver *s) {
    bool taken = false;
    if (!s->folder) return true;
    if (s->taken.code == EXIT_DONE && out_ensure(s->folder, &taken, &s->err)) {
        log_reopen(s->log);
        if (has_checkpoint(s, s->saved) || s->saved == 0) return true;
        s->saved = 0;
        error_saved(s->config->out, 0);
        return true;
    }
    if (taken)
        error_set(&s->taken, EXIT_DATA, "this run stops because its folder or .lock was removed or renamed: %.900s",
                  s->err.text);
    if (s->taken.code != EXIT_DONE) s->err = s->taken;
    return false;
}

// Lets rank 0 create the folder of the checkpoint while the other processes wait for it.
static bool begin_together(Saver *s, const RunState *run) {
    bool mine =
        s->snapshot.exec->rank > 0 || (ensure_folder(s) && checkpoint_prepare(s->config->out, run->step, &s->err));
    comm_set_timeout(s->comm, FILES_TIMEOUT_S); // long timeout, because rank 0 may still be writing files
    s->good = comm_all_good(s->comm, mine, &s->err);
    comm_set_timeout(s->comm, 0);
    return s->good;
}

void saver_save(Saver *s, const RunState *run) {
    agree(s);
    join(s);
    update_saved(s);
    report_save(s);
    double begin = now_ms();
    s->step = run->step;
    s->ms = 0;
    s->good = s->comm ? begin_together(s, run) : ensure_folder(s);
    // if another run has taken the folder, saver_poll() and saver_finish() report the error
    s->reported = s->taken.code != EXIT_DONE;
    if (!s->good) return;
    s->agreed = !s->comm;
    s->snapshot.others_failed = false;
    snapshot_copy(&s->snapshot, run);
    s->ms = now_ms() - begin;
    atomic_store(&s->written, false);
    // Without a host copy, rank 0 cannot write and call agree() at the same time, so the other ranks write first.
    if (s->foreground && s->snapshot.exec->rank == 0 && !s->snapshot.memory) agree(s);
    if (!s->snapshot.memory || !background_try(&s->writing, write_in_background, s)) write_now(s);
    if (!s->writing.running && s->ms > s->longest_ms) s->longest_ms = s->ms;
    if (!s->foreground) return;
    agree(s);
    comm_barrier(s->comm);
    comm_set_timeout(s->comm, 0);
}

int64_t saver_step(Saver *s) {
    agree(s);
    join(s);
    update_saved(s);
    // Only rank 0 looks for the checkpoint, because other ranks may not see the folder's new name yet.
    return s->good && (s->snapshot.exec->rank > 0 || has_checkpoint(s, s->step)) ? s->step : -1;
}

void saver_save_last(Saver *s, const RunState *run) {
    if (s->comm) comm_set_timeout(s->comm, FILES_TIMEOUT_S);
    bool missing = saver_step(s) != run->step;
    if (s->comm) missing = comm_max_i64(s->comm, missing);
    if (s->comm) comm_set_timeout(s->comm, 0);
    if (!missing) return;
    if (s->step == run->step) s->reported = true; // the failed save is not reported, because the save is repeated now
    saver_save(s, run);
}

bool saver_poll(Saver *s, Error *err) {
    if (s->writing.running && !atomic_load(&s->written)) return true;
    join(s);
    update_saved(s);
    report_save(s);
    if (s->taken.code != EXIT_DONE) *err = s->taken;
    return s->taken.code == EXIT_DONE;
}

bool saver_has_failed(const Saver *s) {
    return !s->agreed && !s->writing.running && !s->good && s->snapshot.exec->rank > 0;
}

void saver_give_up(Saver *s) {
    agree(s);
    join(s);
    report_save(s);
    comm_set_timeout(s->comm, 0);
}

bool saver_is_taken(Saver *s, Error *err) {
    agree(s);
    join(s);
    update_saved(s);
    if (s->taken.code != EXIT_DONE) *err = s->taken;
    return s->taken.code != EXIT_DONE;
}

bool saver_finish(Saver *s, Error *err) {
    if (saver_is_taken(s, err)) return false;
    if (s->step < 0 || s->good) {
        report_save(s);
        return true;
    }
    s->reported = true; // not printed here, because the caller prints err
    char from[64] = "";
    if (has_checkpoint(s, s->saved))
        snprintf(from, sizeof from, "; fix this, and continue from step %lld with --resume", (long long)s->saved);
    return error_set(err, EXIT_DATA, "the checkpoint of step %lld could not be saved: %.*s%s", (long long)s->step,
                     (int)(sizeof err->text - sizeof from - 64), s->err.text, from);
}

double saver_expected_ms(const Saver *s) {
    if (s->longest_ms > 0) return s->longest_ms;
    return (double)s->snapshot.bytes / ESTIMATED_BYTES_PER_MS;
}

void saver_close(Saver *s) {
    if (!s) return;
    join(s);
    report_save(s);
    at_exit = NULL;
    snapshot_close(&s->snapshot);
    free(s);
}
