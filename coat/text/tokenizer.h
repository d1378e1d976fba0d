// Encodes text to token ids and decodes them, for prompts and samples. Kinds of tokenizers: bytes (needs no file),
// byte-level BPE (GPT-2, Llama-3, OLMo, Qwen) and SentencePiece's BPE (Llama-2, Mistral).
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "io/json.h"

C_LINKAGE_BEGIN

#define BYTES_VOCAB 257 // number of tokens: 256 bytes and BYTES_END_OF_TEXT
#define BYTES_END_OF_TEXT 256

typedef struct Tokenizer Tokenizer;

Tokenizer *tokenizer_bytes(void); // returns the tokenizer of --tokenizer bytes: one token per byte, and EOS

// Opens one of the files below, or a folder that contains one of them. Returns NULL with err (EXIT_DATA) if the file is
// missing, malformed or of an unknown kind. tokenizer_config.json in the same folder may set or remove BOS, and sets
// EOS if the tokenizer file does not.
//   tokenizer.json       Hugging Face's
//   tokenizer.model      SentencePiece's. In a folder, tokenizer.model is used only if there is no tokenizer.json, or
//                        if tokenizer_write_json() made tokenizer.json from tokenizer.model.
//   encoder.json         GPT-2's, with vocab.bpe in the same folder, or vocab.json with merges.txt. Without merges, the
//                        tokenizer can only decode. Files of models other than GPT-2 are rejected.
//   gpt2_tokenizer.bin   llm.c's
Tokenizer *tokenizer_open(const char *path, Error *err);
void tokenizer_close(Tokenizer *tokenizer);

// True if `path` is a folder that contains a tokenizer file.
bool tokenizer_is_in(const char *path);

int tokenizer_vocab(const Tokenizer *tokenizer); // returns the size of the vocabulary; ids are 0 to size - 1
int tokenizer_eos(const Tokenizer *tokenizer);   // returns the EOS token's id; -1 if the vocabulary has none
int tokenizer_bos(const Tokenizer *tokenizer);   // returns the BOS token's id; -1 if the vocabulary has none
// returns the id for unknown characters; -1 if the vocabulary has none
int tokenizer_unknown(const Tokenizer *tokenizer);

// Returns the number of ids that exist in both vocabularies but belong to different tokens. Special tokens of `own` are
// not compared, because a model may rename its reserved tokens.
int tokenizer_differing(const Tokenizer *own, const Tokenizer *other);
// True if both tokenizers have the same merges, or if the file of either tokenizer lists no merges.
bool tokenizer_same_merges(const Tokenizer *a, const Tokenizer *b);

// Returns the id of the token `name`, which may be special; -1 if there is none.
int tokenizer_token(const Tokenizer *tokenizer, const char *name);

// Copies the first `size` bytes of a token to out, without a terminating 0 (a token may be part of a UTF-8 character).
// Returns the token's full length; 0 if the id does not exist.
size_t tokenizer_decode(const Tokenizer *tokenizer, int32_t id, char *out, size_t size);

// True if encoding prepends a space to the text because the vocabulary is SentencePiece's. Decoding keeps the space.
bool tokenizer_adds_space(const Tokenizer *tokenizer);

// True if the tokenizer is byte-level and prepends a space to a text that does not begin with one. False for
// SentencePiece's tokenizers; see tokenizer_adds_space().
bool tokenizer_has_prefix_space(const Tokenizer *tokenizer);

// Encodes text, without BOS. The text need not be valid UTF-8; names of special tokens are encoded as ordinary text.
// Returns the number of ids, or -1 with err: EXIT_DATA if the merges are not known or a byte or character has no token,
// EXIT_USER if there are more than `max` ids.
int tokenizer_encode(const Tokenizer *tokenizer, const char *text, int32_t *ids, int max, Error *err);

// True if the tokenizer was read from SentencePiece's tokenizer.model. Also true for llm.c's gpt2_tokenizer.bin if its
// first 256 tokens are single bytes, because neither file lists merges; two tokens merge if their joined text is a
// token.
bool tokenizer_is_sentencepiece(const Tokenizer *tokenizer);

// Writes a tokenizer.json to *out for a tokenizer that was read from tokenizer.model. With this file, Hugging Face's
// libraries encode text as SentencePiece does. The caller frees *out with json_text_free().
void tokenizer_write_json(const Tokenizer *tokenizer, JsonText *out);

// Returns the file name that other programs expect for the tokenizer file `path`. The name of the file and its first
// bytes determine the result.
const char *tokenizer_usual_name(const char *path);

C_LINKAGE_END
