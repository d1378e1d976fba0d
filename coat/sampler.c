#include "sampler.h"

#include <math.h>

#include "rng.h"

#define SAMPLER_STREAM 0x73616d706c65ULL // apart from the streams of initialisation and rounding

static bool drawable(float logit) {
    return !isnan(logit) && logit != -INFINITY;
}

// An integer that orders as the logits do; 0 for what must not be drawn.
static uint32_t order_key(float logit) {
    if (!drawable(logit)) return 0;
    uint32_t u = float_bits(logit + 0.0f); // -0 becomes +0: equal logits get equal keys
    return u >> 31 ? ~u : u | 0x80000000u;
}

static int argmax(const float *logits, int vocab) {
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (order_key(logits[i]) > order_key(logits[best])) best = i;
    return best;
}

// What top-k leaves: every key above `key`, and the first `ties` tokens whose key is equal to it.
typedef struct {
    uint32_t key;
    int ties;
} Threshold;

// Finds the k-th largest key byte by byte from the top: no sorting, no memory.
static Threshold find_threshold(const float *logits, int vocab, int k) {
    Threshold t = {0, k};
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0};
        uint32_t fixed = shift == 24 ? 0 : 0xffffffffu << (shift + 8); // the bits found so far
        for (int i = 0; i < vocab; i++) {
            uint32_t key = order_key(logits[i]);
            if ((key & fixed) == t.key) count[(key >> shift) & 255]++;
        }
        int digit = 255;
        for (; digit > 0 && count[digit] < t.ties; digit--) t.ties -= count[digit];
        t.key |= (uint32_t)digit << shift;
    }
    return t;
}

// The probability of a logit relative to the largest one.
static double weight(float logit, float max, float temperature) {
    if (max == INFINITY) return logit == INFINITY ? 1.0 : 0.0;
    return exp(((double)logit - (double)max) / (double)temperature);
}

int sample_token(const float *logits, int vocab, float temperature, int top_k, uint64_t seed, uint64_t index) {
    if (vocab <= 0) return 0;
    int best = argmax(logits, vocab);
    if (!(temperature > 0.0f) || !drawable(logits[best])) return best;

    Threshold threshold = {0, vocab};
    if (top_k > 0 && top_k < vocab) threshold = find_threshold(logits, vocab, top_k);

    // Two passes over the same terms in the same order: the total, then the token where u * total falls.
    const double unit = 1.0 / 9007199254740992.0; // 2^-53
    double total = 0.0, target = 0.0;
    for (int pass = 0; pass < 2; pass++) {
        double sum = 0.0;
        int ties = threshold.ties, last = best;
        for (int i = 0; i < vocab; i++) {
            uint32_t key = order_key(logits[i]);
            if (key == 0 || key < threshold.key || (key == threshold.key && ties-- <= 0)) continue;
            double w = weight(logits[i], logits[best], temperature);
            sum += w;
            if (pass == 1 && w > 0.0) {
                last = i;
                if (target < sum) return i;
            }
        }
        if (pass == 1) return last; // u close to 1 and rounding: the last token that can be drawn
        total = sum;
        target = (double)(rng_hash(seed, SAMPLER_STREAM, index) >> 11) * unit * total;
    }
    return best;
}
