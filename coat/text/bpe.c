#include "bpe.h"

#include <string.h>
#include <xxhash.h>

#include "error.h"
#include "unicode_tables.h"

// --- vocabulary --------------------------------------------------------------------------------------------

// The smallest power of two that leaves a table of `count` entries at most half full, minus one.
static uint32_t table_mask(size_t count) {
    uint32_t size = 16;
    while (size < 2 * count) size *= 2;
    return size - 1;
}

void vocabulary_init(Vocabulary *v, int count, size_t text_bytes) {
    memset(v, 0, sizeof *v);
    v->count = count;
    v->text = (char *)xmalloc(text_bytes);
    v->offset = (size_t *)xcalloc((size_t)count, sizeof *v->offset);
    v->length = (int32_t *)xmalloc((size_t)count * sizeof *v->length);
    for (int i = 0; i < count; i++) v->length[i] = -1;
}

void vocabulary_free(Vocabulary *v) {
    free(v->text);
    free(v->offset);
    free(v->length);
    free(v->slots);
    memset(v, 0, sizeof *v);
}

bool vocabulary_set(Vocabulary *v, int id, const char *bytes, size_t length) {
    if (id < 0 || id >= v->count || v->length[id] >= 0 || length > INT32_MAX) return false;
    memcpy(v->text + v->text_used, bytes, length);
    v->offset[id] = v->text_used;
    v->length[id] = (int32_t)length;
    v->text_used += length;
    return true;
}

// The slot of a token, or the empty one where it would go.
static uint32_t vocabulary_slot(const Vocabulary *v, const char *bytes, size_t length) {
    uint32_t slot = (uint32_t)XXH64(bytes, length, 0) & v->slot_mask;
    for (; v->slots[slot] >= 0; slot = (slot + 1) & v->slot_mask) {
        int32_t id = v->slots[slot];
        if ((size_t)v->length[id] == length && !memcmp(v->text + v->offset[id], bytes, length)) break;
    }
    return slot;
}

void vocabulary_index(Vocabulary *v) {
    v->slot_mask = table_mask((size_t)v->count);
    v->slots = (int32_t *)xmalloc(((size_t)v->slot_mask + 1) * sizeof *v->slots);
    memset(v->slots, 0xff, ((size_t)v->slot_mask + 1) * sizeof *v->slots);
    for (int id = 0; id < v->count; id++) {
        if (v->length[id] <= 0) continue;
        uint32_t slot = vocabulary_slot(v, v->text + v->offset[id], (size_t)v->length[id]);
        if (v->slots[slot] < 0) v->slots[slot] = id;
    }
}

int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length) {
    return v->slots[vocabulary_slot(v, bytes, length)];
}

// --- merges ------------------------------------------------------------------------------------------------

void merges_init(Merges *m, int count) {
    m->by_id = false;
    m->slot_mask = table_mask((size_t)count);
    m->slots = (Merge *)xmalloc(((size_t)m->slot_mask + 1) * sizeof *m->slots);
    for (uint32_t i = 0; i <= m->slot_mask; i++) m->slots[i].merged = -1;
}

void merges_free(Merges *m) {
    free(m->slots);
    memset(m, 0, sizeof *m);
}

static Merge *merges_slot(const Merges *m, int32_t left, int32_t right) {
    int32_t pair[2] = {left, right};
    uint32_t slot = (uint32_t)XXH64(pair, sizeof pair, 0) & m->slot_mask;
    for (; m->slots[slot].merged >= 0; slot = (slot + 1) & m->slot_mask)
        if (m->slots[slot].left == left && m->slots[slot].right == right) break;
    return &m->slots[slot];
}

void merges_add(Merges *m, Merge merge) {
    Merge *slot = merges_slot(m, merge.left, merge.right);
    if (slot->merged < 0) *slot = merge;
}

// --- pieces ------------------------------------------------------------------------------------------------

typedef enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharClass;

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

static CharClass class_of(uint32_t code) {
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

// The class of the first character of text (length > 0) and its number of bytes.
static CharClass next_char(const char *text, size_t length, size_t *bytes) {
    const unsigned char *p = (const unsigned char *)text;
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000}; // that needs so many bytes
    *bytes = 1;
    if (p[0] < 0x80) return class_of(p[0]);
    size_t count = p[0] >= 0xf0 && p[0] < 0xf8   ? 4
                   : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                   : p[0] >= 0xc0 && p[0] < 0xe0 ? 2
                                                 : 0;
    if (count == 0 || count > length) return CHAR_OTHER;
    uint32_t code = p[0] & (0x7fu >> count);
    for (size_t i = 1; i < count; i++) {
        if ((p[i] & 0xc0) != 0x80) return CHAR_OTHER;
        code = code << 6 | (p[i] & 0x3f);
    }
    if (code < smallest[count] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return CHAR_OTHER;
    *bytes = count;
    return class_of(code);
}

static size_t contraction(const char *text, size_t length) {
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i]);
        if (n <= length && !memcmp(text, endings[i], n)) return n;
    }
    return 0;
}

size_t bpe_piece(const char *text, size_t length) {
    size_t bytes, end = contraction(text, length);
    if (end > 0) return end;
    end = text[0] == ' ' && length > 1 ? 1 : 0; // a space belongs to the word after it
    CharClass kind = next_char(text + end, length - end, &bytes);
    if (kind != CHAR_SPACE) {
        do end += bytes;
        while (end < length && next_char(text + end, length - end, &bytes) == kind);
        return end;
    }
    // White space: all of it at the end of the text; else the last one is left to what follows, unless it is
    // the only one.
    size_t last = 0;
    for (end = 0; end < length && next_char(text + end, length - end, &bytes) == CHAR_SPACE; end += bytes) last = end;
    return end == length || last == 0 ? end : last;
}

// --- encoding ----------------------------------------------------------------------------------------------

typedef struct {
    size_t begin;   // of this symbol in the piece
    int32_t id;     // its token
    int32_t rank;   // of the merge with its right neighbour, INT32_MAX = none
    int32_t merged; // what that gives
} Symbol;

// Finds the merge of symbol i and its right neighbour. symbols[count] only marks the end of the piece.
static void find_merge(const Vocabulary *v, const Merges *m, const char *piece, Symbol *symbols, size_t i,
                       size_t count) {
    symbols[i].rank = INT32_MAX;
    symbols[i].merged = -1;
    if (i + 1 >= count) return;
    if (m->by_id) {
        symbols[i].merged = vocabulary_find(v, piece + symbols[i].begin, symbols[i + 2].begin - symbols[i].begin);
        if (symbols[i].merged >= 0) symbols[i].rank = symbols[i].merged;
        return;
    }
    const Merge *merge = merges_slot(m, symbols[i].id, symbols[i + 1].id);
    symbols[i].merged = merge->merged;
    if (merge->merged >= 0) symbols[i].rank = merge->rank;
}

int bpe_encode(const Vocabulary *v, const Merges *m, const char *piece, size_t length, int32_t *out) {
    Symbol few[64], *symbols = few;
    if (length + 1 > sizeof few / sizeof *few) symbols = (Symbol *)xmalloc((length + 1) * sizeof *symbols);
    size_t count = length;
    bool known = true;
    for (size_t i = 0; i <= length; i++) {
        symbols[i].begin = i;
        symbols[i].id = i < length ? vocabulary_find(v, piece + i, 1) : 0;
        known &= symbols[i].id >= 0;
    }
    for (size_t i = 0; known && i < count; i++) find_merge(v, m, piece, symbols, i, count);
    while (known && count > 1) {
        size_t best = 0; // the leftmost of the lowest rank
        for (size_t i = 1; i + 1 < count; i++)
            if (symbols[i].rank < symbols[best].rank) best = i;
        if (symbols[best].rank == INT32_MAX) break;
        symbols[best].id = symbols[best].merged;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 1) * sizeof *symbols);
        count--;
        find_merge(v, m, piece, symbols, best, count);
        if (best > 0) find_merge(v, m, piece, symbols, best - 1, count);
    }
    for (size_t i = 0; known && i < count; i++) out[i] = symbols[i].id;
    if (symbols != few) free(symbols);
    return known ? (int)count : -1;
}
