#include "prompt_format.h"

#include <string.h>

#include "config/vision.h"
#include "unicode.h"

#define NAME_BYTES 256 // maximum length of a special token's name in bytes
#define BEGIN "\1"     // marks the position of BOS in a chat template, if the vocabulary has one
#define END "\2"       // marks the position of EOS in a chat template, if the vocabulary has one

// clang-format off
static const struct {
    const char *name;
    const char *before, *after; // text before and after the user's prompt, with special tokens as <|NAME|>
    bool trims; // true: white space at both ends of the prompt is removed
    const char *end; // special token that ends an answer; NULL: the EOS token
    const char *chat; // chat template in Jinja, on one line
} formats[PROMPT_FORMAT_DATA] = {
#define CHATML_CHAT \
    "{% for message in messages %}" \
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}" \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define QWEN_SYSTEM "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    [PROMPT_FORMAT_NONE] = {"none", "", "", false, NULL, ""},
    [PROMPT_FORMAT_PLAIN] = {"plain", "", "", false, NULL,
        BEGIN "{% for message in messages %}{{ message['content'] }}"
        "{% if message['role'] == 'assistant' %}" END "{% endif %}{% endfor %}"},
    [PROMPT_FORMAT_ALPACA] = {"alpaca",
#define ALPACA \
    "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        ALPACA "\n\n### Instruction:\n", "\n\n### Response:\n", false, NULL,
        BEGIN "{{ messages[0]['content'] if messages[0]['role'] == 'system' else '" ALPACA "' }}{{ '\\n\\n' }}"
        "{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '### Instruction:\\n' + message['content'] + '\\n\\n### Response:\\n' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] }}" END "{% endif %}{% endfor %}"},
    [PROMPT_FORMAT_CHATML] = {"chatml",
        "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", false, "<|im_end|>",
        BEGIN CHATML_CHAT},
    [PROMPT_FORMAT_QWEN] = {"qwen",
        "<|im_start|>system\n" QWEN_SYSTEM "<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n", false, "<|im_end|>",
        BEGIN "{% if messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\\n" QWEN_SYSTEM "<|im_end|>\\n' }}{% endif %}" CHATML_CHAT},
    [PROMPT_FORMAT_LLAMA2] = {"llama2", "[INST] ", " [/INST]", true, NULL,
        "{% for message in messages %}{% if message['role'] == 'user' %}" BEGIN "[INST] "
        "{% if loop.index0 == 1 and messages[0]['role'] == 'system' %}"
        "{{ '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' }}{% endif %}"
        "{{ message['content'] | trim }} [/INST]"
        "{% elif message['role'] == 'assistant' %} {{ message['content'] | trim }} " END "{% endif %}{% endfor %}"},
    [PROMPT_FORMAT_LLAMA3] = {"llama3",
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", true, "<|eot_id|>",
        BEGIN "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
        "message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
};
// clang-format on

const char *prompt_format_name(PromptFormat format) {
    return formats[format].name;
}

// State while a prompt is encoded. `text` is the text since the most recent special token. The text is encoded at the
// next special token or at the end of the prompt, because no token of the text may extend across a special token.
typedef struct {
    const Tokenizer *tokenizer;
    PromptFormat format;
    char *text;
    size_t length;
    int32_t *ids;
    int count, max;
    Error *err;
} Prompt;

static void add_text(Prompt *p, const char *text, size_t length) {
    memcpy(p->text + p->length, text, length);
    p->length += length;
}

static bool too_long(const Prompt *p) {
    return error_set(p->err, EXIT_USER, "--prompt has more than %d tokens; shorten it", p->max);
}

static bool encode_text(Prompt *p) {
    p->text[p->length] = '\0';
    p->length = 0;
    const int count = tokenizer_encode(p->tokenizer, p->text, p->ids + p->count, p->max - p->count, p->err);
    if (count < 0) return p->err->code == EXIT_USER && too_long(p);
    p->count += count;
    return true;
}

// Encodes the text so far, then adds `count` tokens `id`.
static bool add_tokens(Prompt *p, int id, int count) {
    if (!encode_text(p)) return false;
    if (count > p->max - p->count) return too_long(p);
    for (int i = 0; i < count; i++) p->ids[p->count++] = id;
    return true;
}

static bool find_token(const Tokenizer *t, PromptFormat format, const char *name, int *id, Error *err) {
    *id = tokenizer_token(t, name);
    return *id >= 0 ||
           error_set(err, EXIT_USER,
                     "--prompt-format %s: the tokenizer has no %s; use the format of its model, or alpaca or plain",
                     formats[format].name, name);
}

// Adds text of the prompt format. In the text, <|NAME|> stands for the special token of this name.
static bool add_format(Prompt *p, const char *text) {
    for (const char *token; (token = strstr(text, "<|")); text = strstr(token, "|>") + 2) {
        char name[NAME_BYTES];
        int id;
        snprintf(name, sizeof name, "%.*s", (int)(strstr(token, "|>") + 2 - token), token);
        add_text(p, text, (size_t)(token - text));
        if (!find_token(p->tokenizer, p->format, name, &id, p->err) || !add_tokens(p, id, 1)) return false;
    }
    add_text(p, text, strlen(text));
    return true;
}

// Adds the user's text. Replaces <image>, or puts the image's tokens before the text, as prompt_encode() describes.
static bool add_user_text(Prompt *p, const char *text, size_t length, const PromptImage *image) {
    const char *const end = text + length, *mark = image ? strstr(text, IMAGE_MARK) : NULL;
    if (image && !mark) {
        if (!add_tokens(p, image->token, image->rows)) return false;
        add_text(p, "\n", 1);
    }
    for (; mark; mark = strstr(text, IMAGE_MARK)) {
        add_text(p, text, (size_t)(mark - text));
        if (!add_tokens(p, image->token, image->rows)) return false;
        text = mark + strlen(IMAGE_MARK);
    }
    add_text(p, text, (size_t)(end - text));
    return true;
}

// Removes from both ends the characters that Python's strip() removes: white space and the ASCII separators 0x1c to
// 0x1f.
static void strip(const char **text, size_t *length) {
    const char *const end = *text + *length;
    const char *first = end, *last = end; // start and end of the stripped text; both are `end` if it is empty
    size_t bytes;
    for (const char *at = *text; at < end; at += bytes) {
        const uint32_t code = utf8_read(at, (size_t)(end - at), &bytes);
        if (unicode_class(code) == CHAR_SPACE || (code >= 0x1c && code <= 0x1f)) continue;
        if (first == end) first = at;
        last = at + bytes;
    }
    *text = first;
    *length = (size_t)(last - first);
}

int prompt_encode(const Tokenizer *tokenizer, PromptFormat format, const char *text, const PromptImage *image,
                  int32_t *ids, int max, Error *err) {
    const char *before = formats[format].before, *after = formats[format].after;
    size_t length = strlen(text);
    Prompt p = {tokenizer, format, (char *)xmalloc(strlen(before) + length + strlen(after) + sizeof "\n"), 0, ids, 0,
                max,       err};
    if (formats[format].trims) strip(&text, &length);
    const bool good =
        add_format(&p, before) && add_user_text(&p, text, length, image) && add_format(&p, after) && encode_text(&p);
    free(p.text);
    return good ? p.count : -1;
}

bool prompt_end(const Tokenizer *tokenizer, PromptFormat format, int *id, Error *err) {
    const char *name = formats[format].end;
    *id = tokenizer_eos(tokenizer);
    return !name || find_token(tokenizer, format, name, id, err);
}

char *prompt_template(const Tokenizer *tokenizer, PromptFormat format) {
    const char *at = formats[format].chat;
    const int tokens[] = {tokenizer_bos(tokenizer), tokenizer_eos(tokenizer)}; // tokens that replace BEGIN and END
    // a template contains at most two of the markers BEGIN and END
    char *text = (char *)xmalloc(strlen(at) + 2 * NAME_BYTES + 1), *out = text;
    for (; *at; at++) {
        const int which = *at - *BEGIN;
        if (which > 1) {
            *out++ = *at;
            continue;
        }
        const size_t bytes = tokens[which] < 0 ? 0 : tokenizer_decode(tokenizer, tokens[which], out, NAME_BYTES);
        out += bytes < NAME_BYTES ? bytes : NAME_BYTES;
    }
    *out = '\0';
    return text;
}
