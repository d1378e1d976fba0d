// Reads the normalizer and the pre_tokenizer of a tokenizer.json, which process text before BPE.
#include <string.h>

#include "tokenizer_parts.h"

#define MAX_STEPS 8 // maximum number of steps of a normalizer or pre_tokenizer

static const char *string_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

// Sets steps[] to the steps of a normalizer or pre_tokenizer: the steps of a Sequence, or `part` itself.
// Returns the number of steps; -1 if `part` is malformed.
static int steps_of(const json_t *part, const char *list, const json_t *steps[MAX_STEPS]) {
    if (!part || json_is_null(part)) return 0;
    if (strcmp(string_of(part, "type"), "Sequence") != 0) {
        steps[0] = part;
        return json_is_object(part) ? 1 : -1;
    }
    const json_t *array = json_object_get(part, list);
    const size_t count = json_array_size(array);
    if (!json_is_array(array) || count > MAX_STEPS) return -1;
    for (size_t i = 0; i < count; i++) steps[i] = json_array_get(array, i);
    return (int)count;
}

static bool unknown_step(const char *path, const char *part, const json_t *step, Error *err) {
    const char *type = string_of(step, "type");
    return error_set(err, EXIT_DATA,
                     "tokenizer %s: its %s '%.40s', or a setting of it, is not supported; those of GPT-2, OLMo, "
                     "Llama, Mistral and Qwen are",
                     path, part, type[0] ? type : "without a type");
}

static bool read_normalizer(Tokenizer *t, const json_t *step) {
    const char *type = string_of(step, "type");
    if (strcmp(type, "NFC") == 0) return t->nfc = true;
    if (strcmp(type, "Prepend") == 0) return (t->add_space = strcmp(string_of(step, "prepend"), MARK) == 0);
    if (strcmp(type, "Replace") != 0) return false;
    const char *regex = string_of(json_object_get(step, "pattern"), "Regex");
    if (strncmp(regex, ADDED_ALONE, strlen(ADDED_ALONE)) == 0 && !string_of(step, "content")[0])
        return (t->added_alone = t->add_space);
    if (strcmp(string_of(step, "content"), MARK) != 0) return false;
    return (t->marks = strcmp(string_of(json_object_get(step, "pattern"), "String"), " ") == 0);
}

// Reads a Metaspace step, which replaces spaces with markers, prepends a marker if prepend_scheme says so, and begins a
// pretoken at every marker unless `split` is false.
static bool read_metaspace(Tokenizer *t, const json_t *step) {
    const char *scheme = string_of(step, "prepend_scheme");
    if (strcmp(string_of(step, "replacement"), MARK) != 0) return false;
    if (scheme[0] == '\0') scheme = json_is_false(json_object_get(step, "add_prefix_space")) ? "never" : "always";
    t->prefix = strcmp(scheme, "always") == 0  ? PREFIX_MISSING
                : strcmp(scheme, "first") == 0 ? PREFIX_FIRST
                                               : PREFIX_NEVER;
    t->late_marks = !t->marks; // t->marks is already true if the normalizer replaces spaces with markers
    t->marks = true;
    if (!json_is_false(json_object_get(step, "split"))) t->pretokens.kind = PRETOKENS_SPACE;
    return true;
}

static bool read_split(Tokenizer *t, const json_t *step) {
    const char *behavior = string_of(step, "behavior");
    const bool inverted = json_is_true(json_object_get(step, "invert"));
    // The behavior Isolated is the same as Removed with invert, because the rules match all text.
    const bool isolated = strcmp(behavior, "Isolated") == 0 && !inverted;
    const bool kept = strcmp(behavior, "Removed") == 0 && inverted;
    return (isolated || kept) && t->pretokens.kind == PRETOKENS_NONE &&
           pretokens_from_regex(string_of(json_object_get(step, "pattern"), "Regex"), &t->pretokens);
}

static bool read_bytes(Tokenizer *t, const json_t *step, bool *bytes) {
    const bool cuts = !json_is_false(json_object_get(step, "use_regex"));
    const bool first = t->pretokens.kind == PRETOKENS_NONE && !t->pretokens.alone_digits && !t->marks;
    *bytes = true;
    if (json_is_true(json_object_get(step, "add_prefix_space"))) t->prefix = PREFIX_MISSING;
    if (t->prefix == PREFIX_MISSING && !first) return false; // not supported: every pretoken would get a space
    if (cuts && t->pretokens.kind != PRETOKENS_NONE) return false;
    if (cuts) t->pretokens.kind = PRETOKENS_GPT2;
    return true;
}

static bool read_pre_tokenizer(Tokenizer *t, const json_t *step, bool *bytes) {
    const char *type = string_of(step, "type");
    if (*bytes) return false; // no step may follow ByteLevel, which turns the text into bytes
    if (strcmp(type, "ByteLevel") == 0) return read_bytes(t, step, bytes);
    if (strcmp(type, "Split") == 0) return read_split(t, step);
    if (strcmp(type, "Metaspace") == 0)
        return t->pretokens.kind == PRETOKENS_NONE && !t->pretokens.alone_digits && read_metaspace(t, step);
    if (strcmp(type, "Digits") != 0 || !json_is_true(json_object_get(step, "individual_digits"))) return false;
    return (t->pretokens.alone_digits = t->pretokens.kind == PRETOKENS_NONE);
}

bool tokenizer_read_text_rules(Tokenizer *t, const char *path, const json_t *root, Error *err) {
    const json_t *steps[MAX_STEPS], *part = json_object_get(root, "normalizer");
    int count = steps_of(part, "normalizers", steps);
    bool bytes = false;
    for (int i = 0; i < count; i++)
        if (!read_normalizer(t, steps[i])) return unknown_step(path, "normalizer", steps[i], err);
    if (count < 0) return unknown_step(path, "normalizer", part, err);
    part = json_object_get(root, "pre_tokenizer");
    count = steps_of(part, "pretokenizers", steps);
    t->pretokens.kind = PRETOKENS_NONE;
    for (int i = 0; i < count; i++)
        if (!read_pre_tokenizer(t, steps[i], &bytes)) return unknown_step(path, "pre_tokenizer", steps[i], err);
    if (count < 0) return unknown_step(path, "pre_tokenizer", part, err);
    if (bytes == t->marks || (t->add_space && !t->marks))
        return error_set(err, EXIT_DATA,
                         "tokenizer %s: must use either ByteLevel or a space marker (Metaspace or Replace); use a "
                         "tokenizer of GPT-2, OLMo, Llama, Mistral or Qwen",
                         path);
    t->bpe.characters = !bytes;
    return true;
}
