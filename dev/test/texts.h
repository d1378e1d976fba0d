// Texts of tests: formats a text without a buffer of fixed size, and looks for parts of a text.
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Returns the formatted text, which stays valid until the program ends.
__attribute__((format(printf, 1, 2))) static inline char *formatted(const char *format, ...) {
    static char **texts; // all returned texts; leak detectors do not report them, because this pointer reaches them
    static size_t count;
    va_list args;
    texts = (char **)realloc(texts, (count + 1) * sizeof *texts);
    va_start(args, format);
    if (!texts || vasprintf(&texts[count], format, args) < 0) abort();
    va_end(args);
    return texts[count++];
}

// Returns how often `part` occurs in the text, without overlaps.
static inline int occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part)) count++;
    return count;
}

// Returns the first of `parts`, which are separated by '&', that the text does not contain; NULL: it contains all.
static inline const char *missing_part(const char *text, const char *parts) {
    for (char *rest = formatted("%s", parts); rest;) {
        const char *part = strsep(&rest, "&");
        if (!strstr(text, part)) return part;
    }
    return NULL;
}
