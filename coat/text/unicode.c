#include "unicode.h"

#include "unicode_tables.h"

size_t utf8_write(uint32_t code, char *out) {
    if (code < 0x80 || (code & NO_CHARACTER)) {
        out[0] = (char)code;
        return 1;
    }
    const size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint32_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[count] | code >> (6 * (count - 1)));
    for (size_t i = 1; i < count; i++) out[i] = (char)(0x80 | (code >> (6 * (count - 1 - i)) & 0x3f));
    return count;
}

static bool in_ranges(uint32_t code, const CodeRange *ranges, size_t count) {
    size_t low = 0, high = count; // the first range that does not end before code
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low].first <= code;
}

CharClass unicode_class(uint32_t code) {
    if (code < 128) { // nearly all text
        if ((code | 32) >= 'a' && (code | 32) <= 'z') return CHAR_LETTER;
        if (code >= '0' && code <= '9') return CHAR_NUMBER;
        return code == ' ' || (code >= 9 && code <= 13) ? CHAR_SPACE : CHAR_OTHER;
    }
    // Unicode's White_Space above ASCII
    if (code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
        code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000)
        return CHAR_SPACE;
    if (in_ranges(code, unicode_letters, sizeof unicode_letters / sizeof *unicode_letters)) return CHAR_LETTER;
    if (in_ranges(code, unicode_numbers, sizeof unicode_numbers / sizeof *unicode_numbers)) return CHAR_NUMBER;
    return CHAR_OTHER;
}
