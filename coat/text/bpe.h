// Byte-pair encoding: a vocabulary of byte strings, the ranked merges of its tokens, and the encoding of a pretoken
// (pretokenize.h). tokenizer_*.c read them from files.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VOCABULARY_MAX (1 << 20) // maximum number of ids, so that a damaged file cannot exhaust memory

// A vocabulary, with lookup by id and by token.
typedef struct {
    int count;  // ids 0 .. count-1; some may be unused
    char *text; // all tokens, one after the other
    size_t text_used;
    size_t *offset;  // (count) in text
    int32_t *length; // (count), -1 = unused
    bool *hidden;    // (count) the encoder never produces it
    int32_t *slots;  // (slot_mask + 1) hash table of ids, -1 = empty
    uint32_t slot_mask;
} Vocabulary;

// Allocates room for ids 0 .. count-1 with text_bytes bytes in total.
void vocabulary_init(Vocabulary *v, int count, size_t text_bytes);
void vocabulary_free(Vocabulary *v);
// Sets a token, whose bytes must fit into the rest of text_bytes. False if the id is out of range or already set.
bool vocabulary_set(Vocabulary *v, int id, const char *bytes, size_t length);
// Builds the table for vocabulary_find() after all tokens are set. Of equal tokens the lowest id is found; hidden
// tokens are not found.
void vocabulary_index(Vocabulary *v);
int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length); // -1 if there is none

// A merge of two adjacent tokens into one. The merge of the lowest rank is applied first.
typedef struct {
    int32_t left, right, merged, rank;
} Merge;

typedef struct {
    Merge *slots; // (slot_mask + 1) hash table by (left, right); merged -1 = empty
    uint32_t slot_mask;
    bool by_text;  // no table: two tokens merge if their joined bytes are a token,
    int32_t *rank; // (vocabulary.count) with this rank; NULL: its id
} Merges;

void merges_init(Merges *m, int count);
void merges_add(Merges *m,
                Merge merge); // at most `count` times; a later merge of the same pair replaces an earlier one
bool merges_equal(const Merges *a, const Merges *b); // true if one of them has no table

typedef struct {
    Vocabulary vocabulary;
    Merges merges;
    bool characters;      // encoding starts with characters; else with bytes
    bool whole_first;     // a pretoken that is itself a token is not merged from parts
    int32_t byte_id[256]; // tokens of bytes, for characters without a token; -1 = none
    int32_t unknown;      // token of characters that cannot be encoded; -1 = none
    bool fuse_unknown;    // adjacent unknown characters become one `unknown` token
} Bpe;

void bpe_init(Bpe *b);
void bpe_free(Bpe *b);

// Encodes a pretoken of `length` bytes to out, which needs room for `length` ids. Returns their number; -1 if a byte or
// character has no token. Takes O(n log n) time.
int bpe_encode(const Bpe *b, const char *pretoken, size_t length, int32_t *out);

#ifdef __cplusplus
}
#endif
