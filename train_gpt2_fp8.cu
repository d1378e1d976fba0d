/*
COAT in C and CUDA: trains GPT models with FP8 optimizer states and FP8 saved activations.

This file is the program and reads from top to bottom: the model's forward, backward and update, and main(). The model
is written once against coat/operations.h, which both backends implement (coat/cpu, coat/cuda). In coat/model, tensors.c
is the table of tensors, tensor_layouts.c derives their formats, and arena.c is the memory plan. coat/run/run.c is the
training loop.

It compiles as CUDA C with both backends (train_gpt2_fp8), and as plain C with the CPU backend (train_gpt2_fp8_cpu).
Shapes in comments: M = B * T tokens of a micro-batch, C channels, F width of the MLP.
*/
#include "coat/config/vision.h"
#include "coat/flags/config_check.h"
#include "coat/flags/config_parse.h"
#include "coat/log/terminal.h"
#include "coat/model/model.h"
#include "coat/model/plan.h"
#include "coat/model/weights.h"
#include "coat/run/health.h"
#include "coat/save/hf.h"

// ---------------------------------------------------------------------------------------------------------------
// Helper functions of the model: norms, views of tensors, and the start of a sublayer

static Norm norm(const Model *m, TensorId x, TensorId mean, TensorId rstd, TensorId w, TensorId b, int layer) {
    Norm n;
    n.x = act(m, x, layer);
    n.mean = act(m, mean, layer);
    n.rstd = act(m, rstd, layer);
    n.weight = param(m, w, layer);
    n.bias = param(m, b, layer);
    n.eps = m->config->shape.norm_eps;
    n.from_saved = recipe_is_paper(&m->config->recipe);
    return n;
}

// Return a norm of block l: first_norm() that of the attention sublayer, second_norm() that of the MLP sublayer.
static Norm first_norm(const Model *m, int l) {
    return norm(m, X_IN, MEAN1, RSTD1, LN1W, LN1B, l);
}
static Norm second_norm(const Model *m, int l) {
    return norm(m, X_MID, MEAN2, RSTD2, LN2W, LN2B, l);
}

// Returns the tensor that contains each token's position within its document. data is NULL without document masking.
static Tensor positions(const Model *m) {
    return m->masks_documents ? act(m, POSITIONS, 0) : no_tensor();
}

// Returns the rows of `table`, which has one row per position, for the m->T tokens of a pass. The first token has
// position cached_tokens, because the KV cache contains the tokens before it.
static Tensor of_positions(const Model *m, Tensor table, int cached_tokens) {
    return tensor_rows(table, cached_tokens, m->T);
}

// t: keys or values of this pass, in the KV cache. Returns these rows and the cached_tokens rows that precede them.
static Tensor with_cached_rows(Tensor t, int cached_tokens) {
    return tensor_rows(t, -cached_tokens, cached_tokens + t.rows);
}

// Operands of attention in one block; q, k and v are column ranges of the qkv matmul's output.
typedef struct {
    AttentionShape shape;
    Tensor q, k, v, lse;
} Attention;

static void split_qkv(const ModelShape *s, Tensor packed, Tensor *q, Tensor *k, Tensor *v) {
    int64_t nq = (int64_t)s->heads * s->head_dim, nk = (int64_t)s->kv_heads * s->head_dim;
    *q = tensor_cols(packed, 0, nq);
    *k = tensor_cols(packed, nq, nk);
    *v = tensor_cols(packed, nq + nk, nk);
}

// Returns the parameters of clipping, QK-norm and RoPE for the q and k of a block. GPT-2 uses none of these operations.
static QkRope qk_rope(const Model *m, int layer, int cached_tokens) {
    QkRope h;
    h.shape = attention_shape(&m->config->shape, m->B, m->T);
    h.positions = positions(m);
    h.rope_table = of_positions(m, arena_tensor(&m->arena, ROPE_TABLE, VALUE, 0), cached_tokens);
    h.q_weight = param(m, QNORMW, layer);
    h.k_weight = param(m, KNORMW, layer);
    h.eps = m->config->shape.norm_eps;
    h.clip = m->config->shape.clip_qkv;
    return h;
}

// Chooses the operation that runs RoPE's backward, and returns the RoPE table for attention_backward():
//   Without QK-norm, attention_backward() runs it. Removes the table from h and returns the table.
//   With QK-norm, qk_norm_rope_backward() runs it, and passes its result unrounded to the norm's backward. Leaves the
//   table in h and returns no_tensor().
static Tensor detach_rope(QkRope *h) {
    const Tensor rope_table = h->rope_table;
    if (h->q_weight.data) return no_tensor();
    h->rope_table = no_tensor();
    return rope_table;
}

static Attention attention(const Model *m, Tensor qkv, int layer, int cached_tokens) {
    const ModelShape *s = &m->config->shape;
    Attention a;
    a.shape = attention_shape(s, m->B, m->T);
    split_qkv(s, qkv, &a.q, &a.k, &a.v);
    a.k = with_cached_rows(a.k, cached_tokens);
    a.v = with_cached_rows(a.v, cached_tokens);
    a.lse = arena_tensor(&m->arena, LSE, VALUE, layer);
    a.lse.rows = (int64_t)m->B * s->heads;
    a.lse.cols = a.lse.stride = m->T;
    return a;
}

// True if the fc matmul adds its bias. False if the matmul's output is quantized, because the quantization kernel then
// adds the bias.
static bool bias_in_fc_matmul(const Model *m) {
    return !format_is_fp8(act(m, H, 0).format);
}

// Begins a sublayer: adds the previous sublayer's output y to the residual stream r_in, which gives r_out, and computes
// n, the input of this sublayer's first matmul. Pre-norm: r_out = r_in + y, n = pre(r_out), `pre` being this sublayer's
// norm. Post-norm (OLMo 2): n = r_out = r_in + post(y), `post` being the previous sublayer's norm.
static void sublayer_input(Model *m, Tensor n, Norm pre, Norm post, Tensor r_out, Tensor r_in, Tensor y,
                           Tensor y_bias) {
    if (m->config->shape.norm_place == NORM_POST)
        m->ops->postnorm_residual_forward(&m->exec, n, post, r_out, r_in, y);
    else
        m->ops->residual_norm_forward(&m->exec, n, pre, r_out, r_in, y, y_bias);
}

// For FP8 health, counts the FP8 values of t, a gradient or norm output that matmuls read. If the transpose has a
// separate scale, also counts the transpose's FP8 values. Does nothing unless m->counts_codes is true.
static void count_codes(Model *m, CountedTensor what, int layer, Tensor t, Tensor transpose) {
    if (!m->counts_codes || !format_is_fp8(t.format)) return;
    CodeCounts *counts = (CodeCounts *)arena_tensor(&m->arena, CODE_COUNTS, VALUE, 0).data;
    counts += code_counts_at(what, layer);
    m->ops->codes_count(&m->exec, t, counts);
    if (transpose.scale != t.scale) m->ops->codes_count(&m->exec, transpose, counts + 1);
}

// ---------------------------------------------------------------------------------------------------------------
// Forward pass of the language model and of the blocks

// Computes block l except its last matmul, fcproj. With pre-norm, a block is r + proj(attention(norm(r))), then r +
// fcproj(gelu(fc(norm(r)))); with SwiGLU, fc computes gate and up. A sublayer's output is added to the residual stream
// r by the next sublayer_input(). Therefore r_in is r without the previous block's output y + y_bias; if y.data is
// NULL, nothing is added. Backward also calls block_forward(), to recompute a block (--recompute 3).
static void block_forward(Model *m, int l, Tensor r_in, Tensor y, Tensor y_bias, KvCache cache) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;

    // Attention sublayer, with GPT-2's shapes: norm n1 (M, C), matmul qkv (M, 3C), attention's output o (M, C). The KV
    // cache stores q, k and v after RoPE.
    sublayer_input(m, act(m, N1, l), first_norm(m, l), second_norm(m, l > 0 ? l - 1 : 0), act(m, RESID_IN, l), r_in, y,
                   y_bias);
    count_codes(m, NORM_N1, l, act(m, N1, l), act(m, N1, l));
    Tensor qkv = tensor_rows(act(m, QKV, l), cache.cached_tokens, (int64_t)m->B * m->T);
    Tensor read = cache.uses_kv_cache ? qkv : act(m, QKV_ROPE, l);
    ops->linear_forward(ex, qkv, act(m, N1, l), weight(m, QKVW, l), param(m, QKVB, l));
    ops->qk_norm_rope_forward(ex, read, qkv, qk_rope(m, l, cache.cached_tokens));
    Attention a = attention(m, read, l, cache.cached_tokens);
    ops->attention_forward(ex, act(m, O, l), a.lse, a.q, a.k, a.v, positions(m), a.shape);
    ops->quantize_forward(ex, act(m, OQ, l), act(m, O, l));
    ops->linear_forward(ex, act(m, Y_PROJ, l), act(m, OQ, l), weight(m, PROJW, l), no_tensor());

    // MLP sublayer: norm n2 (M, C), the fc matmul's output h (M, F; 2F columns with SwiGLU), and the activation
    // function's output g (M, F).
    bool in_matmul = bias_in_fc_matmul(m);
    Tensor bias = param(m, FCB, l);
    sublayer_input(m, act(m, N2, l), second_norm(m, l), first_norm(m, l), act(m, RESID_MID, l), act(m, RESID_IN, l),
                   act(m, Y_PROJ, l), param(m, PROJB, l));
    count_codes(m, NORM_N2, l, act(m, N2, l), act(m, N2, l));
    ops->linear_forward(ex, act(m, Y_FC, l), act(m, N2, l), weight(m, FCW, l), in_matmul ? bias : no_tensor());
    ops->activation_forward(ex, act(m, G, l), act(m, H, l), act(m, Y_FC, l), in_matmul ? no_tensor() : bias,
                            recipe_is_paper(&m->config->recipe), m->config->shape.activation);
    if (m->counts_codes) {
        Outliers *found = (Outliers *)arena_tensor(&m->arena, OUTLIERS, VALUE, 0).data + l;
        ops->outliers(ex, act(m, G, l), no_tensor(), found);
    }
}

// Computes the last matmul of block l: y = fcproj(g). The caller must add y to the residual stream.
static void block_output(Model *m, int l) {
    m->ops->linear_forward(&m->exec, act(m, Y, l), act(m, G, l), weight(m, FCPROJW, l), no_tensor());
}

// The residual stream as an unevaluated sum stream + y + y_bias. If y.data is NULL, the sum is stream alone.
typedef struct {
    Tensor stream, y, y_bias;
} Residual;

// Computes all blocks from r, the residual stream before the first block. Returns the residual stream after the last
// block.
static Residual blocks_forward(Model *m, Tensor r, KvCache cache) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int L = m->config->shape.layers;
    Residual x = {r, no_tensor(), no_tensor()};
    for (int l = 0; l < L; l++) {
        ops->range_push(ex, "block forward");
        shards_weights_needed(&m->shards, l, l + 1 < L ? l + 1 : -1, false);
        block_forward(m, l, x.stream, x.y, x.y_bias, cache);
        block_output(m, l);
        ops->range_pop(ex);
        x.stream = act(m, RESID_MID, l);
        x.y = act(m, Y, l);
        x.y_bias = param(m, FCPROJB, l);
    }
    return x;
}

// Computes NF (M, C), the final norm of the residual stream, from the uploaded tokens and the image features.
void model_forward(Model *m, KvCache cache) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int L = m->config->shape.layers;
    Tensor r = act(m, RESID_IN, 0), wpe = of_positions(m, param(m, WPE, 0), cache.cached_tokens);
    shards_pass_begin(&m->shards);
    ops->embed_forward(ex, r, act(m, TOKENS, 0), positions(m), param(m, WTE, 0), wpe, m->T);
    if (m->vision)
        ops->rows_gather(ex, r, arena_tensor(&m->vision->arena, FEATURES, VALUE, 0), act(m, IMAGE_ROWS, 0), true);
    Residual x = blocks_forward(m, r, cache);
    Tensor last = act(m, RESID_FINAL, 0);
    if (m->config->shape.norm_place == NORM_POST) {
        ops->postnorm_residual_forward(ex, no_tensor(), second_norm(m, L - 1), last, x.stream, x.y);
        x = (Residual){last, no_tensor(), no_tensor()};
    }
    ops->residual_norm_forward(ex, act(m, NF, 0), norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0), last, x.stream, x.y,
                               x.y_bias);
    count_codes(m, NORM_NF, 0, act(m, NF, 0), act(m, NF, 0));
}

// Computes the output head and the loss in chunks of tokens, because the logits of all tokens need much memory. Adds
// the losses' sum times the step's loss scale to m->state->loss_sum. If `backward`, also computes DN (M, C), the
// gradient of the final norm's output NF, and the head's wgrad. dlogits overwrites a chunk's logits, unless dlogits is
// FP8.
void model_loss(Model *m, bool backward, bool accumulate) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int64_t tokens = (int64_t)m->B * m->T, chunk = m->arena.layout[LOGITS][VALUE].rows;
    const TensorId head_id = head_weight(&m->config->shape);
    Weight head = weight(m, head_id, 0);
    Tensor nf = act(m, NF, 0), nf_t = act(m, NF_T, 0);
    ops->range_push(ex, "head and loss");
    if (backward) ops->norm_recompute(ex, nf_t, nf, norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0));
    for (int64_t begin = 0; begin < tokens; begin += chunk) {
        int64_t count = tokens - begin < chunk ? tokens - begin : chunk;
        Tensor logits = tensor_rows(act(m, LOGITS, 0), 0, count);
        Tensor dlogits = tensor_rows(act(m, DLOGITS_Q, 0), 0, count);
        Tensor dlogits_t = tensor_rows(act(m, DLOGITS_QT, 0), 0, count);
        ops->linear_forward(ex, logits, tensor_rows(nf, begin, count), head, no_tensor());
        ops->loss_forward_backward(
            ex, backward ? dlogits : no_tensor(), dlogits_t, tensor_rows(act(m, LOSSES, 0), begin, count),
            tensor_rows(backward ? no_tensor() : act(m, BEST, 0), begin, count), logits,
            tensor_rows(act(m, TARGETS, 0), begin, count), begin, m->config->shape.vocab, m->state);
        if (!backward) continue;
        count_codes(m, GRADIENT_DLOGITS, 0, tensor_cols(dlogits, 0, m->config->shape.vocab), dlogits_t);
        ops->linear_backward_data(ex, tensor_rows(act(m, DN, 0), begin, count), dlogits, head);
        ops->linear_backward_weight(ex, grad(m, head_id, 0), dlogits_t, tensor_rows(nf_t, begin, count),
                                    accumulate || begin > 0);
    }
    ops->loss_sum(ex, act(m, LOSSES, 0), m->state);
    ops->range_pop(ex);
}

// ---------------------------------------------------------------------------------------------------------------
// Backward pass of the language model and of the blocks

// Compares dw, the FP8 wgrad of qkv in this micro-batch, with a BF16 wgrad (--health-products). The BF16 wgrad is
// computed from dqkv before quantization and a recomputed n1. Overwrites DN with n1.
static void compare_matmul(Model *m, int l, Tensor dw, Tensor dqkv, Norm input) {
    Exec *ex = &m->exec;
    Tensor reference = arena_tensor(&m->arena, QKVW_REFERENCE, VALUE, 0), n1 = act(m, DN, 0);
    InnerProducts *found = (InnerProducts *)arena_tensor(&m->arena, INNER_PRODUCTS, VALUE, 0).data;
    ex->trains = false; // checkpoints must record only the GEMM algorithms of training's own matmuls
    // With post-norm, the input n1 of qkv is the residual stream itself, not a norm's output.
    const bool post = m->config->shape.norm_place == NORM_POST;
    m->ops->norm_recompute(ex, n1, post ? saved(m, N1, l) : no_tensor(), input);
    m->ops->linear_backward_weight(ex, reference, dqkv, n1, false);
    ex->trains = true;
    m->ops->inner_products(ex, dw, reference, found + l);
}

// Returns the input of a matmul as wgrad reads it: the saved tensor, or a tensor recomputed from saved activations.
static Tensor recomputed_input(Model *m, TensorId x_t, int l) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    Tensor t = act(m, x_t, l);
    switch (x_t) {
    case N1_T: ops->norm_recompute(ex, t, saved(m, N1, l), first_norm(m, l)); break;
    case O_T: ops->quantize_recompute(ex, t, act(m, OQ, l), saved(m, O, l)); break;
    case N2_T: ops->norm_recompute(ex, t, saved(m, N2, l), second_norm(m, l)); break;
    case G_T: ops->activation_recompute(ex, t, saved(m, G, l), saved(m, H, l), m->config->shape.activation); break;
    default: fatal(EXIT_DEVICE, "internal error: tensor %d is not the input of a matmul", (int)x_t);
    }
    return t;
}

// Returns q, k and v as attention reads them: the saved tensors, or tensors recomputed from the qkv matmul's output.
static Tensor recomputed_qkv_rope(Model *m, int l) {
    Tensor qkv = act(m, QKV, l), recomputed = act(m, QKV_ROPE_RECOMPUTED, l);
    if (recomputed.data != qkv.data) m->ops->qk_norm_rope_forward(&m->exec, recomputed, qkv, qk_rope(m, l, 0));
    return recomputed;
}

// Computes dgrad of y = x w^T: dx = dy_q w. dy_qt, the transpose of dy for wgrad, is only read to count its FP8 values.
static void matmul_backward_data(Model *m, int l, Tensor dx, TensorId w, Tensor dy_q, Tensor dy_qt,
                                 CountedTensor gradient) {
    count_codes(m, gradient, l, dy_q, dy_qt);
    m->ops->linear_backward_data(&m->exec, dx, dy_q, weight(m, w, l));
}

// Computes dgrad and wgrad of y = x w^T: dx = dy_q w, and the gradient of w from dy_qt and recomputed_input(). Computes
// no wgrad if w is frozen.
static void matmul_backward(Model *m, int l, Tensor dx, TensorId w, TensorId x_t, Tensor dy_q, Tensor dy_qt,
                            CountedTensor gradient, bool accumulate) {
    matmul_backward_data(m, l, dx, w, dy_q, dy_qt, gradient);
    Tensor dw = grad(m, w, l);
    if (!dw.data) return;
    m->ops->linear_backward_weight(&m->exec, dw, dy_qt, recomputed_input(m, x_t, l), accumulate);
}

// Begins a sublayer's backward and returns the gradient of the sublayer's output. With post-norm, runs the backward of
// norm n, whose parameters are w and b.
static Tensor sublayer_backward_begin(Model *m, int l, TensorId w, TensorId b, Norm n, bool accumulate) {
    Tensor dsublayer = act(m, DSUBLAYER, l);
    if (m->config->shape.norm_place == NORM_POST)
        m->ops->norm_backward(&m->exec, dsublayer, grad(m, w, l), grad(m, b, l), act(m, DRESID, l), n, false,
                              accumulate);
    return dsublayer;
}

// Ends a sublayer's backward: adds dn, the gradient of the input of the sublayer's first matmul, to the residual
// stream's gradient. With pre-norm, first runs the backward of norm n, whose parameters are w and b, on dn.
static void sublayer_backward_end(Model *m, int l, TensorId w, TensorId b, Tensor dn, Norm n, bool accumulate) {
    Tensor dresid = act(m, DRESID, l);
    if (m->config->shape.norm_place == NORM_POST)
        m->ops->residual_backward(&m->exec, dresid, dn);
    else
        m->ops->norm_backward(&m->exec, dresid, grad(m, w, l), grad(m, b, l), dn, n, true, accumulate);
}

// Computes the backward of block l. DRESID (M, C) is the residual stream's gradient: after the block on entry, before
// the block on return.
static void block_backward(Model *m, int l, bool accumulate) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    Tensor dresid_q = act(m, DRESID_Q, l), dresid_qt = act(m, DRESID_QT, l);
    Tensor dn = act(m, DN, 0), dn2 = act(m, DN2, l);

    // Backward of the MLP sublayer.
    Tensor dg = act(m, DG, 0), dh_q = act(m, DH_Q, l), dh_qt = act(m, DH_QT, l);
    Tensor dsublayer = sublayer_backward_begin(m, l, LN2W, LN2B, second_norm(m, l), accumulate);
    ops->grad_quantize(ex, dresid_q, dresid_qt, grad(m, FCPROJB, l), dsublayer, accumulate);
    if (config_bounds_activation(m->config)) {
        Tensor g_t = act(m, G_T, l), h = saved(m, H, l);
        matmul_backward_data(m, l, dg, FCPROJW, dresid_q, dresid_qt, GRADIENT_DRESID_FCPROJ);
        ops->activation_bound(ex, dh_q, dresid_q, weight(m, FCPROJW, l), h, m->config->shape.activation);
        ops->activation_backward_recompute(ex, dh_q, dh_qt, grad(m, FCB, l), g_t, saved(m, G, l), dg, h, accumulate,
                                           m->config->shape.activation);
        ops->linear_backward_weight(ex, grad(m, FCPROJW, l), dresid_qt, g_t, accumulate);
    } else {
        matmul_backward(m, l, dg, FCPROJW, G_T, dresid_q, dresid_qt, GRADIENT_DRESID_FCPROJ, accumulate);
        ops->activation_backward(ex, dh_q, dh_qt, grad(m, FCB, l), dg, saved(m, H, l), accumulate,
                                 m->config->shape.activation);
    }
    matmul_backward(m, l, dn2, FCW, N2_T, dh_q, dh_qt, GRADIENT_DH, accumulate);
    sublayer_backward_end(m, l, LN2W, LN2B, dn2, second_norm(m, l), accumulate);

    // Backward of the attention sublayer.
    Tensor d_o = act(m, DO, 0), dqkv = act(m, DQKV, l), dqkv_q = act(m, DQKV_Q, l), dqkv_qt = act(m, DQKV_QT, l);
    dsublayer = sublayer_backward_begin(m, l, LN1W, LN1B, first_norm(m, l), accumulate);
    ops->grad_quantize(ex, dresid_q, dresid_qt, grad(m, PROJB, l), dsublayer, accumulate);
    matmul_backward(m, l, d_o, PROJW, O_T, dresid_q, dresid_qt, GRADIENT_DRESID_PROJ, accumulate);
    Attention a = attention(m, recomputed_qkv_rope(m, l), l, 0);
    Tensor dq, dk, dv;
    split_qkv(&m->config->shape, dqkv, &dq, &dk, &dv);
    QkRope h = qk_rope(m, l, 0);
    const Tensor rope_table = detach_rope(&h);
    if (qk_norm_rope_active(&h)) dq.amax = NULL; // qk_norm_rope_backward() writes the amaxes later
    ops->attention_backward(ex, dq, dk, dv, d_o, saved(m, O, l), a.lse, a.q, a.k, a.v, positions(m), rope_table,
                            a.shape);
    ops->qk_norm_rope_backward(ex, dqkv, grad(m, QNORMW, l), grad(m, KNORMW, l), act(m, QKV, l), h, accumulate);
    ops->grad_quantize(ex, dqkv_q, dqkv_qt, grad(m, QKVB, l), dqkv, accumulate);
    matmul_backward(m, l, dn, QKVW, N1_T, dqkv_q, dqkv_qt, GRADIENT_DQKV, accumulate);
    sublayer_backward_end(m, l, LN1W, LN1B, dn, first_norm(m, l), accumulate);
    if (m->compares_matmuls) compare_matmul(m, l, grad(m, QKVW, l), dqkv, first_norm(m, l));
}

// With --recompute 3, recomputes the activations that block l saves for backward from the residual stream before the
// block, with identical bits. Does nothing for the last block, whose activations are still in memory. With post-norm,
// also recomputes the norm of the MLP's output, because forward computes this norm in the next block's first operation.
static void block_recompute(Model *m, int l) {
    if (!config_recomputes_blocks(m->config) || l + 1 == m->config->shape.layers) return;
    shards_weights_needed(&m->shards, l, -1, false);
    const bool counts_codes = m->counts_codes;
    m->counts_codes = false; // because forward has already counted the FP8 values
    block_forward(m, l, act(m, RESID_IN, l), no_tensor(), no_tensor(), NO_KV_CACHE);
    m->counts_codes = counts_codes;
    if (m->config->shape.norm_place != NORM_POST) return;
    block_output(m, l);
    m->ops->postnorm_residual_forward(&m->exec, no_tensor(), second_norm(m, l), act(m, RESID_IN, l + 1),
                                      act(m, RESID_MID, l), act(m, Y, l));
}

// Computes the backward of all blocks. Turns DRESID from the residual stream's gradient after the last block into the
// gradient before the first block. Sums each block's gradients over the processes, at the latest in the step's last
// micro-batch (`last`).
static void blocks_backward(Model *m, bool accumulate, bool last) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    for (int l = m->config->shape.layers - 1; l >= 0; l--) {
        ops->range_push(ex, "block backward");
        block_recompute(m, l);
        shards_weights_needed(&m->shards, l, l - 1, true);
        shards_gradients_begin(&m->shards, l);
        block_backward(m, l, shards_accumulate(&m->shards, accumulate));
        shards_gradients_ready(&m->shards, l, accumulate, last);
        ops->range_pop(ex);
    }
}

static bool trains_part(const Model *m, int part) {
    return !(m->config->freeze & part);
}

// Moves the image rows of dresid, the residual stream's gradient, to DFEATURES, and sets these rows of dresid to 0.
static void image_rows_backward(Model *m, Tensor dresid) {
    const Arena *vision = &m->vision->arena;
    m->ops->rows_gather(&m->exec, arena_tensor(vision, DFEATURES, VALUE, 0), dresid,
                        arena_tensor(vision, FEATURE_ROWS, VALUE, 0), false);
    m->ops->rows_gather(&m->exec, dresid, no_tensor(), act(m, IMAGE_ROWS, 0), true);
}

// Runs backward from DN, the gradient of the final norm's output, to the embedding. Writes the gradients of all
// parameters that are not frozen or, if `accumulate`, adds to them. model_loss() has already computed the head's
// gradient; if the head is tied, adds the embedding's gradient to the head's. last: true in the step's last
// micro-batch.
static void model_backward(Model *m, bool accumulate, bool last) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    Tensor dresid = act(m, DRESID, m->config->shape.layers - 1);
    ops->norm_backward(ex, dresid, grad(m, LNFW, 0), grad(m, LNFB, 0), act(m, DN, 0),
                       norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0), false, accumulate);
    blocks_backward(m, accumulate, last);
    if (m->vision) image_rows_backward(m, dresid);
    Tensor dwte = grad(m, WTE, 0);
    if (!m->config->shape.tied_head && !accumulate) // a tied head's backward has overwritten dwte
        ops->zero(ex, dwte.data, (size_t)tensor_elements(dwte) * format_bytes(dwte.format));
    ops->embed_backward(ex, dwte, grad(m, WPE, 0), dresid, act(m, TOKENS, 0), positions(m), m->T, accumulate);
    shards_pass_end(&m->shards, last);
}

// ---------------------------------------------------------------------------------------------------------------
// Vision tower and projector; v is the model of both, v->B the number of images, v->T the tower's rows per image

// Returns the rows of tensor `id` that belong to the images of this pass. Each image has the same number of rows.
static Tensor of_images(const Model *v, TensorId id) {
    Tensor t = arena_tensor(&v->arena, id, VALUE, 0);
    t.rows = t.rows / v->config->micro_batch * v->B;
    return t;
}

// Returns a view of t, the projector's input, with one row per row of the tower's output. A row of t consists of
// vision_merged() rows of the tower's output, side by side.
static Tensor tower_rows(const Model *v, Tensor t) {
    t.rows *= vision_merged(&v->config->shape.vision);
    t.cols = t.stride = v->config->shape.channels;
    return t;
}

// Return a norm: pre_norm() the norm before the tower's first block (CLIP), projector_norm() the norm before the
// projector (PROJECTOR_DOWNSAMPLE).
static Norm pre_norm(const Model *v) {
    return norm(v, X_PRE, MEANP, RSTDP, LNPREW, LNPREB, 0);
}
static Norm projector_norm(const Model *v) {
    Norm n = norm(v, MERGED, MEANPROJ, RSTDPROJ, LNPROJW, LNPROJB, 0);
    n.x = of_images(v, MERGED);
    n.mean = of_images(v, MEANPROJ);
    n.rstd = of_images(v, RSTDPROJ);
    n.eps = 1e-5f;
    return n;
}

static bool projector_has_norm(const Model *v) {
    return v->config->shape.vision.projector == PROJECTOR_DOWNSAMPLE;
}

// Computes the projector's output proj2(gelu(proj1(x))) from the projector's input x. PROJECTOR_DOWNSAMPLE first
// applies a norm to x.
static void projector_forward(Model *v) {
    const Ops *ops = v->ops;
    Exec *ex = &v->exec;
    Tensor x = of_images(v, MERGED), h = of_images(v, PROJ_H), g = of_images(v, PROJ_G);
    if (projector_has_norm(v)) {
        ops->residual_norm_forward(ex, of_images(v, PROJ_IN), projector_norm(v), x, x, no_tensor(), no_tensor());
        x = of_images(v, PROJ_IN);
    }
    ops->linear_forward(ex, h, x, weight(v, PROJ1W, 0), param(v, PROJ1B, 0));
    ops->activation_forward(ex, g, h, h, no_tensor(), true, ACT_GELU_ERF);
    ops->linear_forward(ex, of_images(v, FEATURES), g, weight(v, PROJ2W, 0), param(v, PROJ2B, 0));
}

static void tower_forward(Model *v) {
    const Ops *ops = v->ops;
    const VisionShape *s = &v->config->shape.vision;
    Exec *ex = &v->exec;
    Tensor patches = act(v, PATCHES, 0), r = act(v, RESID_IN, 0),
           embedded = s->kind == VISION_CLIP ? act(v, X_PRE, 0) : r;
    shards_pass_begin(&v->shards);
    ops->patches_forward(ex, patches, of_images(v, PIXELS), arena_tensor(&v->arena, PIXEL_VALUES, VALUE, 0),
                         s->image_size, s->patch_size, v->T);
    ops->linear_forward(ex, embedded, patches, weight(v, PATCHW, 0), param(v, PATCHB, 0));
    ops->image_embed_forward(ex, embedded, embedded, param(v, CLS, 0), param(v, WPE, 0), v->T);
    if (s->kind == VISION_CLIP)
        ops->residual_norm_forward(ex, r, pre_norm(v), embedded, embedded, no_tensor(), no_tensor());
    Residual x = blocks_forward(v, r, NO_KV_CACHE);
    Norm none;
    memset(&none, 0, sizeof none);
    ops->residual_norm_forward(ex, no_tensor(), none, act(v, TOWER_OUT, 0), x.stream, x.y, x.y_bias);
}

void vision_forward(Model *m) {
    Model *v = m->vision;
    if (!v) return;
    tower_forward(v);
    v->ops->rows_gather(&v->exec, tower_rows(v, of_images(v, MERGED)), act(v, TOWER_OUT, 0), of_images(v, SELECT),
                        false);
    projector_forward(v);
}

// Runs the projector's backward from DFEATURES and returns the gradient of the projector's input.
static Tensor projector_backward(Model *v, bool accumulate) {
    const Ops *ops = v->ops;
    Exec *ex = &v->exec;
    Tensor d = of_images(v, DFEATURES), dh = of_images(v, DPROJ), dx = of_images(v, DPROJ_IN);
    ops->grad_quantize(ex, d, d, grad(v, PROJ2B, 0), d, accumulate);
    ops->linear_backward_data(ex, dh, d, weight(v, PROJ2W, 0));
    ops->linear_backward_weight(ex, grad(v, PROJ2W, 0), d, of_images(v, PROJ_G), accumulate);
    ops->activation_backward(ex, dh, dh, grad(v, PROJ1B, 0), dh, of_images(v, PROJ_H), accumulate, ACT_GELU_ERF);
    ops->linear_backward_data(ex, dx, dh, weight(v, PROJ1W, 0));
    ops->linear_backward_weight(ex, grad(v, PROJ1W, 0), dh, of_images(v, projector_has_norm(v) ? PROJ_IN : MERGED),
                                accumulate);
    if (!projector_has_norm(v)) return dx;
    Tensor dmerged = of_images(v, DMERGED);
    ops->norm_backward(ex, dmerged, grad(v, LNPROJW, 0), grad(v, LNPROJB, 0), dx, projector_norm(v), false, accumulate);
    return dmerged;
}

// Computes the gradients of the tower's patch, position and class embeddings, and of CLIP's norm after them, from d,
// the residual stream's gradient before the blocks.
static void tower_embed_backward(Model *v, Tensor d, bool accumulate) {
    const Ops *ops = v->ops;
    Exec *ex = &v->exec;
    if (v->config->shape.vision.kind == VISION_CLIP) {
        Tensor dembedded = act(v, DN, 0), class_rows = dembedded;
        ops->norm_backward(ex, dembedded, grad(v, LNPREW, 0), grad(v, LNPREB, 0), d, pre_norm(v), false, accumulate);
        class_rows.rows = v->B;
        class_rows.stride *= v->T;
        ops->grad_quantize(ex, class_rows, class_rows, grad(v, CLS, 0), class_rows, accumulate);
        d = dembedded;
    }
    ops->embed_backward(ex, no_tensor(), grad(v, WPE, 0), d, no_tensor(), no_tensor(), v->T, accumulate);
    ops->grad_quantize(ex, d, d, grad(v, PATCHB, 0), d, accumulate);
    ops->linear_backward_weight(ex, grad(v, PATCHW, 0), d, act(v, PATCHES, 0), accumulate);
}

// Runs the tower's backward from dmerged, the gradient of the projector's input.
static void tower_backward(Model *v, Tensor dmerged, bool accumulate, bool last) {
    Tensor dresid = act(v, DRESID, v->config->shape.layers - 1);
    v->ops->rows_gather(&v->exec, dresid, tower_rows(v, dmerged), act(v, SELECT_BACK, 0), false);
    if (dresid.amax) v->ops->quantize_forward(&v->exec, dresid, dresid); // computes the row amaxes
    blocks_backward(v, accumulate, last);
    tower_embed_backward(v, dresid, accumulate);
}

// Runs the backward of the projector and the vision tower from DFEATURES, the gradient of the projector's output. If
// the tower is frozen, runs only the projector's backward. If tower and projector are frozen, does nothing.
static void vision_backward(Model *m, bool accumulate, bool last) {
    Model *v = m->vision;
    if (!v || !(trains_part(v, PART_VISION) || trains_part(v, PART_PROJECTOR))) return;
    Tensor dmerged = projector_backward(v, accumulate);
    if (trains_part(v, PART_VISION)) tower_backward(v, dmerged, accumulate, last);
    shards_pass_end(&v->shards, last);
}

// ---------------------------------------------------------------------------------------------------------------
// Optimizer step: uploads, micro-batches, outlier check and update

void state_upload(Model *m) {
    m->ops->upload(&m->exec, m->state, &m->host, sizeof m->host);
}
void state_download(Model *m) {
    m->ops->download(&m->exec, &m->host, m->state, sizeof m->host);
}

void batch_upload(Model *m, int B, int T, const int32_t *inputs, const int32_t *targets, const int32_t *positions) {
    m->B = B;
    m->T = T;
    size_t bytes = (size_t)B * (size_t)T * sizeof(int32_t);
    m->ops->upload(&m->exec, act(m, TOKENS, 0).data, inputs, bytes);
    if (targets) m->ops->upload(&m->exec, act(m, TARGETS, 0).data, targets, bytes);
    m->masks_documents = positions != NULL;
    if (positions) m->ops->upload(&m->exec, act(m, POSITIONS, 0).data, positions, bytes);
}

void images_upload(Model *m, int images, const uint8_t *pixels, const int32_t *image_rows) {
    Model *v = m->vision;
    if (!v) return;
    const Tensor bytes = arena_tensor(&v->arena, PIXELS, VALUE, 0),
                 features = arena_tensor(&v->arena, FEATURE_ROWS, VALUE, 0);
    const int64_t tokens = (int64_t)m->B * m->T;
    int32_t *of_tokens = (int32_t *)xmalloc((size_t)tokens * sizeof *of_tokens);
    int32_t *of_features = (int32_t *)xmalloc((size_t)features.rows * sizeof *of_features);
    for (int64_t i = 0; i < features.rows; i++) of_features[i] = -1;
    for (int64_t i = 0; i < tokens; i++) {
        of_tokens[i] = image_rows ? image_rows[i] : -1;
        if (of_tokens[i] >= 0) of_features[of_tokens[i]] = (int32_t)i;
    }
    m->ops->upload(&m->exec, act(m, IMAGE_ROWS, 0).data, of_tokens, (size_t)tokens * sizeof *of_tokens);
    m->ops->upload(&m->exec, features.data, of_features, (size_t)features.rows * sizeof *of_features);
    free(of_features);
    free(of_tokens);
    v->B = vision_pass_images(v->config, images);
    v->T = v->config->seq_len;
    const size_t used = (size_t)images * (size_t)bytes.cols, computed = (size_t)v->B * (size_t)bytes.cols;
    if (images > 0) m->ops->upload(&m->exec, bytes.data, pixels, used);
    if (computed > used) m->ops->zero(&m->exec, (char *)bytes.data + used, computed - used);
}

// Runs forward and backward of the language model for one micro-batch. The operations are the same in every step, so a
// device may record them as a CUDA graph and replay them: recording 0 for the first micro-batch, which overwrites the
// gradients, recording 1 for all others. Passes that communicate or that FP8 health examines are not recorded.
static void text_step(Model *m, bool accumulate, bool last) {
    int recording = accumulate ? 1 : 0;
    bool examined = m->counts_codes || m->compares_matmuls;
    bool record = !examined && shards_recordable(&m->shards, !accumulate, last);
    if (record && m->ops->replay_begin(&m->exec, recording)) return;
    Tensor counts = arena_tensor(&m->arena, CODE_COUNTS, VALUE, 0);
    if (m->counts_codes && counts.data) m->ops->zero(&m->exec, counts.data, (size_t)tensor_elements(counts));
    m->exec.trains = true;
    model_forward(m, NO_KV_CACHE);
    model_loss(m, true, accumulate);
    model_backward(m, accumulate, last);
    m->exec.trains = false;
    m->counts_codes = m->compares_matmuls = false;
    if (record) m->ops->replay_end(&m->exec, recording);
}

// Runs forward and backward of one micro-batch with its images. The vision tower's passes are not recorded, because the
// number of images differs between micro-batches.
void micro_step(Model *m, bool accumulate, bool last) {
    if (m->vision) m->vision->exec.trains = true;
    vision_forward(m);
    text_step(m, accumulate, last);
    vision_backward(m, accumulate, last);
    if (m->vision) m->vision->exec.trains = false;
}

// Writes the inputs of a step to the device: learning rate, loss scale 1 / targets, and the optimizers' coefficients.
void step_begin(Model *m, float lr, int64_t targets) {
    const Config *c = m->config;
    m->host.lr = lr;
    m->host.beta1 = c->beta1;
    m->host.beta2 = c->beta2;
    m->host.eps = c->eps;
    m->host.weight_decay = c->weight_decay;
    m->host.grad_clip = c->grad_clip;
    m->host.momentum = c->muon_momentum;
    m->host.loss_scale = (float)(1.0 / (double)targets);
    m->host.seed = c->seed;
    m->host.loss_sum = 0.0;
    m->host.nonfinite = 0;
    state_upload(m);
}

// Makes the device skip the update if the loss or gradient norm is an outlier (--skip-loss-z, --skip-grad-z). Waits for
// the device, so step_end() calls it only with these flags.
static void step_guard(Model *m) {
    const Config *c = m->config;
    state_download(m);
    if (m->host.nonfinite) return; // the device already skips this update
    if (outlier_should_skip(m->guard, m->host.loss_sum, m->host.grad_norm, c->skip_loss_z, c->skip_grad_z)) {
        m->host.nonfinite = SKIP_OUTLIER;
        state_upload(m);
    } else {
        outlier_record(m->guard, m->host.loss_sum, m->host.grad_norm);
    }
}

// Computes the gradient norm and updates the parameters. The device skips the update if the loss, a gradient or a value
// to quantize was inf or NaN, or if step_guard() finds an outlier. Then reads the state back from the device.
void step_end(Model *m) {
    shards_norm(&m->shards, m->state);
    if (m->guard) step_guard(m);
    m->exec.trains = true;
    shards_update(&m->shards, m->state);
    m->exec.trains = false;
    state_download(m);
}

// ---------------------------------------------------------------------------------------------------------------
// Creation and destruction of a model, and main()

static bool open_device(Model *m, Error *err) {
    const Config *c = m->config;
#ifdef COAT_CUDA
    // If a GPU exists but cannot be used, opening fails, because a run that silently used the CPU would be too slow.
    if (c->device == DEVICE_CUDA || (c->device == DEVICE_AUTO && cuda_present())) {
        m->exec.ops = m->ops = cuda_ops();
        return m->ops->open(&m->exec, c, err);
    }
    if (c->device == DEVICE_AUTO && !c->quiet && m->exec.rank == 0)
        fprintf(stderr, "note: there is no GPU; the run uses the CPU\n");
#else
    if (c->device == DEVICE_CUDA)
        return error_set(err, EXIT_DEVICE, "--device cuda: this program was built without CUDA; use train_gpt2_fp8");
#endif
    m->exec.ops = m->ops = cpu_ops();
    return m->ops->open(&m->exec, c, err);
}

#define ALLOCATION_TIMEOUT_S 600 // timeout in seconds while other ranks page-lock host memory

// Allocates the arena. If the arena needs page-locked host memory, the processes of a machine allocate one after the
// other, so that each process can check how much memory is left.
static bool allocate(Model *m, Error *err) {
    if (!m->arena.host_bytes) return arena_allocate(&m->arena, &m->exec, err);
    comm_set_timeout(m->comm, ALLOCATION_TIMEOUT_S);
    const int64_t barriers = comm_serialize_begin(m->comm, m->exec.local_rank);
    const bool ok = arena_allocate(&m->arena, &m->exec, err);
    comm_serialize_end(m->comm, barriers);
    comm_set_timeout(m->comm, 0);
    return ok;
}

void vision_pixels_set(Model *m, const float mean[3], const float deviation[3]) {
    const Tensor table = arena_tensor(&m->vision->arena, PIXEL_VALUES, VALUE, 0);
    real values[3 * 256];
    // Each operation rounds to FP32, as Hugging Face transformers does, so that both compute the same bits.
    for (int i = 0; i < 3 * 256; i++) {
        const float scaled = (float)((double)(i % 256) * (1.0 / 255.0));
        const float centered = scaled - mean[i / 256];
        values[i] = (real)(centered / deviation[i / 256]);
    }
    m->ops->upload(&m->exec, table.data, values, sizeof values);
}

// Uploads the indices of the tower rows that the projector reads (SELECT), and their inverse (SELECT_BACK).
static void vision_tables_set(Model *v) {
    const VisionShape *shape = &v->config->shape.vision;
    const Tensor select = arena_tensor(&v->arena, SELECT, VALUE, 0),
                 back = arena_tensor(&v->arena, SELECT_BACK, VALUE, 0);
    const int images = v->config->micro_batch, tokens = vision_tokens(shape), rows = (int)select.rows / images;
    int32_t *from = (int32_t *)xmalloc((size_t)select.rows * sizeof *from);
    int32_t *to = (int32_t *)xmalloc((size_t)(images * tokens) * sizeof *to);
    for (int i = 0; i < images; i++) {
        int32_t *f = from + (int64_t)i * rows, *t = to + (int64_t)i * tokens;
        vision_select(shape, f, t);
        for (int j = 0; j < rows; j++) f[j] += f[j] < 0 ? 0 : i * tokens;
        for (int j = 0; j < tokens; j++) t[j] += t[j] < 0 ? 0 : i * rows;
    }
    v->ops->upload(&v->exec, select.data, from, (size_t)select.rows * sizeof *from);
    // SELECT_BACK exists only if the tower is trained.
    if (back.data) v->ops->upload(&v->exec, back.data, to, (size_t)back.rows * sizeof *to);
    free(to);
    free(from);
}

// Creates the vision tower and projector of model m, which share the device, communication, memory and state of m.
static void vision_create(Model *m) {
    if (m->config->shape.vision.kind == VISION_NONE) return;
    Model *v = m->vision = (Model *)xcalloc(1, sizeof *v);
    Config *config = m->vision_config = (Config *)xmalloc(sizeof *config);
    vision_config(config, m->config);
    v->config = config;
    v->exec = m->exec;
    v->ops = m->ops;
    v->comm = m->comm;
    arena_plan(&v->arena, config, m->exec.ranks, m->ops->device);
    arena_join(&v->arena, &m->arena, &v->exec);
    shards_open(&v->shards, &v->arena, &v->exec, m->comm);
    shards_join(&m->shards, &v->shards);
    m->arena.vision = &v->arena;
    vision_tables_set(v);
    float mean[3], deviation[3];
    vision_pixel_defaults(config->shape.vision.kind, mean, deviation);
    vision_pixels_set(m, mean, deviation);
}

static void vision_destroy(Model *m) {
    Model *v = m->vision;
    if (!v) return;
    shards_close(&v->shards);
    free(v);
    free(m->vision_config);
    free(m->sample_image);
    m->vision = NULL;
}

// Opens the device, connects to the other processes, and allocates memory. The caller must initialize the parameters.
bool model_create(Model *m, const Config *config, const CommPlace *place, Error *err) {
    memset(m, 0, sizeof *m);
    m->config = config;
    m->exec.rank = place->rank;
    m->exec.ranks = place->ranks;
    m->exec.local_rank = place->local_rank;
    if (!open_device(m, err)) return false;
    m->comm = comm_open(place, config, &m->exec, err);
    if (!m->comm) return false;
    arena_plan(&m->arena, config, m->exec.ranks, m->ops->device);
    if (!allocate(m, err)) return plan_advise(&m->arena, &m->exec, err);
    m->parameters = (Parameter *)xcalloc((size_t)arena_parameter_count(&m->arena), sizeof(Parameter));
    m->parameter_count = arena_parameters(&m->arena, m->parameters, NULL, NULL);
    shards_open(&m->shards, &m->arena, &m->exec, m->comm);
    m->exec.state = m->state = (StepState *)arena_tensor(&m->arena, STATE, VALUE, 0).data;
    state_upload(m);
    rope_table_set(&m->arena, &m->exec);
    vision_create(m);
    return true;
}

void model_destroy(Model *m) {
    vision_destroy(m);
    shards_close(&m->shards);
    comm_close(m->comm);
    free(m->parameters);
    if (m->ops) arena_release(&m->arena, &m->exec);
    if (m->ops) m->ops->close(&m->exec);
}

#ifndef TESTING // test_gpt2.cu includes the code above

#include "coat/base/clock.h"
#include "coat/base/signals.h"
#include "coat/run/checkpoint_settings.h"
#include "coat/run/report.h"
#include "coat/run/run.h"
#include "coat/save/checkpoint.h"

// Completes the configuration from the model's files, the tokenizer and the machine's GPUs, and then checks it.
static bool complete(Run *run, Config *config, Error *err) {
    const CommPlace *place = &run->place;
    if (!out_check(config, err)) return false;
    if (config->model_from_files && !checkpoint_check_files(config->model, false, err)) return false;
    if (!checkpoint_check_files(config->tokenizer_file, false, err)) return false;
    const VisionShape given = config->shape.vision;
    if (config->shape_files[0] && !model_shape_from_files(config->shape_files, &config->shape, err))
        return !config->model_from_files && checkpoint_unread(config->shape_files, err);
    if (!run_join_vision(config, &given, err)) return false;
    if (!run_open_tokenizer(run, config, err)) return false;
#ifdef COAT_CUDA
    if (!config->plan && config->device != DEVICE_CPU) {
        config->no_gpu = !cuda_present();
        cuda_find_fp8(place->local_rank, place->local_ranks, config->gpu_without_fp8, sizeof config->gpu_without_fp8);
    }
#endif
    if (!config_check(config, config->plan ? config->gpus : place->ranks, err)) return false;
    if (place->rank == 0) print_notes(stderr, config->notes);
    return true;
}

int main(int argc, char **argv) {
    static CommandLine line;
    static Config recorded, config;
    static Run run;
    run.start_ms = now_ms();
    Error err = {EXIT_DONE, "", 0}, why;
    bool exit_now = false;
    on_all_ranks(&run.errors); // all ranks of a host find the same start-up error, so no rank sends it
    bool ok = command_line_read(&line, argc, argv, &exit_now, &err);
    if (!exit_now) signals_fail_writes(); // not with --help: SIGPIPE must end --help silently if its output is closed
    if (ok && !exit_now) {
        // reads the settings that the checkpoint of --resume or --model, or the log in --out, records
        ok = checkpoint_settings(&recorded, &line.flags, &err);
        if (ok)
            ok = config_parse(&config, &line, &recorded, &err);
        else
            arguments_free(&line.args);
    }
    bool found = comm_discover(&line.flags, &run.place, ok ? &err : &why);
    if (ok && !exit_now) {
        ok = found && complete(&run, &config, &err);
        if (ok) ok = config.plan ? report_plan(&config, stdout, &err) : run_main(&run, &config, &err);
    }
    if (ok && (fflush(stdout) != 0 || ferror(stdout)))
        ok = error_set(&err, EXIT_DATA,
                       "standard output could not be written: its reader has ended, or the disk is full");
    if (!ok) report_error_once(&run.errors, run.place.local_rank, &err);
    return ok ? EXIT_DONE : (int)err.code;
}
#endif
