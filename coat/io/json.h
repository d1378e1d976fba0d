// JSON as the project's files use it. Written by a few functions of our own, so that equal content gives equal
// bytes whatever the library's version; read with jansson, strictly: no duplicate keys, bounded sizes, every
// value checked for type and range before it is believed.
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

// A text under construction. Start from a zeroed struct; `pretty` puts one value per line. Free with
// json_text_free(). A key is NULL inside arrays and for the outermost value.
typedef struct {
    char *text;
    size_t size, capacity;
    int depth;
    bool pretty, started; // started: the innermost object or array has a value already
} JsonText;

void json_text_open(JsonText *t, const char *key, char bracket); // '{' or '['
void json_text_close(JsonText *t, char bracket);                 // '}' or ']'
void json_text_string(JsonText *t, const char *key, const char *value);
void json_text_int(JsonText *t, const char *key, int64_t value);
void json_text_bool(JsonText *t, const char *key, bool value);
void json_text_null(JsonText *t, const char *key);
// The shortest decimal that reads back as the same float or double; "nan", "inf", "-inf" as strings.
void json_text_float(JsonText *t, const char *key, float value);
void json_text_double(JsonText *t, const char *key, double value);
void json_text_hex(JsonText *t, const char *key, uint64_t value);        // a string of 16 hexadecimal digits
void json_text_value(JsonText *t, const char *key, const json_t *value); // what has values itself on one line
void json_text_space(JsonText *t);                                       // padding between or after values
void json_text_free(JsonText *t);

// Parses `size` bytes that must be one JSON object; NULL with err. `path` is for the message.
json_t *json_parse_object(const char *text, size_t size, const char *path, Error *err);
// The same from a file of at most `limit` bytes.
json_t *json_read_object(const char *path, size_t limit, Error *err);

// Values of an object. Missing, of another type or out of range: false, err names path, key and what is
// expected.
bool json_get_int(const json_t *object, const char *path, const char *key, int64_t min, int64_t max, int64_t *value,
                  Error *err);
bool json_get_double(const json_t *object, const char *path, const char *key, double *value, Error *err);
bool json_get_hex(const json_t *object, const char *path, const char *key, uint64_t *value, Error *err);
bool json_get_object(const json_t *object, const char *path, const char *key, const json_t **value, Error *err);

#ifdef __cplusplus
}
#endif
