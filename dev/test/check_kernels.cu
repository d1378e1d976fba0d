// Compares the memory-bound GPU kernels with the CPU backend on random values. Shapes reach every kernel variant: odd
// batches and lengths, widths that are not powers of two or multiples of 8, rare and frequent tokens. Outputs are
// filled with NaN before an operation. Sums over several thread blocks must repeat bit for bit.
#include "check_pairs.h"

static CheckPair check_random(Check *c, int64_t rows, int64_t cols, Format format, float mean, float deviation) {
    CheckPair t = check_plain(c, rows, cols, format);
    uint64_t stream = c->draws++;
    for (int64_t i = 0; i < rows * cols; i++) {
        float x = mean + deviation * rng_normal(5, stream, (uint64_t)i);
        if (format == FMT_BF16)
            ((uint16_t *)t.cpu.data)[i] = bf16_encode(x);
        else if (format == FMT_U16)
            ((uint16_t *)t.cpu.data)[i] = (uint16_t)rng_hash(5, stream, (uint64_t)i);
        else
            ((float *)t.cpu.data)[i] = x;
    }
    check_upload(c, t);
    return t;
}

// Returns random token ids below `limit`. Every third id is one of two frequent ids. With `gaps`, every fifth id is -1.
static CheckPair check_tokens(Check *c, int64_t rows, int limit, bool gaps) {
    CheckPair t = check_plain(c, rows, 1, FMT_I32);
    uint64_t stream = c->draws++;
    for (int64_t i = 0; i < rows; i++) {
        uint64_t random = rng_hash(5, stream, (uint64_t)i);
        ((int32_t *)t.cpu.data)[i] = gaps && i % 5 == 4 ? -1 : (int32_t)(random % (i % 3 ? (uint64_t)limit : 2));
    }
    check_upload(c, t);
    return t;
}

// --- checks of single operations against the CPU reference --------------------------------------------------
typedef struct {
    int B, T, C;
    Format format;
} CheckShape;

static Norm check_norm_of(CheckPair x, CheckPair mean, CheckPair rstd, CheckPair weight, CheckPair bias, int gpu) {
    Norm n = {};
    n.x = SIDE(x), n.mean = SIDE(mean), n.rstd = SIDE(rstd), n.weight = SIDE(weight), n.bias = SIDE(bias);
    n.eps = 1e-5f;
    return n;
}

static void check_norm(Check *c, CheckShape s, bool rms) {
    const int64_t M = (int64_t)s.B * s.T, C = s.C;
    const double limit = s.format == FMT_BF16 ? 2e-3 : 1e-5;
    CheckPair none = {};
    CheckPair r = check_random(c, M, C, s.format, 0.3f, 1), y = check_random(c, M, C, s.format, 0, 1);
    CheckPair y_bias = check_random(c, 1, C, s.format, 0, 1), weight = check_random(c, 1, C, s.format, 1, 0.3f);
    CheckPair bias = rms ? none : check_random(c, 1, C, s.format, 0, 1), dn = check_random(c, M, C, s.format, 0, 1);
    CheckPair x = check_plain(c, M, C, s.format), n = check_plain(c, M, C, s.format);
    CheckPair again = check_plain(c, M, C, s.format), g = with_maxima(c, check_plain(c, M, C, s.format));
    CheckPair mean = rms ? none : check_plain(c, M, 1, FMT_FP32), rstd = check_plain(c, M, 1, FMT_FP32);
    CheckPair dw = check_plain(c, 1, C, FMT_FP32), db = rms ? none : check_plain(c, 1, C, FMT_FP32);

    CHECK_BOTH(c, residual_norm_forward,
               (e, SIDE(n), check_norm_of(x, mean, rstd, weight, bias, gpu), SIDE(x), SIDE(r), SIDE(y), SIDE(y_bias)));
    check_values(c, x, limit, "residual_norm_forward: r");
    check_values(c, n, limit, "residual_norm_forward: n");
    if (!rms) check_values(c, mean, 1e-5, "residual_norm_forward: mean");
    check_values(c, rstd, 1e-5, "residual_norm_forward: rstd");
    CHECK_BOTH(c, norm_recompute, (e, SIDE(again), Tensor{}, check_norm_of(x, mean, rstd, weight, bias, gpu)));
    check_values(c, again, limit, "norm_recompute");
    check_same(c, n, again, "norm_recompute: the bits of forward");
    for (int pass = 0; pass < 2; pass++) {
        CHECK_BOTH(c, norm_backward,
                   (e, SIDE(g), SIDE(dw), SIDE(db), SIDE(dn), check_norm_of(x, mean, rstd, weight, bias, gpu),
                    pass == 1, pass == 1));
        check_values(c, g, limit, "norm_backward: g");
        check_maxima(c, g, limit, "norm_backward: amax");
        check_values(c, dw, 1e-4, "norm_backward: dweight");
        if (!rms) check_values(c, db, 1e-4, "norm_backward: dbias");
    }
    CheckPair dw2 = check_plain(c, 1, C, FMT_FP32), db2 = check_plain(c, 1, C, FMT_FP32);
    for (int pass = 0; pass < 2; pass++)
        check_gpu(c)->ops->norm_backward(check_gpu(c), g.gpu, pass ? dw2.gpu : dw.gpu, pass ? db2.gpu : db.gpu, dn.gpu,
                                         check_norm_of(x, mean, rstd, weight, bias, 1), false, false);
    check_same(c, dw, dw2, "norm_backward: dweight of two runs");
    if (!rms) check_same(c, db, db2, "norm_backward: dbias of two runs");
    CHECK_BOTH(c, residual_norm_forward,
               (e, SIDE(n), check_norm_of(r, mean, rstd, weight, bias, gpu), SIDE(r), SIDE(r), Tensor{}, Tensor{}));
    check_values(c, n, limit, "residual_norm_forward alone: n");
    CHECK_BOTH(c, residual_norm_forward,
               (e, SIDE(n), check_norm_of(r, mean, rstd, weight, bias, gpu), SIDE(r), SIDE(r), SIDE(y), Tensor{}));
    check_values(c, r, limit, "residual_norm_forward in place: r");
    check_values(c, n, limit, "residual_norm_forward in place: n");
    check_free(c);
}

// Checks residual_backward and postnorm_residual_forward. The latter must round its sum only once.
static void check_postnorm_residual(Check *c, CheckShape s, bool rms) {
    const int64_t M = (int64_t)s.B * s.T, C = s.C;
    const double limit = s.format == FMT_BF16 ? 5e-4 : 1e-5;
    CheckPair none = {};
    CheckPair r_in = check_random(c, M, C, s.format, 0.3f, 1), y = check_random(c, M, C, s.format, 0.1f, 1);
    CheckPair weight = check_random(c, 1, C, s.format, 1, 0.3f),
              bias = rms ? none : check_random(c, 1, C, s.format, 0, 1);
    CheckPair x = check_plain(c, M, C, s.format), r = check_plain(c, M, C, s.format);
    CheckPair mean = rms ? none : check_plain(c, M, 1, FMT_FP32), rstd = check_plain(c, M, 1, FMT_FP32);
    CHECK_BOTH(c, postnorm_residual_forward,
               (e, SIDE(r), check_norm_of(x, mean, rstd, weight, bias, gpu), SIDE(r), SIDE(r_in), SIDE(y)));
    check_values(c, x, 0, "postnorm_residual_forward: x");
    check_values(c, r, limit, "postnorm_residual_forward: r");
    if (!rms) check_values(c, mean, 1e-5, "postnorm_residual_forward: mean");
    check_values(c, rstd, 1e-5, "postnorm_residual_forward: rstd");
    CHECK_BOTH(c, postnorm_residual_forward, // overwrites r_in with r_out, and y is norm.x
               (e, Tensor{}, check_norm_of(y, mean, rstd, weight, bias, gpu), SIDE(r_in), SIDE(r_in), SIDE(y)));
    check_same(c, r, r_in, "postnorm_residual_forward in place: r");
    CheckPair g = check_random(c, M, C, s.format, 0, 1);
    CHECK_BOTH(c, residual_backward, (e, SIDE(g), SIDE(y)));
    check_values(c, g, 0, "residual_backward: g");
    check_free(c);
}

static void check_gelu(Check *c, CheckShape s, ActivationKind kind) {
    const int64_t M = (int64_t)s.B * s.T, F = s.C;
    const double limit = s.format == FMT_BF16 ? 2e-3 : 2e-6;
    CheckPair y = check_random(c, M, F, s.format, 0, 2), bias = check_random(c, 1, F, s.format, 0, 1);
    CheckPair h = check_plain(c, M, F, s.format), g = check_plain(c, M, F, s.format);
    CheckPair again = check_plain(c, M, F, s.format), dg = check_random(c, M, F, s.format, 0.1f, 1);
    CheckPair dbias = check_plain(c, 1, F, FMT_FP32), sum = check_plain(c, 1, F, FMT_FP32);
    CHECK_BOTH(c, activation_forward, (e, SIDE(g), SIDE(h), SIDE(y), SIDE(bias), true, kind));
    check_values(c, h, limit, "activation_forward: h");
    check_values(c, g, limit, "activation_forward: g");
    CHECK_BOTH(c, activation_forward, (e, SIDE(again), SIDE(y), SIDE(y), Tensor{}, true, kind));
    check_values(c, again, limit, "activation_forward in place: g");
    CHECK_BOTH(c, activation_recompute, (e, SIDE(again), Tensor{}, SIDE(h), kind));
    check_values(c, again, limit, "activation_recompute");
    for (int pass = 0; pass < 2; pass++) {
        CHECK_BOTH(c, activation_backward, (e, SIDE(dg), SIDE(dg), SIDE(dbias), SIDE(dg), SIDE(h), pass == 1, kind));
        check_values(c, dg, limit, "activation_backward: dh");
        check_values(c, dbias, s.format == FMT_BF16 ? 2e-3 : 1e-5, "activation_backward: dbias");
        CHECK_BOTH(c, grad_quantize, (e, SIDE(dg), SIDE(dg), SIDE(sum), SIDE(dg), pass == 1));
        check_values(c, sum, s.format == FMT_BF16 ? 2e-3 : 1e-5, "grad_quantize: dbias");
    }
    for (int pass = 0; pass < 2; pass++)
        check_gpu(c)->ops->grad_quantize(check_gpu(c), dg.gpu, dg.gpu, pass ? sum.gpu : dbias.gpu, dg.gpu, false);
    check_same(c, dbias, sum, "grad_quantize: dbias of two runs");
    check_free(c);
}

static void check_embedding(Check *c, CheckShape s) {
    const int64_t M = (int64_t)s.B * s.T, C = s.C, Vp = 384;
    CheckPair tokens = check_tokens(c, M, 300, false), wte = check_random(c, Vp, C, s.format, 0, 1);
    CheckPair wpe = check_random(c, s.T + 3, C, s.format, 0, 1), r = check_plain(c, M, C, s.format);
    CheckPair g = check_random(c, M, C, s.format, 0, 1), dwte = check_random(c, Vp, C, FMT_FP32, 0, 1);
    CheckPair dwpe = check_plain(c, s.T + 3, C, FMT_FP32);
    CHECK_BOTH(c, embed_forward, (e, SIDE(r), SIDE(tokens), Tensor{}, SIDE(wte), SIDE(wpe), s.T));
    check_values(c, r, s.format == FMT_BF16 ? 2e-3 : 1e-6, "embed_forward");
    for (int pass = 0; pass < 2; pass++)
        CHECK_BOTH(c, embed_backward, (e, SIDE(dwte), SIDE(dwpe), SIDE(g), SIDE(tokens), Tensor{}, s.T, pass == 1));
    check_values(c, dwte, 1e-5, "embed_backward: dwte");
    check_values(c, dwpe, 1e-5, "embed_backward: dwpe");
    CheckPair other = check_plain(c, Vp, C, FMT_FP32);
    for (int pass = 0; pass < 2; pass++) {
        Tensor d = pass ? other.gpu : dwte.gpu;
        check_gpu(c)->ops->zero(check_gpu(c), d.data, (size_t)tensor_elements(d) * sizeof(float));
        check_gpu(c)->ops->embed_backward(check_gpu(c), d, Tensor{}, g.gpu, tokens.gpu, Tensor{}, s.T, true);
    }
    check_same(c, dwte, other, "embed_backward: dwte of two runs");
    check_free(c);
}

static void check_reset(Check *c, float clip) {
    StepState state = {};
    state.lr = 1e-3f, state.beta1 = 0.9f, state.beta2 = 0.95f, state.eps = 1e-8f, state.weight_decay = 0.1f;
    state.grad_clip = clip;
    state.loss_scale = 0.37f;
    state.t = 6;
    *c->cpu.state = state;
    check_gpu(c)->ops->upload(check_gpu(c), check_gpu(c)->state, &state, sizeof state);
}

static StepState check_state(Check *c) {
    StepState state;
    check_gpu(c)->ops->download(check_gpu(c), &state, check_gpu(c)->state, sizeof state);
    return state;
}

static float logit_at(Tensor logits, int64_t row, int column) {
    const int64_t at = row * logits.cols + column;
    return logits.format == FMT_BF16 ? bf16_decode(((uint16_t *)logits.data)[at]) : ((float *)logits.data)[at];
}

// Sets the targets of even rows to the token with the largest logit. In every second even row, the next token gets an
// equal logit. In half of these rows the next token is the target.
static void aim_at_best(CheckPair logits, CheckPair targets, int vocab) {
    for (int64_t i = 0; i < logits.cpu.rows; i += 2) {
        int32_t *target = (int32_t *)targets.cpu.data + i;
        int top = 0;
        for (int j = 1; j < vocab; j++)
            if (logit_at(logits.cpu, i, j) > logit_at(logits.cpu, i, top)) top = j;
        const int next = (top + 1) % vocab;
        const size_t bytes = format_bytes(logits.cpu.format);
        char *row = (char *)logits.cpu.data + (size_t)(i * logits.cpu.cols) * bytes;
        if (i % 4 == 2) memcpy(row + (size_t)next * bytes, row + (size_t)top * bytes, bytes);
        if (*target >= 0) *target = i % 8 == 2 ? next : top;
    }
}

static void check_loss(Check *c, int64_t rows, int vocab, int padded, Format format) {
    snprintf(c->shape, sizeof c->shape, "%lld rows of %d and %d columns", (long long)rows, vocab, padded);
    CheckPair logits = check_random(c, rows, padded, format, 0, 3), targets = check_tokens(c, rows, vocab, true);
    CheckPair losses = check_plain(c, rows, 1, FMT_FP32);
    CheckPair best = check_plain(c, rows, 1, FMT_FP32);
    aim_at_best(logits, targets, vocab);
    check_upload(c, logits);
    check_upload(c, targets);
    check_reset(c, 0);
    for (int backward = 0; backward < 2; backward++) {
        const CheckPair dlogits = backward ? logits : CheckPair{};
        CHECK_BOTH(c, loss_forward_backward,
                   (e, SIDE(dlogits), SIDE(dlogits), SIDE(losses), SIDE(best), SIDE(logits), SIDE(targets), 0, vocab,
                    e->state));
    }
    check_values(c, losses, 1e-5, "loss_forward_backward: losses");
    check_values(c, best, 0, "loss_forward_backward: best");
    check_values(c, logits, format == FMT_BF16 ? 2e-3 : 1e-5, "loss_forward_backward: dlogits");
    CHECK_BOTH(c, loss_sum, (e, SIDE(losses), e->state));
    StepState state = check_state(c);
    char text[64];
    snprintf(text, sizeof text, "%.8g for %.8g", state.loss_sum, c->cpu.state->loss_sum);
    check_say(c, fabs(state.loss_sum - c->cpu.state->loss_sum) < 1e-6 * fabs(c->cpu.state->loss_sum), "loss_sum", text);
    check_flag(c, 0, "loss_forward_backward");
    const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) { // writes NaN or inf to a logit of a row that has a target
        if (format == FMT_BF16)
            ((uint16_t *)logits.cpu.data)[padded + vocab - 1] = bf16_encode(bad[i]);
        else
            ((float *)logits.cpu.data)[padded + vocab - 1] = bad[i];
        check_upload(c, logits);
        check_reset(c, 0);
        check_gpu(c)->ops->loss_forward_backward(check_gpu(c), logits.gpu, logits.gpu, losses.gpu, Tensor{}, logits.gpu,
                                                 targets.gpu, 0, vocab, check_gpu(c)->state);
        check_flag(c, 1, "loss_forward_backward");
    }
    check_free(c);
}

// Checks AdamW on parameters whose sizes are not multiples of the vector width, with value, master weights and gradient
// in the given formats.
static void check_optimizer(Check *c, Format value, Format master, Format grad) {
    enum { COUNT = 5 };
    static const int64_t sizes[COUNT] = {1, 127, 8192, 70001, 3000};
    snprintf(c->shape, sizeof c->shape, "value %s, master %s, grad %s", format_name(value), format_name(master),
             format_name(grad));
    Parameter side[2][COUNT] = {};
    CheckPair values[COUNT], ms[COUNT], vs[COUNT], masters[COUNT] = {}, grads[COUNT];
    for (int i = 0; i < COUNT; i++) {
        int64_t n = sizes[i];
        values[i] = check_random(c, 1, n, value, 0, 1);
        grads[i] = check_random(c, 1, n, i % 2 ? FMT_FP32 : grad, 0, 0.1f);
        ms[i] = check_random(c, 1, n, FMT_FP32, 0, 0.1f);
        vs[i] = check_random(c, 1, n, FMT_FP32, 1, 0.1f);
        if (master != FMT_NONE) masters[i] = check_random(c, 1, n, master, 0, 1);
        for (int gpu = 0; gpu < 2; gpu++) {
            Parameter *p = &side[gpu][i];
            p->weight.value = SIDE(values[i]), p->grad = SIDE(grads[i]), p->m = SIDE(ms[i]), p->v = SIDE(vs[i]);
            p->master = SIDE(masters[i]);
            p->decay = i % 2 == 0;
        }
    }
    for (int step = 0; step < 3; step++) { // runs without clipping, then with clipping; step 2 is skipped
        check_reset(c, step == 0 ? 0 : 1.0f);
        if (step == 2) {
            ((float *)grads[3].cpu.data)[70000] = NAN;
            check_upload(c, grads[3]);
        }
        CHECK_BOTH(c, grad_norm, (e, side[gpu], COUNT, e->state));
        CHECK_BOTH(c, adamw_update, (e, side[gpu], COUNT, e->state));
        StepState have = check_state(c), want = *c->cpu.state;
        check_say(c,
                  have.t == want.t && have.skipped == want.skipped && have.skipped_run == want.skipped_run &&
                      have.nonfinite == want.nonfinite,
                  "adamw_update", "the counts of updates differ");
        char text[64];
        snprintf(text, sizeof text, "%.8g for %.8g", have.grad_sq, want.grad_sq);
        if (step < 2) check_say(c, fabs(have.grad_sq - want.grad_sq) < 1e-6 * want.grad_sq, "grad_norm", text);
    }
    for (int i = 0; i < COUNT; i++) {
        check_values(c, values[i], value == FMT_BF16 ? 1e-4 : 1e-6, "adamw_update: value");
        check_values(c, ms[i], 1e-6, "adamw_update: m");
        check_values(c, vs[i], 1e-6, "adamw_update: v");
        if (master == FMT_FP32) check_values(c, masters[i], 1e-6, "adamw_update: master");
    }
    check_free(c);
}

// Checks gradients_add in FP32 and BF16, at aligned and unaligned addresses.
static void check_sums(Check *c) {
    enum { COUNT = 40 }; // number of gradient tensors: more than one kernel launch processes
    static const int64_t first[] = {1, 127, 8192, 70001, 3000, 16391, 0};
    int64_t sizes[COUNT];
    for (int i = 0; i < COUNT; i++) sizes[i] = i < 7 ? first[i] : 200 + i;
    snprintf(c->shape, sizeof c->shape, "gradients");
    CheckPair totals[COUNT], parts[COUNT];
    Tensor total[2][COUNT], part[2][COUNT];
    for (int i = 0; i < COUNT; i++) {
        const Format format = i % 2 ? FMT_FP32 : FMT_BF16;
        totals[i] = check_random(c, 1, sizes[i], format, 0, 1);
        parts[i] = check_random(c, 1, sizes[i], format, 0, 1);
        for (int gpu = 0; gpu < 2; gpu++) {
            total[gpu][i] = SIDE(totals[i]), part[gpu][i] = SIDE(parts[i]);
            if (i != 4 && i != 5) continue; // tensors 4 and 5 start at their second element, so they are unaligned
            Tensor *both[] = {&total[gpu][i], &part[gpu][i]};
            for (Tensor *t : both) t->data = (char *)t->data + format_bytes(format), t->cols--;
        }
    }
    CHECK_BOTH(c, gradients_add, (e, total[gpu], part[gpu], COUNT));
    for (int i = 0; i < COUNT; i++) check_values(c, totals[i], 0, "gradients_add");
    check_free(c);
}

// --- checks of all operations in several shapes -------------------------------------------------------------
// Checks QK norm of 400 heads, for which a thread block of the forward kernel needs more than 48 KiB of shared memory.
static void check_many_heads(Check *c) {
    const AttentionShape shape = {1, 3, 200, 200, 72, false};
    CheckPair qkv = check_random(c, 3, 3 * 200 * 72, FMT_BF16, 0, 1),
              weight = check_random(c, 1, 72, FMT_BF16, 1, 0.3f);
    CheckPair rope_table = check_random(c, 3, 72, FMT_FP32, 0, 0.7f), out = check_plain(c, 3, 3 * 200 * 72, FMT_BF16);
    snprintf(c->shape, sizeof c->shape, "400 heads of width 72");
    CHECK_BOTH(
        c, qk_norm_rope_forward,
        (e, SIDE(out), SIDE(qkv), QkRope{shape, Tensor{}, SIDE(rope_table), SIDE(weight), SIDE(weight), 1e-5f, 0.0f}));
    check_values(c, out, 2e-3, "qk_norm_rope_forward");
    check_free(c);
}

static void check_shapes(Check *c, const CheckShape *shapes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const CheckShape s = shapes[i];
        snprintf(c->shape, sizeof c->shape, "B %d, T %d, C %d", s.B, s.T, s.C);
        check_norm(c, s, false);
        check_norm(c, s, true);
        check_postnorm_residual(c, s, false);
        check_postnorm_residual(c, s, true);
        check_gelu(c, s, ACT_GELU_TANH);
        check_gelu(c, s, ACT_GELU_QUICK);
        check_gelu(c, s, ACT_GELU_ERF);
        check_embedding(c, s);
    }
}

// Checks every kernel at a width with vector loads and at a width without, and with enough rows that persistent thread
// blocks process several groups of rows.
static void check_small(Check *c) {
    static const CheckShape shapes[] = {
        {3, 5, 64, FMT_BF16},   {1, 7, 512, FMT_BF16},  {3, 3, 768, FMT_BF16},  {1, 5, 1000, FMT_BF16},
        {1, 9, 1600, FMT_BF16}, {1, 3, 4096, FMT_BF16}, {1, 5, 8192, FMT_BF16}, {1, 3, 8200, FMT_BF16},
        {3, 3, 772, FMT_BF16},  {3, 5, 64, FMT_FP32},   {1, 7, 512, FMT_FP32},  {3, 3, 768, FMT_FP32},
        {1, 5, 1000, FMT_FP32}, {1, 9, 1600, FMT_FP32}, {1, 3, 2056, FMT_FP32}, {1, 5, 4104, FMT_FP32},
        {1, 3, 8200, FMT_FP32}, {3, 3, 771, FMT_FP32},  {1, 1, 8, FMT_FP32},    {3, 1021, 1032, FMT_BF16},
    };
    check_shapes(c, shapes, sizeof shapes / sizeof shapes[0]);
    check_loss(c, 11, 257, 384, FMT_BF16);
    check_loss(c, 11, 257, 259, FMT_BF16);
    check_loss(c, 3, 130000, 130048, FMT_BF16); // a row exceeds a thread block's shared memory
    check_loss(c, 7, 257, 384, FMT_FP32);
    check_loss(c, 7, 257, 259, FMT_FP32);
    check_loss(c, 3, 60000, 60032, FMT_FP32);
    check_sums(c);
    check_many_heads(c);
    check_optimizer(c, FMT_BF16, FMT_FP32, FMT_BF16);
    check_optimizer(c, FMT_BF16, FMT_U16, FMT_BF16);
    check_optimizer(c, FMT_BF16, FMT_U16, FMT_FP32);
    check_optimizer(c, FMT_FP32, FMT_NONE, FMT_FP32);
}

static void check_large(Check *c) {
    static const CheckShape shapes[] = {
        {3, 77, 768, FMT_BF16},   {1, 131, 1600, FMT_BF16}, {2, 61, 2048, FMT_BF16},   {1, 45, 1608, FMT_BF16},
        {3, 33, 772, FMT_BF16},   {1, 19, 4104, FMT_BF16},  {1, 9, 8192, FMT_BF16},    {1, 7, 8200, FMT_BF16},
        {5, 401, 64, FMT_BF16},   {3, 77, 768, FMT_FP32},   {1, 45, 1600, FMT_FP32},   {1, 21, 2056, FMT_FP32},
        {1, 7, 4104, FMT_FP32},   {3, 33, 771, FMT_FP32},   {5, 1021, 1600, FMT_BF16}, {7, 1019, 768, FMT_BF16},
        {3, 901, 1048, FMT_FP32},
    };
    check_shapes(c, shapes, sizeof shapes / sizeof shapes[0]);
    // On Hopper, clusters of 2, 4 and 8 thread blocks share the rows of logits of the next three widths. With 2, a
    // cluster processes several rows.
    check_loss(c, 700, 50257, 50304, FMT_BF16);
    check_loss(c, 5, 100277, 100352, FMT_BF16);
    check_loss(c, 150, 151643, 151936, FMT_BF16);
    check_loss(c, 300, 257, 384, FMT_BF16);
    check_loss(c, 9, 50257, 50304, FMT_FP32);
    check_loss(c, 5, 100000, 100096, FMT_FP32);
}

int check_kernels(bool small) {
    static Check check; // static because a Check is too large for the stack
    Check *c = &check;
    bench_configure(&c->bench.config, 64, 8200, 8200); // plans the workspace for the largest shape
    check_open(c);
    check_small(c);
    if (!small) check_large(c);
    check_close(c);
    return check_report("memory-bound operations", c->checks, c->failures);
}
