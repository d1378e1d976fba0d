// Tests of the sampler: distribution, temperature, top-k with ties, logits that are not numbers.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "coat/sampler.h"

enum { DRAWS = 100000 };

// Draws DRAWS tokens and counts them.
static void draw(const float *logits, int vocab, float temperature, int top_k, int *count) {
    for (int i = 0; i < vocab; i++) count[i] = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        int token = sample_token(logits, vocab, temperature, top_k, 1, i);
        assert_in_range(token, 0, vocab - 1);
        count[token]++;
    }
}

static void assert_share(int count, double share) {
    double deviation = sqrt(share * (1 - share) / DRAWS);
    assert_true(fabs((double)count / DRAWS - share) <= 5 * deviation);
}

static void distribution_is_softmax(void **state) {
    (void)state;
    const float logits[4] = {logf(1), logf(2), logf(3), logf(4)};
    int count[4];
    draw(logits, 4, 1.0f, 0, count);
    for (int i = 0; i < 4; i++) assert_share(count[i], (i + 1) / 10.0);
    draw(logits, 4, 0.5f, 0, count); // squares of the weights
    for (int i = 0; i < 4; i++) assert_share(count[i], (i + 1) * (i + 1) / 30.0);
    draw(logits, 4, INFINITY, 0, count);
    for (int i = 0; i < 4; i++) assert_share(count[i], 0.25);
}

static void shift_does_not_matter(void **state) {
    (void)state;
    const float low[3] = {-1000, -1001, -1002}, high[3] = {1000, 999, 998};
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(sample_token(low, 3, 1, 0, 7, i), sample_token(high, 3, 1, 0, 7, i));
    const float huge[3] = {3e38f, -3e38f, 3e38f};
    int count[3];
    draw(huge, 3, 1, 0, count);
    assert_int_equal(count[1], 0);
    assert_share(count[0], 0.5);
}

static void temperature_zero_is_argmax(void **state) {
    (void)state;
    const float logits[5] = {1, 3, 2, 3, -1};
    for (uint64_t i = 0; i < 50; i++) {
        assert_int_equal(sample_token(logits, 5, 0, 0, i, i), 1);
        assert_int_equal(sample_token(logits, 5, -1, 0, i, i), 1);
        assert_int_equal(sample_token(logits, 5, NAN, 0, i, i), 1);
        assert_int_equal(sample_token(logits, 5, 5, 1, i, i), 1);
        assert_true(sample_token(logits, 5, 1e-30f, 0, i, i) % 2 == 1);
    }
}

static void top_k_keeps_the_largest(void **state) {
    (void)state;
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

static void top_k_ties_keep_lower_ids(void **state) {
    (void)state;
    const float logits[6] = {0.0f, 1, -0.0f, 0.0f, 1, -1}; // -0 and 0 are equal
    int count[6];
    draw(logits, 6, 1, 4, count);
    assert_true(count[0] > 0 && count[1] > 0 && count[2] > 0 && count[4] > 0);
    assert_int_equal(count[3] + count[5], 0);
    const float equal[5] = {2, 2, 2, 2, 2};
    draw(equal, 5, 1, 2, count);
    assert_share(count[0], 0.5);
    assert_int_equal(count[0] + count[1], DRAWS);
}

// Every k against a plain definition: how many logits are larger, or equal with a lower id.
static void top_k_agrees_with_definition(void **state) {
    (void)state;
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

static void bad_logits_are_never_drawn(void **state) {
    (void)state;
    const float mixed[5] = {NAN, 1, -INFINITY, 1, -NAN};
    int count[5];
    for (int k = 0; k <= 5; k++) {
        draw(mixed, 5, 1, k, count);
        assert_int_equal(count[1] + count[3], DRAWS);
    }
    draw(mixed, 5, INFINITY, 0, count);
    assert_int_equal(count[1] + count[3], DRAWS);
    assert_int_equal(sample_token(mixed, 5, 0, 0, 1, 1), 1);

    const float infinite[4] = {5, INFINITY, NAN, INFINITY};
    draw(infinite, 4, 1, 0, count);
    assert_share(count[1], 0.5);
    assert_int_equal(count[1] + count[3], DRAWS);

    const float nothing[3] = {NAN, -INFINITY, NAN};
    assert_int_equal(sample_token(nothing, 3, 1, 2, 1, 1), 0);
    assert_int_equal(sample_token(nothing, 0, 1, 2, 1, 1), 0);
}

static void seeds_and_indices_differ(void **state) {
    (void)state;
    float logits[64] = {0};
    int same_seed = 0, same_index = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        int token = sample_token(logits, 64, 1, 0, 3, i);
        assert_int_equal(token, sample_token(logits, 64, 1, 0, 3, i));
        same_seed += token == sample_token(logits, 64, 1, 0, 4, i);
        same_index += token == sample_token(logits, 64, 1, 0, 3, i + 1);
    }
    assert_in_range(same_seed, 1, 40); // 1 in 64 by chance
    assert_in_range(same_index, 1, 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribution_is_softmax),    cmocka_unit_test(shift_does_not_matter),
        cmocka_unit_test(temperature_zero_is_argmax), cmocka_unit_test(top_k_keeps_the_largest),
        cmocka_unit_test(top_k_ties_keep_lower_ids),  cmocka_unit_test(top_k_agrees_with_definition),
        cmocka_unit_test(bad_logits_are_never_drawn), cmocka_unit_test(seeds_and_indices_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
