// Reads UTF-8 text character by character.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define NO_CHARACTER 0x80000000u // bit that utf8_read() sets in its result for a byte that is not part of valid UTF-8

// Returns the code point of the first character of text (length > 0), and sets *bytes to the character's length. If the
// text does not begin with a valid character, returns NO_CHARACTER | the first byte, and sets *bytes to 1.
uint32_t utf8_read(const char *text, size_t length, size_t *bytes);
