// Benchmarks the FP8 kernels (COAT, section 5) for GPT-2, and SwiGLU for Llama-like models. For each kernel prints the
// time, the bytes that all its passes read and write, GB/s, and percentages of the rates of two device copies measured
// in the same run: a large copy, and a copy of the kernel's size. Then prints the sum over one transformer block,
// forward and backward.
// Before timing, checks small shapes against the CPU backend (check_fp8.cu). Operands rotate among sets that together
// exceed the L2 cache.
// Usage: build/bench_fp8_gpu [--quick] [--check]
//   --quick: fewer repetitions and models
//   --check: all comparisons, no timing; exits with 1 if a comparison failed
#include "bench_report.h"
#include "dev/test/check_gpu.h"

#define GROUP 16

typedef struct {
    const char *name;
    int64_t M, C; // M: number of tokens, C: number of channels; the MLP width F is 4 C
} Model;

// Operands of one operation on tensors of shape (M, cols). Each operation uses only some of the members.
typedef struct {
    int set;                          // index of the operand set in use
    Tensor a[SETS], b[SETS], c[SETS]; // unquantized tensors in BF16
    Tensor saved[SETS];               // saved activations in FP8 with group scales
    Tensor codes[SETS], codes_t[SETS], grad[SETS],
        grad_t[SETS]; // FP8 tensors with one scale each; after scale_by_row(), codes and grad have row scales
    float *row_scales, *own_scale;
    Tensor g_t[SETS]; // second transpose of the operand
    Weight matrix;
    Tensor mean, rstd, weight, bias, sums, sums2;
    Parameter *parameters;
    int count;
    Health health[1]; // FP8 health counts in host memory
} Operands;

typedef struct {
    Report report;
    double block_ms;    // total time of the timed operations, each multiplied by how often a block runs it
    double block_bytes; // total bytes of the timed operations, each multiplied by how often a block runs it
    const Model *model;
} Block;

// Returns t without its data, because forward saves only the scale of an operand that backward recomputes.
static Tensor scale_only(Tensor t) {
    t.data = NULL;
    return t;
}

// True if the matmuls' FP8 operands have one scale per tensor (recipe coat-paper). Norms and activations are then
// computed from the saved FP8 values, otherwise from their input before it is quantized.
static bool is_paper(const Operands *o) {
    return o->codes[0].granularity != SCALE_ROW;
}

static Norm norm_of(const Operands *o, int s) {
    Norm n = {};
    n.x = o->saved[s], n.mean = o->mean, n.rstd = o->rstd, n.weight = o->weight, n.bias = o->bias, n.eps = 1e-5f;
    n.from_saved = is_paper(o);
    return n;
}

BENCH_OPERATION(residual_norm_forward, residual_norm_forward, o->codes[s], norm_of(o, s), o->c[s], o->a[s], o->b[s],
                o->bias)
BENCH_OPERATION(postnorm_residual_forward, postnorm_residual_forward, o->codes[s], norm_of(o, s), o->c[s], o->a[s],
                o->b[s])
BENCH_OPERATION(residual_backward, residual_backward, o->a[s], o->b[s])
BENCH_OPERATION(quantize_forward, quantize_forward, o->codes[s], o->a[s])
BENCH_OPERATION(activation_forward, activation_forward, o->codes[s], o->saved[s], o->a[s], o->bias, is_paper(o),
                ACT_GELU_TANH)
BENCH_OPERATION(grad_quantize, grad_quantize, o->grad[s], o->grad_t[s], o->sums, o->a[s], true)
BENCH_OPERATION(activation_recompute, activation_recompute, o->codes_t[s], scale_only(o->codes[s]), o->saved[s],
                ACT_GELU_TANH)
BENCH_OPERATION(activation_backward, activation_backward, o->grad[s], o->grad_t[s], o->sums, o->a[s], o->saved[s], true,
                ACT_GELU_TANH)
BENCH_OPERATION(activation_bound, activation_bound, o->grad[s], o->a[s], o->matrix, o->saved[s], ACT_GELU_TANH)
BENCH_OPERATION(activation_backward_recompute, activation_backward_recompute, o->grad[s], o->grad_t[s], o->sums,
                o->g_t[s], scale_only(o->codes[s]), o->a[s], o->saved[s], true, ACT_GELU_TANH)
BENCH_OPERATION(swiglu_forward, activation_forward, o->codes[s], o->saved[s], o->a[s], Tensor{}, is_paper(o),
                ACT_SWIGLU)
BENCH_OPERATION(swiglu_backward, activation_backward, o->grad[s], o->grad_t[s], Tensor{}, o->b[s], o->saved[s], true,
                ACT_SWIGLU)
BENCH_OPERATION(swiglu_backward_recompute, activation_backward_recompute, o->grad[s], o->grad_t[s], Tensor{}, o->g_t[s],
                scale_only(o->codes[s]), o->b[s], o->saved[s], true, ACT_SWIGLU)
BENCH_OPERATION(norm_recompute, norm_recompute, o->codes_t[s], scale_only(o->codes[s]), norm_of(o, s))
BENCH_OPERATION(norm_backward, norm_backward, o->a[s], o->sums, o->sums2, o->b[s], norm_of(o, s), true, true)
BENCH_OPERATION(quantize_recompute, quantize_recompute, o->codes_t[s], o->codes[s], o->a[s])
BENCH_OPERATION(weights_quantize, weights_quantize, o->parameters, o->count)
BENCH_OPERATION(weights_amax, weights_amax, o->parameters, o->count)
BENCH_OPERATION(health, health, &o->saved[s], 1, o->health)
BENCH_OPERATION(codes_count, codes_count, o->grad[s], (CodeCounts *)o->sums.data)

// Times and prints one operation. times: how often a transformer block runs it; 0 if it is not part of a block.
static void report_pass(Block *block, Operands *o, const char *name, int64_t rows, int64_t cols,
                        double bytes_per_element, int times, void (*operation)(Bench *, void *)) {
    const double bytes = bytes_per_element * (double)rows * (double)cols;
    char shape[48];
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)rows, (long long)cols);
    block->block_ms += times * report(&block->report, o, name, shape, bytes, operation);
    block->block_bytes += times * bytes;
}

// Gives t zeroed row amaxes.
static void give_maxima(Bench *bench, Tensor *t) {
    t->amax = (uint32_t *)bench_allocate(bench, (size_t)t->rows * sizeof(uint32_t));
    bench->exec.ops->zero(&bench->exec, t->amax, (size_t)t->rows * sizeof(uint32_t));
}

// Returns a saved activation in FP8 with group scales from 0.01 to 0.0163.
static Tensor saved_tensor(Bench *bench, int64_t rows, int64_t cols) {
    Tensor t = bench_tensor(bench, rows, cols, FMT_E4M3, 64.0f);
    const int64_t count = rows * ((cols + GROUP - 1) / GROUP);
    bench->exec.ops->release(&bench->exec, t.scale);
    t.granularity = SCALE_GROUP, t.group = GROUP;
    t.scale = bench_allocate(bench, (size_t)count * sizeof(uint16_t));
    uint16_t *host = (uint16_t *)xmalloc((size_t)count * sizeof *host);
    for (int64_t i = 0; i < count; i++) host[i] = bf16_encode(0.01f + 0.0001f * (float)(i % 64));
    bench->exec.ops->upload(&bench->exec, t.scale, host, (size_t)count * sizeof *host);
    free(host);
    return t;
}

// Returns a transpose of `of` in `format`. It shares the scale of `of` if the formats are equal, otherwise it has a
// separate scale.
static Tensor transposed_tensor(Bench *bench, Tensor of, Format format) {
    Tensor t = bench_tensor_transposed(bench, of.rows, of.cols, format, 1.0f);
    if (format != of.format) return t;
    bench->exec.ops->release(&bench->exec, t.scale);
    t.scale = of.scale;
    return t;
}

static void make_operands(Bench *bench, Operands *o, int64_t M, int64_t cols, Format gradient) {
    memset(o, 0, sizeof *o);
    for (int s = 0; s < SETS; s++) {
        o->a[s] = bench_tensor(bench, M, cols, FMT_BF16, 1.0f);
        o->b[s] = bench_tensor(bench, M, cols, FMT_BF16, 1.0f);
        o->c[s] = bench_tensor(bench, M, cols, FMT_BF16, 1.0f);
        o->saved[s] = saved_tensor(bench, M, cols);
        o->codes[s] = bench_tensor(bench, M, cols, FMT_E4M3, 1.0f);
        o->grad[s] = bench_tensor(bench, M, cols, gradient, 1.0f);
        o->codes_t[s] = transposed_tensor(bench, o->codes[s], FMT_E4M3);
        o->grad_t[s] = transposed_tensor(bench, o->grad[s], FMT_E5M2);
        give_maxima(bench, &o->codes[s]);
        give_maxima(bench, &o->grad[s]);
    }
    o->mean = bench_tensor(bench, M, 1, FMT_FP32, 0.1f);
    o->rstd = bench_tensor(bench, M, 1, FMT_FP32, 1.0f);
    o->weight = bench_tensor(bench, 1, cols, FMT_BF16, 1.0f);
    o->bias = bench_tensor(bench, 1, cols, FMT_BF16, 1.0f);
    o->sums = bench_tensor(bench, 1, cols, FMT_FP32, 1.0f);
    o->sums2 = bench_tensor(bench, 1, cols, FMT_FP32, 1.0f);
}

// Gives row scales to the FP8 operands and gradients, and changes the gradients' format to E4M3. All transposes share
// the scale o->own_scale.
static void scale_by_row(Bench *bench, Operands *o) {
    const size_t bytes = (size_t)o->a[0].rows * sizeof(float);
    float *host = (float *)xmalloc(bytes);
    for (int64_t i = 0; i < o->a[0].rows; i++) host[i] = i % 2 ? 0.5f : 1.0f;
    o->row_scales = (float *)bench_allocate(bench, 2 * bytes);
    o->own_scale = (float *)bench_allocate(bench, sizeof(float));
    bench->exec.ops->upload(&bench->exec, o->row_scales, host, bytes);
    free(host);
    for (int s = 0; s < SETS; s++) {
        if (o->grad_t[s].scale != o->grad[s].scale) bench->exec.ops->release(&bench->exec, o->grad_t[s].scale);
        bench->exec.ops->release(&bench->exec, o->codes[s].scale);
        bench->exec.ops->release(&bench->exec, o->grad[s].scale);
        o->grad[s].format = FMT_E4M3;
        o->codes[s].granularity = o->grad[s].granularity = SCALE_ROW;
        o->codes[s].scale = o->grad[s].scale = o->row_scales + o->a[0].rows;
        o->codes_t[s].scale = o->grad_t[s].scale = o->own_scale;
    }
}

// Gives y one scale per row, because the output of a matmul has the row scales of the matmul's operand.
static void carry_scales(Operands *o, Tensor y[SETS]) {
    for (int s = 0; s < SETS; s++) y[s].granularity = SCALE_ROW, y[s].scale = o->row_scales;
}

static void release_maxima(Bench *bench, Tensor *t) {
    if (t->amax) bench->exec.ops->release(&bench->exec, t->amax);
    t->amax = NULL;
}

static void free_operands(Bench *bench, Operands *o) {
    for (int s = 0; s < SETS; s++) {
        if (o->row_scales || o->grad_t[s].scale == o->grad[s].scale) o->grad_t[s].scale = NULL;
        o->codes_t[s].scale = o->a[s].scale = o->b[s].scale = NULL;
        if (o->row_scales) o->codes[s].scale = o->grad[s].scale = NULL;
        Tensor *all[] = {&o->a[s],     &o->b[s],       &o->c[s],    &o->saved[s],
                         &o->codes[s], &o->codes_t[s], &o->grad[s], &o->grad_t[s]};
        for (Tensor *t : all) {
            release_maxima(bench, t);
            bench_release(bench, *t);
        }
    }
    for (int s = 0; s < SETS; s++) bench_release(bench, o->g_t[s]);
    if (o->row_scales) bench->exec.ops->release(&bench->exec, o->row_scales);
    if (o->own_scale) bench->exec.ops->release(&bench->exec, o->own_scale);
    Tensor once[] = {o->mean, o->rstd, o->weight, o->bias, o->sums, o->sums2};
    for (Tensor t : once) bench_release(bench, t);
}

static void bench_narrow(Block *block, Operands *o) {
    Bench *bench = block->report.bench;
    const int64_t M = block->model->M, C = block->model->C;
    const double group = 1 + 2.0 / GROUP;
    make_operands(bench, o, M, C, FMT_E4M3);
    report_pass(block, o, "residual_norm_forward", M, C, 6 + 2 * group + 1, 1, run_residual_norm_forward);
    report_pass(block, o, "postnorm_residual_forward", M, C, 8 + group + 1, 0, run_postnorm_residual_forward);
    report_pass(block, o, "norm_recompute", M, C, group + 1, 2, run_norm_recompute);
    for (int s = 0; s < SETS; s++) give_maxima(bench, &o->a[s]);
    report_pass(block, o, "norm_backward", M, C, 6 + group, 2, run_norm_backward);
    report_pass(block, o, "grad_quantize", M, C, 4, 2, run_grad_quantize);
    for (int s = 0; s < SETS; s++) release_maxima(bench, &o->a[s]);
    report_pass(block, o, "quantize_forward", M, C, 5, 0, run_quantize_forward);
    scale_by_row(bench, o);
    report_pass(block, o, "quantize_forward, per token", M, C, 3, 1, run_quantize_forward);
    report_pass(block, o, "quantize_recompute", M, C, 3, 1, run_quantize_recompute);
    carry_scales(o, o->b);
    report_pass(block, o, "residual_norm_forward, per token", M, C, 6 + group + 1, 1, run_residual_norm_forward);
    report_pass(block, o, "postnorm_residual_forward, per token", M, C, 6 + group + 1, 0,
                run_postnorm_residual_forward);
    report_pass(block, o, "residual_backward, per token", M, C, 6, 0, run_residual_backward);
    free_operands(bench, o);
}

// Times activation_bound, which computes an upper bound of the activation function's gradient. The matmul's operands
// are dy (M, C) and w (C, F). SwiGLU also reads the group scales of h.
static void bench_bound(Block *block, Operands *o, const char *name, int64_t M, int64_t C, int64_t F, int times) {
    Bench *bench = block->report.bench;
    const double scales = o->saved[0].cols == F ? 0 : 2.0 / GROUP * (double)o->saved[0].cols / (double)C;
    Tensor kept[SETS];
    o->matrix.codes_t = bench_tensor_transposed(bench, C, F, FMT_E4M3, 1.0f);
    for (int s = 0; s < SETS; s++) kept[s] = o->a[s], o->a[s] = bench_tensor(bench, M, C, FMT_E4M3, 1.0f);
    report_pass(block, o, name, M, C, 1 + (double)F / (double)M + scales, times, run_activation_bound);
    for (int s = 0; s < SETS; s++) {
        bench_release(bench, o->a[s]);
        o->a[s] = kept[s];
    }
    bench_release(bench, o->matrix.codes_t);
}

static void bench_wide(Block *block, Operands *o) {
    Bench *bench = block->report.bench;
    const int64_t M = block->model->M, C = block->model->C, F = 4 * C;
    const double group = 1 + 2.0 / GROUP;
    make_operands(bench, o, M, 3 * C, FMT_E4M3);
    report_pass(block, o, "grad_quantize (dqkv)", M, 3 * C, 6, 1, run_grad_quantize);
    free_operands(bench, o);
    make_operands(bench, o, M, F, FMT_E5M2); // operands of activation_backward with one scale per tensor
    report_pass(block, o, "activation_forward", M, F, 2 + 2 * group + 1, 0, run_activation_forward);
    report_pass(block, o, "activation_backward", M, F, 2 * (2 + group) + 2, 0, run_activation_backward);
    report_pass(block, o, "health", M, F, group, 0, run_health);
    report_pass(block, o, "codes_count", M, F, 1, 0, run_codes_count);
    scale_by_row(bench, o);
    report_pass(block, o, "activation_recompute", M, F, group + 1, 0, run_activation_recompute);
    report_pass(block, o, "activation_backward, per token", M, F, 2 + group + 1 + 2, 0, run_activation_backward);
    for (int s = 0; s < SETS; s++) o->g_t[s] = transposed_tensor(bench, o->b[s], FMT_E4M3);
    report_pass(block, o, "activation_backward_recompute", M, F, 2 + group + 3, 1, run_activation_backward_recompute);
    bench_bound(block, o, "activation_bound", M, C, F, 1);
    carry_scales(o, o->a);
    report_pass(block, o, "activation_forward, per token", M, F, 2 + group + 1, 1, run_activation_forward);
    free_operands(bench, o);
}

// Times SwiGLU. y, h and the gradient of h are (M, 2 F), gate then up; g and its gradient are (M, F). Bytes are counted
// per element of g.
static void bench_swiglu(Block *block, int64_t M, int64_t F) {
    Bench *bench = block->report.bench;
    const double groups = 2 * (1 + 2.0 / GROUP); // bytes of gate and up per element of g: FP8 values and group scales
    Operands operands, *o = &operands;
    printf("\nSwiGLU, %lld tokens, g %lld wide\n", (long long)M, (long long)F);
    make_operands(bench, o, M, 2 * F, FMT_E5M2);
    for (int s = 0; s < SETS; s++) {
        o->b[s].cols = o->b[s].stride = o->codes[s].cols = o->codes[s].stride = F;
        o->codes_t[s].cols = F;
    }
    report_pass(block, o, "swiglu forward", M, F, 4 + 2 * groups + 1, 0, run_swiglu_forward);
    report_pass(block, o, "swiglu backward", M, F, 2 * (2 + groups) + 4, 0, run_swiglu_backward);
    scale_by_row(bench, o);
    report_pass(block, o, "swiglu recompute", M, F, groups + 1, 0, run_activation_recompute);
    report_pass(block, o, "swiglu backward, per token", M, F, 2 + groups + 2 + 4, 0, run_swiglu_backward);
    for (int s = 0; s < SETS; s++) o->g_t[s] = transposed_tensor(bench, o->b[s], FMT_E4M3);
    report_pass(block, o, "swiglu_backward_recompute", M, F, 2 + groups + 5, 0, run_swiglu_backward_recompute);
    bench_bound(block, o, "swiglu's activation_bound", M, F / 4, F, 0);
    carry_scales(o, o->a);
    report_pass(block, o, "swiglu forward, per token", M, F, 4 + groups + 1, 0, run_swiglu_forward);
    free_operands(bench, o);
}

// Times the quantization of the weights of 12 transformer layers.
static void bench_weights(Block *block, Operands *o) {
    enum { LAYERS = 12, PER_LAYER = 4 };
    Bench *bench = block->report.bench;
    const int64_t C = block->model->C;
    const int64_t rows[PER_LAYER] = {3 * C, C, 4 * C, C}, cols[PER_LAYER] = {C, C, C, 4 * C};
    Parameter parameters[LAYERS * PER_LAYER] = {};
    memset(o, 0, sizeof *o);
    o->parameters = parameters;
    o->count = LAYERS * PER_LAYER;
    for (int i = 0; i < o->count; i++) {
        Weight *w = &parameters[i].weight;
        w->value = bench_tensor(bench, rows[i % PER_LAYER], cols[i % PER_LAYER], FMT_BF16, 0.02f);
        w->codes = bench_tensor(bench, w->value.rows, w->value.cols, FMT_E4M3, 1.0f);
        w->codes_t = transposed_tensor(bench, w->codes, FMT_E4M3);
    }
    report_pass(block, o, "weights_quantize", 12 * C, C * LAYERS, 6, 0, run_weights_quantize);
    for (int i = 0; i < o->count; i++) // one amax per weight, which weights_amax writes
        parameters[i].weight.codes.amax = (uint32_t *)bench_allocate(bench, sizeof(uint32_t));
    report_pass(block, o, "weights_amax", 12 * C, C * LAYERS, 2, 0, run_weights_amax);
    for (int i = 0; i < o->count; i++) {
        parameters[i].weight.codes_t.scale = NULL;
        release_maxima(bench, &parameters[i].weight.codes);
        bench_release(bench, parameters[i].weight.value);
        bench_release(bench, parameters[i].weight.codes);
        bench_release(bench, parameters[i].weight.codes_t);
    }
}

static void bench_model(Block *block, const Model *model) {
    const double unit = (double)model->M * (double)model->C;
    Operands o;
    block->model = model;
    block->block_ms = block->block_bytes = 0;
    printf("\n%s, %lld tokens\n", model->name, (long long)model->M);
    bench_narrow(block, &o);
    bench_wide(block, &o);
    printf("one block, forward and backward: %.3f ms; moves %.1f C bytes per token; a copy of %.1f C bytes per token "
           "takes as long (target: 105 C)\n",
           block->block_ms, block->block_bytes / unit, block->block_ms * 1e-3 * block->report.copy_rate / unit);
    bench_weights(block, &o);
}

int main(int argc, char **argv) {
    Bench bench = {};
    bench_flags(&bench, "[--quick] [--check]", argc, argv);
    const int wrong = check_fp8(!bench.check);
    if (bench.check) return wrong ? EXIT_USER : EXIT_DONE;

    recipe_apply(&bench.config.recipe, RECIPE_COAT);
    bench_configure(&bench.config, 64, 1600, 6400); // Plans the workspace for the largest shape.
    bench_open(&bench);
    bench.exec.state = (StepState *)bench_allocate(&bench, sizeof(StepState));
    bench.exec.ops->zero(&bench.exec, bench.exec.state, sizeof(StepState));
    static const Model models[] = {{"GPT-2 1558M", 16384, 1600}, {"GPT-2 124M", 65536, 768}};
    Block block = {};
    block.report = report_open(&bench);
    for (int i = 0; i < (bench.quick ? 1 : 2); i++) bench_model(&block, &models[i]);
    bench_swiglu(&block, 16384, 8192);
    if (!bench.quick) bench_swiglu(&block, 8192, 11008);
    if (!bench.quick) bench_swiglu(&block, 8192, 18944);
    report_close(&block.report);
    bench.exec.ops->release(&bench.exec, bench.exec.state);
    bench_close(&bench);
    return wrong ? EXIT_USER : EXIT_DONE;
}
