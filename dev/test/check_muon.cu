// Compares Muon's operations on the GPU with the CPU backend, in all formats of momentum, gradient, update and weights.
//   muon_momentum: all bits agree, except with an FP8 momentum, for which the GPU approximates logarithms.
//   muon_apply: all bits agree.
//   muon_orthogonalize: both backends are compared with the CPU's result in FP32. In FP32, the GPU's relative error may
//       be 2e-5. In BF16, it may be 1.5 times the CPU's plus 0.003, because the two add in different orders.
#include "bench_cuda.h"
#include "check_gpu.h"
#include "coat/numerics/moments.h"

#include <math.h>

#define GROUP 128

typedef struct {
    Bench bench;
    Exec cpu;
    StepState *gpu_state;
    int checks, failures;
} MuonCheck;

// An array in CPU memory and its counterpart in GPU memory. shift: distance in bytes from an aligned address.
typedef struct {
    char *cpu, *gpu, *copy, *allocated;
    size_t bytes;
} Array;

static void say(MuonCheck *c, bool ok, const char *text, ...) {
    c->checks++;
    if (ok) return;
    va_list arguments;
    va_start(arguments, text);
    printf("  ");
    vprintf(text, arguments);
    printf("\n");
    va_end(arguments);
    c->failures++;
}

static Array array_new(MuonCheck *c, size_t bytes, size_t shift) {
    Array a = {};
    a.bytes = bytes;
    a.cpu = (char *)xcalloc(1, bytes);
    a.copy = (char *)xmalloc(bytes);
    a.allocated = (char *)bench_allocate(&c->bench, bytes + shift);
    a.gpu = a.allocated + shift;
    return a;
}

static void array_free(MuonCheck *c, Array *a) {
    free(a->cpu);
    free(a->copy);
    c->bench.exec.ops->release(&c->bench.exec, a->allocated);
}

static void array_upload(MuonCheck *c, const Array *a) {
    c->bench.exec.ops->upload(&c->bench.exec, a->gpu, a->cpu, a->bytes);
}

// Downloads the GPU's array to a->copy. Returns true if it has the bits of the CPU's.
static bool array_same(MuonCheck *c, const Array *a) {
    c->bench.exec.ops->download(&c->bench.exec, a->copy, a->gpu, a->bytes);
    return memcmp(a->copy, a->cpu, a->bytes) == 0;
}

static void put(Format format, void *data, int64_t i, float x) {
    if (format == FMT_BF16)
        ((uint16_t *)data)[i] = bf16_encode(x);
    else
        ((float *)data)[i] = x;
}

static float get(Format format, const void *data, int64_t i) {
    return format == FMT_BF16 ? bf16_decode(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

// --- muon_momentum ---------------------------------------------------------------------------------------------------
// Returns gradient element i: lognormal values, groups of zeros, and groups near FP32's limits.
static float gradient(int64_t i, uint64_t step) {
    const int64_t kind = i / GROUP % 11;
    const float x = rng_normal(50 + step, 1, (uint64_t)i) * expf(rng_normal(60 + step, 2, (uint64_t)i)) * 1e-4f;
    if (kind == 3) return 0.0f;
    if (kind == 5) return x * 1e-25f;
    if (kind == 7) return x * 1e-33f;
    return kind == 9 ? x * 1e30f : x;
}

// Returns how many FP8 values or updates differ by more than the GPU's error. If more than 1 FP8 value in 500 differs,
// also counts all FP8 values that differ.
static int64_t fp8_far(const Array *codes, const Array *scale, const Array *update, Format format, int64_t elements) {
    int64_t far = 0, differ = 0;
    for (int64_t i = 0; i < elements; i++) {
        const int have = codes->copy[i] & 0x7f, want = codes->cpu[i] & 0x7f;
        const float a = ((const float *)scale->cpu)[i / GROUP], u = get(format, update->cpu, i);
        const float apart = fabsf(get(format, update->copy, i) - u);
        differ += have != want;
        far += abs(have - want) > 1 || !(apart <= 2e-4f * a + 8e-3f * fabsf(u));
    }
    return far + (differ > elements / 500 ? differ : 0);
}

static void check_momentum(MuonCheck *c, Format m, MomentsKind moments, Format grad, Format update, int64_t elements,
                           bool aligned) {
    const bool groups = format_has_groups(m);
    const size_t n = (size_t)elements, group_count = (n + GROUP - 1) / GROUP, shift = aligned ? 0 : 4;
    char name[160];
    snprintf(name, sizeof name, "muon_momentum, %s, --moments %d, gradients %s, update %s, %lld elements%s",
             format_name(m), moments, format_name(grad), format_name(update), (long long)elements,
             aligned ? "" : ", not aligned");
    c->bench.config.recipe.moments = moments;
    cuda_backend(&c->bench.exec)->recipe = c->bench.config.recipe;
    Exec cpu = c->cpu;
    bench_exec_open(&cpu, cpu_ops(), DEVICE_CPU, &c->bench.config);
    Array g = array_new(c, n * format_bytes(grad), shift), u = array_new(c, n * format_bytes(update), shift);
    Array codes = array_new(c, n * format_bytes(m), shift), scale = array_new(c, group_count * sizeof(float), 0);
    Array k = array_new(c, group_count, 0);
    memset(k.cpu, MOMENT_K_ONE, group_count);
    Parameter p[2] = {};
    for (int side = 0; side < 2; side++) {
        p[side].weight.value = tensor_of(NULL, 1, elements, FMT_BF16);
        p[side].grad = tensor_of(side ? g.gpu : g.cpu, 1, elements, grad);
        p[side].update = tensor_of(side ? u.gpu : u.cpu, 1, elements, update);
        p[side].m = tensor_of(side ? codes.gpu : codes.cpu, 1, elements, m);
        if (!groups) continue;
        p[side].m.granularity = SCALE_EXPAND;
        p[side].m.group = GROUP;
        p[side].m.scale = side ? scale.gpu : scale.cpu;
        p[side].m.exponent = (uint8_t *)(side ? k.gpu : k.cpu);
    }
    StepState state = {};
    state.momentum = 0.95f, state.grad_clip = 1.0f;
    for (uint64_t step = 0; step < 4; step++) {
        const Array *arrays[] = {&g, &u, &codes, &scale, &k};
        for (int64_t i = 0; i < elements; i++) put(grad, g.cpu, i, gradient(i, step));
        state.grad_norm = step == 1 ? 3.7f : 0.5f;
        state.skips = step == 3;
        for (const Array *a : arrays) array_upload(c, a);
        c->bench.exec.ops->upload(&c->bench.exec, c->gpu_state, &state, sizeof state);
        cpu.ops->muon_momentum(&cpu, &p[0], 1, &state);
        c->bench.exec.ops->muon_momentum(&c->bench.exec, &p[1], 1, c->gpu_state);
        const bool same_k = array_same(c, &k), same_a = array_same(c, &scale), same_codes = array_same(c, &codes);
        const bool same_update = array_same(c, &u);
        if (m == FMT_E4M3 && step > 0 && step < 3)
            say(c, same_k && fp8_far(&codes, &scale, &u, update, elements) == 0, "%s, step %d", name, (int)step);
        else
            say(c, same_k && same_a && (same_codes || (m == FMT_E4M3 && step < 3)) && same_update,
                "%s, step %d: exponents %d, amaxes %d, momentum %d, update %d", name, (int)step, same_k, same_a,
                same_codes, same_update);
    }
    if (groups) {
        StepState found;
        put(grad, g.cpu, elements - 1, INFINITY);
        array_upload(c, &g);
        state.skips = 0;
        c->bench.exec.ops->upload(&c->bench.exec, c->gpu_state, &state, sizeof state);
        c->bench.exec.ops->muon_momentum(&c->bench.exec, &p[1], 1, c->gpu_state);
        c->bench.exec.ops->download(&c->bench.exec, &found, c->gpu_state, sizeof found);
        say(c, found.nonfinite == 1, "%s: inf is not reported", name);
    }
    Array *arrays[] = {&g, &u, &codes, &scale, &k};
    for (Array *a : arrays) array_free(c, a);
    bench_exec_close(&cpu);
}

static void check_momenta(MuonCheck *c, bool small) {
    static const struct {
        Format format;
        MomentsKind moments;
    } kinds[] = {{FMT_FP32, MOMENTS_FP32}, {FMT_BF16, MOMENTS_BF16}, {FMT_I8, MOMENTS_COAT},
                 {FMT_I8, MOMENTS_FP8},    {FMT_E4M3, MOMENTS_FP8},  {FMT_E4M3, MOMENTS_COAT}};
    static const int64_t sizes[] = {1, 129, 512, 5003, 300007};
    for (const auto &kind : kinds)
        for (Format grad : {FMT_BF16, FMT_FP32})
            for (int64_t size : sizes) {
                if (small && size > 5003) continue;
                check_momentum(c, kind.format, kind.moments, grad, FMT_BF16, size, true);
                if (size == 5003) check_momentum(c, kind.format, kind.moments, grad, FMT_FP32, size, true);
                if (size == 5003) check_momentum(c, kind.format, kind.moments, grad, FMT_BF16, size, false);
            }
}

// --- muon_apply ------------------------------------------------------------------------------------------------------
static void check_apply(MuonCheck *c, Format value, Format master, Format update, int64_t elements, bool aligned) {
    const size_t n = (size_t)elements, shift = aligned ? 0 : 4;
    Array v = array_new(c, n * format_bytes(value), shift), u = array_new(c, n * format_bytes(update), shift);
    Array w = array_new(c, n * (master == FMT_NONE ? 1 : format_bytes(master)), shift), amax = array_new(c, 4, 0);
    for (int64_t i = 0; i < elements; i++) {
        const float x = 0.02f * rng_normal(71, 1, (uint64_t)i);
        put(update, u.cpu, i, rng_normal(72, 1, (uint64_t)i));
        put(value, v.cpu, i, x);
        if (master == FMT_FP32) ((float *)w.cpu)[i] = x;
        if (master == FMT_U16) ((uint16_t *)w.cpu)[i] = (uint16_t)float_bits(x);
        if (master != FMT_NONE) ((uint16_t *)v.cpu)[i] = master_bf16(x);
    }
    *(uint32_t *)amax.cpu = float_bits(7.0f); // an old amax, which a skipped step keeps
    Parameter p[2] = {};
    for (int side = 0; side < 2; side++) {
        p[side].weight.value = tensor_of(side ? v.gpu : v.cpu, 1, elements, value);
        p[side].weight.maximum = value == FMT_BF16 ? (uint32_t *)(side ? amax.gpu : amax.cpu) : NULL;
        p[side].update = tensor_of(side ? u.gpu : u.cpu, 1, elements, update);
        if (master != FMT_NONE) p[side].master = tensor_of(side ? w.gpu : w.cpu, 1, elements, master);
        p[side].decay = true;
        p[side].index = 12345;
    }
    const Array *arrays[] = {&v, &w, &u, &amax};
    for (const Array *a : arrays) array_upload(c, a);
    StepState state = {};
    state.lr = 0.02f, state.weight_decay = 0.1f, state.seed = 9, state.t = 3;
    for (int step = 0; step < 2; step++) {
        state.skips = step == 0;
        c->bench.exec.ops->upload(&c->bench.exec, c->gpu_state, &state, sizeof state);
        c->cpu.ops->muon_apply(&c->cpu, &p[0], 1, &state);
        c->bench.exec.ops->muon_apply(&c->bench.exec, &p[1], 1, c->gpu_state);
        const bool values = array_same(c, &v), masters = array_same(c, &w), amaxes = array_same(c, &amax);
        say(c, values && masters && amaxes,
            "muon_apply, value %s, master %s, update %s, %lld elements, step %d: values %d, masters %d, amax %d",
            format_name(value), format_name(master), format_name(update), (long long)elements, step, values, masters,
            amaxes);
    }
    Array *all[] = {&v, &w, &u, &amax};
    for (Array *a : all) array_free(c, a);
}

static void check_applies(MuonCheck *c) {
    static const Format stores[][2] = {
        {FMT_FP32, FMT_NONE}, {FMT_BF16, FMT_NONE}, {FMT_BF16, FMT_FP32}, {FMT_BF16, FMT_U16}};
    for (const auto &store : stores)
        for (Format update : {FMT_BF16, FMT_FP32})
            for (int64_t elements : {1, 300, 5003, 70000}) {
                check_apply(c, store[0], store[1], update, elements, true);
                if (elements == 5003) check_apply(c, store[0], store[1], update, elements, false);
            }
}

// --- muon_orthogonalize ----------------------------------------------------------------------------------------------
static double relative_error(const float *have, const float *want, int64_t elements) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < elements; i++) {
        apart += ((double)have[i] - want[i]) * ((double)have[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    return sqrt(apart / (size > 0 ? size : 1));
}

// Orthogonalizes rows [first, first + rows) of x, which are `count` matrices, on one backend. Writes them to `out`.
static void orthogonalize(Exec *exec, const float *x, Format format, int64_t first, int64_t rows, int64_t cols,
                          int count, StepState *state, float *out) {
    const int64_t n = rows / count < cols ? rows / count : cols;
    const size_t bytes = (size_t)((first + rows) * cols) * format_bytes(format);
    const size_t room = ((size_t)(rows * cols + 2 * count * n * n) * sizeof(float) + bytes + 4096);
    Error err = {};
    char *memory = (char *)exec->ops->allocate(exec, room, &err), *host = (char *)xmalloc(room);
    if (!memory) fatal(err.code, "%s", err.text);
    memset(host, 0xff, room);
    for (int64_t i = 0; i < (first + rows) * cols; i++) put(format, host, i, x[i]);
    exec->ops->upload(exec, memory, host, room);
    char *at = memory;
    const auto take = [&](int64_t r, int64_t k) {
        const Tensor t = tensor_of(at, r, k, format);
        at += ((size_t)(r * k) * format_bytes(format) + 255) / 256 * 256;
        return t;
    };
    const Tensor all = take(first + rows, cols), y = take(rows, cols), gram = take(count * n, n),
                 polynomial = take(count * n, n);
    exec->ops->muon_orthogonalize(exec, tensor_rows(all, first, rows), count, y, gram, polynomial, 0.5f, state);
    exec->ops->download(exec, host, memory, bytes);
    for (int64_t i = 0; i < rows * cols; i++) out[i] = get(format, host, first * cols + i);
    exec->ops->release(exec, memory);
    free(host);
}

static void check_orthogonalize(MuonCheck *c, int64_t first, int64_t rows, int64_t cols, float deviation) {
    const int64_t all = (first + rows) * cols, elements = rows * cols;
    float *x = (float *)xmalloc((size_t)(all + 3 * elements) * sizeof *x);
    float *want = x + all, *have = want + elements, *reference = have + elements;
    StepState state = {};
    c->bench.exec.ops->upload(&c->bench.exec, c->gpu_state, &state, sizeof state);
    for (int64_t i = 0; i < all; i++)
        x[i] = bf16_decode(bf16_encode(deviation * rng_normal(81, (uint64_t)rows, (uint64_t)i)));
    orthogonalize(&c->cpu, x, FMT_FP32, first, rows, cols, 1, &state, want);
    for (Format format : {FMT_FP32, FMT_BF16}) {
        orthogonalize(&c->cpu, x, format, first, rows, cols, 1, &state, reference);
        orthogonalize(&c->bench.exec, x, format, first, rows, cols, 1, c->gpu_state, have);
        const double gpu = relative_error(have, want, elements), cpu = relative_error(reference, want, elements);
        const double limit = format == FMT_FP32 ? 2e-5 : 1.5 * cpu + 0.003;
        say(c, gpu <= limit, "muon_orthogonalize, %lld x %lld in %s: error %.2g on the GPU, %.2g on the CPU",
            (long long)rows, (long long)cols, format_name(format), gpu, cpu);
    }
    free(x);
}

// Checks that three matrices that are orthogonalized together have the bits that they have one by one.
static void check_together(MuonCheck *c, int64_t rows, int64_t cols) {
    const int64_t elements = rows * cols;
    float *x = (float *)xmalloc((size_t)(9 * elements) * sizeof *x), *all = x + 3 * elements, *one = all + 3 * elements;
    StepState state = {};
    c->bench.exec.ops->upload(&c->bench.exec, c->gpu_state, &state, sizeof state);
    for (int64_t i = 0; i < 3 * elements; i++) x[i] = rng_normal(82, (uint64_t)rows, (uint64_t)i);
    for (Format format : {FMT_FP32, FMT_BF16}) {
        orthogonalize(&c->bench.exec, x, format, 0, 3 * rows, cols, 3, c->gpu_state, all);
        for (int i = 0; i < 3; i++)
            orthogonalize(&c->bench.exec, x, format, i * rows, rows, cols, 1, c->gpu_state, one + i * elements);
        say(c, memcmp(all, one, (size_t)(3 * elements) * sizeof *one) == 0,
            "muon_orthogonalize, three matrices %lld x %lld in %s together differ from one by one", (long long)rows,
            (long long)cols, format_name(format));
    }
    free(x);
}

int check_muon(bool small) {
    static MuonCheck check; // static because a MuonCheck is too large for the stack
    MuonCheck *c = &check;
    static const int64_t shapes[][3] = {{0, 64, 64},     {0, 48, 200},   {0, 200, 48},   {0, 16, 512}, {12, 28, 40},
                                        {256, 128, 256}, {0, 256, 1024}, {0, 1024, 256}, {0, 30, 70},  {0, 1, 8}};
    bench_configure(&c->bench.config, 1, 1024, 4096);
    bench_exec_open(&c->bench.exec, cuda_ops(), DEVICE_CUDA, &c->bench.config);
    bench_exec_open(&c->cpu, cpu_ops(), DEVICE_CPU, &c->bench.config);
    c->gpu_state = (StepState *)bench_allocate(&c->bench, sizeof(StepState));
    check_momenta(c, small);
    check_applies(c);
    for (const auto &shape : shapes)
        if (!small || shape[1] <= 64) check_orthogonalize(c, shape[0], shape[1], shape[2], 0.1f);
    for (const auto &shape : shapes)
        if (!small || shape[1] <= 64) check_together(c, shape[1], shape[2]);
    check_orthogonalize(c, 0, 32, 64, 0.0f);
    check_orthogonalize(c, 0, 32, 64, 1e-12f); // the norm is below NEWTON_SCHULZ_EPS
    c->bench.exec.ops->release(&c->bench.exec, c->gpu_state);
    bench_exec_close(&c->cpu);
    bench_exec_close(&c->bench.exec);
    return check_report("Muon", c->checks, c->failures);
}
