#include "weights.h"

#include <math.h>
#include <string.h>

#include "config/shapes.h"
#include "numerics/rng.h"

// Sets a weight or master weight from FP32 values. A BF16 weight stores values rounded by master_bf16(). A U16 master
// stores the low 16 bits of the FP32 values. master_join() restores the FP32 values from both.
static void set_tensor(Exec *exec, Tensor t, const float *values) {
    const size_t n = (size_t)tensor_elements(t), bytes = n * format_bytes(t.format);
    if (!t.data) return;
    void *copy = xmalloc(bytes);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        if (t.format == FMT_FP32)
            ((real *)copy)[i] = values[i];
        else
            ((uint16_t *)copy)[i] = t.format == FMT_U16 ? (uint16_t)float_bits(values[i]) : master_bf16(values[i]);
    }
    exec->ops->upload(exec, t.data, copy, bytes);
    free(copy);
}

void parameter_set(Exec *exec, const Parameter *parameter, const float *values) {
    set_tensor(exec, parameter->weight.value, values);
    set_tensor(exec, parameter->master, values);
}

void parameter_set_local(const Arena *arena, Exec *exec, TensorId id, int layer, const float *values) {
    int64_t begin;
    Tensor value = arena_local(arena, id, VALUE, layer, &begin);
    set_tensor(exec, value, values + begin);
    Tensor master = arena_local(arena, id, MASTER, layer, &begin);
    set_tensor(exec, master, values + begin);
}

// Sets a moment to zero. All bits of its values and group amaxes become 0. The exponents of 8-bit moments become k = 1,
// which is stored as 16.
static void moment_zero(Exec *exec, Tensor moment) {
    size_t n = (size_t)tensor_elements(moment);
    if (!moment.data) return;
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
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (int layer = 0; layer < arena->layout[id][MOMENT_M].layers; layer++) {
            int64_t begin;
            moment_zero(exec, arena_local(arena, (TensorId)id, MOMENT_M, layer, &begin));
            moment_zero(exec, arena_local(arena, (TensorId)id, MOMENT_V, layer, &begin));
        }
    }
}

// Returns the standard deviation of a weight's initial values. cols: width of the input of the weight's matmul.
static float deviation(const ModelShape *s, Init init, int64_t cols, int layer) {
    const bool residual = init == INIT_NORMAL_RESIDUAL;
    const float one = (float)init_deviation(s->init);
    if (init == INIT_FAN_IN) return 1.0f / sqrtf((float)cols);
    if (init == INIT_POSITIONS && s->tower) return 1.0f;
    switch (s->init) {
    case INIT_KIND_NORMAL: return residual ? one / sqrtf(2.0f * (float)s->layers) : one;
    case INIT_KIND_MITCHELL: return 1.0f / sqrtf((float)cols * (residual ? 2.0f * (float)(layer + 1) : 1.0f));
    case INIT_KIND_TRUNCATED: return one;
    }
    return 0.0f;
}

// Returns a standard normal random number, redrawn until its magnitude is at most `limit`.
static float draw_normal(uint64_t seed, uint64_t stream, uint64_t index, float limit) {
    float x = rng_normal(seed, stream, index);
    for (uint64_t draw = 1; fabsf(x) > limit; draw++) x = rng_normal(seed, stream, index + (draw << 40));
    return x;
}

// Computes the initial values of elements [begin, end) of a parameter with `cols` columns. Elements at index `used` and
// above are padding and become 0.
static void init_values(float *values, int64_t begin, int64_t end, int64_t used, int64_t cols, Init init, uint64_t seed,
                        uint64_t stream, const ModelShape *shape, int layer) {
    const float scale = deviation(shape, init, cols, layer);
    const float limit = shape->init == INIT_KIND_NORMAL ? INFINITY : 3.0f;
#pragma omp parallel for schedule(static)
    for (int64_t i = begin; i < end; i++) {
        if (init == INIT_ONE)
            values[i] = 1.0f;
        else if (init == INIT_ZERO || i >= used)
            values[i] = 0.0f;
        else
            values[i] = scale * draw_normal(seed, stream, (uint64_t)i, limit);
    }
}

void parameters_init(const Arena *arena, Exec *exec, uint64_t seed) {
    const ModelShape *shape = &arena->config->shape;
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
        // parameter_set_local() reads only the elements that this process stores, so only these are drawn.
        int64_t local = tensor_elements(arena_local(arena, ids[i], VALUE, layers[i], &begin));
        init_values(values, begin, begin + local, used, t.cols, tensor_row(ids[i])->init, seed, stream, shape,
                    layers[i]);
        parameter_set_local(arena, exec, ids[i], layers[i], values);
        free(values);
    }
    parameters_zero_moments(arena, exec);
    free(layers);
    free(ids);
    free(list);
}

// Returns the frequency of RoPE angle i (0 to head_dim / 2 - 1) in radians per position: theta to the power -2 i /
// head_dim, with Llama 3.1's scaling. Computes in FP32 as Hugging Face transformers does.
static float rope_frequency(const ModelShape *s, int i) {
    const RopeScaling *scaling = &s->rope;
    const float exponent = (float)(2 * i) / (float)s->head_dim;
    const float frequency = 1.0f / (float)pow((double)s->rope_theta, (double)exponent);
    if (scaling->factor == 1.0f) return frequency;
    const float wavelength = 6.283185307179586f / frequency, positions = (float)scaling->positions;
    if (wavelength < positions / scaling->high) return frequency;
    if (wavelength > positions / scaling->low) return frequency / scaling->factor;
    const float t = (positions / wavelength - scaling->low) / (scaling->high - scaling->low);
    return (1.0f - t) * frequency / scaling->factor + t * frequency;
}

void rope_table_set(const Arena *arena, Exec *exec) {
    const ModelShape *s = &arena->config->shape;
    Tensor table = arena_tensor(arena, ROPE_TABLE, VALUE, 0);
    if (!table.data) return;
    const int64_t half = table.cols / 2;
    real *values = (real *)xmalloc((size_t)tensor_elements(table) * sizeof *values);
    for (int64_t position = 0; position < table.rows; position++) {
        real *row = values + position * table.cols;
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)position * rope_frequency(s, (int)i);
            row[i] = (real)cos((double)angle);
            row[half + i] = (real)sin((double)angle);
        }
    }
    exec->ops->upload(exec, table.data, values, (size_t)tensor_elements(table) * sizeof *values);
    free(values);
}
