#include "tokenizer.h"

#include <jansson.h>
#include <string.h>

#include "bpe.h"
#include "io/files.h"

#define FILE_BYTES_MAX (64 << 20) // the largest vocabularies in use take a tenth of this
#define PATH_BYTES 2048
#define END_OF_TEXT_NAME "<|endoftext|>"
#define BIN_MAGIC 20240328 // llm.c: a header of 256 int32 {magic, version, vocabulary, end of text (version 2)},
#define BIN_HEADER 1024    // then every token as one byte of length and its bytes
#define GPT2_VOCAB 50257

struct Tokenizer {
    Vocabulary vocabulary;
    Merges merges;
    bool bytes;     // token = byte
    bool can_merge; // merges are known
    int end_of_text;
    char name[PATH_BYTES]; // the file's, for messages
};

// --- files -------------------------------------------------------------------------------------------------

// Reads a whole file into memory that the caller frees; NULL with err.
static char *read_vocabulary(const char *path, size_t *size, Error *err) {
    char *text;
    if (!file_read_all(path, FILE_BYTES_MAX, &text, size, err)) return NULL;
    if (*size > 0) return text;
    error_set(err, EXIT_DATA, "tokenizer %s: the file is empty", path);
    free(text);
    return NULL;
}

// Writes the path of `name` in the folder of `path` (in the folder `path` itself where `inside`) if there is
// such a file.
static bool find_beside(const char *path, bool inside, const char *name, char *found, size_t size) {
    const char *slash = strrchr(path, '/');
    int folder = inside ? (int)strlen(path) : slash ? (int)(slash - path) + 1 : 0;
    int length = snprintf(found, size, "%.*s%s%s", folder, path, inside ? "/" : "", name);
    return length > 0 && (size_t)length < size && path_is_file(found);
}

// --- GPT-2's way of writing bytes as characters ------------------------------------------------------------

// JSON cannot hold arbitrary bytes, so GPT-2 writes the printable ones of Latin-1 as themselves and the others,
// in order, as the characters from U+0100 on. Returns the byte that a character stands for, -1 if none.
static int byte_of_character(uint32_t code) {
    if (code < 0x100) return (code > 0x20 && code < 0x7f) || (code > 0xa0 && code != 0xad) ? (int)code : -1;
    if (code < 0x121) return (int)(code - 0x100);        // 0x00 .. 0x20
    if (code < 0x143) return (int)(code - 0x121 + 0x7f); // 0x7f .. 0xa0
    return code == 0x143 ? 0xad : -1;
}

// Turns `length` bytes of UTF-8 that stand for bytes into these (never more). Returns their number, or -1 if
// there is a character that stands for none.
static int64_t bytes_of_characters(const char *text, size_t length, char *out) {
    const unsigned char *p = (const unsigned char *)text;
    int64_t count = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t code = p[i];
        if (code >= 0x80) { // all such characters are below U+0800: two bytes
            if (code < 0xc2 || code > 0xdf || i + 1 >= length || (p[i + 1] & 0xc0) != 0x80) return -1;
            code = (code & 0x1f) << 6 | (p[++i] & 0x3f);
        }
        int byte = byte_of_character(code);
        if (byte < 0) return -1;
        out[count++] = (char)byte;
    }
    return count;
}

// --- vocabularies in JSON ----------------------------------------------------------------------------------

static bool check_json(const char *path, json_t *root, int *count, size_t *text_bytes, Error *err) {
    if (!json_is_object(root) || json_object_size(root) == 0)
        return error_set(err, EXIT_DATA, "tokenizer %s: not an object of tokens and their ids", path);
    const char *key;
    json_t *value;
    int64_t largest = 0;
    json_object_foreach(root, key, value) {
        if (!json_is_integer(value))
            return error_set(err, EXIT_DATA,
                             "tokenizer %s: '%.40s' has no integer id: an encoder.json or vocab.json is needed (of a "
                             "tokenizer.json, the vocab.json and merges.txt it was made from)",
                             path, key);
        int64_t id = (int64_t)json_integer_value(value);
        if (id < 0 || id >= VOCABULARY_MAX)
            return error_set(err, EXIT_DATA, "tokenizer %s: '%.40s' has id %lld, outside of 0 to %d", path, key,
                             (long long)id, VOCABULARY_MAX - 1);
        if (id > largest) largest = id;
        *text_bytes += strlen(key);
    }
    *count = (int)largest + 1;
    return true;
}

static bool load_json(Tokenizer *t, const char *path, const char *text, size_t size, Error *err) {
    json_error_t fault;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &fault);
    if (!root)
        return error_set(err, EXIT_DATA,
                         "tokenizer %s: neither JSON (line %d: %.100s) nor llm.c's binary form; name "
                         "encoder.json, vocab.json or their folder",
                         path, fault.line, fault.text);
    int count = 0;
    size_t text_bytes = 0;
    bool ok = check_json(path, root, &count, &text_bytes, err);
    if (ok) {
        vocabulary_init(&t->vocabulary, count, text_bytes);
        const char *key;
        json_t *value;
        char *bytes = (char *)xmalloc(text_bytes);
        json_object_foreach(root, key, value) {
            int id = (int)json_integer_value(value);
            int64_t length = bytes_of_characters(key, strlen(key), bytes);
            // a token that is not written in GPT-2's way is a special one and stands for its own name
            const char *token = length < 0 ? key : bytes;
            ok = ok && vocabulary_set(&t->vocabulary, id, token, length < 0 ? strlen(key) : (size_t)length);
            if (!ok) {
                error_set(err, EXIT_DATA, "tokenizer %s: two tokens have the id %d", path, id);
                break;
            }
        }
        free(bytes);
        vocabulary_index(&t->vocabulary);
    }
    json_decref(root);
    return ok;
}

// Adds one line of a merges file, "left right", as the merge of rank `rank`.
static bool add_merge(Tokenizer *t, const char *line, size_t length, int rank, char *scratch) {
    const char *space = (const char *)memchr(line, ' ', length);
    if (!space) return false;
    const Vocabulary *v = &t->vocabulary;
    int64_t left = bytes_of_characters(line, (size_t)(space - line), scratch);
    if (left <= 0) return false;
    int64_t right = bytes_of_characters(space + 1, length - (size_t)(space + 1 - line), scratch + left);
    if (right <= 0) return false;
    Merge merge;
    merge.left = vocabulary_find(v, scratch, (size_t)left);
    merge.right = vocabulary_find(v, scratch + left, (size_t)right);
    merge.merged = vocabulary_find(v, scratch, (size_t)(left + right));
    merge.rank = rank;
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) return false;
    merges_add(&t->merges, merge);
    return true;
}

static bool load_merges(Tokenizer *t, const char *path, Error *err) {
    size_t size;
    char *text = read_vocabulary(path, &size, err);
    if (!text) return false;
    int lines = 1, number = 0, rank = 0;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    bool ok = lines <= VOCABULARY_MAX;
    if (!ok) error_set(err, EXIT_DATA, "tokenizer %s: more than %d merges", path, VOCABULARY_MAX);
    merges_init(&t->merges, ok ? lines : 0);
    char *scratch = (char *)xmalloc(size);
    for (size_t begin = 0; ok && begin < size;) {
        const char *line = text + begin, *newline = (const char *)memchr(line, '\n', size - begin);
        size_t length = newline ? (size_t)(newline - line) : size - begin;
        begin += length + 1;
        number++;
        if (length > 0 && line[length - 1] == '\r') length--;
        if (length == 0 || (number == 1 && length >= 8 && !memcmp(line, "#version", 8))) continue;
        ok = add_merge(t, line, length, rank++, scratch);
        if (!ok)
            error_set(err, EXIT_DATA,
                      "tokenizer %s: line %d is not a merge of two tokens of %s: the two files do not belong together",
                      path, number, t->name);
    }
    free(scratch);
    free(text);
    return ok;
}

// --- llm.c's binary form -----------------------------------------------------------------------------------

static bool load_bin(Tokenizer *t, const char *path, const char *text, size_t size, Error *err) {
    int32_t header[4];
    if (size < BIN_HEADER) return error_set(err, EXIT_DATA, "tokenizer %s: truncated in its header", path);
    memcpy(header, text, sizeof header);
    int version = header[1], count = header[2];
    if (version != 1 && version != 2)
        return error_set(err, EXIT_DATA, "tokenizer %s: version %d; versions 1 and 2 are known", path, version);
    if (count < 1 || count > VOCABULARY_MAX)
        return error_set(err, EXIT_DATA, "tokenizer %s: its header says %d tokens", path, count);
    if ((size_t)count > size - BIN_HEADER) // each takes a byte at least
        return error_set(err, EXIT_DATA, "tokenizer %s: truncated: its header says %d token%s, %zu byte%s follow%s",
                         path, count, plural(count), size - BIN_HEADER, plural(size - BIN_HEADER),
                         singular(size - BIN_HEADER));
    int end_of_text = version == 2 ? header[3] : count == GPT2_VOCAB ? GPT2_VOCAB - 1 : -1;
    if (version == 2 && (end_of_text < 0 || end_of_text >= count))
        return error_set(err, EXIT_DATA, "tokenizer %s: its end-of-text token %d is not one of its %d token%s", path,
                         end_of_text, count, plural(count));
    vocabulary_init(&t->vocabulary, count, size);
    t->end_of_text = end_of_text;
    size_t at = BIN_HEADER;
    int single = 0; // of the first 256 tokens, how many are one byte
    for (int id = 0; id < count; id++) {
        size_t length = at < size ? (unsigned char)text[at] : 0;
        if (at >= size || length > size - at - 1)
            return error_set(err, EXIT_DATA, "tokenizer %s: truncated in token %d of %d", path, id, count);
        vocabulary_set(&t->vocabulary, id, text + at + 1, length);
        single += id < 256 && length == 1;
        at += 1 + length;
    }
    if (at != size)
        return error_set(err, EXIT_DATA, "tokenizer %s: %zu byte%s after its last token: the file is damaged", path,
                         size - at, plural(size - at));
    vocabulary_index(&t->vocabulary);
    // GPT-2 numbered its tokens in the order of their merges, so that the file needs no merges of its own.
    t->can_merge = t->merges.by_id = single == 256;
    return true;
}

// --- the interface -----------------------------------------------------------------------------------------

static Tokenizer *tokenizer_new(const char *name) {
    Tokenizer *t = (Tokenizer *)xcalloc(1, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->end_of_text = -1;
    return t;
}

Tokenizer *tokenizer_bytes(void) {
    Tokenizer *t = tokenizer_new("bytes");
    vocabulary_init(&t->vocabulary, BYTES_VOCAB, 256 + strlen(END_OF_TEXT_NAME));
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        vocabulary_set(&t->vocabulary, i, &byte, 1);
    }
    vocabulary_set(&t->vocabulary, BYTES_END_OF_TEXT, END_OF_TEXT_NAME, strlen(END_OF_TEXT_NAME));
    vocabulary_index(&t->vocabulary);
    t->bytes = true;
    t->end_of_text = BYTES_END_OF_TEXT;
    return t;
}

static bool load(Tokenizer *t, const char *path, Error *err) {
    size_t size;
    char *text = read_vocabulary(path, &size, err);
    if (!text) return false;
    int32_t magic = 0;
    if (size >= sizeof magic) memcpy(&magic, text, sizeof magic);
    bool binary = magic == BIN_MAGIC;
    bool ok = binary ? load_bin(t, path, text, size, err) : load_json(t, path, text, size, err);
    free(text);
    if (!ok || binary) return ok;

    static const char *const ends[] = {END_OF_TEXT_NAME, "<|end_of_text|>", "</s>", "<eos>"};
    for (size_t i = 0; t->end_of_text < 0 && i < sizeof ends / sizeof *ends; i++)
        t->end_of_text = vocabulary_find(&t->vocabulary, ends[i], strlen(ends[i]));
    char merges[PATH_BYTES];
    t->can_merge = find_beside(path, false, "vocab.bpe", merges, sizeof merges) ||
                   find_beside(path, false, "merges.txt", merges, sizeof merges);
    return !t->can_merge || load_merges(t, merges, err);
}

Tokenizer *tokenizer_open(const char *path, Error *err) {
    static const char *const names[] = {"encoder.json", "vocab.json", "gpt2_tokenizer.bin"};
    char inside[PATH_BYTES];
    if (path_is_folder(path)) {
        bool found = false;
        for (size_t i = 0; !found && i < sizeof names / sizeof *names; i++)
            found = find_beside(path, true, names[i], inside, sizeof inside);
        if (!found) {
            error_set(err, EXIT_DATA,
                      "tokenizer %s: the folder holds no encoder.json, vocab.json or gpt2_tokenizer.bin", path);
            return NULL;
        }
        path = inside;
    }
    Tokenizer *t = tokenizer_new(path);
    if (load(t, path, err)) return t;
    tokenizer_close(t);
    return NULL;
}

void tokenizer_close(Tokenizer *t) {
    if (!t) return;
    vocabulary_free(&t->vocabulary);
    merges_free(&t->merges);
    free(t);
}

int tokenizer_vocab(const Tokenizer *t) {
    return t->vocabulary.count;
}

int tokenizer_end_of_text(const Tokenizer *t) {
    return t->end_of_text;
}

size_t tokenizer_decode(const Tokenizer *t, int32_t id, char *out, size_t size) {
    const Vocabulary *v = &t->vocabulary;
    if (id < 0 || id >= v->count || v->length[id] <= 0) return 0;
    size_t length = (size_t)v->length[id];
    memcpy(out, v->text + v->offset[id], length < size ? length : size);
    return length;
}

int tokenizer_encode(const Tokenizer *t, const char *text, int32_t *ids, int max, Error *err) {
    size_t length = strlen(text), largest = 0;
    if (!t->bytes && !t->can_merge) {
        error_set(err, EXIT_DATA,
                  "tokenizer %s cannot encode text: put its merges beside it (vocab.bpe or merges.txt), or leave the "
                  "prompt out",
                  t->name);
        return -1;
    }
    for (size_t at = 0, n; !t->bytes && at < length; at += n) {
        n = bpe_piece(text + at, length - at);
        if (n > largest) largest = n;
    }
    int32_t *piece = (int32_t *)xmalloc(largest * sizeof *piece);
    int count = 0;
    for (size_t at = 0, n; count >= 0 && at < length; at += n) {
        n = t->bytes ? 1 : bpe_piece(text + at, length - at);
        int got = 1;
        if (!t->bytes) got = bpe_encode(&t->vocabulary, &t->merges, text + at, n, piece);
        if (got < 0) {
            error_set(err, EXIT_DATA, "tokenizer %s has no token for a byte of '%.*s'", t->name, n > 40 ? 40 : (int)n,
                      text + at);
            count = -1;
        } else if (got > max - count) {
            error_set(err, EXIT_USER, "the text has more than the %d tokens that there is room for: shorten the prompt",
                      max);
            count = -1;
        } else {
            if (t->bytes)
                ids[count] = (unsigned char)text[at];
            else
                memcpy(ids + count, piece, (size_t)got * sizeof *ids);
            count += got;
        }
    }
    free(piece);
    return count;
}
