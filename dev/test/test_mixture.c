// Tests of the mixture of training data sets (coat/text/mixture.h). Every set gets its fraction of the sequences, its
// sequences stay in order, and any position can be computed directly.
#include "coat/text/mixture.h"
#include "dev/test/unit.h"

#define BLOCKS 40

typedef struct {
    int sets;
    double weights[MAX_SETS];
} Case;

static const Case cases[] = {
    {2, {0.7, 0.3}}, {2, {1, 1}},           {2, {1e-9, 1e9}}, {3, {50, 30, 20}}, {3, {1, 1, 1}},
    {1, {0.25}},     {5, {1, 2, 4, 8, 16}}, {2, {1, 1023}},   {2, {1e6, 1}},
};
#define CASES (sizeof cases / sizeof *cases)

// The mixture takes each set's sequences in order, without skipping or repeating any. mixture_count() gives their
// number before any position.
UNIT_TEST(every_set_is_read_in_order) {
    for (size_t c = 0; c < CASES; c++) {
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            Mixture mixture;
            int64_t next[MAX_SETS] = {0}, index;
            mixture_open(&mixture, cases[c].weights, cases[c].sets, 7, shuffle);
            for (int64_t position = 0; position < BLOCKS * MIXTURE_BLOCK; position++) {
                if (position % 37 == 0)
                    for (int k = 0; k < cases[c].sets; k++)
                        assert_int_equal(mixture_count(&mixture, k, position), next[k]);
                const int set = mixture_at(&mixture, position, &index);
                assert_in_range(set, 0, cases[c].sets - 1);
                assert_int_equal(index, next[set]++);
            }
        }
    }
}

// Without shuffling, the number of sequences that each set has provided up to a position is within 1 of its fraction.
UNIT_TEST(every_set_gets_its_fraction) {
    for (size_t c = 0; c < CASES; c++) {
        Mixture mixture;
        double sum = 0;
        mixture_open(&mixture, cases[c].weights, cases[c].sets, 7, false);
        for (int k = 0; k < cases[c].sets; k++) sum += cases[c].weights[k];
        for (int64_t position = 0; position < BLOCKS * MIXTURE_BLOCK; position += 5)
            for (int k = 0; k < cases[c].sets; k++) {
                const double off =
                    (double)mixture_count(&mixture, k, position) - (double)position * cases[c].weights[k] / sum;
                assert_true(off <= 1.0 && off >= -1.0);
            }
    }
}

// With shuffling, the order of the sets is random and depends on the seed. The set at any position can be computed
// without the positions before.
UNIT_TEST(the_order_of_sets_is_random_and_depends_on_the_seed) {
    enum { COUNT = 4 * MIXTURE_BLOCK };
    Mixture a, b, even, again;
    int64_t index, other;
    int by_seed = 0, by_shuffle = 0, by_block = 0, set[COUNT];
    const double weights[] = {3, 2, 1};
    mixture_open(&a, weights, 3, 1, true);
    mixture_open(&b, weights, 3, 2, true);
    mixture_open(&even, weights, 3, 1, false);
    for (int64_t i = 0; i < COUNT; i++) {
        set[i] = mixture_at(&a, i, &index);
        by_seed += mixture_at(&b, i, &index) != set[i];
        by_shuffle += mixture_at(&even, i, &index) != set[i];
        by_block += i >= MIXTURE_BLOCK && set[i] != set[i - MIXTURE_BLOCK];
    }
    // Two seeds are expected to choose different sets at 1 - 1/4 - 1/9 - 1/36 = 0.61 of the positions.
    assert_in_range(by_seed, COUNT / 2, COUNT * 3 / 4);
    assert_in_range(by_shuffle, COUNT / 2, COUNT * 3 / 4);
    assert_in_range(by_block, COUNT * 3 / 8, COUNT * 9 / 16);
    for (int64_t i = 0; i < COUNT; i++) {
        const int64_t at = i * 619 % COUNT;
        mixture_open(&again, weights, 3, 1, true);
        assert_int_equal(mixture_at(&a, at, &index), set[at]);
        assert_int_equal(mixture_at(&again, at, &other), set[at]);
        assert_int_equal(index, other);
    }
}

// Only the ratio of the sets' weights matters. Positions near INT64_MAX are correct.
UNIT_TEST(only_the_ratio_of_weights_matters) {
    Mixture a, b;
    int64_t one, other;
    const double fractions[] = {0.7, 0.3}, tens[] = {7, 3};
    mixture_open(&a, fractions, 2, 5, true);
    mixture_open(&b, tens, 2, 5, true);
    for (int64_t i = 0; i < 2 * MIXTURE_BLOCK; i++) {
        assert_int_equal(mixture_at(&a, i, &one), mixture_at(&b, i, &other));
        assert_int_equal(one, other);
    }
    const int64_t far = INT64_MAX - 5;
    const int set = mixture_at(&a, far, &one);
    assert_int_equal(mixture_count(&a, set, far), one);
    assert_int_equal(mixture_count(&a, 0, far) + mixture_count(&a, 1, far), far);
    const double share = (double)mixture_count(&a, 0, far) / (double)far;
    assert_true(share > 0.7 - 1e-9 && share < 0.7 + 1e-9);
}

RUN_TESTS(NULL, NULL, NULL)
