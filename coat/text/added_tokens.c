// Finds added tokens in text: tokens that were added to a vocabulary after its training. Before BPE, the encoder
// searches a text for the added tokens that are not special. The name of a special token in a text is ordinary text.
#include <string.h>

#include "tokenizer_parts.h"

static int compare_length(const void *a, const void *b) {
    const AddedToken *x = (const AddedToken *)a, *y = (const AddedToken *)b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

void added_tokens_set(AddedTokens *added, const AddedToken *tokens, int count) {
    added->tokens = (AddedToken *)xcalloc((size_t)count, sizeof *added->tokens);
    for (int i = 0; i < count; i++) {
        if (tokens[i].length == 0) continue;
        AddedToken *copy = &added->tokens[added->count++];
        *copy = tokens[i];
        copy->text = (char *)memcpy(xmalloc(copy->length), tokens[i].text, copy->length);
        added->begins[copy->normalized][(unsigned char)copy->text[0]] = true;
    }
    qsort(added->tokens, (size_t)added->count, sizeof *added->tokens, compare_length);
}

void added_tokens_free(AddedTokens *added) {
    for (int i = 0; i < added->count; i++) free(added->tokens[i].text);
    free(added->tokens);
    memset(added, 0, sizeof *added);
}

// Returns the longest added token that text begins with and whose field `normalized` has the given value; NULL if there
// is none.
static const AddedToken *token_at(const AddedTokens *added, bool normalized, const char *text, size_t length) {
    if (!added->begins[normalized][(unsigned char)text[0]]) return NULL;
    for (int i = 0; i < added->count; i++) {
        const AddedToken *token = &added->tokens[i];
        if (token->normalized == normalized && token->length <= length && !memcmp(text, token->text, token->length))
            return token;
    }
    return NULL;
}

int32_t added_tokens_find(const AddedTokens *added, bool normalized, const char *text, size_t length, size_t *at,
                          size_t *bytes) {
    for (*at = 0; added->count > 0 && *at < length; *at += *bytes) {
        const AddedToken *token = token_at(added, normalized, text + *at, length - *at);
        *bytes = token ? token->length : 1;
        if (token && !token->special) return token->id;
    }
    return -1;
}
