// Byte-pair encoding: a vocabulary of byte strings, the ranked merges of its tokens, and GPT-2's rule for
// cutting text into the pieces within which tokens merge. The files they come from are tokenizer.c's matter.
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
    int32_t *slots;  // (slot_mask + 1) hash table of ids, -1 = empty
    uint32_t slot_mask;
} Vocabulary;

// Room for ids 0 .. count-1 of text_bytes bytes together.
void vocabulary_init(Vocabulary *v, int count, size_t text_bytes);
void vocabulary_free(Vocabulary *v);
// Sets a token; its bytes must fit into what is left of text_bytes. False if the id is out of range or taken.
bool vocabulary_set(Vocabulary *v, int id, const char *bytes, size_t length);
// Fills the table of ids by token, once all are set. Of equal tokens the lowest id is found.
void vocabulary_index(Vocabulary *v);
int32_t vocabulary_find(const Vocabulary *v, const char *bytes, size_t length); // -1 if there is none

// What a pair of neighbours becomes. The pair of the lowest rank merges first.
typedef struct {
    int32_t left, right, merged, rank;
} Merge;

typedef struct {
    Merge *slots; // (slot_mask + 1) hash table by (left, right); merged -1 = empty
    uint32_t slot_mask;
    bool by_id; // no table: a pair merges if its bytes together are a token, whose id is the rank
} Merges;

void merges_init(Merges *m, int count);
void merges_free(Merges *m);
void merges_add(Merges *m, Merge merge); // at most `count` times; a pair's first one stands

// The length of the first piece of text (length > 0), by the regular expression that GPT-2 was trained with:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A byte that is not part of valid UTF-8 counts as a character that is no letter, number or space.
size_t bpe_piece(const char *text, size_t length);

// Encodes one piece of `length` bytes: out needs room for `length` ids. Returns their number, or -1 when a byte
// has no token. Takes time quadratic in the length of the piece, which is a word.
int bpe_encode(const Vocabulary *v, const Merges *m, const char *piece, size_t length, int32_t *out);

#ifdef __cplusplus
}
#endif
