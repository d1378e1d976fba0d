#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "error.h"

#define REPEATED_NS 200000000LL // nanoseconds within which a second signal counts as a duplicate of the first
#define TERMINAL_TIMEOUT_S 2

static volatile sig_atomic_t stop_signal, save_asked;
static struct timespec stop_time; // time of the first request to end
static volatile pid_t writer;     // id of the thread registered by signals_writer(); 0: no thread is registered

// After a request to end, checks once a second whether stdout and stderr accept data. If stdout or stderr accepts none
// for TERMINAL_TIMEOUT_S seconds (Ctrl-S may have stopped the terminal), redirects that descriptor to /dev/null. A
// blocked write then restarts when this handler returns, so that the run can save and end.
static void on_alarm(int number) {
    static int refused[2]; // for stdout and stderr: consecutive checks, one per second, that found no data accepted
    int before = errno;
    bool given_up = false;
    (void)number;
    for (int i = 0; i < 2; i++) {
        int output = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
        struct pollfd ready = {output, POLLOUT, 0};
        refused[i] = poll(&ready, 1, 0) == 0 ? refused[i] + 1 : 0;
        if (refused[i] < TERMINAL_TIMEOUT_S) continue;
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (nowhere < 0) continue;
        dup2(nowhere, output);
        close(nowhere);
        given_up = true;
    }
    // a blocked write restarts only if the writing thread receives a signal, so SIGALRM also goes to the other thread
    // that prints
    pid_t other = gettid() == writer ? getpid() : writer;
    if (given_up && other) syscall(SYS_tgkill, getpid(), other, SIGALRM);
    alarm(1);
    errno = before;
}

static size_t add(char *text, size_t size, size_t used, const char *more) {
    size_t length = strlen(more);
    if (length > size - used) length = size - used;
    memcpy(text + used, more, length);
    return used + length;
}

// Breaks a line of text at spaces to fit the width of the terminal.
static void fold(char *text, size_t used) {
    struct winsize window;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) return;
    for (size_t begin = 0; used - begin > window.ws_col;) {
        size_t cut = begin + window.ws_col;
        while (cut > begin && text[cut] != ' ') cut--;
        if (cut == begin) return;
        text[cut] = '\n';
        begin = cut + 1;
    }
}

// Prints that the run will save and end. With several processes, a launcher may have sent the signal because a process
// was lost, and may soon kill the others. This line may then be the last output of this process, so the line
// includes error_advice().
static void say_stop(void) {
    char text[2048];
    size_t used =
        add(text, sizeof text, 0,
            "stopping after the current micro-batch; a second signal ends the process at once, without saving");
    if (error_rank >= 0) {
        used = add(text, sizeof text, used, "; if another process is lost, ");
        used = add(text, sizeof text - 1, used, error_advice());
    } else {
        fold(text, used);
    }
    used = add(text, sizeof text, used, "\n");
    if (write(STDERR_FILENO, text, used) < 0) errno = 0;
}

// Handles a request to end (SIGTERM, SIGINT, SIGHUP). on_stop() and on_alarm() call only async-signal-safe functions:
// POSIX lists alarm, clock_gettime, close, dup2, open, poll, write, _exit, memcpy and strlen; gettid, ioctl and tgkill
// are plain system calls.
static void on_stop(int number) {
    int before = errno;
    struct timespec now;
    struct pollfd output = {STDERR_FILENO, POLLOUT, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!stop_signal) {
        stop_time = now; // stop_time is set before stop_signal, because another thread may handle a second signal now
        stop_signal = number;
        alarm(1);
        // prints only if the write cannot block: a duplicate signal would be handled only after a blocked write, and
        // would then count as a second request, which ends the process
        if (poll(&output, 1, 0) > 0) say_stop();
    } else if ((now.tv_sec - stop_time.tv_sec) * 1000000000LL + (now.tv_nsec - stop_time.tv_nsec) > REPEATED_NS) {
        _exit(128 + number);
    }
    errno = before;
}

static void on_save(int number) {
    (void)number;
    save_asked = 1;
}

// Installs a signal handler. While the handler runs, all signals except SIGALRM are blocked. With `unless_ignored`, a
// signal that was ignored when the process started stays ignored.
static void install(int number, void (*handler)(int), bool unless_ignored) {
    struct sigaction action, before;
    if (unless_ignored && sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN) return;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigfillset(&action.sa_mask);
    sigdelset(&action.sa_mask, SIGALRM);
    sigaction(number, &action, NULL);
}

void signals_fail_writes(void) {
    int fd;
    while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO) continue;
    if (fd >= 0) close(fd);
    install(SIGPIPE, SIG_IGN, false);
    install(SIGXFSZ, SIG_IGN, false);
}

void signals_open(void) {
    install(SIGALRM, on_alarm, false);
    install(SIGTERM, on_stop, false);
    install(SIGINT, on_stop, true);
    install(SIGHUP, on_stop, true);
    install(SIGUSR1, on_save, false);
}

void signals_writer(bool begins) {
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    writer = begins ? gettid() : 0;
    pthread_sigmask(begins ? SIG_UNBLOCK : SIG_BLOCK, &alarms, NULL);
}

int signals_stop(void) {
    return stop_signal;
}

bool signals_consume_save(void) {
    if (!save_asked) return false;
    save_asked = 0; // a request that arrives before save_asked is cleared is served by the same checkpoint
    return true;
}

const char *signals_name(int number) {
    return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : number == SIGHUP ? "SIGHUP" : "a signal";
}
