// Measures the errors of 8-bit moments (COAT, section 4) after one rounding, after a hundred, and over 10,000 updates
// compared with FP32 moments. Gradients are constant, alternate in sign, occur once in 100 steps, or are noise. Prints
// tables. Asserts the limits that training relies on, with nearest rounding at beta2 = 0.95.
#include "dev/test/unit.h"
#include "moment_drift.h"
#include "moment_groups.h"

enum { COUNT = 4 * GROUP };

static const MomentStore coat = {true, false}, fp8 = {false, false};

typedef enum { NEAREST, PUBLISHED, RULES } Rule;

static const char *const rule_names[RULES] = {"nearest", "published k, nearest"};

// Rounds a group of moments with the paper's rule for the exponent, k = log(448^2 / 2) / log R. This rule places the
// smallest element between two FP8 values.
static void round_published(float *x, bool second) {
    uint32_t largest = 0, smallest = 0x7f800000u;
    for (int i = 0; i < GROUP; i++) {
        uint32_t bits = float_bits(x[i]) & 0x7fffffffu;
        if (bits > largest) largest = bits;
        if (bits && bits < smallest) smallest = bits;
    }
    double range = largest ? log2((double)bits_float(largest)) - log2((double)bits_float(smallest)) : 0;
    double k = floor(16 * log2(448.0 * 448.0 / 2) / range);
    MomentGroup group = moment_group(bits_float(largest), (uint8_t)(k < 1 ? 1 : k < 255 ? k : 255), FMT_E4M3);
    for (int i = 0; i < GROUP; i++) x[i] = moment_decode(moment_encode(x[i], group, FMT_E4M3, second), group, FMT_E4M3);
}

static void round_group(float *x, Rule rule, bool second) {
    Stored s;
    MomentStore how = {true, second};
    if (rule == PUBLISHED) {
        round_published(x, second);
        return;
    }
    store(&s, x, GROUP, FMT_E4M3, &how);
    load(&s, x, GROUP, FMT_E4M3);
}

static DriftSums simulate(Pattern pattern, Rule rule, double beta2, double spread) {
    static float size[COUNT], m[COUNT], v[COUNT], m_exact[COUNT], v_exact[COUNT];
    const float b1 = 0.9f, b2 = (float)beta2;
    for (int i = 0; i < COUNT; i++) {
        size[i] = drift_size(spread, i);
        m[i] = v[i] = m_exact[i] = v_exact[i] = 0;
    }
    DriftSums sums = {0};
    for (int64_t t = 1; t <= STEPS; t++) {
        double c1 = 1 / (1 - pow((double)b1, (double)t)), c2 = 1 / (1 - pow((double)b2, (double)t));
        for (int i = 0; i < COUNT; i++) {
            float g = drift_gradient(pattern, size[i], t, i);
            m[i] = b1 * m[i] + (1 - b1) * g;
            v[i] = b2 * v[i] + (1 - b2) * g * g;
            m_exact[i] = b1 * m_exact[i] + (1 - b1) * g;
            v_exact[i] = b2 * v_exact[i] + (1 - b2) * g * g;
            if (t <= STEPS - MEASURED) continue;
            double update = (double)m[i] * c1 / (sqrt((double)v[i] * c2) + 1e-8);
            double exact = (double)m_exact[i] * c1 / (sqrt((double)v_exact[i] * c2) + 1e-8);
            drift_add(&sums, update, exact, (double)v[i], (double)v_exact[i]);
        }
        for (int i = 0; i < COUNT; i += GROUP) {
            round_group(m + i, rule, false);
            round_group(v + i, rule, true);
        }
    }
    return sums;
}

static Drift print_row(Pattern pattern, Rule rule, double beta2, double spread) {
    DriftSums sums = simulate(pattern, rule, beta2, spread);
    Drift d = drift_of(&sums);
    print_message("# %-11s  beta2 %.3f  spread %.1f  %-20s  v %+6.2f %%   update %5.2f %%   rate %+6.2f %%\n",
                  pattern_names[pattern], beta2, spread, rule_names[rule], 100 * d.v_mean, 100 * d.update,
                  100 * d.rate);
    return d;
}

// With the default rule for k, 8-bit moments stay close to FP32 moments, for gradients whose spread is a factor e^0.5.
UNIT_TEST(default_moments_stay_close_to_fp32_over_10000_updates) {
    for (int p = 0; p < PATTERNS; p++)
        assert_true(drift_is_small(print_row((Pattern)p, NEAREST, 0.95, 0.5), (Pattern)p));
}

// With the paper's rule for k, repeated rounding changes FP8 values, so moments drift farther from FP32 moments.
UNIT_TEST(moments_with_the_papers_rule_for_k_drift_farther) {
    for (int p = 0; p < PATTERNS; p++) {
        print_row((Pattern)p, NEAREST, 0.999, 0.5);
        Drift fixed_point = print_row((Pattern)p, NEAREST, 0.95, 0.5);
        assert_true(print_row((Pattern)p, PUBLISHED, 0.95, 0.5).update > fixed_point.update);
    }
}

// With noise as gradients and beta2 near 1, nearest rounding makes the second moment v too small and updates too large.
UNIT_TEST(nearest_rounding_with_beta2_near_1_makes_updates_too_large) {
    Drift nearest = print_row(NOISE, NEAREST, 0.999, 0.5);
    assert_true(nearest.v_mean < -0.1 && nearest.rate > 0.05);
}

// With beta2 near 1, one step changes the second moment v by less than half the distance between FP8 values, so nearest
// rounding does not change v. Each element has a gradient in one of 100 steps, and all these gradients have one size.
UNIT_TEST(nearest_rounding_with_beta2_near_1_leaves_v_unchanged) {
    Drift nearest = print_row(RARE, NEAREST, 0.999, 0);
    assert_true(fabs(nearest.v_mean) > 0.1 && nearest.update > 0.1);
}

static double mean_error(double spread, const MomentStore *how, int times) {
    double sum = 0;
    for (uint64_t g = 0; g < SPREAD_GROUPS; g++) {
        float x[GROUP], y[GROUP];
        Stored s;
        lognormal(x, GROUP, spread, true, SPREAD_STREAM + g);
        memcpy(y, x, sizeof x);
        for (int i = 0; i < times; i++) {
            store(&s, y, GROUP, FMT_E4M3, how);
            load(&s, y, GROUP, FMT_E4M3);
        }
        sum += relative_error(x, y, GROUP) / SPREAD_GROUPS;
    }
    return 100 * sum;
}

UNIT_TEST(rounding_errors_of_lognormal_groups) {
    for (int i = 0; i < SPREADS; i++) {
        const SpreadError *row = &spread_errors[i];
        double expanded = mean_error(row->spread, &coat, 1), plain = mean_error(row->spread, &fp8, 1);
        print_message("# spread %.1f: expanded %.2f %%, plain %.2f %%\n", row->spread, expanded, plain);
        assert_true(fabs(expanded / row->expanded - 1) < SPREAD_MARGIN);
        assert_true(fabs(plain / row->plain - 1) < SPREAD_MARGIN);
    }
}

// Rounding a decoded group a second time gives the same FP8 values. There is one exception: if the first rounding made
// the exponent k too small, the first repetition may increase k once.
UNIT_TEST(rounding_decoded_values_again_changes_nothing) {
    static const double spreads[] = {0.1, 0.5, 1, 2, 4};
    for (int d = 0; d < 5; d++) {
        int moved = 0;
        for (uint64_t g = 0; g < 400; g++) {
            float x[GROUP], y[GROUP];
            Stored once, twice, many;
            lognormal(x, GROUP, spreads[d], true, 3000 + g);
            store(&once, x, GROUP, FMT_E4M3, &coat);
            load(&once, y, GROUP, FMT_E4M3);
            store(&twice, y, GROUP, FMT_E4M3, &coat);
            if (memcmp(&once, &twice, sizeof once) != 0) {
                assert_true(twice.k > once.k && twice.a == once.a);
                moved++;
            }
            load(&twice, y, GROUP, FMT_E4M3);
            for (int i = 0; i < 98; i++) {
                store(&many, y, GROUP, FMT_E4M3, &coat);
                load(&many, y, GROUP, FMT_E4M3);
            }
            assert_memory_equal(&many, &twice, sizeof many);
        }
        double one = mean_error(spreads[d], &coat, 1), hundred = mean_error(spreads[d], &coat, 100);
        print_message("# spread %.1f: error %.3f %%, after 100 times %.3f %%; %d of 400 groups moved once\n",
                      spreads[d], one, hundred, moved);
        assert_true(hundred < 1.1 * one);
    }
}

// With the paper's rule for the exponent k, every repetition of the rounding lowers k and changes the elements' values.
UNIT_TEST(the_papers_rule_for_k_changes_values_at_each_rounding) {
    double ours = 0, published = 0, once = 0;
    for (uint64_t g = 0; g < 20; g++) {
        float x[GROUP], y[GROUP], z[GROUP];
        lognormal(x, GROUP, 0.5, true, g);
        memcpy(y, x, sizeof x);
        memcpy(z, x, sizeof x);
        for (int i = 0; i < 100; i++) {
            round_group(y, NEAREST, false);
            round_published(z, false);
            if (i == 0)
                for (int j = 0; j < GROUP; j++) once += fabs((double)z[j] / (double)x[j] - 1) / (20 * GROUP);
        }
        for (int j = 0; j < GROUP; j++) {
            ours += fabs((double)y[j] / (double)x[j] - 1) / (20 * GROUP);
            published += fabs((double)z[j] / (double)x[j] - 1) / (20 * GROUP);
        }
    }
    print_message("# spread 0.5 after 100 repetitions: %.2f %%; published k: %.2f %%, after one %.2f %%\n", 100 * ours,
                  100 * published, 100 * once);
    assert_true(ours < 0.006 && published > 0.04);
}

RUN_TESTS(NULL, NULL, NULL)
