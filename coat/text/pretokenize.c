#include "pretokenize.h"

#include <string.h>

#include "unicode.h"

#define GPT2 " ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define ANY_CASE "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define LINES "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

bool pretokens_from_regex(const char *regex, PretokenRule *rule) {
    static const struct {
        const char *regex;
        PretokenKind kind;
        int digits;
    } known[] = {{"'s|'t|'re|'ve|'m|'ll|'d|" GPT2, PRETOKENS_GPT2, 0},
                 {"'(?:[sdmt]|ll|ve|re)|" GPT2, PRETOKENS_GPT2, 0},
                 {ANY_CASE "\\p{N}{1,3}" LINES, PRETOKENS_CL100K, 3},
                 {ANY_CASE "\\p{N}" LINES, PRETOKENS_CL100K, 1}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(regex, known[i].regex) != 0) continue;
        rule->kind = known[i].kind;
        rule->digits = known[i].digits;
        return true;
    }
    return false;
}

// Returns the class of the first character of text (length > 0). Sets *bytes to its length in bytes.
static CharClass next_class(const char *text, size_t length, size_t *bytes) {
    return unicode_class(utf8_read(text, length, bytes));
}

// Returns the end of the run of characters of class `kind` that starts at offset `at`, limited to `max` characters.
static size_t run_end(const char *text, size_t at, size_t length, CharClass kind, int max) {
    size_t bytes;
    for (; at < length && max > 0 && next_class(text + at, length - at, &bytes) == kind; max--) at += bytes;
    return at;
}

static size_t contraction(const char *text, size_t length, bool any_case) {
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (text[0] != '\'') return 0;
    // U+017F (long s) equals s if case is ignored.
    if (any_case && length > 2 && memcmp(text + 1, "\xc5\xbf", 2) == 0) return 3;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t n = strlen(endings[i]);
        if (n >= length) continue;
        if (any_case ? strncasecmp(text + 1, endings[i], n) == 0 : memcmp(text + 1, endings[i], n) == 0) return n + 1;
    }
    return 0;
}

// Returns the end of the white space at the start of text. If more text follows several white-space characters,
// excludes the last white-space character, because that character belongs to the next pretoken.
static size_t space_end(const char *text, size_t length) {
    size_t end, bytes, last = 0;
    for (end = 0; end < length && next_class(text + end, length - end, &bytes) == CHAR_SPACE; end += bytes) last = end;
    return end == length || last == 0 ? end : last;
}

static size_t gpt2_pretoken(const char *text, size_t length) {
    size_t bytes, end = contraction(text, length, false);
    if (end > 0) return end;
    end = text[0] == ' ' && length > 1 ? 1 : 0; // a single space belongs to the following word
    const CharClass kind = next_class(text + end, length - end, &bytes);
    return kind == CHAR_SPACE ? space_end(text, length) : run_end(text, end, length, kind, INT32_MAX);
}

static bool is_line_end(char c) {
    return c == '\r' || c == '\n';
}

static size_t cl100k_pretoken(const char *text, size_t length, int digits) {
    size_t bytes, next, end = contraction(text, length, true);
    if (end > 0) return end;
    const CharClass kind = next_class(text, length, &bytes);
    if (kind == CHAR_LETTER) return run_end(text, 0, length, CHAR_LETTER, INT32_MAX);
    if (kind == CHAR_NUMBER) return run_end(text, 0, length, CHAR_NUMBER, digits);
    // A character that is not a letter, number or line end belongs to the letters that follow it.
    const bool more = bytes < length;
    if (more && !is_line_end(text[0]) && next_class(text + bytes, length - bytes, &next) == CHAR_LETTER)
        return run_end(text, bytes, length, CHAR_LETTER, INT32_MAX);
    end = text[0] == ' ' && more ? 1 : 0;
    if (next_class(text + end, length - end, &next) == CHAR_OTHER) {
        end = run_end(text, end, length, CHAR_OTHER, INT32_MAX);
        while (end < length && is_line_end(text[end])) end++; // includes line ends that follow the run of characters
        return end;
    }
    size_t last_line = 0; // offset after the last line end in the white space
    for (end = 0; end < length && next_class(text + end, length - end, &bytes) == CHAR_SPACE; end += bytes)
        if (is_line_end(text[end])) last_line = end + 1;
    return last_line > 0 ? last_line : space_end(text, length);
}

static size_t space_pretoken(const char *text, size_t length) {
    const char *blank = (const char *)memchr(text + 1, ' ', length - 1);
    return blank ? (size_t)(blank - text) : length;
}

// Returns the length of the digit that text begins with, or of the text before the first digit.
static size_t part_length(const char *text, size_t length) {
    size_t bytes, end = 0;
    if (next_class(text, length, &bytes) == CHAR_NUMBER) return bytes;
    while (end < length && next_class(text + end, length - end, &bytes) != CHAR_NUMBER) end += bytes;
    return end;
}

static size_t rule_length(PretokenRule rule, const char *text, size_t length) {
    switch (rule.kind) {
    case PRETOKENS_NONE: return length;
    case PRETOKENS_SPACE: return space_pretoken(text, length);
    case PRETOKENS_GPT2: return gpt2_pretoken(text, length);
    case PRETOKENS_CL100K: return cl100k_pretoken(text, length, rule.digits);
    }
    return length;
}

size_t pretoken_length(PretokenRule rule, const char *text, size_t length, size_t *part) {
    if (*part == 0) *part = rule.alone_digits ? part_length(text, length) : length;
    const size_t bytes = rule_length(rule, text, *part);
    *part -= bytes;
    return bytes;
}
