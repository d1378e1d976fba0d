// Compares Group Scaling with plain just-in-time scaling, as in the paper's figure 4b. Plain scaling reads the BF16
// tensor a second time to compute its amax. With Group Scaling, the kernel that produced the tensor has stored the amax
// of each row (as in this project) or of each group of 128 values, so that only their maximum must be computed. Prints
// milliseconds, the paper's milliseconds (H100), and read rates. The read rate of plain scaling is also in percent of a
// large copy's rate (reads and writes), the other read rates in percent of the rate of a copy of as many bytes.
// Usage: build/bench_group_scaling_gpu [--quick]
#include "bench_ceiling.h"
#include "coat/cuda/fp8/fp8_kernels.h"

#define GROUP 128

typedef struct {
    int64_t cols, rows;
    double paper_plain, paper_group; // milliseconds that the paper reports for plain scaling and Group Scaling
} ScalingShape;

static const ScalingShape shapes[] = {
    {11008, 16384, 1.37, 0.10}, {11008, 8192, 0.89, 0.08}, {4096, 16384, 0.55, 0.07}, {4096, 8192, 0.32, 0.06}};

typedef struct {
    Tensor x[SETS], codes;
    uint32_t *row_maxima, *group_maxima[SETS];
    int64_t groups;
    int set;
} Operands;

static void run_plain(Bench *bench, void *context) {
    Operands *o = (Operands *)context;
    o->set = (o->set + 1) % SETS;
    bf16_row_amaxes(&bench->exec, o->x[o->set], o->row_maxima);
    scale_from_amaxes(&bench->exec, o->codes, o->row_maxima, o->x[0].rows);
}

static void run_rows(Bench *bench, void *context) {
    Operands *o = (Operands *)context;
    scale_from_amaxes(&bench->exec, o->codes, o->row_maxima, o->x[0].rows);
}

static void run_groups(Bench *bench, void *context) {
    Operands *o = (Operands *)context;
    o->set = (o->set + 1) % SETS;
    scale_from_amaxes(&bench->exec, o->codes, o->group_maxima[o->set], o->groups);
}

// Stores the amax of every group of 128 columns. In training, the kernel that produces the tensor would store it.
__global__ static void group_maxima_kernel(uint32_t *maxima, Tensor x, int64_t groups) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += step) {
        uint32_t largest = 0;
        for (int i = 0; i < GROUP; i++) {
            const uint32_t bits = (uint32_t)(((const uint16_t *)x.data)[g * GROUP + i] & 0x7fffu) << 16;
            largest = bits > largest ? bits : largest;
        }
        maxima[g] = largest;
    }
}

static float scale_of(Bench *bench, const Operands *o) {
    float scale;
    bench->exec.ops->download(&bench->exec, &scale, o->codes.scale, sizeof scale);
    return scale;
}

static Operands operands_make(Bench *bench, const ScalingShape *s) {
    Operands o = {};
    o.groups = s->rows * s->cols / GROUP;
    o.codes = bench_tensor(bench, 16, 16, FMT_E4M3, 1.0f); // any size: only its scale is used
    o.row_maxima = (uint32_t *)bench_allocate(bench, (size_t)s->rows * sizeof(uint32_t));
    for (int i = 0; i < SETS; i++) {
        o.x[i] = bench_tensor(bench, s->rows, s->cols, FMT_BF16, 1.0f);
        o.group_maxima[i] = (uint32_t *)bench_allocate(bench, (size_t)o.groups * sizeof(uint32_t));
        group_maxima_kernel<<<1024, 256, 0, cuda_backend(&bench->exec)->stream>>>(o.group_maxima[i], o.x[i], o.groups);
        LAUNCH_CHECK("group_maxima");
    }
    return o;
}

static void operands_free(Bench *bench, Operands *o) {
    for (int i = 0; i < SETS; i++) {
        bench_release(bench, o->x[i]);
        bench->exec.ops->release(&bench->exec, o->group_maxima[i]);
    }
    bench_release(bench, o->codes);
    bench->exec.ops->release(&bench->exec, o->row_maxima);
}

// True if plain scaling, the row amaxes and the group amaxes give the same scale.
static bool scales_agree(Bench *bench, Operands *o) {
    o->set = -1;
    run_plain(bench, o);
    const float plain = scale_of(bench, o);
    run_rows(bench, o);
    const float rows = scale_of(bench, o);
    o->set = -1;
    run_groups(bench, o);
    return plain > 0.0f && plain == rows && plain == scale_of(bench, o);
}

// Result of timing one scaling method: milliseconds, bytes read per second, and percentage of a copy's rate.
typedef struct {
    double ms, rate, share;
} Figure;

// Times one scaling method. f.share is relative to a copy of `bytes` or, if `copies` is NULL, to `ceiling` bytes/s.
static Figure figure(Bench *bench, void (*run)(Bench *, void *), Operands *o, double bytes, const Copies *copies,
                     double ceiling) {
    Figure f;
    f.ms = bench_median_ms(bench, run, o);
    f.rate = bytes / f.ms * 1e3;
    f.share = 100.0 * f.rate / (copies ? copies_rate(bench, copies, bytes, bench_median_ms) : ceiling);
    return f;
}

static bool bench_shape(Bench *bench, const ScalingShape *s, const Copies *copies, double ceiling) {
    Operands o = operands_make(bench, s);
    const bool good = scales_agree(bench, &o);
    const Figure plain = figure(bench, run_plain, &o, 2.0 * (double)(s->rows * s->cols), NULL, ceiling);
    const Figure rows = figure(bench, run_rows, &o, 4.0 * (double)s->rows, copies, ceiling);
    const Figure groups = figure(bench, run_groups, &o, 4.0 * (double)o.groups, copies, ceiling);
    printf("| %lld x %lld | %.3f | %.0f GB/s, %.0f %% | %.4f (%.1f GB/s, %.0f %%) | %.4f (%.1f GB/s, %.0f %%) | %.1f "
           "| %.2f and %.2f (%.1f) |%s\n",
           (long long)s->cols, (long long)s->rows, plain.ms, plain.rate * 1e-9, plain.share, rows.ms, rows.rate * 1e-9,
           rows.share, groups.ms, groups.rate * 1e-9, groups.share, plain.ms / rows.ms, s->paper_plain, s->paper_group,
           s->paper_plain / s->paper_group, good ? "" : " WRONG: the scales differ");
    fflush(stdout);
    operands_free(bench, &o);
    return good;
}

int main(int argc, char **argv) {
    Bench bench = {};
    bench_flags(&bench, "[--quick]", argc, argv);
    config_defaults(&bench.config);
    recipe_apply(&bench.config.recipe, RECIPE_BF16);
    bench.config.device = DEVICE_CUDA;
    bench_open(&bench);
    Copies copies = copies_open(&bench);
    const double ceiling = copies_ceiling(&bench, &copies);
    printf("\n| columns x rows | plain scaling, ms | plain scaling, read rate | from row amaxes, ms (read rate) "
           "| from amaxes of groups of %d, ms (read rate) | plain / row amaxes "
           "| the paper: plain and groups, ms (quotient) |\n"
           "| --- | --- | --- | --- | --- | --- | --- |\n",
           GROUP);
    int wrong = 0;
    for (const ScalingShape &s : shapes) wrong += !bench_shape(&bench, &s, &copies, ceiling);
    copies_close(&bench, &copies);
    bench_close(&bench);
    return wrong > 0;
}
