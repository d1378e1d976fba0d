// Errors: every function that can fail on the user's input returns false and fills an Error; main()
// prints it in one line and exits with its code. Nothing below main() ends the process, except
// fatal() for failures of the device or of memory, after which nothing sensible can be done.
#pragma once
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amounts.h"

#ifdef __cplusplus
extern "C" {
#endif

// The program's exit codes, part of its documented interface.
typedef enum {
    EXIT_DONE = 0,     // finished
    EXIT_USER = 1,     // a flag, or flags that contradict each other
    EXIT_DATA = 2,     // a file is missing, damaged, of the wrong kind, or cannot be written
    EXIT_DEVICE = 3,   // the GPU, its driver, or its memory
    EXIT_DIVERGED = 4, // the loss or gradient stayed non-finite
    EXIT_RANK = 5      // another process of the run was lost
} ExitCode;

typedef struct {
    ExitCode code;
    char text[1024]; // one line: what was being done, to which thing, and what the user can change
    int unread; // errno of a file that is there and could not be opened or read; else 0: it tells nothing of its bytes
} Error;

// Replaces every control character of UTF-8 text by '?', in place: U+0000 to U+001F except those in `kept`, U+007F to
// U+009F, and bytes of those values that are not part of a character. Returns the new length, and ends the text there
// with a 0 if it is shorter. Whatever quotes a file, a name or a sample passes through here before it is printed,
// because a terminal takes such characters for commands.
size_t text_printable(char *text, size_t length, const char *kept);

__attribute__((format(printf, 3, 4))) static inline void error_fill(Error *err, ExitCode code, const char *format,
                                                                    ...) {
    err->code = code;
    err->unread = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    text_printable(err->text, strlen(err->text), "");
}

// Fills err and is false, so that a failing function can end with `return error_set(...)`. A macro, because
// compilers do not inline variadic functions and would not see that the result is false.
#define error_set(...) (error_fill(__VA_ARGS__), error_result())
static inline bool error_result(void) {
    return false;
}

// What follows "usage: NAME" in a small program's text: the name is the one that it was called
// by, make install gives others.
static inline const char *usage_flags(const char *usage) {
    const char *name = usage + strlen("usage: ");
    return name + strcspn(name, " ");
}

// Whether the command line asks for help, by --help or -h; it has been printed then. What a wrong command line is told
// is the first line of the same text, by error_set(err, EXIT_USER, USAGE_LINE(usage)).
static inline bool usage_asked(int argc, char **argv, const char *usage) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return printf("usage: %s%s", program_invocation_short_name, usage_flags(usage)) >= 0;
    return false;
}
#define USAGE_LINE(usage)                                                                                              \
    "usage: %s%.*s", program_invocation_short_name, (int)strcspn(usage_flags(usage), "\n"), usage_flags(usage)

// What a small program does and ends with: `run`, unless help is asked for.
static inline int usage_main(int argc, char **argv, const char *usage, bool (*run)(int, char **, Error *)) {
    Error err;
    if (usage_asked(argc, argv, usage) || run(argc, argv, &err)) return EXIT_DONE;
    fprintf(stderr, "error: %s\n", err.text);
    return (int)err.code;
}

// Of several processes, which one this is: fatal() says so. -1 = the only one.
extern int error_rank;

// Said by a thread beside the one that trains, which may wait for it: fatal() ends the process there at
// once. exit() would take from the one that trains what it works with, and from glibc 2.41 on wait for an
// exit() that waits for this thread.
void error_beside(void);
extern void (*error_leaves)(int code); // called first then; may be NULL
__attribute__((noreturn)) void error_exit(ExitCode code);

// Where the run can go on if one of its processes is lost, which the others say last: from the checkpoint of `step`
// under `out`, the last that is whole; step 0: there is none; out "": nothing is saved.
// Called by the thread that trains.
void error_saved(const char *out, int64_t step);

// That in words, which stay where they are until the second call after this; for any thread and signal handler.
const char *error_advice(void);

// In one piece, because several processes may share the stream.
__attribute__((format(printf, 2, 3), noreturn)) static inline void fatal(ExitCode code, const char *format, ...) {
    char text[1024], who[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_printable(text, strlen(text), "");
    if (error_rank >= 0) snprintf(who, sizeof who, "rank %d: ", error_rank);
    fprintf(stderr, "error: %s%s\n", who, text);
    error_exit(code);
}

static inline void *xmalloc(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) fatal(EXIT_DEVICE, "host memory: could not allocate %zu bytes", bytes);
    return p;
}

static inline void *xcalloc(size_t count, size_t bytes) {
    void *p = calloc(count ? count : 1, bytes ? bytes : 1);
    if (!p) fatal(EXIT_DEVICE, "host memory: could not allocate %zu times %zu bytes", count, bytes);
    return p;
}

#ifdef __cplusplus
}
#endif
