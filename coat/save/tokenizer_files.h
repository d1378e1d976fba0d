// Copies the tokenizer's files into a checkpoint, under the names that Hugging Face's libraries expect.
#pragma once
#include "config/config.h"
#include "io/json.h"
#include "text/tokenizer.h"

// Copies a vocabulary and the files that belong to it into a checkpoint's folder, and adds them to the manifest. If a
// source file cannot be read, omits the file and prints a warning to stderr.
//   source: tokenizer.json, tokenizer.model, encoder.json (with vocab.bpe), vocab.json (with merges.txt),
//           gpt2_tokenizer.bin, or a folder that contains one of these files
//   tokenizer: opened from `source`; NULL: only copies files
//   image_token: id of <image>; -1: none. If it is the first id after the vocabulary, <image> is added to tokenizer.json.
// With a tokenizer, also writes these files if `source` lacks them:
// - tokenizer.json, if there is only SentencePiece's tokenizer.model
// - tokenizer_config.json. If tokenizer.json had to be written, a copied tokenizer_config.json is changed to name the
//   class that reads tokenizer.json.
// - the chat template of `format`. An older template that this function wrote for another format is not copied, unless
//   `format` is PROMPT_FORMAT_DATA.
bool tokenizer_files_copy(const char *folder, const char *source, const Tokenizer *tokenizer, PromptFormat format,
                          int image_token, JsonText *manifest, Error *err);
