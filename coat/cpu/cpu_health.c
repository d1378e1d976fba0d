// Computes, on the CPU, the FP8 statistics in the log, which show how well a tensor's scales fit the tensor's values.
#include "cpu_internal.h"

#include <stdlib.h>

#include "numerics/moments.h"
#include "numerics/moments_host.h"
#include "numerics/quantize.h"

#define TENSOR_GROUP 4096 // number of FP8 values that are counted at a time in a tensor with a single scale

// A tensor's division into groups, which count_tensor() counts one at a time. All elements of a group have one scale.
typedef struct {
    int64_t rows, cols, stride, group, groups; // group: number of elements per group; groups: number of groups per row
} Walk;

static Walk walk_of(Tensor t) {
    int64_t group = t.granularity == SCALE_TENSOR ? TENSOR_GROUP : t.granularity == SCALE_ROW ? t.cols : t.group;
    Walk w = {t.rows, t.cols, t.stride, group, 0};
    if (t.granularity == SCALE_EXPAND) { // in 8-bit moments, a group may extend into the next row
        w.rows = 1;
        w.cols = w.stride = tensor_elements(t);
    }
    w.groups = (w.cols + w.group - 1) / w.group;
    return w;
}

// Returns the amax of group number `group`. largest: the group's largest FP8 value, without the sign bit.
static float group_amax(Tensor t, int64_t group, uint32_t largest) {
    float magnitude = fp8_decode(t.format, (uint8_t)largest);
    if (largest == 0) return 0.0f;
    if (t.granularity == SCALE_EXPAND) return ((const float *)t.scale)[group];
    if (t.granularity == SCALE_GROUP) return magnitude * bf16_decode(((const uint16_t *)t.scale)[group]);
    return magnitude * ((const float *)t.scale)[t.granularity == SCALE_ROW ? group : 0];
}

static Health count_group(Tensor t, Walk w, int64_t group) {
    const int64_t row = group / w.groups, begin = group % w.groups * w.group;
    const int64_t count = smaller(w.group, w.cols - begin);
    const uint8_t *codes = (const uint8_t *)t.data + row * w.stride + begin;
    const uint32_t top = moment_max_code(t.format);
    uint32_t largest = 0, zero = 0, saturated = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t code = t.format == FMT_I8 ? (uint32_t)abs((int8_t)codes[i]) : codes[i] & 0x7fu;
        largest = code > largest ? code : largest;
        zero += code == 0;
        saturated += code >= top;
    }
    Health h = {saturated, zero, 0, magnitude_bits(group_amax(t, group, largest)), largest};
    if (t.granularity != SCALE_TENSOR && h.saturated > 0) h.saturated--;
    if (t.granularity == SCALE_EXPAND) h.clamped = t.exponent[group] <= 1 || t.exponent[group] == MOMENT_K_MAX;
    return h;
}

static Health count_tensor(const Cpu *cpu, Tensor t) {
    const Walk w = walk_of(t);
    uint64_t saturated = 0, zero = 0, clamped = 0;
    uint32_t amax = 0, largest = 0;
#pragma omp parallel for num_threads(cpu->threads) schedule(static) reduction(+ : saturated, zero, clamped)            \
    reduction(max : amax, largest)
    for (int64_t group = 0; group < w.rows * w.groups; group++) {
        Health h = count_group(t, w, group);
        saturated += h.saturated;
        zero += h.zero;
        clamped += h.clamped;
        amax = larger_bits(amax, h.amax);
        largest = larger_bits(largest, h.largest);
    }
    if (t.granularity == SCALE_TENSOR && saturated > 0) saturated--;
    return (Health){saturated, zero, clamped, amax, largest};
}

// Estimates, from the scales alone, the amax of a tensor whose FP8 values were overwritten.
static Health from_scale(Tensor t) {
    float scale = *(const float *)t.scale, none = t.granularity == SCALE_ROW ? SCALE_MIN : 1.0f;
    for (int64_t row = 1; t.granularity == SCALE_ROW && row < t.rows; row++)
        scale = fmaxf(scale, ((const float *)t.scale)[row]);
    return (Health){.amax = scale == none ? 0 : magnitude_bits(scale * format_max(t.format))};
}

void cpu_health(Exec *exec, const Tensor tensors[], int count, Health out[]) {
    for (int i = 0; i < count; i++) {
        const Tensor t = tensors[i];
        if (!format_has_groups(t.format) || !t.scale || t.transposed ||
            (!t.data && t.granularity != SCALE_TENSOR && t.granularity != SCALE_ROW))
            fatal(EXIT_DEVICE,
                  "internal error: an FP8 health check on the CPU requires a scaled FP8 or INT8 tensor (is %s)",
                  format_name(t.format));
        out[i] = t.data ? count_tensor(cpu_of(exec), t) : from_scale(t);
    }
}

// Returns the inner products over rows [begin, end) of a and b.
static InnerProducts rows_inner_products(const Cpu *cpu, Tensor a, Tensor b, int64_t begin, int64_t end, Scratch slot) {
    real *a_buffer = scratch_take(&slot, a.cols), *b_buffer = scratch_take(&slot, a.cols);
    InnerProducts sum = {0, 0, 0};
    for (int64_t row = begin; row < end; row++) {
        const real *x = row_load(cpu, a, row, 0, a.cols, a_buffer), *y = row_load(cpu, b, row, 0, a.cols, b_buffer);
        for (int64_t i = 0; i < a.cols; i++) {
            sum.ab += (double)x[i] * (double)y[i];
            sum.aa += (double)x[i] * (double)x[i];
            sum.bb += (double)y[i] * (double)y[i];
        }
    }
    return sum;
}

void cpu_inner_products(Exec *exec, Tensor a, Tensor b, InnerProducts *out) {
    require_plain("inner_products", a);
    require_plain("inner_products", b);
    const Cpu *cpu = cpu_of(exec);
    const int64_t step = reduction_rows(a.rows), blocks = (a.rows + step - 1) / step;
    InnerProducts partial[CPU_REDUCTION_BLOCKS], sum = {0, 0, 0};
    Scratch scratch = scratch_begin(exec);
    const int threads = scratch_slots(&scratch, cpu, cpu_row_slot(a.cols));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t block = 0; block < blocks; block++)
        partial[block] =
            rows_inner_products(cpu, a, b, block * step, smaller(a.rows, (block + 1) * step), scratch_slot(&scratch));
    for (int64_t block = 0; block < blocks; block++) {
        sum.ab += partial[block].ab;
        sum.aa += partial[block].aa;
        sum.bb += partial[block].bb;
    }
    *out = sum;
}

#define OUTLIER_PIECE 4096 // number of elements that are decoded at a time: a multiple of the moments' group size

// Adds n elements of a row of x, starting at column `begin`, to the sums of *out. If v has data, divides the square of
// each element by the element's second moment in v; x and v must then have one row.
static void add_outliers(const Cpu *cpu, Tensor x, Tensor v, int64_t row, int64_t begin, int64_t n, Outliers *out) {
    real x_buffer[OUTLIER_PIECE], v_buffer[OUTLIER_PIECE];
    const real *a = row_load(cpu, x, row, begin, n, x_buffer), *b = v_buffer;
    if (v.granularity == SCALE_EXPAND)
        moments_load(v, begin, n, v_buffer);
    else if (v.data)
        b = row_load(cpu, v, 0, begin, n, v_buffer);
    for (int64_t i = 0; i < n; i++) {
        double z = (double)a[i] * (double)a[i];
        if (v.data) z = b[i] > 0 ? z / (double)b[i] : 0;
        out->sums.ab += z;
        out->sums.aa += z * z;
        out->amax = larger_bits(out->amax, magnitude_bits((float)a[i]));
    }
}

void cpu_outliers(Exec *exec, Tensor x, Tensor v, Outliers *out) {
    require_readable("outliers", x);
    if (v.data) {
        x.cols = v.cols = tensor_elements(x);
        x.rows = v.rows = 1;
    }
    const Cpu *cpu = cpu_of(exec);
    const int64_t pieces = (x.cols + OUTLIER_PIECE - 1) / OUTLIER_PIECE, total = x.rows * pieces;
    const int64_t step = (total + CPU_REDUCTION_BLOCKS - 1) / CPU_REDUCTION_BLOCKS;
    Outliers partial[CPU_REDUCTION_BLOCKS] = {{{0, 0, 0}, 0}}, sum = {{0, 0, (double)tensor_elements(x)}, 0};
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int block = 0; block < CPU_REDUCTION_BLOCKS; block++)
        for (int64_t p = block * step; p < smaller(total, (block + 1) * step); p++) {
            const int64_t begin = p % pieces * OUTLIER_PIECE;
            add_outliers(cpu, x, v, p / pieces, begin, smaller(OUTLIER_PIECE, x.cols - begin), &partial[block]);
        }
    for (int block = 0; block < CPU_REDUCTION_BLOCKS; block++) {
        sum.sums.ab += partial[block].sums.ab;
        sum.sums.aa += partial[block].sums.aa;
        sum.amax = larger_bits(sum.amax, partial[block].amax);
    }
    *out = sum;
}

void cpu_codes_count(Exec *exec, Tensor codes, CodeCounts *counts) {
    if (!codes.data || !format_is_fp8(codes.format))
        fatal(EXIT_DEVICE, "internal error: the CPU backend's codes_count: the %s tensor contains no FP8 values",
              format_name(codes.format));
    const int64_t lines = codes.transposed ? codes.cols : codes.rows;
    const int64_t length = codes.transposed ? codes.rows : codes.cols;
    const uint32_t top = moment_max_code(codes.format), normal = fp8_smallest_normal_code(codes.format);
    uint64_t saturated = 0, zero = 0, small = 0;
#pragma omp parallel for num_threads(cpu_of(exec)->threads) schedule(static) reduction(+ : saturated, zero, small)
    for (int64_t line = 0; line < lines; line++) {
        const uint8_t *code = (const uint8_t *)codes.data + line * codes.stride;
        for (int64_t i = 0; i < length; i++) {
            const uint32_t magnitude = code[i] & 0x7fu;
            saturated += magnitude >= top;
            zero += magnitude == 0;
            small += magnitude < normal;
        }
    }
    counts->codes += (uint64_t)tensor_elements(codes);
    counts->saturated += saturated;
    counts->zero += zero;
    counts->subnormal += small - zero;
}
