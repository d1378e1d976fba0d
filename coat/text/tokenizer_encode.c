// Encodes text: finds added tokens, normalizes the text between them, cuts this text into pretokens and encodes the
// pretokens.
#include <string.h>

#include "tokenizer_parts.h"
#include "unicode.h"

typedef struct {
    const Tokenizer *t;
    int32_t *ids;
    int count, max;
    Error *err;
} Encoder;

size_t spaces_from_marks(char *text, size_t length) {
    size_t kept = 0;
    for (size_t i = 0; i < length; kept++) {
        const bool mark = length - i >= strlen(MARK) && !memcmp(text + i, MARK, strlen(MARK));
        text[kept] = mark ? ' ' : text[i];
        i += mark ? strlen(MARK) : 1;
    }
    return kept;
}

char *tokenizer_normalize(const Tokenizer *t, const char *text, size_t length, size_t *out_length) {
    size_t put = t->add_space && length > 0, bytes = length;
    char *form = t->nfc ? unicode_nfc(text, length, &bytes) : NULL, *out = (char *)xmalloc(bytes + put);
    if (put) out[0] = ' ';
    if (bytes > 0) memcpy(out + put, form ? form : text, bytes);
    free(form);
    *out_length = t->marks && !t->late_marks ? spaces_from_marks(out, bytes + put) : bytes + put;
    return out;
}

static bool put_ids(Encoder *e, const int32_t *ids, int count) {
    if (count > e->max - e->count)
        return error_set(e->err, EXIT_USER, "the prompt has more than %d tokens, which is the maximum; shorten it",
                         e->max);
    memcpy(e->ids + e->count, ids, (size_t)count * sizeof *ids);
    e->count += count;
    return true;
}

// Cuts normalized text without added tokens into pretokens, and encodes them with BPE.
static bool put_pretokens(Encoder *e, const char *text, size_t length) {
    const Tokenizer *t = e->t;
    size_t largest = 0, part = 0;
    for (size_t at = 0, n; at < length; at += n) {
        n = pretoken_length(t->pretokens, text + at, length - at, &part);
        if (n > largest) largest = n;
    }
    int32_t *ids = (int32_t *)xmalloc(largest * sizeof *ids);
    bool good = true;
    for (size_t at = 0, n; good && at < length; at += n) {
        n = pretoken_length(t->pretokens, text + at, length - at, &part);
        const int count = bpe_encode(&t->bpe, text + at, n, ids);
        if (count < 0)
            good = error_set(e->err, EXIT_DATA,
                             "tokenizer %s has no token for a character or byte of '%.*s'; change the prompt", t->name,
                             n > 40 ? 40 : (int)n, text + at);
        else
            good = put_ids(e, ids, count);
    }
    free(ids);
    return good;
}

// Encodes normalized text between two added tokens. first: true if the text is the start of the input.
static bool put_stretch(Encoder *e, const char *text, size_t length, bool first) {
    const Tokenizer *t = e->t;
    if (length == 0) return true;
    char *prefixed = (char *)xmalloc(length + 1);
    prefixed[0] = ' ';
    memcpy(prefixed + 1, text, length);
    if (t->late_marks) length = spaces_from_marks(prefixed + 1, length);
    const bool prefix = prefixed[1] != ' ' && (t->prefix == PREFIX_MISSING || (t->prefix == PREFIX_FIRST && first));
    const bool good = put_pretokens(e, prefixed + !prefix, length + prefix);
    free(prefixed);
    return good;
}

static bool put_text(Encoder *e, const char *text, size_t length, bool first, bool normalized);

// Normalizes and encodes text in which only `normalized` added tokens may remain.
static bool put_plain(Encoder *e, const char *text, size_t length, bool first) {
    size_t bytes;
    if (length == 0) return true;
    char *normal = tokenizer_normalize(e->t, text, length, &bytes);
    const bool good = put_text(e, normal, bytes, first, true);
    free(normal);
    return good;
}

// Encodes text. Splits the text at added tokens whose field `normalized` has the given value, and encodes these tokens
// and the text between them.
static bool put_text(Encoder *e, const char *text, size_t length, bool first, bool normalized) {
    bool good = true;
    for (size_t at = 0; good && at < length;) {
        size_t before, bytes = 0;
        const int32_t id = added_tokens_find(&e->t->added, normalized, text + at, length - at, &before, &bytes);
        if (id < 0) before = length - at;
        good = normalized ? put_stretch(e, text + at, before, first && at == 0)
                          : put_plain(e, text + at, before, first && at == 0);
        if (good && id >= 0) good = put_ids(e, &id, 1);
        at += before + (id >= 0 ? bytes : 0);
    }
    return good;
}

int tokenizer_encode(const Tokenizer *t, const char *text, int32_t *ids, int max, Error *err) {
    Encoder e = {t, ids, 0, max, err};
    const size_t length = strlen(text);
    bool good = true;
    if (t->bytes) {
        for (size_t at = 0; good && at < length; at++) {
            const int32_t id = (unsigned char)text[at];
            good = put_ids(&e, &id, 1);
        }
    } else if (!t->can_merge) {
        good =
            error_set(err, EXIT_DATA,
                      "tokenizer %s cannot encode text without merges; put vocab.bpe or merges.txt into its folder, or "
                      "remove --prompt",
                      t->name);
    } else {
        good = put_text(&e, text, length, true, false);
    }
    return good ? e.count : -1;
}
