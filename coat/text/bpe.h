// Byte-pair encoding: a vocabulary of byte strings, the ranked merges of its tokens, and the encoding of a piece
// (pretokenize.h). The files they come from are the matter of tokenizer_*.c.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VOCABULARY_MAX (1 << 20) // no file makes us allocate for more ids than this

// Tokens by id and ids by token.
typedef struct {
    int count;  // ids 0 .. count-1; some may be unused
    char *text; // all tokens, one after the other
    size_t text_used;
    size_t *offset;  // (count) in text
    int32_t *length; // (count), -1 = unused
    bool *hidden;    // (count) no text is encoded to it
    int32_t *slots;  // (slot_mask + 1) hash table of ids, -1 = empty
    uint32_t slot_mask;
} Vocabulary;

// Room for ids 0 .. count-1 of text_bytes bytes together.
void vocabulary_init(Vocabulary *v, int count, size_t text_bytes);
void vocabulary_free(Vocabulary *v);
// Sets a token; its bytes must fit into what is left of text_bytes. False if the id is out of range or taken.
bool vocabulary_set(Vocabulary *v, int id, const char *bytes, size_t length);
// Fills the table of ids by token, once all are set. Of equal tokens the lowest id is found; hidden ones are not.
void vocabulary_index(Vocabulary *v);
int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length); // -1 if there is none

// What a pair of neighbours becomes. The pair of the lowest rank merges first.
typedef struct {
    int32_t left, right, merged, rank;
} Merge;

typedef struct {
    Merge *slots; // (slot_mask + 1) hash table by (left, right); merged -1 = empty
    uint32_t slot_mask;
    bool by_text;  // no table: a pair merges if its bytes together are a token,
    int32_t *rank; // (vocabulary.count) whose rank this is; NULL: its id
} Merges;

void merges_init(Merges *m, int count);
void merges_add(Merges *m, Merge merge);             // at most `count` times; of a pair's the last one stands
bool merges_equal(const Merges *a, const Merges *b); // true where one of them has no table

typedef struct {
    Vocabulary vocabulary;
    Merges merges;
    bool characters;      // it begins with characters; else with bytes
    bool whole_first;     // a piece that is a token needs no merges
    int32_t byte_id[256]; // tokens of the bytes of a character that has no token; -1 = none
    int32_t unknown;      // the token of a character without any; -1 = none
    bool fuse_unknown;    // characters without any that follow each other have one together
} Bpe;

void bpe_init(Bpe *b);
void bpe_free(Bpe *b);

// Encodes one piece of `length` bytes: out needs room for `length` ids. Returns their number, or -1 where a byte or
// character has no token. Takes time in proportion to n log n.
int bpe_encode(const Bpe *b, const char *pretoken, size_t length, int32_t *out);

#ifdef __cplusplus
}
#endif
