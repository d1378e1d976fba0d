// Fixture that stores chosen values in the 8-bit moments of the GPU's optimizer. With beta = 0, a step from zero states
// stores the gradient and its square. With beta = 1 and no gradient, a step stores the decoded moments again.
#pragma once
#include <vector>

#include "bench_cuda.h"
#include "moment_cases.h"
#include "tap.h"

// number of guard bytes after each state of the optimizer, which no kernel may write
#define BANK_GUARD ((size_t)GROUP)
#define BANK_GUARD_BYTE 0xa5

typedef struct {
    Bench *bench;
    MomentsKind kind;
    bool odd; // true: gradients are not 16-byte aligned, so that the kernel for tails processes every group
    size_t elements, groups;
    float *value, *grad;
    // master: FP32 master weights, or their lower 16 bits (split16); NULL: none, and `value` holds FP32 parameters
    void *master;
    Format master_format;    // format of the master weights
    uint16_t *half;          // the BF16 parameters, if there are master weights
    uint8_t *data[2], *k[2]; // data: FP8 values (or 4-byte values) of the moments m and v. k: exponents of m and v
    float *a[2];
    StepState *state;
} Bank;

// Copy of one moment (m or v) in host memory.
typedef struct {
    std::vector<uint8_t> codes, k; // FP8 values and exponents of all groups, each followed by guard bytes
    std::vector<float> a;
} BankStates;

// Opens the GPU with a workspace for the optimizer only. The caller sets bench->config.recipe.
static inline void optimizer_device_open(Bench *bench) {
    ModelShape *shape = &bench->config.shape;
    bench->config.recipe.precision = PRECISION_FP32; // FP32, because these tests do not run attention
    bench->config.micro_batch = 1, bench->config.seq_len = 1024;
    shape->heads = shape->kv_heads = 1, shape->head_dim = 64, shape->channels = shape->ffn = 64;
    bench_exec_open(&bench->exec, cuda_ops(), DEVICE_CUDA, &bench->config);
}

static inline void optimizer_recipe(Bench *bench, MomentsKind kind) {
    cuda_backend(&bench->exec)->recipe.moments = bench->config.recipe.moments = kind;
}

static inline void device_fill(Bench *bench, void *memory, int byte, size_t bytes) {
    CUDA_CHECK(cudaMemsetAsync(memory, byte, bytes, cuda_backend(&bench->exec)->stream), "filling memory");
}

static inline Tensor flat_tensor(void *data, size_t elements, Format format) {
    Tensor t = {};
    t.data = data, t.format = format;
    t.rows = 1, t.cols = t.stride = (int64_t)elements;
    return t;
}

static inline Tensor expanded_tensor(void *codes, float *a, uint8_t *k, size_t elements, Format format) {
    Tensor t = flat_tensor(codes, elements, format);
    t.scale = a, t.exponent = k;
    t.granularity = SCALE_EXPAND, t.group = GROUP;
    return t;
}

static inline StepState step_state(float lr, float beta1, float beta2, float eps) {
    StepState state = {};
    state.lr = lr, state.beta1 = beta1, state.beta2 = beta2, state.eps = eps;
    return state;
}

static inline void bank_open(Bank *bank, Bench *bench, size_t elements) {
    *bank = Bank{};
    bank->bench = bench, bank->kind = MOMENTS_COAT;
    bank->elements = elements, bank->groups = (elements + GROUP - 1) / GROUP;
    bank->value = (float *)bench_allocate(bench, elements * sizeof(float));
    bank->grad = (float *)bench_allocate(bench, (elements + 1) * sizeof(float));
    bank->state = (StepState *)bench_allocate(bench, sizeof(StepState));
    for (int i = 0; i < 2; i++) {
        bank->data[i] = (uint8_t *)bench_allocate(bench, elements * sizeof(float) + BANK_GUARD);
        bank->a[i] = (float *)bench_allocate(bench, bank->groups * sizeof(float) + BANK_GUARD);
        bank->k[i] = (uint8_t *)bench_allocate(bench, bank->groups + BANK_GUARD);
    }
}

static inline void bank_close(Bank *bank) {
    Exec *exec = &bank->bench->exec;
    void *const memory[] = {bank->value, bank->grad, bank->state, bank->data[0], bank->data[1],
                            bank->a[0],  bank->a[1], bank->k[0],  bank->k[1]};
    for (void *part : memory) exec->ops->release(exec, part);
}

static inline bool bank_is_fp8(const Bank *bank) {
    return bank->kind == MOMENTS_FP8 || bank->kind == MOMENTS_COAT;
}

// Sets the parameters and the optimizer's states to 0.
static inline void bank_clear(Bank *bank) {
    const size_t bytes = bank->elements * (bank_is_fp8(bank) ? 1 : bank->kind == MOMENTS_BF16 ? 2 : 4);
    for (int i = 0; i < 2; i++) {
        device_fill(bank->bench, bank->data[i], 0, bytes);
        device_fill(bank->bench, bank->a[i], 0, bank->groups * sizeof(float));
        device_fill(bank->bench, bank->k[i], MOMENT_K_ONE, bank->groups);
        device_fill(bank->bench, bank->data[i] + bytes, BANK_GUARD_BYTE, BANK_GUARD);
        device_fill(bank->bench, bank->a[i] + bank->groups, BANK_GUARD_BYTE, BANK_GUARD);
        device_fill(bank->bench, bank->k[i] + bank->groups, BANK_GUARD_BYTE, BANK_GUARD);
    }
    device_fill(bank->bench, bank->value, 0, bank->elements * sizeof(float));
}

static inline Tensor bank_moment(Bank *bank, int which) {
    if (bank_is_fp8(bank))
        return expanded_tensor(bank->data[which], bank->a[which], bank->k[which], bank->elements, FMT_E4M3);
    return flat_tensor(bank->data[which], bank->elements, bank->kind == MOMENTS_BF16 ? FMT_BF16 : FMT_FP32);
}

// Takes one optimizer step with these gradients (NULL: 0). Returns the step state after the step.
static inline StepState bank_step(Bank *bank, const float *gradients, StepState state) {
    Exec *exec = &bank->bench->exec;
    float *grad = bank->grad + (bank->odd ? 1 : 0);
    const size_t bytes = bank->elements * sizeof(float);
    Parameter p = {};
    if (gradients)
        exec->ops->upload(exec, grad, gradients, bytes);
    else
        device_fill(bank->bench, grad, 0, bytes);
    p.weight.value = flat_tensor(bank->value, bank->elements, FMT_FP32);
    if (bank->master) {
        p.weight.value = flat_tensor(bank->half, bank->elements, FMT_BF16);
        p.master = flat_tensor(bank->master, bank->elements, bank->master_format);
    }
    p.grad = flat_tensor(grad, bank->elements, FMT_FP32);
    p.m = bank_moment(bank, 0);
    p.v = bank_moment(bank, 1);
    p.decay = true;
    exec->ops->upload(exec, bank->state, &state, sizeof state);
    exec->ops->adamw_update(exec, &p, 1, bank->state);
    exec->ops->download(exec, &state, bank->state, sizeof state);
    return state;
}

// Stores m = x and v = x * x (0 if `first_alone`) by a step from zero states. Returns false if NaN or inf occurred.
// Overwrites the parameters.
static inline bool bank_store(Bank *bank, const float *x, bool first_alone) {
    bank_clear(bank);
    return bank_step(bank, x, step_state(0.0f, 0.0f, first_alone ? 1.0f : 0.0f, 1.0f)).nonfinite == 0;
}

// Runs a step that decodes the moments and stores the decoded values again.
static inline void bank_store_again(Bank *bank) {
    bank_step(bank, NULL, step_state(0.0f, 1.0f, 1.0f, 1.0f));
}

// Returns the first moments as the kernel decodes them. Overwrites the states: with v = 0, eps = 1, no bias correction,
// beta1 = 1/2 and lr = 2, a step changes a parameter from 0 to -m.
static inline std::vector<float> bank_decode_first(Bank *bank) {
    Exec *exec = &bank->bench->exec;
    std::vector<float> m(bank->elements);
    const size_t bytes = bank->elements * sizeof(float);
    StepState state = step_state(2.0f, 0.5f, 0.5f, 1.0f);
    state.t = 1000;
    device_fill(bank->bench, bank->value, 0, bytes);
    device_fill(bank->bench, bank->a[1], 0, bank->groups * sizeof(float));
    bank_step(bank, NULL, state);
    exec->ops->download(exec, m.data(), bank->value, bytes);
    for (float &x : m) x = -x;
    return m;
}

static inline BankStates bank_states(Bank *bank, int which) {
    Exec *exec = &bank->bench->exec;
    BankStates s;
    s.codes.resize(bank->elements + BANK_GUARD);
    s.k.resize(bank->groups + BANK_GUARD);
    s.a.resize(bank->groups + BANK_GUARD / sizeof(float));
    exec->ops->download(exec, s.codes.data(), bank->data[which], s.codes.size());
    exec->ops->download(exec, s.k.data(), bank->k[which], s.k.size());
    exec->ops->download(exec, s.a.data(), bank->a[which], s.a.size() * sizeof(float));
    return s;
}

// Decodes one element of a moment on the host.
static inline float states_decode(const BankStates &s, size_t i) {
    return moment_decode(s.codes[i], moment_group(s.a[i / GROUP], s.k[i / GROUP], FMT_E4M3), FMT_E4M3);
}
