// Tests of number formats against an independent definition: the nearest entry of a sorted table of values; ties go to
// the even FP8 value. `test_formats --all` tests all 2^32 bit patterns of FP32 instead of every 251st.
#include "coat/numerics/quantize.h"
#include "dev/test/unit.h"
#include "format_inputs.h"

static uint64_t stride = 251; // step between FP32 bit patterns; prime, so that sign, exponent and mantissa vary

typedef struct {
    const char *name;
    uint8_t (*encode)(float);
    float (*decode)(uint8_t);
    int mantissa_bits, bias, finite; // finite: number of finite FP8 values of one sign
    double values[128];              // the finite values in ascending order
} Fp8;

static Fp8 formats[2] = {{"e4m3", e4m3_encode, e4m3_decode, 3, 7, 127, {0}},
                         {"e5m2", e5m2_encode, e5m2_decode, 2, 15, 124, {0}}};

// Fills values[]: each FP8 value as a double, computed from sign, exponent and mantissa.
static int fill_tables(void **state) {
    (void)state;
    for (int f = 0; f < 2; f++) {
        Fp8 *format = &formats[f];
        for (int c = 0; c < format->finite; c++) {
            int exponent = c >> format->mantissa_bits, mantissa = c & ((1 << format->mantissa_bits) - 1);
            double fraction = (double)mantissa / (1 << format->mantissa_bits);
            format->values[c] =
                exponent ? ldexp(1 + fraction, exponent - format->bias) : ldexp(fraction, 1 - format->bias);
        }
    }
    return 0;
}

static uint8_t nearest(const Fp8 *format, float x) {
    uint8_t sign = float_bits(x) >> 31 ? 0x80 : 0;
    if (isnan(x)) return (uint8_t)(sign | 0x7f);
    double magnitude = fabs((double)x);
    // Binary search: the nearest value is values[low] or values[high].
    int low = 0, high = format->finite - 1;
    if (magnitude >= format->values[high]) return (uint8_t)(sign | high);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (format->values[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - format->values[low], above = format->values[high] - magnitude;
    int code = below < above ? low : above < below ? high : low % 2 ? high : low;
    return (uint8_t)(sign | code);
}

static void check_encode(const Fp8 *format, float x) {
    uint8_t got = format->encode(x), expected = nearest(format, x);
    if (got != expected)
        fail_msg("%s_encode(%.9g, bits %08x) = %02x, expected %02x", format->name, (double)x, float_bits(x), got,
                 expected);
}

// Over all random bytes, the mean of the E5M2 values of an FP16 number must be this number.
UNIT_TEST(stochastic_rounding_to_e5m2_keeps_the_mean) {
    for (int half = 0; half <= 0x7b00; half++) {
        const int exponent = half >> 10, mantissa = half & 0x3ff;
        const double x = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        double sum = 0;
        for (uint32_t random = 0; random < 256; random++) {
            sum += e5m2_decode(e5m2_encode_stochastic((float)x, random));
            assert_int_equal(e5m2_encode_stochastic(-(float)x, random),
                             0x80 | e5m2_encode_stochastic((float)x, random));
        }
        assert_true(sum == 256 * x);
    }
    assert_int_equal(e5m2_encode_stochastic(1e9f, 255), 0x7b);
    assert_int_equal(e5m2_encode_stochastic(NAN, 255) & 0x7f, 0x7f);
}

// The bytes that round the loss gradient must be uniform over rows, columns, targets and steps.
UNIT_TEST(random_bytes_of_the_loss_gradient_are_uniform) {
    int counts[256] = {0};
    for (int64_t t = 0; t < 4; t++)
        for (int64_t row = 0; row < 16; row++)
            for (int64_t column = 0; column < 1024; column++) {
                const uint64_t start = loss_random_start(7, t);
                const uint64_t bits = loss_random_bits(start, row, (int32_t)(row * 5), column / LOSS_RANDOM);
                counts[loss_random_byte(bits, (int)(column % LOSS_RANDOM))]++;
            }
    double chi = 0; // chi-squared with 255 degrees of freedom: mean 255, standard deviation 22.6
    for (int i = 0; i < 256; i++) chi += pow(counts[i] - 256, 2) / 256;
    assert_true(chi > 160 && chi < 370);
}

UNIT_TEST(all_fp8_values_decode_to_the_definition) {
    for (int f = 0; f < 2; f++) {
        const Fp8 *format = &formats[f];
        for (int c = 0; c < 256; c++) {
            float x = format->decode((uint8_t)c);
            int magnitude = c & 0x7f;
            if (magnitude < format->finite) {
                assert_int_equal(float_bits(x) >> 31, c >> 7);
                assert_true(fabs((double)x) == format->values[magnitude]);
                assert_int_equal(format->encode(x), c);
            } else {
                bool infinity = f == 1 && magnitude == 0x7c;
                assert_true(infinity ? isinf(x) : isnan(x));
            }
        }
    }
    assert_true(e4m3_decode(0x7e) == E4M3_MAX && e5m2_decode(0x7b) == E5M2_MAX);
    assert_true(e4m3_decode(0x01) == 0x1p-9f && e5m2_decode(0x01) == 0x1p-16f);
}

UNIT_TEST(all_bf16_values_encode_to_the_nearest_fp8_value) {
    for (int f = 0; f < 2; f++)
        for (uint32_t b = 0; b < 65536; b++) check_encode(&formats[f], bf16_decode((uint16_t)b));
}

// Tests the exact midpoints of neighboring FP8 values, and each midpoint's two FP32 neighbors.
UNIT_TEST(midpoints_round_to_the_even_fp8_value) {
    for (int f = 0; f < 2; f++) {
        const Fp8 *format = &formats[f];
        for (int c = 0; c + 1 < format->finite; c++) {
            float middle = (float)((format->values[c] + format->values[c + 1]) / 2);
            assert_int_equal(format->encode(middle), c % 2 ? c + 1 : c);
            assert_int_equal(format->encode(nextafterf(middle, 0.0f)), c);
            assert_int_equal(format->encode(nextafterf(middle, INFINITY)), c + 1);
            assert_int_equal(format->encode(-middle), 0x80 | (c % 2 ? c + 1 : c));
        }
    }
}

UNIT_TEST(random_fp32_values_encode_to_the_nearest_fp8_value) {
    for (int f = 0; f < 2; f++) {
        for (uint64_t i = 0; i < 1 << 24; i++) check_encode(&formats[f], random_float((uint64_t)f, i));
    }
}

UNIT_TEST(zero_nan_and_infinity_in_fp8) {
    for (int f = 0; f < 2; f++) {
        const Fp8 *format = &formats[f];
        int largest = format->finite - 1;
        assert_int_equal(format->encode(0.0f), 0);
        assert_int_equal(format->encode(-0.0f), 0x80);
        assert_int_equal(format->encode(INFINITY), largest);
        assert_int_equal(format->encode(-INFINITY), 0x80 | largest);
        assert_int_equal(format->encode(3.4e38f), largest);
        assert_int_equal(format->encode(1e-45f), 0); // FP32 subnormals are encoded as FP8 0
        assert_int_equal(format->encode(-1e-40f), 0x80);
        assert_int_equal(format->encode(bits_float(0x7f800001u)), 0x7f); // a signaling FP32 NaN becomes the FP8 NaN
        assert_int_equal(format->encode(bits_float(0xffffffffu)), 0xff);
        for (int c = 1; c < 1 << format->mantissa_bits; c++) // numbers 1 % above an FP8 subnormal are rounded to it
            assert_int_equal(format->encode((float)format->values[c] * 1.01f), c);
    }
}

// Returns the BF16 value nearest to x. Above the largest finite BF16 value is infinity, which counts as 2^128.
static uint16_t nearest_bf16(float x, bool ties_to_even) {
    uint32_t cut = float_bits(x) >> 16;
    double low = fabs((double)bits_float(cut << 16)), high = fabs((double)bits_float((cut + 1) << 16));
    if (isinf(high)) high = 0x1p128;
    double below = fabs((double)x) - low, above = high - fabs((double)x);
    bool up = above < below || (above == below && (!ties_to_even || cut % 2));
    return (uint16_t)(cut + up);
}

UNIT_TEST(bf16_conversions_round_to_nearest_even) {
    for (uint32_t b = 0; b < 65536; b++) {
        float x = bf16_decode((uint16_t)b);
        assert_int_equal(float_bits(x), b << 16);
        if (isnan(x))
            assert_true(isnan(bf16_decode(bf16_encode(x))));
        else
            assert_int_equal(bf16_encode(x), b);
    }
    // NaN patterns, of which the first would become infinity if only its upper half were used.
    assert_true(isnan(bf16_decode(bf16_encode(bits_float(0x7f800001u)))));
    assert_true(isnan(bf16_decode(bf16_encode(bits_float(0xffffffffu)))));
    for (uint64_t u = 0; u < 1ULL << 32; u += stride) {
        float x = bits_float((uint32_t)u);
        if (isfinite(x) && bf16_encode(x) != nearest_bf16(x, true)) fail_msg("bf16_encode of bits %08x", (uint32_t)u);
    }
}

// Tests that a split16 master weight stores all FP32 bits and that its upper half is the nearest BF16 value.
UNIT_TEST(split16_masters_store_all_fp32_bits) {
    static const uint32_t edges[] = {0,           1,           0x7fff,      0x8000,      0x8001,      0xffff,
                                     0x10000,     0x007fffffu, 0x00800000u, 0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu,
                                     0x3f807fffu, 0x3f808000u, 0x3f80ffffu, 0x3fffffffu};
    for (size_t i = 0; i < 2 * sizeof edges / sizeof edges[0]; i++) {
        uint32_t u = edges[i / 2] | (i % 2 ? 0x80000000u : 0);
        assert_int_equal(float_bits(master_join(master_bf16(bits_float(u)), (uint16_t)u)), u);
    }
    for (uint64_t i = 0; i < 1ULL << 32; i += stride) {
        uint32_t u = (uint32_t)i;
        float x = bits_float(u);
        if (!isfinite(x)) continue;
        uint16_t high = master_bf16(x);
        if (high != nearest_bf16(x, false) || float_bits(master_join(high, (uint16_t)u)) != u)
            fail_msg("the halves of %08x", u);
    }
}

// Checks a row scale: it is the smallest power of two >= 2^-126 for which amax / scale is in the format's range.
static void check_row_scale(const Fp8 *format, Format f, uint32_t amax) {
    const double largest = format->values[format->finite - 1], maximum = (double)bits_float(amax);
    const uint32_t bits = float_bits(row_scale_from_amax(amax, f));
    const double scale = (double)bits_float(bits);
    // true if the scale is a positive, normal power of two
    bool good = (bits & 0x807fffffu) == 0 && bits >> 23 >= 1 && bits >> 23 < 255;
    if (amax < 0x7f800000u)
        good = good && maximum / scale <= largest && (scale == 0x1p-126 || maximum / scale > largest / 2);
    else // inf and NaN have the row scale of the largest finite amax
        good = good && bits == float_bits(row_scale_from_amax(0x7f7fffffu, f));
    if (!good)
        fail_msg("the row scale in %s of the maximum %.9g (bits %08x) is %g", format->name, maximum, amax, scale);
}

UNIT_TEST(row_scales_are_the_smallest_sufficient_power_of_two) {
    static const float edges[] = {0.0f,  0x1p-149f, 0x1p-127f,     0x1.fffffcp-127f, 0x1p-126f,       1.0f,
                                  1.75f, 448.0f,    57344.0f,      0x1.cp-118f,      0x1.cp-111f,     0x1.cp-117f,
                                  2.0f,  0x1p127f,  0x1.cp+127f,   0x1.fffffep+127f, 0x1.bffffep+8f,  0x1.c00002p+8f,
                                  3.5f,  INFINITY,  0x1.fffffep0f, 0x1.c00002p+15f,  0x1.bffffep+15f, 0x1.cp-110f};
    static const Format kinds[2] = {FMT_E4M3, FMT_E5M2};
    for (int f = 0; f < 2; f++) {
        for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
            for (uint32_t around = 0; around < 3; around++) { // the number and its two FP32 neighbors
                uint32_t bits = float_bits(edges[i]) + around;
                if (bits > 0) check_row_scale(&formats[f], kinds[f], bits - 1);
            }
        for (uint32_t b = 0; b < 32768; b++) check_row_scale(&formats[f], kinds[f], b << 16);
        for (uint64_t u = 0; u < 1ULL << 31; u += stride) check_row_scale(&formats[f], kinds[f], (uint32_t)u);
        check_row_scale(&formats[f], kinds[f], 0x7fffffffu);
    }
    assert_true(row_scale_from_amax(float_bits(448.0f), FMT_E4M3) == 1.0f);
    assert_true(row_scale_from_amax(float_bits(448.0f) + 1, FMT_E4M3) == 2.0f);
    assert_true(row_scale_from_amax(float_bits(57344.0f), FMT_E5M2) == 1.0f);
    assert_true(row_scale_from_amax(float_bits(57344.0f) + 1, FMT_E5M2) == 2.0f);
    assert_true(row_scale_from_amax(0, FMT_E4M3) == SCALE_MIN);
    assert_true(row_scale_from_amax(0, FMT_E5M2) == SCALE_MIN);
}

UNIT_TEST(formats_have_names_and_byte_sizes) {
    assert_int_equal(format_bytes(FMT_FP32), sizeof(real));
    assert_int_equal(format_bytes(FMT_BF16), 2);
    assert_int_equal(format_bytes(FMT_E4M3), 1);
    assert_int_equal(format_bytes(FMT_NONE), 0);
    assert_string_equal(format_name(FMT_E5M2), "e5m2");
    assert_string_equal(format_name(FMT_COUNT), "?");
    assert_true(format_is_fp8(FMT_E4M3) && format_is_fp8(FMT_E5M2) && !format_is_fp8(FMT_U8));
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--all") == 0) stride = 1;
    return unit_main(fill_tables, NULL, NULL);
}
