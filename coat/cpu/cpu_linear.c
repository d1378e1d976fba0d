// The linear layers: a matmul forward, and two backward. Of FP8 operands the codes are multiplied (exact in FP32),
// and the sum by both scales.
#include "cpu_quantize.h"

// A tensor as a factor. Transposed memory is the matrix with rows and columns exchanged.
static Factor factor(const char *operation, Tensor t, bool k_inside) {
    if (t.transposed) {
        int64_t rows = t.rows;
        t.rows = t.cols;
        t.cols = rows;
        t.transposed = false;
        k_inside = !k_inside;
    }
    require_readable(operation, t);
    Factor f = {t, k_inside};
    return f;
}

// Where the result carries its rows' scales along, those of the codes are left out of the matmul.
static void carry_scales(const char *operation, Matmul *p) {
    require_matmul(operation, p->c);
    if (p->c.granularity != SCALE_ROW) return;
    if (p->a.tensor.granularity != SCALE_ROW || p->a.tensor.scale != p->c.scale || p->bias || p->accumulate)
        fatal(EXIT_DEVICE, "the CPU backend's %s: the result has other scales than the codes it is made from",
              operation);
    p->a.tensor.granularity = p->c.granularity = SCALE_NONE;
}

void cpu_linear_forward(Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias) {
    const char *operation = "linear_forward";
    const Cpu *cpu = cpu_of(exec);
    Scratch scratch = scratch_begin(exec);
    Matmul p = {.c = y, .m = x.rows, .n = w.value.rows, .k = x.cols};
    p.a = factor(operation, x, true);
    p.b = factor(operation, format_is_fp8(x.format) ? w.codes : w.value, true);
    p.bias = scratch_vector(&scratch, cpu, bias);
    carry_scales(operation, &p);
    matmul_on_all(cpu, scratch, p);
}

void cpu_linear_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    const char *operation = "linear_backward_data";
    const Cpu *cpu = cpu_of(exec);
    bool fp8 = format_is_fp8(dy.format);
    if (fp8 && !cpu->recipe.cache_transposed) transpose_codes(exec, w.codes_t, w.codes);
    Matmul p = {.c = dx, .m = dy.rows, .n = w.value.cols, .k = dy.cols};
    p.a = factor(operation, dy, true);
    p.b = factor(operation, fp8 ? w.codes_t : w.value, false);
    carry_scales(operation, &p);
    matmul_on_all(cpu, scratch_begin(exec), p);
}

void cpu_linear_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    const char *operation = "linear_backward_weight";
    Matmul p = {.c = dw, .m = dy.cols, .n = x.cols, .k = dy.rows};
    require_plain(operation, dw);
    p.a = factor(operation, dy, false);
    p.b = factor(operation, x, false);
    p.accumulate = accumulate;
    matmul_on_all(cpu_of(exec), scratch_begin(exec), p);
}
