#include "sampler.h"

#include <float.h>
#include <math.h>

#include "numerics/rng.h"

// Random stream of the sampler; initialization and rounding use other streams.
#define SAMPLER_STREAM 0x73616d706c65ULL
#define ROUNDING 1e-6 // relative tolerance for the rounding of --top-p and of sums of probabilities

static bool drawable(float logit) {
    return !isnan(logit) && logit != -INFINITY;
}

// Returns a key that orders logits as integers. Returns 0 for NaN and -inf, which must not be sampled.
static uint32_t order_key(float logit) {
    if (!drawable(logit)) return 0;
    uint32_t u = float_bits(logit + 0.0f); // + 0.0f turns -0 into +0, which must have the same key
    return u >> 31 ? ~u : u | 0x80000000u;
}

static int argmax(const float *logits, int vocab) {
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (order_key(logits[i]) > order_key(logits[best])) best = i;
    return best;
}

// Returns the probability of a token with this logit, divided by the probability of a token with logit `max`.
static double weight(float logit, float max, float temperature) {
    if (max == INFINITY) return logit == INFINITY ? 1.0 : 0.0;
    return exp(((double)logit - (double)max) / (double)temperature);
}

// Set of tokens to sample from: all tokens whose key exceeds `key`, and the first `ties` tokens whose key equals `key`.
typedef struct {
    uint32_t key;
    int ties;
} Threshold;

// True if t's set of tokens to sample from contains the next token, whose key is `key`. Call this function once per
// token, in the order of token ids, because passes() counts tokens with the key t->key by decrementing t->ties.
static bool passes(Threshold *t, uint32_t key) {
    return key > t->key || (key == t->key && key != 0 && t->ties-- > 0);
}

// Weight of a token: 1 if `counts`, otherwise the token's probability relative to a token with logit `max`.
typedef struct {
    bool counts;
    float max, temperature;
} Scale;

static double weigh(const Scale *s, float logit) {
    return s->counts ? 1.0 : weight(logit, s->max, s->temperature);
}

// Returns the smallest set of tokens of `within` whose weights sum to at least `needed` (> 0). Chooses the tokens with
// the largest keys. Finds the lowest key byte by byte, from the top, with one histogram per byte, so that nothing is
// sorted.
static Threshold find_threshold(const float *logits, int vocab, Threshold within, Scale scale, double needed) {
    Threshold t = {0, 0};
    for (int shift = 24; shift >= 0; shift -= 8) {
        double mass[256] = {0};
        int count[256] = {0};
        // mask of the key's bytes that are already known
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
        t.ties = count[digit]; // after the last byte, these tokens have equal keys and thus equal weights
        if (shift == 0 && needed < mass[digit]) t.ties = (int)ceil(needed * count[digit] / mass[digit]);
    }
    return t.key < within.key ? within : t; // `needed` may exceed the total weight by rounding
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

    // Pass 0 computes the total weight. Pass 1 adds the weights in the same order, up to a random part of the total.
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
        // If the random number is close to 1, rounding may leave `target` above the sum. The result is then the set's
        // last token.
        if (pass == 1) return last;
        total = sum;
        target = (double)(rng_hash(seed, SAMPLER_STREAM, index) >> 11) * unit * total;
    }
    return best;
}
