// Packs the examples of a file into rows (sequences) of T tokens. An example is never divided between two rows.
#pragma once
#include <stdint.h>

typedef struct {
    int64_t rows;
    // (rows + 1) index in `members` of each row's first example; the last entry is the total number of members
    int32_t *first;
    int32_t *members; // indices of the examples, row by row, ascending within a row
} Packing;

// Packs examples into rows by first fit, the longest first. Rows are ordered by their first example. The result depends
// only on the arguments. lengths[i] is the number of tokens of example i, 1 to T; 0 drops the example.
Packing pack_examples(const int32_t *lengths, int64_t examples, int T);
void packing_free(Packing *packing);
