// Tests of the sampler of tokens: its distribution, temperature, top-k and top-p with ties, and NaN and inf logits.
#include <math.h>

#include "coat/run/sampler.h"
#include "dev/test/unit.h"

#ifdef __SANITIZE_ADDRESS__
enum { DRAWS = 10000 }; // Fewer draws suffice for AddressSanitizer, which only looks for memory errors.
#else
enum { DRAWS = 100000 };
#endif

// Draws DRAWS tokens. Sets count[i] to the number of times that token i was drawn.
static void draw_top_p(const float *logits, int vocab, float temperature, int top_k, float top_p, int *count) {
    for (int i = 0; i < vocab; i++) count[i] = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        int token = sample_token(logits, vocab, temperature, top_k, top_p, 1, i);
        assert_in_range(token, 0, vocab - 1);
        count[token]++;
    }
}

static void draw(const float *logits, int vocab, float temperature, int top_k, int *count) {
    draw_top_p(logits, vocab, temperature, top_k, 1, count);
}

static void assert_share(int count, double share) {
    double deviation = sqrt(share * (1 - share) / DRAWS);
    assert_true(fabs((double)count / DRAWS - share) <= 5 * deviation);
}

UNIT_TEST(tokens_are_drawn_with_softmax_probabilities) {
    const float logits[4] = {logf(1), logf(2), logf(3), logf(4)};
    int count[4];
    draw(logits, 4, 1.0f, 0, count);
    for (int i = 0; i < 4; i++) assert_share(count[i], (i + 1) / 10.0);
    draw(logits, 4, 0.5f, 0, count); // Temperature 0.5 squares the probabilities.
    for (int i = 0; i < 4; i++) assert_share(count[i], (i + 1) * (i + 1) / 30.0);
    draw(logits, 4, INFINITY, 0, count);
    for (int i = 0; i < 4; i++) assert_share(count[i], 0.25);
}

UNIT_TEST(adding_a_constant_to_logits_changes_nothing) {
    const float low[3] = {-1000, -1001, -1002}, high[3] = {1000, 999, 998};
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(sample_token(low, 3, 1, 0, 1, 7, i), sample_token(high, 3, 1, 0, 1, 7, i));
    const float huge[3] = {3e38f, -3e38f, 3e38f};
    int count[3];
    draw(huge, 3, 1, 0, count);
    assert_int_equal(count[1], 0);
    assert_share(count[0], 0.5);
}

UNIT_TEST(temperature_zero_is_argmax) {
    const float logits[5] = {1, 3, 2, 3, -1};
    for (uint64_t i = 0; i < 50; i++) {
        assert_int_equal(sample_token(logits, 5, 0, 0, 1, i, i), 1);
        assert_int_equal(sample_token(logits, 5, -1, 0, 1, i, i), 1);
        assert_int_equal(sample_token(logits, 5, NAN, 0, 1, i, i), 1);
        assert_int_equal(sample_token(logits, 5, 5, 1, 1, i, i), 1);
        assert_true(sample_token(logits, 5, 1e-30f, 0, 1, i, i) % 2 == 1);
    }
}

UNIT_TEST(top_k_keeps_the_largest) {
    const float logits[6] = {0.5f, -2, 1, 0.25f, -0.5f, 2};
    int count[6];
    draw(logits, 6, 1, 3, count);
    assert_true(count[0] > 0 && count[2] > 0 && count[5] > 0);
    assert_int_equal(count[0] + count[2] + count[5], DRAWS);
    draw(logits, 6, 1, 100, count);
    for (int i = 0; i < 6; i++) assert_true(count[i] > 0);
    draw(logits, 6, 1, -1, count);
    for (int i = 0; i < 6; i++) assert_true(count[i] > 0);
}

UNIT_TEST(top_k_ties_keep_lower_ids) {
    const float logits[6] = {0.0f, 1, -0.0f, 0.0f, 1, -1}; // logits of -0 and 0 are a tie
    int count[6];
    draw(logits, 6, 1, 4, count);
    assert_true(count[0] > 0 && count[1] > 0 && count[2] > 0 && count[4] > 0);
    assert_int_equal(count[3] + count[5], 0);
    const float equal[5] = {2, 2, 2, 2, 2};
    draw(equal, 5, 1, 2, count);
    assert_share(count[0], 0.5);
    assert_int_equal(count[0] + count[1], DRAWS);
}

// For every k, top-k must exclude exactly the tokens for which k other logits are larger, or equal with a lower id.
UNIT_TEST(top_k_agrees_with_definition) {
    enum { V = 40 };
    float logits[V];
    for (int i = 0; i < V; i++) logits[i] = (float)((i * 37 % 23) - 11) / 8.0f;
    int count[V];
    for (int k = 1; k <= V; k += 3) {
        draw(logits, V, 3, k, count);
        for (int i = 0; i < V; i++) {
            int rank = 0;
            for (int j = 0; j < V; j++) rank += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
            assert_int_equal(count[i] > 0, rank < k);
        }
    }
}

// Top-p keeps the fewest tokens whose total probability reaches p, and draws each in proportion to its probability.
UNIT_TEST(top_p_keeps_the_most_likely) {
    const double share[5] = {0.1, 0.4, 0.05, 0.25, 0.2};
    float logits[5];
    // Adding a constant to all logits must not change the distribution.
    for (int i = 0; i < 5; i++) logits[i] = (float)log(share[i]) - 40.0f;
    static const struct {
        float p;
        int kept[5]; // kept[i]: 1 if top-p keeps token i, otherwise 0
    } cases[] = {
        {1e-30f, {0, 1, 0, 0, 0}}, {0.3f, {0, 1, 0, 0, 0}},  {0.399f, {0, 1, 0, 0, 0}}, {0.401f, {0, 1, 0, 1, 0}},
        {0.65f, {0, 1, 0, 1, 0}},  {0.66f, {0, 1, 0, 1, 1}}, {0.9f, {1, 1, 0, 1, 1}},   {0.999999f, {1, 1, 1, 1, 1}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        double sum = 0;
        int count[5];
        for (int i = 0; i < 5; i++) sum += cases[c].kept[i] ? share[i] : 0;
        draw_top_p(logits, 5, 1, 0, cases[c].p, count);
        for (int i = 0; i < 5; i++) assert_share(count[i], cases[c].kept[i] ? share[i] / sum : 0);
    }
}

// For many values of p, top-p must keep exactly the tokens for which the total probability of more likely tokens is
// below p. If tokens are equally likely, the lower id comes first. Temperature is applied before top-p.
UNIT_TEST(top_p_agrees_with_definition) {
    enum { V = 40, FEW = 20000 };
    const float temperatures[2] = {0.7f, 3};
    float logits[V];
    for (int i = 0; i < V; i++) logits[i] = (float)((i * 37 % 23) - 11) / 8.0f;
    for (int k = 0; k <= V; k += 14) { // value of top-k; 0: all tokens
        for (int c = 0; c < 2; c++) {
            double likely[V], all = 0;
            int rank[V]; // rank of each token by probability
            for (int i = 0; i < V; i++) {
                rank[i] = 0;
                for (int j = 0; j < V; j++) rank[i] += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
                likely[i] = k > 0 && rank[i] >= k ? 0 : exp(logits[i] / (double)temperatures[c]);
                all += likely[i];
            }
            for (float p = 0.05f; p < 1; p += 0.223f) {
                int count[V] = {0};
                for (uint64_t i = 0; i < FEW; i++) count[sample_token(logits, V, temperatures[c], k, p, 1, i)]++;
                for (int i = 0; i < V; i++) {
                    double before = 0; // total probability of the tokens that are more likely than token i
                    for (int j = 0; j < V; j++) before += rank[j] < rank[i] ? likely[j] : 0;
                    assert_int_equal(count[i] > 0, likely[i] > 0 && before < (double)p * all * (1 - 1e-6));
                }
            }
        }
    }
}

UNIT_TEST(top_p_with_nan_inf_and_equal_logits) {
    const float equal[10] = {3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, mixed[5] = {NAN, 1, -INFINITY, 1, 0};
    const float infinite[4] = {5, INFINITY, NAN, INFINITY},
                far[3] = {0, -2000, 2000}; // one token has the whole probability
    int count[10];
    // Top-p keeps 10 p of ten equally likely tokens, although the float 0.3f is slightly more than 0.3.
    for (int tenths = 1; tenths < 10; tenths++) {
        draw_top_p(equal, 10, 1, 0, (float)tenths / 10, count);
        for (int i = 0; i < 10; i++) assert_share(count[i], i < tenths ? 1.0 / tenths : 0);
    }
    draw_top_p(equal, 10, 1, 4, 0.5f, count); // Top-p 0.5 keeps half of the four tokens that top-k keeps.
    assert_share(count[0], 0.5);
    assert_int_equal(count[0] + count[1], DRAWS);
    draw_top_p(mixed, 5, 1, 0, 0.3f, count);
    assert_int_equal(count[1], DRAWS);
    draw_top_p(infinite, 4, 1, 0, 0.4f, count);
    assert_int_equal(count[1], DRAWS);
    draw_top_p(infinite, 4, 1, 0, 0.9f, count);
    assert_share(count[3], 0.5);
    draw_top_p(far, 3, 1, 0, 0.999999f, count);
    assert_int_equal(count[2], DRAWS);
    const float none[4] = {1e-45f, 0, -1, -INFINITY}; // top-p always keeps the most likely token, however small p is
    for (int i = 0; i < 4; i++) assert_int_equal(sample_token(far, 3, 1, 0, none[i], 1, 1), 2);
    assert_int_equal(sample_token(mixed, 5, 0, 0, 0.5f, 1, 1), 1);
    const float nothing[3] = {NAN, -INFINITY, NAN};
    assert_int_equal(sample_token(nothing, 3, 1, 0, 0.5f, 1, 1), 0);
}

// Pins the tokens that are drawn without top-p, because a seed must give the same tokens in every version.
UNIT_TEST(drawn_tokens_are_pinned) {
    static const struct {
        float temperature;
        int top_k, tokens[16];
    } drawn[] = {
        {1, 0, {9, 8, 26, 36, 49, 32, 29, 37, 23, 13, 41, 36, 49, 6, 26, 44}},
        {0.5f, 7, {8, 8, 18, 36, 41, 31, 31, 36, 18, 13, 41, 36, 41, 8, 18, 41}},
        {1, 12, {13, 8, 26, 36, 49, 31, 31, 36, 21, 13, 41, 36, 49, 8, 26, 44}},
    };
    const float off[3] = {1, 2, NAN};
    float logits[50];
    for (int i = 0; i < 50; i++) logits[i] = (float)((i * 37 % 23) - 11) / 8.0f;
    for (int c = 0; c < 3; c++)
        for (uint64_t i = 0; i < 16; i++)
            assert_int_equal(sample_token(logits, 50, drawn[c].temperature, drawn[c].top_k, off[c], 42, i),
                             drawn[c].tokens[i]);
}

UNIT_TEST(nan_and_minus_inf_are_never_drawn) {
    const float mixed[5] = {NAN, 1, -INFINITY, 1, -NAN};
    int count[5];
    for (int k = 0; k <= 5; k++) {
        draw(mixed, 5, 1, k, count);
        assert_int_equal(count[1] + count[3], DRAWS);
    }
    draw(mixed, 5, INFINITY, 0, count);
    assert_int_equal(count[1] + count[3], DRAWS);
    assert_int_equal(sample_token(mixed, 5, 0, 0, 1, 1, 1), 1);

    const float infinite[4] = {5, INFINITY, NAN, INFINITY};
    draw(infinite, 4, 1, 0, count);
    assert_share(count[1], 0.5);
    assert_int_equal(count[1] + count[3], DRAWS);

    const float nothing[3] = {NAN, -INFINITY, NAN};
    assert_int_equal(sample_token(nothing, 3, 1, 2, 1, 1, 1), 0);
    assert_int_equal(sample_token(nothing, 0, 1, 2, 1, 1, 1), 0);
}

UNIT_TEST(seeds_and_indices_give_different_tokens) {
    float logits[64] = {0};
    int same_seed = 0, same_index = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        int token = sample_token(logits, 64, 1, 0, 1, 3, i);
        assert_int_equal(token, sample_token(logits, 64, 1, 0, 1, 3, i));
        same_seed += token == sample_token(logits, 64, 1, 0, 1, 4, i);
        same_index += token == sample_token(logits, 64, 1, 0, 1, 3, i + 1);
    }
    assert_in_range(same_seed, 1, 40); // one in 64 draws is expected to be equal
    assert_in_range(same_index, 1, 40);
}

RUN_TESTS(NULL, NULL, NULL)
