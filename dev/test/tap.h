// What tests of the GPU print, a line for each check, as scripts/test.sh counts them.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static int tap_failures;

// One check; the rest is printed behind its name.
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

// Of main().
static inline int tap_status(void) {
    return tap_failures ? 1 : 0;
}
