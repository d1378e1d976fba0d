// HellaSwag: everyday situations with four endings, one of which is right (Zellers et al., 2019, arXiv 1905.07830).
// A model is right where that ending has the smallest mean loss per token, given the situation; guessing is right
// in 25 %. The file is llm.c's evaluation format, little-endian:
//   header: 256 int32: magic 20240522, version 1, number of examples, bytes of the longest one
//   an example, all uint16: 65535, its bytes, its number (from 0), number of the right ending, number of endings (4),
//   tokens of the situation: count, ids; for each ending: count, ids
// Version 2 is this program's own, for vocabularies beyond 65,536: the same, all uint32.
#pragma once
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HELLASWAG_ENDINGS 4

typedef struct HellaSwag HellaSwag;

// Reads a file and checks all of it. Rows longer than seq_len tokens are refused (EXIT_USER), because leaving out a
// part would give another figure; everything else that is wrong is EXIT_DATA. NULL with err.
HellaSwag *hellaswag_open(const char *path, int seq_len, int vocab, Error *err);
void hellaswag_close(HellaSwag *set); // NULL is allowed

int hellaswag_examples(const HellaSwag *set);
int hellaswag_rows(const HellaSwag *set);   // one per ending: row r is ending r % 4 of example r / 4
int hellaswag_length(const HellaSwag *set); // tokens of the longest row

uint64_t hellaswag_fingerprint(const HellaSwag *set); // a hash of the whole file

// The first row of a process's n-th pass over `batch` rows, which may lie beyond the last one; -1 after the last pass.
// The passes are those of one process, row 0 first, dealt to the processes in turns, so many at a time that each gets
// whole examples: then what is computed together (one FP8 scale, say) does not depend on how many processes there are.
// All of them make the same number of passes.
int hellaswag_pass(const HellaSwag *set, int n, int batch, int rank, int ranks);

// Fills inputs, targets (count, T) with the rows [first, first + count), T >= hellaswag_length(): situation and ending
// in the inputs, the ending's tokens in the targets at the positions that predict them, everywhere else -1, where the
// loss is 0. Rows beyond the last are empty.
void hellaswag_batch(const HellaSwag *set, int first, int count, int T, int32_t *inputs, int32_t *targets);

// Takes the token losses (count, T) of such a batch. Rows may come in any order.
void hellaswag_add_losses(HellaSwag *set, int first, int count, int T, const float *losses);

// How many examples are right, of those whose rows have been taken. Where losses are equal the first counts; one that
// is not finite never wins.
int hellaswag_right(const HellaSwag *set);

#ifdef __cplusplus
}
#endif
