// Error handling. A function that can fail because of the user's input returns false and fills an Error. main() prints
// the Error in one line and exits with the Error's code. If the device fails or memory is exhausted, fatal() ends the
// process at once. The process also ends in signals.c (at a second signal) and in comm/ (if communication fails).
#pragma once
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_linkage.h"
#include "format_text.h"

C_LINKAGE_BEGIN

// Exit codes of the program, as documented for users.
typedef enum {
    EXIT_DONE = 0,     // exit code if the run has finished, or has saved and ended early; in an Error: no error
    EXIT_USER = 1,     // exit code if a flag is wrong or flags contradict each other
    EXIT_DATA = 2,     // exit code if a file is missing, damaged, of the wrong kind, or cannot be written
    EXIT_DEVICE = 3,   // exit code if the GPU or its driver failed, or memory of the GPU or host is exhausted
    EXIT_DIVERGED = 4, // exit code if the loss or gradient stayed non-finite
    EXIT_RANK = 5      // exit code if another process of the run was lost
} ExitCode;

typedef struct {
    ExitCode code;
    char text[1024]; // error message in one line: the failed action, the file or flag, and the remedy
    // errno of the failed call if a file exists but could not be opened or read; otherwise 0
    int unread;
} Error;

// Replaces each control character in `length` bytes of UTF-8 text with '?', in place. Control characters are U+0000 to
// U+001F except those in `kept`, U+007F to U+009F, and invalid bytes with these values. Returns the new length. If the
// text became shorter, a 0 follows it. Call text_printable() before printing a file's contents, a name or a sample,
// because terminals execute control characters.
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

// Fills err and returns false, for use as `return error_set(...)`. error_set() is a macro because compilers do not
// inline variadic functions and would not see that the result is always false.
#define error_set(...) (error_fill(__VA_ARGS__), error_result())
static inline bool error_result(void) {
    return false;
}

// Returns the part of a help text that follows "usage: NAME". The name is omitted because `make install` renames
// programs, and help must show the name that the user typed.
static inline const char *usage_flags(const char *usage) {
    const char *name = usage + strlen("usage: ");
    return name + strcspn(name, " ");
}

// Prints the help text and returns true if the command line has --help or -h. If the command line is wrong, use
// error_set(err, EXIT_USER, USAGE_LINE(usage)), whose message is the first line of the help text.
static inline bool usage_asked(int argc, char **argv, const char *usage) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return printf("usage: %s%s", program_invocation_short_name, usage_flags(usage)) >= 0;
    return false;
}
#define USAGE_LINE(usage)                                                                                              \
    "usage: %s%.*s", program_invocation_short_name, (int)strcspn(usage_flags(usage), "\n"), usage_flags(usage)

// Implements main() of a small program: prints help, or calls `run` and prints the error if `run` fails. Returns the
// exit code.
static inline int usage_main(int argc, char **argv, const char *usage, bool (*run)(int, char **, Error *)) {
    Error err;
    if (usage_asked(argc, argv, usage) || run(argc, argv, &err)) return EXIT_DONE;
    fprintf(stderr, "error: %s\n", err.text);
    return (int)err.code;
}

// rank of this process, which fatal() prints; -1 if there is only one process
extern int error_rank;

// Marks the calling thread as a background thread, in which fatal() ends the process with _exit(). exit() would destroy
// objects that the training thread still uses. In glibc 2.41 and later, exit() could also deadlock if the training
// thread is in exit(), too: a second exit() waits for the first, whose exit handlers wait for the background thread.
void error_mark_background_thread(void);
// Function that fatal() calls in a background thread before _exit(), because _exit() skips exit handlers; NULL: none.
extern void (*error_exit_hook)(int code);
__attribute__((noreturn)) void error_exit(ExitCode code); // ends the process for fatal(), after the message is printed

// Sets the text that error_advice() returns: how to resume from the last complete checkpoint (of step `step`, in folder
// `out`). If step is 0, there is no checkpoint yet; if out is "", the run saves nothing. Only the training thread may
// call error_saved().
void error_saved(const char *out, int64_t step);

// Returns the advice that error_saved() set for the case that another process is lost. The text stays valid until
// error_saved() has been called twice more. Any thread or signal handler may call error_advice().
const char *error_advice(void);

// Prints an error to stderr and ends the process. One call writes the line, because several processes may share stderr.
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

// The functions xmalloc(), xcalloc(), xrealloc() and xstrdup() never return NULL: fatal() ends the process if memory is
// exhausted. 0 bytes are allowed.
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

static inline void *xrealloc(void *memory, size_t bytes) {
    void *p = realloc(memory, bytes ? bytes : 1);
    if (!p) fatal(EXIT_DEVICE, "host memory: could not allocate %zu bytes", bytes);
    return p;
}

static inline char *xstrdup(const char *text) {
    const size_t bytes = strlen(text) + 1;
    return (char *)memcpy(xmalloc(bytes), text, bytes);
}

C_LINKAGE_END
