// Fixture for check_optimizer.cu: parameters with their gradients and optimizer states in CPU and GPU memory.
#pragma once
#include "bench_cuda.h"

#include <math.h>

#include "coat/numerics/moments.h"
#include "update_bound.h"

#define CHECK_GROUP 128
#define CHECK_TENSORS 440 // maximum number of parameter tensors
#define CHECK_STEPS 4     // maximum number of AdamW steps

// Storage formats of a parameter's value, master weights, gradient and moments.
typedef struct {
    MomentsKind moments;
    Format value, master, grad; // master: FMT_NONE if there are no master weights
} Storage;

// Indices of the arrays of one parameter tensor: its value, master weights, gradient, moments (values, scales and
// exponents k of dynamic range expansion), and the amax of its value.
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
    // cpu, gpu: the parameter's arrays in CPU and GPU memory. copy: the GPU's arrays after download.
    char *cpu[PARTS], *gpu[PARTS], *copy[PARTS];
    double *bound;     // allowed difference of each parameter between GPU and CPU after a step with 8-bit moments
    Parameter side[2]; // [0]: the parameter in CPU memory; [1]: the parameter in GPU memory
} CheckTensor;

typedef struct {
    Bench bench; // the GPU device and its workspace
    Exec cpu;
    StepState cpu_state, *gpu_state;
    CheckTensor tensor[CHECK_TENSORS];
    int tensors, steps;
    Storage storage;
    int checks, failures;
} OptimizerCheck;

static inline float check_load(Format format, const void *data, int64_t i) {
    return format == FMT_BF16 ? bf16_decode(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

static inline void check_put(Format format, void *data, int64_t i, float x) {
    if (format == FMT_BF16)
        ((uint16_t *)data)[i] = bf16_encode(x);
    else
        ((float *)data)[i] = x;
}

static inline void part_upload(OptimizerCheck *c, CheckTensor *t, int part) {
    Exec *gpu = &c->bench.exec;
    if (t->bytes[part]) gpu->ops->upload(gpu, t->gpu[part], t->cpu[part], t->bytes[part]);
}

// --- creation of parameters, gradients and states in CPU and GPU memory -------------------------------------
static inline Tensor moment_tensor(CheckTensor *t, int side, int second, bool fp8, Format format) {
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

// True for every fifth tensor. The moments of these tensors are in FP32, whatever the storage under test.
static inline bool tensor_exempt(int number) {
    return number % 5 == 4;
}

// Creates tensor `number` with `elements` parameters. index: position of its first element among all parameters.
static inline void tensor_make(OptimizerCheck *c, CheckTensor *t, int64_t elements, int number, int64_t index) {
    const Storage *s = &c->storage;
    const bool exempt = tensor_exempt(number), fp8 = s->moments >= MOMENTS_FP8 && !exempt;
    const Format plain = s->moments == MOMENTS_BF16 && !exempt ? FMT_BF16 : FMT_FP32;
    const Format moment = fp8 ? FMT_E4M3 : plain;
    const size_t n = (size_t)elements, groups = fp8 ? (n + CHECK_GROUP - 1) / CHECK_GROUP : 0;
    const size_t bytes[PARTS] = {n * format_bytes(s->value),
                                 n * format_bytes(s->master),
                                 n * format_bytes(s->grad),
                                 n * format_bytes(moment),
                                 n * format_bytes(moment),
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
        t->gpu[i] = (char *)bench_allocate(&c->bench, bytes[i]);
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
        p->m = moment_tensor(t, side, 0, fp8, moment);
        p->v = moment_tensor(t, side, 1, fp8, moment);
        p->decay = number % 2 == 0;
        p->index = (uint64_t)index;
    }
}

static inline void tensor_free(OptimizerCheck *c, CheckTensor *t) {
    Exec *gpu = &c->bench.exec;
    for (int i = 0; i < PARTS; i++) {
        free(t->cpu[i]);
        free(t->copy[i]);
        if (t->gpu[i]) gpu->ops->release(gpu, t->gpu[i]);
    }
    free(t->bound);
}

// Returns element i of the gradient of tensor `number`. Values are lognormal with growing spread. Some groups are 0,
// are constant or have one nonzero element. If `ends`, some groups have magnitudes near 1e-21 or 1e8, or powers of two
// from 2^-65 to 2^62, whose squares cover almost all FP32 exponents.
static inline float gradient_of(int64_t i, int number, int step, bool ends) {
    const uint64_t stream = (uint64_t)(number * CHECK_STEPS + step), at = (uint64_t)i;
    const int64_t kind = i / CHECK_GROUP % 16;
    const uint64_t random = rng_hash(33, stream, at);
    const float sign = random & 1 ? -1.0f : 1.0f, spread = 0.1f + 0.2f * (float)(i / CHECK_GROUP % 20);
    const float x = sign * 1e-4f * expf(spread * rng_normal(34, stream, at));
    if (kind == 3 || (kind == 4 && random % 7 == 0)) return 0.0f;
    if (kind == 5) return 3e-5f;
    if (kind == 6) return i % CHECK_GROUP == 77 ? -2e-3f : 0.0f;
    if (!ends) return x;
    if (kind == 7) return x * 1e-17f; // gradients near 1e-21, whose squares are subnormal in FP32
    if (kind == 8) return x * 1e12f;
    if (kind == 9) return sign * exp2f((float)(random >> 8 & 127) - 65.0f);
    return x;
}

static inline void gradients_make(OptimizerCheck *c, int step, bool ends) {
    for (int k = 0; k < c->tensors; k++) {
        CheckTensor *t = &c->tensor[k];
        for (int64_t i = 0; i < t->elements; i++)
            check_put(c->storage.grad, t->cpu[PART_GRAD], i, gradient_of(i, k, step, ends));
        part_upload(c, t, PART_GRAD);
    }
}
