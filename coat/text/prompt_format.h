// Formats prompts as in fine-tuning, and writes the chat template for other programs. data/prepare_prompts.py makes
// examples in these formats.
#pragma once
#include "config/config.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *prompt_format_name(PromptFormat format);

// Encodes text as one turn of the user, up to where the answer begins, without BOS. Returns the number of ids as
// tokenizer_encode() does; -1 with err (EXIT_USER), too, if the vocabulary lacks a special token of the format.
int prompt_encode(const Tokenizer *tokenizer, PromptFormat format, const char *text, int32_t *ids, int max, Error *err);

// Sets *id to the token that ends an answer: the format's own or else EOS, -1 if the vocabulary has no EOS. False with
// err (EXIT_USER) if the vocabulary lacks the format's own token.
bool prompt_end(const Tokenizer *tokenizer, PromptFormat format, int *id, Error *err);

// Returns the contents of chat_template.jinja, which transformers reads, allocated with malloc().
char *prompt_template(const Tokenizer *tokenizer, PromptFormat format);

#ifdef __cplusplus
}
#endif
