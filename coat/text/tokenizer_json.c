// Reads Hugging Face's tokenizer.json with BPE on bytes, or on characters as in SentencePiece. tokenizer_json_text.c
// reads the normalizer and the pre_tokenizer.
#include <string.h>

#include "tokenizer_parts.h"

static bool refuse(const char *path, const char *what, Error *err) {
    return error_set(err, EXIT_DATA, "tokenizer %s: %s", path, what);
}

// Returns the token id in a JSON value; -1 with err if the value is not a valid id.
static int id_of(const char *path, const char *token, const json_t *value, Error *err) {
    const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id >= 0 && id < VOCABULARY_MAX) return (int)id;
    error_set(err, EXIT_DATA, "tokenizer %s: '%.40s' has no id from 0 to %d", path, token, VOCABULARY_MAX - 1);
    return -1;
}

// --- reading the tokens of tokenizer.json ------------------------------------------------------------------

// Returns the byte that a token with a name like <0x0A> (BYTE_NAME) represents; -1 for other tokens.
static int byte_of_name(const Tokenizer *t, const char *key) {
    char name[8];
    unsigned byte;
    if (!t->bpe.characters || strlen(key) != 6 || sscanf(key, "<0x%2X>", &byte) != 1) return -1;
    snprintf(name, sizeof name, BYTE_NAME, byte);
    return strcmp(name, key) == 0 ? (int)byte : -1;
}

// Converts a token's name in tokenizer.json to the text that the token represents. Returns the length of the text; -1
// if the token represents no text.
static int64_t text_of_key(const Tokenizer *t, const char *key, size_t length, char *out) {
    if (!t->bpe.characters) return bytes_of_characters(key, length, out);
    memcpy(out, key, length);
    return memchr(key, ' ', length) ? -1 : (int64_t)spaces_from_marks(out, length);
}

static bool set_token(Tokenizer *t, const char *path, const char *key, int id, bool fallback, char *scratch,
                      Error *err) {
    Vocabulary *v = &t->bpe.vocabulary;
    const int byte = fallback ? byte_of_name(t, key) : -1;
    int64_t length = byte < 0 ? text_of_key(t, key, strlen(key), scratch) : 1;
    const char *text = length < 0 ? key : scratch;
    if (byte >= 0) {
        scratch[0] = (char)byte;
        t->bpe.byte_id[byte] = id;
    }
    if (!vocabulary_set(v, id, text, length < 0 ? strlen(key) : (size_t)length))
        return error_set(err, EXIT_DATA, "tokenizer %s: two tokens have the id %d", path, id);
    v->hidden[id] = length < 0 || byte >= 0;
    return true;
}

// Sets *count to the largest id + 1 and *bytes to the total length of the tokens. Returns false with err on failure.
static bool measure(const char *path, json_t *tokens, json_t *added, int *count, size_t *bytes, Error *err) {
    const char *key;
    json_t *value;
    size_t i;
    int largest = -1;
    json_object_foreach(tokens, key, value) {
        const int id = id_of(path, key, value, err);
        if (id < 0) return false;
        if (id > largest) largest = id;
        *bytes += strlen(key) + 1;
    }
    json_array_foreach(added, i, value) {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (!content) return refuse(path, "one of its added_tokens has no content", err);
        const int id = id_of(path, content, json_object_get(value, "id"), err);
        if (id < 0) return false;
        if (id > largest) largest = id;
        *bytes += strlen(content) + 1;
    }
    *count = largest + 1;
    return largest >= 0 || refuse(path, "its model has no vocab", err);
}

static bool is_true(const json_t *object, const char *key) {
    return json_is_true(json_object_get(object, key));
}

// Reads the added tokens of tokenizer.json. Adds the tokens that the vocabulary lacks to the vocabulary.
static bool read_added(Tokenizer *t, const char *path, json_t *tokens, json_t *added, Error *err) {
    const size_t count = json_array_size(added);
    AddedToken *list = (AddedToken *)xcalloc(count, sizeof *list);
    Vocabulary *v = &t->bpe.vocabulary;
    json_t *value;
    size_t i;
    bool good = true;
    json_array_foreach(added, i, value) {
        const char *content = json_string_value(json_object_get(value, "content"));
        const int id = (int)json_integer_value(json_object_get(value, "id"));
        const json_t *same = json_object_get(tokens, content);
        AddedToken token = {(char *)content, strlen(content), id, is_true(value, "special"),
                            is_true(value, "normalized")};
        if (!(same && json_integer_value(same) == id)) {
            if (!vocabulary_set(v, id, content, strlen(content))) {
                good = error_set(err, EXIT_DATA, "tokenizer %s: two tokens have the id %d", path, id);
                break;
            }
            v->hidden[id] = true;
        }
        if (!token.special && (is_true(value, "single_word") || is_true(value, "lstrip") || is_true(value, "rstrip"))) {
            good = error_set(err, EXIT_DATA,
                             "tokenizer %s: the added token '%.40s' has lstrip, rstrip or single_word, which is "
                             "only supported for special tokens",
                             path, content);
            break;
        }
        if (token.normalized)
            token.text = tokenizer_normalize(t, content, strlen(content), &token.length);
        else
            token.text = xstrdup(content);
        if (token.normalized && t->added_alone && token.length > 0) // removes the prepended space
            memmove(token.text, token.text + 1, --token.length);
        list[i] = token;
    }
    if (good) added_tokens_set(&t->added, list, (int)count);
    for (i = 0; i < count; i++) free(list[i].text);
    free(list);
    return good;
}

// --- reading the merges of tokenizer.json ------------------------------------------------------------------

// Sets parts[] to the two parts of a merge, which is "left right" or [left, right]. Returns false for other JSON
// values.
static bool parts_of_merge(const json_t *merge, const char *parts[2], size_t lengths[2]) {
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            parts[i] = json_string_value(json_array_get(merge, i));
            if (!parts[i]) return false;
            lengths[i] = strlen(parts[i]);
        }
        return true;
    }
    parts[0] = json_string_value(merge);
    const char *blank = parts[0] ? strchr(parts[0], ' ') : NULL;
    if (!blank) return false;
    parts[1] = blank + 1;
    lengths[0] = (size_t)(blank - parts[0]);
    lengths[1] = strlen(parts[1]);
    return true;
}

static bool add_merge(Tokenizer *t, const json_t *value, int rank, char *scratch, size_t room) {
    const char *parts[2];
    size_t lengths[2], used = 0;
    int32_t ids[2];
    if (!parts_of_merge(value, parts, lengths) || lengths[0] + lengths[1] > room) return false;
    for (int i = 0; i < 2; i++) {
        const int64_t length = text_of_key(t, parts[i], lengths[i], scratch + used);
        if (length <= 0) return false;
        ids[i] = vocabulary_find(&t->bpe.vocabulary, scratch + used, (size_t)length);
        used += (size_t)length;
    }
    const Merge merge = {ids[0], ids[1], vocabulary_find(&t->bpe.vocabulary, scratch, used), rank};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) return false;
    merges_add(&t->bpe.merges, merge);
    return true;
}

static bool read_merges(Tokenizer *t, const char *path, json_t *merges, char *scratch, size_t room, Error *err) {
    const size_t count = json_array_size(merges);
    json_t *value;
    size_t i;
    if (!json_is_array(merges)) return refuse(path, "its model has no merges", err);
    if (count > VOCABULARY_MAX)
        return error_set(err, EXIT_DATA, "tokenizer %s has more than %d merges, the maximum", path, VOCABULARY_MAX);
    merges_init(&t->bpe.merges, (int)count);
    json_array_foreach(merges, i, value) {
        if (!add_merge(t, value, (int)i, scratch, room))
            return error_set(
                err, EXIT_DATA,
                "tokenizer %s: merge %zu uses a token that is not in the vocabulary; download the file again", path,
                i + 1);
    }
    t->can_merge = true;
    return true;
}

// --- reading tokenizer.json and tokenizer_config.json ------------------------------------------------------

static bool check_model(const char *path, const json_t *model, Error *err) {
    const json_t *type = json_object_get(model, "type");
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return error_set(err, EXIT_DATA, "tokenizer %s: its model %.40s is not supported, only BPE is", path,
                         json_is_string(type) ? json_string_value(type) : "without a type");
    for (int i = 0; i < 2; i++) {
        const char *affix = json_string_value(json_object_get(model, affixes[i]));
        if (affix && affix[0])
            return error_set(err, EXIT_DATA, "tokenizer %s: its model has a %s, which is not supported", path,
                             affixes[i]);
    }
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return refuse(path, "its model has a dropout, which makes encoding random; set it to null", err);
    return true;
}

// Sets BOS to the special token that the post_processor's template begins with, if any.
static void read_template(Tokenizer *t, const json_t *processor) {
    const char *type = json_string_value(json_object_get(processor, "type"));
    json_t *value;
    size_t i;
    if (type && strcmp(type, "Sequence") == 0) {
        json_array_foreach(json_object_get(processor, "processors"), i, value) {
            const char *inner = json_string_value(json_object_get(value, "type"));
            if (inner && strcmp(inner, "Sequence") != 0) read_template(t, value);
        }
    } else if (type && strcmp(type, "TemplateProcessing") == 0) {
        const json_t *first = json_array_get(json_object_get(processor, "single"), 0);
        const char *name = json_string_value(json_object_get(json_object_get(first, "SpecialToken"), "id"));
        if (name) t->bos = tokenizer_token(t, name);
    }
}

// Sets EOS to the special token that has one of the names in `ends`. If there are several, the earliest name in `ends`
// decides. A token `</s>` that is not special is ordinary text.
static void find_end(Tokenizer *t, json_t *added) {
    static const char *const ends[] = {END_OF_TEXT_NAME, "<|end_of_text|>", "</s>", "<eos>"};
    json_t *value;
    size_t k;
    for (size_t i = 0; t->eos < 0 && i < sizeof ends / sizeof *ends; i++) {
        json_array_foreach(added, k, value) {
            if (is_true(value, "special") && strcmp(json_string_value(json_object_get(value, "content")), ends[i]) == 0)
                t->eos = (int)json_integer_value(json_object_get(value, "id"));
        }
    }
}

bool tokenizer_read_json(Tokenizer *t, const char *path, json_t *root, Error *err) {
    json_t *model = json_object_get(root, "model"), *tokens = json_object_get(model, "vocab");
    json_t *added = json_object_get(root, "added_tokens");
    int count = 0;
    size_t bytes = 0;
    if (!check_model(path, model, err) || !tokenizer_read_text_rules(t, path, root, err)) return false;
    if (!json_is_object(tokens)) return refuse(path, "its model has no vocab", err);
    if (!measure(path, tokens, added, &count, &bytes, err)) return false;
    vocabulary_init(&t->bpe.vocabulary, count, bytes);
    char *scratch = (char *)xmalloc(bytes);
    const char *key, *unknown = json_string_value(json_object_get(model, "unk_token"));
    json_t *value;
    const bool fallback = is_true(model, "byte_fallback");
    bool good = true;
    json_object_foreach(tokens, key, value) {
        if (good) good = set_token(t, path, key, (int)json_integer_value(value), fallback, scratch, err);
    }
    good = good && read_added(t, path, tokens, added, err);
    if (good) vocabulary_index(&t->bpe.vocabulary);
    good = good && read_merges(t, path, json_object_get(model, "merges"), scratch, bytes, err);
    free(scratch);
    if (!good) return false;
    t->bpe.whole_first = is_true(model, "ignore_merges");
    t->bpe.fuse_unknown = is_true(model, "fuse_unk");
    if (unknown) t->bpe.unknown = tokenizer_token(t, unknown);
    read_template(t, json_object_get(root, "post_processor"));
    find_end(t, added);
    return true;
}

// Returns the id of a token that tokenizer_config.json specifies as a name or as an object with a name; -1 if there is
// no such token.
static int config_token(const Tokenizer *t, const json_t *config, const char *key) {
    const json_t *value = json_object_get(config, key);
    const char *name = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    return name ? tokenizer_token(t, name) : -1;
}

void tokenizer_read_config(Tokenizer *t, const json_t *config) {
    const json_t *add = json_object_get(config, "add_bos_token");
    if (json_is_false(add)) t->bos = -1;
    if (json_is_true(add) && config_token(t, config, "bos_token") >= 0) t->bos = config_token(t, config, "bos_token");
    if (t->eos < 0) t->eos = config_token(t, config, "eos_token");
}
