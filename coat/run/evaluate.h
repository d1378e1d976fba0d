// Evaluates a model and generates samples. Neither changes the state that training depends on.
#pragma once
#include <stdio.h>

#include "model/model.h"
#include "text/data.h"
#include "text/hellaswag.h"
#include "text/tokenizer.h"

C_LINKAGE_BEGIN

// True if a signal or --time-limit ends the run and this process may stop within a step. A process may do so only if
// the run has no other process, because several processes agree on stopping between steps.
bool stop_at_once(const Model *m);

// Sets *loss to the mean loss over the unmasked targets of the first `batches` micro-batches, or of fewer if
// stop_at_once(). The processes divide the micro-batches and make the same number of passes: a process without a batch
// repeats the last batch with all targets masked, and a process that fails to read its batch continues with zeros.
// Sets *accuracy to the fraction of answers that are right, if the model has a vision tower and the data a loss mask;
// otherwise to NAN. An answer is a maximal run of unmasked targets in an example. It is right if each of its targets
// has the largest logit, given the tokens before it: sampling with --temperature 0 would then generate this answer.
bool evaluate_loss(Model *m, DataLoader *loader, int batches, double *loss, double *accuracy, Error *err);

// Returns the number of HellaSwag examples that the model answers correctly. The processes divide the passes. Passes
// are as short as the longest row allows.
int evaluate_hellaswag(Model *m, HellaSwag *set);

// Computes the logits (vocab) of the token that follows ids[0 .. count), from the last --seq-len of them.
// incremental: the previous call was for ids[0 .. count - 1), so the pass reads only the last token and the KV cache.
// If there are more than --seq-len tokens, the pass reads all of the last --seq-len instead.
// FP8 matmuls need 16 tokens. An incremental pass then reads an aligned group of 16 tokens, or the last 16 of
// --seq-len, padded with zeros. A scale per tensor is computed from these 16 tokens.
void sample_logits(Model *m, const int32_t *ids, int count, bool incremental, float *logits);

// Appends up to `more` sampled tokens to ids[0 .. count) and returns the new count.
//   number: index of the sample; each sample draws other random numbers
//   ends: stops after one of these EOS ids, which is part of the sample; NULL: none
//   ended: set to true if an EOS id ended the sample; may be NULL
int sample_tokens(Model *m, int32_t *ids, int count, int more, int number, const SpecialIds *ends, bool *ended);

// Prints tokens as text, or as ids if tokenizer is NULL, and a newline. If `out` is a terminal, control characters
// except newlines and tabs are printed as '?'.
void print_tokens(const Tokenizer *tokenizer, const int32_t *ids, int count, FILE *out);
// Prints ,"name":[id, ...] to standard output, as a part of a JSON object.
void print_tokens_json(const char *name, const int32_t *ids, int count);

C_LINKAGE_END
