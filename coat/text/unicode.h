// Characters of UTF-8 text, the classes that tokenizers tell apart, and normalization form C.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharClass;

// Writes what utf8_read() gave, at most 4 bytes; returns their number.
size_t utf8_write(uint32_t code, char *out);

// A byte that is not part of valid UTF-8 is CHAR_OTHER.
CharClass unicode_class(uint32_t code);

// Normalization form C of text, by malloc; bytes that are not valid UTF-8 stay. *out_length: its bytes.
char *unicode_nfc(const char *text, size_t length, size_t *out_length);

#ifdef __cplusplus
}
#endif
