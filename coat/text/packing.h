// Which examples of a file go into which sequence of training: whole ones, several where they fit.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t rows;     // sequences
    int32_t *first;   // of each row the place of its first example in members; rows + 1
    int32_t *members; // examples, row by row, in the file's order within each
} Packing;

// lengths[i]: the places in a row that example i takes, 1 ... T; 0: it is left out. By first fit, the longest examples
// first; rows are in the order of the first example of each. So the same examples and T give the same rows.
Packing pack_examples(const int32_t *lengths, int64_t examples, int T);
void packing_free(Packing *packing);

#ifdef __cplusplus
}
#endif
