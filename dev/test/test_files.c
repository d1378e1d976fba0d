// Tests of coat/io/files.h: opening files for reading and writing, and file systems that lack an operation.
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

#include "dev/test/test_folder.h"

static Error err; // error of the last failed call

// Replaces the C library's fsync(). If sync_fails is not 0, fsync() fails with this errno for folders (if `folders` is
// true) or for files (if `folders` is false).
static int sync_fails;
static bool folders = true;

int fsync(int fd) {
    struct stat st;
    if (sync_fails == 0 || fstat(fd, &st) != 0 || S_ISDIR(st.st_mode) != folders) return (int)syscall(SYS_fsync, fd);
    errno = sync_fails;
    return -1;
}

static const int unsupported[] = {EINVAL, ENOSYS, EOPNOTSUPP, ENOTTY, EBADF, EPERM, EACCES, ENOLCK};
static const int failures[] = {EIO, ENOSPC, EDQUOT, EROFS};

UNIT_TEST(files_are_written_without_fsync_support) {
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        sync_fails = unsupported[i];
        if (!folder_sync(test_folder, &err)) fail_msg("%d: %s", sync_fails, err.text);
        assert_true(file_replace(path_of("replaced"), "new", 3, &err));
    }
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        sync_fails = failures[i];
        assert_false(folder_sync(test_folder, &err));
        assert_says(&err, strerror(sync_fails));
        assert_error(&err, EXIT_DATA, test_folder);
        assert_false(file_replace(path_of("replaced"), "new", 3, &err));
    }
    // If data cannot be flushed to disk, writing must fail, whatever the errno.
    folders = false;
    for (int i = 0; i < 2; i++) {
        sync_fails = i ? EIO : EINVAL;
        assert_false(file_replace(path_of("replaced"), "later", 5, &err));
        assert_says(&err, "replaced");
    }
    folders = true;
    sync_fails = 0;
    assert_false(folder_sync(path_of("missing"), &err));
    assert_string_equal(contents(path_of("replaced")), "new");
}

static void refuse_write(const char *name, const char *says) {
    const int flags[] = {0, O_APPEND, O_EXCL, O_EXCL | O_APPEND};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        err.code = EXIT_DONE;
        assert_int_equal(file_open_write(path_of(name), flags[i], &err), -1);
        if (says && !(flags[i] & O_EXCL)) assert_says(&err, says);
        assert_error(&err, EXIT_DATA, name);
    }
    assert_null(file_create_stream(path_of(name), &err));
    assert_false(file_create(path_of(name), "x", 1, &err));
}

// Tests that a symbolic link in a folder does not make the program overwrite a file outside the folder.
UNIT_TEST(writing_does_not_follow_links) {
    write_text(path_of("precious"), "mine");
    assert_int_equal(symlink(path_of("precious"), path_of("link")), 0);
    assert_int_equal(symlink(path_of("outside"), path_of("dangling")), 0);
    assert_int_equal(link(path_of("precious"), path_of("hard")), 0);
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(mkdir(path_of("below"), 0700), 0);
    alarm(10); // ends the test after 10 seconds if opening the named pipe blocks
    refuse_write("link", "is a link");
    refuse_write("dangling", "is a link");
    refuse_write("hard", "is a hard link");
    refuse_write("fifo", "is not a regular file");
    refuse_write("below", NULL);
    refuse_write("absent/file", "No such file");
    assert_true(file_replace(path_of("link"), "new", 3, &err)); // replaces the symbolic link, not its target
    alarm(0);
    assert_false(path_is_link(path_of("link")));
    assert_false(path_is_file(path_of("outside")));
    assert_string_equal(contents(path_of("precious")), "mine");

    write_text(path_of("own"), "kept");
    int fd = file_open_write(path_of("own"), 0, &err);
    assert_true(fd >= 0);
    assert_true(file_append(fd, "own", "K", 1, &err)); // overwrites the first byte of the file
    close(fd);
    assert_string_equal(contents(path_of("own")), "Kept");
    fd = file_open_write(path_of("fresh"), O_EXCL | O_APPEND, &err);
    assert_true(fd >= 0);
    close(fd);
    if (geteuid() != 0) {
        assert_int_equal(chmod(path_of("fresh"), 0400), 0);
        refuse_write("fresh", "cannot write");
    }
}

static void refuse_read(const char *name, const char *says) {
    int fd;
    uint64_t size;
    char *data;
    size_t length;
    assert_false(file_open(path_of(name), &fd, &size, &err));
    assert_says(&err, says);
    assert_error(&err, EXIT_DATA, name);
    assert_false(file_read_all(path_of(name), 1000, &data, &length, &err));
    assert_says(&err, says);
    assert_null(file_open_lines(path_of(name), &err));
    assert_says(&err, says);
}

#define LFS "version https://git-lfs.github.com/spec/v1"

UNIT_TEST(reading_refuses_pipes_and_lfs_pointers) {
    int fd;
    uint64_t size;
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    assert_int_equal(symlink(path_of("pipe"), path_of("pipe-link")), 0);
    write_text(path_of("pointer"), LFS "\noid sha256:4d7a\nsize 132\n");
    write_text(path_of("pointer-alone"), LFS);
    alarm(10);
    refuse_read("pipe", "is not a regular file");
    refuse_read("pipe-link", "is not a regular file");
    refuse_read("", "is not a regular file");
    alarm(0);
    refuse_read("pointer", "is a Git LFS pointer, not the file; run git lfs pull");
    refuse_read("pointer-alone", "is a Git LFS pointer");
    // Edge cases: a file shorter than the first line of a Git LFS pointer, and a file with a space before this line.
    static const char *const good[] = {"", "version https://git-lfs", " " LFS "\n"};
    for (int i = 0; i < 3; i++) {
        write_text(path_of("good"), good[i]);
        assert_true(file_open(path_of("good"), &fd, &size, &err));
        assert_int_equal(size, strlen(good[i]));
        close(fd);
    }
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
