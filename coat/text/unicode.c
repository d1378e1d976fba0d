// Classifies Unicode characters, and converts text to normalization form C (Unicode Standard Annex 15).
#include "unicode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "unicode_tables.h"

#define MAX_PARTS 4           // maximum number of parts of a decomposed character
#define FIRST_AFFECTED 0x300u // text of characters below this code is already in normalization form C
// Hangul: first code and number of leading consonants (L), vowels (V), trailing consonants (T) and syllables (S)
#define L_BASE 0x1100u
#define V_BASE 0x1161u
#define T_BASE 0x11a7u
#define S_BASE 0xac00u
#define L_COUNT 19u
#define V_COUNT 21u
#define T_COUNT 28u
#define S_COUNT (L_COUNT * V_COUNT * T_COUNT)

// --- tables of Unicode properties ----------------------------------------------------------------------------

typedef struct {
    uint32_t first, last, value;
} Range;

typedef struct {
    uint32_t code, first, second; // a decomposition into one character has second = 0
} Decomposition;

// A character of decomposed text.
typedef struct {
    uint32_t code;
    uint32_t place; // position in the text, which keeps marks of the same class in order
    uint32_t order; // canonical combining class; 0: the character is not a combining mark
} Mark;

static Range classes[CLASSES_COUNT], orders[ORDERS_COUNT];
static Decomposition decompositions[DECOMPOSITIONS_COUNT]; // sorted by code
static Decomposition compositions[DECOMPOSITIONS_COUNT];   // sorted by the two parts
static size_t composition_count;
static pthread_once_t unpacked = PTHREAD_ONCE_INIT;

static int compare_codes(const void *a, const void *b) {
    const uint32_t x = ((const Decomposition *)a)->code, y = ((const Decomposition *)b)->code;
    return x < y ? -1 : x > y;
}

static int compare_parts(const void *a, const void *b) {
    const Decomposition *x = (const Decomposition *)a, *y = (const Decomposition *)b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->second < y->second ? -1 : x->second > y->second;
}

static uint32_t unpack_number(const char **at) {
    uint32_t number = 0, scale = 1, digit;
    do {
        digit = (uint32_t)(**at - '@' - (**at > '\\'));
        number += digit % 31 * scale;
        scale *= 31;
        ++*at;
    } while (digit >= 31);
    return number;
}

static void unpack_ranges(const char *packed, Range *ranges, size_t count) {
    for (uint32_t i = 0, last = 0; i < count; i++) {
        ranges[i].first = last + unpack_number(&packed);
        ranges[i].last = last = ranges[i].first + unpack_number(&packed);
        ranges[i].value = unpack_number(&packed);
    }
}

static void unpack_tables(void) {
    unpack_ranges(classes_packed, classes, CLASSES_COUNT);
    unpack_ranges(orders_packed, orders, ORDERS_COUNT);
    const char *at = decompositions_packed;
    for (uint32_t i = 0, code = 0; i < DECOMPOSITIONS_COUNT; i++) {
        const uint32_t step = unpack_number(&at), first = unpack_number(&at), second = unpack_number(&at);
        code += step / 2;
        decompositions[i] = (Decomposition){code, first, second ? second + 0x2ff : 0};
        if (step % 2) compositions[composition_count++] = decompositions[i];
    }
    qsort(compositions, composition_count, sizeof *compositions, compare_parts);
}

// Returns the value of the range that contains a character; 0 if no range contains it.
static uint32_t value_of(uint32_t code, const Range *ranges, size_t count) {
    pthread_once(&unpacked, unpack_tables);
    size_t low = 0, high = count; // binary search for the first range that does not end before code
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (ranges[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ranges[low].first <= code ? ranges[low].value : 0;
}

// --- UTF-8 encoding, and the class of a character ------------------------------------------------------------

// Writes a code from utf8_read() as UTF-8. Writes an invalid byte unchanged. Returns the number of bytes, at most 4.
static size_t utf8_write(uint32_t code, char *out) {
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

CharClass unicode_class(uint32_t code) {
    if (code < 128) { // true for nearly all text
        if ((code | 32) >= 'a' && (code | 32) <= 'z') return CHAR_LETTER;
        if (code >= '0' && code <= '9') return CHAR_NUMBER;
        return code == ' ' || (code >= 9 && code <= 13) ? CHAR_SPACE : CHAR_OTHER;
    }
    // characters above ASCII that Unicode classifies as White_Space
    if (code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
        code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000)
        return CHAR_SPACE;
    return (CharClass)value_of(code, classes, CLASSES_COUNT);
}

// --- normalization form C (NFC) ------------------------------------------------------------------------------

// Decomposes a character completely into parts[]. Returns the number of parts. Only the first part of a decomposition
// may be decomposed further.
static size_t decompose(uint32_t code, uint32_t parts[MAX_PARTS]) {
    if (code >= S_BASE && code < S_BASE + S_COUNT) {
        const uint32_t s = code - S_BASE;
        parts[0] = L_BASE + s / (V_COUNT * T_COUNT);
        parts[1] = V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT;
        parts[2] = T_BASE + s % T_COUNT;
        return s % T_COUNT ? 3 : 2;
    }
    uint32_t last[MAX_PARTS]; // all characters of the full decomposition except the first, in reverse order
    size_t after = 0, count = 0;
    for (;;) {
        const Decomposition key = {code, 0, 0};
        const Decomposition *found =
            (const Decomposition *)bsearch(&key, decompositions, DECOMPOSITIONS_COUNT, sizeof key, compare_codes);
        if (!found) break;
        if (found->second) last[after++] = found->second;
        code = found->first;
    }
    for (parts[count++] = code; after > 0;) parts[count++] = last[--after];
    return count;
}

// Returns the character that two parts compose; 0 if they do not compose.
static uint32_t compose(uint32_t first, uint32_t second) {
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + second - V_BASE) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second - T_BASE - 1 < T_COUNT - 1)
        return first + second - T_BASE;
    const Decomposition key = {0, first, second};
    const Decomposition *found =
        (const Decomposition *)bsearch(&key, compositions, composition_count, sizeof key, compare_parts);
    return found ? found->code : 0;
}

static int compare_marks(const void *a, const void *b) {
    const Mark *x = (const Mark *)a, *y = (const Mark *)b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

// Sorts each run of combining marks (characters of a class other than 0) by their combining class.
static void sort_marks(Mark *marks, size_t count) {
    for (size_t i = 0; i < count;) {
        size_t end = i;
        bool sorted = true;
        for (; end < count && marks[end].order > 0; end++)
            sorted = sorted && (end == i || marks[end - 1].order <= marks[end].order);
        if (!sorted) qsort(marks + i, end - i, sizeof *marks, compare_marks);
        i = end > i ? end : i + 1;
    }
}

// Composes characters in place, after sort_marks(). Returns the number of remaining characters.
static size_t compose_all(Mark *marks, size_t count) {
    // kept: number of characters kept so far; starter: index of the last kept character of class 0
    size_t kept = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        const Mark mark = marks[i];
        // A mark composes with the starter only if all marks between them have lower classes.
        const bool adjacent =
            starter != SIZE_MAX &&
            (kept == starter + 1 || (marks[kept - 1].order < mark.order && marks[kept - 1].order > 0));
        const uint32_t both = adjacent ? compose(marks[starter].code, mark.code) : 0;
        if (both) {
            marks[starter].code = both;
            continue;
        }
        if (mark.order == 0) starter = kept;
        marks[kept++] = mark;
    }
    return kept;
}

char *unicode_nfc(const char *text, size_t length, size_t *out_length) {
    bool affected = false;
    size_t bytes, count = 0;
    for (size_t at = 0; at < length && !affected; at += bytes) {
        const uint32_t code = utf8_read(text + at, length - at, &bytes);
        affected = code >= FIRST_AFFECTED && code < NO_CHARACTER;
    }
    char *out = (char *)xmalloc(affected ? length * MAX_PARTS * 2 : length);
    *out_length = length;
    if (!affected) return length ? (char *)memcpy(out, text, length) : out;
    pthread_once(&unpacked, unpack_tables);
    Mark *marks = (Mark *)xmalloc(length * MAX_PARTS * sizeof *marks);
    for (size_t at = 0; at < length; at += bytes) {
        uint32_t parts[MAX_PARTS];
        const uint32_t code = utf8_read(text + at, length - at, &bytes);
        const size_t n = decompose(code, parts);
        for (size_t i = 0; i < n; i++, count++)
            marks[count] =
                (Mark){parts[i], (uint32_t)count, code < 0xc0 ? 0 : value_of(parts[i], orders, ORDERS_COUNT)};
    }
    sort_marks(marks, count);
    count = compose_all(marks, count);
    *out_length = 0;
    for (size_t i = 0; i < count; i++) *out_length += utf8_write(marks[i].code, out + *out_length);
    free(marks);
    return out;
}
