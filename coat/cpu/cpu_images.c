// Implements the operations of vision towers on the CPU: patches from pixels, embedding of patches, gathering of rows.
#include "cpu_internal.h"

#include <string.h>

// Writes the values of one patch to `out`, in the order (channel, row, column). pixels: first byte of the image. side,
// patch: widths of the image and of a patch in pixels. number: index of the patch, counted row by row.
static void patch_values(real *out, const uint8_t *pixels, Tensor table, int64_t side, int64_t patch, int64_t number) {
    const int64_t grid = side / patch, top = number / grid * patch, left = number % grid * patch;
    for (int64_t channel = 0; channel < table.rows; channel++) {
        const real *values = (const real *)row_address(table, channel);
        for (int64_t i = 0; i < patch; i++) {
            const uint8_t *from = pixels + (channel * side + top + i) * side + left;
            for (int64_t j = 0; j < patch; j++) *out++ = values[from[j]];
        }
    }
}

void cpu_patches_forward(Exec *exec, Tensor out, Tensor pixels, Tensor table, int side, int patch, int T) {
    require_plain("patches_forward", out);
    const Cpu *cpu = cpu_of(exec);
    const int64_t before = T - (int64_t)(side / patch) * (side / patch); // rows before patches: 1 (class token) or 0
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(out.cols));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *buffer = scratch_take(&slot, out.cols);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < out.rows; row++) {
            const int64_t number = row % T - before;
            real *values = row_target(out, row, 0, buffer);
            if (number < 0)
                memset(values, 0, (size_t)out.cols * sizeof(real));
            else
                patch_values(values, (const uint8_t *)row_address(pixels, row / T), table, side, patch, number);
            row_store(cpu, out, row, 0, out.cols, values);
        }
    }
}

void cpu_image_embed_forward(Exec *exec, Tensor r, Tensor y, Tensor class_row, Tensor wpe, int T) {
    require_plain("image_embed_forward", r);
    const Cpu *cpu = cpu_of(exec);
    const int64_t C = r.cols;
    Scratch scratch = scratch_begin(exec);
    int threads = scratch_slots(&scratch, cpu, cpu_row_slot(C));
#pragma omp parallel num_threads(threads)
    {
        Scratch slot = scratch_slot(&scratch);
        real *sum = scratch_take(&slot, C), *buffer = scratch_take(&slot, C);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < r.rows; row++) {
            const bool is_class = class_row.data && row % T == 0;
            const real *value = row_load(cpu, is_class ? class_row : y, is_class ? 0 : row, 0, C, sum);
            if (value != sum) memcpy(sum, value, (size_t)C * sizeof(real));
            cpu->kernels->add(sum, row_load(cpu, wpe, row % T, 0, C, buffer), C);
            row_store(cpu, r, row, 0, C, sum);
        }
    }
}

void cpu_rows_gather(Exec *exec, Tensor out, Tensor in, Tensor index, bool keep) {
    require_plain("rows_gather", out);
    if (in.data) require_plain("rows_gather", in);
    const size_t bytes = (size_t)out.cols * format_bytes(out.format);
    const int32_t *from = (const int32_t *)index.data;
#pragma omp parallel for schedule(static) num_threads(cpu_of(exec)->threads)
    for (int64_t row = 0; row < out.rows; row++) {
        if (from[row] >= 0 && in.data)
            memcpy(row_address(out, row), row_address(in, from[row]), bytes);
        else if (from[row] >= 0 || !keep)
            memset(row_address(out, row), 0, bytes);
    }
}
