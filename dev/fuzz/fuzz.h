// What the fuzz targets share. A target is a file fuzz_NAME.c with one function, LLVMFuzzerTestOneInput(), which
// gives its bytes to a parser and checks what the parser promises. Parsers that read files get them in memory
// (fuzz_memory_file()) or, where several lie side by side, in a folder (fuzz_folder()).
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // memmem, memfd_create
#endif
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "coat/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_PATH 512

// A broken promise ends the program as a memory error would; the fuzzer then keeps the input.
#define fuzz_check(condition) fuzz_require(condition, #condition, __FILE__, __LINE__)
static inline void fuzz_require(bool condition, const char *text, const char *file, int line) {
    if (condition) return;
    fprintf(stderr, "%s:%d: broken promise: %s\n", file, line, text);
    abort();
}

// A refusal is one printable line that names the thing.
static inline void fuzz_refused(const Error *err, const char *names) {
    fuzz_check(err->code == EXIT_DATA);
    fuzz_check(err->text[0] != 0 && memchr(err->text, 0, sizeof err->text) != NULL);
    for (const char *c = err->text; *c; c++) fuzz_check((unsigned char)*c >= 32 && *c != 127);
    fuzz_check(strstr(err->text, names) != NULL);
}

// A file of these bytes without a name in any folder; returns its path. `number` 0 ... 3: it replaces the one that
// had the number. fuzz_memory_cut() shortens it, as if another program did so while it is being read.
static inline int fuzz_memory_descriptor(int number) {
    return 500 + number;
}

static inline const char *fuzz_memory_file(int number, const void *data, size_t size) {
    static char paths[4][32];
    int descriptor = fuzz_memory_descriptor(number);
    if (!paths[number][0]) {
        int fd = memfd_create("fuzz", MFD_CLOEXEC);
        fuzz_check(fd >= 0 && dup2(fd, descriptor) == descriptor);
        close(fd);
        snprintf(paths[number], sizeof paths[0], "/proc/self/fd/%d", descriptor);
    }
    fuzz_check(ftruncate(descriptor, 0) == 0);
    fuzz_check(pwrite(descriptor, data, size, 0) == (ssize_t)size);
    return paths[number];
}

static inline void fuzz_memory_cut(int number, size_t size) {
    fuzz_check(ftruncate(fuzz_memory_descriptor(number), (off_t)size) == 0);
}

static char fuzz_folder_path[FUZZ_PATH / 2];

static inline void fuzz_folder_remove(void) {
    char command[FUZZ_PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", fuzz_folder_path);
    if (system(command) != 0) fprintf(stderr, "cannot remove %s\n", fuzz_folder_path);
}

// The folder of this process, without TMPDIR in memory where the machine has such a file system.
static inline const char *fuzz_folder(void) {
    if (fuzz_folder_path[0]) return fuzz_folder_path;
    const char *base = getenv("TMPDIR");
    if (!base || !*base) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%.200s/coat-fuzz-XXXXXX", base);
    fuzz_check(mkdtemp(fuzz_folder_path) != NULL);
    atexit(fuzz_folder_remove);
    return fuzz_folder_path;
}

// The path of a name in the folder; valid for the next 7 calls.
static inline const char *fuzz_path(const char *name) {
    static char paths[8][FUZZ_PATH];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    return path;
}

// Writes a file of the folder; returns its path.
static inline const char *fuzz_file(const char *name, const void *data, size_t size) {
    const char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
    return path;
}

// An input of several files: each begins with a line "=== NAME", and the line end before such a line is not part of
// the file that ends there. Finds the section of a name and its bytes (NULL, 0 where there is none); they need not be
// text.
static inline const uint8_t *fuzz_section(const uint8_t *data, size_t size, const char *name, size_t *bytes) {
    char head[64];
    size_t length = (size_t)snprintf(head, sizeof head, "=== %s\n", name);
    *bytes = 0;
    for (const uint8_t *at = data, *end = data + size; at && at < end;) {
        at = (const uint8_t *)memmem(at, (size_t)(end - at), head, length);
        if (!at) break;
        const uint8_t *begin = at + length;
        bool at_line = at == data || at[-1] == '\n';
        at = begin;
        if (!at_line) continue;
        const uint8_t *next = (const uint8_t *)memmem(begin, (size_t)(end - begin), "\n=== ", 5);
        *bytes = (size_t)((next ? next : end) - begin);
        return begin;
    }
    return NULL;
}

// Writes the section's file into the folder, or removes it where the input has no such section; true if it has.
static inline bool fuzz_section_file(const uint8_t *data, size_t size, const char *name) {
    size_t bytes;
    const uint8_t *begin = fuzz_section(data, size, name, &bytes);
    if (begin)
        fuzz_file(name, begin, bytes);
    else
        unlink(fuzz_path(name));
    return begin != NULL;
}
