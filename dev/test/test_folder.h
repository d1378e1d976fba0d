// Fixture for tests that use files: a temporary folder, and files in it. Every function asserts that it succeeds.
#pragma once
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coat/io/files.h"
#include "dev/test/unit.h"

#define TEST_PATH 1024

static char test_folder[TEST_PATH / 2];

static inline int test_folder_make(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(test_folder, sizeof test_folder, "%s/coat-test-XXXXXX", base && *base ? base : "/tmp");
    return mkdtemp(test_folder) ? 0 : -1;
}

static inline int test_folder_remove(void **state) {
    (void)state;
    return system(formatted("rm -rf '%s'", test_folder));
}

// Removes all files in the test's folder, so that the next test does not find them.
static inline int test_folder_empty(void **state) {
    (void)state;
    return system(formatted("rm -rf '%s'/*", test_folder));
}

// Lets a root process run a part of a test without root's permissions. test_as_user(true) makes it the user nobody, who
// then owns the test's folder and its files. test_as_user(false) returns to root. Has no effect on other users.
static inline void test_as_user(bool begins) {
    const uid_t nobody = 65534;
    if (!begins) {
        if (getuid() == nobody) assert_int_equal(setresuid(0, 0, 0), 0);
    } else if (geteuid() == 0) {
        assert_int_equal(system(formatted("chown -hR %d '%s'", (int)nobody, test_folder)), 0);
        assert_int_equal(setresuid(nobody, nobody, 0), 0);
    }
}

static inline const char *in(const char *folder, const char *name) {
    return formatted("%s/%s", folder, name);
}

// Returns the path of `name` in the test's folder.
static inline const char *path_of(const char *name) {
    return in(test_folder, name);
}

// Writes a file, and creates the file's folder if there is none.
static inline void write_file(const char *path, const void *data, size_t bytes) {
    char *const folder = formatted("%s", path), *slash = strrchr(folder, '/');
    if (slash) *slash = '\0', mkdir(folder, 0777);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text) {
    write_file(path, text, strlen(text));
}

static inline char *read_file(const char *path, size_t *size) {
    Error err;
    char *data;
    if (!file_read_all(path, (size_t)1 << 30, &data, size, &err)) fail_msg("%s", err.text);
    return data;
}

// Returns the contents of a text file, which stay valid until the program ends.
static inline const char *contents(const char *path) {
    size_t size;
    char *data = read_file(path, &size);
    assert_int_equal(strlen(data), size); // a text file has no 0 bytes
    const char *text = formatted("%s", data);
    free(data);
    return text;
}

static inline void assert_same_files(const char *a, const char *b) {
    size_t size_a, size_b;
    char *data_a = read_file(a, &size_a), *data_b = read_file(b, &size_b);
    if (size_a != size_b || memcmp(data_a, data_b, size_a) != 0) fail_msg("%s and %s differ", a, b);
    free(data_a);
    free(data_b);
}

static inline void flip_byte(const char *path, size_t at) {
    size_t size;
    char *data = read_file(path, &size);
    assert_true(at < size);
    data[at] = (char)(data[at] ^ 0x10);
    write_file(path, data, size);
    free(data);
}

// Limits the size of files that this process writes to `bytes`. Writes beyond the limit fail as on a full disk, but
// also raise SIGXFSZ, which the test must ignore.
static inline void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// Asserts that the error is one line that contains all of `parts`, which are separated by '&'.
static inline void assert_says(const Error *err, const char *parts) {
    const char *missing = missing_part(err->text, parts);
    if (missing) fail_msg("'%s' does not say '%s'", err->text, missing);
    assert_null(strchr(err->text, '\n'));
}

// Asserts that the error has this exit code and is one line that contains all of `parts`. Then clears the error, so
// that the next check fails unless another call has set the error.
static inline void assert_error(Error *err, ExitCode code, const char *parts) {
    assert_int_equal(err->code, code);
    assert_says(err, parts);
    err->code = EXIT_DONE;
    err->text[0] = '\0';
}
