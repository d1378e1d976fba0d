// How messages write amounts: sizes with their unit, and counts with their noun.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MEMORY_TEXT 24

// "35.81 GB", "512.30 MB", "8.19 KB", "1 B": in powers of 1000; returns text.
static inline const char *memory_text(char text[MEMORY_TEXT], size_t bytes) {
    const double value = (double)bytes;
    if (bytes < 1000)
        snprintf(text, MEMORY_TEXT, "%zu B", bytes);
    else if (bytes < 1000000)
        snprintf(text, MEMORY_TEXT, "%.2f KB", value / 1e3);
    else if (bytes < 1000000000)
        snprintf(text, MEMORY_TEXT, "%.2f MB", value / 1e6);
    else
        snprintf(text, MEMORY_TEXT, "%.2f GB", value / 1e9);
    return text;
}

// What a noun ends in behind its count: "%d file%s".
static inline const char *plural(int64_t count) {
    return count == 1 ? "" : "s";
}
