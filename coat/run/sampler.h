// Draws the next token of a sample from the model's logits.
#pragma once
#include <stdint.h>

// Returns a token drawn from softmax(logits / temperature) over logits[vocab]. The same arguments give the same token.
//   - If temperature is <= 0 or NaN, returns the token with the largest logit; among equal logits, the lowest id.
//   - If top_k is from 1 to vocab - 1, draws only from the top_k largest logits; among equal logits, the lower ids.
//   - If top_p is < 1, draws only from the nucleus: the smallest set of the most likely of these tokens that has at
//     least the fraction top_p (within 1e-6) of their total probability. Among equal logits, prefers the lower ids.
//   - index: number of the draw for this `seed`.
// NaN and -inf are never drawn. +inf wins over all finite logits. Returns 0 if no token can be drawn.
int sample_token(const float *logits, int vocab, float temperature, int top_k, float top_p, uint64_t seed,
                 uint64_t index);
