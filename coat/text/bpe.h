// Byte-pair encoding (BPE): a vocabulary of byte strings, the ranked merges of its tokens, and the encoding of a
// pretoken (pretokenize.h). The files tokenizer_*.c read vocabularies and merges from files.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOCABULARY_MAX (1 << 20) // maximum number of ids, so that a damaged file cannot exhaust memory

// A vocabulary, which can be searched by id and by token.
typedef struct {
    int count;  // number of ids; the ids are 0 to count - 1, and some may be unused
    char *text; // concatenated bytes of all tokens
    size_t text_used;
    size_t *offset;  // (count) offset of each token in text
    int32_t *length; // (count) length of each token in bytes; -1: unused id
    bool *hidden;    // (count) true for tokens that vocabulary_find() skips, such as special and byte tokens
    int32_t *slots;  // (slot_mask + 1) hash table of ids; -1: empty slot
    uint32_t slot_mask;
} Vocabulary;

// Allocates a vocabulary for ids 0 to count - 1, whose tokens have at most text_bytes bytes in total. bpe_free() frees
// the vocabulary.
void vocabulary_init(Vocabulary *v, int count, size_t text_bytes);
// Sets token `id` to a copy of `bytes`, which must fit into the vocabulary's remaining text_bytes. Returns false if the
// id is out of range or already set.
bool vocabulary_set(Vocabulary *v, int id, const char *bytes, size_t length);
// Builds the hash table for vocabulary_find() after all tokens are set. If several tokens are equal, vocabulary_find()
// returns the lowest id. Hidden tokens are never found.
void vocabulary_index(Vocabulary *v);
// returns a token's id; -1 if there is no such token
int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length);

// A merge of two adjacent tokens into one token. The merge with the lowest rank is applied first.
typedef struct {
    int32_t left, right, merged, rank;
} Merge;

typedef struct {
    Merge *slots; // (slot_mask + 1) hash table indexed by (left, right); `merged` is -1 in empty slots
    uint32_t slot_mask;
    bool by_text;  // true: two tokens merge if their joined bytes are a token, and `slots` is NULL
    int32_t *rank; // (vocabulary.count) rank of the merge that yields each token, if by_text; NULL: ids are ranks
} Merges;

// Allocates an empty table for up to `count` merges. bpe_free() frees the table.
void merges_init(Merges *m, int count);
// Adds a merge. A later merge of the same pair replaces an earlier one.
void merges_add(Merges *m, Merge merge);
bool merges_equal(const Merges *a, const Merges *b); // true if the merges are the same, or if `a` or `b` lists none

typedef struct {
    Vocabulary vocabulary;
    Merges merges;
    bool characters;      // true: encoding starts from characters; false: from bytes
    bool whole_first;     // true: a pretoken that equals a token is encoded as that token, without merges
    int32_t byte_id[256]; // [b]: id of the token that encodes byte b of a character without a token; -1: none
    int32_t unknown;      // id of the token for characters that cannot be encoded; -1: no such token
    bool fuse_unknown;    // true: adjacent unknown characters are encoded as a single `unknown` token
} Bpe;

void bpe_init(Bpe *b);
void bpe_free(Bpe *b);

// Encodes a pretoken of `length` bytes to out, which must have space for `length` ids. Returns the number of ids.
// Returns -1 if length > INT32_MAX / 8, or if b->unknown is -1 and a byte or character has no token, nor tokens for its
// bytes (byte_id). Takes O(length log length) time.
int bpe_encode(const Bpe *b, const char *pretoken, size_t length, int32_t *out);
