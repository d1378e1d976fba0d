// Tests of the lock of a run's folder (coat/save/lock.h), of both kinds.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "dev/test/test_folder.h"

#include "coat/save/lock.h"

static int flock_fails; // errno; 0: it works

// In place of the C library's.
int flock(int fd, int operation) {
    if (flock_fails == 0) return (int)syscall(SYS_flock, fd, operation);
    errno = flock_fails;
    return -1;
}

typedef bool Take(Lock *lock, const char *folder, Error *err);
static const struct {
    Take *take;
    const char *file;
} kinds[] = {{lock_take, "run/.lock"}, {lock_take_by_presence, "run/.lock-holder"}};

// Another process that takes the lock and stays; or ends without releasing it.
static pid_t other_holder(Take *take, bool stays) {
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // where the test fails
        Error err;
        Lock lock;
        bool good = take(&lock, path_of("run"), &err);
        if (write(ready[1], good ? "y" : "n", 1) != 1) _exit(1);
        while (stays) pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    close(ready[0]);
    close(ready[1]);
    if (!stays) assert_int_equal(waitpid(child, NULL, 0), child);
    return child;
}

static void test_one_at_a_time(void **state) {
    (void)state;
    Error err;
    Lock lock, second;
    assert_int_equal(mkdir(path_of("run"), 0777), 0);
    for (int i = 0; i < 2; i++) {
        Take *take = kinds[i].take;
        if (!take(&lock, path_of("run"), &err)) fail_msg("%s", err.text);
        assert_true(path_is_file(path_of(kinds[i].file)));
        assert_false(take(&second, path_of("run"), &err)); // this very process, too
        lock_release(&second);                             // holds nothing
        assert_true(path_is_file(path_of(kinds[i].file)));
        lock_release(&lock);
        lock_release(&lock);
        assert_false(path_is_file(path_of(kinds[i].file)));
        pid_t holder = other_holder(take, true);
        char pid[32];
        snprintf(pid, sizeof pid, "process %ld on ", (long)holder);
        assert_false(take(&lock, path_of("run"), &err));
        assert_int_equal(err.code, EXIT_DATA);
        assert_says(&err, pid);
        assert_says(&err, "since 20");
        assert_says(&err, path_of("run"));
        assert_int_equal(kill(holder, SIGKILL), 0);
        assert_int_equal(waitpid(holder, NULL, 0), holder);
        assert_true(path_is_file(path_of(kinds[i].file))); // left over, and no hindrance
        if (!take(&lock, path_of("run"), &err)) fail_msg("%s", err.text);
        lock_release(&lock);
        other_holder(take, false);
        if (!take(&lock, path_of("run"), &err)) fail_msg("%s", err.text);
        lock_release(&lock);
    }
}

// A folder that is taken away during the run and made again may be another run's: its lock stays.
static void test_replaced_folder(void **state) {
    (void)state;
    Error err;
    Lock lock, other;
    for (int i = 0; i < 2; i++) {
        assert_true(kinds[i].take(&lock, path_of("run"), &err));
        assert_int_equal(rename(path_of("run"), path_of(i ? "away1" : "away0")), 0);
        assert_int_equal(mkdir(path_of("run"), 0777), 0);
        assert_true(kinds[i].take(&other, path_of("run"), &err));
        lock_release(&lock);
        assert_true(path_is_file(path_of(kinds[i].file)));
        lock_release(&other);
        assert_false(path_is_file(path_of(kinds[i].file)));
    }
}

// What another machine left, or what says nothing, is not ours to judge.
static void test_unknown_holder(void **state) {
    (void)state;
    Error err;
    Lock lock;
    write_text(path_of("run/.lock-holder"), "elsewhere 1 2026-01-02 03:04:05\n");
    assert_false(lock_take_by_presence(&lock, path_of("run"), &err));
    assert_says(&err, "process 1 on elsewhere, since 2026-01-02 03:04:05");
    assert_says(&err, "delete its .lock-holder");
    write_text(path_of("run/.lock-holder"), "");
    assert_false(lock_take_by_presence(&lock, path_of("run"), &err));
    // a file that nobody has locked is no lock, whatever it says
    write_text(path_of("run/.lock"), "elsewhere 1 2026-01-02 03:04:05\n");
    assert_true(lock_take(&lock, path_of("run"), &err));
    lock_release(&lock);
    assert_int_equal(unlink(path_of("run/.lock-holder")), 0);
    assert_false(lock_take(&lock, path_of("none"), &err));
    assert_says(&err, "none/.lock");
}

// flock() may work for one run and not for the next: each looks for the other's kind of file.
static void test_both_kinds(void **state) {
    (void)state;
    Error err;
    Lock lock;
    pid_t holder = other_holder(lock_take_by_presence, true);
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld on ", (long)holder);
    assert_false(lock_take(&lock, path_of("run"), &err));
    assert_says(&err, pid);
    assert_says(&err, "delete its .lock-holder");
    assert_false(path_is_file(path_of("run/.lock")));
    assert_int_equal(kill(holder, SIGKILL), 0);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    assert_true(lock_take(&lock, path_of("run"), &err)); // it is dead
    assert_false(path_is_file(path_of("run/.lock-holder")));
    lock_release(&lock);
}

// A process that was killed while it removed a dead run's file keeps nobody from doing so later.
static void test_killed_while_removing(void **state) {
    (void)state;
    Error err;
    Lock lock;
    other_holder(lock_take_by_presence, false);
    write_text(path_of("run/.lock-removal"), "");
    assert_false(lock_take_by_presence(&lock, path_of("run"), &err)); // it may be at it
    const struct timespec old[2] = {{time(NULL) - 3600, 0}, {time(NULL) - 3600, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path_of("run/.lock-removal"), old, 0), 0);
    assert_true(lock_take_by_presence(&lock, path_of("run"), &err));
    assert_false(path_is_file(path_of("run/.lock-removal")));
    lock_release(&lock);
}

// Of several that find a dead run's file at the same moment, one takes its place.
static void test_dead_run_replaced_once(void **state) {
    (void)state;
    enum { RUNS = 4 };
    for (int round = 0; round < 40; round++) {
        other_holder(lock_take_by_presence, false);
        int begin[2], told[2], takers = 0;
        pid_t runs[RUNS];
        char byte;
        assert_int_equal(pipe(begin), 0);
        assert_int_equal(pipe(told), 0);
        for (int i = 0; i < RUNS; i++) {
            runs[i] = fork();
            if (runs[i] > 0) continue;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            Error err;
            Lock lock;
            close(begin[1]);
            bool ended = read(begin[0], &byte, 1) == 0; // all at once
            bool good = lock_take_by_presence(&lock, path_of("run"), &err);
            if (!ended || write(told[1], good ? "y" : "n", 1) != 1) _exit(1);
            while (true) pause();
        }
        close(begin[0]);
        close(begin[1]);
        for (int i = 0; i < RUNS; i++) {
            assert_int_equal(read(told[0], &byte, 1), 1);
            takers += byte == 'y';
        }
        for (int i = 0; i < RUNS; i++) {
            assert_int_equal(kill(runs[i], SIGKILL), 0);
            assert_int_equal(waitpid(runs[i], NULL, 0), runs[i]);
        }
        close(told[0]);
        close(told[1]);
        assert_int_equal(takers, 1);
        assert_int_equal(unlink(path_of("run/.lock-holder")), 0);
    }
}

// Without flock() the other kind of file is the lock; a disk that fails is an error.
static void test_flock_fails(void **state) {
    (void)state;
    static const int unsupported[] = {EINVAL, ENOSYS, EOPNOTSUPP, ENOTTY, EBADF, EPERM, EACCES, ENOLCK};
    Error err;
    Lock lock;
    for (size_t i = 0; i < 10; i++) {
        flock_fails = i < 8 ? unsupported[i] : i == 8 ? EIO : EWOULDBLOCK;
        const bool good = kinds[0].take(&lock, path_of("run"), &err);
        if (good != (i < 8)) fail_msg("errno %d: %s", flock_fails, good ? "locked" : err.text);
        if (good) assert_true(path_is_file(path_of(kinds[1].file)));
        if (!good) assert_int_equal(err.code, EXIT_DATA);
        if (!good) assert_says(&err, i == 8 ? "run/.lock: " : "another run is writing there");
        lock_release(&lock);
    }
    flock_fails = 0;
}

// A link or a pipe as the lock's file, and as the file of the other kind.
static void test_hostile_names(void **state) {
    (void)state;
    Error err;
    Lock lock;
    size_t size;
    write_text(path_of("precious"), "mine");
    for (int i = 0; i < 4; i++) {
        unlink(path_of("run/.lock"));
        const int made = i == 0   ? symlink(path_of("precious"), path_of("run/.lock"))
                         : i == 1 ? symlink(path_of("outside"), path_of("run/.lock"))
                         : i == 2 ? link(path_of("precious"), path_of("run/.lock"))
                                  : mkfifo(path_of("run/.lock"), 0600);
        assert_int_equal(made, 0);
        assert_false(kinds[0].take(&lock, path_of("run"), &err));
        assert_int_equal(err.code, EXIT_DATA);
        assert_says(&err, "run/.lock is ");
    }
    unlink(path_of("run/.lock"));
    assert_int_equal(mkfifo(path_of("run/.lock-holder"), 0600), 0);
    alarm(20);
    assert_true(kinds[0].take(&lock, path_of("run"), &err));
    lock_release(&lock);
    assert_false(kinds[1].take(&lock, path_of("run"), &err));
    alarm(0);
    char *text = read_file(path_of("precious"), &size);
    assert_string_equal(text, "mine");
    free(text);
    assert_false(path_is_file(path_of("outside")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_at_a_time),         cmocka_unit_test(test_replaced_folder),
        cmocka_unit_test(test_unknown_holder),        cmocka_unit_test(test_both_kinds),
        cmocka_unit_test(test_killed_while_removing), cmocka_unit_test(test_dead_run_replaced_once),
        cmocka_unit_test(test_flock_fails),           cmocka_unit_test(test_hostile_names)};
    return cmocka_run_group_tests_name("lock", tests, test_folder_make, test_folder_remove);
}
