// HellaSwag: everyday situations with one right and three wrong endings (Zellers et al., 2019, arXiv 1905.07830). A
// model's answer is the ending with the smallest mean loss per token, given the situation. Guessing scores 25 %. A row
// is a situation followed by one of its endings.
// The file has llm.c's evaluation format, little-endian:
//   header: 256 int32: magic 20240522, version 1, number of examples, bytes of the longest example
//   each example, all uint16: 65535, length of the example in bytes, index of the example (from 0), index of the right
//   ending (from 0), number of endings (4), then for the situation and for each ending: number of tokens, token ids
// Version 2 is this program's own, for vocabularies above 65,536: all numbers are uint32.
#pragma once
#include <stdint.h>

#include "base/error.h"

C_LINKAGE_BEGIN

#define HELLASWAG_ENDINGS 4

typedef struct HellaSwag HellaSwag;

// Reads and checks a HellaSwag file. Returns NULL with err on failure: EXIT_USER if a row has more than seq_len inputs,
// because a truncated row would change the score; EXIT_DATA for every other fault. A row's inputs are all its tokens
// except the last, which is only a target.
HellaSwag *hellaswag_open(const char *path, int seq_len, int vocab, Error *err);
void hellaswag_close(HellaSwag *set); // frees the set; the argument may be NULL

int hellaswag_examples(const HellaSwag *set);
int hellaswag_rows(const HellaSwag *set);   // returns the number of rows; row r is ending r % 4 of example r / 4
int hellaswag_length(const HellaSwag *set); // returns the number of inputs of the longest row

uint64_t hellaswag_fingerprint(const HellaSwag *set); // returns a hash of the file

// Returns the index of the first row of pass n (from 0) of process `rank`; -1 after the last pass. A pass has `batch`
// rows. All processes make the same number of passes, so the index may be beyond the last row of the file. The file is
// divided into groups of 1, 2 or 4 passes whose rows are complete examples. Group g belongs to rank g % ranks. So the
// rows of a pass, which may share an FP8 scale, do not depend on the number of processes.
int hellaswag_pass(const HellaSwag *set, int n, int batch, int rank, int ranks);

// Fills inputs and targets (count, T) with rows first to first + count - 1, T >= hellaswag_length(). Inputs are
// situation and ending. A target is a token of the ending at the position that predicts the token; elsewhere, the
// target is -1 and the loss is 0. Rows after the last row of the file are padding.
void hellaswag_batch(const HellaSwag *set, int first, int count, int T, int32_t *inputs, int32_t *targets);

// Adds the token losses (count, T) of a batch from hellaswag_batch(). Batches may be added in any order.
void hellaswag_add_losses(HellaSwag *set, int first, int count, int T, const float *losses);

// Returns the number of examples that the model answered correctly, among those whose losses were added. The model's
// answer is the first ending with the smallest mean loss. An ending whose loss is not finite is never the answer.
int hellaswag_right(const HellaSwag *set);

C_LINKAGE_END
