// Reads UTF-8 text character by character.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define NO_CHARACTER 0x80000000u // set in the result if a byte is not part of valid UTF-8

// Returns the first character of text (length > 0), and sets *bytes to its length in bytes.
uint32_t utf8_read(const char *text, size_t length, size_t *bytes);
