#include "sampler.h"

#include <float.h>
#include <math.h>

#include "numerics/rng.h"

// random stream of the sampler, different from those of initialization and rounding
#define SAMPLER_STREAM 0x73616d706c65ULL
#define ROUNDING 1e-6 // tolerance for --top-p, which is a float, and for sums of probabilities

static bool drawable(float logit) {
    return !isnan(logit) && logit != -INFINITY;
}

// Returns an integer with the same order as the logits. Returns 0 for NaN and -inf, which must not be sampled.
static uint32_t order_key(float logit) {
    if (!drawable(logit)) return 0;
    uint32_t u = float_bits(logit + 0.0f); // + 0.0f turns -0 into +0, so that equal logits get equal keys
    return u >> 31 ? ~u : u | 0x80000000u;
}

static int argmax(const float *logits, int vocab) {
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (order_key(logits[i]) > order_key(logits[best])) best = i;
    return best;
}

// Returns the probability of a logit relative to that of the largest logit, `max`.
static double weight(float logit, float max, float temperature) {
    if (max == INFINITY) return logit == INFINITY ? 1.0 : 0.0;
    return exp(((double)logit - (double)max) / (double)temperature);
}

// A set of tokens to sample from: all tokens whose key is above `key`, and the first `ties` tokens whose key equals it.
typedef struct {
    uint32_t key;
    int ties;
} Threshold;

// True if the set contains the next token, whose key is given. Must be called for all tokens in the order of their ids,
// because it decrements t->ties.
static bool passes(Threshold *t, uint32_t key) {
    return key > t->key || (key == t->key && key != 0 && t->ties-- > 0);
}

// How tokens are weighted: by 1 if `counts`, otherwise by their probability relative to `max`.
typedef struct {
    bool counts;
    float max, temperature;
} Scale;

static double weigh(const Scale *s, float logit) {
    return s->counts ? 1.0 : weight(logit, s->max, s->temperature);
}

// Returns the smallest set of tokens of `within` with the largest keys whose weights sum to at least `needed` (> 0).
// Finds the set's lowest key byte by byte from the top, with one histogram per byte, so that no sorting is needed.
static Threshold find_threshold(const float *logits, int vocab, Threshold within, Scale scale, double needed) {
    Threshold t = {0, 0};
    for (int shift = 24; shift >= 0; shift -= 8) {
        double mass[256] = {0};
        int count[256] = {0};
        // mask of the key bytes that are already determined
        uint32_t fixed = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
        Threshold left = within;
        for (int i = 0; i < vocab; i++) {
            uint32_t key = order_key(logits[i]);
            if (!passes(&left, key) || (key & fixed) != t.key) continue;
            mass[(key >> shift) & 255] += weigh(&scale, logits[i]);
            count[(key >> shift) & 255]++;
        }
        int digit = 255;
        for (; digit > 0 && mass[digit] < needed; digit--) needed -= mass[digit];
        t.key |= (uint32_t)digit << shift;
        t.ties = count[digit]; // after the last byte, all these tokens have the same key and thus the same weight
        if (shift == 0 && needed < mass[digit]) t.ties = (int)ceil(needed * count[digit] / mass[digit]);
    }
    return t.key < within.key ? within : t; // rounding can make `needed` larger than the total weight
}

int sample_token(const float *logits, int vocab, float temperature, int top_k, float top_p, uint64_t seed,
                 uint64_t index) {
    if (vocab <= 0) return 0;
    int best = argmax(logits, vocab);
    if (!(temperature > 0.0f) || !drawable(logits[best])) return best;

    const Scale one = {true, 0.0f, 1.0f}, probability = {false, logits[best], temperature};
    Threshold threshold = {0, vocab};
    if (top_k > 0 && top_k < vocab) threshold = find_threshold(logits, vocab, threshold, one, top_k);
    if (top_p < 1.0f) {
        Threshold left = threshold;
        double all = 0.0, fraction = top_p > 0.0f ? (double)top_p : FLT_MIN;
        for (int i = 0; i < vocab; i++)
            if (passes(&left, order_key(logits[i]))) all += weigh(&probability, logits[i]);
        threshold = find_threshold(logits, vocab, threshold, probability, (1.0 - ROUNDING) * fraction * all);
    }

    // The first pass computes the total weight, the second finds the token at u * total. Both add in the same order.
    const double unit = 1.0 / 9007199254740992.0; // 2^-53
    double total = 0.0, target = 0.0;
    for (int pass = 0; pass < 2; pass++) {
        double sum = 0.0;
        Threshold left = threshold;
        int last = best;
        for (int i = 0; i < vocab; i++) {
            if (!passes(&left, order_key(logits[i]))) continue;
            double w = weigh(&probability, logits[i]);
            sum += w;
            if (pass == 1 && w > 0.0) {
                last = i;
                if (target < sum) return i;
            }
        }
        if (pass == 1) return last; // if rounding prevents a hit with u close to 1, returns the last token of the set
        total = sum;
        target = (double)(rng_hash(seed, SAMPLER_STREAM, index) >> 11) * unit * total;
    }
    return best;
}
