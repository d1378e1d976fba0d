// Computes activation functions on the CPU, fused with the preceding matmul's bias and with FP8 quantization.
#include <string.h>

#include "cpu_quantize.h"
#include "numerics/quantize.h"

// Inputs of activation_row(), which computes a row of the activation function's output g, and of gradient_row(), which
// computes a row of dh, the gradient of h. Every pass over the rows computes identical bits.
typedef struct {
    Tensor h, dg;
    int64_t width; // number of columns of g; with SwiGLU, h has 2 * width columns: gate, then up
    ActivationKind kind;
} ActivationRows;

// Computes g = gelu(h), or silu(gate) * up with SwiGLU. width: number of columns of g.
static void activate(const Cpu *cpu, real *g, const real *h, int64_t width, ActivationKind kind) {
    if (kind == ACT_SWIGLU)
        cpu->kernels->swiglu(g, h, h + width, width);
    else
        cpu->kernels->gelu(g, h, width, kind);
}

static const real *activation_row(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers) {
    const ActivationRows *a = (const ActivationRows *)from;
    activate(cpu, buffers.out, row_load(cpu, a->h, row, 0, a->h.cols, buffers.x), a->width, a->kind);
    return buffers.out;
}

static const real *gradient_row(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers) {
    const ActivationRows *a = (const ActivationRows *)from;
    const real *dg = row_load(cpu, a->dg, row, 0, a->width, buffers.dy);
    const real *h = row_load(cpu, a->h, row, 0, a->h.cols, buffers.x);
    if (a->kind == ACT_SWIGLU)
        cpu->kernels->swiglu_gradient(buffers.out, buffers.out + a->width, dg, h, h + a->width, a->width);
    else
        cpu->kernels->gelu_gradient(buffers.out, dg, h, a->width, a->kind);
    return buffers.out;
}

// Computes one row of h = y + bias, and stores the row if h has data. Returns the row as stored or, if h is SCALE_GROUP
// and from_saved is false, the row before quantization. If h is SCALE_GROUP, sets *amax to the larger of *amax and the
// row's amax.
static const real *hidden_row(const Cpu *cpu, Tensor h, Tensor y, const real *bias, int64_t row, real *buffer,
                              bool from_saved, uint32_t *amax) {
    int64_t F = y.cols;
    const real *value = row_load(cpu, y, row, 0, F, buffer);
    if (h.data == y.data && !bias) return value;
    real *sum = h.data ? row_target(h, row, 0, buffer) : buffer;
    if (sum != value) memcpy(sum, value, (size_t)F * sizeof(real));
    if (bias) cpu->kernels->add(sum, bias, F);
    if (!h.data) return sum;
    if (h.granularity == SCALE_GROUP)
        *amax = larger_bits(*amax, row_store_groups(cpu, h, row, sum));
    else
        row_store(cpu, h, row, 0, F, sum);
    if (h.granularity == SCALE_GROUP && !from_saved) return sum;
    return row_load(cpu, h, row, 0, F, buffer);
}

void cpu_activation_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved,
                            ActivationKind kind) {
    const char *operation = "activation_forward";
    require_readable(operation, h);
    require_readable(operation, y);
    const Cpu *cpu = cpu_of(exec);
    int64_t M = y.rows, F = y.cols, width = g.data ? g.cols : F;
    if (h.data == y.data && !bias.data && !g.data) return;
    from_saved |= has_second_pass(g); // because both passes that quantize g must read the same h
    if (!format_is_fp8(g.format)) require_plain(operation, g);
    Scratch scratch = scratch_begin(exec);
    const real *added = scratch_vector(&scratch, cpu, bias);
    uint32_t saved_amax = 0, amax = 0;
    Scratch rows = scratch;
    int threads = scratch_slots(&rows, cpu, cpu_row_slot(F));
#pragma omp parallel num_threads(threads) reduction(max : saved_amax, amax)
    {
        Scratch slot = scratch_slot(&rows);
        real *h_buffer = scratch_take(&slot, F), *g_buffer = scratch_take(&slot, F);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < M; row++) {
            const real *value = hidden_row(cpu, h, y, added, row, h_buffer, from_saved, &saved_amax);
            if (!g.data) continue;
            real *out = row_target(g, row, 0, g_buffer);
            activate(cpu, out, value, width, kind);
            amax = larger_bits(amax, store_row(cpu, g, row, out));
        }
    }
    note_amax(exec, larger_bits(saved_amax, amax));
    ActivationRows from = {.h = h, .width = width, .kind = kind};
    RowSource source = {activation_row, &from, M, width, F};
    second_pass(exec, scratch, &source, g, amax);
}

void cpu_activation_recompute(Exec *exec, Tensor g_t, Tensor g, Tensor h, ActivationKind kind) {
    if (!g_t.data || g_t.data == g.data) return;
    if (!format_is_fp8(g_t.format)) {
        // With h passed as both h and y, activation_forward computes only g.
        cpu_activation_forward(exec, g_t, h, h, (Tensor){0}, true, kind);
        return;
    }
    scale_over_rows(exec, g_t, g);
    if (g.data) {
        transpose_codes(exec, g_t, g);
        return;
    }
    require_readable("activation_recompute", h);
    ActivationRows from = {.h = h, .width = g_t.cols, .kind = kind};
    RowSource source = {activation_row, &from, h.rows, g_t.cols, h.cols};
    quantize_rows(exec, scratch_begin(exec), &source, (Tensor){0}, g_t);
}

// Returns the sum of squares of the first `count` E4M3 values, without their scale, in row `row` of a tensor's memory.
static double row_squares(Tensor codes, int64_t row, int64_t count) {
    const uint8_t *code = (const uint8_t *)codes.data + row * codes.stride;
    double sum = 0;
    for (int64_t begin = 0; begin < count; begin += SQUARES_SPAN) {
        const int64_t span = smaller(SQUARES_SPAN, count - begin);
        float value[SQUARES_SPAN];
        for (int64_t i = 0; i < span; i++) value[i] = e4m3_decode(code[begin + i]);
        sum += squares_of(value, span);
    }
    return sum;
}

// Returns the largest scale of groups [begin, end) of a row. Ignores groups that contain only zeros, whose scale is 1.
static float largest_scale(Tensor h, int64_t row, int64_t begin, int64_t end) {
    const uint16_t *scales = (const uint16_t *)h.scale + row * ((h.cols + h.group - 1) / h.group);
    const uint8_t *codes = (const uint8_t *)row_address(h, row);
    float largest = 0;
    for (int64_t i = begin; i < end; i++) {
        const float scale = bf16_decode(scales[i]);
        bool zeros = scale == 1.0f;
        for (int64_t j = i * h.group; zeros && j < smaller((i + 1) * h.group, h.cols); j++)
            zeros = (codes[j] & 0x7f) == 0;
        if (!zeros) largest = fmaxf(largest, scale);
    }
    return largest;
}

// Returns an upper bound of the activation function's derivative over one row of h. width: number of columns of the
// activation function's output. With SwiGLU, a group that contains columns of gate and of up counts for both.
static float largest_slope(Tensor h, int64_t row, int64_t width, ActivationKind kind) {
    if (kind != ACT_SWIGLU) return GELU_MAX_SLOPE;
    const int64_t gate_end = (width + h.group - 1) / h.group, end = (h.cols + h.group - 1) / h.group;
    return swiglu_slope(largest_scale(h, row, 0, gate_end), largest_scale(h, row, width / h.group, end));
}

void cpu_activation_bound(Exec *exec, Tensor dh_q, Tensor dy, Weight w, Tensor h, ActivationKind kind) {
    const Tensor columns = w.codes_t; // w.codes_t stores w transposed, so the rows of its memory are w's columns
    const int threads = cpu_of(exec)->threads;
    double largest = 0;
    uint32_t amax = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(max : largest)
    for (int64_t j = 0; j < columns.cols; j++) largest = fmax(largest, row_squares(columns, j, columns.rows));
#pragma omp parallel for schedule(static) num_threads(threads) reduction(max : amax)
    for (int64_t row = 0; row < dy.rows; row++) {
        const float bound = gradient_bound(row_squares(dy, row, dy.cols), largest, *(const float *)dy.scale,
                                           *(const float *)columns.scale, largest_slope(h, row, columns.cols, kind));
        ((float *)dh_q.scale)[row] = row_scale_from_amax(float_bits(bound), dh_q.format);
        amax = larger_bits(amax, float_bits(bound));
    }
    note_amax(exec, amax);
}

// Computes dh, the gradient of the activation function's input. Quantizes dh to dh_q and, transposed, to dh_qt, and
// sums dh's columns to dbias. If `scaled`, dh_q already has row scales; otherwise computes scales from dh's amaxes.
static void activation_backward(Exec *exec, const char *operation, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg,
                                Tensor h, bool accumulate, ActivationKind kind, bool scaled) {
    require_plain(operation, dg);
    require_readable(operation, h);
    bool codes = format_is_fp8(dh_q.format), by_row = codes && dh_q.granularity == SCALE_ROW;
    if (!codes) require_plain(operation, dh_q), require_plain(operation, dh_qt);
    const Cpu *cpu = cpu_of(exec);
    int64_t M = dg.rows, F = h.cols, step = reduction_rows(M), blocks = (M + step - 1) / step;
    int64_t stride = (int64_t)(cpu_piece(F) / sizeof(real));
    ActivationRows from = {h, dg, dg.cols, kind};
    Scratch scratch = scratch_begin(exec);
    real *sums = dbias.data ? scratch_take(&scratch, CPU_REDUCTION_BLOCKS * stride) : NULL;
    uint32_t amax = 0;
    Scratch rows = scratch;
    int threads = scratch_slots(&rows, cpu, cpu_row_slot(F));
#pragma omp parallel num_threads(threads) reduction(max : amax)
    {
        Scratch slot = scratch_slot(&rows);
        const RowBuffers buffers = row_buffers(&slot, F);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            real *sum = sums ? sums + b * stride : NULL;
            if (sum) memset(sum, 0, (size_t)F * sizeof(real));
            for (int64_t row = b * step; row < smaller(M, (b + 1) * step); row++) {
                const real *dh = gradient_row(cpu, &from, row, buffers);
                if (sum) cpu->kernels->add(sum, dh, F);
                if (scaled) {
                    cpu->kernels->encode_fp8((uint8_t *)row_address(dh_q, row), dh, F,
                                             scale_reciprocal(((const float *)dh_q.scale)[row]), dh_q.format);
                    continue;
                }
                amax = larger_bits(amax, store_row(cpu, dh_q, row, dh));
                if (!codes && dh_qt.data && dh_qt.data != dh_q.data) row_store(cpu, dh_qt, row, 0, F, dh);
            }
        }
    }
    reduce_partials(cpu, dbias, sums, blocks, accumulate);
    if (by_row) {
        note_amax(exec, amax);
        scale_over_rows(exec, dh_qt, dh_q);
        transpose_codes(exec, dh_qt, dh_q);
    } else if (codes) {
        RowSource source = {gradient_row, &from, M, F, F};
        write_scale(exec, dh_q, amax);
        write_scale(exec, dh_qt, amax);
        quantize_rows(exec, scratch, &source, dh_q, dh_qt);
    }
}

void cpu_activation_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h, bool accumulate,
                             ActivationKind kind) {
    activation_backward(exec, "activation_backward", dh_q, dh_qt, dbias, dg, h, accumulate, kind, false);
}

void cpu_activation_backward_recompute(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor g_t, Tensor g,
                                       Tensor dg, Tensor h, bool accumulate, ActivationKind kind) {
    activation_backward(exec, "activation_backward_recompute", dh_q, dh_qt, dbias, dg, h, accumulate, kind, true);
    cpu_activation_recompute(exec, g_t, g, h, kind);
}
