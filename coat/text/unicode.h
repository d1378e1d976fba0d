// Classifies Unicode characters as tokenizers do, and converts text to normalization form C.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"

typedef enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharClass;

// Returns the class of a code from utf8_read(). An invalid byte is CHAR_OTHER.
CharClass unicode_class(uint32_t code);

// Returns text in normalization form C, allocated with malloc(), and sets *out_length to the length of the result.
// Bytes that are not valid UTF-8 stay unchanged.
char *unicode_nfc(const char *text, size_t length, size_t *out_length);
