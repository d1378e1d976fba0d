// Functions that all fuzz targets use. A target is a file fuzz_NAME.c that defines LLVMFuzzerTestOneInput(): it passes
// the input to a parser, as bytes or as files in fuzz_folder(), and checks what the parser's header promises.
#pragma once
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "coat/base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_PATH 512

// Aborts the process if the condition is false, so that the fuzzer saves the input.
#define fuzz_check(condition) fuzz_require(condition, #condition, __FILE__, __LINE__)
static inline void fuzz_require(bool condition, const char *text, const char *file, int line) {
    if (condition) return;
    fprintf(stderr, "%s:%d: broken promise: %s\n", file, line, text);
    abort();
}

// Checks that err is a data error (EXIT_DATA) whose text is one printable line that contains `name`.
static inline void fuzz_refused(const Error *err, const char *name) {
    fuzz_check(err->code == EXIT_DATA);
    fuzz_check(err->text[0] != 0 && memchr(err->text, 0, sizeof err->text) != NULL);
    for (const char *c = err->text; *c; c++) fuzz_check((unsigned char)*c >= 32 && *c != 127);
    fuzz_check(strstr(err->text, name) != NULL);
}

static char fuzz_folder_path[FUZZ_PATH / 2];

static inline void fuzz_folder_remove(void) {
    char command[FUZZ_PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", fuzz_folder_path);
    if (system(command) != 0) fprintf(stderr, "cannot remove %s\n", fuzz_folder_path);
}

// Returns this process's temporary folder, in TMPDIR if it is set, else in /dev/shm or /tmp. Exit removes the folder.
static inline const char *fuzz_folder(void) {
    if (fuzz_folder_path[0]) return fuzz_folder_path;
    const char *base = getenv("TMPDIR");
    if (!base || !*base) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%.200s/coat-fuzz-XXXXXX", base);
    fuzz_check(mkdtemp(fuzz_folder_path) != NULL);
    atexit(fuzz_folder_remove);
    return fuzz_folder_path;
}

// Returns the path of `name` in the temporary folder. The path stays valid during the next 7 calls.
static inline const char *fuzz_path(const char *name) {
    static char paths[8][FUZZ_PATH];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    return path;
}

// Writes a file in the temporary folder and returns its path.
static inline const char *fuzz_file(const char *name, const void *data, size_t size) {
    const char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
    return path;
}

// Writes the right checksum into a token file with a loss mask. Does nothing if the file has no complete header.
static inline void fuzz_write_hash(uint8_t *file, size_t size) {
    uint64_t hash = 0;
    if (size < 1024) return; // 1024 is DATA_HEADER_BYTES
    memcpy(file + 32, &hash, sizeof hash);
    hash = XXH64(file, size, 0);
    memcpy(file + 32, &hash, sizeof hash);
}

// Finds the file `name` in an input of several files, each between a line "=== NAME" and the next "=== ". Returns the
// file's first byte and sets *bytes to its length. If the file is missing, returns NULL and sets 0.
static inline const uint8_t *fuzz_section(const uint8_t *data, size_t size, const char *name, size_t *bytes) {
    char head[64];
    const size_t length = (size_t)snprintf(head, sizeof head, "\n=== %s\n", name);
    const bool first = size >= length - 1 && memcmp(data, head + 1, length - 1) == 0;
    const uint8_t *begin = first ? data : (const uint8_t *)memmem(data, size, head, length), *end = data + size;
    *bytes = 0;
    if (!begin) return NULL;
    begin += length - first;
    const uint8_t *next = (const uint8_t *)memmem(begin, (size_t)(end - begin), "\n=== ", 5);
    *bytes = (size_t)((next ? next : end) - begin);
    return begin;
}

// Writes the file `name` of the input into the temporary folder. If the input does not contain it, removes it from the
// folder and returns false.
static inline bool fuzz_section_file(const uint8_t *data, size_t size, const char *name) {
    size_t bytes;
    const uint8_t *begin = fuzz_section(data, size, name, &bytes);
    if (begin)
        fuzz_file(name, begin, bytes);
    else
        unlink(fuzz_path(name));
    return begin != NULL;
}
