// Quantizes matmul inputs, gradients and weights to FP8 on the CPU.
#include "cpu_quantize.h"

#include <string.h>

#include "numerics/quantize.h"

RowBuffers row_buffers(Scratch *slot, int64_t cols) {
    RowBuffers b;
    b.x = scratch_take(slot, cols);
    b.dy = scratch_take(slot, cols);
    b.out = scratch_take(slot, cols);
    return b;
}

void note_amax(Exec *exec, uint32_t amax) {
    if (amax >= NONFINITE_BITS && exec->state) exec->state->nonfinite = 1;
}

void write_scale(Exec *exec, Tensor q, uint32_t amax) {
    note_amax(exec, amax);
    *(float *)q.scale = scale_from_amax(amax, format_max(q.format));
}

// Transposes a matrix of bytes: out[j * out_stride + i] = in[i * in_stride + j] for i < rows, j < cols.
static void transpose_bytes(uint8_t *out, int64_t out_stride, const uint8_t *in, int64_t in_stride, int64_t rows,
                            int64_t cols) {
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) out[j * out_stride + i] = in[i * in_stride + j];
}

static void require_codes(Tensor t) {
    if (t.data && (!format_is_fp8(t.format) || t.granularity != SCALE_TENSOR || !t.scale))
        fatal(EXIT_DEVICE,
              "internal error: the CPU backend quantizes only to FP8 with a per-tensor scale, not to this %s",
              format_name(t.format));
}

void quantize_rows(Exec *exec, Scratch scratch, const RowSource *source, Tensor q, Tensor q_t) {
    require_codes(q);
    require_codes(q_t);
    if (!q.data && !q_t.data) return;
    const Cpu *cpu = cpu_of(exec);
    const bool shared = q.data && q.format == q_t.format; // true: q_t contains the same FP8 values as q
    const float r = q.data ? scale_reciprocal(*(const float *)q.scale) : 0;
    const float r_t = q_t.data ? scale_reciprocal(*(const float *)q_t.scale) : 0;
    const int64_t M = source->rows, N = source->cols, blocks = (M + CPU_CODE_ROWS - 1) / CPU_CODE_ROWS;
    int threads = scratch_slots(&scratch, cpu, cpu_quantize_slot(source->widest));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        const RowBuffers buffers = row_buffers(&slot, source->widest);
        uint8_t *block = (uint8_t *)scratch_take(&slot, cpu_code_block(N));
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t begin = b * CPU_CODE_ROWS, rows = smaller(CPU_CODE_ROWS, M - begin);
            uint8_t *out = q.data ? (uint8_t *)q.data + begin * q.stride : NULL;
            for (int64_t i = 0; i < rows; i++) {
                const real *values = source->make(cpu, source->from, begin + i, buffers);
                if (q.data) cpu->kernels->encode_fp8(out + i * q.stride, values, N, r, q.format);
                if (q_t.data && !shared) cpu->kernels->encode_fp8(block + i * N, values, N, r_t, q_t.format);
            }
            if (q_t.data)
                transpose_bytes((uint8_t *)q_t.data + begin, q_t.stride, shared ? out : block, shared ? q.stride : N,
                                rows, N);
        }
    }
}

void second_pass(Exec *exec, Scratch scratch, const RowSource *source, Tensor q, uint32_t amax) {
    if (!has_second_pass(q)) return;
    write_scale(exec, q, amax);
    quantize_rows(exec, scratch, source, q, (Tensor){0});
}

// Quantizes `values` to one row of an FP8 SCALE_ROW tensor, and writes the row's scale. Returns the amax of `values` as
// FP32 bits.
static uint32_t store_scaled_row(const Cpu *cpu, Tensor q, int64_t row, const real *values) {
    uint32_t bits = cpu->kernels->amax_bits(values, q.cols);
    float scale = row_scale_from_amax(bits, q.format);
    ((float *)q.scale)[row] = scale;
    cpu->kernels->encode_fp8((uint8_t *)row_address(q, row), values, q.cols, scale_reciprocal(scale), q.format);
    return bits;
}

uint32_t store_row(const Cpu *cpu, Tensor q, int64_t row, const real *values) {
    const bool codes = format_is_fp8(q.format);
    if (codes && q.granularity == SCALE_ROW) return store_scaled_row(cpu, q, row, values);
    const uint32_t bits = codes || q.amax ? cpu->kernels->amax_bits(values, q.cols) : 0;
    if (q.amax) q.amax[row] = bits;
    if (!codes && q.data) row_store(cpu, q, row, 0, q.cols, values);
    return codes ? bits : 0;
}

static uint32_t largest_of_rows(Tensor t) {
    uint32_t largest = 0;
    for (int64_t row = 0; row < t.rows; row++) largest = larger_bits(largest, t.amax[row]);
    return largest;
}

void scale_over_rows(Exec *exec, Tensor q_t, Tensor q) {
    if (q.amax && !format_is_fp8(q.format) && format_is_fp8(q_t.format)) write_scale(exec, q_t, largest_of_rows(q));
    if (q.granularity != SCALE_ROW) return;
    float largest = SCALE_MIN;
    for (int64_t row = 0; row < q.rows; row++) largest = fmaxf(largest, ((const float *)q.scale)[row]);
    *(float *)q_t.scale = scale_in_format(largest, q.format, q_t.format);
}

const real *stored_row(const Cpu *cpu, const void *from, int64_t row, RowBuffers buffers) {
    const Tensor *t = (const Tensor *)from;
    return row_load(cpu, *t, row, 0, t->cols, buffers.x);
}

// Returns the amax of x as FP32 bits. If `amax` is not NULL, writes the amax of each row to `amax`. If by_row has data,
// quantizes x to by_row with a scale per row.
static uint32_t stored_amax(Exec *exec, Tensor x, uint32_t *amax, Tensor by_row) {
    const Cpu *cpu = cpu_of(exec);
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(x.cols));
    uint32_t largest = 0;
#pragma omp parallel num_threads(threads) reduction(max : largest)
    {
        Scratch slot = scratch_slot(&scratch);
        real *buffer = scratch_take(&slot, x.cols);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < x.rows; row++) {
            const real *values = row_load(cpu, x, row, 0, x.cols, buffer);
            uint32_t bits =
                by_row.data ? store_scaled_row(cpu, by_row, row, values) : cpu->kernels->amax_bits(values, x.cols);
            if (amax) amax[row] = bits;
            largest = larger_bits(largest, bits);
        }
    }
    return largest;
}

// Quantizes x to q with q's scale, and the transpose of x to q_t with q_t's scale. q or q_t may have no data.
static void quantize_stored(Exec *exec, Tensor q, Tensor q_t, Tensor x) {
    RowSource source = {stored_row, &x, x.rows, x.cols, x.cols};
    quantize_rows(exec, scratch_begin(exec), &source, q, q_t);
}

void transpose_codes(Exec *exec, Tensor q_t, Tensor q) {
    if (q.granularity == SCALE_ROW) {
        quantize_stored(exec, (Tensor){0}, q_t, q);
        return;
    }
    int64_t blocks = (q.rows + CPU_CODE_ROWS - 1) / CPU_CODE_ROWS;
#pragma omp parallel for num_threads(cpu_of(exec)->threads) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t begin = b * CPU_CODE_ROWS;
        transpose_bytes((uint8_t *)q_t.data + begin, q_t.stride, (const uint8_t *)q.data + begin * q.stride, q.stride,
                        smaller(CPU_CODE_ROWS, q.rows - begin), q.cols);
    }
}

// Calls fatal() if q, the unscaled output, has memory other than that of the input x, because the caller does not copy
// x.
static void require_same(const char *operation, Tensor q, Tensor x) {
    if (q.data && q.data != x.data)
        fatal(EXIT_DEVICE, "internal error: the CPU backend's %s: an unscaled output must share its input's memory",
              operation);
}

void cpu_quantize_forward(Exec *exec, Tensor q, Tensor x) {
    if (!format_is_fp8(q.format)) {
        require_same("quantize_forward", q, x);
        if (q.amax) stored_amax(exec, x, q.amax, (Tensor){0});
    } else if (q.data && q.granularity == SCALE_ROW) {
        require_plain("quantize_forward", x);
        note_amax(exec, stored_amax(exec, x, NULL, q));
    } else if (q.data) {
        require_plain("quantize_forward", x);
        write_scale(exec, q, stored_amax(exec, x, q.amax, (Tensor){0}));
        quantize_stored(exec, q, (Tensor){0}, x);
    }
}

void cpu_quantize_recompute(Exec *exec, Tensor q_t, Tensor q, Tensor x) {
    scale_over_rows(exec, q_t, q);
    if (format_is_fp8(q_t.format))
        quantize_stored(exec, (Tensor){0}, q_t, x);
    else if (q_t.data != q.data)
        require_same("quantize_recompute", q_t, x);
}

// Sums the columns of dy (M, N): dbias (1, N) = (accumulate ? dbias : 0) + column sums.
static void column_sums(Exec *exec, Tensor dbias, Tensor dy, bool accumulate) {
    const Cpu *cpu = cpu_of(exec);
    int64_t M = dy.rows, N = dy.cols, step = reduction_rows(M), blocks = (M + step - 1) / step;
    int64_t stride = (int64_t)(cpu_piece(N) / sizeof(real));
    Scratch scratch = scratch_begin(exec);
    real *sums = scratch_take(&scratch, CPU_REDUCTION_BLOCKS * stride);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(N));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *buffer = scratch_take(&slot, N);
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            real *sum = sums + b * stride;
            memset(sum, 0, (size_t)N * sizeof(real));
            for (int64_t row = b * step; row < smaller(M, (b + 1) * step); row++)
                cpu->kernels->add(sum, row_load(cpu, dy, row, 0, N, buffer), N);
        }
    }
    reduce_partials(cpu, dbias, sums, blocks, accumulate);
}

void cpu_grad_quantize(Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate) {
    require_plain("grad_quantize", dy);
    if (dbias.data) column_sums(exec, dbias, dy, accumulate);
    if (format_is_fp8(dy_q.format)) {
        uint32_t amax = dy.amax ? largest_of_rows(dy) : stored_amax(exec, dy, dy_q.amax, (Tensor){0});
        write_scale(exec, dy_q, amax);
        write_scale(exec, dy_qt, amax);
        quantize_stored(exec, dy_q, dy_qt, dy);
    } else {
        require_same("grad_quantize", dy_q, dy);
        require_same("grad_quantize", dy_qt, dy);
    }
}

void cpu_weights_quantize(Exec *exec, const Parameter *parameters, int count) {
    Cpu *cpu = (Cpu *)exec->backend;
    const bool valid = cpu->amaxes_valid;
    // resets amaxes_valid, because weights may change without adamw_update, for example by loading a checkpoint
    cpu->amaxes_valid = false;
    for (int i = 0; i < count; i++) {
        const Weight w = parameters[i].weight;
        if (!w.codes.data) continue;
        uint32_t amax = w.codes.amax         ? *w.codes.amax
                        : valid && w.maximum ? *w.maximum
                                             : stored_amax(exec, w.value, NULL, (Tensor){0});
        // stores the amax for the next call, because adamw_update does not write the amax of a frozen weight
        if (w.maximum && !w.codes.amax) *w.maximum = amax;
        write_scale(exec, w.codes, amax);
        quantize_stored(exec, w.codes, cpu->recipe.cache_transposed ? w.codes_t : (Tensor){0}, w.value);
    }
}

void cpu_weights_amax(Exec *exec, const Parameter *parameters, int count) {
    for (int i = 0; i < count; i++) {
        const Weight w = parameters[i].weight;
        if (w.codes.data) *w.codes.amax = stored_amax(exec, w.value, NULL, (Tensor){0});
    }
}
