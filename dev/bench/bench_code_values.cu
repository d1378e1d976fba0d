// Benchmarks the decoding of FP8 optimizer states: |x| = exp2(log2 a + log2(code / F) / k). Logarithm and power each
// come from the special-function unit or from a table in shared memory. Each of the four combinations decodes the same
// values repeatedly from registers. Prints the time per element, and the percentage of that time that the
// special-function units need. The rate of these units is 16 lanes per clock and multiprocessor, at the clock measured
// with a kernel that only runs ex2.
// Usage: bench_code_values [--quick]
#include "coat/numerics/moments.h"
#include "dev/test/bench_cuda.h"

constexpr int THREADS = 256, CODES = 16, ROUNDS = 256, POWERS = 1024;

struct Tables {
    float log2[128];     // table of log2(code / F) for each FP8 magnitude
    float power[POWERS]; // table of 2^(i / POWERS)
};

struct Work {
    const uint32_t *codes; // input: CODES FP8 values per thread
    float *sums, *values;  // sums: one per thread. values: decoded values of the first round; NULL: not stored
    float k_inverse;
};

enum Unit { BY_TABLE, BY_UNIT };

__device__ static inline float log2_by_unit(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns 2^x for x <= 0 from a table of the fraction's upper 10 bits and linear interpolation; relative error
// 1.2e-7.
__device__ static inline float exp2_by_table(const Tables *t, float x) {
    if (x < -125.0f) return 0.0f;
    const float whole = floorf(x), fraction = (x - whole) * POWERS;
    const int at = min((int)fraction, POWERS - 1);
    const float rest = (fraction - (float)at) * (0.69314718f / POWERS);
    const float power = t->power[at] * fmaf(0.5f * rest, rest, 1.0f + rest);
    return power * __int_as_float(((int)whole + 127) << 23);
}

template <Unit LOG2, Unit EXP2>
__device__ static inline float value_of(const Tables *t, uint32_t code, float k_inverse) {
    const float log2 =
        LOG2 == BY_TABLE ? t->log2[code] : log2_by_unit(code_magnitude((uint8_t)code, FMT_E4M3) * (1.0f / E4M3_MAX));
    const float x = log2 * k_inverse;
    return EXP2 == BY_TABLE ? exp2_by_table(t, x) : element_exp2(x);
}

template <Unit LOG2, Unit EXP2> __global__ __launch_bounds__(THREADS) void decode_kernel(Work w) {
    __shared__ Tables tables;
    for (int i = (int)threadIdx.x; i < POWERS; i += THREADS) {
        tables.power[i] = exp2f((float)i / POWERS);
        if (i < 128) tables.log2[i] = i == 0 ? -INFINITY : code_log2((uint8_t)i, FMT_E4M3);
    }
    __syncthreads();
    const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t code[CODES];
    for (int i = 0; i < CODES; i++) code[i] = w.codes[thread * CODES + i];
    float sum = 0.0f, k_inverse = w.k_inverse;
    for (int round = 0; round < ROUNDS; round++) {
#pragma unroll
        for (int i = 0; i < CODES; i++) {
            const float value = value_of<LOG2, EXP2>(&tables, code[i], k_inverse);
            if (round == 0 && w.values) w.values[thread * CODES + i] = value;
            sum += value;
        }
        k_inverse *= 0.9999f; // changes k every round, so that the compiler cannot reuse results
    }
    w.sums[thread] = sum;
}

// Computes only ex2, to measure the rate of the special-function units.
__global__ __launch_bounds__(THREADS) void power_kernel(float *sums) {
    float x[CODES];
    for (int i = 0; i < CODES; i++) x[i] = -0.01f * (float)(threadIdx.x + (unsigned)i);
    for (int round = 0; round < ROUNDS; round++)
#pragma unroll
        for (int i = 0; i < CODES; i++) x[i] = element_exp2(x[i]);
    float sum = 0.0f;
    for (int i = 0; i < CODES; i++) sum += x[i];
    sums[(int64_t)blockIdx.x * THREADS + threadIdx.x] = sum;
}

typedef struct {
    Work work;
    int blocks;
} Context;

template <Unit LOG2, Unit EXP2> static void run(Bench *bench, void *context) {
    const Context *c = (const Context *)context;
    decode_kernel<LOG2, EXP2><<<(unsigned)c->blocks, THREADS, 0, cuda_backend(&bench->exec)->stream>>>(c->work);
    LAUNCH_CHECK("decode_kernel");
}

static void run_powers(Bench *bench, void *context) {
    const Context *c = (const Context *)context;
    power_kernel<<<(unsigned)c->blocks, THREADS, 0, cuda_backend(&bench->exec)->stream>>>(c->work.sums);
    LAUNCH_CHECK("power_kernel");
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(Bench *, void *);
        int units; // number of special-function instructions per element
    } ways[] = {{"log2 by table, exp2 by unit *", run<BY_TABLE, BY_UNIT>, 1},
                {"log2 by unit, exp2 by unit", run<BY_UNIT, BY_UNIT>, 2},
                {"log2 by table, exp2 by table", run<BY_TABLE, BY_TABLE>, 0},
                {"log2 by unit, exp2 by table", run<BY_UNIT, BY_TABLE>, 1}};
    Bench bench = {};
    config_defaults(&bench.config);
    recipe_apply(&bench.config.recipe, RECIPE_BF16);
    bench.config.recipe.precision = PRECISION_FP32; // FP32, because this benchmark does not run matmuls
    bench.quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    bench_open(&bench);
    const Ops *ops = bench.exec.ops;
    Context c = {};
    c.blocks = 8 * cuda_backend(&bench.exec)->sm_count;
    const size_t threads = (size_t)c.blocks * THREADS, count = threads * CODES;
    uint32_t *codes = (uint32_t *)xmalloc(count * sizeof *codes);
    float *values = (float *)xmalloc(count * sizeof *values);
    // covers all FP8 magnitudes except NaN
    for (size_t i = 0; i < count; i++) codes[i] = (uint32_t)(rng_hash(7, 0, i) % 127);
    void *device_codes = bench_allocate(&bench, count * sizeof *codes);
    ops->upload(&bench.exec, device_codes, codes, count * sizeof *codes);
    c.work.codes = (const uint32_t *)device_codes;
    c.work.sums = (float *)bench_allocate(&bench, threads * sizeof(float));
    float *device_values = (float *)bench_allocate(&bench, count * sizeof(float));
    c.work.k_inverse = 1.0f / 1.9f;
    const double elements = (double)count * ROUNDS, unit = bench_median_ms(&bench, run_powers, &c) / elements * 1e9;
    printf("the special-function units alone: %.3f ps per result on the whole GPU\n\n", unit);
    printf("%-32s %12s %28s %16s\n", "", "ps/element", "of the units' own time", "largest error");
    bool good = true;
    for (const auto &way : ways) {
        c.work.values = device_values;
        way.run(&bench, &c);
        ops->download(&bench.exec, values, device_values, count * sizeof *values);
        double worst = 0.0;
        for (size_t i = 0; i < count; i++) {
            const double exact = pow((double)code_magnitude((uint8_t)codes[i], FMT_E4M3) / E4M3_MAX, c.work.k_inverse);
            const double error = exact > 0 ? fabs(values[i] - exact) / exact : fabs((double)values[i]);
            if (!(error <= worst)) worst = error;
        }
        c.work.values = NULL;
        const double ps = bench_median_ms(&bench, way.run, &c) / elements * 1e9;
        char share[32] = "none needed";
        if (way.units) snprintf(share, sizeof share, "%.0f %%", 100.0 * way.units * unit / ps);
        printf("%-32s %12.3f %28s %16.1e\n", way.name, ps, share, worst);
        good = good && worst < 1e-5;
    }
    printf("\n* as the optimizer does it\n%s\n", good ? "all values are right" : "WRONG values");
    ops->release(&bench.exec, device_codes);
    ops->release(&bench.exec, c.work.sums);
    ops->release(&bench.exec, device_values);
    free(values);
    free(codes);
    bench_close(&bench);
    return good ? 0 : 1;
}
