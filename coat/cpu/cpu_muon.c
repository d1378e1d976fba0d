// Orthogonalizes matrices with Newton-Schulz iterations on the CPU.
#include <math.h>

#include "cpu_internal.h"
#include "numerics/newton_schulz.h"

#define BLOCK 4096 // number of elements of a row that are processed at a time

// Returns the sum of squares of rows [begin, end).
static double sum_of_squares(const Cpu *cpu, Tensor x, int64_t begin, int64_t end) {
    real buffer[BLOCK];
    double sum = 0;
    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0; at < x.cols; at += BLOCK) {
            const int64_t n = smaller(BLOCK, x.cols - at);
            sum += cpu->kernels->sum_of_squares(row_load(cpu, x, row, at, n, buffer), n);
        }
    return sum;
}

// Returns the Frobenius norm of x. The order of the sum does not depend on the number of threads.
static double frobenius_norm(const Cpu *cpu, Tensor x) {
    double partial[CPU_REDUCTION_BLOCKS], sum = 0;
    const int64_t step = reduction_rows(x.rows), blocks = (x.rows + step - 1) / step;
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t b = 0; b < blocks; b++) partial[b] = sum_of_squares(cpu, x, b * step, smaller(x.rows, (b + 1) * step));
    for (int64_t b = 0; b < blocks; b++) sum += partial[b];
    return sqrt(sum);
}

// Computes y = factor * x, rounded to y's format.
static void scale_matrix(const Cpu *cpu, Tensor y, Tensor x, real factor) {
#pragma omp parallel for num_threads(cpu->threads) schedule(static)
    for (int64_t row = 0; row < x.rows; row++)
        for (int64_t at = 0; at < x.cols; at += BLOCK) {
            real buffer[BLOCK], scaled[BLOCK];
            const int64_t n = smaller(BLOCK, x.cols - at);
            const real *values = row_load(cpu, x, row, at, n, buffer);
            for (int64_t i = 0; i < n; i++) scaled[i] = values[i] * factor;
            row_store(cpu, y, row, at, n, scaled);
        }
}

// Computes c = alpha a b + beta * addend, rounded to c's format.
static void multiply(Exec *exec, Tensor c, Operand a, Operand b, int64_t k, real alpha, Tensor addend, real beta) {
    const Matmul p = {
        .a = a, .b = b, .c = c, .m = c.rows, .n = c.cols, .k = k, .alpha = alpha, .addend = addend, .beta = beta};
    matmul_on_all(cpu_of(exec), scratch_begin(exec), p);
}

// Computes one Newton-Schulz iteration from x to y, and multiplies the result by `scale`.
static void iterate(Exec *exec, Tensor y, Tensor x, Tensor gram, Tensor polynomial, real scale) {
    const bool wide = x.rows <= x.cols;
    const Operand of_x = {x, wide}, of_gram = {gram, true}, of_gram_t = {gram, false};
    multiply(exec, gram, of_x, of_x, wide ? x.cols : x.rows, 1, no_tensor(), 0);
    multiply(exec, polynomial, of_gram, of_gram_t, gram.rows, (real)NEWTON_SCHULZ_C, gram, (real)NEWTON_SCHULZ_B);
    const Operand left = {wide ? polynomial : x, true}, right = {wide ? x : polynomial, false};
    multiply(exec, y, left, right, gram.rows, scale, x, scale * (real)NEWTON_SCHULZ_A);
}

static void orthogonalize(Exec *exec, Tensor x, Tensor y, Tensor gram, Tensor polynomial, float scale) {
    const Cpu *cpu = cpu_of(exec);
    const double norm = frobenius_norm(cpu, x);
    scale_matrix(cpu, y, x, (real)(1 / fmax(norm, (double)NEWTON_SCHULZ_EPS)));
    // The iterations alternate between y and x. The number of iterations is odd, so the last iteration writes x.
    for (int i = 0; i < NEWTON_SCHULZ_ITERATIONS; i++) {
        const bool last = i + 1 == NEWTON_SCHULZ_ITERATIONS;
        iterate(exec, i % 2 ? y : x, i % 2 ? x : y, gram, polynomial, last ? (real)scale : 1);
    }
}

void cpu_muon_orthogonalize(Exec *exec, Tensor x, int count, Tensor y, Tensor gram, Tensor polynomial, float scale,
                            StepState *state) {
    require_plain("muon_orthogonalize", x);
    if (state->skips) return;
    for (int i = 0; i < count; i++)
        orthogonalize(exec, tensor_matrix(x, count, i), tensor_matrix(y, count, i), tensor_matrix(gram, count, i),
                      tensor_matrix(polynomial, count, i), scale);
}
