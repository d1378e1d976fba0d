#include "watchdog.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "comm_internal.h"

#define INTERVAL_MS 200

enum { ABSENT, PRESENT, FINISHED, FAILED }; // status of a rank; FAILED + N: the rank has ended the run with exit code N

// Progress of one rank, in the table ("board") that the ranks of a machine share. All fields are 0 at first.
typedef struct {
    int64_t beat_ms; // time in ms (monotonic clock) at which the rank's watchdog last ran
    int32_t status;  // ABSENT, PRESENT, FINISHED or FAILED + exit code
    uint32_t begun;  // number of collectives that the rank has started
} Entry;

// State of a watchdog thread. All times are in milliseconds, except *timeout.
struct Watchdog {
    CommPlace place;
    const volatile int *timeout;       // seconds that a rank waits for another rank
    const volatile uint32_t *counters; // numbers of collectives that this rank has started ([0]) and finished ([1])
    Entry *board;                      // table with one entry per rank
    char name[64];                     // name of the board's shared memory; "": watchdog_share() was not called
    pthread_t thread;
    pthread_mutex_t lock; // protects the fields that follow; protects `board`, too, until all ranks are connected
    pthread_cond_t wake;
    bool shared; // true: the board is in shared memory
    bool closing;
    const char *doing; // name of the work between watchdog_begin() and watchdog_end(); NULL if there is none
    int64_t doing_since;
    int64_t last;             // time at which the thread last checked
    int64_t since;            // time in ms at which this rank last started or finished a collective
    int64_t busy;             // ms of this rank's own work before the current collective
    int64_t judge_from;       // until this time, old values of beat_ms are ignored, because all ranks may have stopped
    uint32_t begun, finished; // counters[0] and counters[1] at the thread's last check
};

// watchdog that reports this process's exit to the other ranks; NULL if there is none, or the exit is reported
static Watchdog *the_watchdog;

static int status_of(const Watchdog *w, int rank) {
    return __atomic_load_n(&w->board[rank].status, __ATOMIC_ACQUIRE);
}

static size_t board_bytes(const Watchdog *w) {
    return (size_t)w->place.ranks * sizeof(Entry);
}

// Prints the message and ends this process with `code`. If the process is already ending with its own error, keeps that
// error's code and prints nothing.
__attribute__((format(printf, 3, 4), noreturn)) static void end(Watchdog *w, int code, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const int own = status_of(w, w->place.rank);
    const bool reported = own >= FAILED; // true if this process is already ending and has printed its error
    if (reported)
        code = own - FAILED;
    else
        watchdog_report_exit(code);
    if (ftrylockfile(stdout) == 0) fflush_unlocked(stdout); // skips the flush if another thread is printing
    if (!reported) dprintf(STDERR_FILENO, "%s\n", text);
    _exit(code);
}

// True if this rank waits for `rank`, because `rank` has started fewer collectives than this rank, has finished or, if
// all ranks are on this machine, has never connected. A failed rank that has started as many collectives as this rank
// is not late, because its wait may have timed out, too.
static bool is_late(const Watchdog *w, int rank) {
    const int status = status_of(w, rank);
    const uint32_t begun = __atomic_load_n(&w->board[rank].begun, __ATOMIC_ACQUIRE);
    if (status == ABSENT) return w->place.local_ranks == w->place.ranks; // else the rank may be on another machine
    return status == FINISHED || (int32_t)(w->counters[0] - begun) > 0;
}

static void end_waiting(Watchdog *w, const char *doing, int64_t ms) {
    char late[128] = "", who[400];
    for (int r = 0; r < w->place.ranks && w->shared; r++)
        if (r != w->place.rank && is_late(w, r)) comm_list_rank(late, sizeof late, r);
    if (!w->shared)
        snprintf(who, sizeof who,
                 "the other ranks (%s), of which one hangs, is lost, is out of memory or was not started; use "
                 "--world-size 1 to run one process",
                 w->place.origin);
    else if (late[0])
        snprintf(who, sizeof who, "rank %s, which hangs or is lost; ", late);
    else
        snprintf(who, sizeof who, "a rank of another machine, which hangs or is lost, or cannot be reached; ");
    end(w, EXIT_RANK, "error: rank %d: waited %lld s in %s for %s%s", w->place.rank, (long long)ms / 1000, doing, who,
        w->shared ? error_advice() : "");
}

// Ends this process if another rank of this machine has ended the run. If `judge` is true, also ends this process if
// the watchdog thread of another rank of this machine has not run for *w->timeout seconds, at most COMM_TIMEOUT_S.
static void look_at_others(Watchdog *w, int64_t now, bool judge) {
    const int limit = *w->timeout < COMM_TIMEOUT_S ? *w->timeout : COMM_TIMEOUT_S, rank = w->place.rank;
    for (int r = 0; r < w->place.ranks; r++) {
        const int status = status_of(w, r);
        const int64_t beat_ms = __atomic_load_n(&w->board[r].beat_ms, __ATOMIC_ACQUIRE);
        if (r == rank) continue;
        if (status >= FAILED)
            end(w, status - FAILED, "rank %d ends because rank %d has ended the run with exit code %d; %s", rank, r,
                status - FAILED, error_advice());
        if (judge && status == PRESENT && now - beat_ms > limit * 1000)
            end(w, EXIT_RANK, "error: rank %d: waited %d s for a heartbeat of rank %d, which hangs or is lost; %s",
                rank, limit, r, error_advice());
    }
}

// Checks progress; the watchdog thread calls this every INTERVAL_MS. Writes this rank's progress to the board, and ends
// the process if a collective or other work takes longer than its limit.
static void look(Watchdog *w) {
    Entry *own = &w->board[w->place.rank];
    const int64_t now = (int64_t)now_ms(), limit = (int64_t)*w->timeout * 1000;
    const uint32_t begun = w->counters[0], finished = w->counters[1];
    __atomic_store_n(&own->beat_ms, now, __ATOMIC_RELEASE);
    __atomic_store_n(&own->begun, begun, __ATOMIC_RELEASE);
    // If this check is late, this process was stopped, and perhaps all ranks were. All time limits then start again.
    if (now - w->last > 10 * INTERVAL_MS) {
        w->judge_from = now + 10 * INTERVAL_MS;
        w->since = w->doing_since = now;
    }
    if (begun != w->begun || finished != w->finished) {
        w->busy = w->begun == w->finished ? now - w->since : 0;
        w->since = now;
    }
    w->last = now;
    w->begun = begun;
    w->finished = finished;
    look_at_others(w, now, now >= w->judge_from);
    char doing[64];
    snprintf(doing, sizeof doing, "collective %u", finished + 1);
    // The limit grows with this rank's own work, because all ranks do the same work and another rank may need as long.
    const int64_t collective_limit = 2 * w->busy > limit ? 2 * w->busy : limit;
    if (begun != finished && now - w->since > collective_limit) end_waiting(w, doing, collective_limit);
    if (w->doing && now - w->doing_since > limit) end_waiting(w, w->doing, limit);
}

static void *watchdog_thread(void *argument) {
    Watchdog *w = (Watchdog *)argument;
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        look(w);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += INTERVAL_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
        pthread_cond_timedwait(&w->wake, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void watchdog_begin(Watchdog *w, const char *doing) {
    pthread_mutex_lock(&w->lock);
    w->doing = doing;
    w->doing_since = (int64_t)now_ms();
    pthread_mutex_unlock(&w->lock);
}

void watchdog_end(Watchdog *w) {
    watchdog_begin(w, NULL);
}

static void report_at_exit(int code, void *unused) {
    (void)unused;
    watchdog_report_exit(code);
}

// Creates a board in the shared memory `fd`, or in private memory if fd < 0, and enters this rank in it.
static void set_board(Watchdog *w, int fd) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    Entry *board = (Entry *)mmap(NULL, board_bytes(w), PROT_READ | PROT_WRITE, flags, fd, 0);
    if (board == MAP_FAILED) fatal(EXIT_DEVICE, "watchdog: could not map %zu bytes of host memory", board_bytes(w));
    __atomic_store_n(&board[w->place.rank].beat_ms, (int64_t)now_ms(), __ATOMIC_RELEASE);
    __atomic_store_n(&board[w->place.rank].status, PRESENT, __ATOMIC_RELEASE);
    if (w->board) munmap(w->board, board_bytes(w));
    w->board = board;
    w->shared = fd >= 0;
}

void watchdog_share(Watchdog *w, const void *id, size_t bytes) {
    snprintf(w->name, sizeof w->name, "/coat-%016llx", (unsigned long long)XXH3_64bits(id, bytes));
    const int fd = shm_open(w->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    pthread_mutex_lock(&w->lock);
    if (fd >= 0 && posix_fallocate(fd, 0, (off_t)board_bytes(w)) == 0) set_board(w, fd);
    pthread_mutex_unlock(&w->lock);
    if (fd >= 0) close(fd);
}

Watchdog *watchdog_open(const CommPlace *place, const volatile int *timeout, const volatile uint32_t *counters) {
    Watchdog *w = (Watchdog *)xcalloc(1, sizeof *w);
    w->place = *place;
    w->timeout = timeout;
    w->counters = counters;
    w->last = w->since = (int64_t)now_ms();
    set_board(w, -1);
    pthread_mutex_init(&w->lock, NULL);
    // The wait uses the monotonic clock, because a change of the system time must not lengthen the wait.
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    static bool registered;
    error_exit_hook = watchdog_report_exit;
    if (!registered) registered = on_exit(report_at_exit, NULL) == 0;
    the_watchdog = w;
    sigset_t all, before; // signals are blocked in the new thread, so that the training thread handles them
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&w->thread, NULL, watchdog_thread, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) fatal(EXIT_DEVICE, "the thread that detects lost ranks could not be started: %s", strerror(failed));
    return w;
}

void watchdog_all_connected(Watchdog *w) {
    if (w->name[0]) shm_unlink(w->name); // all ranks of the machine remove the name; only the first call succeeds
}

void watchdog_report_exit(int code) {
    Watchdog *w = the_watchdog;
    if (!w) return;
    the_watchdog = NULL;
    watchdog_all_connected(w);
    __atomic_store_n(&w->board[w->place.rank].status, FAILED + (code ? code : EXIT_RANK), __ATOMIC_RELEASE);
}

void watchdog_close(Watchdog *w) {
    the_watchdog = NULL;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    watchdog_all_connected(w);
    if (status_of(w, w->place.rank) == PRESENT)
        __atomic_store_n(&w->board[w->place.rank].status, FINISHED, __ATOMIC_RELEASE);
    munmap(w->board, board_bytes(w));
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
