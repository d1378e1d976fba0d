// Tests of the CPU kernels on every instruction set of this machine: accuracy of exp, BF16 rounding, and sums of any
// length. Kernels for norms, activations, attention and AdamW must give the same bits on all instruction sets.
#include "ops_fixture.h"

#define LONGEST 100

static int variants(const CpuKernels *list[CPU_VARIANTS]) {
    int count = cpu_kernels_supported(list);
    assert_in_range(count, 1, CPU_VARIANTS);
    return count;
}

// Returns |x - exact| in units in the last place of FP32.
static double units(float x, double exact) {
    float nearest = (float)exact;
    return fabs((double)x - exact) / ((double)nextafterf(nearest, INFINITY) - (double)nearest);
}

UNIT_TEST(exponential_is_accurate) {
    const CpuKernels *list[CPU_VARIANTS];
    for (int v = 0, count = variants(list); v < count; v++) {
        float x[LONGEST], p[LONGEST];
        double worst = 0;
        for (double begin = -87.3; begin < 87.9; begin += LONGEST * 0.0013) {
            for (int i = 0; i < LONGEST; i++) x[i] = (float)(begin + 0.0013 * i);
            list[v]->exponentials(p, x, 1, 0, LONGEST);
            for (int i = 0; i < LONGEST; i++) worst = fmax(worst, x[i] < 88 ? units(p[i], exp((double)x[i])) : 0);
        }
        assert_true(worst <= 2);
        const float at[6] = {0, -88, -INFINITY, 89, INFINITY, NAN};
        list[v]->exponentials(p, at, 1, 0, 6);
        assert_true(p[0] == 1 && p[1] == 0 && p[2] == 0 && isinf(p[3]) && isinf(p[4]) && isnan(p[5]));
    }
}

// Checks exponentials() in place on 0 to 99 elements: its scale, its shift, and the sum that it returns.
UNIT_TEST(exponentials_scale_shift_and_sum) {
    const CpuKernels *list[CPU_VARIANTS];
    for (int v = 0, count = variants(list); v < count; v++)
        for (int n = 0; n < LONGEST; n++) {
            float p[LONGEST];
            double sum = 0;
            for (int i = 0; i < n; i++) {
                p[i] = (float)(i % 7) - 3;
                sum += exp(0.5 * (i % 7 - 3) - 1);
            }
            float got = list[v]->exponentials(p, p, 0.5f, 1, n);
            assert_true(fabs((double)got - sum) <= 1e-6 * sum);
            for (int i = 0; i < n; i++) assert_true(fabs((double)p[i] / exp(0.5 * (i % 7 - 3) - 1) - 1) < 1e-6);
        }
}

UNIT_TEST(bf16_rounding_equals_formats_h) {
    const CpuKernels *list[CPU_VARIANTS];
    for (int v = 0, count = variants(list); v < count; v++)
        for (uint64_t bits = 0; bits <= 0xffffffffull; bits += 65521 * 5) {
            float x[33], back[33];
            uint16_t codes[33];
            for (uint32_t i = 0; i < 33; i++) x[i] = bits_float((uint32_t)bits + i * 0x1000u);
            list[v]->encode_bf16(codes, x, 33);
            list[v]->decode_bf16(back, codes, 33);
            for (int i = 0; i < 33; i++) {
                assert_int_equal(codes[i], bf16_encode(x[i]));
                assert_true(float_bits(back[i]) == (uint32_t)codes[i] << 16);
            }
        }
}

UNIT_TEST(sums_are_right_for_any_length) {
    const CpuKernels *list[CPU_VARIANTS];
    float x[LONGEST], y[LONGEST];
    for (int i = 0; i < LONGEST; i++) {
        x[i] = (float)((i * 37) % 101 - 50);
        y[i] = (float)((i * 53) % 89 - 40);
    }
    for (int v = 0, count = variants(list); v < count; v++)
        for (int n = 0; n < LONGEST; n++) {
            double dot = 0, squares = 0, highest = -INFINITY;
            for (int i = 0; i < n; i++) {
                dot += (double)x[i] * (double)y[i];
                squares += (double)x[i] * (double)x[i];
                highest = fmax(highest, (double)x[i]);
            }
            assert_true((double)list[v]->dot(x, y, n) == dot); // the terms are small integers, so the sum is exact
            assert_true(list[v]->sum_of_squares(x, n) == squares);
            assert_true((double)list[v]->maximum(x, n) == highest);
        }
}

// Runs the kernels for norms, activations, attention and AdamW on 97 elements, which is not a multiple of the vector
// width. Writes the results of each to rows of `out`.
static void run_all(const CpuKernels *k, float out[12][LONGEST]) {
    const int n = LONGEST - 3;
    float x[LONGEST], y[LONGEST], w[LONGEST];
    for (int i = 0; i < LONGEST; i++) {
        x[i] = sinf((float)i) * 3;
        y[i] = cosf((float)i * 1.7f);
        w[i] = 1 + 0.1f * sinf((float)i * 0.3f);
    }
    memset(out, 0, 12 * sizeof out[0]);
    NormStatistics s = k->norm_statistics(x, n, 1e-5f, true);
    out[0][0] = s.mean, out[0][1] = s.rstd;
    out[0][2] = k->dot(x, y, n);
    k->norm_apply(out[1], x, s, w, y, n);
    k->norm_gradient(out[2], out[3], out[4], y, x, s, w, n, true, true);
    k->gelu(out[5], x, n, ACT_GELU_TANH);
    k->gelu_gradient(out[6], y, x, n, ACT_GELU_TANH);
    out[0][3] = k->exponentials(out[7], x, 0.3f, 0.1f, n);
    memcpy(out[8], w, sizeof w);
    k->score_gradient(out[8], y, 0.2f, 0.7f, n);
    const AdamwStep step = {1e-2f, 0.9f, 0.95f, 1e-8f, 10, 20, 0.5f};
    memcpy(out[9], w, sizeof w);
    k->adamw(out[9], out[10], out[11], y, &step, 1e-3f, n);
}

UNIT_TEST(all_instruction_sets_give_the_same_bits) {
    const CpuKernels *list[CPU_VARIANTS];
    static float first[12][LONGEST], other[12][LONGEST];
    int count = variants(list);
    run_all(list[0], first);
    for (int v = 1; v < count; v++) {
        run_all(list[v], other);
        for (int i = 0; i < 12; i++) assert_memory_equal(first[i], other[i], sizeof first[i]);
    }
}

RUN_TESTS(NULL, NULL, NULL)
