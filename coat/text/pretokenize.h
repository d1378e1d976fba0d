// Pre-tokenization: cuts text into pretokens, within which BPE merges tokens. Tokenizers specify the rule as a regular
// expression; the few expressions in use are implemented here.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    PRETOKENS_NONE,  // the text is one pretoken
    PRETOKENS_SPACE, // a pretoken begins at every space
    PRETOKENS_GPT2,  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|
    // \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    PRETOKENS_CL100K
} PretokenKind;

typedef struct {
    PretokenKind kind;
    int digits;        // PRETOKENS_CL100K: maximum digits in a pretoken; 3 for cl100k and Llama-3, 1 for Qwen
    bool alone_digits; // every digit is a pretoken; the rule applies to the text between digits
} PretokenRule;

// Sets *rule to that of a regular expression; false if the expression is not known.
bool pretokens_from_regex(const char *regex, PretokenRule *rule);

// Returns the length of the first pretoken of text (length > 0). Invalid bytes of UTF-8 are treated as characters other
// than letters, numbers and spaces.
size_t pretoken_length(PretokenRule rule, const char *text, size_t length);

#ifdef __cplusplus
}
#endif
