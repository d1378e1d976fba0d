// Pre-tokenization: cuts text into pretokens, within which BPE merges tokens. Tokenizer files specify the rule as a
// regular expression. This file implements the few expressions in use.
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    PRETOKENS_NONE,  // the entire text is one pretoken
    PRETOKENS_SPACE, // a pretoken begins at every space
    PRETOKENS_GPT2,  // GPT-2's rule: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    // cl100k's rule: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|
    // \p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
    PRETOKENS_CL100K
} PretokenKind;

typedef struct {
    PretokenKind kind;
    int digits;        // maximum digits in a pretoken of PRETOKENS_CL100K: 3 for cl100k and Llama-3, 1 for Qwen
    bool alone_digits; // true: every digit is a pretoken, and the rule applies to the text between digits
} PretokenRule;

// Sets *rule to the rule that a regular expression specifies. Returns false for an unknown expression.
bool pretokens_from_regex(const char *regex, PretokenRule *rule);

// Returns the length of the first pretoken of text (length > 0). Bytes that are not valid UTF-8 are treated as
// characters other than letters, numbers and spaces. *part is state that pretoken_length() keeps between the pretokens
// of a text; it must be 0 for the first pretoken. With alone_digits, *part is the number of bytes up to the next digit,
// so that a long text is searched for digits only once.
size_t pretoken_length(PretokenRule rule, const char *text, size_t length, size_t *part);
