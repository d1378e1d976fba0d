// Every flag of a run with its resolved value, as one line of JSON for the log.
#include "settings_line.h"

#include <string.h>

#include "flags.h"

// What is about the terminal alone, about plans, or about how a process begins, ends and finds the others: equal runs
// may differ in it from start to start.
static bool is_left_out(const Flag *flag) {
    static const char *const names[] = {
        "config", "resume",     "allow-other-data", "overwrite",   "time-limit", "rank",
        "plan",   "rendezvous", "memory-limit",     "gpus",        "log-every",  "quiet",
        "json",   "help",       "version",          "train-weight"}; // this one lies beside train
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(flag->name, names[i]) == 0) return true;
    return false;
}

// Of so many bytes, null where there are none; of a name that is no UTF-8, which JSON cannot hold, what is ASCII.
static void text_field(JsonText *t, const char *key, const char *value, size_t length) {
    char *text = (char *)xcalloc(length + 1, 1);
    memcpy(text, value, length);
    json_t *valid = json_string(text);
    for (char *at = text; !valid && *at; at++)
        if ((unsigned char)*at > 127) *at = '?';
    json_decref(valid);
    if (length)
        json_text_string(t, key, text);
    else
        json_text_null(t, key);
    free(text);
}

// A list of the patterns that stand one a line, up to an empty line. Returns what is behind.
static const char *pattern_fields(JsonText *t, const char *lines) {
    for (; *lines && *lines != '\n'; lines += lines[0] == '\n') {
        const size_t length = strcspn(lines, "\n");
        text_field(t, NULL, lines, length);
        lines += length;
    }
    return lines + (*lines == '\n');
}

// All patterns; those of sets with weights in a list per set.
static void train_fields(JsonText *t, const Config *c) {
    const bool sets = config_weights(c) != NULL;
    json_text_open(t, "train", '[');
    for (const char *at = c->train; *at;) {
        if (sets) json_text_open(t, NULL, '[');
        at = pattern_fields(t, at);
        if (sets) json_text_close(t, ']');
    }
    json_text_close(t, ']');
    if (sets) json_text_open(t, "train-weight", '[');
    for (int k = 0; sets && k < c->train_sets; k++) json_text_double(t, NULL, c->train_weights[k]);
    if (sets) json_text_close(t, ']');
}

static void tokenizer_field(JsonText *t, const Config *c) {
    const char *name = c->vocabulary[0] ? c->vocabulary : config_tokenizer_name(c);
    text_field(t, "tokenizer", name, strlen(name));
}

// Null if there is no such number.
static void number_field(JsonText *t, const char *key, int64_t number, bool exists) {
    if (exists)
        json_text_int(t, key, number);
    else
        json_text_null(t, key);
}

static void field(JsonText *t, const Flag *flag, const Config *c) {
    const void *value = (const char *)c + flag->offset;
    char text[FLAG_TEXT_LENGTH];
    switch (flag->kind) {
    case FLAG_INT: number_field(t, flag->name, *(const int *)value, *(const int *)value >= flag->min); break;
    case FLAG_INT64:
    case FLAG_BYTES:
    case FLAG_DURATION: number_field(t, flag->name, *(const int64_t *)value, *(const int64_t *)value >= 0); break;
    case FLAG_FLOAT: json_text_float(t, flag->name, *(const float *)value); break;
    case FLAG_BOOL: json_text_bool(t, flag->name, *(const bool *)value); break;
    case FLAG_SEED: // may exceed what JSON's numbers hold
    case FLAG_CHOICE:
    case FLAG_FORMAT:
        flag_value(flag, c, text);
        json_text_string(t, flag->name, text);
        break;
    case FLAG_STRING:
        if (!flag_takes_list(flag)) {
            text_field(t, flag->name, (const char *)value, strlen((const char *)value));
            break;
        }
        json_text_open(t, flag->name, '[');
        pattern_fields(t, (const char *)value);
        json_text_close(t, ']');
        break;
    case FLAG_TRAIN: train_fields(t, c); break;
    case FLAG_TOKENIZER: tokenizer_field(t, c); break;
    case FLAG_WEIGHT:
    case FLAG_CONFIG:
    case FLAG_RESUME:
    case FLAG_PLAN:
    case FLAG_HELP:
    case FLAG_VERSION: break; // left out
    }
}

void settings_line(JsonText *t, const Config *config) {
    int count;
    const Flag *table = flag_table(&count);
    memset(t, 0, sizeof *t);
    json_text_open(t, NULL, '{');
    for (int i = 0; i < count; i++)
        if (!is_left_out(&table[i])) field(t, &table[i], config);
    json_text_close(t, '}');
}
