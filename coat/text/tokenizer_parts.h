// The parts of a tokenizer and the readers of its files.
#pragma once
#include <jansson.h>

#include "base/error.h"
#include "bpe.h"
#include "pretokenize.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TOKENIZER_PATH_BYTES 2048
#define END_OF_TEXT_NAME "<|endoftext|>"
#define BYTE_NAME "<0x%02X>" // SentencePiece's name of a byte token
#define MARK "\xe2\x96\x81"  // SentencePiece's space marker, U+2581
// Start of the regular expression of a normalizer step that removes the prepended space from the name of an added
// token. Names are normalized like text. Without this step a name would only be found after a space.
#define ADDED_ALONE "\\A" MARK "(?=(?:"
// Key in a tokenizer.json that tokenizer_write_json() made from the tokenizer.model in the same folder. Libraries drop
// the key when they write the file again, maybe with tokens that the model lacks.
#define MADE_KEY "made_from"
#define MADE_OF "tokenizer.model"

// Where a space is prepended to text.
typedef enum {
    PREFIX_NEVER,
    PREFIX_MISSING, // to every part between added tokens that does not begin with a space
    PREFIX_FIRST    // to the start of the text, if it does not begin with a space
} Prefix;

// A token that is found in text before anything merges.
typedef struct {
    char *text;
    size_t length;
    int32_t id;
    bool special;    // never found in text: its name is ordinary text
    bool normalized; // it is searched in normalized text
} AddedToken;

typedef struct {
    AddedToken *tokens; // the longest first
    int count;
    bool begins[2][256]; // [normalized][byte]: true if a token begins with the byte
} AddedTokens;

struct Tokenizer {
    Bpe bpe;
    bool bytes;     // token = byte
    bool can_merge; // merges are known
    int bos, eos;   // beginning and end of a text; -1: the vocabulary has none
    AddedTokens added;
    // text is normalized (nfc, add_space, marks), split at added tokens, prefixed and cut into pretokens
    bool nfc, add_space, marks;
    bool late_marks;  // space markers are replaced after added tokens are found, not before
    bool added_alone; // no space is prepended to the name of an added token
    Prefix prefix;
    PretokenRule pretokens;
    char name[TOKENIZER_PATH_BYTES]; // the file's, for messages
};

// Converts text of GPT-2's byte characters to the bytes that they stand for, at most `length`. Returns their number; -1
// if a character stands for no byte.
int64_t bytes_of_characters(const char *text, size_t length, char *out);

// Replaces SentencePiece's space markers by spaces, in place. Returns the new length.
size_t spaces_from_marks(char *text, size_t length);

// True for the token of a byte, of a character without a token; true for a special token, such as <s>.
bool tokenizer_is_byte(const Tokenizer *t, int id);
bool tokenizer_is_special(const Tokenizer *t, int id);

// Returns the normalized form of text, allocated with malloc().
char *tokenizer_normalize(const Tokenizer *t, const char *text, size_t length, size_t *out_length);

// Copies and sorts the tokens. Skips empty ones.
void added_tokens_set(AddedTokens *added, const AddedToken *tokens, int count);
void added_tokens_free(AddedTokens *added);
// Finds the first token in text that is not special and has this value of `normalized`. Sets *at and *bytes to its
// place and length. Returns its id; -1 if there is none.
int32_t added_tokens_find(const AddedTokens *added, bool normalized, const char *text, size_t length, size_t *at,
                          size_t *bytes);

// Parsers of files; false with err (EXIT_DATA): GPT-2's JSON and merges, llm.c's binary file, SentencePiece's
// tokenizer.model, Hugging Face's tokenizer.json.
bool tokenizer_read_pair(Tokenizer *t, const char *path, json_t *root, Error *err);
bool tokenizer_read_merges(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_bin(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_model(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_json(Tokenizer *t, const char *path, json_t *root, Error *err);
// The normalizer and pre_tokenizer of a tokenizer.json.
bool tokenizer_read_text_rules(Tokenizer *t, const char *path, const json_t *root, Error *err);
// Sets BOS and EOS by tokenizer_config.json; config is NULL if there is none.
void tokenizer_read_config(Tokenizer *t, const json_t *config);

#ifdef __cplusplus
}
#endif
