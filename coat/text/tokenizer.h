// Encodes text to token ids and decodes them, for prompts and samples. Three kinds: bytes (without a file), byte-level
// BPE (GPT-2, Llama-3, OLMo, Qwen) and SentencePiece's BPE (Llama-2, Mistral).
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "io/json.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BYTES_VOCAB 257 // 256 bytes and BYTES_END_OF_TEXT
#define BYTES_END_OF_TEXT 256

typedef struct Tokenizer Tokenizer;

Tokenizer *tokenizer_bytes(void);

// Opens one of these files, or a folder that contains one. NULL with err (EXIT_DATA) if the file is missing, malformed
// or of an unknown kind.
//   tokenizer.json       Hugging Face's. tokenizer_config.json in the same folder may override BOS and EOS.
//   tokenizer.model      SentencePiece's. In a folder it is used only if there is no tokenizer.json, or if
//                        tokenizer_write_json() made that from it.
//   encoder.json         GPT-2's, with vocab.bpe in the same folder, or vocab.json with merges.txt. Without merges it
//                        only decodes. Such files of other models are refused.
//   gpt2_tokenizer.bin   llm.c's
Tokenizer *tokenizer_open(const char *path, Error *err);
void tokenizer_close(Tokenizer *tokenizer);

// True if path is a folder that contains a file of such a name.
bool tokenizer_is_in(const char *path);

int tokenizer_vocab(const Tokenizer *tokenizer);   // ids are 0 .. vocab-1
int tokenizer_eos(const Tokenizer *tokenizer);     // end-of-text token; -1 if the vocabulary has none
int tokenizer_bos(const Tokenizer *tokenizer);     // beginning-of-text token; -1 if the vocabulary has none
int tokenizer_unknown(const Tokenizer *tokenizer); // token of unknown characters; -1 if the vocabulary has none

// Returns for how many ids, of those in both vocabularies, `other` has another token than `own`. Special tokens of
// `own` are not compared, because reserved ones are renamed when they come into use.
int tokenizer_differing(const Tokenizer *own, const Tokenizer *other);
// True if the merges are equal, or if one of the files lists no merges.
bool tokenizer_same_merges(const Tokenizer *a, const Tokenizer *b);

// Returns the id of a token, also of a special one; -1 if there is none of this name.
int tokenizer_token(const Tokenizer *tokenizer, const char *name);

// Copies the first `size` bytes of a token to out, without a terminating zero (a token may be part of a UTF-8
// character); returns the token's whole length, 0 for an id that does not exist.
size_t tokenizer_decode(const Tokenizer *tokenizer, int32_t id, char *out, size_t size);

// True if encoding prepends a space to the text, as SentencePiece does. Decoding returns this space, too.
bool tokenizer_adds_space(const Tokenizer *tokenizer);

// Encodes text, without BOS. The text need not be valid UTF-8. Names of special tokens in it are ordinary text. Returns
// the number of ids, or -1 with err: EXIT_DATA if the vocabulary cannot encode, EXIT_USER if there are more than `max`.
int tokenizer_encode(const Tokenizer *tokenizer, const char *text, int32_t *ids, int max, Error *err);

// True if it was read from SentencePiece's tokenizer.model.
bool tokenizer_is_sentencepiece(const Tokenizer *tokenizer);

// Writes a tokenizer.json for a tokenizer of tokenizer.model, with which Hugging Face's libraries encode as
// SentencePiece.
void tokenizer_write_json(const Tokenizer *tokenizer, JsonText *out);

// Returns the file name under which other programs look for this vocabulary, from its name and its first bytes.
const char *tokenizer_usual_name(const char *path);

#ifdef __cplusplus
}
#endif
