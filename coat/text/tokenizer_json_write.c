// Writes a tokenizer.json for a SentencePiece model. Hugging Face's libraries can convert tokenizer.model themselves,
// but not all of their versions produce a file that encodes text as SentencePiece does.
#include <string.h>

#include "tokenizer_parts.h"

typedef struct {
    const Tokenizer *t;
    bool *found; // (vocabulary) true for tokens that the encoder searches for in text before BPE
    char *name;  // buffer for the names of one or two tokens
    JsonText *out;
} Writer;

bool tokenizer_is_sentencepiece(const Tokenizer *t) {
    return t->bpe.merges.by_text;
}

// Writes the text of a token, with space markers instead of spaces, and a final 0. Returns the end of the text.
static char *put_marked(const Vocabulary *v, int id, char *to) {
    for (int32_t i = 0; i < v->length[id]; i++) {
        *to = v->text[v->offset[id] + (size_t)i];
        to = *to == ' ' ? stpcpy(to, MARK) : to + 1;
    }
    *to = 0;
    return to;
}

// Returns the name of a token in tokenizer.json. The name is valid until the next call.
static const char *name_of(const Writer *w, int id) {
    const Vocabulary *v = &w->t->bpe.vocabulary;
    if (tokenizer_is_byte(w->t, id))
        sprintf(w->name, BYTE_NAME, (unsigned char)v->text[v->offset[id]]);
    else if (tokenizer_is_special(w->t, id))
        sprintf(w->name, "%.*s", (int)v->length[id], v->text + v->offset[id]);
    else
        put_marked(v, id, w->name);
    return w->name;
}

// Finds every pair of tokens whose concatenation is a token. Returns the number of pairs. Writes the pairs to `out`,
// unless `out` is NULL.
static int find_merges(const Tokenizer *t, Merge *out) {
    const Vocabulary *v = &t->bpe.vocabulary;
    int count = 0;
    for (int id = 0; id < v->count; id++) {
        const char *text = v->text + v->offset[id];
        const size_t length = v->hidden[id] || v->length[id] < 0 ? 0 : (size_t)v->length[id];
        for (size_t cut = 1; cut < length; cut++) {
            const int32_t left = vocabulary_find(v, text, cut);
            const int32_t right = left < 0 ? -1 : vocabulary_find(v, text + cut, length - cut);
            if (right < 0) continue;
            if (out) out[count] = (Merge){left, right, id, t->bpe.merges.rank[id]};
            count++;
        }
    }
    return count;
}

// Orders merges by rank. Of merges with equal ranks, which Llama-2 has for runs of spaces, the lower id comes first.
static int compare_merges(const void *a, const void *b) {
    const Merge *x = (const Merge *)a, *y = (const Merge *)b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->merged != y->merged) return x->merged < y->merged ? -1 : 1;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    return (x->right > y->right) - (x->right < y->right);
}

static void write_merges(const Writer *w) {
    const Vocabulary *v = &w->t->bpe.vocabulary;
    const int count = find_merges(w->t, NULL);
    Merge *merges = (Merge *)xmalloc((size_t)count * sizeof *merges);
    find_merges(w->t, merges);
    qsort(merges, (size_t)count, sizeof *merges, compare_merges);
    json_text_open(w->out, "merges", '[');
    for (int i = 0; i < count; i++) {
        char *end = put_marked(v, merges[i].left, w->name);
        *end = ' ';
        put_marked(v, merges[i].right, end + 1);
        json_text_string(w->out, NULL, w->name);
    }
    json_text_close(w->out, ']');
    free(merges);
}

static void write_model(const Writer *w) {
    const Bpe *bpe = &w->t->bpe;
    bool fallback = false;
    for (int byte = 0; byte < 256; byte++) fallback = fallback || bpe->byte_id[byte] >= 0;
    json_text_open(w->out, "model", '{');
    json_text_string(w->out, "type", "BPE");
    json_text_string(w->out, MADE_KEY, MADE_OF);
    if (bpe->unknown >= 0) json_text_string(w->out, "unk_token", name_of(w, bpe->unknown));
    json_text_bool(w->out, "fuse_unk", true);
    json_text_bool(w->out, "byte_fallback", fallback);
    json_text_open(w->out, "vocab", '{');
    for (int id = 0; id < bpe->vocabulary.count; id++) json_text_int(w->out, name_of(w, id), id);
    json_text_close(w->out, '}');
    write_merges(w);
    json_text_close(w->out, '}');
}

static void write_added(const Writer *w) {
    json_text_open(w->out, "added_tokens", '[');
    for (int id = 0; id < w->t->bpe.vocabulary.count; id++) {
        if (!w->found[id] && !tokenizer_is_special(w->t, id)) continue;
        json_text_open(w->out, NULL, '{');
        json_text_int(w->out, "id", id);
        json_text_string(w->out, "content", name_of(w, id));
        json_text_bool(w->out, "single_word", false);
        json_text_bool(w->out, "lstrip", false);
        json_text_bool(w->out, "rstrip", false);
        json_text_bool(w->out, "normalized", w->found[id]);
        json_text_bool(w->out, "special", !w->found[id]);
        json_text_close(w->out, '}');
    }
    json_text_close(w->out, ']');
}

// Writes a Replace step of tokenizer.json, which replaces a pattern with `content`.
static void write_replace(JsonText *out, const char *kind, const char *pattern, const char *content) {
    json_text_open(out, NULL, '{');
    json_text_string(out, "type", "Replace");
    json_text_open(out, "pattern", '{');
    json_text_string(out, kind, pattern);
    json_text_close(out, '}');
    json_text_string(out, "content", content);
    json_text_close(out, '}');
}

// Writes the normalizer step that removes the prepended space from the names of added tokens (ADDED_ALONE). In
// a text that consists only of such a name, the step removes the space, too.
static void write_added_alone(const Writer *w) {
    const Vocabulary *v = &w->t->bpe.vocabulary;
    char *pattern = (char *)xmalloc(sizeof ADDED_ALONE + 3 * v->text_used + (size_t)v->count + 8);
    char *end = stpcpy(pattern, ADDED_ALONE);
    for (int id = 0; id < v->count; id++) {
        if (!w->found[id]) continue;
        for (const char *c = name_of(w, id); *c; *end++ = *c++)
            if (strchr(".*+?()[]{}|\\^$", *c)) *end++ = '\\';
        *end++ = '|';
    }
    strcpy(end - 1, ")\\z)"); // overwrites the last | of the pattern
    write_replace(w->out, "Regex", pattern, "");
    free(pattern);
}

static void write_normalizer(const Writer *w) {
    json_text_open(w->out, "normalizer", '{');
    json_text_string(w->out, "type", "Sequence");
    json_text_open(w->out, "normalizers", '[');
    if (w->t->add_space) {
        json_text_open(w->out, NULL, '{');
        json_text_string(w->out, "type", "Prepend");
        json_text_string(w->out, "prepend", MARK);
        json_text_close(w->out, '}');
    }
    write_replace(w->out, "String", " ", MARK);
    if (w->t->add_space && w->t->added.count > 0) write_added_alone(w);
    json_text_close(w->out, ']');
    json_text_close(w->out, '}');
}

static void write_part(JsonText *out, const char *kind, const char *id, int type) {
    json_text_open(out, NULL, '{');
    json_text_open(out, kind, '{');
    json_text_string(out, "id", id);
    json_text_int(out, "type_id", type);
    json_text_close(out, '}');
    json_text_close(out, '}');
}

// Writes the post_processor, whose templates put BOS before one text or before each of two texts.
static void write_template(const Writer *w) {
    static const char *const texts[] = {"A", "B"};
    if (w->t->bos < 0) {
        json_text_null(w->out, "post_processor");
        return;
    }
    const char *begin = name_of(w, w->t->bos);
    json_text_open(w->out, "post_processor", '{');
    json_text_string(w->out, "type", "TemplateProcessing");
    for (int count = 1; count <= 2; count++) {
        json_text_open(w->out, count == 1 ? "single" : "pair", '[');
        for (int i = 0; i < count; i++) {
            write_part(w->out, "SpecialToken", begin, i);
            write_part(w->out, "Sequence", texts[i], i);
        }
        json_text_close(w->out, ']');
    }
    json_text_open(w->out, "special_tokens", '{');
    json_text_open(w->out, begin, '{');
    json_text_string(w->out, "id", begin);
    json_text_open(w->out, "ids", '[');
    json_text_int(w->out, NULL, w->t->bos);
    json_text_close(w->out, ']');
    json_text_open(w->out, "tokens", '[');
    json_text_string(w->out, NULL, begin);
    json_text_close(w->out, ']');
    json_text_close(w->out, '}');
    json_text_close(w->out, '}');
    json_text_close(w->out, '}');
}

static void write_kind(JsonText *out, const char *kind) {
    json_text_open(out, NULL, '{');
    json_text_string(out, "type", kind);
    json_text_close(out, '}');
}

static void write_decoder(const Writer *w) {
    json_text_open(w->out, "decoder", '{');
    json_text_string(w->out, "type", "Sequence");
    json_text_open(w->out, "decoders", '[');
    write_replace(w->out, "String", MARK, " ");
    write_kind(w->out, "ByteFallback");
    write_kind(w->out, "Fuse");
    if (w->t->add_space) {
        json_text_open(w->out, NULL, '{');
        json_text_string(w->out, "type", "Strip");
        json_text_string(w->out, "content", " ");
        json_text_int(w->out, "start", 1);
        json_text_int(w->out, "stop", 0);
        json_text_close(w->out, '}');
    }
    json_text_close(w->out, ']');
    json_text_close(w->out, '}');
}

void tokenizer_write_json(const Tokenizer *t, JsonText *out) {
    const Vocabulary *v = &t->bpe.vocabulary;
    int32_t longest = 0;
    for (int id = 0; id < v->count; id++) longest = v->length[id] > longest ? v->length[id] : longest;
    const size_t name_bytes = 2 * strlen(MARK) * ((size_t)longest + sizeof BYTE_NAME);
    const Writer w = {t, (bool *)xcalloc((size_t)v->count, sizeof(bool)), (char *)xmalloc(name_bytes), out};
    for (int i = 0; i < t->added.count; i++) w.found[t->added.tokens[i].id] = true;
    json_text_begin(out, false);
    json_text_string(out, "version", "1.0");
    json_text_null(out, "truncation");
    json_text_null(out, "padding");
    write_model(&w); // The model comes early, because is_made() searches for MADE_KEY in the first bytes of the file.
    write_added(&w);
    write_normalizer(&w);
    json_text_null(out, "pre_tokenizer");
    write_template(&w);
    write_decoder(&w);
    json_text_close(out, '}');
    free(w.found);
    free(w.name);
}
