// Evaluations and samples of a model. Neither touches what training depends on.
#pragma once
#include <stdio.h>

#include "model/model.h"
#include "text/data.h"
#include "text/hellaswag.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// A signal or --time-limit that ends the run is obeyed in the middle of things by a process that is alone; several can
// only agree on it between steps.
bool stop_at_once(const Model *m);

// Sets *loss to the mean loss over the unmasked targets of the first `batches` micro-batches of the data. A signal that
// ends the run stops earlier. The processes divide the micro-batches among them and all make the same number of passes.
// One without a batch left repeats the last with no target; one that cannot read its batch continues with zeros.
bool evaluate_loss(Model *m, DataLoader *loader, int batches, double *loss, Error *err);

// How many examples of HellaSwag the model gets right. Rows are short: so are the passes over them, which the processes
// share.
int evaluate_hellaswag(Model *m, HellaSwag *set);

// The logits (vocab) of what follows ids[0 .. count), from the last --seq-len of them. A sample that continues reads
// its last token alone: the pass before was of all but that one. FP8 matmuls take 16 tokens, those from a multiple of
// 16 on or the last of --seq-len, with zeros behind the newest, and where a scale is one per tensor it is that of
// these. What no longer fits --seq-len is read anew as a whole.
void sample_logits(Model *m, const int32_t *ids, int count, bool goes_on, float *logits);

// Continues ids[0 .. count) by `more` tokens, each draw of another number than those of other samples, or with `ends`
// (may be NULL) by fewer, where one of them ends the text. Returns how many tokens there are then, that one included;
// *ended (may be NULL): it is the last.
int sample_tokens(Model *m, int32_t *ids, int count, int more, int number, const SpecialIds *ends, bool *ended);

// Prints tokens as text, or as ids if tokenizer is NULL, and a new line. On a terminal, control characters other than
// new lines and tabs become '?'; a file or pipe gets the bytes as they are.
void print_tokens(const Tokenizer *tokenizer, const int32_t *ids, int count, FILE *out);
// ,"name":[id, ...] on standard output.
void print_tokens_json(const char *name, const int32_t *ids, int count);

#ifdef __cplusplus
}
#endif
