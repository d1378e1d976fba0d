// Draws the next token of a sample from the model's logits.
#pragma once
#include <stdint.h>

// Returns a token drawn from softmax(logits / temperature) over logits[vocab]. Equal arguments give equal tokens.
//   temperature <= 0 or NaN: returns the largest logit; of equal ones, the lowest id
//   top_k: draws only from the top_k largest logits; of equal ones, the lower ids. <= 0 or >= vocab: from all
//   top_p: then only from the nucleus, the fewest most likely tokens whose probabilities sum to top_p (to 1e-6), and at
//          least from one; of equal ones, the lower ids. >= 1 or NaN: from all
//   index: number of the draw under `seed`
// NaN and -inf are never drawn. +inf wins over all finite logits. Returns 0 if no token can be drawn.
int sample_token(const float *logits, int vocab, float temperature, int top_k, float top_p, uint64_t seed,
                 uint64_t index);
