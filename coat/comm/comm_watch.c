#include "comm_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "comm_internal.h"

#define INTERVAL_MS 200

enum { ABSENT, PRESENT, FINISHED, FAILED }; // FAILED + code: left with that exit code

// What a rank tells the others of its machine; zeros until it comes.
typedef struct {
    int64_t beat_ms; // when it last looked, on the machine's clock
    int32_t status;
    uint32_t begun; // collectives
    char unused[48];
} Entry;

struct CommWatch {
    CommPlace place;
    const volatile int *patience;
    const volatile uint32_t *counters;
    Entry *board; // (ranks), shared where that is possible
    size_t board_bytes;
    char name[64];
    pthread_t thread;
    pthread_mutex_t lock; // of what follows
    pthread_cond_t wake;
    bool closing;
    const char *doing; // between watch_begin and watch_end
    int64_t doing_since;
};

static CommWatch *the_watch; // for exit(), which has no argument to pass

static int64_t load64(const int64_t *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
static int status_of(const CommWatch *w, int rank) {
    return __atomic_load_n(&w->board[rank].status, __ATOMIC_ACQUIRE);
}

// --- how it ends ----------------------------------------------------------------------------------------------------

__attribute__((format(printf, 3, 4), noreturn)) static void end(CommWatch *w, int code, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int own = status_of(w, w->place.rank);
    bool told = own >= FAILED; // the process is ending already, and has said why: the others only follow it
    if (told)
        code = own - FAILED;
    else
        watch_leave(w, code);
    if (ftrylockfile(stdout) == 0) fflush_unlocked(stdout); // what the run has said so far, unless it is just speaking
    if (!told) dprintf(STDERR_FILENO, "error: rank %d: %s\n", w->place.rank, text);
    _exit(code);
}

// Whether `rank` is what this one waits for: it has begun fewer collectives, or is not there any more. One that has
// ended the run, having come as far, waited in vain too: the ranks' patience ends at the same moment.
static bool is_late(const CommWatch *w, int rank) {
    int status = status_of(w, rank);
    uint32_t theirs = __atomic_load_n(&w->board[rank].begun, __ATOMIC_ACQUIRE);
    if (status == ABSENT) return w->place.local_ranks == w->place.ranks; // else it may be on another machine
    return status == FINISHED || (int32_t)(w->counters[0] - theirs) > 0;
}

static int late_ranks(const CommWatch *w, char *names, size_t size) {
    int late = 0;
    names[0] = '\0';
    for (int r = 0; r < w->place.ranks; r++) {
        size_t used = strlen(names);
        if (r == w->place.rank || !is_late(w, r)) continue;
        if (used < size - 16) snprintf(names + used, size - used, "%s%d", used ? ", " : "", r);
        late++;
    }
    return late;
}

static void end_waiting(CommWatch *w, const char *doing, int64_t seconds) {
    char names[200];
    int late = late_ranks(w, names, sizeof names);
    if (late)
        end(w, EXIT_RANK, "waited %lld s in %s for rank %s, which hangs or is lost; %s", (long long)seconds, doing,
            names, error_advice());
    end(w, EXIT_RANK,
        "waited %lld s in %s, where all ranks of this machine have arrived: one of another machine hangs or is lost, "
        "or the connection is; %s",
        (long long)seconds, doing, error_advice());
}

static void look_at_others(CommWatch *w, int64_t now, bool judge) {
    int limit = *w->patience < COMM_PATIENCE ? *w->patience : COMM_PATIENCE;
    for (int r = 0; r < w->place.ranks; r++) {
        int status = status_of(w, r);
        if (r == w->place.rank) continue;
        if (status >= FAILED) end(w, status - FAILED, "rank %d has ended the run; it says why", r);
        if (judge && status == PRESENT && now - load64(&w->board[r].beat_ms) > limit * 1000)
            end(w, EXIT_RANK, "rank %d has given no sign of life for %d s: it was killed or stopped; %s", r, limit,
                error_advice());
    }
}

typedef struct {
    int64_t last;             // look, in milliseconds
    int64_t since;            // then this rank began or finished a collective
    int64_t busy;             // the time that it took from the last collective to the one under way
    int64_t judge_from;       // before that, the others' signs of life may be old
    uint32_t begun, finished; // collectives, at the last look
} Look;

// --- the thread -----------------------------------------------------------------------------------------------------

// One look: tells the others how far this rank is, and ends the run where something takes too long.
static void look(CommWatch *w, Look *l) {
    Entry *own = &w->board[w->place.rank];
    int64_t now = (int64_t)now_ms(), limit = (int64_t)*w->patience * 1000;
    uint32_t begun = w->counters[0], finished = w->counters[1];
    __atomic_store_n(&own->beat_ms, now, __ATOMIC_RELEASE);
    __atomic_store_n(&own->begun, begun, __ATOMIC_RELEASE);
    if (now - l->last > 10 * INTERVAL_MS) { // this process was stopped, perhaps all were: nobody is late yet
        l->judge_from = now + 10 * INTERVAL_MS;
        l->since = w->doing_since = now;
    }
    if (begun != l->begun || finished != l->finished) {
        l->busy = l->begun == l->finished ? now - l->since : 0;
        l->since = now;
    }
    l->last = now;
    l->begun = begun;
    l->finished = finished;
    look_at_others(w, now, now >= l->judge_from);
    char doing[64];
    snprintf(doing, sizeof doing, "collective %u", finished + 1);
    // the others do the same work as this rank: who has taken long itself waits longer for them
    int64_t collective_limit = 2 * l->busy > limit ? 2 * l->busy : limit;
    if (begun != finished && now - l->since > collective_limit) end_waiting(w, doing, collective_limit / 1000);
    if (w->doing && now - w->doing_since > limit) end_waiting(w, w->doing, limit / 1000);
}

static void *watch_thread(void *argument) {
    CommWatch *w = (CommWatch *)argument;
    Look state = {(int64_t)now_ms(), 0, 0, 0, w->counters[0], w->counters[1]};
    state.since = state.last;
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        look(w, &state);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += INTERVAL_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
        pthread_cond_timedwait(&w->wake, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void watch_begin(CommWatch *w, const char *doing) {
    pthread_mutex_lock(&w->lock);
    w->doing = doing;
    w->doing_since = (int64_t)now_ms();
    pthread_mutex_unlock(&w->lock);
}

void watch_end(CommWatch *w) {
    pthread_mutex_lock(&w->lock);
    w->doing = NULL;
    pthread_mutex_unlock(&w->lock);
}

// --- opening and closing --------------------------------------------------------------------------------------------

static void leave(int code) {
    if (the_watch) watch_leave(the_watch, code);
}

static void leave_at_exit(int code, void *unused) {
    (void)unused;
    leave(code);
}

// Shared memory named after the run; where there is none, this rank watches itself alone.
static Entry *open_board(CommWatch *w, const void *id, size_t id_bytes) {
    uint64_t hash = 14695981039346656037u; // FNV-1a
    for (size_t i = 0; i < id_bytes; i++) hash = (hash ^ ((const unsigned char *)id)[i]) * 1099511628211u;
    snprintf(w->name, sizeof w->name, "/coat-%016llx", (unsigned long long)hash);
    int fd = shm_open(w->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600), flags = MAP_SHARED;
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)w->board_bytes) != 0) flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *memory = mmap(NULL, w->board_bytes, PROT_READ | PROT_WRITE, flags, flags == MAP_SHARED ? fd : -1, 0);
    if (fd >= 0) close(fd);
    if (memory == MAP_FAILED) fatal(EXIT_DEVICE, "host memory: could not map %zu bytes", w->board_bytes);
    return (Entry *)memory;
}

CommWatch *watch_open(const CommPlace *place, const volatile int *patience, const void *id, size_t id_bytes,
                      const volatile uint32_t *counters) {
    CommWatch *w = (CommWatch *)xcalloc(1, sizeof *w);
    w->place = *place;
    w->patience = patience;
    w->counters = counters;
    w->board_bytes = (size_t)place->ranks * sizeof(Entry);
    w->board = open_board(w, id, id_bytes);
    Entry *own = &w->board[place->rank];
    __atomic_store_n(&own->beat_ms, (int64_t)now_ms(), __ATOMIC_RELEASE);
    __atomic_store_n(&own->status, PRESENT, __ATOMIC_RELEASE);
    pthread_mutex_init(&w->lock, NULL);
    comm_cond_init(&w->wake);
    static bool registered;
    error_leaves = leave;
    if (!registered) registered = on_exit(leave_at_exit, NULL) == 0;
    the_watch = w;
    int failed = pthread_create(&w->thread, NULL, watch_thread, w);
    if (failed) fatal(EXIT_DEVICE, "could not start the thread that watches the other ranks: %s", strerror(failed));
    return w;
}

void watch_meet(CommWatch *w) {
    shm_unlink(w->name); // every rank of the machine does; the first succeeds
}

void watch_leave(CommWatch *w, int code) {
    the_watch = NULL;
    shm_unlink(w->name);
    __atomic_store_n(&w->board[w->place.rank].status, FAILED + (code ? code : EXIT_RANK), __ATOMIC_RELEASE);
}

void watch_close(CommWatch *w) {
    the_watch = NULL;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    shm_unlink(w->name);
    if (status_of(w, w->place.rank) == PRESENT)
        __atomic_store_n(&w->board[w->place.rank].status, FINISHED, __ATOMIC_RELEASE);
    munmap(w->board, w->board_bytes);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
