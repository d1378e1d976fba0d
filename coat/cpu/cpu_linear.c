// The linear layers: a product forward, and two backward.
#include "cpu_internal.h"

static void require_plain_factors(const char *operation, Product p) {
    require_plain(operation, p.a.tensor);
    require_plain(operation, p.b.tensor);
    require_plain(operation, p.c);
}

void cpu_linear_forward(Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias) {
    const Cpu *cpu = cpu_of(exec);
    Scratch scratch = scratch_begin(exec);
    Product p = {.a = {x, true}, .b = {w.value, true}, .c = y, .m = x.rows, .n = w.value.rows, .k = x.cols};
    require_plain_factors("linear_forward", p);
    p.bias = scratch_vector(&scratch, cpu, bias);
    product_on_all(cpu, scratch, p);
}

void cpu_linear_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    Product p = {.a = {dy, true}, .b = {w.value, false}, .c = dx, .m = dy.rows, .n = w.value.cols, .k = dy.cols};
    require_plain_factors("linear_backward_data", p);
    product_on_all(cpu_of(exec), scratch_begin(exec), p);
}

void cpu_linear_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    Product p = {.a = {dy, false}, .b = {x, false}, .c = dw, .m = dy.cols, .n = x.cols, .k = dy.rows};
    require_plain_factors("linear_backward_weight", p);
    p.accumulate = accumulate;
    product_on_all(cpu_of(exec), scratch_begin(exec), p);
}
