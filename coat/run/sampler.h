// Choosing the next token from the model's logits.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A token drawn from softmax(logits / temperature) over the top_k largest of logits[vocab]; top_k <= 0 or
// >= vocab: all of them. Of logits equal to the k-th largest the lower ids are kept, so that exactly top_k remain.
// top_p: of these only the nucleus, the fewest most likely tokens whose probabilities sum to top_p (to one part in a
// million: 0.3 of ten equal tokens is three), of equal ones the lower ids; at least one. top_p >= 1 (or NaN): all.
// temperature <= 0 (or NaN): the largest logit, of equal ones the lowest id. The same arguments give the same token.
// NaN and -inf are never drawn; +inf wins over all finite logits. With nothing left to draw from the answer
// is token 0. No errors.
int sample_token(const float *logits, int vocab, float temperature, int top_k, float top_p, uint64_t seed,
                 uint64_t index);

#ifdef __cplusplus
}
#endif
