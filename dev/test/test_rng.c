// Tests of the counter-based random number generator: moments, tails, and independence of streams, seeds and
// neighboring numbers.
#include "coat/numerics/rng.h"
#include "dev/test/unit.h"

#define SAMPLES 1000000

UNIT_TEST(first_random_numbers_are_pinned) {
    assert_true(rng_hash(1, 2, 3) == rng_hash(1, 2, 3));
    assert_true(rng_hash(1, 2, 3) != rng_hash(2, 1, 3));
    assert_true(rng_hash(1, 2, 3) != rng_hash(1, 3, 2));
    // Pins the first random numbers, because a seed must give the same run in every version of the program.
    assert_true(rng_hash(0, 0, 0) == 0x0d460c6cd1b33096ULL);
    assert_true(rng_hash(42, 7, 1000000) == 0xb749869b11623fe7ULL);
}

UNIT_TEST(uniform_numbers_have_the_right_mean_and_variance) {
    double sum = 0, squares = 0;
    float smallest = 1, largest = 0;
    for (int i = 0; i < SAMPLES; i++) {
        float u = rng_uniform(5, 1, (uint64_t)i);
        sum += u;
        squares += (double)u * u;
        if (u < smallest) smallest = u;
        if (u > largest) largest = u;
    }
    double mean = sum / SAMPLES, variance = squares / SAMPLES - mean * mean;
    assert_true(fabs(mean - 0.5) < 5 * 0.2887 / 1000);
    assert_true(fabs(variance - 1.0 / 12) < 5e-4);
    assert_true(smallest >= 0.0f && smallest < 1e-5f);
    assert_true(largest < 1.0f && largest > 1.0f - 1e-5f);
}

UNIT_TEST(uniform_numbers_fill_all_buckets_equally) {
    enum { BUCKETS = 256 };
    int count[BUCKETS] = {0};
    for (int i = 0; i < SAMPLES; i++) count[(int)(rng_uniform(9, 3, (uint64_t)i) * BUCKETS)]++;
    double expected = (double)SAMPLES / BUCKETS, chi2 = 0;
    for (int b = 0; b < BUCKETS; b++) chi2 += (count[b] - expected) * (count[b] - expected) / expected;
    assert_true(chi2 > 150 && chi2 < 380); // chi-squared of 255 degrees of freedom: mean 255, standard deviation 22.6
}

UNIT_TEST(normal_numbers_have_the_right_moments_and_tails) {
    double sum[5] = {0};
    int beyond2 = 0, beyond4 = 0;
    for (int i = 0; i < SAMPLES; i++) {
        double x = rng_normal(1337, 0, (uint64_t)i), power = 1;
        assert_true(isfinite(x));
        for (int p = 1; p <= 4; p++) sum[p] += power *= x;
        beyond2 += fabs(x) > 2;
        beyond4 += fabs(x) > 4;
    }
    assert_true(fabs(sum[1] / SAMPLES) < 5e-3);
    assert_true(fabs(sum[2] / SAMPLES - 1) < 7e-3);
    assert_true(fabs(sum[3] / SAMPLES) < 2e-2);
    assert_true(fabs(sum[4] / SAMPLES - 3) < 6e-2);
    assert_true(abs(beyond2 - 45500) < 1100); // 4.55 % of normally distributed numbers are beyond 2 standard deviations
    assert_true(beyond4 > 30 && beyond4 < 100); // 63 of a million normal numbers are beyond 4 standard deviations
}

// Returns the correlation of two sequences of n uniform random numbers. Its standard deviation is 1 / sqrt(n).
static double correlation(uint64_t seed_a, uint64_t stream_a, uint64_t seed_b, uint64_t stream_b, uint64_t lag) {
    enum { N = 200000 };
    double sum = 0;
    for (uint64_t i = 0; i < N; i++)
        sum +=
            ((double)rng_uniform(seed_a, stream_a, i) - 0.5) * ((double)rng_uniform(seed_b, stream_b, i + lag) - 0.5);
    return sum / N * 12;
}

UNIT_TEST(neighboring_random_numbers_are_independent) {
    const double limit = 5 / sqrt(200000.0);
    for (uint64_t lag = 1; lag <= 64; lag *= 2) assert_true(fabs(correlation(1, 0, 1, 0, lag)) < limit);
    for (uint64_t d = 1; d <= 8; d++) {
        assert_true(fabs(correlation(1, 0, 1, d, 0)) < limit);
        assert_true(fabs(correlation(1, 0, 1 + d, 0, 0)) < limit);
        assert_true(fabs(correlation(d, 0, 0, d, 0)) < limit);
        assert_true(fabs(correlation(1, d, 1, d + 1, 1)) < limit);
    }
}

UNIT_TEST(every_input_bit_changes_every_bit_of_the_hash) {
    enum { TRIALS = 2000 };
    for (int argument = 0; argument < 3; argument++) {
        for (int bit = 0; bit < 64; bit++) {
            int flips[64] = {0};
            for (uint64_t trial = 0; trial < TRIALS; trial++) {
                uint64_t in[3] = {trial, trial * 3 + 1, trial * 7 + 5};
                uint64_t before = rng_hash(in[0], in[1], in[2]);
                in[argument] ^= 1ULL << bit;
                uint64_t change = before ^ rng_hash(in[0], in[1], in[2]);
                for (int b = 0; b < 64; b++) flips[b] += (int)(change >> b & 1);
            }
            for (int b = 0; b < 64; b++) assert_in_range(flips[b], TRIALS / 2 - 150, TRIALS / 2 + 150);
        }
    }
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

UNIT_TEST(random_streams_do_not_collide) {
    enum { SEEDS = 16, STREAMS = 64, INDICES = 128, COUNT = SEEDS * STREAMS * INDICES };
    static uint64_t values[COUNT];
    int n = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (uint64_t stream = 0; stream < STREAMS; stream++)
            for (uint64_t i = 0; i < INDICES; i++) values[n++] = rng_hash(seed, stream, i);
    qsort(values, COUNT, sizeof values[0], compare);
    for (int i = 1; i < COUNT; i++) assert_true(values[i] != values[i - 1]);
}

RUN_TESTS(NULL, NULL, NULL)
