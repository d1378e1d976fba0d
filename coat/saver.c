#include "saver.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "matmul_choices.h"
#include "signals.h"
#include "snapshot.h"

#define GUESSED_BYTES_PER_MS 1e5 // of a disk, before the first save has shown it

struct Saver {
    const Config *config;
    Log *log;
    int log_fd; // of our own
    Snapshot snapshot;
    Shards *shards;  // with several processes
    bool foreground; // some of which have no room for the copy
    pthread_t thread;
    bool running; // there is a thread to be joined
    atomic_bool ended;
    // written by the thread, read once it is joined
    bool good;
    Error err;
    double ms; // of this save
    bool said; // what became of it
    int64_t step;
    double longest_ms;
};

static Saver *at_exit; // whose thread exit() waits for

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// What --autotune has found, where people look for it; a run reads only what its checkpoints hold.
static void write_tuned(const Config *c, const char *choices) {
    char path[PATH_MAX_LENGTH + sizeof MATMUL_TABLE_NAME];
    Error err;
    snprintf(path, sizeof path, "%s/" MATMUL_TABLE_NAME, c->out);
    if (!file_replace(path, choices, strlen(choices), &err)) fprintf(stderr, "warning: %s\n", err.text);
}

// The folder of the run may have been removed under it; where it can be made again, nothing is lost but the log.
static void write_files(Saver *s) {
    const Config *c = s->config;
    const char *vocabulary = c->tokenizer == TOKENIZER_BYTES || !c->tokenizer_file[0] ? NULL : c->tokenizer_file;
    bool gone = !s->shards && !path_is_folder(c->out);
    if (s->log_fd >= 0) fsync(s->log_fd); // a checkpoint never knows of steps that the log lost in a power cut
    s->good = checkpoint_write(c->out, &s->snapshot, vocabulary, &s->err);
    if (s->good && gone)
        fprintf(stderr, "warning: the folder %s was removed during the run and has been made again\n", c->out);
    if (s->good && c->autotune && s->snapshot.choices) write_tuned(c, s->snapshot.choices);
    // while updates are skipped or weights are not finite the checkpoints from before may be the only good ones
    int keep = s->snapshot.run.state.skipped_run > 0 || s->snapshot.nonfinite ? 0 : c->keep;
    if (s->good && s->snapshot.exec->rank == 0) checkpoint_prune(c->out, s->snapshot.run.step, keep, c->keep_every);
}

static void *write_in_thread(void *argument) {
    Saver *s = (Saver *)argument;
    double begin = now_ms();
    write_files(s);
    s->ms += now_ms() - begin;
    atomic_store(&s->ended, true);
    return NULL;
}

static void *saver_thread(void *argument) {
    signals_writer(true);
    write_in_thread(argument);
    signals_writer(false);
    return NULL;
}

// Signals are the training thread's.
static bool start_thread(Saver *s) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&s->ended, false);
    bool started = pthread_create(&s->thread, NULL, saver_thread, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void join(Saver *s) {
    if (!s->running) return;
    pthread_join(s->thread, NULL);
    s->running = false;
    if (s->ms > s->longest_ms) s->longest_ms = s->ms;
}

static void say(Saver *s) {
    if (s->said || s->running) return;
    s->said = true;
    if (s->snapshot.exec->rank > 0) return;
    if (s->good) log_nonfinite(s->log, s->snapshot.nonfinite);
    if (s->good)
        log_text(s->log, "saved %s/step-%08lld", s->config->out, (long long)s->step);
    else
        fprintf(
            stderr,
            "warning: the checkpoint of step %lld could not be saved: %s; training goes on, and earlier checkpoints "
            "are untouched\n",
            (long long)s->step, s->err.text);
}

// A thread that ends the process itself cannot be waited for.
static void wait_at_exit(void) {
    if (at_exit && at_exit->running && !pthread_equal(pthread_self(), at_exit->thread)) join(at_exit);
}

Saver *saver_open(const Config *config, const Arena *arena, Exec *exec, Log *log) {
    static bool registered;
    Saver *s = (Saver *)xcalloc(1, sizeof *s);
    s->config = config;
    s->log = log;
    s->log_fd = log_descriptor(log);
    s->step = -1;
    s->said = true;
    snapshot_open(&s->snapshot, arena, exec);
    if (config->save_every > 0 && !snapshot_reserve(&s->snapshot) && !config->quiet)
        fprintf(stderr,
                "note: there is no room for a copy of the states (%.2f GB of host memory); training waits while "
                "checkpoints are written\n",
                (double)s->snapshot.bytes / 1e9);
    at_exit = s;
    if (!registered) registered = atexit(wait_at_exit) == 0;
    return s;
}

bool saver_share(Saver *s, Shards *shards, Error *err) {
    s->shards = s->snapshot.shards = shards;
    bool gathers = shards->zero >= 3 && s->snapshot.exec->rank == 0; // which needs room, however rare the saves
    bool room = s->snapshot.memory || (gathers && snapshot_reserve(&s->snapshot));
    s->foreground = comm_max_i64(shards->comm, !room);
    if (room || !gathers) return true;
    return error_set(
        err, EXIT_DEVICE,
        "host memory: rank 0 needs %.2f GB for a copy of the weights, which --zero 3 gathers to save them; "
        "use --zero 2",
        (double)s->snapshot.bytes / 1e9);
}

// The processes wait for the save before and for the new folder.
static bool begin_together(Saver *s, const RunState *run) {
    Comm *comm = s->shards->comm;
    bool mine = s->snapshot.exec->rank > 0 || checkpoint_prepare(s->config->out, run->step, &s->err);
    comm_patience(comm, SAVER_PATIENCE);
    s->good = comm_all_good(comm, mine, &s->err);
    comm_patience(comm, 0);
    return s->good;
}

static void write_in_foreground(Saver *s) {
    write_in_thread(s);
    if (s->ms > s->longest_ms) s->longest_ms = s->ms;
}

void saver_save(Saver *s, const RunState *run) {
    join(s);
    say(s);
    double begin = now_ms();
    s->step = run->step;
    s->said = false;
    s->ms = 0;
    if (s->shards && !begin_together(s, run)) return;
    snapshot_take(&s->snapshot, run);
    s->ms = now_ms() - begin;
    s->running = s->snapshot.memory && start_thread(s);
    if (!s->running) write_in_foreground(s);
    if (!s->foreground) return;
    comm_patience(s->shards->comm, SAVER_PATIENCE);
    comm_barrier(s->shards->comm);
    comm_patience(s->shards->comm, 0);
}

void saver_poll(Saver *s) {
    if (s->running && !atomic_load(&s->ended)) return;
    join(s);
    say(s);
}

bool saver_finish(Saver *s, Error *err) {
    join(s);
    if (s->step < 0 || s->good) {
        say(s);
        return true;
    }
    s->said = true; // as an error, by the caller
    return error_set(err, EXIT_DATA, "the checkpoint of step %lld could not be saved: %s", (long long)s->step,
                     s->err.text);
}

int64_t saver_step(const Saver *s) {
    return s->step;
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
    if (s->log_fd >= 0) close(s->log_fd);
    snapshot_close(&s->snapshot);
    free(s);
}
