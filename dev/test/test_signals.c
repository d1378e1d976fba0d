// Tests of signals during training (coat/base/signals.h). A run must end even if its output blocks before or after the
// signal. Output blocks on a stopped terminal or on a pipe that nobody reads.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>

#include "coat/base/signals.h"
#include "test_folder.h"

typedef enum { PIPE, TERMINAL } Kind;

typedef struct {
    int reader, writer;
} Output;

// Opens a pipe or a pseudo-terminal for a run's output. Sets writer to -1 if the system has no pseudo-terminals.
static Output output_open(Kind kind) {
    int ends[2] = {-1, -1};
    if (kind == PIPE) {
        assert_int_equal(pipe(ends), 0);
    } else {
        ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
        if (ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0)
            ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
    }
    Output output = {ends[0], ends[1]};
    return output;
}

static void pause_ms(long ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

// Acts as a training run: prints `lines` lines, waits for a signal, and prints `more` lines. Exits with the signal's
// number if all output succeeded, otherwise with 99.
static void talk(const Output *output, int lines, int more) {
    dup2(output->writer, STDOUT_FILENO);
    dup2(output->writer, STDERR_FILENO);
    signals_open();
    for (int i = 0; !signals_stop(); i++) {
        if (i < lines) printf("a line of a run that says a lot\n");
        fflush(stdout);
        if (i >= lines) pause_ms(10);
    }
    for (int i = 0; i < more; i++) printf("another line\n");
    bool good = fflush(stdout) == 0 && !ferror(stdout);
    fprintf(stderr, "ended\n");
    _exit(good ? signals_stop() : 99);
}

static pid_t start_talking(const Output *output, int lines, int more) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) talk(output, lines, more);
    return child;
}

// Returns the child's exit status, -1 if it does not end within 10 s, or -2 if a signal ended it.
static int status_of(pid_t child) {
    int status = 0;
    for (int waited = 0; waited < 1000; waited++, pause_ms(10))
        if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
}

UNIT_TEST(a_signal_ends_a_run_whose_output_blocks) {
    static const struct {
        Kind kind;
        int lines;
        bool stopped; // true if the terminal is stopped, as by Ctrl-S
    } cases[] = {{PIPE, 1 << 30, false},
                 {TERMINAL, 1 << 30, false},
                 {TERMINAL, 1 << 30, true},
                 {PIPE, 1, false}, // output blocks only after the signal
                 {TERMINAL, 1, false}};
    enum { CASES = sizeof cases / sizeof *cases };
    Output outputs[CASES];
    pid_t children[CASES] = {0};
    for (int i = 0; i < CASES; i++) {
        outputs[i] = output_open(cases[i].kind);
        if (outputs[i].writer < 0) continue;
        if (cases[i].stopped) assert_int_equal(tcflow(outputs[i].writer, TCOOFF), 0);
        children[i] = start_talking(&outputs[i], cases[i].lines, 10000);
    }
    pause_ms(300);
    for (int i = 0; i < CASES; i++)
        if (children[i]) assert_int_equal(kill(children[i], SIGTERM), 0);
    for (int i = 0; i < CASES; i++) {
        if (children[i] && status_of(children[i]) != SIGTERM) fail_msg("case %d", i);
        close(outputs[i].reader);
        close(outputs[i].writer);
    }
}

// A reader of the run's output that is slow, but continues to read, receives all output.
UNIT_TEST(a_slow_reader_gets_all_output) {
    Output output = output_open(PIPE);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(output.writer);
        static char all[1 << 20];
        size_t size = 0;
        for (ssize_t n; (n = read(output.reader, all + size, 1 << 12)) > 0; pause_ms(40)) size += (size_t)n;
        _exit(size > 6 && memcmp(all + size - 6, "ended\n", 6) == 0 ? 0 : 1);
    }
    pid_t run = start_talking(&output, 1 << 30, 20);
    pause_ms(300);
    assert_int_equal(kill(run, SIGTERM), 0);
    assert_int_equal(status_of(run), SIGTERM);
    close(output.writer);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(output.reader);
}

RUN_TESTS(NULL, NULL, NULL)
