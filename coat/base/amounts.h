// How messages are written: piece by piece, sizes with their unit, counts with their noun.
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// Adds to a text what there is room for.
__attribute__((format(printf, 3, 4))) static inline void text_append(char *text, size_t size, const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

#define MEMORY_TEXT 24

// "35.81 GB", below 1 GB "512.30 MB", and "8.19 KB" or "1 B" where that would be 0.00; returns text.
static inline const char *memory_text(char text[MEMORY_TEXT], size_t bytes) {
    const double value = (double)bytes;
    if (bytes < 1000)
        snprintf(text, MEMORY_TEXT, "%zu B", bytes);
    else if (bytes < 10000)
        snprintf(text, MEMORY_TEXT, "%.2f KB", value / 1e3);
    else if (bytes < 1000000000)
        snprintf(text, MEMORY_TEXT, "%.2f MB", value / 1e6);
    else
        snprintf(text, MEMORY_TEXT, "%.2f GB", value / 1e9);
    return text;
}

// What a noun ends in behind its count, as in "%d file%s", or a number that %.3g shows: nothing behind 1.
static inline const char *plural(double count) {
    return count >= 0.9995 && count < 1.005 ? "" : "s";
}

// What its verb ends in then: "1 file holds", "2 files hold".
static inline const char *singular(double count) {
    return *plural(count) ? "" : "s";
}
