#include "rotations.h"

#include <math.h>

float rotary_frequency(const ModelShape *s, int i) {
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

void rotations_set(const Arena *arena, Exec *exec) {
    const ModelShape *s = &arena->config.shape;
    Tensor table = arena_tensor(arena, ROPE_TABLE, VALUE, 0);
    if (!table.data) return;
    const int64_t half = table.cols / 2;
    real *values = (real *)xmalloc((size_t)tensor_elements(table) * sizeof *values);
    for (int64_t position = 0; position < table.rows; position++) {
        real *row = values + position * table.cols;
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)position * rotary_frequency(s, (int)i);
            row[i] = (real)cos((double)angle);
            row[half + i] = (real)sin((double)angle);
        }
    }
    exec->ops->upload(exec, table.data, values, (size_t)tensor_elements(table) * sizeof *values);
    free(values);
}
