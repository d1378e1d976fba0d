// What a tokenizer consists of, and the readers of its files.
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
#define BYTE_NAME "<0x%02X>" // SentencePiece's, of a byte
#define MARK "\xe2\x96\x81"  // SentencePiece's, for a blank
// How the normalizer begins that takes the blank away which was put before an added token's own name: such a name is
// normalized too, and would be found behind a blank alone.
#define ADDED_ALONE "\\A" MARK "(?=(?:"
// What tells a tokenizer.json that tokenizer_write_json() has made of the tokenizer.model beside it. Libraries leave it
// out when they write the file anew, with tokens perhaps that the model lacks.
#define MADE_KEY "made_from"
#define MADE_OF "tokenizer.model"

// Where a blank is put before text.
typedef enum {
    PREFIX_NEVER,
    PREFIX_MISSING, // before every stretch between added tokens that does not begin with one
    PREFIX_FIRST    // the same at the begin of the text alone
} Prefix;

// A token that is found in text before anything merges.
typedef struct {
    char *text;
    size_t length;
    int32_t id;
    bool special;    // its name in a text is ordinary text
    bool normalized; // it is looked for in normalized text
} AddedToken;

typedef struct {
    AddedToken *tokens; // the longest first
    int count;
    bool begins[2][256]; // which bytes one begins with, by `normalized`
} AddedTokens;

struct Tokenizer {
    Bpe bpe;
    bool bytes;     // token = byte
    bool can_merge; // merges are known
    int bos, eos;   // beginning and end of a text; -1: the vocabulary has none
    AddedTokens added;
    // the text's way: normalized (nfc, then a blank put before it), with blanks for SentencePiece's mark, cut
    bool nfc, add_space, marks;
    bool late_marks;  // text and added tokens keep theirs until these are found
    bool added_alone; // none is put before an added token's name
    Prefix prefix;
    PretokenRule pretokens;
    char name[TOKENIZER_PATH_BYTES]; // the file's, for messages
};

// Turns `length` bytes of UTF-8 that stand for bytes, as GPT-2 writes these, into them (never more). Returns their
// number, or -1 if there is a character that stands for none.
int64_t bytes_of_characters(const char *text, size_t length, char *out);

// Turns SentencePiece's marks (U+2581) into the blanks that they stand for, in place; returns the length.
size_t spaces_from_marks(char *text, size_t length);

// Whether a token is that of a byte of a character without one; and whether no text becomes it, as <s>.
bool tokenizer_is_byte(const Tokenizer *t, int id);
bool tokenizer_is_special(const Tokenizer *t, int id);

// The normalized form of text, by malloc.
char *tokenizer_normalize(const Tokenizer *t, const char *text, size_t length, size_t *out_length);

// Copies the tokens, and puts them in order. Empty ones are left out.
void added_tokens_set(AddedTokens *added, const AddedToken *tokens, int count);
void added_tokens_free(AddedTokens *added);
// The first of those tokens in text that is not special: *at, *bytes, its id; -1 if there is none.
int32_t added_tokens_find(const AddedTokens *added, bool normalized, const char *text, size_t length, size_t *at,
                          size_t *bytes);

// Readers of files whose text has been read; false with err (EXIT_DATA). Vocabularies
// as GPT-2's JSON and merges, llm.c's, and SentencePiece's tokenizer.model.
bool tokenizer_read_pair(Tokenizer *t, const char *path, json_t *root, Error *err);
bool tokenizer_read_merges(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_bin(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_model(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_json(Tokenizer *t, const char *path, json_t *root, Error *err); // Hugging Face's tokenizer.json
// its part about text before tokens merge
bool tokenizer_read_text_rules(Tokenizer *t, const char *path, const json_t *root, Error *err);
// What tokenizer_config.json (NULL: there is none) says about the begin and end of texts.
void tokenizer_read_config(Tokenizer *t, const json_t *config);

#ifdef __cplusplus
}
#endif
