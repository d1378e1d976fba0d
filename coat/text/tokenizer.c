#include "tokenizer.h"

#include <string.h>
#include <unistd.h>

#include "io/files.h"
#include "tokenizer_parts.h"

#define FILE_BYTES_MAX (64 << 20) // maximum size of a tokenizer file in bytes, so that no file can exhaust memory
#define HEAD_BYTES 4096           // number of bytes that are read to find out a file's kind
#define BIN_MAGIC 20240328        // magic number in the first word of llm.c's tokenizer file

// --- finding and reading tokenizer files -------------------------------------------------------------------

// Reads a tokenizer file into memory that the caller frees; NULL with err on failure.
static char *read_vocabulary(const char *path, size_t *size, Error *err) {
    char *text;
    if (!file_read_all(path, FILE_BYTES_MAX, &text, size, err)) return NULL;
    if (*size > 0) return text;
    error_set(err, EXIT_DATA, "tokenizer %s: the file is empty", path);
    free(text);
    return NULL;
}

// Writes the path of the file `name` to found[size], and returns true if the file exists. Looks in the folder of `path`
// or, if `inside` is true, in the folder `path` itself.
static bool find_beside(const char *path, bool inside, const char *name, char *found, size_t size) {
    const char *slash = strrchr(path, '/');
    int folder = inside ? (int)strlen(path) : slash ? (int)(slash - path) + 1 : 0;
    int length = snprintf(found, size, "%.*s%s%s", folder, path, inside ? "/" : "", name);
    return length > 0 && (size_t)length < size && path_is_file(found);
}

typedef enum { FILE_JSON, FILE_BIN, FILE_MODEL, FILE_TIKTOKEN } FileKind;

static FileKind kind_of(const char *text, size_t size) {
    int32_t magic = 0;
    if (size >= sizeof magic) memcpy(&magic, text, sizeof magic);
    if (magic == BIN_MAGIC) return FILE_BIN;
    size_t at = 0;
    while (at < size && strchr(" \t\r\n", text[at]) && text[at]) at++;
    if (at < size && text[at] == '{') return FILE_JSON;
    if (text[0] == '\n') return FILE_MODEL; // a protobuf message begins with byte 10 if field 1, a string, comes first
    // Each line of a tiktoken file is a token in base64, a space, and the rank of the token.
    size_t digits = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=");
    return digits >= 4 && digits % 4 == 0 && text[digits] == ' ' && strchr("0123456789", text[digits + 1]) &&
                   text[digits + 1]
               ? FILE_TIKTOKEN
               : FILE_JSON;
}

// Reads a file's first bytes to `head` and appends a 0. Returns the number of bytes; 0 if the file cannot be read.
static size_t read_head(const char *path, char head[HEAD_BYTES + 1]) {
    int fd;
    uint64_t size;
    Error ignored;
    head[0] = 0;
    if (!file_open(path, &fd, &size, &ignored)) return 0;
    const size_t bytes = size < HEAD_BYTES ? (size_t)size : HEAD_BYTES;
    const bool good = file_read_at(fd, path, 0, head, bytes, &ignored);
    close(fd);
    head[good ? bytes : 0] = 0;
    return good ? bytes : 0;
}

const char *tokenizer_usual_name(const char *path) {
    char head[HEAD_BYTES + 1];
    if (text_ends_with(path, ".bin")) return "gpt2_tokenizer.bin";
    const size_t bytes = read_head(path, head);
    switch (bytes > 0 ? kind_of(head, bytes) : FILE_JSON) {
    case FILE_BIN: return "gpt2_tokenizer.bin";
    case FILE_MODEL: return "tokenizer.model";
    default: break;
    }
    return strstr(head, "\"added_tokens\"") || strstr(head, "\"truncation\"") ? "tokenizer.json" : "vocab.json";
}

// Parses the file `name` in the folder of `path` into *root. Sets *root to NULL if the file does not exist or is not
// JSON. Returns false with err if the file cannot be read. Integers are read as reals, because transformers writes a
// model_max_length that exceeds 64 bits.
static bool read_beside(const char *path, const char *name, json_t **root, Error *err) {
    char found[TOKENIZER_PATH_BYTES], *text;
    size_t size;
    *root = NULL;
    if (!find_beside(path, false, name, found, sizeof found)) return true;
    if (!file_read_all(found, FILE_BYTES_MAX, &text, &size, err)) return false;
    *root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
    free(text);
    return true;
}

// --- opening and closing a tokenizer -----------------------------------------------------------------------

static Tokenizer *tokenizer_new(const char *name) {
    Tokenizer *t = (Tokenizer *)xcalloc(1, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    bpe_init(&t->bpe);
    t->eos = t->bos = -1;
    t->pretokens.kind = PRETOKENS_GPT2;
    return t;
}

Tokenizer *tokenizer_bytes(void) {
    Tokenizer *t = tokenizer_new("bytes");
    Vocabulary *v = &t->bpe.vocabulary;
    vocabulary_init(v, BYTES_VOCAB, 256 + strlen(END_OF_TEXT_NAME));
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        vocabulary_set(v, i, &byte, 1);
    }
    vocabulary_set(v, BYTES_END_OF_TEXT, END_OF_TEXT_NAME, strlen(END_OF_TEXT_NAME));
    vocabulary_index(v);
    t->bytes = true;
    t->eos = BYTES_END_OF_TEXT;
    return t;
}

// Fails if a vocabulary file and its merges file do not belong to GPT-2. Such files do not contain a pre-tokenization
// rule, so GPT-2's rule is used.
static bool check_gpt2(const Tokenizer *t, const char *path, const json_t *config, Error *err) {
    static const char advice[] =
        "so GPT-2's pre-tokenization rule may be wrong for it; use --tokenizer with its tokenizer.json, which contains "
        "the rule";
    const char *class_name = json_string_value(json_object_get(config, "tokenizer_class"));
    if (class_name && strcmp(class_name, "GPT2Tokenizer") != 0 && strcmp(class_name, "GPT2TokenizerFast") != 0)
        return error_set(err, EXIT_DATA, "tokenizer %s: tokenizer_config.json says %.60s, %s", path, class_name,
                         advice);
    return t->eos == tokenizer_vocab(t) - 1 ||
           error_set(err, EXIT_DATA, "tokenizer %s: its last token is not " END_OF_TEXT_NAME ", %s", path, advice);
}

// Loads GPT-2's vocabulary and merges files. `root` is the parsed vocabulary file.
static bool load_pair(Tokenizer *t, const char *path, json_t *root, Error *err) {
    char merges[TOKENIZER_PATH_BYTES], *text;
    size_t size;
    if (!tokenizer_read_pair(t, path, root, err)) return false;
    t->eos = tokenizer_token(t, END_OF_TEXT_NAME);
    t->can_merge = find_beside(path, false, "vocab.bpe", merges, sizeof merges) ||
                   find_beside(path, false, "merges.txt", merges, sizeof merges);
    if (!t->can_merge) return true;
    if (!(text = read_vocabulary(merges, &size, err))) return false;
    const bool good = tokenizer_read_merges(t, merges, text, size, err);
    free(text);
    return good;
}

static bool load_json(Tokenizer *t, const char *path, const char *text, size_t size, const json_t *config, Error *err) {
    json_error_t fault;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &fault);
    if (!root)
        return error_set(err, EXIT_DATA,
                         "tokenizer %s: neither JSON (line %d: %.100s) nor llm.c's binary file nor SentencePiece's; "
                         "use tokenizer.json, tokenizer.model, encoder.json, vocab.json or their folder",
                         path, fault.line, fault.text);
    bool good;
    if (json_is_object(json_object_get(root, "model")))
        good = tokenizer_read_json(t, path, root, err);
    else
        good = load_pair(t, path, root, err) && check_gpt2(t, path, config, err);
    json_decref(root);
    return good;
}

static bool load(Tokenizer *t, const char *path, Error *err) {
    size_t size;
    bool good = false;
    json_t *config;
    if (!read_beside(path, "tokenizer_config.json", &config, err)) return false;
    char *text = read_vocabulary(path, &size, err);
    if (!text) {
        json_decref(config);
        return false;
    }
    switch (kind_of(text, size)) {
    case FILE_BIN: good = tokenizer_read_bin(t, path, text, size, err); break;
    case FILE_MODEL: good = tokenizer_read_model(t, path, text, size, err); break;
    case FILE_JSON: good = load_json(t, path, text, size, config, err); break;
    case FILE_TIKTOKEN:
        error_set(err, EXIT_DATA,
                  "tokenizer %s: a tiktoken file has neither the pre-tokenization pattern nor the special tokens; use "
                  "--tokenizer with the model's tokenizer.json",
                  path);
        break;
    }
    free(text);
    if (good) tokenizer_read_config(t, config);
    json_decref(config);
    return good;
}

// Writes the path of the first known tokenizer file in the folder to `found`. Returns false if there is none.
static bool find_in(const char *folder, char found[TOKENIZER_PATH_BYTES]) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "encoder.json", "vocab.json",
                                        "gpt2_tokenizer.bin"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (find_beside(folder, true, names[i], found, TOKENIZER_PATH_BYTES)) return true;
    return false;
}

bool tokenizer_is_in(const char *path) {
    char found[TOKENIZER_PATH_BYTES];
    return path_is_folder(path) && find_in(path, found);
}

// True if tokenizer_write_json() made the tokenizer.json at `path` from the tokenizer.model in the same folder. Writes
// the path of tokenizer.model to `found`.
static bool is_made(const char *path, char found[TOKENIZER_PATH_BYTES]) {
    char head[HEAD_BYTES + 1];
    return read_head(path, head) > 0 && strstr(head, "\"" MADE_KEY "\":\"" MADE_OF "\"") &&
           find_beside(path, false, MADE_OF, found, TOKENIZER_PATH_BYTES);
}

Tokenizer *tokenizer_open(const char *path, Error *err) {
    char inside[TOKENIZER_PATH_BYTES], model[TOKENIZER_PATH_BYTES];
    if (path_is_folder(path)) {
        if (!find_in(path, inside)) {
            error_set(err, EXIT_DATA,
                      "tokenizer %s: the folder contains no tokenizer.json, tokenizer.model, encoder.json, vocab.json "
                      "or gpt2_tokenizer.bin",
                      path);
            return NULL;
        }
        path = is_made(inside, model) ? model : inside;
    }
    Tokenizer *t = tokenizer_new(path);
    if (load(t, path, err)) return t;
    tokenizer_close(t);
    return NULL;
}

void tokenizer_close(Tokenizer *t) {
    if (!t) return;
    bpe_free(&t->bpe);
    added_tokens_free(&t->added);
    free(t);
}

int tokenizer_vocab(const Tokenizer *t) {
    return t->bpe.vocabulary.count;
}

int tokenizer_eos(const Tokenizer *t) {
    return t->eos;
}

int tokenizer_bos(const Tokenizer *t) {
    return t->bos;
}

int tokenizer_unknown(const Tokenizer *t) {
    return t->bpe.unknown;
}

bool tokenizer_is_byte(const Tokenizer *t, int id) {
    const Vocabulary *v = &t->bpe.vocabulary;
    return v->length[id] == 1 && t->bpe.byte_id[(unsigned char)v->text[v->offset[id]]] == id;
}

bool tokenizer_is_special(const Tokenizer *t, int id) {
    for (int i = 0; i < t->added.count; i++)
        if (t->added.tokens[i].id == id) return t->added.tokens[i].special;
    return t->bpe.vocabulary.hidden[id] && !tokenizer_is_byte(t, id);
}

int tokenizer_differing(const Tokenizer *own, const Tokenizer *other) {
    const Vocabulary *x = &own->bpe.vocabulary, *y = &other->bpe.vocabulary;
    int differing = 0;
    for (int id = 0; id < x->count && id < y->count; id++) {
        const int32_t length = x->length[id];
        if (length < 0 || y->length[id] < 0) continue;
        const bool same =
            length == y->length[id] && !memcmp(x->text + x->offset[id], y->text + y->offset[id], (size_t)length);
        differing += !same && !tokenizer_is_special(own, id);
    }
    return differing;
}

bool tokenizer_same_merges(const Tokenizer *a, const Tokenizer *b) {
    return merges_equal(&a->bpe.merges, &b->bpe.merges);
}

int tokenizer_token(const Tokenizer *t, const char *name) {
    const Vocabulary *v = &t->bpe.vocabulary;
    const size_t length = strlen(name);
    for (int id = 0; id < v->count; id++)
        if (v->length[id] >= 0 && (size_t)v->length[id] == length && !memcmp(v->text + v->offset[id], name, length))
            return id;
    return -1;
}

bool tokenizer_adds_space(const Tokenizer *t) {
    return t->add_space || (t->marks && t->prefix != PREFIX_NEVER);
}

bool tokenizer_has_prefix_space(const Tokenizer *t) {
    return !t->marks && t->prefix != PREFIX_NEVER;
}

size_t tokenizer_decode(const Tokenizer *t, int32_t id, char *out, size_t size) {
    const Vocabulary *v = &t->bpe.vocabulary;
    if (id < 0 || id >= v->count || v->length[id] <= 0) return 0;
    size_t length = (size_t)v->length[id];
    memcpy(out, v->text + v->offset[id], length < size ? length : size);
    return length;
}
