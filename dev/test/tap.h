// Prints results of GPU tests in TAP format, which scripts/test.sh counts: one line per check.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static int tap_failures;

// Prints the TAP line of one check: the name, then the formatted text in parentheses.
__attribute__((format(printf, 3, 4))) static inline void tap_check(bool good, const char *name, const char *format,
                                                                   ...) {
    va_list args;
    printf("%s - %s (", good ? "ok" : "not ok", name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(")\n");
    fflush(stdout);
    tap_failures += !good;
}

static inline void tap_skip(const char *name, const char *reason) {
    printf("ok - %s # SKIP %s\n", name, reason);
}

// Returns the exit status for main(): 0 if all checks passed.
static inline int tap_status(void) {
    return tap_failures ? 1 : 0;
}
