#include "tokenizer_files.h"

#include <string.h>

#include "config/vision.h"
#include "io/files.h"
#include "log/terminal.h"
#include "manifest.h"
#include "text/prompt_format.h"

#define TOKENIZER_LIMIT ((size_t)256 << 20)
#define CONFIG_NAME "tokenizer_config.json"
#define TEMPLATE_NAME "chat_template.jinja"
#define JSON_NAME "tokenizer.json"
#define JSON_CLASS "PreTrainedTokenizerFast"

// Copies the file `source` to folder/as. If `source` cannot be read, prints a warning and succeeds, because the user
// can copy a vocabulary later, but not the weights.
static bool copy_file(const char *folder, const char *as, const char *source, JsonText *manifest, Error *err) {
    char *data;
    size_t size;
    if (!file_read_all(source, TOKENIZER_LIMIT, &data, &size, err)) {
        print_remark("warning: ", "%s; the checkpoint is saved without it", err->text);
        return true;
    }
    bool good = manifest_write(manifest, folder, as, data, size, err);
    free(data);
    return good;
}

// Writes a JSON field with a token's text, or null if the token does not exist.
static void token_field(JsonText *text, const char *key, const Tokenizer *t, int id) {
    char name[256];
    const size_t length = id < 0 ? 0 : tokenizer_decode(t, id, name, sizeof name - 1);
    if (length == 0 || length >= sizeof name) {
        json_text_null(text, key);
        return;
    }
    name[length] = 0;
    json_text_string(text, key, name);
}

// Writes the text of tokenizer_config.json, which names the special tokens and the class of transformers that reads the
// tokenizer's files. Without tokenizer_config.json, AutoTokenizer would use the class of the model's architecture,
// which may tokenize differently.
static void config_text(JsonText *text, const char *class_name, const Tokenizer *t) {
    const int begin = tokenizer_bos(t), end = tokenizer_eos(t);
    json_text_begin(text, true);
    json_text_string(text, "tokenizer_class", class_name);
    token_field(text, "bos_token", t, begin);
    token_field(text, "eos_token", t, end);
    // GPT-2 uses its EOS token as unk_token
    if (strcmp(class_name, "GPT2Tokenizer") == 0) token_field(text, "unk_token", t, end);
    if (tokenizer_is_sentencepiece(t)) {
        token_field(text, "unk_token", t, tokenizer_unknown(t));
        // add_bos_token, add_eos_token and add_prefix_space are written because llama.cpp has other defaults.
        json_text_bool(text, "add_bos_token", begin >= 0);
        json_text_bool(text, "add_eos_token", false);
        json_text_bool(text, "add_prefix_space", tokenizer_adds_space(t));
    } else if (tokenizer_has_prefix_space(t)) {
        json_text_bool(text, "add_prefix_space", true); // the default, false, would override tokenizer.json
    }
    json_text_bool(text, "clean_up_tokenization_spaces", false);
    // without model_input_names, the tokenizer also returns token_type_ids, which transformers' generate() rejects
    json_text_open(text, "model_input_names", '[');
    json_text_string(text, NULL, "input_ids");
    json_text_string(text, NULL, "attention_mask");
    json_text_close(text, ']');
    json_text_close(text, '}');
}

// Writes tokenizer_config.json for the tokenizer's files in `folder`, unless transformers has no class for them.
static bool add_config(const char *folder, const Tokenizer *t, JsonText *manifest, Error *err) {
    const char *class_name = JSON_CLASS;
    JsonText text;
    if (!folder_has_file(folder, JSON_NAME)) {
        if (!folder_has_file(folder, "vocab.json") || !folder_has_file(folder, "merges.txt")) return true;
        class_name = "GPT2Tokenizer";
    }
    config_text(&text, class_name, t);
    return manifest_write_text(manifest, folder, CONFIG_NAME, &text, err);
}

// Copies the tokenizer_config.json `path`, with tokenizer_class set to PreTrainedTokenizerFast. Other classes might
// change the tokenizer that tokenizer.json describes.
static bool copy_config(const char *folder, const char *path, JsonText *manifest, Error *err) {
    static const char key[] = "\"tokenizer_class\"";
    char *text, *out = NULL;
    size_t size;
    if (!file_read_all(path, TOKENIZER_LIMIT, &text, &size, err))
        return copy_file(folder, CONFIG_NAME, path, manifest, err);
    const char *at = strstr(text, key), *rest = at ? at + strlen(key) : strchr(text, '{');
    if (rest) {
        rest += at ? strcspn(rest, ",}") : 1; // skips the old value
        const char *comma = at || rest[strspn(rest, " \t\r\n")] == '}' ? "" : ",";
        const int before = (int)((at ? at : rest) - text);
        if (asprintf(&out, "%.*s%s: \"%s\"%s%s", before, text, key, JSON_CLASS, comma, rest) < 0)
            fatal(EXIT_DEVICE, "host memory: could not allocate a copy of %s", path);
    }
    const bool good = manifest_write(manifest, folder, CONFIG_NAME, out ? out : text, out ? strlen(out) : size, err);
    free(out);
    free(text);
    return good;
}

// True if SentencePiece's tokenizer.model is in `folder` and tokenizer.json is not.
static bool lacks_json(const char *folder, const Tokenizer *t) {
    return t && tokenizer_is_sentencepiece(t) && folder_has_file(folder, "tokenizer.model") &&
           !folder_has_file(folder, JSON_NAME);
}

// Writes the text of a tokenizer.json to `folder`. Adds the special token <image> with the id `image_token`, unless the
// text has an added token of that id. `path` names the text in messages.
static bool write_json(const char *folder, const char *path, const char *text, size_t size, int image_token,
                       JsonText *manifest, Error *err) {
    json_t *root = json_parse_object(text, size, path, err), *item;
    if (!root) return false;
    if (!json_is_array(json_object_get(root, "added_tokens"))) json_object_set_new(root, "added_tokens", json_array());
    json_t *added = json_object_get(root, "added_tokens");
    bool found = false;
    size_t i;
    json_array_foreach(added, i, item) found |= json_integer_value(json_object_get(item, "id")) == image_token;
    JsonText out;
    memset(&out, 0, sizeof out);
    if (!found)
        json_array_append_new(added,
                              json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", image_token, "content", IMAGE_MARK,
                                        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    json_text_value(&out, NULL, root);
    json_decref(root);
    return manifest_write_text(manifest, folder, JSON_NAME, &out, err);
}

// Copies the file `path` to folder/as. If the file is a tokenizer.json and image_token is not -1, adds the image token.
static bool copy_vocabulary(const char *folder, const char *as, const char *path, int image_token, JsonText *manifest,
                            Error *err) {
    char *text;
    size_t size;
    if (image_token < 0 || strcmp(as, JSON_NAME) != 0 || !file_read_all(path, TOKENIZER_LIMIT, &text, &size, err))
        return copy_file(folder, as, path, manifest, err);
    const bool good = write_json(folder, path, text, size, image_token, manifest, err);
    free(text);
    return good;
}

// Writes the tokenizer.json of a SentencePiece tokenizer. It is needed because transformers' own conversion of
// tokenizer.model encodes runs of spaces and leading spaces differently from SentencePiece, depending on the version.
static bool add_json(const char *folder, const Tokenizer *t, int image_token, JsonText *manifest, Error *err) {
    JsonText text;
    tokenizer_write_json(t, &text);
    if (image_token < 0) return manifest_write_text(manifest, folder, JSON_NAME, &text, err);
    const bool good = write_json(folder, JSON_NAME, text.text, text.size, image_token, manifest, err);
    json_text_free(&text);
    return good;
}

// True if `folder` has a chat template, in its own file or, as older versions of transformers write it, in
// tokenizer_config.json.
static bool has_template(const char *folder) {
    char path[PATH_BUFFER];
    Error ignored;
    if (folder_has_file(folder, TEMPLATE_NAME)) return true;
    json_t *config = path_join(path, sizeof path, folder, CONFIG_NAME, &ignored)
                         ? json_load_file(path, JSON_DECODE_INT_AS_REAL, NULL) // model_max_length may exceed 64 bits
                         : NULL;
    const json_t *template_text = json_object_get(config, "chat_template");
    const bool has = template_text && !json_is_null(template_text);
    json_decref(config);
    return has;
}

// True if the template file `path` is one that add_template() writes for a format other than `format`. False if
// `format` is PROMPT_FORMAT_DATA, because any template may then be right.
static bool is_stale(const char *path, const Tokenizer *t, PromptFormat format) {
    char *own;
    size_t size;
    Error ignored;
    bool stale = false;
    if (!t || format == PROMPT_FORMAT_DATA || !file_read_all(path, TOKENIZER_LIMIT, &own, &size, &ignored))
        return false;
    for (int other = PROMPT_FORMAT_NONE + 1; other < PROMPT_FORMAT_DATA && !stale; other++) {
        char *text = prompt_template(t, (PromptFormat)other);
        stale = other != (int)format && strlen(text) == size && memcmp(text, own, size) == 0;
        free(text);
    }
    free(own);
    return stale;
}

static bool add_template(const char *folder, const Tokenizer *t, PromptFormat format, JsonText *manifest, Error *err) {
    char *text = prompt_template(t, format);
    const bool good = manifest_write(manifest, folder, TEMPLATE_NAME, text, strlen(text), err);
    free(text);
    return good;
}

bool tokenizer_files_copy(const char *folder, const char *source, const Tokenizer *tokenizer, PromptFormat format,
                          int image_token, JsonText *manifest, Error *err) {
    static const struct {
        const char *name, *as;
    } parts[] = {{"vocab.json", "vocab.json"},
                 {"encoder.json", "vocab.json"},
                 {"merges.txt", "merges.txt"},
                 {"vocab.bpe", "merges.txt"},
                 {JSON_NAME, JSON_NAME},
                 {"gpt2_tokenizer.bin", "gpt2_tokenizer.bin"},
                 {"tokenizer.model", "tokenizer.model"},
                 {CONFIG_NAME, CONFIG_NAME},
                 {TEMPLATE_NAME, TEMPLATE_NAME},
                 {"special_tokens_map.json", "special_tokens_map.json"},
                 {"added_tokens.json", "added_tokens.json"}};
    char from[PATH_BUFFER], path[PATH_BUFFER];
    const int added = tokenizer && image_token == tokenizer_vocab(tokenizer) ? image_token : -1;
    const char *as = path_is_folder(source) ? NULL : tokenizer_usual_name(source);
    if (as && strcmp(as, "gpt2_tokenizer.bin") == 0) return copy_file(folder, as, source, manifest, err);
    if (!as)
        snprintf(from, sizeof from, "%s", source);
    else if (!copy_vocabulary(folder, as, source, added, manifest, err) || !path_folder(from, sizeof from, source, err))
        return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!path_join(path, sizeof path, from, parts[i].name, err)) return false;
        if (!path_is_file(path) || folder_has_file(folder, parts[i].as)) continue;
        if (strcmp(parts[i].name, TEMPLATE_NAME) == 0 && is_stale(path, tokenizer, format)) continue;
        const bool names_class = strcmp(parts[i].name, CONFIG_NAME) == 0 && lacks_json(folder, tokenizer);
        if (!(names_class ? copy_config(folder, path, manifest, err)
                          : copy_vocabulary(folder, parts[i].as, path, added, manifest, err)))
            return false;
    }
    if (!tokenizer) return true;
    return (!lacks_json(folder, tokenizer) || add_json(folder, tokenizer, added, manifest, err)) &&
           (folder_has_file(folder, CONFIG_NAME) || add_config(folder, tokenizer, manifest, err)) &&
           (!prompt_format_named(format) || has_template(folder) ||
            add_template(folder, tokenizer, format, manifest, err));
}
