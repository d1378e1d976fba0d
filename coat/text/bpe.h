// Byte-pair encoding (BPE): a vocabulary of byte strings, the ranked merges of its tokens, and the encoding of a
// pretoken (pretokenize.h). The files tokenizer_*.c read vocabularies and merges from files.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VOCABULARY_MAX (1 << 20) // maximum number of ids, so that a damaged file cannot exhaust memory

// A vocabulary, which can be searched by id and by token.
typedef struct {
    int count;  // number of ids, 0 to count - 1; some may be unused
    char *text; // concatenated bytes of all tokens
    size_t text_used;
    size_t *offset;  // (count) offset of each token in text
    int32_t *length; // (count) length of each token in bytes; -1: unused id
    bool *hidden;    // (count) true: the encoder never produces the token
    int32_t *slots;  // (slot_mask + 1) hash table of ids; -1: empty slot
    uint32_t slot_mask;
} Vocabulary;

// Allocates a vocabulary for ids 0 to count - 1 with text_bytes bytes in total.
void vocabulary_init(Vocabulary *v, int count, size_t text_bytes);
void vocabulary_free(Vocabulary *v);
// Sets a vocabulary's token; its bytes must fit into the remaining text_bytes. Returns false if the id is out of range
// or already set.
bool vocabulary_set(Vocabulary *v, int id, const char *bytes, size_t length);
// Builds the hash table for vocabulary_find() after all tokens are set. Of equal tokens, the lowest id is found. Hidden
// tokens are not found.
void vocabulary_index(Vocabulary *v);
// returns a token's id; -1 if there is no such token
int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length);

// A merge of two adjacent tokens into one. The merge with the lowest rank is applied first.
typedef struct {
    int32_t left, right, merged, rank;
} Merge;

typedef struct {
    Merge *slots; // (slot_mask + 1) hash table indexed by (left, right); `merged` is -1 in empty slots
    uint32_t slot_mask;
    bool by_text;  // true: there is no table; two tokens merge if their joined bytes are a token
    int32_t *rank; // (vocabulary.count) if by_text: rank of the merge that yields each token; NULL: the token's id
} Merges;

void merges_init(Merges *m, int count);
void merges_add(Merges *m,
                // adds a merge, at most `count` times; a later merge of the same pair replaces an earlier one
                Merge merge);
bool merges_equal(const Merges *a, const Merges *b); // true if the merges are equal, or if `a` or `b` has no table

typedef struct {
    Vocabulary vocabulary;
    Merges merges;
    bool characters;      // true: encoding starts with characters; false: with bytes
    bool whole_first;     // true: a pretoken that is a token itself is not built by merges
    int32_t byte_id[256]; // tokens of single bytes, for characters that have no token; -1: none
    int32_t unknown;      // token for characters that cannot be encoded; -1: none
    bool fuse_unknown;    // true: adjacent unknown characters become a single `unknown` token
} Bpe;

void bpe_init(Bpe *b);
void bpe_free(Bpe *b);

// Encodes a pretoken of `length` bytes to out, which must have space for `length` ids. Returns the number of ids; -1 if
// a byte or character has no token. Takes O(n log n) time.
int bpe_encode(const Bpe *b, const char *pretoken, size_t length, int32_t *out);
