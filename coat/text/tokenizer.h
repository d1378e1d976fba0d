// Token ids to text and text to token ids, for samples and prompts. Three kinds: bytes (no file at all), byte-level
// byte-pair encoding as GPT-2's, Llama-3's, OLMo's and Qwen's, and SentencePiece's as Llama-2's and Mistral's.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "io/json.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BYTES_VOCAB 257 // 256 bytes, and
#define BYTES_END_OF_TEXT 256

typedef struct Tokenizer Tokenizer;

Tokenizer *tokenizer_bytes(void);

// Opens Hugging Face's tokenizer.json (what tokenizer_config.json beside it says about the begin of text counts),
// SentencePiece's tokenizer.model, GPT-2's encoder.json (with vocab.bpe beside it) or vocab.json (with merges.txt
// beside it), llm.c's gpt2_tokenizer.bin, or a folder that holds one of these. tokenizer.json goes before
// tokenizer.model, unless it is made of it (tokenizer_write_json()). Without its merges GPT-2's vocabulary decodes
// only; such files of other models are refused. NULL with err (EXIT_DATA) for a missing or malformed file, and for a
// kind that is not known.
Tokenizer *tokenizer_open(const char *path, Error *err);
void tokenizer_close(Tokenizer *tokenizer);

// Whether a folder holds one, which may be of a kind that is not known.
bool tokenizer_is_in(const char *path);

int tokenizer_vocab(const Tokenizer *tokenizer);   // ids are 0 .. vocab-1
int tokenizer_eos(const Tokenizer *tokenizer);     // what separates texts; -1 where the vocabulary has none
int tokenizer_bos(const Tokenizer *tokenizer);     // what every text begins with (bos); -1 where it has none
int tokenizer_unknown(const Tokenizer *tokenizer); // what stands for a character without a token; -1 if nothing

// How many of the ids that both vocabularies have are another token in the second. What no text became in the first, a
// special token, may be another one: reserved ones get their names when they are used.
int tokenizer_differing(const Tokenizer *own, const Tokenizer *other);
// Whether tokens merge alike, as far as both files list their merges.
bool tokenizer_same_merges(const Tokenizer *a, const Tokenizer *b);

// The id of a token, also of one that no text becomes; -1 where none has this name.
int tokenizer_token(const Tokenizer *tokenizer, const char *name);

// Copies the first `size` bytes of a token to out, without a terminating zero (a token may be part of a UTF-8
// character); returns the token's whole length, 0 for an id that does not exist.
size_t tokenizer_decode(const Tokenizer *tokenizer, int32_t id, char *out, size_t size);

// Whether SentencePiece puts a blank before a text, with which its first token begins: it is not part of the text.
bool tokenizer_adds_space(const Tokenizer *tokenizer);

// Encodes text, which need not be valid UTF-8, without what it begins with; the name of a special token in it is
// ordinary text. Returns the number of ids, or -1 with err: EXIT_DATA where the vocabulary cannot encode,
// EXIT_USER where there are more than `max`.
int tokenizer_encode(const Tokenizer *tokenizer, const char *text, int32_t *ids, int max, Error *err);

// Whether it was read from SentencePiece's tokenizer.model.
bool tokenizer_is_sentencepiece(const Tokenizer *tokenizer);

// Writes the tokenizer.json of such a one, by which Hugging Face's libraries encode text as SentencePiece does.
void tokenizer_write_json(const Tokenizer *tokenizer, JsonText *out);

// The name under which others look for a vocabulary's file, as its own name or its first bytes tell.
const char *tokenizer_usual_name(const char *path);

#ifdef __cplusplus
}
#endif
