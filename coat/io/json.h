// Reads and writes JSON. Jansson parses the text. This project's own code writes JSON, so that the same contents give
// the same bytes with every version of Jansson. Reading is strict: duplicate keys are rejected, sizes are limited, and
// values are checked for type and range.
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

C_LINKAGE_BEGIN

// A JSON text that is being written. Initialize the struct with json_text_begin() or zeros; free the text with
// json_text_free(). If `pretty` is true, each value is on its own line. The parameter `key` is NULL inside arrays and
// for the outermost value.
typedef struct {
    char *text;
    size_t size, capacity;
    int depth;
    bool pretty, started; // started: true if the innermost open object or array already has a value
} JsonText;

// Initializes *t and opens the text's outermost object.
void json_text_begin(JsonText *t, bool pretty);
void json_text_open(JsonText *t, const char *key, char bracket); // opens an object '{' or an array '['
void json_text_close(JsonText *t, char bracket);                 // closes an object '}' or an array ']'
// Writes a string. If `value` is not valid UTF-8, each of its bytes above 127 becomes '?'.
void json_text_string(JsonText *t, const char *key, const char *value);
void json_text_int(JsonText *t, const char *key, int64_t value);
void json_text_bool(JsonText *t, const char *key, bool value);
void json_text_null(JsonText *t, const char *key);
// Writes the shortest decimal number that reads back as the same float or double, or the string "nan", "inf" or "-inf".
void json_text_float(JsonText *t, const char *key, float value);
void json_text_double(JsonText *t, const char *key, double value);
void json_text_hex(JsonText *t, const char *key, uint64_t value); // writes a string of 16 hexadecimal digits
// writes a parsed JSON value, with the contents of an object or array on one line
void json_text_value(JsonText *t, const char *key, const json_t *value);
void json_text_space(JsonText *t); // writes a space between or after values
void json_text_free(JsonText *t);

// Parses `size` bytes of text, which must be one JSON object. The caller frees the object with json_decref(). Returns
// NULL with err (EXIT_DATA) on failure. `path` only names the file in err.
json_t *json_parse_object(const char *text, size_t size, const char *path, Error *err);
// Reads the file `path` of at most `limit` bytes and parses it with json_parse_object().
json_t *json_read_object(const char *path, size_t limit, Error *err);

// Each json_get function gets the value of a key of `object`. It returns false with err (EXIT_DATA) if the value is
// missing, of a different type or out of range; err names path, key and the expected value.
bool json_get_int(const json_t *object, const char *path, const char *key, int64_t min, int64_t max, int64_t *value,
                  Error *err);
// Gets a number. Also accepts "nan", "inf" and "-inf", which json_text_double() writes for numbers that are not finite.
bool json_get_double(const json_t *object, const char *path, const char *key, double *value, Error *err);
// Gets a number from a string of 16 hexadecimal digits.
bool json_get_hex(const json_t *object, const char *path, const char *key, uint64_t *value, Error *err);
// Gets an object, without a new reference: *value is valid as long as `object`.
bool json_get_object(const json_t *object, const char *path, const char *key, const json_t **value, Error *err);

C_LINKAGE_END
