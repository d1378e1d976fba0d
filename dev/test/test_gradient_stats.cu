// Tests that dev/tools/gradient_stats.cu measures the same on GPU and CPU, for a random gradient with row magnitudes
// from 2^-23 to 1. Counts must be equal, because both backends compute the same FP8 values. Errors may differ by 0.1 %.
#include "bench_cuda.h"
#include "dev/tools/gradient_accumulation.h"
#include "tap.h"

enum { TOKENS = 4096, OUT = 3 * 64, IN = 320 };
enum { ON_CPU, ON_GPU, SIDES };

typedef struct {
    Exec *exec[SIDES];
    Meter meter[SIDES];
    Tensor dy[SIDES], x[SIDES], w[SIDES]; // BF16: gradient dy (TOKENS, OUT), input x (TOKENS, IN), weights w (OUT, IN)
    GradientStats stats[SIDES];
} Pair;

// Allocates a tensor on CPU and GPU and fills both with the same normally distributed BF16 values. Row magnitudes are 1
// to 2^-(octaves - 1).
static void random_pair(Pair *p, Tensor t[SIDES], int64_t rows, int64_t cols, int octaves) {
    static uint64_t stream;
    Error err;
    const size_t bytes = (size_t)(rows * cols) * sizeof(uint16_t);
    stream++;
    for (int side = 0; side < SIDES; side++) {
        t[side] = tensor_of(p->exec[side]->ops->allocate(p->exec[side], bytes, &err), rows, cols, FMT_BF16);
        if (!t[side].data) fatal(err.code, "%s", err.text);
    }
    for (int64_t i = 0; i < rows * cols; i++) {
        const float size = ldexpf(1.0f, octaves ? -(int)(i / cols * 7 % octaves) : 0);
        ((uint16_t *)t[ON_CPU].data)[i] = bf16_encode(size * rng_normal(5, stream, (uint64_t)i));
    }
    p->exec[ON_GPU]->ops->upload(p->exec[ON_GPU], t[ON_GPU].data, t[ON_CPU].data, bytes);
}

static bool near(double a, double b, double relative, double absolute) {
    return fabs(a - b) <= relative * fabs(b) + absolute;
}

static bool same_deviation(const Deviation *a, const Deviation *b) {
    return near(a->error, b->error, 1e-3, 1e-6) && near(a->bias, b->bias, 1e-3, 2e-6);
}

static void check_variants(const Pair *p) {
    const GradientStats *cpu = &p->stats[ON_CPU], *gpu = &p->stats[ON_GPU];
    tap_check(near(gpu->rms, cpu->rms, 1e-12, 0) && gpu->largest == cpu->largest && gpu->above == cpu->above &&
                  gpu->below == cpu->below && gpu->small_rows == cpu->small_rows,
              "errors of the gradient agree on GPU and CPU", "rms %.9g, largest %.9g, 2^%.2f, 2^%.2f", gpu->rms,
              gpu->largest, gpu->above, gpu->below);
    for (int f = 0; f < GRADIENT_FORMATS; f++) {
        for (int r = 0; r < SCALE_RULES; r++) {
            const VariantStats *a = &gpu->variant[f][r], *b = &cpu->variant[f][r];
            char name[64];
            snprintf(name, sizeof name, "%s, scale %s", format_name(gradient_formats[f]), scale_rules[r].name);
            tap_check(a->measured && a->flushed == b->flushed && a->subnormal == b->subnormal &&
                          near(a->flushed_squares, b->flushed_squares, 1e-9, 0) && same_deviation(&a->data, &b->data) &&
                          same_deviation(&a->weight, &b->weight) && near(a->worst_row, b->worst_row, 1e-3, 1e-6),
                      name, "flushed %.4f and %.4f, data %.6f %+.2e and %.6f %+.2e, dw %.6f %+.2e and %.6f %+.2e",
                      a->flushed, b->flushed, a->data.error, a->data.bias, b->data.error, b->data.bias, a->weight.error,
                      a->weight.bias, b->weight.error, b->weight.bias);
        }
    }
}

// Allows an error of 1/500 with FP32 outputs, because a GPU's FP8 matmuls may accumulate with less precision than FP32,
// and of 3/500 with BF16 outputs, which are rounded.
static void check_matmuls(Pair *p) {
    for (int f = 0; f < GRADIENT_FORMATS; f++) {
        Accumulation a;
        measure_accumulation(&p->meter[ON_GPU], p->dy[ON_GPU], p->x[ON_GPU], p->w[ON_GPU], gradient_formats[f],
                             &p->stats[ON_GPU], &a);
        for (int o = 0; o < OUTPUTS; o++) {
            const double limit = o == OUTPUT_FP32 ? 2e-3 : 6e-3;
            char name[64];
            snprintf(name, sizeof name, "FP8 matmuls, %s, into %s", format_name(gradient_formats[f]),
                     format_name(output_formats[o]));
            tap_check(a.measured && a.data[o].error < limit && a.weight[o][0].error < limit &&
                          a.weight[o][1].error < limit,
                      name, "data %.2e %+.2e, dw %.2e %+.2e, added %.2e %+.2e", a.data[o].error, a.data[o].bias,
                      a.weight[o][0].error, a.weight[o][0].bias, a.weight[o][1].error, a.weight[o][1].bias);
        }
    }
}

int main(void) {
    static Bench bench;
    static Config cpu_config;
    static Pair p;
    Exec cpu = {};
    const MeterSize size = {TOKENS * OUT, TOKENS * IN, OUT * IN, TOKENS};
    const Parts thirds = {3, {OUT / 3, 2 * OUT / 3, OUT}};
    bench_configure(&bench.config, TOKENS / 1024, IN, IN);
    bench_configure(&cpu_config, TOKENS / 1024, IN, IN);
    bench.config.recipe.cache_transposed = cpu_config.recipe.cache_transposed = true;
    bench_open(&bench);
    bench_exec_open(&cpu, cpu_ops(), DEVICE_CPU, &cpu_config);
    p.exec[ON_CPU] = &cpu, p.exec[ON_GPU] = &bench.exec;
    random_pair(&p, p.dy, TOKENS, OUT, 24);
    random_pair(&p, p.x, TOKENS, IN, 0);
    random_pair(&p, p.w, OUT, IN, 0);
    for (int side = 0; side < SIDES; side++) {
        Error err;
        if (!meter_open(&p.meter[side], p.exec[side], p.exec[side]->ops, &size, &err)) fatal(err.code, "%s", err.text);
        measure_gradient(&p.meter[side], p.dy[side], p.x[side], p.w[side], thirds, &p.stats[side]);
    }
    check_variants(&p);
    check_matmuls(&p);
    for (int side = 0; side < SIDES; side++) {
        const Tensor all[] = {p.dy[side], p.x[side], p.w[side]};
        for (const Tensor &t : all) p.exec[side]->ops->release(p.exec[side], t.data);
        meter_close(&p.meter[side]);
    }
    bench_exec_close(&cpu);
    bench_close(&bench);
    return tap_status();
}
