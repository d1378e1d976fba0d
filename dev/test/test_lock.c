// Tests of the lock that prevents two runs from writing to one folder (coat/save/lock.h).
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "dev/test/test_folder.h"

#include "coat/save/lock.h"

static int flock_fails; // errno with which flock() fails; 0: flock() succeeds
static Error err;
static Lock lock, second;

// Replaces the C library's flock(). Fails with errno flock_fails unless flock_fails is 0.
int flock(int fd, int operation) {
    if (flock_fails == 0) return (int)syscall(SYS_flock, fd, operation);
    errno = flock_fails;
    return -1;
}

static int begin(void **state) {
    test_folder_empty(state);
    flock_fails = 0;
    return mkdir(path_of("run"), 0777);
}

static bool acquire(Lock *l) {
    return lock_acquire(l, path_of("run"), &err);
}

// Asserts that acquiring the held lock a second time fails, and that the error contains `part`.
static void assert_refused(const char *part) {
    assert_false(acquire(&second));
    assert_true(second.taken);
    assert_says(&err, part);
    assert_error(&err, EXIT_DATA, path_of("run"));
    lock_release(&second); // has no effect
    assert_true(path_is_file(path_of("run/.lock")));
}

// Starts a process that locks the run's folder until the process is killed. Returns its process id.
static pid_t other_holder(void) {
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // ends this process if the test fails and exits
        if (write(ready[1], acquire(&lock) ? "y" : "n", 1) != 1) _exit(1);
        while (true) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    close(ready[0]);
    close(ready[1]);
    return child;
}

UNIT_TEST(a_locked_folder_cannot_be_locked_again) {
    if (!acquire(&lock)) fail_msg("%s", err.text);
    assert_refused("process "); // a process cannot lock the folder a second time
    lock_release(&lock);
    lock_release(&lock);
    assert_false(path_is_file(path_of("run/.lock")));
    pid_t holder = other_holder();
    assert_refused(formatted("process %ld on ", (long)holder));
    assert_int_equal(kill(holder, SIGKILL), 0);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    assert_true(path_is_file(path_of("run/.lock"))); // the .lock file of a killed run does not lock the folder
    assert_true(acquire(&lock));
    lock_release(&lock);
    assert_false(lock_acquire(&lock, path_of("none"), &err));
    assert_false(lock.taken);
    assert_says(&err, "none/.lock");
}

// If another run has replaced and locked the run's folder, releasing the old lock keeps the other run's .lock file.
UNIT_TEST(releasing_a_lock_keeps_another_runs_lock_file) {
    assert_true(acquire(&lock));
    assert_true(lock_is_held(&lock));
    assert_int_equal(rename(path_of("run"), path_of("away")), 0);
    assert_false(lock_is_held(&lock));
    assert_int_equal(mkdir(path_of("run"), 0777), 0);
    assert_true(acquire(&second));
    assert_false(lock_is_held(&lock));
    lock_release(&lock);
    assert_true(path_is_file(path_of("run/.lock")));
    lock_release(&second);
    assert_false(path_is_file(path_of("run/.lock")));
}

// If the file system lacks flock(), the folder is locked while .lock exists. If flock() fails with EIO, locking fails.
UNIT_TEST(without_flock_the_lock_file_is_the_lock) {
    static const int unsupported[] = {EINVAL, ENOSYS, EOPNOTSUPP, ENOTTY, EBADF, EPERM, EACCES, ENOLCK};
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        flock_fails = unsupported[i];
        if (!acquire(&lock)) fail_msg("errno %d: %s", flock_fails, err.text);
        assert_refused("delete its .lock");
        lock_release(&lock);
        assert_false(path_is_file(path_of("run/.lock")));
    }
    write_text(path_of("run/.lock"), "");
    assert_refused(".lock");
    flock_fails = EIO;
    assert_false(acquire(&lock));
    assert_false(lock.taken);
    assert_says(&err, "run/.lock: ");
    flock_fails = EWOULDBLOCK;
    assert_refused(".lock");
    flock_fails = 0;
    assert_true(acquire(&lock)); // .lock exists, but no process has locked it
    lock_release(&lock);
}

// If .lock is a link, a hard link or a pipe, acquiring the lock fails, and the target of the link does not change.
UNIT_TEST(a_lock_file_that_is_a_link_or_pipe_is_refused) {
    write_text(path_of("precious"), "mine");
    for (int i = 0; i < 4; i++) {
        unlink(path_of("run/.lock"));
        const int made = i == 0   ? symlink(path_of("precious"), path_of("run/.lock"))
                         : i == 1 ? symlink(path_of("outside"), path_of("run/.lock"))
                         : i == 2 ? link(path_of("precious"), path_of("run/.lock"))
                                  : mkfifo(path_of("run/.lock"), 0600);
        assert_int_equal(made, 0);
        alarm(20);
        assert_false(acquire(&lock));
        alarm(0);
        assert_error(&err, EXIT_DATA, "run/.lock is ");
    }
    assert_string_equal(contents(path_of("precious")), "mine");
    assert_false(path_is_file(path_of("outside")));
}

RUN_TESTS(test_folder_make, test_folder_remove, begin)
