// Evaluates a model and generates samples, without changing the state that training depends on.
#pragma once
#include <stdio.h>

#include "model/model.h"
#include "text/data.h"
#include "text/hellaswag.h"
#include "text/tokenizer.h"

C_LINKAGE_BEGIN

// True if a signal or --time-limit ends the run and this process may stop within a step. Always false with several
// processes, because several processes must agree to stop, which they do only between steps.
bool stop_at_once(const Model *m);

// Sets *loss to the mean loss over the unmasked targets of the first `batches` micro-batches, or of fewer micro-batches
// if stop_at_once() becomes true. The processes divide the micro-batches and run the same number of passes. If no
// micro-batch is left for a process in the last pass, it repeats micro-batch batches - 1 with all targets masked.
// Returns false with err if this process cannot read its data. With several processes, first completes this process's
// passes with zeros as tokens, because the other processes wait for these passes.
// Sets *accuracy to the fraction of right answers if the model has a vision tower and the data a loss mask, otherwise
// to NAN. An answer is a maximal run of unmasked targets in an example. An answer is right if each of its targets has
// the largest logit, so that sampling with --temperature 0 would generate the answer.
bool evaluate_loss(Model *m, DataLoader *loader, int batches, double *loss, double *accuracy, Error *err);

// Returns the number of HellaSwag examples that the model answers correctly, over all processes, which divide the work.
// Each pass is as long as the longest HellaSwag row, rounded up to a multiple of 64 tokens, but at most --seq-len.
int evaluate_hellaswag(Model *m, HellaSwag *set);

// Computes the logits (vocab) of the token that follows ids[0 .. count), from the last --seq-len tokens of ids.
// `incremental` is true if the previous call was for ids[0 .. count - 1). The pass then reads only the last token and
// the KV cache; if count exceeds --seq-len, the pass reads all of the last --seq-len tokens.
// FP8 matmuls need at least 16 tokens. With FP8, an incremental pass reads 16 tokens: from the last multiple of 16 that
// is not after the new token, or the last 16 of --seq-len. Zeros fill the rows after the new token. If an operand has
// one scale per tensor, these 16 tokens determine the scale.
void sample_logits(Model *m, const int32_t *ids, int count, bool incremental, float *logits);

// Samples up to `more` tokens, appends them to ids[0 .. count) and returns the new count.
//   - number: index of the sample, so that each sample draws different random numbers
//   - ends: EOS ids. The first EOS id that is drawn ends the sample and is the sample's last token; NULL if no token
//     ends the sample
//   - ended: set to true if an EOS id ended the sample, else to false; may be NULL
int sample_tokens(Model *m, int32_t *ids, int count, int more, int number, const SpecialIds *ends, bool *ended);

// Prints tokens, except those with the id `hidden`, and a newline to `out`: as text, or as ids if tokenizer is NULL. If
// `out` is a terminal, prints control characters as '?', except newlines and tabs.
void print_tokens(const Tokenizer *tokenizer, const int32_t *ids, int count, int hidden, FILE *out);
// Prints ,"name":[id, ...] to standard output, as a field of a JSON object.
void print_tokens_json(const char *name, const int32_t *ids, int count);

C_LINKAGE_END
