// How a flag's text becomes a field of the Config.
#include "flags.h"

#include <ctype.h>
#include <errno.h>
#include <unistd.h>

// The number of `value` among the alternatives "a|b|c", or -1.
static int alternative_index(const char *alternatives, const char *value) {
    int index = 0;
    for (const char *p = alternatives;; index++) {
        size_t length = strcspn(p, "|");
        if (strlen(value) == length && memcmp(p, value, length) == 0) return index;
        if (!p[length]) return -1;
        p += length + 1;
    }
}

static bool parse_whole(const char *text, long long *value, bool *overflow) {
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 10);
    *overflow = errno == ERANGE;
    return end != text && !*end && !isspace((unsigned char)text[0]);
}

static bool out_of_range(const Flag *flag, const char *value, Error *err) {
    return error_set(err, EXIT_USER, "--%s %s: must be between %.16g and %.16g", flag->name, value, flag->min,
                     flag->max);
}

static bool set_whole(const Flag *flag, void *field, const char *value, Error *err) {
    long long number;
    bool overflow;
    if (!parse_whole(value, &number, &overflow))
        return error_set(err, EXIT_USER, "--%s %s: not a whole number", flag->name, value);
    if (overflow || (double)number < flag->min || (double)number > flag->max) return out_of_range(flag, value, err);
    if (flag->kind == FLAG_INT)
        *(int *)field = (int)number;
    else
        *(int64_t *)field = (int64_t)number;
    return true;
}

static bool set_seed(const Flag *flag, void *field, const char *value, Error *err) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)value[0]) || *end || errno == ERANGE)
        return error_set(err, EXIT_USER, "--%s %s: must be a whole number from 0 to 2^64 - 1", flag->name, value);
    *(uint64_t *)field = number;
    return true;
}

static bool set_float(const Flag *flag, void *field, const char *value, Error *err) {
    char *end;
    double number = strtod(value, &end);
    // strtod also takes blanks, hexadecimal, inf and nan
    if (end == value || *end || value[strspn(value, "+-.0123456789eE")])
        return error_set(err, EXIT_USER, "--%s %s: not a number", flag->name, value);
    if (!(number >= flag->min && number <= flag->max)) return out_of_range(flag, value, err);
    *(float *)field = (float)number;
    return true;
}

static bool set_bytes(const Flag *flag, void *field, const char *value, Error *err) {
    static const char *const units[] = {"", "b", "kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib"};
    static const double factors[] = {1, 1, 1e3, 1e6, 1e9, 1e12, 1024.0, 1048576.0, 1073741824.0, 1099511627776.0};
    size_t digits = strspn(value, ".0123456789");
    char *end, unit[4] = "?";
    double number = strtod(value, &end), bytes = -1;
    if (strlen(value + digits) < sizeof unit)
        for (size_t i = 0; i <= strlen(value + digits); i++) unit[i] = (char)tolower((unsigned char)value[digits + i]);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (digits && end == value + digits && strcmp(unit, units[i]) == 0) bytes = number * factors[i];
    if (bytes < 1 || bytes > 9e18)
        return error_set(err, EXIT_USER, "--%s %s: must be a size such as 80GB (10^9 bytes) or 75GiB (2^30 bytes)",
                         flag->name, value);
    *(int64_t *)field = (int64_t)bytes;
    return true;
}

// "3h50m": numbers with a unit each, from days to seconds.
static bool set_duration(const Flag *flag, void *field, const char *value, Error *err) {
    static const struct {
        char unit;
        double seconds;
    } units[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
    double seconds = 0;
    size_t unit = 0;
    const char *at = value;
    for (; *at && unit < 4; unit++) {
        size_t digits = strspn(at, ".0123456789");
        char *end;
        double number = strtod(at, &end);
        while (unit < 4 && units[unit].unit != at[digits]) unit++;
        if (!digits || end != at + digits || unit == 4) break;
        seconds += number * units[unit].seconds;
        at = end + 1;
    }
    if (*at || !(seconds >= 1e-3 && seconds < 1e10))
        return error_set(err, EXIT_USER, "--%s %s: must be a time such as 3h50m, 1d12h or 90s", flag->name, value);
    *(int64_t *)field = (int64_t)(seconds * 1e3);
    return true;
}

static bool set_string(const Flag *flag, char *field, const char *value, size_t size, Error *err) {
    size_t length = strlen(value);
    if (length == 0 && strcmp(flag->name, "prompt") != 0)
        return error_set(err, EXIT_USER, "--%s: the value is empty; leave the flag away or give a %s", flag->name,
                         flag->placeholder);
    if (length >= size)
        return error_set(err, EXIT_USER, "--%s: the value has %zu characters, the limit is %zu", flag->name, length,
                         size - 1);
    memcpy(field, value, length + 1);
    return true;
}

static bool set_choice(const Flag *flag, void *field, const char *value, Error *err) {
    int number = alternative_index(flag->placeholder, value);
    if (number < 0)
        return error_set(err, EXIT_USER, "--%s %s: must be one of %s", flag->name, value, flag->placeholder);
    if (flag->kind == FLAG_FORMAT)
        for (number = 0; strcmp(format_name((Format)number), value) != 0;) number++;
    memcpy(field, &number, sizeof number);
    return true;
}

static bool set_tokenizer(const Flag *flag, Config *config, const char *value, Error *err) {
    config->tokenizer = strcmp(value, "bytes") == 0  ? TOKENIZER_BYTES
                        : strcmp(value, "gpt2") == 0 ? TOKENIZER_GPT2
                                                     : TOKENIZER_FILE;
    config->tokenizer_file[0] = '\0';
    if (config->tokenizer != TOKENIZER_FILE) return true;
    if (!set_string(flag, config->tokenizer_file, value, sizeof config->tokenizer_file, err)) return false;
    if (access(value, F_OK) == 0) return true;
    return error_set(err, EXIT_DATA, "--tokenizer %s: no such file; give bytes, gpt2 or an existing file", value);
}

static bool set_resume(const Flag *flag, Config *config, const char *value, bool negated, Error *err) {
    config->resume = !negated;
    config->resume_step = -1;
    if (!value) return true;
    return set_whole(flag, &config->resume_step, value, err);
}

static bool set_plan(Config *config, const char *value, Error *err) {
    config->plan = value ? PLAN_JSON : PLAN_TABLE;
    if (!value || strcmp(value, "json") == 0) return true;
    return error_set(err, EXIT_USER, "--plan=%s: must be --plan or --plan=json", value);
}

bool flag_set(const Flag *flag, Config *config, const char *value, bool negated, Error *err) {
    void *field = (char *)config + flag->offset;
    if (value && (negated || flag->kind == FLAG_BOOL || flag->kind == FLAG_VERSION)) {
        const char *no = flag_has_negation(flag) ? " or --no-" : "";
        return error_set(err, EXIT_USER, "--%s%s=%s: takes no value; write --%s%s%s", negated ? "no-" : "", flag->name,
                         value, flag->name, no, *no ? flag->name : "");
    }
    switch (flag->kind) {
    case FLAG_INT:
    case FLAG_INT64: return set_whole(flag, field, value, err);
    case FLAG_SEED: return set_seed(flag, field, value, err);
    case FLAG_FLOAT: return set_float(flag, field, value, err);
    case FLAG_STRING: return set_string(flag, (char *)field, value, flag->size, err);
    case FLAG_BOOL: *(bool *)field = !negated; return true;
    case FLAG_CHOICE:
    case FLAG_FORMAT: return set_choice(flag, field, value, err);
    case FLAG_BYTES: return set_bytes(flag, field, value, err);
    case FLAG_DURATION: return set_duration(flag, field, value, err);
    case FLAG_TOKENIZER: return set_tokenizer(flag, config, value, err);
    case FLAG_RESUME: return set_resume(flag, config, value, negated, err);
    case FLAG_PLAN: return set_plan(config, value, err);
    case FLAG_HELP:
        if (value && strcmp(value, "markdown") != 0)
            return error_set(err, EXIT_USER, "--help=%s: must be --help or --help=markdown", value);
        return true;
    case FLAG_VERSION: return true;
    }
    return true;
}
