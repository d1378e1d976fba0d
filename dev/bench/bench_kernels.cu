// Benchmarks every memory-bound operation for GPT-2 124M and 1558M, and SwiGLU, RoPE and QK norm for Llama-like models.
// For each operation prints the bytes that must move through device memory (each input read once, each output written
// once), GB/s, and percentages of the rates of two device copies: a large copy, and a copy of the operation's size,
// whose rate includes its start and its end. Before timing, checks small shapes against the CPU backend
// (check_kernels.cu). Operands rotate among sets that together exceed the L2 cache.
// Usage: build/bench_kernels_gpu [--quick] [--alone] [--check]
//   --quick: fewer repetitions and shapes
//   --alone: times each operation alone, not several in a row
//   --check: all comparisons, no timing; exits with 1 if a comparison failed
#include "bench_report.h"
#include "dev/test/check_gpu.h"

#define CHUNK_TOKENS 4096 // number of tokens whose logits the head computes at a time
#define VOCAB 50257
#define PADDED 50304

typedef struct {
    const char *name;
    int B, T, C, L; // batch, sequence length, channels and layers; the MLP width F is 4 C
} Model;

// Operands of all operations on one model. Each bench_...() allocates only the tensors that it uses.
typedef struct {
    Model model;
    int set; // index of the operand set in use
    Tensor r[SETS], y[SETS], x[SETS], n[SETS];
    Tensor wide[SETS], wide_out[SETS];
    Tensor tokens, wte, wpe, dwte, dwpe, bias, weight, mean, rstd, sums, sums2, losses;
    QkRope heads;
    StepState *state;
    Parameter *parameters;
    int count;
} Operands;

static Norm norm_of(const Operands *o, Tensor x) {
    Norm n = {};
    n.x = x, n.mean = o->mean, n.rstd = o->rstd, n.weight = o->weight, n.bias = o->bias, n.eps = 1e-5f;
    return n;
}

BENCH_OPERATION(embed_forward, embed_forward, o->r[s], o->tokens, Tensor{}, o->wte, o->wpe, o->model.T)
BENCH_OPERATION(residual_norm_forward, residual_norm_forward, o->n[s], norm_of(o, o->x[s]), o->x[s], o->r[s], o->y[s],
                o->bias)
BENCH_OPERATION(postnorm_residual_forward, postnorm_residual_forward, o->n[s], norm_of(o, o->x[s]), o->n[s], o->r[s],
                o->y[s])
BENCH_OPERATION(residual_backward, residual_backward, o->r[s], o->y[s])
BENCH_OPERATION(norm_recompute, norm_recompute, o->n[s], Tensor{}, norm_of(o, o->x[s]))
BENCH_OPERATION(norm_backward, norm_backward, o->r[s], o->sums, o->sums2, o->y[s], norm_of(o, o->x[s]), true, true)
BENCH_OPERATION(activation_forward, activation_forward, o->wide_out[s], o->wide[s], o->wide[s], Tensor{}, true,
                ACT_GELU_TANH)
BENCH_OPERATION(activation_backward, activation_backward, o->wide_out[s], o->wide_out[s], o->sums, o->wide_out[s],
                o->wide[s], true, ACT_GELU_TANH)
BENCH_OPERATION(swiglu_forward, activation_forward, o->r[s], o->wide[s], o->wide[s], Tensor{}, true, ACT_SWIGLU)
BENCH_OPERATION(swiglu_recompute, activation_recompute, o->r[s], Tensor{}, o->wide[s], ACT_SWIGLU)
BENCH_OPERATION(swiglu_backward, activation_backward, o->wide_out[s], o->wide_out[s], Tensor{}, o->r[s], o->wide[s],
                true, ACT_SWIGLU)
BENCH_OPERATION(qk_norm_rope_forward, qk_norm_rope_forward, o->wide_out[s], o->wide[s], o->heads)
BENCH_OPERATION(qk_norm_rope_rotate, qk_norm_rope_forward, o->wide[s], o->wide[s], o->heads)
BENCH_OPERATION(qk_norm_rope_backward, qk_norm_rope_backward, o->wide[s], o->sums, o->sums2, o->wide_out[s], o->heads,
                true)
BENCH_OPERATION(grad_quantize, grad_quantize, o->wide[s], o->wide[s], o->sums, o->wide[s], true)
BENCH_OPERATION(loss_forward_backward, loss_forward_backward, o->wide[s], o->wide[s], o->losses, Tensor{}, o->wide[s],
                o->tokens, 0, VOCAB, o->state)
BENCH_OPERATION(loss_sum, loss_sum, o->losses, o->state)
BENCH_OPERATION(embed_backward, embed_backward, o->dwte, o->dwpe, o->r[s], o->tokens, Tensor{}, o->model.T, true)
BENCH_OPERATION(gradients_add, gradients_add, &o->r[s], &o->y[s], 1)
BENCH_OPERATION(grad_norm, grad_norm, o->parameters, o->count, o->state)
BENCH_OPERATION(adamw_update, adamw_update, o->parameters, o->count, o->state)

// --- allocation of the benchmarked operations' operands -----------------------------------------------------
static void make_sets(Bench *bench, Tensor t[SETS], int64_t rows, int64_t cols) {
    for (int s = 0; s < SETS; s++) t[s] = bench_tensor(bench, rows, cols, FMT_BF16, 1.0f);
}

static void release_sets(Bench *bench, Tensor t[SETS]) {
    for (int s = 0; s < SETS; s++) bench_release(bench, t[s]);
}

// Fills o->tokens with random token ids. About a tenth of them are token 11, the others are spread over the vocabulary.
// Returns the number of distinct ids.
static int64_t make_tokens(Bench *bench, Operands *o, int64_t count) {
    int32_t *host = (int32_t *)xmalloc((size_t)count * sizeof *host);
    bool *seen = (bool *)xcalloc(PADDED, sizeof *seen);
    int64_t distinct = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t random = rng_hash(3, 1, (uint64_t)i);
        // Squaring a uniform random number makes low token ids more frequent.
        double u = (double)(random >> 40) * 0x1p-24;
        host[i] = random % 10 == 0 ? 11 : (int32_t)(u * u * VOCAB);
        distinct += !seen[host[i]];
        seen[host[i]] = true;
    }
    o->tokens = tensor_of(bench_allocate(bench, (size_t)count * sizeof *host), count, 1, FMT_I32);
    bench->exec.ops->upload(&bench->exec, o->tokens.data, host, (size_t)count * sizeof *host);
    free(host);
    free(seen);
    return distinct;
}

__global__ static void absolute_kernel(float *x, int64_t count) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) x[i] = fabsf(x[i]);
}

// Sets o->parameters to parameters of GPT-2's sizes, whose tensors are in the buffers `roles` (value, gradient, m, v,
// master). If `roles` is NULL, only counts elements. Returns the number of elements that each buffer needs.
static int64_t make_parameters(Operands *o, const Tensor roles[5], Format master) {
    const int64_t C = o->model.C;
    const int64_t layer[] = {C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C};
    const int64_t model[] = {PADDED * C, o->model.T * C, C, C};
    const int per_layer = sizeof layer / sizeof layer[0], once = sizeof model / sizeof model[0];
    int64_t at = 0;
    o->count = o->model.L * per_layer + once;
    for (int i = 0; i < o->count; i++) {
        int64_t n = i < once ? model[i] : layer[(i - once) % per_layer];
        if (roles) {
            Parameter *p = &o->parameters[i];
            Tensor *parts[] = {&p->weight.value, &p->grad, &p->m, &p->v, &p->master};
            bool matmul = i >= once && n >= C * C;
            const Format formats[] = {FMT_BF16, matmul ? FMT_BF16 : FMT_FP32, FMT_FP32, FMT_FP32, master};
            for (int k = 0; k < 5; k++) {
                *parts[k] = roles[k];
                parts[k]->data = (char *)roles[k].data + (size_t)at * format_bytes(formats[k]);
                parts[k]->rows = 1, parts[k]->cols = parts[k]->stride = n, parts[k]->format = formats[k];
            }
            p->decay = n >= C * C;
        }
        at += (n + 127) / 128 * 128;
    }
    return at;
}

static void bench_optimizer(Report *r, Operands *o, Format master) {
    Bench *bench = r->bench;
    int64_t n = make_parameters(o, NULL, master);
    o->parameters = (Parameter *)xcalloc((size_t)o->count, sizeof *o->parameters);
    // Allocates 4 bytes per gradient element, enough for FP32 and BF16. The buffer is filled with small BF16 values. A
    // pair of them is also a small value in FP32.
    const Format formats[5] = {FMT_BF16, FMT_FP32, FMT_FP32, FMT_FP32, master};
    Tensor roles[5];
    for (int k = 0; k < 5; k++) {
        Format fill = formats[k] == FMT_U16 ? FMT_BF16 : formats[k];
        roles[k] = bench_tensor(bench, 1, k == 1 ? 2 * n : n, k == 1 ? FMT_BF16 : fill, k == 0 ? 0.02f : 1e-4f);
    }
    absolute_kernel<<<1024, 256, 0, cuda_backend(&bench->exec)->stream>>>((float *)roles[3].data, n);
    make_parameters(o, roles, master);
    StepState state = {};
    state.lr = 1e-6f, state.beta1 = 0.9f, state.beta2 = 0.95f, state.eps = 1e-8f, state.grad_clip = 1.0f;
    bench->exec.ops->upload(&bench->exec, o->state, &state, sizeof state);

    double grads = 0, states = 0;
    for (int i = 0; i < o->count; i++) {
        double elements = (double)o->parameters[i].grad.cols;
        grads += elements * (double)format_bytes(o->parameters[i].grad.format);
        // Bytes per element: two FP32 moments are read and written (16). An FP32 master weight is read and written (8),
        // and its BF16 weight is written (2). A split16 master weight and its BF16 weight are read and written (8).
        states += elements * (16 + (master == FMT_FP32 ? 10 : 8));
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%.0f M", (double)n * 1e-6);
    if (master == FMT_FP32) report(r, o, "grad_norm", shape, grads, run_grad_norm);
    report(r, o, master == FMT_FP32 ? "adamw_update fp32" : "adamw_update split16", shape, grads + states,
           run_adamw_update);
    for (int k = 0; k < 5; k++) bench_release(bench, roles[k]);
    free(o->parameters);
}

static void bench_narrow(Report *r, Operands *o) {
    Bench *bench = r->bench;
    const int64_t M = (int64_t)o->model.B * o->model.T, C = o->model.C;
    const double row = (double)M * (double)C * 2; // bytes of one (M, C) activation in BF16
    char shape[64];
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)M, (long long)C);
    Tensor *sets[] = {o->r, o->y, o->x, o->n};
    for (int i = 0; i < 4; i++) make_sets(bench, sets[i], M, C);
    int64_t distinct = make_tokens(bench, o, M);
    o->wte = bench_tensor(bench, PADDED, C, FMT_BF16, 1.0f);
    o->wpe = bench_tensor(bench, o->model.T, C, FMT_BF16, 1.0f);
    o->dwte = bench_tensor(bench, PADDED, C, FMT_FP32, 1.0f);
    o->dwpe = bench_tensor(bench, o->model.T, C, FMT_FP32, 1.0f);
    const double positions = (double)o->model.T * (double)C, tokens = (double)distinct * (double)C;
    const double embed_bytes = row + 2 * (positions + tokens) + 4 * (double)M;
    report(r, o, "embed_forward", shape, embed_bytes, run_embed_forward);
    report(r, o, "residual_norm_forward", shape, 4 * row + 8 * (double)M, run_residual_norm_forward);
    report(r, o, "postnorm_residual_forward", shape, 4 * row + 8 * (double)M, run_postnorm_residual_forward);
    report(r, o, "residual_backward", shape, 3 * row, run_residual_backward);
    report(r, o, "gradients_add", shape, 3 * row, run_gradients_add);
    report(r, o, "norm_recompute", shape, 2 * row + 8 * (double)M, run_norm_recompute);
    report(r, o, "norm_backward", shape, 4 * row + 8 * (double)M, run_norm_backward);
    report(r, o, "embed_backward", shape, row + 8 * (positions + tokens) + 4 * (double)M, run_embed_backward);
    for (int i = 0; i < 4; i++) release_sets(bench, sets[i]);
    Tensor once[] = {o->wte, o->wpe, o->dwte, o->dwpe, o->tokens};
    for (Tensor t : once) bench_release(bench, t);
}

static void bench_wide(Report *r, Operands *o) {
    Bench *bench = r->bench;
    const int64_t M = (int64_t)o->model.B * o->model.T, C = o->model.C;
    const int64_t widths[] = {C, 3 * C, 4 * C};
    char shape[64];
    for (int64_t N : widths) {
        const double row = (double)M * (double)N * 2;
        snprintf(shape, sizeof shape, "%lld x %lld", (long long)M, (long long)N);
        make_sets(bench, o->wide, M, N);
        report(r, o, "grad_quantize", shape, row, run_grad_quantize);
        if (N == 4 * C) {
            make_sets(bench, o->wide_out, M, N);
            report(r, o, "activation_forward", shape, 2 * row, run_activation_forward);
            report(r, o, "activation_backward", shape, 3 * row, run_activation_backward);
            release_sets(bench, o->wide_out);
        }
        release_sets(bench, o->wide);
    }
    const double row = (double)CHUNK_TOKENS * PADDED * 2;
    snprintf(shape, sizeof shape, "%d x %d", CHUNK_TOKENS, PADDED);
    make_sets(bench, o->wide, CHUNK_TOKENS, PADDED);
    make_tokens(bench, o, CHUNK_TOKENS);
    o->losses = bench_tensor(bench, CHUNK_TOKENS, 1, FMT_FP32, 1.0f);
    report(r, o, "loss_forward_backward", shape, 2 * row, run_loss_forward_backward);
    report(r, o, "loss_sum", shape, 4 * CHUNK_TOKENS, run_loss_sum);
    bench_release(bench, o->losses);
    bench_release(bench, o->tokens);
    release_sets(bench, o->wide);
}

// Times SwiGLU. h is (M, 2 F), with the gate and up columns side by side; g is (M, F).
static void bench_swiglu(Report *r, int64_t M, int64_t F) {
    Operands o = {};
    char shape[64];
    const double row = (double)M * (double)F * 2;
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)M, (long long)F);
    make_sets(r->bench, o.r, M, F);
    make_sets(r->bench, o.wide, M, 2 * F);
    make_sets(r->bench, o.wide_out, M, 2 * F);
    report(r, &o, "swiglu forward", shape, 3 * row, run_swiglu_forward);
    report(r, &o, "swiglu recompute", shape, 3 * row, run_swiglu_recompute);
    report(r, &o, "swiglu backward", shape, 5 * row, run_swiglu_backward);
    Tensor *sets[] = {o.r, o.wide, o.wide_out};
    for (Tensor *t : sets) release_sets(r->bench, t);
}

// Times in-place RoPE (Llama) and QK norm with RoPE (Qwen 3) on q, k and v, each with `heads` heads. Backward also
// stores the amax of dq, dk and dv, which quantizing the gradient needs.
static void bench_heads(Report *r, int B, int T, int heads, int head_dim, bool normed) {
    Bench *bench = r->bench;
    Operands o = {};
    const int64_t M = (int64_t)B * T, cols = 3 * (int64_t)heads * head_dim;
    const double q_and_k = (double)M * (double)(2 * heads * head_dim) * 2, v = q_and_k / 2;
    const double positions = (double)T * head_dim * 4;
    char shape[64];
    snprintf(shape, sizeof shape, "%lld x 3 x %d x %d", (long long)M, heads, head_dim);
    make_sets(bench, o.wide, M, cols);
    make_sets(bench, o.wide_out, M, cols);
    o.heads.shape = AttentionShape{B, T, heads, heads, head_dim, false};
    // The RoPE table gets random cosine and sine pairs with a mean square length of 1.
    o.heads.rope_table = bench_tensor(bench, T, head_dim, FMT_FP32, 0.7f);
    o.heads.eps = 1e-6f;
    uint32_t *maxima = (uint32_t *)bench_allocate(bench, (size_t)M * sizeof *maxima);
    for (Tensor &t : o.wide) t.amax = maxima;
    if (!normed) {
        report(r, &o, "rope forward", shape, 2 * q_and_k + positions, run_qk_norm_rope_rotate);
        report(r, &o, "rope backward", shape, 2 * q_and_k + v + positions, run_qk_norm_rope_backward);
    } else {
        o.heads.q_weight = bench_tensor(bench, 1, head_dim, FMT_BF16, 1.0f);
        o.heads.k_weight = bench_tensor(bench, 1, head_dim, FMT_BF16, 1.0f);
        o.sums = bench_tensor(bench, 1, head_dim, FMT_FP32, 1.0f);
        o.sums2 = bench_tensor(bench, 1, head_dim, FMT_FP32, 1.0f);
        report(r, &o, "qk norm, rope forward", shape, 2 * (q_and_k + v) + positions, run_qk_norm_rope_forward);
        report(r, &o, "qk norm, rope backward", shape, 3 * q_and_k + v + positions, run_qk_norm_rope_backward);
        Tensor once[] = {o.heads.q_weight, o.heads.k_weight, o.sums, o.sums2};
        for (Tensor t : once) bench_release(bench, t);
    }
    bench->exec.ops->release(&bench->exec, maxima);
    bench_release(bench, o.heads.rope_table);
    release_sets(bench, o.wide);
    release_sets(bench, o.wide_out);
}

static void bench_model(Report *r, Model model) {
    Bench *bench = r->bench;
    const int64_t M = (int64_t)model.B * model.T;
    Operands o = {};
    o.model = model;
    o.mean = bench_tensor(bench, M, 1, FMT_FP32, 0.1f);
    o.rstd = bench_tensor(bench, M, 1, FMT_FP32, 1.0f);
    o.weight = bench_tensor(bench, 1, model.C, FMT_BF16, 1.0f);
    o.bias = bench_tensor(bench, 1, model.C, FMT_BF16, 1.0f);
    o.sums = bench_tensor(bench, 1, 4 * model.C, FMT_FP32, 1.0f);
    o.sums2 = bench_tensor(bench, 1, 4 * model.C, FMT_FP32, 1.0f);
    o.state = (StepState *)bench_allocate(bench, sizeof(StepState));
    StepState state = {};
    state.loss_scale = 1.0f;
    bench->exec.ops->upload(&bench->exec, o.state, &state, sizeof state);
    printf("\n%s, %d x %d tokens\n", model.name, model.B, model.T);
    bench_narrow(r, &o);
    bench_wide(r, &o);
    bench_optimizer(r, &o, FMT_FP32);
    bench_optimizer(r, &o, FMT_U16);
    Tensor once[] = {o.mean, o.rstd, o.weight, o.bias, o.sums, o.sums2};
    for (Tensor t : once) bench_release(bench, t);
    bench->exec.ops->release(&bench->exec, o.state);
}

int main(int argc, char **argv) {
    Bench bench = {};
    bench_flags(&bench, "[--quick] [--alone] [--check]", argc, argv);
    const int wrong = check_kernels(!bench.check);
    if (bench.check) return wrong ? EXIT_USER : EXIT_DONE;

    bench_configure(&bench.config, 64, 1600, 6400); // Plans the workspace for the largest shape.
    bench_open(&bench);
    Report r = report_open(&bench);
    const Model models[] = {{"GPT-2 124M", 64, 1024, 768, 12}, {"GPT-2 1558M", 16, 1024, 1600, 48}};
    for (int i = 0; i < (bench.quick ? 1 : 2); i++) bench_model(&r, models[i]);
    printf("\nSwiGLU, tokens x width of g\n");
    bench_swiglu(&r, 16384, 8192);
    if (!bench.quick) bench_swiglu(&r, 8192, 11008);
    printf("\nRoPE and QK norm, tokens x q, k and v x heads x width\n");
    bench_heads(&r, 32, 1024, 16, 128, false);
    bench_heads(&r, 32, 1024, 16, 128, true);
    if (!bench.quick) bench_heads(&r, 4, 2048, 32, 128, false);
    report_close(&r);
    bench_close(&bench);
    return wrong ? EXIT_USER : EXIT_DONE;
}
