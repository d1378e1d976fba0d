#include "utf8.h"

uint32_t utf8_read(const char *text, size_t length, size_t *bytes) {
    const unsigned char *p = (const unsigned char *)text;
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000}; // [n]: smallest code point that needs n bytes
    const uint32_t invalid = NO_CHARACTER | p[0];
    *bytes = 1;
    if (p[0] < 0x80) return p[0];
    const size_t count = p[0] >= 0xf0 && p[0] < 0xf8   ? 4
                         : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                         : p[0] >= 0xc0 && p[0] < 0xe0 ? 2
                                                       : 0;
    if (count == 0 || count > length) return invalid;
    uint32_t code = p[0] & (0x7fu >> count);
    for (size_t i = 1; i < count; i++) {
        if ((p[i] & 0xc0) != 0x80) return invalid;
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < smallest[count] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return invalid;
    *bytes = count;
    return code;
}
