// Builds parts of messages: appends text, writes sizes with a unit, and forms the plural of nouns and verbs. Also
// compares parts of texts.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// Appends formatted text to the string `text` in a buffer of `size` bytes. Text that does not fit is truncated.
__attribute__((format(printf, 3, 4))) static inline void text_append(char *text, size_t size, const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

// True if the first `length` bytes of `text` equal `other`.
static inline bool text_is(const char *text, size_t length, const char *other) {
    return strlen(other) == length && memcmp(text, other, length) == 0;
}

// True if `text` ends with `end` and is longer than `end`.
static inline bool text_ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

#define MEMORY_TEXT 24

// Writes a number of bytes as text, such as "35.81 GB", "512.30 MB", "8.19 KB" or "1 B". Returns text.
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

// Returns the ending of a noun after its count, as in "1 file", "2 files": "" if %.3g prints the count as 1, else "s".
static inline const char *plural(double count) {
    return count >= 0.9995 && count < 1.005 ? "" : "s";
}

// Returns the ending of the verb after a count and its noun: "s" for "1 file holds", "" for "2 files hold".
static inline const char *singular(double count) {
    return *plural(count) ? "" : "s";
}
