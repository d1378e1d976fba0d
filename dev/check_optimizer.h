// The AdamW step of the GPU against the CPU backend in every storage of its states: moments in FP32, BF16 and 8 bits,
// masters of each kind, gradients and values in both formats, on sizes that end groups and vectors early.
//
// With moments in FP32 or BF16 all bits must agree. With 8-bit moments the step from zero states must give the same a
// and k; later ones begin with the CPU's states and may differ by the hardware's logarithms: rarely a code by one step,
// and each parameter by what update_bound.h derives for it.
#pragma once
#include "bench_cuda.h"

#include <math.h>

#include "coat/moments.h"
#include "update_bound.h"

#define CHECK_GROUP 128
#define CHECK_TENSORS 9
#define CHECK_STEPS 4

// One storage of the states.
typedef struct {
    MomentsKind moments;
    Format second;
    RoundingKind rounding;
    Format value, master, grad; // master FMT_NONE: none
} Storage;

// The arrays of one parameter, in this order.
enum {
    PART_VALUE,
    PART_MASTER,
    PART_GRAD,
    PART_M,
    PART_V,
    PART_M_SCALE,
    PART_V_SCALE,
    PART_M_K,
    PART_V_K,
    PART_MAXIMUM,
    PARTS
};

typedef struct {
    int64_t elements;
    size_t bytes[PARTS];
    char *cpu[PARTS], *gpu[PARTS], *copy[PARTS]; // copy: the GPU's, downloaded
    double *bound;                               // how far apart the parameters may be after a step on 8-bit moments
    Parameter side[2];                           // 0 the CPU's, 1 the GPU's
} CheckTensor;

// What was seen over all steps of a storage.
typedef struct {
    int64_t codes, codes_differ, codes_far, groups, k_differ, a_differ, weights, weights_differ, weights_far;
    double used, expected; // the worst share of a parameter's bound; steps of BF16 apart on average, at most
} Tally;

typedef struct {
    Bench *bench;
    Exec cpu;
    StepState cpu_state, *gpu_state;
    CheckTensor tensor[CHECK_TENSORS];
    Storage storage;
    int checks, failures;
} OptimizerCheck;

static void optimizer_say(OptimizerCheck *c, bool ok, const char *what) {
    static const char *const kinds[] = {"fp32", "bf16", "fp8", "coat"};
    const Storage *s = &c->storage;
    c->checks++;
    c->failures += !ok;
    if (!ok)
        printf("WRONG: moments %s, second %s%s, value %s, master %s, grad %s: %s\n", kinds[s->moments],
               format_name(s->second), s->rounding == ROUND_STOCHASTIC ? " stochastic" : "", format_name(s->value),
               format_name(s->master), format_name(s->grad), what);
}

static float check_load(Format format, const void *data, int64_t i) {
    return format == FMT_BF16 ? bf16_decode(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

static void check_put(Format format, void *data, int64_t i, float x) {
    if (format == FMT_BF16)
        ((uint16_t *)data)[i] = bf16_encode(x);
    else
        ((float *)data)[i] = x;
}

static void part_upload(OptimizerCheck *c, CheckTensor *t, int part) {
    Exec *gpu = &c->bench->exec;
    if (t->bytes[part]) gpu->ops->upload(gpu, t->gpu[part], t->cpu[part], t->bytes[part]);
}

// --- tensors ------------------------------------------------------------------------------------------------
static Tensor moment_tensor(CheckTensor *t, int side, int second, bool fp8, Format format) {
    char **parts = side ? t->gpu : t->cpu;
    Tensor m = {};
    m.data = parts[second ? PART_V : PART_M];
    m.rows = 1, m.cols = m.stride = t->elements, m.format = format;
    if (fp8) {
        m.granularity = SCALE_EXPAND;
        m.group = CHECK_GROUP;
        m.scale = parts[second ? PART_V_SCALE : PART_M_SCALE];
        m.exponent = (uint8_t *)parts[second ? PART_V_K : PART_M_K];
    }
    return m;
}

// `index` is the first element's among all. Every fifth tensor is exempt from small moments.
static void tensor_make(OptimizerCheck *c, CheckTensor *t, int64_t elements, int number, int64_t index) {
    const Storage *s = &c->storage;
    const bool exempt = number % 5 == 4, fp8 = s->moments >= MOMENTS_FP8 && !exempt;
    const Format plain = s->moments == MOMENTS_BF16 && !exempt ? FMT_BF16 : FMT_FP32;
    const Format m = fp8 ? FMT_E4M3 : plain, v = fp8 ? s->second : plain;
    const size_t n = (size_t)elements, groups = fp8 ? (n + CHECK_GROUP - 1) / CHECK_GROUP : 0;
    const size_t bytes[PARTS] = {n * format_bytes(s->value),
                                 n * format_bytes(s->master),
                                 n * format_bytes(s->grad),
                                 n * format_bytes(m),
                                 n * format_bytes(v),
                                 groups * sizeof(float),
                                 groups * sizeof(float),
                                 groups,
                                 groups,
                                 s->value == FMT_BF16 ? sizeof(uint32_t) : 0};
    *t = CheckTensor{};
    t->elements = elements;
    t->bound = fp8 ? (double *)xcalloc(n, sizeof *t->bound) : NULL;
    for (int i = 0; i < PARTS; i++) {
        t->bytes[i] = bytes[i];
        if (!bytes[i]) continue;
        t->cpu[i] = (char *)xcalloc(1, bytes[i]);
        t->copy[i] = (char *)xmalloc(bytes[i]);
        t->gpu[i] = (char *)bench_allocate(c->bench, bytes[i]);
    }
    if (fp8) memset(t->cpu[PART_M_K], MOMENT_K_ONE, groups), memset(t->cpu[PART_V_K], MOMENT_K_ONE, groups);
    for (int64_t i = 0; i < elements; i++) {
        const float x = 0.02f * rng_normal(31, (uint64_t)number, (uint64_t)i);
        check_put(s->value, t->cpu[PART_VALUE], i, x);
        if (s->master == FMT_FP32) ((float *)t->cpu[PART_MASTER])[i] = x;
        if (s->master == FMT_U16) {
            ((uint16_t *)t->cpu[PART_VALUE])[i] = master_bf16(x);
            ((uint16_t *)t->cpu[PART_MASTER])[i] = (uint16_t)float_bits(x);
        }
    }
    for (int i = 0; i < PARTS; i++) part_upload(c, t, i);
    for (int side = 0; side < 2; side++) {
        Parameter *p = &t->side[side];
        char **parts = side ? t->gpu : t->cpu;
        Tensor flat = {};
        flat.rows = 1, flat.cols = flat.stride = elements;
        *p = Parameter{};
        p->weight.value = p->grad = p->master = flat;
        p->weight.value.data = parts[PART_VALUE], p->weight.value.format = s->value;
        p->grad.data = parts[PART_GRAD], p->grad.format = s->grad;
        p->master.data = parts[PART_MASTER], p->master.format = s->master;
        p->weight.maximum = (uint32_t *)parts[PART_MAXIMUM];
        p->m = moment_tensor(t, side, 0, fp8, m);
        p->v = moment_tensor(t, side, 1, fp8, v);
        p->decay = number % 2 == 0;
        p->index = (uint64_t)index;
    }
}

static void tensor_free(OptimizerCheck *c, CheckTensor *t) {
    Exec *gpu = &c->bench->exec;
    for (int i = 0; i < PARTS; i++) {
        free(t->cpu[i]);
        free(t->copy[i]);
        if (t->gpu[i]) gpu->ops->release(gpu, t->gpu[i]);
    }
    free(t->bound);
}

// Lognormal gradients of a spread that grows along the tensor, with zeros sprinkled in; and groups that are zero,
// constant, hold one element that is not zero, reach over all of FP32's exponents, or are near its ends.
static float gradient_of(int64_t i, int number, int step, bool ends) {
    const uint64_t stream = (uint64_t)(number * CHECK_STEPS + step), at = (uint64_t)i;
    const int64_t kind = i / CHECK_GROUP % 16;
    const uint64_t random = rng_hash(33, stream, at);
    const float sign = random & 1 ? -1.0f : 1.0f, spread = 0.1f + 0.2f * (float)(i / CHECK_GROUP % 20);
    const float x = sign * 1e-4f * expf(spread * rng_normal(34, stream, at));
    if (kind == 3 || (kind == 4 && random % 7 == 0)) return 0.0f;
    if (kind == 5) return 3e-5f;
    if (kind == 6) return i % CHECK_GROUP == 77 ? -2e-3f : 0.0f;
    if (!ends) return x;
    if (kind == 7) return x * 1e-17f; // squares are subnormal
    if (kind == 8) return x * 1e12f;
    if (kind == 9) return sign * exp2f((float)(random >> 8 & 127) - 65.0f);
    return x;
}

static void gradients_make(OptimizerCheck *c, int step, bool ends) {
    for (int k = 0; k < CHECK_TENSORS; k++) {
        CheckTensor *t = &c->tensor[k];
        for (int64_t i = 0; i < t->elements; i++)
            check_put(c->storage.grad, t->cpu[PART_GRAD], i, gradient_of(i, k, step, ends));
        part_upload(c, t, PART_GRAD);
    }
}

// --- steps --------------------------------------------------------------------------------------------------
static float master_of(const Storage *s, char *const parts[PARTS], int64_t i) {
    if (s->master == FMT_FP32) return ((const float *)parts[PART_MASTER])[i];
    if (s->master == FMT_U16)
        return master_join(((const uint16_t *)parts[PART_VALUE])[i], ((const uint16_t *)parts[PART_MASTER])[i]);
    return check_load(s->value, parts[PART_VALUE], i);
}

static Bounded moment_of(const CheckTensor *t, int second, int64_t i) {
    const Tensor moment = second ? t->side[0].v : t->side[0].m;
    const int64_t g = i / CHECK_GROUP;
    const MomentGroup group = moment_group(((const float *)moment.scale)[g], moment.exponent[g], moment.format);
    return decode_bound(((const uint8_t *)moment.data)[i], group, moment.format);
}

// From the states before the step, the CPU's.
static void bounds_make(OptimizerCheck *c, CheckTensor *t) {
    const BoundStep step = bound_step(&c->cpu_state, c->cpu_state.t + 1);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < t->elements; i++)
        t->bound[i] = update_bound(&step, t->side[0].decay, (double)master_of(&c->storage, t->cpu, i),
                                   (double)check_load(c->storage.grad, t->cpu[PART_GRAD], i), moment_of(t, 0, i),
                                   moment_of(t, 1, i))
                          .error;
}

// Both backends take a step from the CPU's states; the GPU's result is in `copy`.
static void step_both(OptimizerCheck *c) {
    Exec *gpu = &c->bench->exec;
    Parameter list[2][CHECK_TENSORS];
    for (int k = 0; k < CHECK_TENSORS; k++) {
        CheckTensor *t = &c->tensor[k];
        for (int i = 0; i < PARTS; i++) part_upload(c, t, i);
        if (t->bound) bounds_make(c, t);
        for (int side = 0; side < 2; side++) list[side][k] = t->side[side];
    }
    gpu->ops->upload(gpu, c->gpu_state, &c->cpu_state, sizeof c->cpu_state);
    c->cpu.ops->adamw_update(&c->cpu, list[0], CHECK_TENSORS, &c->cpu_state);
    gpu->ops->adamw_update(gpu, list[1], CHECK_TENSORS, c->gpu_state);
    StepState have;
    gpu->ops->download(gpu, &have, c->gpu_state, sizeof have);
    optimizer_say(c,
                  have.t == c->cpu_state.t && have.skipped == c->cpu_state.skipped &&
                      have.skipped_run == c->cpu_state.skipped_run && have.nonfinite == c->cpu_state.nonfinite,
                  "the counts of updates");
    for (int k = 0; k < CHECK_TENSORS; k++)
        for (int i = 0; i < PARTS; i++)
            if (c->tensor[k].bytes[i])
                gpu->ops->download(gpu, c->tensor[k].copy[i], c->tensor[k].gpu[i], c->tensor[k].bytes[i]);
}

static bool same_bits(const CheckTensor *t) {
    for (int i = 0; i < PARTS; i++)
        if (t->bytes[i] && memcmp(t->cpu[i], t->copy[i], t->bytes[i]) != 0) return false;
    return true;
}

// A code as a whole number that counts the steps from 0.
static int code_steps(uint8_t code) {
    return code & 0x80 ? -(code & 0x7f) : code;
}

// One group of codes; groups whose k differ have nothing to compare.
static void tally_group(const CheckTensor *t, int second, int64_t g, Tally *tally) {
    const int codes = second ? PART_V : PART_M, scale = second ? PART_V_SCALE : PART_M_SCALE;
    const int exponent = second ? PART_V_K : PART_M_K;
    const float want = ((const float *)t->cpu[scale])[g], have = ((const float *)t->copy[scale])[g];
    tally->groups++;
    tally->a_differ += float_bits(want) != float_bits(have);
    tally->codes_far += !(fabsf(want - have) <= 1e-4f * want || want == have || (isinf(want) && isinf(have)));
    if (t->cpu[exponent][g] != t->copy[exponent][g]) {
        tally->k_differ++;
        return;
    }
    for (int64_t i = g * CHECK_GROUP; i < (g + 1) * CHECK_GROUP && i < t->elements; i++) {
        const int apart = abs(code_steps((uint8_t)t->cpu[codes][i]) - code_steps((uint8_t)t->copy[codes][i]));
        tally->codes++;
        tally->codes_differ += apart != 0;
        tally->codes_far += apart > 1;
    }
}

// Whether the GPU's maximum is that of its values.
static bool maximum_fits(const CheckTensor *t) {
    uint32_t largest = 0;
    if (!t->bytes[PART_MAXIMUM]) return true;
    for (int64_t i = 0; i < t->elements; i++) {
        const uint32_t bits = (uint32_t)(((const uint16_t *)t->copy[PART_VALUE])[i] & 0x7fffu) << 16;
        largest = bits > largest ? bits : largest;
    }
    return *(const uint32_t *)t->copy[PART_MAXIMUM] == largest;
}

static void tally_tensor(const Storage *s, const CheckTensor *t, Tally *tally) {
    for (int64_t g = 0; g * CHECK_GROUP < t->elements; g++)
        for (int second = 0; second < 2; second++) tally_group(t, second, g, tally);
    for (int64_t i = 0; i < t->elements; i++) {
        const float want = master_of(s, t->cpu, i), have = master_of(s, t->copy, i);
        const bool rounded = s->value == FMT_BF16 && s->master == FMT_NONE;
        const double used = bound_used(want, have, t->bound[i], rounded, &tally->expected);
        tally->weights++;
        tally->weights_differ += float_bits(want) != float_bits(have);
        tally->weights_far += !(used <= 1);
        tally->used = fmax(tally->used, used);
        // of FP32 masters, the value that belongs to them
        if (s->master == FMT_FP32)
            tally->weights_far += ((const uint16_t *)t->copy[PART_VALUE])[i] != master_bf16(have);
    }
}

static void storage_open(OptimizerCheck *c, Storage s) {
    static const int64_t sizes[CHECK_TENSORS] = {1, 127, 128, 129, 3000, 512, 70001, 8192, 1000003};
    Error err = {};
    Config *config = &c->bench->config;
    c->storage = s;
    config->recipe.moments = s.moments;
    config->recipe.second_moment = s.second;
    config->recipe.second_moment_round = s.rounding;
    cuda_backend(&c->bench->exec)->recipe = config->recipe;
    c->cpu = Exec{};
    c->cpu.ops = cpu_ops();
    c->cpu.ranks = 1;
    if (!c->cpu.ops->open(&c->cpu, config, &err)) fatal(err.code, "%s", err.text);
    int64_t index = 0;
    for (int k = 0; k < CHECK_TENSORS; k++) {
        tensor_make(c, &c->tensor[k], sizes[k], k, index);
        index += sizes[k];
    }
    StepState state = {};
    state.lr = 1e-3f, state.beta1 = 0.9f, state.beta2 = 0.95f, state.eps = 1e-8f, state.weight_decay = 0.1f;
    state.seed = 1234;
    c->cpu_state = state;
}

static void storage_close(OptimizerCheck *c) {
    for (int k = 0; k < CHECK_TENSORS; k++) tensor_free(c, &c->tensor[k]);
    c->cpu.ops->close(&c->cpu);
}

// A step that is to be skipped changes nothing; an infinite gradient that came through is reported.
static void check_nonfinite(OptimizerCheck *c) {
    CheckTensor *t = &c->tensor[6];
    const int64_t t_before = c->cpu_state.t;
    c->cpu_state.nonfinite = 1;
    step_both(c);
    bool same = c->cpu_state.t == t_before && c->cpu_state.skipped == 1;
    for (int k = 0; k < CHECK_TENSORS; k++) same = same && same_bits(&c->tensor[k]);
    optimizer_say(c, same, "a skipped step changes something");
    c->cpu_state.nonfinite = 0;
    if (c->storage.moments < MOMENTS_FP8) return;
    for (int i = 0; i < 2; i++) { // in a chunk, and in a tail
        const int64_t at = i ? t->elements - 1 : 1000;
        check_put(c->storage.grad, t->cpu[PART_GRAD], at, i ? NAN : INFINITY);
        c->cpu_state.nonfinite = 0;
        step_both(c);
        optimizer_say(c, c->cpu_state.nonfinite == 1, "a value that is not finite goes unseen");
        check_put(c->storage.grad, t->cpu[PART_GRAD], at, 0.0f);
        for (int part = PART_M; part <= PART_V_SCALE; part++) memset(t->cpu[part], 0, t->bytes[part]); // finite again
    }
}

static void check_storage(OptimizerCheck *c, Storage s) {
    storage_open(c, s);
    Tally tally = {};
    const bool fp8 = s.moments >= MOMENTS_FP8;
    bool equal = true, maxima = true;
    for (int step = 0; step < CHECK_STEPS; step++) {
        gradients_make(c, step, step != 1);
        c->cpu_state.grad_clip = step == 1 ? 1.0f : 0.0f;
        c->cpu_state.grad_norm = 3.7f;
        step_both(c);
        for (int k = 0; k < CHECK_TENSORS; k++) {
            maxima = maxima && maximum_fits(&c->tensor[k]);
            if (fp8 && k % 5 != 4)
                tally_tensor(&s, &c->tensor[k], &tally);
            else
                equal = equal && same_bits(&c->tensor[k]);
        }
        if (step == 0 && fp8) optimizer_say(c, tally.a_differ + tally.k_differ == 0, "a and k from zero states");
    }
    optimizer_say(c, equal, "bits with moments in FP32 or BF16");
    optimizer_say(c, maxima, "the maxima of the values");
    if (fp8) {
        optimizer_say(c, tally.k_differ <= tally.groups / 500, "k");
        optimizer_say(c, tally.codes_far == 0 && tally.codes_differ <= tally.codes / 1000, "codes and a");
        const bool rounded = s.value == FMT_BF16 && s.master == FMT_NONE;
        const double most = tally.expected + 6 * sqrt(tally.expected) + 6;
        optimizer_say(c, tally.weights_far == 0, "parameters");
        optimizer_say(c, !rounded || (double)tally.weights_differ <= most, "how often parameters are rounded apart");
        printf(
            "  of %lld codes %lld differ by a step, %lld by more; of %lld groups %lld k, %lld a; of %lld weights %lld, "
            "%lld far, the worst at %.2f of its bound\n",
            (long long)tally.codes, (long long)tally.codes_differ, (long long)tally.codes_far, (long long)tally.groups,
            (long long)tally.k_differ, (long long)tally.a_differ, (long long)tally.weights,
            (long long)tally.weights_differ, (long long)tally.weights_far, tally.used);
    }
    check_nonfinite(c);
    storage_close(c);
}

// Runs all checks; returns how many failed.
static int check_optimizer_states(Bench *bench) {
    static OptimizerCheck check; // zero
    OptimizerCheck *c = &check;
    c->bench = bench;
    c->gpu_state = (StepState *)bench_allocate(bench, sizeof(StepState));
    const Format none = FMT_NONE, bf16_ = FMT_BF16, fp32 = FMT_FP32, u16 = FMT_U16, e4m3 = FMT_E4M3, e5m2 = FMT_E5M2;
    const RoundingKind nearest = ROUND_NEAREST, stochastic = ROUND_STOCHASTIC;
    const Storage storages[] = {
        {MOMENTS_FP32, e4m3, nearest, bf16_, fp32, bf16_},   {MOMENTS_FP32, e4m3, nearest, bf16_, u16, fp32},
        {MOMENTS_FP32, e4m3, nearest, bf16_, none, bf16_},   {MOMENTS_FP32, e4m3, nearest, fp32, none, fp32},
        {MOMENTS_BF16, e4m3, nearest, bf16_, fp32, bf16_},   {MOMENTS_BF16, e4m3, nearest, bf16_, u16, fp32},
        {MOMENTS_BF16, e4m3, nearest, bf16_, none, bf16_},   {MOMENTS_BF16, e4m3, nearest, fp32, none, bf16_},
        {MOMENTS_COAT, e4m3, nearest, bf16_, u16, bf16_},    {MOMENTS_COAT, e4m3, nearest, bf16_, fp32, fp32},
        {MOMENTS_COAT, e4m3, nearest, bf16_, none, bf16_},   {MOMENTS_COAT, e4m3, nearest, fp32, none, fp32},
        {MOMENTS_COAT, e5m2, nearest, bf16_, u16, fp32},     {MOMENTS_COAT, e4m3, stochastic, bf16_, u16, bf16_},
        {MOMENTS_COAT, e5m2, stochastic, fp32, none, bf16_}, {MOMENTS_COAT, e5m2, stochastic, bf16_, none, fp32},
        {MOMENTS_FP8, e4m3, nearest, bf16_, u16, bf16_},     {MOMENTS_FP8, e5m2, nearest, bf16_, fp32, bf16_},
        {MOMENTS_FP8, e4m3, stochastic, bf16_, fp32, fp32},
    };
    for (size_t i = 0; i < sizeof storages / sizeof storages[0]; i++) check_storage(c, storages[i]);
    bench->exec.ops->release(&bench->exec, c->gpu_state);
    printf("against the CPU backend: %d of %d checks passed\n", c->checks - c->failures, c->checks);
    return c->failures;
}
