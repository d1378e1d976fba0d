// Internal structs of a tokenizer, and the functions that read tokenizer files.
#pragma once
#include <jansson.h>

#include "base/error.h"
#include "bpe.h"
#include "pretokenize.h"
#include "tokenizer.h"

#define TOKENIZER_PATH_BYTES 2048
#define END_OF_TEXT_NAME "<|endoftext|>"
#define BYTE_NAME "<0x%02X>" // format of SentencePiece's names of byte tokens
#define MARK "\xe2\x96\x81"  // SentencePiece's space marker, U+2581
// Start of a regular expression in tokenizer.json. The normalizer step with this expression removes the prepended space
// from the name of an added token. Names are normalized like text, so without this step the encoder would find a name
// only after a space.
#define ADDED_ALONE "\\A" MARK "(?=(?:"
// Key that tokenizer_write_json() writes to a tokenizer.json made from the tokenizer.model in the same folder.
// tokenizer_open() then reads tokenizer.model. Libraries that rewrite the file, possibly with tokens that the model
// lacks, drop the key, so the rewritten tokenizer.json is read.
#define MADE_KEY "made_from"
#define MADE_OF "tokenizer.model"

// Whether and where the encoder prepends a space to text.
typedef enum {
    PREFIX_NEVER,
    PREFIX_MISSING, // prepends a space to each part between added tokens, unless the part begins with a space
    PREFIX_FIRST    // prepends a space to the text, unless the text begins with a space or an added token
} Prefix;

// A token that was added to the vocabulary. Before BPE, the encoder looks in the text for added tokens that are not
// special.
typedef struct {
    char *text;
    size_t length;
    int32_t id;
    bool special;    // true: the encoder treats the token's name in a text as ordinary text
    bool normalized; // true: the encoder looks for the token in normalized text; false: in the original text
} AddedToken;

typedef struct {
    AddedToken *tokens; // added tokens, the longest first
    int count;
    bool begins[2][256]; // [normalized][byte]: true if an added token begins with the byte
} AddedTokens;

struct Tokenizer {
    Bpe bpe;
    bool bytes;     // true: every token except EOS is one byte
    bool can_merge; // true: the merges are known
    int bos, eos;   // ids of the BOS and EOS tokens; -1: the vocabulary has none
    AddedTokens added;
    // Steps of encoding a text; each bool enables its part of a step:
    //   1. split the text at added tokens that are not `normalized`
    //   2. normalize each part: to NFC (nfc), prepend a space (add_space), replace space markers with spaces (marks)
    //   3. split each part at `normalized` added tokens
    //   4. replace space markers with spaces here instead of in step 2 (late_marks), prepend a space (prefix)
    //   5. cut each part into pretokens and encode them with BPE
    bool nfc, add_space, marks;
    bool late_marks;  // true: space markers are replaced after normalized added tokens are found; false: before that
    bool added_alone; // true: the space that is prepended to the name of an added token is removed
    Prefix prefix;
    PretokenRule pretokens;
    char name[TOKENIZER_PATH_BYTES]; // path of the tokenizer file, for messages
};

// Converts text in which characters represent bytes, as in GPT-2's files, to the bytes. `out` needs room for `length`
// bytes. Returns the number of bytes; -1 if a character does not represent a byte.
int64_t bytes_of_characters(const char *text, size_t length, char *out);

// Replaces SentencePiece's space markers with spaces, in place. Returns the new length.
size_t spaces_from_marks(char *text, size_t length);

// tokenizer_is_byte() is true if the token represents a single byte of a character that has no token.
// tokenizer_is_special() is true for a special token, such as <s>.
bool tokenizer_is_byte(const Tokenizer *t, int id);
bool tokenizer_is_special(const Tokenizer *t, int id);

// Returns the normalized form of text, allocated with malloc(). Sets *out_length to the length of the result in bytes.
char *tokenizer_normalize(const Tokenizer *t, const char *text, size_t length, size_t *out_length);

// Copies the added tokens and sorts them by length, the longest first. Skips empty tokens.
void added_tokens_set(AddedTokens *added, const AddedToken *tokens, int count);
void added_tokens_free(AddedTokens *added);
// Finds the first added token in text that is not special and whose field `normalized` has the given value. Sets *at
// and *bytes to its position and length. Returns the id of the token; -1 if there is none.
int32_t added_tokens_find(const AddedTokens *added, bool normalized, const char *text, size_t length, size_t *at,
                          size_t *bytes);

// The tokenizer_read functions parse tokenizer files: GPT-2's JSON and merges, llm.c's binary file, SentencePiece's
// tokenizer.model, Hugging Face's tokenizer.json. They return false with err (EXIT_DATA) on failure.
bool tokenizer_read_pair(Tokenizer *t, const char *path, json_t *root, Error *err);
bool tokenizer_read_merges(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_bin(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_model(Tokenizer *t, const char *path, const char *text, size_t size, Error *err);
bool tokenizer_read_json(Tokenizer *t, const char *path, json_t *root, Error *err);
// Reads the normalizer and the pre_tokenizer of a tokenizer.json, which process text before BPE.
bool tokenizer_read_text_rules(Tokenizer *t, const char *path, const json_t *root, Error *err);
// Applies the keys of tokenizer_config.json; config NULL: no such file.
//   add_bos_token   false removes BOS; true sets BOS to the token that bos_token names, if the vocabulary has it
//   eos_token       becomes EOS if the tokenizer file set no EOS
void tokenizer_read_config(Tokenizer *t, const json_t *config);
