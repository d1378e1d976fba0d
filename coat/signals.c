#include "signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define REPEATED_NS 200000000LL

static volatile sig_atomic_t stop_signal, save_asked;
static struct timespec stop_time; // of the first request

// Everything here is safe in a handler (POSIX lists clock_gettime, write and _exit).
static void on_stop(int number) {
    static const char text[] = "asked to end: saving what is done; once more ends the process at once\n";
    int before = errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!stop_signal) {
        stop_time = now; // before the number: another thread may be in here with the second signal
        stop_signal = number;
        if (write(STDERR_FILENO, text, sizeof text - 1) < 0) errno = 0; // the run ends all the same
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
    sigaction(number, &action, NULL);
}

void signals_open(void) {
    install(SIGTERM, on_stop, false);
    install(SIGINT, on_stop, true);
    install(SIGHUP, on_stop, true);
    install(SIGUSR1, on_save, false);
    install(SIGPIPE, SIG_IGN, false);
    install(SIGXFSZ, SIG_IGN, false);
}

int signals_stop(void) {
    return stop_signal;
}

bool signals_take_save(void) {
    bool asked = save_asked;
    save_asked = 0;
    return asked;
}

const char *signals_name(int number) {
    return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : number == SIGHUP ? "SIGHUP" : "a signal";
}
