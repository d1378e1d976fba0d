// Prompts in the format that a model was fine-tuned in, and the chat template that tells it to other programs.
// data/prepare_prompts.py makes examples in the same formats.
#pragma once
#include "config/config.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *prompt_format_name(PromptFormat format);

// Encodes text as a user's one turn, with the answer still to come, and without what a text begins with. As
// tokenizer_encode(), and -1 with err (EXIT_USER) where the vocabulary has not the format's special tokens, too.
int prompt_encode(const Tokenizer *tokenizer, PromptFormat format, const char *text, int32_t *ids, int max, Error *err);

// The token that ends an answer; -1 where the format has what ends texts, and the vocabulary has none. False with err
// (EXIT_USER) where the vocabulary has not the format's own.
bool prompt_end(const Tokenizer *tokenizer, PromptFormat format, int *id, Error *err);

// What transformers reads as chat_template.jinja, by malloc.
char *prompt_template(const Tokenizer *tokenizer, PromptFormat format);

#ifdef __cplusplus
}
#endif
