#include "weights.h"

#include <math.h>
#include <string.h>

#include "config/shapes.h"
#include "numerics/rng.h"

static void set_value(Exec *exec, Tensor value, const float *values) {
    size_t n = (size_t)tensor_elements(value);
    if (value.format == FMT_FP32) {
        real *copy = (real *)xmalloc(n * sizeof *copy);
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n; i++) copy[i] = values[i];
        exec->ops->upload(exec, value.data, copy, n * sizeof *copy);
        free(copy);
        return;
    }
    uint16_t *half = (uint16_t *)xmalloc(n * sizeof *half);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) half[i] = master_bf16(values[i]);
    exec->ops->upload(exec, value.data, half, n * sizeof *half);
    free(half);
}

static void set_master(Exec *exec, Tensor master, const float *values) {
    size_t n = (size_t)tensor_elements(master);
    if (!master.data) return;
    if (master.format == FMT_FP32) {
        exec->ops->upload(exec, master.data, values, n * sizeof(float));
        return;
    }
    uint16_t *half = (uint16_t *)xmalloc(n * sizeof *half);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) half[i] = (uint16_t)(float_bits(values[i]) & 0xffffu);
    exec->ops->upload(exec, master.data, half, n * sizeof *half);
    free(half);
}

void parameter_set(Exec *exec, const Parameter *parameter, const float *values) {
    set_value(exec, parameter->weight.value, values);
    set_master(exec, parameter->master, values);
}

void parameter_set_held(const Arena *arena, Exec *exec, TensorId id, int layer, const float *values) {
    int64_t begin;
    Tensor value = arena_held(arena, id, VALUE, layer, &begin);
    set_value(exec, value, values + begin);
    if (!arena->layout[id][MASTER].exists) return;
    Tensor master = arena_held(arena, id, MASTER, layer, &begin);
    set_master(exec, master, values + begin);
}

// Zero states: codes, maxima and FP32 or BF16 values are all zero bits; the exponent of a zero group is k = 1.
static void moment_zero(Exec *exec, Tensor moment) {
    size_t n = (size_t)tensor_elements(moment);
    exec->ops->zero(exec, moment.data, n * format_bytes(moment.format));
    if (moment.granularity != SCALE_EXPAND) return;
    size_t groups = (n + (size_t)moment.group - 1) / (size_t)moment.group;
    exec->ops->zero(exec, moment.scale, groups * sizeof(float));
    uint8_t *k = (uint8_t *)xmalloc(groups);
    memset(k, 16, groups);
    exec->ops->upload(exec, moment.exponent, k, groups);
    free(k);
}

void parameters_zero_moments(const Arena *arena, Exec *exec) {
    for (int id = 0; id < PARAMETER_COUNT; id++) { // there are none where nothing is trained
        for (int layer = 0; layer < arena->layout[id][MOMENT_M].layers; layer++) {
            int64_t begin;
            moment_zero(exec, arena_held(arena, (TensorId)id, MOMENT_M, layer, &begin));
            moment_zero(exec, arena_held(arena, (TensorId)id, MOMENT_V, layer, &begin));
        }
    }
}

// The standard deviation of what a weight is drawn from. OLMo 1 takes it from the width of what the weight reads.
static float deviation(const ModelShape *s, Init init, int64_t cols, int layer) {
    const bool residual = init == INIT_NORMAL_RESIDUAL;
    const float one = (float)init_deviation(s->init);
    switch (s->init) {
    case INIT_KIND_NORMAL: return residual ? one / sqrtf(2.0f * (float)s->layers) : one;
    case INIT_KIND_MITCHELL: return 1.0f / sqrtf((float)cols * (residual ? 2.0f * (float)(layer + 1) : 1.0f));
    case INIT_KIND_TRUNCATED: return one;
    }
    return 0.0f;
}

// A standard normal number, drawn again while it is beyond `most` deviations.
static float drawn(uint64_t seed, uint64_t stream, uint64_t index, float most) {
    float x = rng_normal(seed, stream, index);
    for (uint64_t again = 1; fabsf(x) > most; again++) x = rng_normal(seed, stream, index + (again << 40));
    return x;
}

// Elements [begin, end) of a parameter of `cols` columns, of which those from `used` on are padding.
static void init_values(float *values, int64_t begin, int64_t end, int64_t used, int64_t cols, Init init, uint64_t seed,
                        uint64_t stream, const ModelShape *shape, int layer) {
    const float scale = deviation(shape, init, cols, layer);
    const float most = shape->init == INIT_KIND_NORMAL ? INFINITY : 3.0f;
#pragma omp parallel for schedule(static)
    for (int64_t i = begin; i < end; i++) {
        if (init == INIT_ONE)
            values[i] = 1.0f;
        else if (init == INIT_ZERO || i >= used)
            values[i] = 0.0f;
        else
            values[i] = scale * drawn(seed, stream, (uint64_t)i, most);
    }
}

void parameters_init(const Arena *arena, Exec *exec, uint64_t seed) {
    const ModelShape *shape = &arena->config.shape;
    int capacity = arena_parameter_count(arena);
    Parameter *list = (Parameter *)xcalloc((size_t)capacity, sizeof *list);
    TensorId *ids = (TensorId *)xcalloc((size_t)capacity, sizeof *ids);
    int *layers = (int *)xcalloc((size_t)capacity, sizeof *layers);
    int count = arena_parameters(arena, list, ids, layers);
    for (int i = 0; i < count; i++) {
        Tensor t = list[i].weight.value;
        float *values = (float *)xmalloc((size_t)tensor_elements(t) * sizeof *values);
        uint64_t stream = (uint64_t)ids[i] << 32 | (uint64_t)layers[i];
        int64_t begin, used = tensor_used_rows(ids[i], t.rows, shape) * t.cols;
        // of a shared parameter only what this process holds is drawn, and only that is looked at
        int64_t held = tensor_elements(arena_held(arena, ids[i], VALUE, layers[i], &begin));
        init_values(values, begin, begin + held, used, t.cols, tensor_row(ids[i])->init, seed, stream, shape,
                    layers[i]);
        parameter_set_held(arena, exec, ids[i], layers[i], values);
        free(values);
    }
    parameters_zero_moments(arena, exec);
    free(layers);
    free(ids);
    free(list);
}
