// Tests of the 8-bit optimizer states (COAT, section 4). Compares the quantizer of groups with its definition in double
// precision, on random and special groups.
#include <sys/mman.h>

#include "dev/test/unit.h"
#include "moment_groups.h"

static const MomentStore first_coat = {true, false}, second_coat = {true, true};
static const MomentStore first_fp8 = {false, false}, second_fp8 = {false, true};

static double code_value(int code, Format format) {
    return (double)fp8_decode(format, (uint8_t)code);
}

static void check_group(const float *x, int n, Format format, const MomentStore *how) {
    Stored s;
    float y[GROUP];
    char why[WHY];
    assert_true(store(&s, x, n, format, how));
    load(&s, y, n, format);
    if (!group_follows(x, n, s.codes, s.a, s.k, format, how->expand, how->second, why)) fail_msg("%s", why);
    MomentGroup group = moment_group(s.a, s.k, format);
    for (int i = 0; i < n; i++) {
        // The vector loops of every instruction set must give the same results as the inline functions in moments.h.
        assert_int_equal(s.codes[i], moment_encode(x[i], group, format, how->second));
        assert_int_equal(float_bits(y[i]), float_bits(moment_decode(s.codes[i], group, format)));
        if (fabsf(x[i]) == s.a) assert_true(y[i] == x[i]);
    }
}

static void check_all_ways(const float *x, int n) {
    float squares[GROUP];
    for (int i = 0; i < n; i++) squares[i] = fabsf(x[i]);
    check_group(x, n, FMT_E4M3, &first_coat);
    check_group(x, n, FMT_E5M2, &first_coat);
    check_group(x, n, FMT_E4M3, &first_fp8);
    check_group(squares, n, FMT_E4M3, &second_coat);
    check_group(squares, n, FMT_E5M2, &second_coat);
    check_group(squares, n, FMT_E4M3, &second_fp8);
    check_group(squares, n, FMT_E5M2, &second_fp8);
}

UNIT_TEST(log2_and_exp2_are_accurate) {
    for (int n = -149; n < 128; n++) assert_true(moment_log2(ldexpf(1.0f, n)) == (float)n);
    for (uint64_t i = 0; i < 1 << 20; i++) {
        float x = bits_float(1 + (uint32_t)(rng_hash(1, 1, i) % 0x7f7fffffu));
        double exact = log2((double)x);
        if (fabs((double)moment_log2(x) - exact) > 1.2e-7 * (0.5 + fabs(exact))) fail_msg("log2(%g)", (double)x);
        assert_true(moment_log2(bits_float(float_bits(x) - 1)) <= moment_log2(x) + 4e-6f);
        float y = -126.0f * rng_uniform(1, 2, i);
        if (fabs((double)moment_exp2(y) / exp2((double)y) - 1) > 2e-7) fail_msg("exp2(%g)", (double)y);
    }
    for (int n = -126; n <= 0; n++) assert_true(moment_exp2((float)n) == ldexpf(1.0f, n));
    assert_true(moment_exp2(-126.5f) == 0.0f && moment_exp2(-1e30f) == 0.0f && moment_exp2(-INFINITY) == 0.0f);
}

// Pins the bits of log2 and of the exponents k, because stored states depend on them on every compiler and device.
UNIT_TEST(log2_and_exponents_k_keep_their_bits_between_versions) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 1 << 20; i++) {
        uint32_t x = 1 + (uint32_t)(rng_hash(21, 1, i) % 0x7f7fffffu), y = 1 + (uint32_t)(rng_hash(21, 2, i) % x);
        uint64_t k = (uint64_t)moment_exponent(x, y, FMT_E4M3) << 8 | moment_exponent(x, y, FMT_E5M2);
        sum = rng_mix(sum ^ ((uint64_t)float_bits(moment_log2(bits_float(x))) << 16 | k));
    }
    if (sum != 0x2c3d0cb227e19774ULL) fail_msg("the bits' hash is %016llx", (unsigned long long)sum);
}

// code_nearest() must agree with the casts in formats.h, and code_magnitude() with the decoded FP8 values.
UNIT_TEST(fp8_rounding_of_magnitudes_equals_formats_h) {
    static const Format formats[] = {FMT_E4M3, FMT_E5M2};
    for (int f = 0; f < 2; f++) {
        Format format = formats[f];
        float largest = moment_largest(format);
        for (int c = 0; c <= moment_max_code(format); c++) {
            float x = (float)code_value(c, format);
            assert_true(code_magnitude((uint8_t)c, format) == x);
        }
        for (uint64_t i = 0; i < 1 << 20; i++) {
            float y = i % 2 ? largest * rng_uniform(2, 1, i) : largest * exp2f(-40 * rng_uniform(2, 2, i));
            uint8_t cast = format == FMT_E4M3 ? e4m3_encode(y) : e5m2_encode(y);
            assert_int_equal(code_nearest(y, format), cast);
        }
    }
}

UNIT_TEST(random_groups_follow_the_definition) {
    static const double spreads[] = {0, 0.001, 0.1, 0.5, 1, 2, 4, 8, 12};
    float x[GROUP];
    for (size_t s = 0; s < sizeof spreads / sizeof spreads[0]; s++) {
        for (uint64_t g = 0; g < 100; g++) {
            group_scaled(x, spreads[s], s, g);
            check_all_ways(x, GROUP);
        }
    }
}

UNIT_TEST(a_group_of_zeros_stays_zero) {
    float x[GROUP] = {0}, y[GROUP];
    x[5] = -0.0f;
    Stored s;
    const MomentStore *ways[] = {&first_coat, &second_coat, &first_fp8, &second_fp8};
    for (int w = 0; w < 4; w++) {
        assert_true(store(&s, x, GROUP, FMT_E4M3, ways[w]));
        assert_true(s.a == 0.0f && s.k == 16);
        load(&s, y, GROUP, FMT_E4M3);
        for (int i = 0; i < GROUP; i++) {
            const bool negative = signbit(x[i]) && !ways[w]->second;
            assert_int_equal(s.codes[i], negative ? 0x80 : 0);
            assert_int_equal(float_bits(y[i]), negative ? float_bits(x[i]) : 0);
        }
    }
}

UNIT_TEST(constant_and_single_values_are_exact) {
    float x[GROUP], y[GROUP];
    Stored s;
    for (int v = 0; v < SINGLE_VALUES; v++) {
        group_constant(x, single_values[v]);
        assert_true(store(&s, x, GROUP, FMT_E4M3, &first_coat));
        assert_int_equal(s.k, 255);
        load(&s, y, GROUP, FMT_E4M3);
        assert_memory_equal(x, y, sizeof x);
        for (int p = 0; p < SINGLE_PLACES; p++) {
            group_single(x, single_values[v], p);
            assert_true(store(&s, x, GROUP, FMT_E5M2, &first_coat));
            assert_int_equal(s.k, 255);
            load(&s, y, GROUP, FMT_E5M2);
            assert_memory_equal(x, y, sizeof x);
        }
    }
}

UNIT_TEST(zeros_do_not_increase_the_error_of_other_elements) {
    float x[GROUP], y[GROUP];
    Stored s;
    double sum = 0;
    for (uint64_t g = 0; g < 200; g++) {
        group_sprinkled(x, g);
        check_all_ways(x, GROUP);
        store(&s, x, GROUP, FMT_E4M3, &first_coat);
        load(&s, y, GROUP, FMT_E4M3);
        for (int i = 0; i < GROUP; i++)
            // A zero in the group keeps its sign.
            if (x[i] == 0.0f) assert_int_equal(float_bits(y[i]), float_bits(x[i]));
        sum += relative_error(x, y, GROUP) / 200;
    }
    assert_true(sum > 0.005 && sum < 0.02);
}

UNIT_TEST(groups_with_wide_ranges_keep_small_values) {
    float x[GROUP], y[GROUP];
    Stored s;
    // From a range of 2^18 on, FP8 moments without dynamic range expansion would lose the smallest values.
    for (int bits = 16; bits <= 60; bits += 4) {
        group_range(x, bits);
        check_all_ways(x, GROUP);
        store(&s, x, GROUP, FMT_E4M3, &first_coat);
        load(&s, y, GROUP, FMT_E4M3);
        // step * step: largest ratio by which rounding may change a value if the group's range is 2^bits
        double step = exp2(0.5 / 2 * bits / 16.8);
        for (int i = 0; i < GROUP; i++) {
            double ratio = (double)y[i] / (double)x[i];
            assert_true(ratio > 0.9 / step / step && ratio < 1.1 * step * step);
        }
    }
    // Tests a group with a range of 2^252, then one with all FP32 exponents, then one of subnormal numbers.
    group_ends(x);
    check_all_ways(x, GROUP);
    store(&s, x, GROUP, FMT_E4M3, &first_coat);
    assert_int_equal(s.k, 1);
    load(&s, y, GROUP, FMT_E4M3);
    for (int i = 0; i < GROUP; i++) assert_true(i % 2 ? y[i] == 1e38f : y[i] < -1e-39f && y[i] > -1e-37f);
    group_all_exponents(x);
    check_all_ways(x, GROUP);
    group_subnormal(x);
    check_all_ways(x, GROUP);
}

UNIT_TEST(short_last_groups_follow_the_definition) {
    static const int sizes[] = {1, 2, 3, 127};
    float x[GROUP];
    for (int i = 0; i < 4; i++) {
        for (uint64_t g = 0; g < 20; g++) {
            lognormal(x, GROUP, 2, true, g);
            check_all_ways(x, sizes[i]);
            Stored s;
            store(&s, x, sizes[i], FMT_E4M3, &first_coat);
            // Memory after the group is not written.
            for (int j = sizes[i]; j < GROUP; j++) assert_int_equal(s.codes[j], 0xa5);
        }
    }
}

// INT8 values divide [-a, a] into equal steps. Decoded values keep their INT8 values and the amax, however often they
// are encoded again.
UNIT_TEST(int8_values_divide_the_range_evenly) {
    float x[GROUP], y[GROUP];
    for (uint64_t g = 0; g < 200; g++) {
        Stored s, again;
        group_scaled(x, g % 2 ? 1.0 : 8.0, 3, g);
        x[g % GROUP] = 0.0f;
        assert_true(store(&s, x, GROUP, FMT_I8, &first_coat));
        load(&s, y, GROUP, FMT_I8);
        float largest = 0;
        for (int i = 0; i < GROUP; i++) largest = fmaxf(largest, fabsf(x[i]));
        assert_true(s.a == largest && s.k == 16 && s.codes[g % GROUP] == 0);
        for (int i = 0; i < GROUP; i++) {
            assert_true(s.codes[i] != 0x80 && fabsf(y[i] - x[i]) <= 0.500001f / 127 * largest);
            if (fabsf(x[i]) == largest) assert_true(y[i] == x[i]);
        }
        for (int i = 0; i < (g ? 10 : 10000); i++) {
            store(&again, y, GROUP, FMT_I8, &first_coat);
            assert_memory_equal(&again, &s, sizeof s);
            load(&again, y, GROUP, FMT_I8);
        }
    }
}

// INT8 groups of extreme magnitudes: groups below 2^-100 become zeros, and an inf or NaN stays visible.
UNIT_TEST(int8_groups_of_extreme_magnitudes) {
    static const float amaxes[] = {3.4e38f, 1.0f, 0x1p-100f, 0x0.fffffep-100f, 1e-45f, INFINITY, NAN};
    float x[4], y[4];
    for (int i = 0; i < 7; i++) {
        Stored s;
        x[0] = 0.0f, x[1] = -amaxes[i], x[2] = amaxes[i] / 2, x[3] = amaxes[i] / 1000;
        assert_int_equal(store(&s, x, 4, FMT_I8, &first_coat), i < 5);
        load(&s, y, 4, FMT_I8);
        assert_true(y[0] == 0.0f);
        if (i < 3)
            assert_true(s.codes[1] == 0x81 && s.codes[2] == 64 && s.codes[3] == 0 && y[1] == x[1]);
        else if (i < 5)
            assert_true(s.a == 0.0f && y[1] == 0.0f && y[2] == 0.0f);
        else
            assert_true(!isfinite(y[1]) && !isfinite(y[2]));
    }
}

// A tensor of several groups, of which the last is shorter, is stored exactly like separate groups.
UNIT_TEST(tensors_are_stored_like_separate_groups) {
    enum { COUNT = 5 * GROUP + 77 };
    float x[COUNT], y[COUNT], z[GROUP], a[6];
    uint8_t codes[COUNT], k[6];
    Tensor t = {codes, a, k, NULL, 1, COUNT, COUNT, FMT_E4M3, SCALE_EXPAND, GROUP, false};
    lognormal(x, COUNT, 3, true, 5);
    assert_true(moments_store(t, 0, 2 * GROUP, x, &first_coat));
    assert_true(moments_store(t, 2 * GROUP, COUNT - 2 * GROUP, x + 2 * GROUP, &first_coat));
    moments_load(t, 0, COUNT, y);
    for (int g = 0; g < 6; g++) {
        Stored s;
        int n = g < 5 ? GROUP : 77;
        store(&s, x + g * GROUP, n, FMT_E4M3, &first_coat);
        load(&s, z, n, FMT_E4M3);
        assert_true(s.a == a[g] && s.k == k[g]);
        assert_memory_equal(s.codes, codes + g * GROUP, (size_t)n);
        assert_memory_equal(z, y + g * GROUP, (size_t)n * sizeof(float));
    }
}

UNIT_TEST(a_nonzero_second_moment_never_becomes_zero) {
    static const Format formats[] = {FMT_E4M3, FMT_E5M2};
    float v[GROUP], y[GROUP];
    Stored s;
    for (int way = 0; way < 4; way++) {
        MomentStore how = {way & 1, true};
        Format format = formats[way >> 1];
        for (uint64_t g = 0; g < 100; g++) {
            for (int i = 0; i < GROUP; i++)
                v[i] = i % 5 == 0 ? 0.0f : exp2f(-(i % 7 ? 20.0f : 140.0f) * rng_uniform(16, g, (uint64_t)i));
            assert_true(store(&s, v, GROUP, format, &how));
            load(&s, y, GROUP, format);
            for (int i = 0; i < GROUP; i++) {
                assert_int_equal(s.codes[i] == 0, v[i] == 0.0f);
                assert_true(s.codes[i] < 0x80 && (v[i] == 0.0f ? y[i] == 0.0f : y[i] > 0.0f));
            }
        }
    }
}

UNIT_TEST(nan_and_inf_in_moments_are_reported_and_kept) {
    const float bad[] = {INFINITY, -INFINITY, NAN, bits_float(0xffc00000u), bits_float(0x7f800001u)};
    float x[GROUP], y[GROUP];
    Stored s;
    for (int b = 0; b < 5; b++) {
        for (int way = 0; way < 4; way++) {
            MomentStore how = {way & 1, way & 2};
            lognormal(x, GROUP, 1, false, 9);
            x[40] = how.second ? bits_float(float_bits(bad[b]) & 0x7fffffffu) : bad[b];
            x[41] = 0.0f;
            assert_false(store(&s, x, GROUP, FMT_E4M3, &how));
            assert_int_equal(float_bits(s.a), float_bits(bad[b]) & 0x7fffffffu);
            load(&s, y, GROUP, FMT_E4M3);
            assert_true(isnan(bad[b]) ? isnan(y[40]) : y[40] == x[40]);
            for (int i = 0; i < GROUP; i++) assert_true(x[i] == 0.0f ? y[i] == 0.0f : !isfinite(y[i]));
        }
    }
}

UNIT_TEST(more_than_2_to_31_elements) {
    const int64_t elements = (1LL << 31) + 200, groups = (elements + GROUP - 1) / GROUP;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint8_t *codes = (uint8_t *)mmap(NULL, (size_t)elements, PROT_READ | PROT_WRITE, flags, -1, 0);
    float *a = (float *)mmap(NULL, (size_t)groups * sizeof(float), PROT_READ | PROT_WRITE, flags, -1, 0);
    uint8_t *k = (uint8_t *)mmap(NULL, (size_t)groups, PROT_READ | PROT_WRITE, flags, -1, 0);
    // Skips the test if the address range cannot be reserved.
    if (codes == MAP_FAILED || a == MAP_FAILED || k == MAP_FAILED) skip();
    Tensor t = {codes, a, k, NULL, 1, elements, elements, FMT_E4M3, SCALE_EXPAND, GROUP, false};
    float x[200], y[200];
    lognormal(x, 200, 1, true, 3);
    assert_true(moments_store(t, 1LL << 31, 200, x, &first_coat));
    moments_load(t, 1LL << 31, 200, y);
    assert_true(relative_error(x, y, 200) < 0.02 && a[groups - 3] == 0.0f && a[groups - 1] > 0.0f);
    munmap(codes, (size_t)elements);
    munmap(a, (size_t)groups * sizeof(float));
    munmap(k, (size_t)groups);
}

RUN_TESTS(NULL, NULL, NULL)
