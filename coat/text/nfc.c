// Normalization form C (Unicode Standard Annex 15): characters are taken apart, their marks sorted, and put together.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "nfc_singles.h"
#include "nfc_tables.h"
#include "unicode.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))
#define PARTS_MAX 4           // that a character consists of
#define FIRST_AFFECTED 0x300u // text of characters below is in form C
// Hangul: leading consonants, vowels, trailing consonants, syllables
#define L_BASE 0x1100u
#define V_BASE 0x1161u
#define T_BASE 0x11a7u
#define S_BASE 0xac00u
#define L_COUNT 19u
#define V_COUNT 21u
#define T_COUNT 28u
#define S_COUNT (L_COUNT * V_COUNT * T_COUNT)

typedef struct {
    uint32_t code;
    uint32_t place; // in the text, so that sorting keeps equal ones in order
    uint8_t order;  // canonical combining class
} Mark;

static int compare_code(const void *key, const void *entry) {
    const uint32_t code = *(const uint32_t *)key, other = *(const uint32_t *)entry;
    return code < other ? -1 : code > other;
}

static uint8_t order_of(uint32_t code) {
    size_t low = 0, high = COUNT(nfc_orders);
    while (low < high) { // the first range that does not end before code
        const size_t middle = (low + high) / 2;
        if (nfc_orders[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT(nfc_orders) && nfc_orders[low].first <= code ? nfc_orders[low].order : 0;
}

// Takes a character apart; returns the number of its parts.
static size_t decompose(uint32_t code, uint32_t parts[PARTS_MAX]) {
    if (code >= S_BASE && code < S_BASE + S_COUNT) {
        const uint32_t s = code - S_BASE;
        parts[0] = L_BASE + s / (V_COUNT * T_COUNT);
        parts[1] = V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT;
        parts[2] = T_BASE + s % T_COUNT;
        return s % T_COUNT ? 3 : 2;
    }
    uint32_t last[PARTS_MAX]; // what follows the first part, the nearest last
    size_t behind = 0, count = 0;
    const Decomposition *pair;
    while (behind < PARTS_MAX - 1 && (pair = (const Decomposition *)bsearch(&code, nfc_pairs, COUNT(nfc_pairs),
                                                                            sizeof *nfc_pairs, compare_code))) {
        last[behind++] = pair->second;
        code = pair->first;
    }
    for (parts[count++] = code; behind > 0;) parts[count++] = last[--behind];
    for (size_t i = 0; i < count;
         i++) { // these are never taken apart further, but for three Greek and two of Angstrom's
        const uint32_t *single =
            (const uint32_t *)bsearch(&parts[i], nfc_singles, COUNT(nfc_singles), sizeof *nfc_singles, compare_code);
        if (!single) continue;
        if (count == 1) return decompose(single[1], parts);
        parts[i] = single[1];
    }
    return count;
}

// The character of two parts; 0 if there is none.
static uint32_t compose(uint32_t first, uint32_t second) {
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + second - V_BASE) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second - T_BASE - 1 < T_COUNT - 1)
        return first + second - T_BASE;
    size_t low = 0, high = COUNT(nfc_compositions);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const Decomposition *pair = &nfc_pairs[nfc_compositions[middle]];
        if (pair->first == first && pair->second == second) return pair->code;
        if (pair->first < first || (pair->first == first && pair->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

static int compare_marks(const void *a, const void *b) {
    const Mark *x = (const Mark *)a, *y = (const Mark *)b;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

// Sorts each run of marks by their order.
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

// Puts characters together in place; returns their number.
static size_t compose_all(Mark *marks, size_t count) {
    size_t kept = 0, starter = SIZE_MAX; // the last kept character of order 0
    for (size_t i = 0; i < count; i++) {
        const Mark mark = marks[i];
        // nothing kept since the starter stands between, or only marks of a lower order
        const bool free_path =
            starter != SIZE_MAX &&
            (kept == starter + 1 || (marks[kept - 1].order < mark.order && marks[kept - 1].order > 0));
        const uint32_t both = free_path ? compose(marks[starter].code, mark.code) : 0;
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
    char *out = (char *)xmalloc(affected ? length * PARTS_MAX * 2 : length);
    *out_length = length;
    if (!affected) return length ? (char *)memcpy(out, text, length) : out;
    Mark *marks = (Mark *)xmalloc(length * PARTS_MAX * sizeof *marks);
    for (size_t at = 0; at < length; at += bytes) {
        uint32_t parts[PARTS_MAX];
        const uint32_t code = utf8_read(text + at, length - at, &bytes);
        const size_t n = decompose(code, parts);
        for (size_t i = 0; i < n; i++, count++)
            marks[count] = (Mark){parts[i], (uint32_t)count, code < 0xc0 ? 0 : order_of(parts[i])};
    }
    sort_marks(marks, count);
    count = compose_all(marks, count);
    *out_length = 0;
    for (size_t i = 0; i < count; i++) *out_length += utf8_write(marks[i].code, out + *out_length);
    free(marks);
    return out;
}
