/*
COAT in C and CUDA: pretraining of GPT models with FP8 optimizer states and FP8 saved activations.

This file is the program, to be read from top to bottom: the model's forward, backward and update, written once
against coat/operations.h, and main(). The training loop around them is coat/run/run.c. Which device runs the
operations, in which formats tensors are kept and where they lie in memory is decided one level down: coat/cpu and
coat/cuda hold the operations, coat/model/tensors.c the table of tensors, coat/model/arena.c the memory plan.

It compiles as CUDA C with both backends (train_gpt2_fp8) and as plain C with the CPU's (train_gpt2_fp8_cpu).
Shapes in comments: M = B * T tokens of a micro-batch, C channels, F width of the feed-forward layer.
*/
#include "coat/config/config_check.h"
#include "coat/config/config_parse.h"
#include "coat/log/step_line.h"
#include "coat/model/model.h"
#include "coat/model/plan.h"
#include "coat/model/rotations.h"
#include "coat/model/weights.h"
#include "coat/run/health.h"
#include "coat/save/hf.h"

// ---------------------------------------------------------------------------------------------------------------
// The model

static Norm norm(const Model *m, TensorId x, TensorId mean, TensorId rstd, TensorId w, TensorId b, int layer) {
    Norm n;
    n.x = act(m, x, layer);
    n.mean = act(m, mean, layer);
    n.rstd = act(m, rstd, layer);
    n.weight = param(m, w, layer);
    n.bias = param(m, b, layer);
    n.eps = m->config.shape.norm_eps;
    n.from_saved = m->config.recipe.norm_input == NORM_INPUT_SAVED;
    n.centre = no_tensor();
    return n;
}

// The norms of a block, before attention and before the feed-forward half.
static Norm first_norm(const Model *m, int l) {
    return norm(m, X_IN, MEAN1, RSTD1, LN1W, LN1B, l);
}
static Norm second_norm(const Model *m, int l) {
    return norm(m, X_MID, MEAN2, RSTD2, LN2W, LN2B, l);
}

// Where the documents of this pass begin, and how far into one each token is; data NULL: each sequence is one.
static Tensor positions(const Model *m) {
    return m->apart ? act(m, POSITIONS, 0) : no_tensor();
}

// Of a table of positions, the rows of this pass.
static Tensor of_positions(const Model *m, Tensor table) {
    return tensor_rows(table, m->before, m->T);
}

// Keys or values of this pass with those that the sample's passes before have left.
static Tensor with_rows_before(const Model *m, Tensor t) {
    return tensor_rows(t, -m->before, m->before + t.rows);
}

// The attention of one layer: q, k and v are column ranges of the packed projection, for values and gradients.
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

// What happens to q, k and v before attention; nothing in GPT-2.
static Heads heads(const Model *m, int layer) {
    Heads h;
    h.shape = attention_shape(&m->config.shape, m->B, m->T);
    h.positions = positions(m);
    h.rotations = of_positions(m, arena_tensor(&m->arena, ROTATIONS, VALUE, 0));
    h.q_weight = param(m, QNORMW, layer);
    h.k_weight = param(m, KNORMW, layer);
    h.eps = m->config.shape.norm_eps;
    h.clip = m->config.shape.clip_qkv;
    return h;
}

// The rotation, where backward of attention takes it back: not with norms before it, which want what is not rounded
// yet.
static Tensor take_rotations(Heads *h) {
    const Tensor rotations = h->rotations;
    if (h->q_weight.data) return no_tensor();
    h->rotations = no_tensor();
    return rotations;
}

static Attention attention(const Model *m, Tensor qkv, int layer) {
    const ModelShape *s = &m->config.shape;
    Attention a;
    a.shape = attention_shape(&m->config.shape, m->B, m->T);
    split_qkv(s, qkv, &a.q, &a.k, &a.v);
    a.k = with_rows_before(m, a.k);
    a.v = with_rows_before(m, a.v);
    a.lse = arena_tensor(&m->arena, LSE, VALUE, layer);
    a.lse.rows = (int64_t)m->B * s->heads;
    a.lse.cols = a.lse.stride = m->T;
    return a;
}

// Where h is stored as the product made it, the bias belongs into the product; where h is quantised, the kernel
// that does so adds it on the way.
static bool bias_in_fc_product(const Model *m) {
    return !format_is_fp8(act(m, H, 0).format);
}

// What a half of a block begins with: the residual stream with what the half before it made, y, and what its first
// product reads. That is norm(r + y); or r + norm(y) by the norm of that half, where norms follow it (OLMo 2).
static void half_input(Model *m, Tensor n, Norm before, Norm after, Tensor r_out, Tensor r_in, Tensor y,
                       Tensor y_bias) {
    if (m->config.shape.norm_place == NORM_AFTER)
        m->ops->branch_norm_forward(&m->exec, n, after, r_out, r_in, y);
    else
        m->ops->residual_norm_forward(&m->exec, n, before, r_out, r_in, y, y_bias);
}

// In the first blocks with FP8 products, the first product of a half reads its norm less the mean of each channel: what
// all tokens have in common would cost the codes precision and says nothing. Returns the product's bias, which puts it
// back. `again`, in backward: with the means of the forward pass.
static Tensor centre_norm(Model *m, int l, Norm *n, TensorId centre, TensorId shifted, Tensor r_in, Tensor y,
                          Tensor y_bias, Weight w, Tensor bias, bool again) {
    if (l < config_bf16_blocks(&m->config) || l >= config_centred_blocks(&m->config)) return bias;
    Tensor shifted_bias = arena_tensor(&m->arena, shifted, VALUE, l);
    n->centre = arena_tensor(&m->arena, centre, VALUE, l);
    if (again) return shifted_bias;
    m->ops->norm_centre(&m->exec, n->centre, shifted_bias, *n, r_in, y, y_bias, w, bias);
    return shifted_bias;
}

// Counts the codes of a gradient as products read them, and those of its transpose where that has a format or scale of
// its own. Nothing in passes that FP8 health does not look at.
static void count_codes(Model *m, QuantizedGradient what, int layer, Tensor dy_q, Tensor dy_qt) {
    if (!m->counts_codes || !format_is_fp8(dy_q.format)) return;
    CodeCounts *counts = (CodeCounts *)arena_tensor(&m->arena, CODE_COUNTS, VALUE, 0).data;
    counts += code_counts_at(what, layer);
    m->ops->codes_count(&m->exec, dy_q, counts);
    if (dy_qt.scale != dy_q.scale) m->ops->codes_count(&m->exec, dy_qt, counts + 1);
}

// ---------------------------------------------------------------------------------------------------------------
// Forward

// One block (COAT: saved activations): r -> r + proj(attention(norm(r))) -> + fcproj(gelu(fc(norm(.)))),
// gelu standing for SwiGLU too, where fc makes gate and up.
// The last sum of a block is left to the norm that follows it, in the next block or at the end: r_in is the
// residual stream before it, y and y_bias what is still to be added (y.data NULL: nothing).
// `again`: once more, in backward (--recompute 3).
static void block_forward(Model *m, int l, Tensor r_in, Tensor y, Tensor y_bias, bool again) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;

    // attention half; n1 (M, C), qkv (M, 3C), o (M, C); what attention reads is kept in place where a sample goes on
    Norm first = first_norm(m, l), second = second_norm(m, l);
    Tensor bias =
        centre_norm(m, l, &first, CENTRE1, QKVB_SHIFTED, r_in, y, y_bias, weight(m, QKVW, l), param(m, QKVB, l), again);
    half_input(m, act(m, N1, l), first, second_norm(m, l > 0 ? l - 1 : 0), act(m, RESID_IN, l), r_in, y, y_bias);
    Tensor qkv = tensor_rows(act(m, QKV, l), m->before, (int64_t)m->B * m->T);
    Tensor read = m->keeps_heads ? qkv : act(m, HEADS, l);
    ops->linear_forward(ex, qkv, act(m, N1, l), weight(m, QKVW, l), bias);
    ops->heads_forward(ex, read, qkv, heads(m, l));
    Attention a = attention(m, read, l);
    ops->attention_forward(ex, act(m, O, l), a.lse, a.q, a.k, a.v, positions(m), a.shape);
    ops->quantize_forward(ex, act(m, OQ, l), act(m, O, l));
    ops->linear_forward(ex, act(m, Y_PROJ, l), act(m, OQ, l), weight(m, PROJW, l), no_tensor());

    // feed-forward half; n2 (M, C), h and g (M, F)
    bool in_product = bias_in_fc_product(m);
    Tensor r_mid = act(m, RESID_IN, l), y_proj = act(m, Y_PROJ, l), proj_bias = param(m, PROJB, l);
    bias = centre_norm(m, l, &second, CENTRE2, FCB_SHIFTED, r_mid, y_proj, proj_bias, weight(m, FCW, l),
                       param(m, FCB, l), again);
    half_input(m, act(m, N2, l), second, first_norm(m, l), act(m, RESID_MID, l), r_mid, y_proj, proj_bias);
    ops->linear_forward(ex, act(m, Y_FC, l), act(m, N2, l), weight(m, FCW, l), in_product ? bias : no_tensor());
    ops->activation_forward(ex, act(m, G, l), act(m, H, l), act(m, Y_FC, l), in_product ? no_tensor() : bias,
                            m->config.recipe.activation_input == ACTIVATION_INPUT_SAVED);
}

// The last product of a block: what it adds to the stream.
static void block_output(Model *m, int l) {
    m->ops->linear_forward(&m->exec, act(m, Y, l), act(m, G, l), weight(m, FCPROJW, l), no_tensor());
}

// Tokens in, normalised final residual NF (M, C) out.
void model_forward(Model *m) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int L = m->config.shape.layers;
    Tensor r = act(m, RESID_IN, 0), y = no_tensor(), y_bias = no_tensor();
    shards_pass_begin(&m->shards);
    ops->embed_forward(ex, r, act(m, TOKENS, 0), positions(m), param(m, WTE, 0), of_positions(m, param(m, WPE, 0)),
                       m->T);
    for (int l = 0; l < L; l++) {
        ops->range_push(ex, "block forward");
        shards_weights_needed(&m->shards, l, l + 1 < L ? l + 1 : -1, false);
        block_forward(m, l, r, y, y_bias, false);
        block_output(m, l);
        ops->range_pop(ex);
        r = act(m, RESID_MID, l);
        y = act(m, Y, l);
        y_bias = param(m, FCPROJB, l);
    }
    Tensor last = act(m, RESID_FINAL, 0);
    if (m->config.shape.norm_place == NORM_AFTER) {
        ops->branch_norm_forward(ex, no_tensor(), second_norm(m, L - 1), last, r, y);
        r = last;
        y = y_bias = no_tensor();
    }
    ops->residual_norm_forward(ex, act(m, NF, 0), norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0), last, r, y, y_bias);
}

// The head and the loss, in chunks of tokens, so that the logits (M, Vp) never exist whole. Adds their sum,
// times the step's scale, to the state; backward leaves dn = d loss / d NF (M, C) and the head's part of the
// tied embedding's gradient. dlogits is where the logits were, or FP8 codes beside them (--head).
void model_loss(Model *m, bool backward, bool accumulate) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int64_t tokens = (int64_t)m->B * m->T, chunk = m->arena.layout[LOGITS][VALUE].rows;
    const TensorId head_id = head_weight(&m->config.shape);
    Weight head = weight(m, head_id, 0);
    Tensor nf = act(m, NF, 0), nf_t = act(m, NF_T, 0);
    ops->range_push(ex, "head and loss");
    if (backward) ops->norm_rebuild(ex, nf_t, nf, norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0));
    for (int64_t begin = 0; begin < tokens; begin += chunk) {
        int64_t count = tokens - begin < chunk ? tokens - begin : chunk;
        Tensor logits = tensor_rows(act(m, LOGITS, 0), 0, count);
        Tensor dlogits = tensor_rows(act(m, DLOGITS_Q, 0), 0, count);
        Tensor dlogits_t = tensor_rows(act(m, DLOGITS_QT, 0), 0, count);
        ops->linear_forward(ex, logits, tensor_rows(nf, begin, count), head, no_tensor());
        ops->loss_forward_backward(ex, backward ? dlogits : no_tensor(), dlogits_t,
                                   tensor_rows(act(m, LOSSES, 0), begin, count), logits,
                                   tensor_rows(act(m, TARGETS, 0), begin, count), m->config.shape.vocab, m->state);
        if (!backward) continue;
        count_codes(m, GRADIENT_DLOGITS, 0, tensor_cols(dlogits, 0, m->config.shape.vocab), dlogits_t);
        ops->linear_backward_data(ex, tensor_rows(act(m, DN, 0), begin, count), dlogits, head);
        ops->linear_backward_weight(ex, grad(m, head_id, 0), dlogits_t, tensor_rows(nf_t, begin, count),
                                    accumulate || begin > 0);
    }
    ops->loss_sum(ex, act(m, LOSSES, 0), m->state);
    ops->range_pop(ex);
}

// ---------------------------------------------------------------------------------------------------------------
// Backward

// FP8 health makes the weight gradient of qkv once more from what its FP8 product was made of, in BF16, and compares
// the two. dqkv is still there, and the memory of dn is free for n1; dw is this micro-batch's product alone.
static void compare_product(Model *m, int l, Tensor dw, Tensor dqkv, Norm input) {
    Exec *ex = &m->exec;
    Tensor reference = arena_tensor(&m->arena, QKVW_REFERENCE, VALUE, 0), n1 = act(m, DN, 0);
    InnerProducts *found = (InnerProducts *)arena_tensor(&m->arena, INNER_PRODUCTS, VALUE, 0).data;
    ex->trains = false; // checkpoints record the algorithms of training's own products
    const bool after = m->config.shape.norm_place == NORM_AFTER; // then no norm makes it
    m->ops->norm_rebuild(ex, n1, after ? saved(m, N1, l) : no_tensor(), input);
    m->ops->linear_backward_weight(ex, reference, dqkv, n1, false);
    ex->trains = true;
    m->ops->inner_products(ex, dw, reference, found + l);
}

// A product's input as its weight gradient reads it: kept, or made again from what was kept.
static Tensor rebuilt_input(Model *m, TensorId x_t, int l) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    Tensor t = act(m, x_t, l);
    switch (x_t) {
    case N1_T: ops->norm_rebuild(ex, t, saved(m, N1, l), first_norm(m, l)); break;
    case O_T: ops->quantize_rebuild(ex, t, act(m, OQ, l), saved(m, O, l)); break;
    case N2_T: ops->norm_rebuild(ex, t, saved(m, N2, l), second_norm(m, l)); break;
    case G_T: ops->activation_rebuild(ex, t, saved(m, G, l), saved(m, H, l)); break;
    default: fatal(EXIT_DEVICE, "tensor %d is no input of a product", (int)x_t);
    }
    return t;
}

// q, k and v as attention read them: kept, or made again from what their product left.
static Tensor rebuilt_heads(Model *m, int l) {
    Tensor kept = act(m, QKV, l), again = act(m, HEADS_AGAIN, l);
    if (again.data != kept.data) m->ops->heads_forward(&m->exec, again, kept, heads(m, l));
    return again;
}

// y = x w^T in reverse, from dy in codes (dy_q, and dy_qt for the sum over tokens). dx alone:
static void product_backward_data(Model *m, int l, Tensor dx, TensorId w, Tensor dy_q, Tensor dy_qt,
                                  QuantizedGradient gradient) {
    count_codes(m, gradient, l, dy_q, dy_qt);
    m->ops->linear_backward_data(&m->exec, dx, dy_q, weight(m, w, l));
}

// dx, then the gradient of w:
static void product_backward(Model *m, int l, Tensor dx, TensorId w, TensorId x_t, Tensor dy_q, Tensor dy_qt,
                             QuantizedGradient gradient, bool accumulate) {
    product_backward_data(m, l, dx, w, dy_q, dy_qt, gradient);
    Tensor x = rebuilt_input(m, x_t, l);
    m->ops->linear_backward_weight(&m->exec, grad(m, w, l), dy_qt, x, accumulate);
}

// A half of a block in reverse has a norm at one of its ends, whose parameters these are. First the gradient of what
// the half adds to the stream, where its norm comes after; then, to the stream's, that of what its first product reads.
static Tensor half_backward_begin(Model *m, int l, TensorId w, TensorId b, Norm n, bool accumulate) {
    Tensor dbranch = act(m, DBRANCH, l);
    if (m->config.shape.norm_place == NORM_AFTER)
        m->ops->norm_backward(&m->exec, dbranch, grad(m, w, l), grad(m, b, l), act(m, DRESID, l), n, false, accumulate);
    return dbranch;
}
static void half_backward_end(Model *m, int l, TensorId w, TensorId b, Tensor dn, Norm n, bool accumulate) {
    Tensor dresid = act(m, DRESID, l);
    if (m->config.shape.norm_place == NORM_AFTER)
        m->ops->residual_backward(&m->exec, dresid, dn);
    else
        m->ops->norm_backward(&m->exec, dresid, grad(m, w, l), grad(m, b, l), dn, n, true, accumulate);
}

// One block in reverse (COAT: FP8 flow). DRESID (M, C) is the gradient of the residual stream after the block
// and becomes that before it.
static void block_backward(Model *m, int l, bool accumulate) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    Tensor dresid_q = act(m, DRESID_Q, l), dresid_qt = act(m, DRESID_QT, l);
    Tensor dn = act(m, DN, 0), dn2 = act(m, DN2, l);

    // feed-forward half
    Tensor dg = act(m, DG, 0), dh_q = act(m, DH_Q, l), dh_qt = act(m, DH_QT, l);
    Tensor dbranch = half_backward_begin(m, l, LN2W, LN2B, second_norm(m, l), accumulate);
    ops->grad_quantize(ex, dresid_q, dresid_qt, grad(m, FCPROJB, l), dbranch, accumulate);
    if (config_bounds_activation(&m->config)) {
        Tensor g_t = act(m, G_T, l), h = saved(m, H, l);
        product_backward_data(m, l, dg, FCPROJW, dresid_q, dresid_qt, GRADIENT_DRESID_FCPROJ);
        ops->activation_bound(ex, dh_q, dresid_q, weight(m, FCPROJW, l), h);
        ops->activation_backward_rebuild(ex, dh_q, dh_qt, grad(m, FCB, l), g_t, saved(m, G, l), dg, h, accumulate);
        ops->linear_backward_weight(ex, grad(m, FCPROJW, l), dresid_qt, g_t, accumulate);
    } else {
        product_backward(m, l, dg, FCPROJW, G_T, dresid_q, dresid_qt, GRADIENT_DRESID_FCPROJ, accumulate);
        ops->activation_backward(ex, dh_q, dh_qt, grad(m, FCB, l), dg, saved(m, H, l), accumulate);
    }
    product_backward(m, l, dn2, FCW, N2_T, dh_q, dh_qt, GRADIENT_DH, accumulate);
    half_backward_end(m, l, LN2W, LN2B, dn2, second_norm(m, l), accumulate);

    // attention half
    Tensor d_o = act(m, DO, 0), dqkv = act(m, DQKV, l), dqkv_q = act(m, DQKV_Q, l), dqkv_qt = act(m, DQKV_QT, l);
    dbranch = half_backward_begin(m, l, LN1W, LN1B, first_norm(m, l), accumulate);
    ops->grad_quantize(ex, dresid_q, dresid_qt, grad(m, PROJB, l), dbranch, accumulate);
    product_backward(m, l, d_o, PROJW, O_T, dresid_q, dresid_qt, GRADIENT_DRESID_PROJ, accumulate);
    Attention a = attention(m, rebuilt_heads(m, l), l);
    Tensor dq, dk, dv;
    split_qkv(&m->config.shape, dqkv, &dq, &dk, &dv);
    Heads h = heads(m, l);
    const Tensor rotations = take_rotations(&h);
    if (heads_changed(&h)) dq.amax = NULL; // what is left changes them
    ops->attention_backward(ex, dq, dk, dv, d_o, saved(m, O, l), a.lse, a.q, a.k, a.v, positions(m), rotations,
                            a.shape);
    ops->heads_backward(ex, dqkv, grad(m, QNORMW, l), grad(m, KNORMW, l), act(m, QKV, l), h, accumulate);
    ops->grad_quantize(ex, dqkv_q, dqkv_qt, grad(m, QKVB, l), dqkv, accumulate);
    product_backward(m, l, dn, QKVW, N1_T, dqkv_q, dqkv_qt, GRADIENT_DQKV, accumulate);
    half_backward_end(m, l, LN1W, LN1B, dn, first_norm(m, l), accumulate);
    if (m->compares_products) compare_product(m, l, grad(m, QKVW, l), dqkv, first_norm(m, l));
}

// With --recompute 3 what backward reads of a block is made again, with the same bits, from the stream that it began
// with. The last block's is still there. A norm that comes after the block is made by the next one's first operation.
static void block_repeat(Model *m, int l) {
    if (!config_repeats_blocks(&m->config) || l + 1 == m->config.shape.layers) return;
    shards_weights_needed(&m->shards, l, -1, false);
    block_forward(m, l, act(m, RESID_IN, l), no_tensor(), no_tensor(), true);
    if (m->config.shape.norm_place != NORM_AFTER) return;
    block_output(m, l);
    m->ops->branch_norm_forward(&m->exec, no_tensor(), second_norm(m, l), act(m, RESID_IN, l + 1), act(m, RESID_MID, l),
                                act(m, Y, l));
}

// Everything behind model_loss(): gradients of all parameters, overwritten or added to, and summed over all processes
// on the way, at the latest in the last micro-batch of a step.
static void model_backward(Model *m, bool accumulate, bool last) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    Tensor dresid = act(m, DRESID, m->config.shape.layers - 1);
    ops->norm_backward(ex, dresid, grad(m, LNFW, 0), grad(m, LNFB, 0), act(m, DN, 0),
                       norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0), false, accumulate);
    for (int l = m->config.shape.layers - 1; l >= 0; l--) {
        ops->range_push(ex, "block backward");
        block_repeat(m, l);
        shards_weights_needed(&m->shards, l, l - 1, true);
        shards_gradients_begin(&m->shards, l);
        block_backward(m, l, shards_accumulate(&m->shards, accumulate));
        shards_gradients_ready(&m->shards, l, accumulate, last);
        ops->range_pop(ex);
    }
    Tensor dwte = grad(m, WTE, 0);
    if (!m->config.shape.tied_head && !accumulate) // a tied head has left its own there
        ops->zero(ex, dwte.data, (size_t)tensor_elements(dwte) * format_bytes(dwte.format));
    ops->embed_backward(ex, dwte, grad(m, WPE, 0), dresid, act(m, TOKENS, 0), positions(m), m->T, accumulate);
    shards_pass_end(&m->shards, last);
}

// ---------------------------------------------------------------------------------------------------------------
// One optimizer step

void state_upload(Model *m) {
    m->ops->upload(&m->exec, m->state, &m->host, sizeof m->host);
}
void state_download(Model *m) {
    m->ops->download(&m->exec, &m->host, m->state, sizeof m->host);
}

void batch_upload(Model *m, int B, int T, const int32_t *inputs, const int32_t *targets, const int32_t *positions) {
    m->B = B;
    m->T = T;
    m->keeps_heads = false;
    m->before = 0;
    size_t bytes = (size_t)B * (size_t)T * sizeof(int32_t);
    m->ops->upload(&m->exec, act(m, TOKENS, 0).data, inputs, bytes);
    if (targets) m->ops->upload(&m->exec, act(m, TARGETS, 0).data, targets, bytes);
    m->apart = positions != NULL;
    if (positions) m->ops->upload(&m->exec, act(m, POSITIONS, 0).data, positions, bytes);
}

// Forward and backward of one micro-batch. Its operations are the same in every step, so a device may replay
// them from a recording: one for the first micro-batch, which overwrites the gradients, one for the others. Those
// that communicate are not recorded, nor is what FP8 health looks at.
void micro_step(Model *m, bool accumulate, bool last) {
    int recording = accumulate ? 1 : 0;
    bool watched = m->counts_codes || m->compares_products;
    bool record = !watched && shards_recordable(&m->shards, !accumulate, last);
    if (record && m->ops->replay_begin(&m->exec, recording)) return;
    Tensor counts = arena_tensor(&m->arena, CODE_COUNTS, VALUE, 0);
    if (m->counts_codes) m->ops->zero(&m->exec, counts.data, (size_t)tensor_elements(counts));
    m->exec.trains = true;
    model_forward(m);
    model_loss(m, true, accumulate);
    model_backward(m, accumulate, last);
    m->exec.trains = false;
    m->counts_codes = m->compares_products = false;
    if (record) m->ops->replay_end(&m->exec, recording);
}

// What the host tells the device before a step.
void step_begin(Model *m, float lr, int64_t targets) {
    const Config *c = &m->config;
    m->host.lr = lr;
    m->host.beta1 = c->beta1;
    m->host.beta2 = c->beta2;
    m->host.eps = c->eps;
    m->host.weight_decay = c->weight_decay;
    m->host.grad_clip = c->grad_clip;
    m->host.loss_scale = (float)(1.0 / (double)targets);
    m->host.seed = c->seed;
    m->host.loss_sum = 0.0;
    m->host.nonfinite = 0;
    state_upload(m);
}

// Has the device skip the update of an outlier. Costs a read back, with --skip-loss-z or --skip-grad-z alone.
static void step_guard(Model *m) {
    const Config *c = &m->config;
    state_download(m);
    if (m->host.nonfinite) return; // skipped already
    if (guard_refuses(m->guard, m->host.loss_sum, m->host.grad_norm, c->skip_loss_z, c->skip_grad_z)) {
        m->host.nonfinite = SKIP_OUTLIER;
        state_upload(m);
    } else {
        guard_accept(m->guard, m->host.loss_sum, m->host.grad_norm);
    }
}

// The update, unless a loss or gradient was not finite: the device decides. Then the step's only read back.
void step_end(Model *m) {
    shards_norm(&m->shards, m->state);
    if (m->guard) step_guard(m);
    shards_update(&m->shards, m->state);
    state_download(m);
}

// ---------------------------------------------------------------------------------------------------------------
// Setting up

static bool open_device(Model *m, Error *err) {
    const Config *c = &m->config;
#ifdef COAT_CUDA
    // a GPU that is there but cannot be used is an error: days on the CPU are not what was meant
    if (c->device == DEVICE_CUDA || (c->device == DEVICE_AUTO && cuda_present())) {
        m->exec.ops = m->ops = cuda_ops();
        return m->ops->open(&m->exec, c, err);
    }
    if (c->device == DEVICE_AUTO && !c->quiet && m->exec.rank == 0)
        fprintf(stderr, "note: there is no GPU; training on the CPU\n");
#else
    if (c->device == DEVICE_CUDA)
        return error_set(err, EXIT_DEVICE, "--device cuda: this program was built without CUDA; use train_gpt2_fp8");
#endif
    m->exec.ops = m->ops = cpu_ops();
    return m->ops->open(&m->exec, c, err);
}

#define ALLOCATION_TIMEOUT_S 600 // while one process may wait for others to lock memory of the host

// The processes of a machine allocate host memory one after the other, so that each sees how much the others have left.
static bool allocate(Model *m, Error *err) {
    if (!m->arena.host_bytes) return arena_allocate(&m->arena, &m->exec, err);
    comm_set_timeout(m->comm, ALLOCATION_TIMEOUT_S);
    const int64_t barriers = comm_serialize_begin(m->comm, m->exec.local_rank);
    const bool ok = arena_allocate(&m->arena, &m->exec, err);
    comm_serialize_end(m->comm, barriers);
    comm_set_timeout(m->comm, 0);
    return ok;
}

// Device, the other processes, memory and parameter list; the parameters' values are still undefined.
bool model_create(Model *m, const Config *config, const CommPlace *place, Error *err) {
    memset(m, 0, sizeof *m);
    m->config = *config;
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
    rotations_set(&m->arena, &m->exec);
    return true;
}

void model_destroy(Model *m) {
    shards_close(&m->shards);
    comm_close(m->comm);
    free(m->parameters);
    if (m->ops) arena_release(&m->arena, &m->exec);
    if (m->ops) m->ops->close(&m->exec);
}

#ifndef TESTING // the tests include all of the above

#include "coat/clock.h"
#include "coat/run/checkpoint_settings.h"
#include "coat/run/report.h"
#include "coat/run/run.h"
#include "coat/signals.h"

// What the flags leave open is looked up, in files and of the machine, and all of it checked.
static bool complete(Run *run, Config *config, Error *err) {
    const CommPlace *place = &run->place;
    if (!out_check(config, err)) return false;
    if (config->shape_files[0] && !model_shape_from_files(config->shape_files, &config->shape, err)) return false;
    if (!run_take_vocabulary(run, config, err)) return false;
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
    on_all_ranks(&run.errors); // because errors of the flags are the same on all ranks
    config_defaults(&config);
    bool ok = command_line_read(&line, argc, argv, &exit_now, &err);
    if (!exit_now) signals_fail_writes(); // what --help prints may be cut short
    if (ok && !exit_now) {
        ok = checkpoint_settings(&recorded, &line.flags, &err);
        if (ok)
            ok = config_parse(&config, &line, &recorded, &err);
        else
            arguments_free(&line.args);
    }
    bool found = comm_discover(&line.flags, &run.place, ok ? &err : &why);
    if (ok && !exit_now) {
        ok = found && complete(&run, &config, &err);
        if (ok) ok = config.plan ? report_plan(&config, stdout, &err) : run_whole(&run, &config, &err);
    }
    if (ok && (fflush(stdout) != 0 || ferror(stdout)))
        ok = error_set(&err, EXIT_DATA,
                       "standard output could not be written: its reader has ended, or the disk is full");
    if (!ok) report_error_once(&run.errors, run.place.rank, &err);
    return ok ? EXIT_DONE : (int)err.code;
}
#endif
