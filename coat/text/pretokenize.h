// The pieces that a tokenizer cuts text into, within which tokens merge. Tokenizers give their rule as a regular
// expression; the few in use are written out here.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    PRETOKENS_NONE,  // the text is one piece
    PRETOKENS_SPACE, // one begins at every blank
    PRETOKENS_GPT2,  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|
    // \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    PRETOKENS_CL100K
} PretokenKind;

typedef struct {
    PretokenKind kind;
    int digits;        // of a piece of PRETOKENS_CL100K at most: cl100k and Llama-3 have 3, Qwen 1
    bool alone_digits; // every number is a piece of its own, before the rule sees the text
} PretokenRule;

// The rule of a regular expression; false where it is not known.
bool pretokens_from_regex(const char *regex, PretokenRule *rule);

// The length of the first piece of text (length > 0). A byte that is not part of valid UTF-8 counts as a character
// that is no letter, number or space.
size_t pretoken_length(PretokenRule rule, const char *text, size_t length);

#ifdef __cplusplus
}
#endif
