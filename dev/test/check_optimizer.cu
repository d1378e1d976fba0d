// Compares the AdamW step of the GPU with the CPU backend for every storage format of its states: FP32, BF16 and 8-bit
// moments, all kinds of master weights, BF16 and FP32 gradients and values. Tensors include partial groups.
//   Moments in FP32 or BF16: all bits must agree.
//   8-bit moments: the step from zero states must give the CPU's scales a and exponents k. Later steps begin with the
//       CPU's states. Because the GPU approximates logarithms, a few FP8 values may differ by one step, and parameters
//       by their bounds (update_bound.h).
#include "check_gpu.h"
#include "check_optimizer.h"

// Totals over all steps with one combination of storage formats.
typedef struct {
    int64_t codes, codes_differ, codes_far, groups, k_differ, a_differ, weights, weights_differ, weights_far;
    // used: largest |difference| / bound of any parameter. expected: expected number of BF16 parameters that differ by
    // one step
    double used, expected;
} Tally;

static void storage_name(char *text, size_t size, const Storage *s) {
    static const char *const kinds[] = {"fp32", "bf16", "fp8", "coat"};
    snprintf(text, size, "moments %s, value %s, master %s, grad %s", kinds[s->moments], format_name(s->value),
             format_name(s->master), format_name(s->grad));
}

static void optimizer_say(OptimizerCheck *c, bool ok, const char *what) {
    char name[160];
    c->checks++;
    c->failures += !ok;
    storage_name(name, sizeof name, &c->storage);
    if (!ok) printf("  %s: %s\n", name, what);
}

// --- one optimizer step on GPU and CPU, and comparison of its results ---------------------------------------
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

// Computes each parameter's bound (update_bound.h) from the CPU's states: the largest allowed difference between the
// results of the next step on the GPU and on the CPU.
static void bounds_make(OptimizerCheck *c, CheckTensor *t) {
    const BoundStep step = bound_step(&c->cpu_state, c->cpu_state.t + 1);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < t->elements; i++)
        t->bound[i] = update_bound(&step, t->side[0].decay, (double)master_of(&c->storage, t->cpu, i),
                                   (double)check_load(c->storage.grad, t->cpu[PART_GRAD], i), moment_of(t, 0, i),
                                   moment_of(t, 1, i))
                          .error;
}

// Takes one AdamW step on both backends, starting from the CPU's states. Downloads the GPU's results to `copy`.
static void step_both(OptimizerCheck *c) {
    Exec *gpu = &c->bench.exec;
    Parameter list[2][CHECK_TENSORS];
    for (int k = 0; k < c->tensors; k++) {
        CheckTensor *t = &c->tensor[k];
        for (int i = 0; i < PARTS; i++) part_upload(c, t, i);
        if (t->bound) bounds_make(c, t);
        for (int side = 0; side < 2; side++) list[side][k] = t->side[side];
    }
    gpu->ops->upload(gpu, c->gpu_state, &c->cpu_state, sizeof c->cpu_state);
    c->cpu.ops->adamw_update(&c->cpu, list[0], c->tensors, &c->cpu_state);
    gpu->ops->adamw_update(gpu, list[1], c->tensors, c->gpu_state);
    StepState have;
    gpu->ops->download(gpu, &have, c->gpu_state, sizeof have);
    optimizer_say(c,
                  have.t == c->cpu_state.t && have.skipped == c->cpu_state.skipped &&
                      have.skipped_run == c->cpu_state.skipped_run && have.nonfinite == c->cpu_state.nonfinite,
                  "the counts of updates differ");
    for (int k = 0; k < c->tensors; k++)
        for (int i = 0; i < PARTS; i++)
            if (c->tensor[k].bytes[i])
                gpu->ops->download(gpu, c->tensor[k].copy[i], c->tensor[k].gpu[i], c->tensor[k].bytes[i]);
}

static bool same_bits(const CheckTensor *t) {
    for (int i = 0; i < PARTS; i++)
        if (t->bytes[i] && memcmp(t->cpu[i], t->copy[i], t->bytes[i]) != 0) return false;
    return true;
}

// Returns the position of an FP8 value in ascending order. The positions of neighboring values differ by 1.
static int code_steps(uint8_t code) {
    return code & 0x80 ? -(code & 0x7f) : code;
}

// Adds differences between GPU and CPU moments of group g to *tally. An amax a that is off by more than 1e-4 counts in
// codes_far. Skips FP8 values if the exponents k differ.
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

// True if the amax that the GPU stored equals the largest magnitude of the parameter's values.
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
        // If master weights are in FP32, the parameter's value must be the rounded master weight.
        if (s->master == FMT_FP32)
            tally->weights_far += ((const uint16_t *)t->copy[PART_VALUE])[i] != master_bf16(have);
    }
}

static void storage_open(OptimizerCheck *c, Storage s, const int64_t *sizes) {
    Error err = {};
    Config *config = &c->bench.config;
    c->storage = s;
    config->recipe.moments = s.moments;
    cuda_backend(&c->bench.exec)->recipe = config->recipe;
    c->cpu = Exec{};
    c->cpu.ops = cpu_ops();
    c->cpu.ranks = 1;
    if (!c->cpu.ops->open(&c->cpu, config, &err)) fatal(err.code, "%s", err.text);
    int64_t index = 0;
    for (int k = 0; k < c->tensors; k++) {
        tensor_make(c, &c->tensor[k], sizes[k], k, index);
        index += sizes[k];
    }
    StepState state = {};
    state.lr = 1e-3f, state.beta1 = 0.9f, state.beta2 = 0.95f, state.eps = 1e-8f, state.weight_decay = 0.1f;
    state.seed = 1234;
    c->cpu_state = state;
}

static void storage_close(OptimizerCheck *c) {
    for (int k = 0; k < c->tensors; k++) tensor_free(c, &c->tensor[k]);
    c->cpu.ops->close(&c->cpu);
}

// Returns the last tensor whose moments have the reduced format of the storage under test.
static CheckTensor *last_small(OptimizerCheck *c) {
    const int last = c->tensors - 1;
    return &c->tensor[tensor_exempt(last) ? last - 1 : last];
}

// Tests that a skipped step changes no state, and that a gradient of inf or NaN sets state->nonfinite.
static void check_nonfinite(OptimizerCheck *c) {
    CheckTensor *t = last_small(c);
    const int64_t t_before = c->cpu_state.t;
    c->cpu_state.nonfinite = 1;
    step_both(c);
    bool same = c->cpu_state.t == t_before && c->cpu_state.skipped == 1;
    for (int k = 0; k < c->tensors; k++) same = same && same_bits(&c->tensor[k]);
    optimizer_say(c, same, "a skipped step changes something");
    c->cpu_state.nonfinite = 0;
    if (c->storage.moments < MOMENTS_FP8) return;
    for (int i = 0; i < 2; i++) { // writes inf to a gradient in a full chunk, then NaN to a gradient in the tail
        const int64_t at = i ? t->elements - 1 : 1000;
        check_put(c->storage.grad, t->cpu[PART_GRAD], at, i ? NAN : INFINITY);
        c->cpu_state.nonfinite = 0;
        step_both(c);
        optimizer_say(c, c->cpu_state.nonfinite == 1, "an inf or NaN gradient does not set nonfinite");
        check_put(c->storage.grad, t->cpu[PART_GRAD], at, 0.0f);
        for (int part = PART_M; part <= PART_V_SCALE; part++)
            memset(t->cpu[part], 0, t->bytes[part]); // resets the states to finite values
    }
}

// Tests that a first moment of -0 stays -0 if its gradient is -0.
static void check_negative_zero(OptimizerCheck *c) {
    CheckTensor *t = last_small(c);
    const int64_t places[] = {1000, t->elements - 1}; // one element in a full chunk and one in the tail
    for (int64_t at : places) {
        t->cpu[PART_M][at] = (char)0x80;
        check_put(c->storage.grad, t->cpu[PART_GRAD], at, -0.0f);
    }
    step_both(c);
    for (int64_t at : places)
        optimizer_say(c, (uint8_t)t->cpu[PART_M][at] == 0x80 && (uint8_t)t->copy[PART_M][at] == 0x80,
                      "a negative zero loses its sign");
}

static void check_storage(OptimizerCheck *c, Storage s, const int64_t *sizes) {
    storage_open(c, s, sizes);
    Tally tally = {};
    const bool fp8 = s.moments >= MOMENTS_FP8;
    bool equal = true, maxima = true;
    for (int step = 0; step < c->steps; step++) {
        gradients_make(c, step, step != 1);
        c->cpu_state.grad_clip = step == 1 ? 1.0f : 0.0f;
        c->cpu_state.grad_norm = 3.7f;
        step_both(c);
        for (int k = 0; k < c->tensors; k++) {
            maxima = maxima && maximum_fits(&c->tensor[k]);
            if (fp8 && !tensor_exempt(k))
                tally_tensor(&s, &c->tensor[k], &tally);
            else
                equal = equal && same_bits(&c->tensor[k]);
        }
        if (step == 0 && fp8)
            optimizer_say(c, tally.a_differ + tally.k_differ == 0, "a or k differ after the step from zero states");
    }
    optimizer_say(c, equal, "bits differ with moments in FP32 or BF16");
    optimizer_say(c, maxima, "the stored amax is not that of the values");
    if (fp8) {
        optimizer_say(c, tally.k_differ <= tally.groups / 500, "k differs in too many groups");
        optimizer_say(c, tally.codes_far == 0 && tally.codes_differ <= tally.codes / 1000,
                      "FP8 values or a differ too much");
        const bool rounded = s.value == FMT_BF16 && s.master == FMT_NONE;
        const double most = tally.expected + 6 * sqrt(tally.expected) + 6;
        optimizer_say(c, tally.weights_far == 0, "parameters exceed their bounds");
        optimizer_say(c, !rounded || (double)tally.weights_differ <= most,
                      "too many parameters are rounded differently");
        char name[160];
        storage_name(name, sizeof name, &s);
        printf("# %s: %lld FP8 values, %lld differ, %lld by more than a step; %lld groups, k differs in %lld, a in "
               "%lld; %lld weights, %lld differ, %lld by more than their bound; largest difference / bound %.2f\n",
               name, (long long)tally.codes, (long long)tally.codes_differ, (long long)tally.codes_far,
               (long long)tally.groups, (long long)tally.k_differ, (long long)tally.a_differ, (long long)tally.weights,
               (long long)tally.weights_differ, (long long)tally.weights_far, tally.used);
    }
    if (fp8) check_negative_zero(c);
    check_nonfinite(c);
    storage_close(c);
}

// --- checks of all combinations of storage formats ----------------------------------------------------------
static const Format none = FMT_NONE, bf16_ = FMT_BF16, fp32 = FMT_FP32, u16 = FMT_U16;

// Checks all combinations of storage formats, and thereby every kernel, on tensors with full chunks and tails.
static void check_small(OptimizerCheck *c) {
    static const int64_t sizes[] = {1, 129, 512, 1500, 300, 5003};
    // Formats of value and master weights.
    static const Format stores[][2] = {{fp32, none}, {bf16_, none}, {bf16_, fp32}, {bf16_, u16}};
    c->tensors = sizeof sizes / sizeof sizes[0];
    c->steps = 2;
    for (const auto &store : stores) {
        for (Format grad : {bf16_, fp32})
            for (MomentsKind moments : {MOMENTS_FP32, MOMENTS_BF16, MOMENTS_COAT})
                check_storage(c, {moments, store[0], store[1], grad}, sizes);
        check_storage(c, {MOMENTS_FP8, store[0], store[1], bf16_}, sizes);
    }
}

static void check_large(OptimizerCheck *c) {
    static const int64_t sizes[] = {1, 127, 128, 129, 3000, 512, 70001, 8192, 1000003};
    const Storage storages[] = {
        {MOMENTS_FP32, bf16_, fp32, bf16_}, {MOMENTS_FP32, bf16_, u16, fp32},   {MOMENTS_FP32, bf16_, none, bf16_},
        {MOMENTS_FP32, fp32, none, fp32},   {MOMENTS_BF16, bf16_, fp32, bf16_}, {MOMENTS_BF16, bf16_, u16, fp32},
        {MOMENTS_BF16, bf16_, none, bf16_}, {MOMENTS_BF16, fp32, none, bf16_},  {MOMENTS_COAT, bf16_, u16, bf16_},
        {MOMENTS_COAT, bf16_, fp32, fp32},  {MOMENTS_COAT, bf16_, none, bf16_}, {MOMENTS_COAT, fp32, none, fp32},
        {MOMENTS_COAT, bf16_, u16, fp32},   {MOMENTS_COAT, fp32, none, bf16_},  {MOMENTS_COAT, bf16_, none, fp32},
        {MOMENTS_FP8, bf16_, u16, bf16_},   {MOMENTS_FP8, bf16_, fp32, bf16_},  {MOMENTS_FP8, bf16_, fp32, fp32},
    };
    c->tensors = sizeof sizes / sizeof sizes[0];
    c->steps = CHECK_STEPS;
    for (const Storage &s : storages) check_storage(c, s, sizes);
}

// Checks more tensors than a kernel launch processes. Warps process parts of the large first tensor, then small ones.
static void check_many(OptimizerCheck *c) {
    static int64_t sizes[CHECK_TENSORS];
    const Storage storages[] = {
        {MOMENTS_FP32, bf16_, u16, bf16_},
        {MOMENTS_COAT, bf16_, u16, bf16_},
        {MOMENTS_COAT, bf16_, fp32, fp32},
        {MOMENTS_COAT, bf16_, none, bf16_},
    };
    c->tensors = CHECK_TENSORS;
    c->steps = 2;
    for (int i = 0; i < CHECK_TENSORS; i++) sizes[i] = i == 0 ? 12000003 : 100 + 13 * i;
    for (const Storage &s : storages) check_storage(c, s, sizes);
}

int check_optimizer_states(bool small) {
    static OptimizerCheck check; // static because an OptimizerCheck is too large for the stack
    OptimizerCheck *c = &check;
    bench_configure(&c->bench.config, 1, 64, 64);
    bench_exec_open(&c->bench.exec, cuda_ops(), DEVICE_CUDA, &c->bench.config);
    c->gpu_state = (StepState *)bench_allocate(&c->bench, sizeof(StepState));
    check_small(c);
    if (!small) check_large(c);
    if (!small) check_many(c);
    c->bench.exec.ops->release(&c->bench.exec, c->gpu_state);
    bench_exec_close(&c->bench.exec);
    return check_report("optimizer states", c->checks, c->failures);
}
