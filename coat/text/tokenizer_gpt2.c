// Reads GPT-2's encoder.json and its merges, and llm.c's gpt2_tokenizer.bin.
#include <string.h>

#include "tokenizer_parts.h"

// Size in bytes of the header of llm.c's tokenizer file: 256 int32 {magic, version, vocabulary, EOS (version 2)}. The
// tokens follow, each as one byte of length and that many bytes.
#define BIN_HEADER 1024
#define GPT2_VOCAB 50257

// --- GPT-2's encoding of bytes as characters ---------------------------------------------------------------

// Returns the byte that a character of GPT-2's JSON files represents; -1 if the character represents no byte. JSON
// cannot represent arbitrary bytes, so GPT-2 writes printable bytes as their Latin-1 characters and all other bytes, in
// order, as U+0100, U+0101, ...
static int byte_of_character(uint32_t code) {
    if (code < 0x100) return (code > 0x20 && code < 0x7f) || (code > 0xa0 && code != 0xad) ? (int)code : -1;
    if (code < 0x121) return (int)(code - 0x100);        // bytes 0x00 to 0x20
    if (code < 0x143) return (int)(code - 0x121 + 0x7f); // bytes 0x7f to 0xa0
    return code == 0x143 ? 0xad : -1;
}

int64_t bytes_of_characters(const char *text, size_t length, char *out) {
    const unsigned char *p = (const unsigned char *)text;
    int64_t count = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t code = p[i];
        if (code >= 0x80) { // every character that represents a byte is below U+0800 and takes at most two bytes
            if (code < 0xc2 || code > 0xdf || i + 1 >= length || (p[i + 1] & 0xc0) != 0x80) return -1;
            code = (code & 0x1f) << 6 | (p[++i] & 0x3f);
        }
        int byte = byte_of_character(code);
        if (byte < 0) return -1;
        out[count++] = (char)byte;
    }
    return count;
}

// --- reading vocab.json and merges.txt ---------------------------------------------------------------------

static bool check_json(const char *path, json_t *root, int *count, size_t *text_bytes, Error *err) {
    if (!json_is_object(root) || json_object_size(root) == 0)
        return error_set(err, EXIT_DATA, "tokenizer %s: the JSON must be an object that maps tokens to ids", path);
    const char *key;
    json_t *value;
    int64_t largest = 0;
    json_object_foreach(root, key, value) {
        if (!json_is_integer(value))
            return error_set(err, EXIT_DATA,
                             "tokenizer %s: '%.40s' has no integer id; use GPT-2's encoder.json or vocab.json, or a "
                             "tokenizer.json",
                             path, key);
        int64_t id = (int64_t)json_integer_value(value);
        if (id < 0 || id >= VOCABULARY_MAX)
            return error_set(err, EXIT_DATA, "tokenizer %s: '%.40s' has id %lld, outside 0 to %d", path, key,
                             (long long)id, VOCABULARY_MAX - 1);
        if (id > largest) largest = id;
        *text_bytes += strlen(key);
    }
    *count = (int)largest + 1;
    return true;
}

bool tokenizer_read_pair(Tokenizer *t, const char *path, json_t *root, Error *err) {
    int count = 0;
    size_t text_bytes = 0;
    if (!check_json(path, root, &count, &text_bytes, err)) return false;
    vocabulary_init(&t->bpe.vocabulary, count, text_bytes);
    const char *key;
    json_t *value;
    char *bytes = (char *)xmalloc(text_bytes);
    bool good = true;
    json_object_foreach(root, key, value) {
        const int id = (int)json_integer_value(value);
        const int64_t length = bytes_of_characters(key, strlen(key), bytes);
        // A token with a character outside GPT-2's table of bytes is special: the token's name is used without
        // conversion.
        good = length < 0 ? vocabulary_set(&t->bpe.vocabulary, id, key, strlen(key))
                          : vocabulary_set(&t->bpe.vocabulary, id, bytes, (size_t)length);
        if (good) continue;
        error_set(err, EXIT_DATA, "tokenizer %s: two tokens have the id %d", path, id);
        break;
    }
    free(bytes);
    if (good) vocabulary_index(&t->bpe.vocabulary);
    return good;
}

// Adds the merge of one line of a merges file ("left right") with the given rank. Returns false if the line is not
// valid.
static bool add_merge(Tokenizer *t, const char *line, size_t length, int rank, char *scratch) {
    const char *space = (const char *)memchr(line, ' ', length);
    if (!space) return false;
    const Vocabulary *v = &t->bpe.vocabulary;
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
    merges_add(&t->bpe.merges, merge);
    return true;
}

bool tokenizer_read_merges(Tokenizer *t, const char *path, const char *text, size_t size, Error *err) {
    int lines = 1, number = 0, rank = 0;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    bool ok = lines <= VOCABULARY_MAX;
    if (!ok) error_set(err, EXIT_DATA, "tokenizer %s has more than %d merges, the maximum", path, VOCABULARY_MAX);
    merges_init(&t->bpe.merges, ok ? lines : 0);
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
                      "tokenizer %s: line %d is not a merge of two tokens of %s; use files of the same vocabulary",
                      path, number, t->name);
    }
    free(scratch);
    return ok;
}

// --- reading llm.c's binary tokenizer file -----------------------------------------------------------------

bool tokenizer_read_bin(Tokenizer *t, const char *path, const char *text, size_t size, Error *err) {
    int32_t header[4];
    if (size < BIN_HEADER) return error_set(err, EXIT_DATA, "tokenizer %s is truncated in its header", path);
    memcpy(header, text, sizeof header);
    int version = header[1], count = header[2];
    if (version != 1 && version != 2)
        return error_set(err, EXIT_DATA, "tokenizer %s: version %d is not supported, only 1 and 2 are", path, version);
    if (count < 1 || count > VOCABULARY_MAX)
        return error_set(err, EXIT_DATA, "tokenizer %s is damaged: its header says %d tokens", path, count);
    if ((size_t)count > size - BIN_HEADER) // every token takes at least 1 byte
        return error_set(err, EXIT_DATA,
                         "tokenizer %s is truncated: its header says %d token%s, but %zu byte%s follow%s", path, count,
                         plural(count), size - BIN_HEADER, plural(size - BIN_HEADER), singular(size - BIN_HEADER));
    int end_of_text = version == 2 ? header[3] : count == GPT2_VOCAB ? GPT2_VOCAB - 1 : -1;
    if (version == 2 && (end_of_text < 0 || end_of_text >= count))
        return error_set(err, EXIT_DATA, "tokenizer %s: its end-of-text token %d is not one of its %d token%s", path,
                         end_of_text, count, plural(count));
    vocabulary_init(&t->bpe.vocabulary, count, size);
    t->eos = end_of_text;
    size_t at = BIN_HEADER;
    int single = 0; // number of one-byte tokens among the first 256
    for (int id = 0; id < count; id++) {
        size_t length = at < size ? (unsigned char)text[at] : 0;
        if (at >= size || length > size - at - 1)
            return error_set(err, EXIT_DATA, "tokenizer %s is truncated in token %d of %d", path, id, count);
        vocabulary_set(&t->bpe.vocabulary, id, text + at + 1, length);
        single += id < 256 && length == 1;
        at += 1 + length;
    }
    if (at != size)
        return error_set(
            err, EXIT_DATA,
            "tokenizer %s is damaged: it has %zu byte%s after its last token; copy the file again or regenerate it",
            path, size - at, plural(size - at));
    vocabulary_index(&t->bpe.vocabulary);
    // Token ids serve as ranks of the merges, because GPT-2 numbered its tokens in the order of their merges.
    t->can_merge = t->bpe.merges.by_text = single == 256;
    return true;
}
