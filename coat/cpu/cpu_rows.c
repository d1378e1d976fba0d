// Reads and writes tensor rows, allocates workspace, and sums over rows in a fixed order, for the CPU backend.
#include "cpu_internal.h"

#include <string.h>

void require_plain(const char *operation, Tensor t) {
    if (!t.data) return;
    bool plain = (t.format == FMT_FP32 || t.format == FMT_BF16) && t.granularity == SCALE_NONE && !t.transposed;
    if (!plain)
        fatal(EXIT_DEVICE, "internal error: the CPU backend's %s requires unscaled FP32 or BF16, not %s", operation,
              format_name(t.format));
}

void require_matmul(const char *operation, Tensor t) {
    if (t.granularity == SCALE_ROW && t.format == FMT_BF16) t.granularity = SCALE_NONE;
    require_plain(operation, t);
}

void require_readable(const char *operation, Tensor t) {
    bool scaled = t.granularity >= SCALE_TENSOR && t.granularity <= SCALE_GROUP && t.scale;
    if (t.data && !(format_is_fp8(t.format) && scaled && !t.transposed)) require_matmul(operation, t);
}

static uint16_t *group_scales(Tensor t, int64_t row) {
    return (uint16_t *)t.scale + row * ((t.cols + t.group - 1) / t.group);
}

// Decodes columns [begin, begin + count) of an FP8 row. If the scales are per group, `begin` may be inside a group.
static void codes_load(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, real *values) {
    const uint8_t *codes = (const uint8_t *)row_address(t, row) + begin;
    if (t.granularity != SCALE_GROUP) {
        float scale = t.granularity == SCALE_TENSOR ? *(const float *)t.scale
                      : t.granularity == SCALE_ROW  ? ((const float *)t.scale)[row]
                                                    : 1.0f;
        cpu->kernels->decode_fp8(values, codes, count, scale, t.format);
        return;
    }
    const uint16_t *scales = group_scales(t, row) + begin / t.group;
    // First decodes the rest of the group that contains column `begin`, then the groups after that group.
    int64_t first = smaller(count, begin % t.group ? t.group - begin % t.group : 0);
    if (first > 0) cpu->kernels->decode_fp8(values, codes, first, bf16_decode(*scales++), t.format);
    cpu->kernels->decode_groups(values + first, codes + first, scales, count - first, t.group);
}

const real *row_load(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, real *buffer) {
    if (t.format == FMT_FP32) return (const real *)row_address(t, row) + begin;
    if (format_is_fp8(t.format)) {
        codes_load(cpu, t, row, begin, count, buffer);
        return buffer;
    }
    cpu->kernels->decode_bf16(buffer, (const uint16_t *)row_address(t, row) + begin, count);
    if (t.granularity == SCALE_ROW) {
        const real scale = (real)((const float *)t.scale)[row];
        for (int64_t i = 0; i < count; i++) buffer[i] *= scale;
    }
    return buffer;
}

void row_store(const Cpu *cpu, Tensor t, int64_t row, int64_t begin, int64_t count, const real *values) {
    if (t.format == FMT_BF16) {
        cpu->kernels->encode_bf16((uint16_t *)row_address(t, row) + begin, values, count);
        return;
    }
    real *place = (real *)row_address(t, row) + begin;
    if (place != values) memcpy(place, values, (size_t)count * sizeof(real));
}

uint32_t row_store_groups(const Cpu *cpu, Tensor t, int64_t row, const real *values) {
    return cpu->kernels->encode_groups((uint8_t *)row_address(t, row), group_scales(t, row), values, t.cols, t.group);
}

const real *block_load(const Cpu *cpu, Tensor t, int64_t row, int64_t rows, int64_t col, int64_t cols, real *buffer,
                       int64_t *ld) {
    if (t.format == FMT_FP32) {
        *ld = t.stride;
        return (const real *)row_address(t, row) + col;
    }
    *ld = cols;
    for (int64_t i = 0; i < rows; i++) row_load(cpu, t, row + i, col, cols, buffer + i * cols);
    return buffer;
}

Scratch scratch_begin(Exec *exec) {
    Scratch s = {(char *)exec->workspace, exec->workspace_bytes, 0};
    return s;
}

real *scratch_take(Scratch *s, int64_t count) {
    size_t bytes = cpu_piece(count);
    if (bytes > s->left)
        fatal(EXIT_DEVICE, "internal error: the CPU backend's workspace is %zu bytes too small", bytes - s->left);
    real *piece = (real *)(void *)s->next;
    s->next += bytes;
    s->left -= bytes;
    return piece;
}

const real *scratch_vector(Scratch *s, const Cpu *cpu, Tensor t) {
    if (!t.data) return NULL;
    if (t.format == FMT_FP32) return (const real *)t.data;
    return row_load(cpu, t, 0, 0, t.cols, scratch_take(s, t.cols));
}

int scratch_slots(Scratch *s, const Cpu *cpu, size_t slot_bytes) {
    if (slot_bytes > s->left)
        fatal(EXIT_DEVICE, "internal error: the CPU backend's workspace is %zu bytes too small", slot_bytes - s->left);
    s->slot_bytes = slot_bytes;
    size_t fit = s->left / slot_bytes;
    return fit < (size_t)cpu->threads ? (int)fit : cpu->threads;
}

Scratch scratch_slot(const Scratch *s) {
    Scratch slot = {s->next + (size_t)omp_get_thread_num() * s->slot_bytes, s->slot_bytes, 0};
    return slot;
}

void reduce_partials(const Cpu *cpu, Tensor out, real *partials, int64_t blocks, bool accumulate) {
    if (!out.data) return;
    int64_t n = out.cols, stride = (int64_t)(cpu_piece(n) / sizeof(real));
    for (int64_t b = 1; b < blocks; b++) cpu->kernels->add(partials, partials + b * stride, n);
    if (accumulate) cpu->kernels->add(partials, (const real *)out.data, n);
    row_store(cpu, out, 0, 0, n, partials);
}
