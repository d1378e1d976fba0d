#include "flags.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <unistd.h>

// Returns the index of `value` in the list `alternatives`, such as "a|b|c", or -1.
static int alternative_index(const char *alternatives, const char *value) {
    int index = 0;
    for (const char *p = alternatives;; index++) {
        size_t length = strcspn(p, "|");
        if (text_is(p, length, value)) return index;
        if (!p[length]) return -1;
        p += length + 1;
    }
}

typedef enum { COUNT_GOOD, COUNT_MALFORMED, COUNT_UNIT, COUNT_OVERFLOW } CountResult;

// Parses an integer such as "-1", "20k", "0.5M" or "1e6": digits, an optional fraction, and optionally an exponent or a
// unit (k or M). Unit k multiplies by `kilo`, unit M by the square of `kilo`. If kilo is 0, units are not allowed. A
// text whose value is not an integer is malformed.
static CountResult parse_count(const char *text, int64_t kilo, int64_t *value) {
    const bool negative = *text == '-';
    const char *at = text + (negative || *text == '+');
    int64_t sum = 0;
    int digits = 0, power = 0, thousands = 0;
    bool point = false, overflow = false;
    for (; isdigit((unsigned char)*at) || (*at == '.' && !point); at++) {
        if (*at == '.') {
            point = true;
            continue;
        }
        overflow = overflow || __builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, *at - '0', &sum);
        digits++;
        power -= point;
    }
    if (!digits) return COUNT_MALFORMED;
    if (*at == 'e' || *at == 'E') {
        char *end;
        const char *first = at + 1 + (at[1] == '-' || at[1] == '+');
        long exponent = strtol(at + 1, &end, 10);
        if (!isdigit((unsigned char)*first)) return COUNT_MALFORMED;
        power += (int)(exponent > 99 ? 99 : exponent < -99 ? -99 : exponent);
        at = end;
    } else if (*at) {
        thousands = *at == 'k' || *at == 'K' ? 1 : *at == 'M' || *at == 'm' ? 2 : 0;
        at += thousands > 0;
    }
    if (*at) return COUNT_MALFORMED;
    if (thousands && !kilo) return COUNT_UNIT;
    for (; thousands > 0; thousands--) overflow = overflow || __builtin_mul_overflow(sum, kilo, &sum);
    for (; power > 0 && sum; power--) overflow = overflow || __builtin_mul_overflow(sum, 10, &sum);
    if (overflow) return COUNT_OVERFLOW;
    for (; power < 0 && sum; power++) {
        if (sum % 10) return COUNT_MALFORMED;
        sum /= 10;
    }
    *value = negative ? -sum : sum;
    return COUNT_GOOD;
}

static bool out_of_range(const Flag *flag, const char *value, Error *err) {
    return error_set(err, EXIT_USER, "--%s %s: must be between %.16g and %.16g", flag->name, value, flag->min,
                     flag->max);
}

// Returns the factor of the unit k in a flag's value: 1024 for tokens, 1000 for steps, 0 (no units) for other numbers.
static int64_t kilo_of(const Flag *flag) {
    if (strcmp(flag->placeholder, "TOKENS") == 0) return 1024;
    return strncmp(flag->placeholder, "STEP", 4) == 0 ? 1000 : 0;
}

// number: value of `text` with k = 1024. True if the user probably meant a rounded power of two, such as 524k for
// 524,288. Sets *power to the exact power.
static bool is_rounded_power(const char *text, int64_t number, int64_t *power) {
    int64_t decimal;
    if (number < 1024 || (number & (number - 1)) == 0 || parse_count(text, 1000, &decimal) != COUNT_GOOD) return false;
    if (decimal == number) return false; // the text does not contain k or M
    for (*power = 1024; *power < decimal - decimal / 100;) *power *= 2;
    return *power <= decimal + decimal / 100;
}

static bool set_whole(const Flag *flag, void *field, const char *value, Error *err) {
    int64_t number = 0, power;
    const int64_t kilo = kilo_of(flag);
    CountResult result = parse_count(value, kilo, &number);
    if (result == COUNT_UNIT)
        return error_set(
            err, EXIT_USER,
            "--%s %s: only numbers of tokens and steps may have the unit k or M; write the number without a unit",
            flag->name, value);
    if (result == COUNT_MALFORMED) return error_set(err, EXIT_USER, "--%s %s: must be an integer", flag->name, value);
    if (result == COUNT_OVERFLOW || (double)number < flag->min || (double)number > flag->max)
        return out_of_range(flag, value, err);
    if (kilo == 1024 && is_rounded_power(value, number, &power))
        return error_set(err, EXIT_USER,
                         "--%s %s: ambiguous: it may mean %lld, as k is 1024 for tokens, or %lld, rounded to "
                         "thousands; write %lldk for %lld, or write %lld",
                         flag->name, value, (long long)number, (long long)power, (long long)(power / 1024),
                         (long long)power, (long long)number);
    if (flag->kind == FLAG_INT)
        *(int *)field = (int)number;
    else
        *(int64_t *)field = number;
    return true;
}

static bool set_seed(const Flag *flag, void *field, const char *value, Error *err) {
    char *end;
    int64_t count;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    // An integer with an exponent, such as "1e3", is also accepted.
    if (*end && parse_count(value, 0, &count) == COUNT_GOOD && count >= 0)
        number = (unsigned long long)count;
    else if (!isdigit((unsigned char)value[0]) || *end || errno == ERANGE)
        return error_set(err, EXIT_USER, "--%s %s: must be a whole number from 0 to 2^64 - 1", flag->name, value);
    *(uint64_t *)field = number;
    return true;
}

static bool parse_number(const Flag *flag, const char *value, double *number, Error *err) {
    char *end;
    errno = 0;
    *number = strtod(value, &end);
    // The characters are checked, because strtod() also accepts spaces, hexadecimal numbers, inf and nan.
    return (end != value && !*end && !value[strspn(value, "+-.0123456789eE")]) ||
           error_set(err, EXIT_USER, "--%s %s: must be a number", flag->name, value);
}

static bool set_float(const Flag *flag, void *field, const char *value, Error *err) {
    double number;
    if (!parse_number(flag, value, &number, err)) return false;
    if (!(number >= flag->min && number <= flag->max)) return out_of_range(flag, value, err);
    if (fabs(number) < FLT_MIN && (number != 0 || errno == ERANGE))
        return error_set(err, EXIT_USER, "--%s %s: must be 0 or at least %g", flag->name, value, (double)FLT_MIN);
    *(float *)field = (float)number;
    return true;
}

static bool set_bytes(const Flag *flag, void *field, const char *value, Error *err) {
    static const char *const units[] = {"b", "k", "kb", "m", "mb", "g", "gb", "t", "tb", "kib", "mib", "gib", "tib"};
    static const double factors[] = {
        1, 1e3, 1e3, 1e6, 1e6, 1e9, 1e9, 1e12, 1e12, 1024.0, 1048576.0, 1073741824.0, 1099511627776.0};
    size_t digits = strspn(value, ".0123456789");
    char *end, unit[4] = "?";
    double number = strtod(value, &end), bytes = -1;
    if (digits && end == value + digits && !*end)
        return error_set(err, EXIT_USER, "--%s %s: the unit is missing; did you mean %s%s?", flag->name, value, value,
                         number < 1e6 ? "GB" : "B");
    if (strlen(value + digits) < sizeof unit)
        for (size_t i = 0; i <= strlen(value + digits); i++) unit[i] = (char)tolower((unsigned char)value[digits + i]);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (digits && end == value + digits && strcmp(unit, units[i]) == 0) bytes = number * factors[i];
    if (bytes > 9e18) return error_set(err, EXIT_USER, "--%s %s: must be at most 9e18 bytes", flag->name, value);
    if (bytes < 1)
        return error_set(err, EXIT_USER,
                         "--%s %s: must be a size such as 80GB or 80G (10^9 bytes) or 75GiB (2^30 bytes)", flag->name,
                         value);
    *(int64_t *)field = (int64_t)bytes;
    return true;
}

// Parses a duration such as "3h50m": one or more numbers, each followed by d, h, m or s, in this order.
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
    if (length >= size && flag_takes_list(flag))
        return error_set(err, EXIT_USER,
                         "--%s: the names of its files have %zu characters, but the limit is %zu; quote the pattern, "
                         "so that the shell does not expand it: --%s 'FOLDER/*.bin'",
                         flag->name, length, size - 1, flag->name);
    if (length >= size)
        return error_set(err, EXIT_USER, "--%s: the value has %zu characters, but the limit is %zu", flag->name, length,
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
    return error_set(err, EXIT_DATA, "--tokenizer %s: no such file; use bytes, gpt2 or the path of a file", value);
}

// Appends a training data set to config->train; an empty line separates the sets.
static bool add_train(const Flag *flag, Config *config, const char *value, Error *err) {
    const size_t used = strlen(config->train), gap = used ? 2 : 0;
    if (used + gap >= sizeof config->train)
        return error_set(err, EXIT_USER, "--train: its file names exceed %zu characters; use patterns ('DIR/*.bin')",
                         sizeof config->train - 1);
    if (!set_string(flag, config->train + used + gap, value, sizeof config->train - used - gap, err)) return false;
    if (gap) memcpy(config->train + used, "\n\n", gap);
    config->train_sets++;
    return true;
}

static bool set_weight(const Flag *flag, Config *config, const char *value, Error *err) {
    double weight;
    const int set = config->train_sets - 1;
    if (!parse_number(flag, value, &weight, err)) return false;
    if (weight <= 0)
        return error_set(err, EXIT_USER, "--%s %s: must be above 0; to leave out a data set, remove its --train",
                         flag->name, value);
    if (!(weight >= flag->min && weight <= flag->max)) return out_of_range(flag, value, err);
    if (set >= MAX_SETS)
        return error_set(err, EXIT_USER,
                         "--%s: at most %d --train flags can have a weight; give several files to one --train",
                         flag->name, MAX_SETS);
    config->train_weights[set] = weight;
    return true;
}

static bool set_resume(const Flag *flag, Config *config, const char *value, bool negated, Error *err) {
    config->resume = !negated;
    config->resume_step = -1;
    if (!value) return true;
    if (!*value) return error_set(err, EXIT_USER, "--resume=: the value is empty; write --resume, or --resume=STEP");
    if (!value[strspn(value, "+-.0123456789eEkKmM")]) return set_whole(flag, &config->resume_step, value, err);
    // A value that is not a number is probably the folder of a run or of a checkpoint.
    const char *checkpoint = strstr(value, "/step-0");
    char step[32] = "";
    if (checkpoint) snprintf(step, sizeof step, "=%lld", atoll(checkpoint + strlen("/step-")));
    return error_set(err, EXIT_USER,
                     "--resume %s: must be an integer; give a run's folder with --out: --out %.*s --resume%s", value,
                     checkpoint ? (int)(checkpoint - value) : (int)strlen(value), value, step);
}

static bool set_plan(Config *config, const char *value, Error *err) {
    config->plan = value ? PLAN_JSON : PLAN_TABLE;
    if (!value || strcmp(value, "json") == 0) return true;
    return error_set(err, EXIT_USER, "--plan=%s: must be --plan or --plan=json", value);
}

static bool check_help(const char *value, Error *err) {
    FlagGroup group;
    char groups[FLAG_TEXT_LENGTH];
    if (!value || flag_group_find(value, &group) || strcmp(value, "markdown") == 0) return true;
    flag_group_list(groups);
    return error_set(err, EXIT_USER, "--help %s: must be one of %s, markdown", value, groups);
}

bool flag_set(const Flag *flag, Config *config, const char *value, bool negated, Error *err) {
    void *field = (char *)config + flag->offset;
    if (value && (negated || flag->kind == FLAG_BOOL || flag->kind == FLAG_VERSION)) {
        const char *no = flag_has_negation(flag) ? " or --no-" : "";
        return error_set(err, EXIT_USER, "--%s%s=%s: takes no value; write --%s%s%s", negated ? "no-" : "", flag->name,
                         value, flag->name, no, *no ? flag->name : "");
    }
    if (value && !*value && flag->kind != FLAG_RESUME && flag->kind != FLAG_PLAN && strcmp(flag->name, "prompt") != 0)
        return error_set(err, EXIT_USER, "--%s: the value is empty; remove the flag or write --%s %s", flag->name,
                         flag->name, flag->placeholder);
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
    case FLAG_TRAIN: return add_train(flag, config, value, err);
    case FLAG_WEIGHT: return set_weight(flag, config, value, err);
    case FLAG_RESUME: return set_resume(flag, config, value, negated, err);
    case FLAG_PLAN: return set_plan(config, value, err);
    case FLAG_HELP: return check_help(value, err);
    case FLAG_CONFIG:
    case FLAG_VERSION: break; // have no field
    }
    return true;
}
