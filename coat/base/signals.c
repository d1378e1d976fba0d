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

#define REPEATED_NS 200000000LL
#define TERMINAL_TIMEOUT_S 2 // seconds

static volatile sig_atomic_t stop_signal, save_asked;
static struct timespec stop_time; // of the first request
static volatile pid_t writer;     // the thread that may be held up by a terminal beside the main one, 0: none

// From the request to end on, looks once a second whether standard output and error take anything. One that does not, a
// terminal stopped by Ctrl-S or a pipe that nobody reads, gives its number to /dev/null: a write that it holds up is
// restarted there, once this handler returns, and no later one can keep the run from saving and ending.
static void on_alarm(int number) {
    static int refused[2]; // seconds
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
    // only a thread that takes the signal has its write restarted: the other takes one too
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

// Breaks a line at blanks where the terminal is narrower than it.
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

// Of several processes one may be lost, and the launcher ends the others with this signal and soon after for good: then
// this is their last line.
static void say_stop(void) {
    char text[2048];
    size_t used = add(text, sizeof text, 0, "asked to end: saving what is done; once more ends the process at once");
    if (error_rank >= 0) {
        used = add(text, sizeof text, used, "; if another process is lost, ");
        used = add(text, sizeof text - 1, used, error_advice());
    } else {
        fold(text, used);
    }
    used = add(text, sizeof text, used, "\n");
    if (write(STDERR_FILENO, text, used) < 0) errno = 0;
}

// Everything here is safe in a handler (POSIX lists alarm, clock_gettime, dup2, open, poll, write and _exit, memcpy and
// strlen; gettid, ioctl and tgkill are nothing but system calls).
static void on_stop(int number) {
    int before = errno;
    struct timespec now;
    struct pollfd output = {STDERR_FILENO, POLLOUT, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!stop_signal) {
        stop_time = now; // before the number: another thread may be in here with the second signal
        stop_signal = number;
        alarm(1);
        // held up in here, this thread would take a second signal, sent at the same time, for a later one
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
    save_asked = 0; // a request that comes between the two lines is this one's
    return true;
}

void signals_ask_save(void) {
    save_asked = 1;
}

const char *signals_name(int number) {
    return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : number == SIGHUP ? "SIGHUP" : "a signal";
}
