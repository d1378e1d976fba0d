// Computes linear layers on the CPU: the forward matmul, dgrad and wgrad. FP8 values with one scale per tensor are
// multiplied without the scale, because FP32 multiplies two FP8 values exactly. The sum is then multiplied by the
// scales of both operands.
#include "cpu_quantize.h"

// Returns a tensor as a matmul operand. Describes a transposed tensor as the untransposed matrix that its memory holds.
static Operand operand(const char *operation, Tensor t, bool k_is_column) {
    if (t.transposed) {
        int64_t rows = t.rows;
        t.rows = t.cols;
        t.cols = rows;
        t.transposed = false;
        k_is_column = !k_is_column;
    }
    require_readable(operation, t);
    Operand f = {t, k_is_column};
    return f;
}

// If the matmul's result c is SCALE_ROW, makes the matmul ignore a's row scales, because c has the same scale pointer
// as a. Calls fatal() if c's scale pointer is not a's, or if the matmul has a bias or accumulates.
static void keep_row_scales(const char *operation, Matmul *p) {
    require_matmul(operation, p->c);
    if (p->c.granularity != SCALE_ROW) return;
    if (p->a.tensor.granularity != SCALE_ROW || p->a.tensor.scale != p->c.scale || p->bias || p->accumulate)
        fatal(EXIT_DEVICE, "internal error: the CPU backend's %s: the output does not have its input's row scales",
              operation);
    p->a.tensor.granularity = p->c.granularity = SCALE_NONE;
}

void cpu_linear_forward(Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias) {
    const char *operation = "linear_forward";
    const Cpu *cpu = cpu_of(exec);
    Scratch scratch = scratch_begin(exec);
    Matmul p = {.c = y, .m = x.rows, .n = w.value.rows, .k = x.cols};
    p.a = operand(operation, x, true);
    p.b = operand(operation, format_is_fp8(x.format) ? w.codes : w.value, true);
    p.bias = scratch_vector(&scratch, cpu, bias);
    keep_row_scales(operation, &p);
    matmul_on_all(cpu, scratch, p);
}

void cpu_linear_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    const char *operation = "linear_backward_data";
    const Cpu *cpu = cpu_of(exec);
    bool fp8 = format_is_fp8(dy.format);
    if (fp8 && !cpu->recipe.cache_transposed) transpose_codes(exec, w.codes_t, w.codes);
    Matmul p = {.c = dx, .m = dy.rows, .n = w.value.cols, .k = dy.cols};
    p.a = operand(operation, dy, true);
    p.b = operand(operation, fp8 ? w.codes_t : w.value, false);
    keep_row_scales(operation, &p);
    matmul_on_all(cpu, scratch_begin(exec), p);
}

void cpu_linear_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    const char *operation = "linear_backward_weight";
    if (!dw.data) return;
    Matmul p = {.c = dw, .m = dy.cols, .n = x.cols, .k = dy.rows};
    require_plain(operation, dw);
    p.a = operand(operation, dy, false);
    p.b = operand(operation, x, false);
    p.accumulate = accumulate;
    matmul_on_all(cpu_of(exec), scratch_begin(exec), p);
}
