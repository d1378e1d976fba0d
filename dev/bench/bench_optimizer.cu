// Benchmarks the AdamW step on the GPU for GPT-2 124M and 1558M, for every storage format of the optimizer states.
// Before that, checks the step against the CPU backend (check_optimizer.cu). For each format prints the bytes that must
// move through device memory (states read and written once, gradients read once), GB/s, the percentage of a large
// device copy's rate, and the speedup over FP32 moments with split16 master weights.
// Usage: build/bench_optimizer_gpu [--quick] [--check]
//   --quick: fewer repetitions, and only GPT-2 124M
//   --check: no timing; exits with 1 if a comparison failed
#include "bench_ceiling.h"
#include "coat/numerics/moments.h"
#include "dev/test/check_gpu.h"

#define PADDED_VOCABULARY 50304
#define POSITIONS 1024

typedef struct {
    const char *name;
    int64_t channels, layers;
} ModelSize;

// Storage formats of the optimizer's moments and master weights.
typedef struct {
    const char *name;
    MomentsKind moments;
    Format master;
} TimedStorage;

// One buffer per role (value, gradient, m, v, master), large enough for all parameters in the role's widest format. The
// parameters' tensors are parts of these buffers.
typedef struct {
    Bench *bench;
    char *value, *master, *grad, *m, *v;
    float *m_scale, *v_scale;
    uint8_t *m_exponent, *v_exponent;
    int64_t room; // capacity of each buffer in elements
    StepState *state;
    Parameter *parameters;
    int count;
    int64_t elements; // number of elements of all parameters
    double bytes;     // number of bytes that an optimizer step must move through memory
} Timing;

// Fills `data` with random gradients whose magnitudes are lognormal and whose scale differs between groups.
__global__ static void gradients_kernel(void *data, Format format, int64_t count, uint64_t seed) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const float scale = 1e-5f * expf(bench_normal(seed + 1, (uint64_t)(i / MOMENT_GROUP)));
        const float spread = expf(0.5f * bench_normal(seed + 2, (uint64_t)i));
        bench_encode(data, format, i, scale * spread * bench_normal(seed, (uint64_t)i));
    }
}

static Tensor timed_moment(const Timing *t, bool second, int64_t at, int64_t elements, Format format) {
    char *data = second ? t->v : t->m;
    Tensor moment = tensor_of(data + (size_t)at * format_bytes(format), 1, elements, format);
    if (format_is_fp8(format)) {
        moment.granularity = SCALE_EXPAND;
        moment.group = MOMENT_GROUP;
        moment.scale = (second ? t->v_scale : t->m_scale) + at / MOMENT_GROUP;
        moment.exponent = (second ? t->v_exponent : t->m_exponent) + at / MOMENT_GROUP;
    }
    return moment;
}

// Adds a parameter whose elements begin at index `at` of each role's buffer. The gradient buffer has 4 bytes per
// element.
static void parameter_add(Timing *t, const TimedStorage *s, int64_t at, int64_t elements, bool matrix, Format grad) {
    const bool small = matrix && s->moments != MOMENTS_FP32;
    const Format moment = !small ? FMT_FP32 : s->moments == MOMENTS_BF16 ? FMT_BF16 : FMT_E4M3;
    Parameter *p = &t->parameters[t->count++];
    *p = Parameter{};
    p->weight.value = tensor_of(t->value + 2 * at, 1, elements, FMT_BF16);
    p->grad = tensor_of(t->grad + 4 * at, 1, elements, grad);
    p->m = timed_moment(t, false, at, elements, moment);
    p->v = timed_moment(t, true, at, elements, moment);
    if (s->master != FMT_NONE)
        p->master = tensor_of(t->master + (size_t)at * format_bytes(s->master), 1, elements, s->master);
    p->decay = matrix;
    p->index = (uint64_t)at;
    // Bytes per element. With FP32 master weights, the update writes the value but does not read it.
    double each = (double)format_bytes(grad) + 4.0 * (double)format_bytes(moment);
    each += s->master == FMT_FP32 ? 10 : s->master == FMT_U16 ? 8 : 4;
    if (format_is_fp8(moment)) each += 2.0 * 2 * 5 / MOMENT_GROUP;
    t->bytes += each * (double)elements;
    t->elements += elements;
    gradients_kernel<<<1024, 256, 0, cuda_backend(&t->bench->exec)->stream>>>(p->grad.data, grad, elements,
                                                                              3 * (uint64_t)at);
    LAUNCH_CHECK("gradients_kernel");
}

// Creates GPT-2's parameters or, if s is NULL, only counts their elements. Returns the number of elements that each
// buffer needs.
static int64_t parameters_make(Timing *t, ModelSize model, const TimedStorage *s) {
    const int64_t C = model.channels;
    const int64_t layer[] = {C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C};
    const int64_t once[] = {PADDED_VOCABULARY * C, POSITIONS * C, C, C};
    const int per_layer = sizeof layer / sizeof layer[0], singles = sizeof once / sizeof once[0];
    const int count = singles + (int)model.layers * per_layer;
    if (!t->parameters) t->parameters = (Parameter *)xcalloc((size_t)count, sizeof *t->parameters);
    t->count = 0, t->elements = 0, t->bytes = 0;
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        const int64_t n = i < singles ? once[i] : layer[(i - singles) % per_layer];
        const bool matrix = n >= C * C && i != 1;
        if (s) parameter_add(t, s, at, n, matrix, matrix && i > 0 ? FMT_BF16 : FMT_FP32);
        at += (n + MOMENT_GROUP - 1) / MOMENT_GROUP * MOMENT_GROUP;
    }
    return at;
}

static void run_update(Bench *bench, void *context) {
    Timing *t = (Timing *)context;
    bench->exec.ops->adamw_update(&bench->exec, t->parameters, t->count, t->state);
}

// Runs optimizer steps with the states in the formats of s, and returns the median milliseconds of one step.
static double time_storage(Timing *t, ModelSize model, const TimedStorage *s) {
    Bench *bench = t->bench;
    Exec *e = &bench->exec;
    bench->config.recipe.moments = s->moments;
    cuda_backend(e)->recipe = bench->config.recipe;
    parameters_make(t, model, s);
    const size_t groups = (size_t)(t->room / MOMENT_GROUP);
    e->ops->zero(e, t->m, (size_t)t->room * 4);
    e->ops->zero(e, t->v, (size_t)t->room * 4);
    e->ops->zero(e, t->m_scale, groups * sizeof(float));
    e->ops->zero(e, t->v_scale, groups * sizeof(float));
    const char *doing = "setting exponents";
    CUDA_CHECK(cudaMemsetAsync(t->m_exponent, MOMENT_K_ONE, groups, cuda_backend(e)->stream), doing);
    CUDA_CHECK(cudaMemsetAsync(t->v_exponent, MOMENT_K_ONE, groups, cuda_backend(e)->stream), doing);
    bench_fill_kernel<<<1024, 256, 0, cuda_backend(e)->stream>>>(t->value, FMT_BF16, t->room, 7, 0.02f);
    bench_fill_kernel<<<1024, 256, 0, cuda_backend(e)->stream>>>(t->master, s->master == FMT_FP32 ? FMT_FP32 : FMT_BF16,
                                                                 t->room, 7, 0.02f);
    LAUNCH_CHECK("bench_fill");
    StepState state = {};
    state.lr = 1e-6f, state.beta1 = 0.9f, state.beta2 = 0.95f, state.eps = 1e-8f, state.weight_decay = 0.1f;
    e->ops->upload(e, t->state, &state, sizeof state);
    const double ms = bench_median_ms(bench, run_update, t);
    e->ops->download(e, &state, t->state, sizeof state);
    if (state.nonfinite) fatal(EXIT_USER, "bench_optimizer: %s: a state is not finite", s->name);
    return ms;
}

// Times the optimizer step of one model for every storage format of its states. copy: bytes per second of a large copy.
static void time_model(Bench *bench, ModelSize model, double copy) {
    const TimedStorage storages[] = {
        {"fp32, split16", MOMENTS_FP32, FMT_U16},
        {"bf16, split16", MOMENTS_BF16, FMT_U16},
        {"coat, split16", MOMENTS_COAT, FMT_U16},
        {"coat, fp32", MOMENTS_COAT, FMT_FP32},
        {"coat, none", MOMENTS_COAT, FMT_NONE},
        {"fp8, split16", MOMENTS_FP8, FMT_U16},
        {"fp32, split16, repeated", MOMENTS_FP32, FMT_U16},
    };
    Timing t = {};
    t.bench = bench;
    t.room = parameters_make(&t, model, NULL);
    const size_t n = (size_t)t.room, groups = n / MOMENT_GROUP;
    t.value = (char *)bench_allocate(bench, 2 * n);
    char **const wide[] = {&t.master, &t.grad, &t.m, &t.v};
    for (char **role : wide) *role = (char *)bench_allocate(bench, 4 * n);
    t.m_scale = (float *)bench_allocate(bench, groups * sizeof(float));
    t.v_scale = (float *)bench_allocate(bench, groups * sizeof(float));
    t.m_exponent = (uint8_t *)bench_allocate(bench, groups);
    t.v_exponent = (uint8_t *)bench_allocate(bench, groups);
    t.state = (StepState *)bench_allocate(bench, sizeof(StepState));

    printf("\n%s, %.0f M parameters\n", model.name, (double)t.room * 1e-6);
    printf("moments, master: time, bytes moved, rate, %% of a copy's rate, bytes per element, speed relative to the "
           "first row\n");
    double baseline = 0;
    for (const TimedStorage &s : storages) {
        const double ms = time_storage(&t, model, &s), rate = t.bytes / ms * 1e3;
        if (baseline == 0) baseline = ms;
        printf("%-26s %9.3f ms %9.1f MB %7.0f GB/s %6.1f %% %7.2f B %6.2fx\n", s.name, ms, t.bytes * 1e-6, rate * 1e-9,
               100 * rate / copy, t.bytes / (double)t.elements, baseline / ms);
        fflush(stdout);
    }
    void *const memory[] = {t.value,   t.master,  t.grad,       t.m,          t.v,
                            t.m_scale, t.v_scale, t.m_exponent, t.v_exponent, t.state};
    for (void *part : memory) bench->exec.ops->release(&bench->exec, part);
    free(t.parameters);
}

int main(int argc, char **argv) {
    Bench bench = {};
    bench_flags(&bench, "[--quick] [--check]", argc, argv);
    const int wrong = check_optimizer_states(false);
    if (bench.check) return wrong ? EXIT_USER : EXIT_DONE;

    bench_configure(&bench.config, 1, 64, 64);
    bench_open(&bench);
    const ModelSize models[] = {{"GPT-2 124M", 768, 12}, {"GPT-2 1558M", 1600, 48}};
    const double copy = bench_copy_ceiling(&bench);
    for (int i = 0; i < (bench.quick ? 1 : 2); i++) time_model(&bench, models[i], copy);
    bench_close(&bench);
    return wrong ? EXIT_USER : EXIT_DONE;
}
