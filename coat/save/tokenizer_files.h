// The vocabulary's files in a checkpoint, under the names that Hugging Face's libraries look for.
#pragma once
#include "config/config.h"
#include "io/json.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// Copies a vocabulary (tokenizer.json, tokenizer.model, encoder.json or vocab.json with its merges beside it,
// gpt2_tokenizer.bin, or a folder with one) and what belongs to it into a checkpoint's folder, and lists the copies in
// its manifest. tokenizer.model without a tokenizer.json gets one that is made of it, whose class tokenizer_config.json
// then names. Without a tokenizer_config.json one is written, and without a chat template that of the prompt
// format, all by the tokenizer that was opened from the source; NULL: none. A template that was written so for
// another format is left behind, unless the format is that of data which name none (PROMPT_FORMAT_DATA). A source
// that cannot be read is a line on stderr.
bool tokenizer_files_copy(const char *folder, const char *source, const Tokenizer *tokenizer, PromptFormat format,
                          JsonText *manifest, Error *err);

#ifdef __cplusplus
}
#endif
