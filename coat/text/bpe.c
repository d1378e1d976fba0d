#include "bpe.h"

#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "unicode.h"

// --- vocabulary: hash table from a token's bytes to its id -------------------------------------------------

// Returns the index mask of a hash table that is at most half full with `count` entries. The table's size is a power of
// two.
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
    v->hidden = (bool *)xcalloc((size_t)count, sizeof *v->hidden);
    v->length = (int32_t *)xmalloc((size_t)count * sizeof *v->length);
    for (int i = 0; i < count; i++) v->length[i] = -1;
}

bool vocabulary_set(Vocabulary *v, int id, const char *bytes, size_t length) {
    if (id < 0 || id >= v->count || v->length[id] >= 0 || length > INT32_MAX) return false;
    memcpy(v->text + v->text_used, bytes, length);
    v->offset[id] = v->text_used;
    v->length[id] = (int32_t)length;
    v->text_used += length;
    return true;
}

// Returns a token's slot in the hash table, or the empty slot where the token would be stored.
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
        if (v->length[id] <= 0 || v->hidden[id]) continue;
        uint32_t slot = vocabulary_slot(v, v->text + v->offset[id], (size_t)v->length[id]);
        if (v->slots[slot] < 0) v->slots[slot] = id;
    }
}

int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length) {
    return v->slots[vocabulary_slot(v, bytes, length)];
}

// --- merges: hash table from a pair of tokens to its merge -------------------------------------------------

void merges_init(Merges *m, int count) {
    m->slot_mask = table_mask((size_t)count);
    m->slots = (Merge *)xmalloc(((size_t)m->slot_mask + 1) * sizeof *m->slots);
    for (uint32_t i = 0; i <= m->slot_mask; i++) m->slots[i].merged = -1;
}

static Merge *merges_slot(const Merges *m, int32_t left, int32_t right) {
    int32_t pair[2] = {left, right};
    uint32_t slot = (uint32_t)XXH64(pair, sizeof pair, 0) & m->slot_mask;
    for (; m->slots[slot].merged >= 0; slot = (slot + 1) & m->slot_mask)
        if (m->slots[slot].left == left && m->slots[slot].right == right) break;
    return &m->slots[slot];
}

void merges_add(Merges *m, Merge merge) {
    *merges_slot(m, merge.left, merge.right) = merge;
}

static bool merges_within(const Merges *a, const Merges *b) {
    for (uint32_t i = 0; i <= a->slot_mask; i++) {
        const Merge *merge = &a->slots[i];
        if (merge->merged < 0) continue;
        const Merge *other = merges_slot(b, merge->left, merge->right);
        if (other->merged != merge->merged || other->rank != merge->rank) return false;
    }
    return true;
}

bool merges_equal(const Merges *a, const Merges *b) {
    return !a->slots || !b->slots || (merges_within(a, b) && merges_within(b, a));
}

void bpe_init(Bpe *b) {
    memset(b, 0, sizeof *b);
    memset(b->byte_id, 0xff, sizeof b->byte_id);
    b->unknown = -1;
}

void bpe_free(Bpe *b) {
    free(b->vocabulary.text);
    free(b->vocabulary.offset);
    free(b->vocabulary.hidden);
    free(b->vocabulary.length);
    free(b->vocabulary.slots);
    free(b->merges.slots);
    free(b->merges.rank);
    bpe_init(b);
}

// --- encoding a pretoken by merging pairs ------------------------------------------------------------------

typedef struct {
    uint32_t begin, end;  // byte range in the pretoken; if end is 0, the symbol was merged into its left neighbor
    int32_t left, right;  // indices of the neighbors; -1: no such neighbor
    int32_t id;           // id of the symbol's token; -1: the vocabulary has none
    int32_t rank, merged; // rank of the merge with the right neighbor (INT32_MAX: none), and the merged token
} Symbol;

// A candidate merge of a symbol with its right neighbor. The candidate is outdated if the symbol's rank has changed or
// the symbol was merged into its left neighbor.
typedef struct {
    int32_t rank, symbol;
} Due;

typedef struct {
    const Bpe *bpe;
    const char *pretoken;
    Symbol *symbols;
    Due *heap; // candidate merges: the lowest rank first, then the leftmost symbol
    size_t due;
} Merging;

static bool is_before(Due a, Due b) {
    return a.rank != b.rank ? a.rank < b.rank : a.symbol < b.symbol;
}

static void heap_push(Merging *g, Due due) {
    size_t at = g->due++;
    for (; at > 0 && is_before(due, g->heap[(at - 1) / 2]); at = (at - 1) / 2) g->heap[at] = g->heap[(at - 1) / 2];
    g->heap[at] = due;
}

static Due heap_pop(Merging *g) {
    const Due first = g->heap[0], last = g->heap[--g->due];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < g->due; at = child) {
        if (child + 1 < g->due && is_before(g->heap[child + 1], g->heap[child])) child++;
        if (!is_before(g->heap[child], last)) break;
        g->heap[at] = g->heap[child];
    }
    g->heap[at] = last;
    return first;
}

// Looks up the merge of symbol i with its right neighbor. Adds the merge, if there is one, to the heap.
static void find_merge(Merging *g, int32_t i) {
    const Merges *m = &g->bpe->merges;
    Symbol *s = &g->symbols[i];
    s->rank = INT32_MAX;
    if (s->right < 0) return;
    const Symbol *next = &g->symbols[s->right];
    if (m->by_text) {
        s->merged = vocabulary_find(&g->bpe->vocabulary, g->pretoken + s->begin, next->end - s->begin);
        if (s->merged >= 0) s->rank = m->rank ? m->rank[s->merged] : s->merged;
    } else {
        const Merge *merge = merges_slot(m, s->id, next->id);
        s->merged = merge->merged;
        if (s->merged >= 0) s->rank = merge->rank;
    }
    if (s->rank < INT32_MAX) heap_push(g, (Due){s->rank, i});
}

static void merge_all(Merging *g) {
    while (g->due > 0) {
        const Due due = heap_pop(g);
        Symbol *s = &g->symbols[due.symbol];
        // skips an outdated candidate: an earlier merge changed the symbol or its right neighbor
        if (s->end == 0 || s->rank != due.rank) continue;
        Symbol *next = &g->symbols[s->right];
        s->id = s->merged;
        s->end = next->end;
        s->right = next->right;
        next->end = 0;
        if (s->right >= 0) g->symbols[s->right].left = due.symbol;
        find_merge(g, due.symbol);
        if (s->left >= 0) find_merge(g, s->left);
    }
}

// Writes the tokens of the remaining symbols to out. A character without a token becomes the tokens of its bytes or, if
// one of these does not exist, the token `unknown`. Returns the number of tokens; -1 if `unknown` does not exist
// either.
static int write_ids(const Merging *g, int32_t *out) {
    const Bpe *b = g->bpe;
    int count = 0;
    bool was_unknown = false;
    for (int32_t i = 0; i >= 0; i = g->symbols[i].right) {
        const Symbol *s = &g->symbols[i];
        bool bytes = s->id < 0 && b->characters;
        for (uint32_t at = s->begin; bytes && at < s->end; at++)
            bytes = b->byte_id[(unsigned char)g->pretoken[at]] >= 0;
        const bool unknown = s->id < 0 && !bytes;
        if (unknown && b->unknown < 0) return -1;
        for (uint32_t at = s->begin; bytes && at < s->end; at++)
            out[count++] = b->byte_id[(unsigned char)g->pretoken[at]];
        if (!bytes && !(unknown && was_unknown && b->fuse_unknown)) out[count++] = unknown ? b->unknown : s->id;
        was_unknown = unknown;
    }
    return count;
}

int bpe_encode(const Bpe *b, const char *pretoken, size_t length, int32_t *out) {
    enum { FEW = 48 };
    Symbol few_symbols[FEW];
    Due few_due[3 * FEW];
    Merging g = {b, pretoken, few_symbols, few_due, 0};
    if (length == 0) return 0;
    if (b->whole_first && (out[0] = vocabulary_find(&b->vocabulary, pretoken, length)) >= 0) return 1;
    if (length > INT32_MAX / 8) return -1;
    if (length > FEW) {
        g.symbols = (Symbol *)xmalloc(length * sizeof *g.symbols);
        g.heap = (Due *)xmalloc(3 * length * sizeof *g.heap); // room for one heap entry per symbol and two per merge
    }
    int32_t count = 0;
    for (size_t at = 0, bytes = 1; at < length; at += bytes, count++) {
        if (b->characters) utf8_read(pretoken + at, length - at, &bytes);
        const int32_t id = vocabulary_find(&b->vocabulary, pretoken + at, bytes);
        g.symbols[count] = (Symbol){(uint32_t)at, (uint32_t)(at + bytes), count - 1, count + 1, id, INT32_MAX, -1};
    }
    g.symbols[count - 1].right = -1;
    for (int32_t i = 0; i < count; i++) find_merge(&g, i);
    merge_all(&g);
    const int written = write_ids(&g, out);
    if (g.symbols != few_symbols) {
        free(g.symbols);
        free(g.heap);
    }
    return written;
}
