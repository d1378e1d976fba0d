// Formats prompts as in fine-tuning, and writes the chat template for other programs. data/prepare_prompts.py creates
// training examples in these formats.
#pragma once
#include "config/config.h"
#include "tokenizer.h"

const char *prompt_format_name(PromptFormat format);

// The image of a prompt, represented by `rows` tokens with the id `token`.
typedef struct {
    int token, rows;
} PromptImage;

// Encodes text as one turn of the user, up to the start of the answer, without BOS. Replaces <image> in the text with
// the tokens of `image`. If the text has no <image>, puts these tokens and a line end before the text, as
// data/prepare.py does. image: NULL if <image> is ordinary text. Returns the number of ids. Returns -1 with err
// if tokenizer_encode() fails. Also returns -1 with err (EXIT_USER) if there are more than `max` ids, or if the
// vocabulary lacks a special token of the format.
int prompt_encode(const Tokenizer *tokenizer, PromptFormat format, const char *text, const PromptImage *image,
                  int32_t *ids, int max, Error *err);

// Sets *id to the token that ends an answer: the format's end token, or EOS if the format has none; -1 if the
// vocabulary has no EOS. Returns false with err (EXIT_USER) if the vocabulary lacks the format's end token.
bool prompt_end(const Tokenizer *tokenizer, PromptFormat format, int *id, Error *err);

// Returns the contents of chat_template.jinja, which Hugging Face's transformers reads. Allocated with malloc().
char *prompt_template(const Tokenizer *tokenizer, PromptFormat format);
