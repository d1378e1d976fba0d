#include "json.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/utf8.h"
#include "files.h"

static void append(JsonText *t, const char *bytes, size_t count) {
    if (t->size + count + 1 > t->capacity) {
        t->capacity = (t->size + count + 1) * 2;
        t->text = (char *)xrealloc(t->text, t->capacity);
    }
    memcpy(t->text + t->size, bytes, count);
    t->size += count;
    t->text[t->size] = 0;
}

static void append_text(JsonText *t, const char *text) {
    append(t, text, strlen(text));
}

static void new_line(JsonText *t) {
    if (!t->pretty) return;
    append_text(t, "\n");
    for (int i = 0; i < t->depth; i++) append_text(t, "  ");
}

static bool is_utf8(const char *text) {
    const size_t length = strlen(text);
    for (size_t at = 0, bytes; at < length; at += bytes)
        if (utf8_read(text + at, length - at, &bytes) & NO_CHARACTER) return false;
    return true;
}

// Writes a JSON string. JSON must be UTF-8, so '?' replaces every byte above 127 of a text that is not valid UTF-8.
static void append_quoted(JsonText *t, const char *value) {
    const bool valid = is_utf8(value);
    append_text(t, "\"");
    for (const unsigned char *c = (const unsigned char *)value; *c; c++) {
        char escaped[8];
        if (*c == '"' || *c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", *c);
        else if (*c < 0x20)
            snprintf(escaped, sizeof escaped, "\\u%04x", *c);
        else
            snprintf(escaped, sizeof escaped, "%c", *c > 127 && !valid ? '?' : *c);
        append_text(t, escaped);
    }
    append_text(t, "\"");
}

// Writes the comma, the newline and the key that precede a JSON value.
static void lead_in(JsonText *t, const char *key) {
    if (t->started) append_text(t, ",");
    if (t->depth) new_line(t);
    t->started = true;
    if (!key) return;
    append_quoted(t, key);
    append_text(t, t->pretty ? ": " : ":");
}

void json_text_begin(JsonText *t, bool pretty) {
    *t = (JsonText){.pretty = pretty};
    json_text_open(t, NULL, '{');
}

void json_text_open(JsonText *t, const char *key, char bracket) {
    lead_in(t, key);
    append(t, &bracket, 1);
    t->depth++;
    t->started = false;
}

void json_text_close(JsonText *t, char bracket) {
    t->depth--;
    if (t->started) new_line(t);
    append(t, &bracket, 1);
    t->started = true;
    if (t->depth == 0 && t->pretty) append_text(t, "\n");
}

void json_text_string(JsonText *t, const char *key, const char *value) {
    lead_in(t, key);
    append_quoted(t, value);
}

void json_text_int(JsonText *t, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    lead_in(t, key);
    append_text(t, text);
}

void json_text_bool(JsonText *t, const char *key, bool value) {
    lead_in(t, key);
    append_text(t, value ? "true" : "false");
}

void json_text_null(JsonText *t, const char *key) {
    lead_in(t, key);
    append_text(t, "null");
}

static void append_real(JsonText *t, const char *key, double value, bool is_float) {
    char text[64];
    if (!isfinite(value)) {
        json_text_string(t, key, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (is_float ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value) break;
    }
    if (!strpbrk(text, ".e")) strcat(text, ".0"); // makes every JSON reader treat the text as a real number
    lead_in(t, key);
    append_text(t, text);
}

void json_text_float(JsonText *t, const char *key, float value) {
    append_real(t, key, (double)value, true);
}

void json_text_double(JsonText *t, const char *key, double value) {
    append_real(t, key, value, false);
}

void json_text_hex(JsonText *t, const char *key, uint64_t value) {
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)value);
    json_text_string(t, key, text);
}

void json_text_value(JsonText *t, const char *key, const json_t *value) {
    const bool pretty = t->pretty;
    const char *name;
    json_t *item;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        json_text_open(t, key, '{');
        t->pretty = false;
        json_object_foreach((json_t *)value, name, item) json_text_value(t, name, item);
        json_text_close(t, '}');
        break;
    case JSON_ARRAY:
        json_text_open(t, key, '[');
        t->pretty = false;
        json_array_foreach(value, i, item) json_text_value(t, NULL, item);
        json_text_close(t, ']');
        break;
    case JSON_STRING: json_text_string(t, key, json_string_value(value)); break;
    case JSON_INTEGER: json_text_int(t, key, json_integer_value(value)); break;
    case JSON_REAL: json_text_double(t, key, json_real_value(value)); break;
    case JSON_TRUE:
    case JSON_FALSE: json_text_bool(t, key, json_is_true(value)); break;
    case JSON_NULL: json_text_null(t, key); break;
    }
    t->pretty = pretty;
}

void json_text_space(JsonText *t) {
    append_text(t, " ");
}

void json_text_free(JsonText *t) {
    free(t->text);
    memset(t, 0, sizeof *t);
}

json_t *json_parse_object(const char *text, size_t size, const char *path, Error *err) {
    json_error_t where;
    json_t *object = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    if (!object) {
        error_set(err, EXIT_DATA, "%s is not valid JSON: line %d: %s", path, where.line, where.text);
    } else if (!json_is_object(object)) {
        json_decref(object);
        object = NULL;
        error_set(err, EXIT_DATA, "%s is not a JSON object", path);
    }
    return object;
}

json_t *json_read_object(const char *path, size_t limit, Error *err) {
    char *text;
    size_t size;
    if (!file_read_all(path, limit, &text, &size, err)) return NULL;
    json_t *object = json_parse_object(text, size, path, err);
    free(text);
    return object;
}

bool json_get_int(const json_t *object, const char *path, const char *key, int64_t min, int64_t max, int64_t *value,
                  Error *err) {
    const json_t *item = json_object_get(object, key);
    if (!json_is_integer(item)) return error_set(err, EXIT_DATA, "%s: '%s' must be a whole number", path, key);
    int64_t got = (int64_t)json_integer_value(item);
    if (got != min && min == max)
        return error_set(err, EXIT_DATA, "%s: '%s' is %lld, but must be %lld", path, key, (long long)got,
                         (long long)min);
    if (got < min || got > max)
        return error_set(err, EXIT_DATA, "%s: '%s' is %lld, but must be %lld to %lld", path, key, (long long)got,
                         (long long)min, (long long)max);
    *value = got;
    return true;
}

bool json_get_double(const json_t *object, const char *path, const char *key, double *value, Error *err) {
    const json_t *item = json_object_get(object, key);
    const char *text = json_string_value(item);
    if (json_is_number(item))
        *value = json_number_value(item);
    else if (text && strcmp(text, "nan") == 0)
        *value = (double)NAN;
    else if (text && (strcmp(text, "inf") == 0 || strcmp(text, "-inf") == 0))
        *value = text[0] == '-' ? -(double)INFINITY : (double)INFINITY;
    else
        return error_set(err, EXIT_DATA, "%s: '%s' must be a number", path, key);
    return true;
}

bool json_get_hex(const json_t *object, const char *path, const char *key, uint64_t *value, Error *err) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return error_set(err, EXIT_DATA, "%s: '%s' must be a string of 16 hexadecimal digits", path, key);
    *value = strtoull(text, NULL, 16);
    return true;
}

bool json_get_object(const json_t *object, const char *path, const char *key, const json_t **value, Error *err) {
    *value = json_object_get(object, key);
    if (!json_is_object(*value)) return error_set(err, EXIT_DATA, "%s: '%s' must be an object", path, key);
    return true;
}
