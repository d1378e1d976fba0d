/*
COAT in C and CUDA: pretraining of GPT models with FP8 optimizer states and FP8 saved activations.

This file is the program, to be read from top to bottom: the model's forward, backward and update, written once
against the operations of coat/ops.h, and the training loop around them. Which device runs the operations, in
which formats tensors are kept and where they lie in memory is decided one level down: coat/cpu and coat/cuda
hold the operations, coat/tensors.c the table of tensors, coat/arena.c the memory plan.

It compiles as CUDA C with both backends (train_gpt2_fp8) and as plain C with the CPU's (train_gpt2_fp8_cpu).
Shapes in comments: M = B * T tokens of a micro-batch, C channels, F width of the feed-forward layer.
*/
#include <ctype.h>
#include <time.h>
#include <unistd.h>

#include "coat/arena.h"
#include "coat/checkpoint.h"
#include "coat/comm.h"
#include "coat/config_parse.h"
#include "coat/config_settings.h"
#include "coat/data.h"
#include "coat/health.h"
#include "coat/hellaswag.h"
#include "coat/hf.h"
#include "coat/json.h"
#include "coat/log.h"
#include "coat/log_trim.h"
#include "coat/ops.h"
#include "coat/outdir.h"
#include "coat/plan.h"
#include "coat/report.h"
#include "coat/run_state.h"
#include "coat/sampler.h"
#include "coat/saver.h"
#include "coat/schedule.h"
#include "coat/shards.h"
#include "coat/signals.h"
#include "coat/tokenizer.h"
#include "coat/weights.h"

// ---------------------------------------------------------------------------------------------------------------
// The model

typedef struct {
    Config config;
    Exec exec;
    const Ops *ops; // exec.ops, for short
    Arena arena;
    Comm *comm;            // with the other processes
    Shards shards;         // what they share, and when it is communicated
    Parameter *parameters; // all of them
    int parameter_count;
    int B, T;         // shape of the pass under way; at most micro_batch x seq_len
    StepState *state; // in the device's memory
    StepState host;   // its last known contents
    Guard *guard;     // against outliers; NULL: off
    // of the next micro-batch or the one under way, for FP8 health
    bool counts_codes, compares_products;
    double deadline_ms; // from then on passes are given up for --time-limit; 0: none
} Model;

// The descriptors of this pass: activations hold as many rows as it has tokens.
static Tensor act(const Model *m, TensorId id, int layer) {
    Tensor t = arena_tensor(&m->arena, id, VALUE, layer);
    t.rows = (int64_t)m->B * m->T;
    return t;
}

// An activation that backward reads: data == NULL if it was not kept and has to be rebuilt.
static Tensor saved(const Model *m, TensorId id, int layer) {
    Tensor t = arena_saved(&m->arena, id, layer);
    t.rows = (int64_t)m->B * m->T;
    return t;
}

static Tensor param(const Model *m, TensorId id, int layer) {
    return arena_tensor(&m->arena, id, VALUE, layer);
}
static Tensor grad(const Model *m, TensorId id, int layer) {
    return arena_gradient(&m->arena, id, layer);
}
static Weight weight(const Model *m, TensorId id, int layer) {
    return arena_weight(&m->arena, id, layer);
}

static Tensor no_tensor(void) {
    Tensor t;
    memset(&t, 0, sizeof t);
    return t;
}

static Norm norm(const Model *m, TensorId x, TensorId mean, TensorId rstd, TensorId w, TensorId b, int layer) {
    Norm n;
    n.x = act(m, x, layer);
    n.mean = act(m, mean, layer);
    n.rstd = act(m, rstd, layer);
    n.weight = param(m, w, layer);
    n.bias = param(m, b, layer);
    n.eps = m->config.shape.norm_eps;
    n.from_saved = m->config.recipe.norm_input == NORM_INPUT_SAVED;
    return n;
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

static Attention attention(const Model *m, int layer) {
    const ModelShape *s = &m->config.shape;
    Attention a;
    a.shape.B = m->B;
    a.shape.T = m->T;
    a.shape.heads = s->heads;
    a.shape.kv_heads = s->kv_heads;
    a.shape.head_dim = s->head_dim;
    split_qkv(s, act(m, QKV, layer), &a.q, &a.k, &a.v);
    a.lse = arena_tensor(&m->arena, LSE, VALUE, layer);
    a.lse.rows = (int64_t)m->B * s->heads;
    a.lse.cols = a.lse.stride = m->T;
    return a;
}

// Where h is stored as the product made it, the bias belongs into the product; where h is quantised, the kernel
// that does so adds it on the way.
static bool bias_in_fc_product(const Model *m) {
    return act(m, Y_FC, 0).data == act(m, H, 0).data;
}

// Counts the codes of a gradient as products read them, and those of its transpose where that has a format or scale of
// its own. Nothing in passes that FP8 health does not look at.
static void count_codes(Model *m, Seen what, int layer, Tensor dy_q, Tensor dy_qt) {
    if (!m->counts_codes || !format_is_fp8(dy_q.format)) return;
    CodeCounts *counts = (CodeCounts *)arena_tensor(&m->arena, CODE_COUNTS, VALUE, 0).data;
    counts += code_counts_at(what, layer);
    m->ops->codes_count(&m->exec, dy_q, counts);
    if (dy_qt.scale != dy_q.scale) m->ops->codes_count(&m->exec, dy_qt, counts + 1);
}

// ---------------------------------------------------------------------------------------------------------------
// Forward

// One block (COAT: saved activations): r -> r + proj(attention(norm(r))) -> + fcproj(gelu(fc(norm(.)))).
// The last sum of a block is left to the norm that follows it, in the next block or at the end: r_in is the
// residual stream before it, y and y_bias what is still to be added (y.data NULL: nothing).
static void block_forward(Model *m, int l, Tensor r_in, Tensor y, Tensor y_bias) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;

    // attention half; n1 (M, C), qkv (M, 3C), o (M, C)
    Norm norm1 = norm(m, X_IN, MEAN1, RSTD1, LN1W, LN1B, l);
    ops->residual_norm_forward(ex, act(m, N1, l), norm1, act(m, RESID_IN, l), r_in, y, y_bias);
    ops->linear_forward(ex, act(m, QKV, l), act(m, N1, l), weight(m, QKVW, l), param(m, QKVB, l));
    Attention a = attention(m, l);
    ops->attention_forward(ex, act(m, O, l), a.lse, a.q, a.k, a.v, a.shape);
    ops->quantize_forward(ex, act(m, OQ, l), act(m, O, l));
    ops->linear_forward(ex, act(m, Y_PROJ, l), act(m, OQ, l), weight(m, PROJW, l), no_tensor());

    // feed-forward half; n2 (M, C), h and g (M, F)
    bool in_product = bias_in_fc_product(m);
    Tensor bias = param(m, FCB, l);
    Norm norm2 = norm(m, X_MID, MEAN2, RSTD2, LN2W, LN2B, l);
    ops->residual_norm_forward(ex, act(m, N2, l), norm2, act(m, RESID_MID, l), act(m, RESID_IN, l), act(m, Y_PROJ, l),
                               param(m, PROJB, l));
    ops->linear_forward(ex, act(m, Y_FC, l), act(m, N2, l), weight(m, FCW, l), in_product ? bias : no_tensor());
    ops->gelu_forward(ex, act(m, G, l), act(m, H, l), act(m, Y_FC, l), in_product ? no_tensor() : bias,
                      m->config.recipe.activation_input == ACTIVATION_INPUT_SAVED);
    ops->linear_forward(ex, act(m, Y, l), act(m, G, l), weight(m, FCPROJW, l), no_tensor());
}

// Tokens in, normalised final residual NF (M, C) out.
static void model_forward(Model *m) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int L = m->config.shape.layers;
    Tensor r = act(m, RESID_IN, 0), y = no_tensor(), y_bias = no_tensor();
    shards_pass_begin(&m->shards);
    ops->embed_forward(ex, r, act(m, TOKENS, 0), param(m, WTE, 0), param(m, WPE, 0), m->T);
    for (int l = 0; l < L; l++) {
        ops->range_push(ex, "block forward");
        shards_weights_needed(&m->shards, l, l + 1 < L ? l + 1 : -1);
        block_forward(m, l, r, y, y_bias);
        ops->range_pop(ex);
        r = act(m, RESID_MID, l);
        y = act(m, Y, l);
        y_bias = param(m, FCPROJB, l);
    }
    ops->residual_norm_forward(ex, act(m, NF, 0), norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0), act(m, RESID_FINAL, 0),
                               r, y, y_bias);
}

// The head and the loss, in chunks of tokens, so that the logits (M, Vp) never exist whole. Adds scale times
// the sum of the losses to the state; backward leaves dn = d loss / d NF (M, C) and the head's part of the
// tied embedding's gradient. dlogits is where the logits were, or FP8 codes beside them (--head fp8).
static void model_loss(Model *m, float scale, bool backward, bool accumulate) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int64_t tokens = (int64_t)m->B * m->T, chunk = m->arena.layout[LOGITS][VALUE].rows;
    Weight head = weight(m, WTE, 0);
    Tensor nf = act(m, NF, 0), nf_t = act(m, NF_T, 0);
    ops->range_push(ex, "head and loss");
    if (backward) ops->norm_rebuild(ex, nf_t, nf, norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0));
    for (int64_t begin = 0; begin < tokens; begin += chunk) {
        int64_t count = tokens - begin < chunk ? tokens - begin : chunk;
        Tensor logits = tensor_rows(act(m, LOGITS, 0), 0, count);
        Tensor dlogits = tensor_rows(act(m, DLOGITS_Q, 0), 0, count);
        Tensor dlogits_t = tensor_rows(act(m, DLOGITS_QT, 0), 0, count);
        ops->linear_forward(ex, logits, tensor_rows(nf, begin, count), head, no_tensor());
        ops->loss_forward_backward(
            ex, backward ? dlogits : no_tensor(), dlogits_t, tensor_rows(act(m, LOSSES, 0), begin, count), logits,
            tensor_rows(act(m, TARGETS, 0), begin, count), m->config.shape.vocab, scale, m->state);
        if (!backward) continue;
        count_codes(m, SEEN_DLOGITS, 0, tensor_cols(dlogits, 0, m->config.shape.vocab), dlogits_t);
        ops->linear_backward_data(ex, tensor_rows(act(m, DN, 0), begin, count), dlogits, head);
        ops->linear_backward_weight(ex, grad(m, WTE, 0), dlogits_t, tensor_rows(nf_t, begin, count),
                                    accumulate || begin > 0);
    }
    ops->loss_sum(ex, act(m, LOSSES, 0), scale, m->state);
    ops->range_pop(ex);
}

// ---------------------------------------------------------------------------------------------------------------
// Backward

// FP8 health makes the weight gradient of qkv once more from what its FP8 product was made of, in BF16, and compares the
// two. dqkv is still there, and the memory of dn is free for n1; dw is this micro-batch's product alone.
static void compare_product(Model *m, int l, Tensor dw, Tensor dqkv, Norm norm1) {
    Exec *ex = &m->exec;
    Tensor reference = arena_tensor(&m->arena, QKVW_REFERENCE, VALUE, 0), n1 = act(m, DN, 0);
    InnerProducts *found = (InnerProducts *)arena_tensor(&m->arena, INNER_PRODUCTS, VALUE, 0).data;
    ex->trains = false; // checkpoints record the algorithms of training's own products
    m->ops->norm_rebuild(ex, n1, no_tensor(), norm1);
    m->ops->linear_backward_weight(ex, reference, dqkv, n1, false);
    ex->trains = true;
    m->ops->inner_products(ex, dw, reference, found + l);
}

// One block in reverse (COAT: FP8 flow). DRESID (M, C) is the gradient of the residual stream after the block
// and becomes that before it. Inputs of products that were not kept are rebuilt from what was.
static void block_backward(Model *m, int l, bool accumulate) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    Tensor dresid = act(m, DRESID, 0), dresid_q = act(m, DRESID_Q, l), dresid_qt = act(m, DRESID_QT, l);
    Tensor dn = act(m, DN, 0), dn2 = act(m, DN2, l);

    // feed-forward half
    Tensor h = saved(m, H, l), g_t = act(m, G_T, l), n2_t = act(m, N2_T, l);
    Tensor dg = act(m, DG, 0), dh_q = act(m, DH_Q, l), dh_qt = act(m, DH_QT, l);
    ops->grad_quantize(ex, dresid_q, dresid_qt, grad(m, FCPROJB, l), dresid, accumulate);
    count_codes(m, SEEN_DRESID_FCPROJ, l, dresid_q, dresid_qt);
    ops->linear_backward_data(ex, dg, dresid_q, weight(m, FCPROJW, l));
    ops->gelu_rebuild(ex, g_t, saved(m, G, l), h);
    ops->linear_backward_weight(ex, grad(m, FCPROJW, l), dresid_qt, g_t, accumulate);
    ops->gelu_backward(ex, dh_q, dh_qt, grad(m, FCB, l), dg, h, accumulate);
    count_codes(m, SEEN_DH, l, dh_q, dh_qt);
    ops->linear_backward_data(ex, dn2, dh_q, weight(m, FCW, l));
    Norm norm2 = norm(m, X_MID, MEAN2, RSTD2, LN2W, LN2B, l);
    ops->norm_rebuild(ex, n2_t, saved(m, N2, l), norm2);
    ops->linear_backward_weight(ex, grad(m, FCW, l), dh_qt, n2_t, accumulate);
    ops->norm_backward(ex, dresid, grad(m, LN2W, l), grad(m, LN2B, l), dn2, norm2, true, accumulate);

    // attention half
    Tensor o = saved(m, O, l), o_t = act(m, O_T, l), n1_t = act(m, N1_T, l), d_o = act(m, DO, 0);
    Tensor dqkv = act(m, DQKV, 0), dqkv_q = act(m, DQKV_Q, l), dqkv_qt = act(m, DQKV_QT, l);
    ops->grad_quantize(ex, dresid_q, dresid_qt, grad(m, PROJB, l), dresid, accumulate);
    count_codes(m, SEEN_DRESID_PROJ, l, dresid_q, dresid_qt);
    ops->linear_backward_data(ex, d_o, dresid_q, weight(m, PROJW, l));
    ops->quantize_rebuild(ex, o_t, act(m, OQ, l), o);
    ops->linear_backward_weight(ex, grad(m, PROJW, l), dresid_qt, o_t, accumulate);
    Attention a = attention(m, l);
    Tensor dq, dk, dv;
    split_qkv(&m->config.shape, dqkv, &dq, &dk, &dv);
    ops->attention_backward(ex, dq, dk, dv, d_o, o, a.lse, a.q, a.k, a.v, a.shape);
    ops->grad_quantize(ex, dqkv_q, dqkv_qt, grad(m, QKVB, l), dqkv, accumulate);
    count_codes(m, SEEN_DQKV, l, dqkv_q, dqkv_qt);
    ops->linear_backward_data(ex, dn, dqkv_q, weight(m, QKVW, l));
    Norm norm1 = norm(m, X_IN, MEAN1, RSTD1, LN1W, LN1B, l);
    ops->norm_rebuild(ex, n1_t, saved(m, N1, l), norm1);
    ops->linear_backward_weight(ex, grad(m, QKVW, l), dqkv_qt, n1_t, accumulate);
    ops->norm_backward(ex, dresid, grad(m, LN1W, l), grad(m, LN1B, l), dn, norm1, true, accumulate);
    if (m->compares_products) compare_product(m, l, grad(m, QKVW, l), dqkv, norm1);
}

// Everything behind model_loss(): gradients of all parameters, overwritten or added to, and summed over all processes
// on the way, at the latest in the last micro-batch of a step.
static void model_backward(Model *m, bool accumulate, bool last) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    Tensor dresid = act(m, DRESID, 0);
    ops->norm_backward(ex, dresid, grad(m, LNFW, 0), grad(m, LNFB, 0), act(m, DN, 0),
                       norm(m, X_FINAL, MEANF, RSTDF, LNFW, LNFB, 0), false, accumulate);
    for (int l = m->config.shape.layers - 1; l >= 0; l--) {
        ops->range_push(ex, "block backward");
        shards_weights_needed(&m->shards, l, l - 1);
        shards_gradients_begin(&m->shards, l, accumulate);
        block_backward(m, l, accumulate);
        shards_gradients_ready(&m->shards, l, last);
        ops->range_pop(ex);
    }
    ops->embed_backward(ex, grad(m, WTE, 0), grad(m, WPE, 0), dresid, act(m, TOKENS, 0), m->T, accumulate);
    shards_pass_end(&m->shards, last);
}

// ---------------------------------------------------------------------------------------------------------------
// One optimizer step

static void state_upload(Model *m) {
    m->ops->upload(&m->exec, m->state, &m->host, sizeof m->host);
}
static void state_download(Model *m) {
    m->ops->download(&m->exec, &m->host, m->state, sizeof m->host);
}

static void batch_upload(Model *m, int B, int T, const int32_t *inputs, const int32_t *targets) {
    m->B = B;
    m->T = T;
    size_t bytes = (size_t)B * (size_t)T * sizeof(int32_t);
    m->ops->upload(&m->exec, act(m, TOKENS, 0).data, inputs, bytes);
    if (targets) m->ops->upload(&m->exec, act(m, TARGETS, 0).data, targets, bytes);
}

// Forward and backward of one micro-batch. Its operations are the same in every step, so a device may replay
// them from a recording: one for the first micro-batch, which overwrites the gradients, one for the others. Those
// that communicate are not recorded, nor is what FP8 health looks at.
static void micro_step(Model *m, float loss_scale, bool accumulate, bool last) {
    int recording = accumulate ? 1 : 0;
    bool watched = m->counts_codes || m->compares_products;
    bool record = !watched && shards_recordable(&m->shards, !accumulate, last);
    if (record && m->ops->replay_begin(&m->exec, recording)) return;
    Tensor counts = arena_tensor(&m->arena, CODE_COUNTS, VALUE, 0);
    if (m->counts_codes) m->ops->zero(&m->exec, counts.data, (size_t)tensor_elements(counts));
    m->exec.trains = true;
    model_forward(m);
    model_loss(m, loss_scale, true, accumulate);
    model_backward(m, accumulate, last);
    m->exec.trains = false;
    m->counts_codes = m->compares_products = false;
    if (record) m->ops->replay_end(&m->exec, recording);
}

// What the host tells the device before a step.
static void step_begin(Model *m, float lr) {
    const Config *c = &m->config;
    m->host.lr = lr;
    m->host.beta1 = c->beta1;
    m->host.beta2 = c->beta2;
    m->host.eps = c->eps;
    m->host.weight_decay = c->weight_decay;
    m->host.grad_clip = c->grad_clip;
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
static void step_end(Model *m) {
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

// Device, the other processes, memory and parameter list; the parameters' values are still undefined.
static bool model_create(Model *m, const Config *config, const CommPlace *place, Error *err) {
    memset(m, 0, sizeof *m);
    m->config = *config;
    m->exec.rank = place->rank;
    m->exec.ranks = place->ranks;
    m->exec.local_rank = place->local_rank;
    if (!open_device(m, err)) return false;
    m->comm = comm_open(place, config, &m->exec, err);
    if (!m->comm) return false;
    arena_plan(&m->arena, config, m->exec.ranks, strcmp(m->ops->name, "cuda") == 0 ? DEVICE_CUDA : DEVICE_CPU);
    if (!arena_allocate(&m->arena, &m->exec, err)) return plan_advise(&m->arena, &m->exec, err);
    m->parameters = (Parameter *)xcalloc((size_t)arena_parameter_count(&m->arena), sizeof(Parameter));
    m->parameter_count = arena_parameters(&m->arena, m->parameters, NULL, NULL);
    shards_open(&m->shards, &m->arena, &m->exec, m->comm);
    m->exec.state = m->state = (StepState *)arena_tensor(&m->arena, STATE, VALUE, 0).data;
    state_upload(m);
    return true;
}

static void model_destroy(Model *m) {
    shards_close(&m->shards);
    comm_close(m->comm);
    free(m->parameters);
    if (m->arena.base) m->ops->release(&m->exec, m->arena.base);
    if (m->ops) m->ops->close(&m->exec);
}

#ifndef TESTING // the tests include all of the above

#define LOADING_PATIENCE 600 // seconds that one process may wait for others to read files

// ---------------------------------------------------------------------------------------------------------------
// Evaluation and samples. Neither touches what training depends on.

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// A signal or --time-limit that ends the run is obeyed in the middle of things by a process that is alone; several can
// only agree on it between steps.
static bool stop_at_once(const Model *m) {
    return m->exec.ranks == 1 && (signals_stop() || (m->deadline_ms > 0 && now_ms() > m->deadline_ms));
}

// Mean loss of the first `batches` micro-batches of a token file, of fewer where a signal ends the run. The processes
// share them; each makes as many passes as the others: one that has no batch left repeats the last without weight, and
// one that cannot read its own goes on with zeros, as the others wait for it.
static bool evaluate(Model *m, DataLoader *loader, int batches, double *loss, Error *err) {
    const Config *c = &m->config;
    size_t tokens = (size_t)config_micro_tokens(c);
    int32_t *inputs = (int32_t *)xmalloc(2 * tokens * sizeof(int32_t)), *targets = inputs + tokens;
    bool ok = true;
    StepState before = m->host;
    m->host.loss_sum = 0.0;
    state_upload(m);
    for (int first = 0; first < batches && (ok || m->exec.ranks > 1) && !stop_at_once(m); first += m->exec.ranks) {
        int i = first + m->exec.rank, mine = i < batches ? i : batches - 1;
        ok = ok && data_batch(loader, mine, inputs, targets, err);
        if (!ok) memset(inputs, 0, 2 * tokens * sizeof(int32_t));
        batch_upload(m, c->micro_batch, c->seq_len, inputs, targets);
        model_forward(m);
        model_loss(m, i < batches ? (float)(1.0 / ((double)batches * (double)tokens)) : 0.0f, false, false);
    }
    shards_sum_loss(&m->shards, m->state);
    state_download(m);
    *loss = m->host.loss_sum;
    m->host = before;
    state_upload(m);
    free(inputs);
    return ok;
}

// How many examples of HellaSwag the model gets right. Rows are short: so are the passes over them, which the processes
// share.
static int evaluate_hellaswag(Model *m, HellaSwag *set) {
    int B = m->config.micro_batch, T = (hellaswag_length(set) + 63) / 64 * 64;
    if (T > m->config.seq_len) T = m->config.seq_len;
    size_t tokens = (size_t)B * (size_t)T;
    int32_t *inputs = (int32_t *)xmalloc(2 * tokens * sizeof(int32_t)), *targets = inputs + tokens;
    float *losses = (float *)xmalloc(tokens * sizeof *losses);
    int row;
    for (int n = 0; (row = hellaswag_pass(set, n, B, m->exec.rank, m->exec.ranks)) >= 0 && !stop_at_once(m); n++) {
        hellaswag_batch(set, row, B, T, inputs, targets);
        batch_upload(m, B, T, inputs, targets);
        model_forward(m);
        model_loss(m, 0.0f, false, false);
        m->ops->download(&m->exec, losses, act(m, LOSSES, 0).data, tokens * sizeof *losses);
        hellaswag_take(set, row, B, T, losses);
    }
    state_upload(m); // a loss that is not finite has been noted there, but is none of training's
    free(losses);
    free(inputs);
    return (int)comm_sum_i64(m->comm, hellaswag_right(set));
}

static float decode_value(const void *data, Format format, int i) {
    return format == FMT_BF16 ? bf16_decode(((const uint16_t *)data)[i]) : (float)((const real *)data)[i];
}

// FP8 products take tokens in sixteens: how many sequences of T tokens a pass has where one is asked for. The
// micro-batch's tokens are a multiple of 16, so as many fit.
static int sample_sequences(const Config *c, int T) {
    int B = 1;
    bool fp8 = c->recipe.linear == LINEAR_FP8 || c->recipe.head == LINEAR_FP8;
    while (fp8 && B * T % 16 != 0 && B < c->micro_batch) B++;
    return B;
}

// Continues ids[0 .. count) by `more` tokens, each draw of another number than those of other samples.
static void sample(Model *m, int32_t *ids, int count, int more, int number) {
    const Config *c = &m->config;
    int T = c->seq_len, vocab = c->shape.vocab;
    int step = 64 * (1 + (T - 1) / 4096); // passes have at most 64 lengths, as plans of products are kept for each
    int32_t *window = (int32_t *)xcalloc((size_t)config_micro_tokens(c), sizeof *window);
    int rows = c->recipe.head == LINEAR_FP8 ? 16 : 1; // of the head's product
    Tensor few = tensor_rows(act(m, LOGITS, 0), 0, rows);
    size_t bytes = (size_t)vocab * format_bytes(few.format);
    void *raw = xmalloc(bytes);
    float *logits = (float *)xmalloc((size_t)vocab * sizeof *logits);
    for (int n = count; n < count + more && !stop_at_once(m); n++) {
        int length = n < T ? n : T;
        int padded = length + step - 1 < T ? (length + step - 1) / step * step : T;
        int B = sample_sequences(c, padded), first = (length - 1) / rows * rows;
        memset(window, 0, (size_t)B * (size_t)padded * sizeof *window);
        memcpy(window, ids + n - length, (size_t)length * sizeof *ids);
        batch_upload(m, B, padded, window, NULL);
        model_forward(m);
        m->ops->linear_forward(&m->exec, few, tensor_rows(act(m, NF, 0), first, rows), weight(m, WTE, 0), no_tensor());
        m->ops->download(&m->exec, raw, tensor_rows(few, length - 1 - first, 1).data, bytes);
        for (int i = 0; i < vocab; i++) logits[i] = decode_value(raw, few.format, i);
        uint64_t draw = (uint64_t)number << 32 | (uint64_t)n;
        ids[n] = sample_token(logits, vocab, c->temperature, c->top_k, c->top_p, c->seed, draw);
    }
    free(logits);
    free(raw);
    free(window);
}

// Text, or token ids where there is no vocabulary. Of control bytes a terminal gets new lines and tabs, and '?' for the
// others.
static void print_tokens(const Tokenizer *tokenizer, const int32_t *ids, int count, FILE *out) {
    const bool terminal = isatty(fileno(out));
    for (int i = 0; i < count; i++) {
        char text[512];
        size_t length = tokenizer ? tokenizer_decode(tokenizer, ids[i], text, sizeof text) : 0;
        for (size_t at = 0; terminal && at < length; at++)
            if (iscntrl((unsigned char)text[at]) && text[at] != '\n' && text[at] != '\t') text[at] = '?';
        if (tokenizer)
            fwrite(text, 1, length, out);
        else
            fprintf(out, "%d ", ids[i]);
    }
    fprintf(out, "\n");
    fflush(out);
}

static void print_tokens_json(const char *name, const int32_t *ids, int count) {
    printf(",\"%s\":[", name);
    for (int i = 0; i < count; i++) printf(i ? ",%d" : "%d", ids[i]);
    printf("]");
}

// ---------------------------------------------------------------------------------------------------------------
// The run

typedef struct {
    Model model;
    DataLoader *train, *val;
    HellaSwag *hellaswag;
    Tokenizer *tokenizer; // NULL: samples print token ids
    Log *log;
    HealthSaid said;             // by FP8 health
    Saver *saver;                // NULL: nothing is saved
    OutFolder *folder;           // that this process has locked; NULL: none
    RunState done;               // what checkpoints record: steps, position in the data, tokens
    int64_t steps;               // to be done in all
    double start_ms, longest_ms; // when the program began; the longest round of the training loop
    CommPlace place;             // among the processes
    bool agreed;                 // all of them know of the failure that ends the run: the first that failed says why
    int speaker;                 // which is that
    bool others_well;            // it has not failed everywhere: the message names the speaker
    bool save_asked;             // by a signal to any of them
    int32_t *next;               // inputs and targets of a step's micro-batches, (accumulation, 2, B * T)
    Error obstacle;              // to the next step: its data cannot be read, another run has --out; EXIT_DONE: none
    bool obstructed;             // on one of the processes at least
} Run;

static bool due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

// Whether all processes are well; where one is not, all end, and the first of those that are not says why.
static bool together(Run *run, bool good, Error *err) {
    Comm *comm = run->model.comm;
    if (run->agreed) return false; // further inside
    if (comm_all_good(comm, good, err)) return true;
    run->agreed = true;
    run->speaker = run->place.ranks - (int)comm_max_i64(comm, good ? 0 : run->place.ranks - run->place.rank);
    run->others_well = comm_max_i64(comm, good);
    return false;
}

// Reads micro-batch i of the step that begins after `sequences`. Ahead of it, because in the middle of a step processes
// wait for each other: before it begins they can still agree on what becomes of a run whose data cannot be read.
static void read_ahead(Run *run, int64_t sequences, int64_t i) {
    const Config *c = &run->model.config;
    int64_t first = (c->overfit_one_batch ? 0 : sequences) + i * c->micro_batch * run->place.ranks;
    int32_t *inputs = run->next + 2 * i * config_micro_tokens(c);
    if (run->obstacle.code == EXIT_DONE)
        data_batch_at(run->train, first, inputs, inputs + config_micro_tokens(c), &run->obstacle);
}

// One step: micro-batches until batch_tokens are done, then the update. Leaves the results in model.host. Where a
// signal ends the run, what is done of the step is thrown away and done.step stays.
static void train_step(Run *run) {
    Model *m = &run->model;
    const Config *c = &m->config;
    int64_t accumulation = config_accumulation(c, m->exec.ranks), tokens = config_micro_tokens(c);
    int64_t sequences = run->done.sequences + accumulation * c->micro_batch * m->exec.ranks; // after this step
    float loss_scale = (float)(1.0 / ((double)accumulation * (double)tokens * m->exec.ranks));
    step_begin(m, schedule_lr(c, run->done.step, run->steps));
    const bool logs = m->exec.rank == 0; // what FP8 health finds
    const int64_t step = run->done.step + 1;
    m->counts_codes = logs && due(step, c->health_every) && m->arena.layout[CODE_COUNTS][VALUE].exists;
    m->compares_products = logs && due(step, c->health_products) && m->arena.layout[QKVW_REFERENCE][VALUE].exists;
    for (int64_t i = 0; i < accumulation; i++) {
        if (stop_at_once(m)) return;
        const int32_t *inputs = run->next + 2 * i * tokens;
        batch_upload(m, c->micro_batch, c->seq_len, inputs, inputs + tokens);
        micro_step(m, loss_scale, i > 0, i + 1 == accumulation);
        if (run->done.step + 1 < run->steps) read_ahead(run, sequences, i); // while the device computes
    }
    step_end(m);
    run->done.step++;
    run->done.sequences = sequences;
    run->done.tokens += accumulation * tokens * m->exec.ranks;
    run->done.state = m->host;
}

static bool validate(Run *run, Error *err) {
    if (!run->val) return true;
    double loss;
    int batches = data_batches(run->val, run->model.config.val_batches);
    if (!together(run, evaluate(&run->model, run->val, batches, &loss, err), err)) return false;
    if (!stop_at_once(&run->model)) log_val(run->log, run->done.step, loss); // else the resumed run makes up for it
    return true;
}

static void test_hellaswag(Run *run) {
    if (!run->hellaswag) return;
    int right = evaluate_hellaswag(&run->model, run->hellaswag);
    if (!stop_at_once(&run->model)) log_hellaswag(run->log, run->done.step, right, hellaswag_examples(run->hellaswag));
}

#define MOST_PROMPT_TOKENS 4096

// The tokens that samples begin with, of the prompt or the end of text; their number, 0 with err where the prompt
// cannot be used.
static int prompt_tokens(const Run *run, int32_t ids[MOST_PROMPT_TOKENS], Error *err) {
    const Config *c = &run->model.config;
    // a vocabulary without an end-of-text token has one id fewer than the model: begin with its last
    ids[0] = run->tokenizer ? tokenizer_end_of_text(run->tokenizer) : -1;
    if (ids[0] < 0) ids[0] = c->shape.vocab - 1;
    int count = 1;
    if (c->prompt[0]) {
        if (!run->tokenizer) {
            error_set(err, EXIT_USER, "--prompt: text needs a vocabulary; name one with --tokenizer");
            return 0;
        }
        count = tokenizer_encode(run->tokenizer, c->prompt, ids, MOST_PROMPT_TOKENS, err);
        if (count == 0) error_set(err, EXIT_USER, "--prompt is empty");
        if (count <= 0) return 0;
    }
    for (int i = 0; i < count; i++) {
        if (ids[i] >= 0 && ids[i] < c->shape.vocab) continue;
        error_set(err, EXIT_USER, "--tokenizer: token %d is beyond the model's vocabulary of %d", ids[i],
                  c->shape.vocab);
        return 0;
    }
    return count;
}

// The step that an evaluation is of; weights given by --model are as old as their folder's name says.
static int64_t evaluated_step(const Run *run) {
    const Config *c = &run->model.config;
    int64_t named = c->model_from_files && run->done.step == 0 ? checkpoint_step(c->model) : -1;
    return named > 0 ? named : run->done.step;
}

// Samples, from the prompt or from the end-of-text token. With --json standard output is JSON lines: those of the log,
// or, where nothing is trained, one per sample with the tokens, from which text that is no UTF-8 loses nothing.
static bool show_samples(Run *run, Error *err) {
    const Config *c = &run->model.config;
    const bool lines = c->json && !run->train, text = !lines || !c->quiet;
    FILE *out = c->json ? stderr : stdout;
    int32_t prompt[MOST_PROMPT_TOKENS];
    int count = prompt_tokens(run, prompt, err), more = c->sample_tokens;
    if (count == 0) return false;
    int32_t *ids = (int32_t *)xcalloc((size_t)(count + more), sizeof *ids);
    memcpy(ids, prompt, (size_t)count * sizeof *ids);
    for (int i = 0; i < c->samples && !stop_at_once(&run->model); i++) {
        sample(&run->model, ids, count, more, i);
        if (run->place.rank > 0) continue;
        if (text && c->samples > 1) fprintf(out, "--- sample %d of %d\n", i + 1, c->samples);
        if (text) print_tokens(run->tokenizer, ids, count + more, out);
        if (!lines) continue;
        printf("{\"step\":%lld", (long long)evaluated_step(run));
        print_tokens_json("prompt", ids, count);
        print_tokens_json("sample", ids + count, more);
        printf("}\n");
        fflush(stdout);
    }
    free(ids);
    return true;
}

// The last moment at which a save may begin; 0: there is no limit.
static double deadline(const Run *run) {
    double limit = (double)run->model.config.time_limit_ms, spare = fmin(0.05 * limit, 20e3); // to end the process in
    double saves = run->saver ? 2.4 * saver_expected_ms(run->saver) : 0.0;
    return limit > 0 ? run->start_ms + limit - spare - saves : 0.0;
}

static bool time_is_up(const Run *run) {
    // once an evaluation has been given up for it, a save that was faster than expected does not put it off
    if (stop_at_once(&run->model)) return true;
    double last = deadline(run);
    return last > 0 && now_ms() + 1.2 * run->longest_ms > last;
}

// What ends the run before its last step: a signal, or --time-limit, if another round of the loop and the saves after
// it might take longer than what is left. NULL: nothing. Processes agree on it: what one wants, all do. And on whether
// something keeps one of them from the next step.
static const char *end_early(Run *run) {
    enum { SAVE = 1, OBSTACLE, TIME_LIMIT, SIGNAL }; // the largest wish counts
    int64_t wish = signals_stop()                    ? SIGNAL + signals_stop()
                   : time_is_up(run)                 ? TIME_LIMIT
                   : run->obstacle.code != EXIT_DONE ? OBSTACLE
                                                     : 0;
    if (run->place.ranks > 1) {
        if (wish == 0 && signals_take_save()) wish = SAVE;
        wish = comm_max_i64(run->model.comm, wish);
        run->save_asked = wish == SAVE;
    }
    run->obstructed = wish == OBSTACLE;
    return wish > SIGNAL ? signals_name((int)wish - SIGNAL) : wish == TIME_LIMIT ? "--time-limit" : NULL;
}

// Whether nothing keeps any process from the next step, as end_early() found.
static bool can_go_on(Run *run, Error *err) {
    if (!run->obstructed) return true;
    *err = run->obstacle;
    return together(run, err->code == EXIT_DONE, err);
}

// Waits for the last save, on all processes.
static bool finish_saving(Run *run, Error *err) {
    comm_patience(run->model.comm, SAVER_PATIENCE);
    bool saved = together(run, !run->saver || saver_finish(run->saver, err), err);
    comm_patience(run->model.comm, 0);
    return saved;
}

// Saves where the run stands, from which it is resumed with the bits that it would have had.
static bool stop(Run *run, const char *reason, int64_t begun, Error *err) {
    const Config *c = &run->model.config;
    bool saves = run->saver && run->done.step > begun;
    if (saves) saver_save_last(run->saver, &run->done);
    if (!finish_saving(run, err)) return false;
    if (run->place.rank > 0) return true;
    log_show_step(run->log);
    fprintf(stderr, "ended by %s after step %lld of %lld: %s%s\n", reason, (long long)run->done.step,
            (long long)run->steps,
            saves        ? "saved; go on with --resume in "
            : run->saver ? "no step was done since the run began or was resumed in "
                         : "nothing is saved without --out",
            c->out);
    return true;
}

// An error that is not the training's own, of data for example, takes nothing of what is done: weights and states are
// those after the last whole step. Several processes save only what ends all of them between steps. The saver's end
// waits, and says how it went.
static void rescue(Run *run, int64_t begun, Error *err) {
    Comm *comm = run->model.comm;
    if (!run->saver || (run->place.ranks > 1 && !run->agreed)) return;
    bool saves = run->done.step > begun && err->code != EXIT_DIVERGED;
    if (saves) saver_save_last(run->saver, &run->done);
    comm_patience(comm, SAVER_PATIENCE);
    saver_is_taken(run->saver, err);
    saver_close(run->saver); // waits for what is still being written, of a run that diverged too
    run->saver = NULL;
    comm_barrier(comm);
    comm_patience(comm, 0);
}

// Says where an outlier was skipped; false where too many updates in a row were.
static bool check_skips(Run *run, Error *err) {
    const Model *m = &run->model;
    if (m->host.nonfinite == SKIP_OUTLIER)
        log_text(run->log, "step %lld is an outlier: its update is skipped", (long long)run->done.step);
    if (m->config.max_skipped == 0 || m->host.skipped_run < m->config.max_skipped) return true;
    run->agreed = true; // by the same numbers
    return error_set(err, EXIT_DIVERGED,
                     "training diverged: %lld update%s in a row had %s loss or gradient; resume from an earlier "
                     "checkpoint with a smaller --lr",
                     (long long)m->host.skipped_run, plural(m->host.skipped_run),
                     m->guard ? "an outlying or non-finite" : "a non-finite");
}

// A step that is skipped warns of itself; what FP8 health finds in it says nothing of the codes.
static HealthSaid *said_of_step(Run *run) {
    return run->model.host.nonfinite ? NULL : &run->said;
}

// How the FP8 tensors fit their scales, from what the step left in memory; of the process that writes the log.
static void log_health(Run *run) {
    Model *m = &run->model;
    char warning[HEALTH_WARNING];
    if (m->exec.rank != 0) return;
    shards_settle(&m->shards); // the weights' codes are those of this step's update, whatever the stage
    char *json = health_json(&m->arena, &m->exec, said_of_step(run), warning);
    if (json) log_object(run->log, run->done.step, "fp8", json);
    if (warning[0]) log_show_step(run->log);
    if (warning[0]) log_text(run->log, "%s", warning);
    free(json);
}

// How far the weight gradients by FP8 products are from BF16's, as the step has found.
static void log_products(Run *run) {
    Model *m = &run->model;
    char warning[HEALTH_WARNING];
    if (m->exec.rank != 0) return;
    char *json = health_products_json(&m->arena, &m->exec, said_of_step(run), warning);
    log_object(run->log, run->done.step, "products", json);
    if (warning[0]) log_show_step(run->log);
    if (warning[0]) log_text(run->log, "%s", warning);
    free(json);
}

// How much of each of several sets of data has been read, in the log or as lines for people.
static void log_sets(Run *run, bool as_text) {
    const int sets = data_sets(run->train);
    if (sets == 1 || run->model.config.overfit_one_batch) return;
    const int T = run->model.config.seq_len;
    JsonText t;
    memset(&t, 0, sizeof t);
    json_text_open(&t, NULL, '[');
    for (int k = 0; k < sets; k++) {
        const DataSet set = data_set(run->train, k, run->done.sequences);
        if (as_text)
            log_text(run->log, "%s: %lld sequence%s, %lld token%s, %.3g epoch%s", set.name, (long long)set.seen,
                     plural(set.seen), (long long)(set.seen * T), plural(set.seen * T), set.epochs, plural(set.epochs));
        json_text_open(&t, NULL, '{');
        json_text_string(&t, "set", set.name);
        json_text_int(&t, "sequences", set.seen);
        json_text_int(&t, "tokens", set.seen * T);
        json_text_double(&t, "epochs", set.epochs);
        json_text_close(&t, '}');
    }
    json_text_close(&t, ']');
    if (!as_text) log_object(run->log, run->done.step, "train", t.text);
    json_text_free(&t);
}

static int64_t hellaswag_every(const Config *c) {
    return c->hellaswag_every < 0 ? c->val_every : c->hellaswag_every;
}

// The evaluations, of those asked for, that the end of the run before came across: the log does not have them.
static bool make_up(Run *run, bool val, bool hellaswag, Error *err) {
    Comm *comm = run->model.comm;
    bool first = run->place.rank == 0;
    if (comm_max_i64(comm, first && val && !log_has_val(run->log, run->done.step)) && !validate(run, err)) return false;
    if (comm_max_i64(comm, first && hellaswag && !log_has_hellaswag(run->log, run->done.step))) test_hellaswag(run);
    return true;
}

// Of one process of a machine after the other, so that each sees how much memory the others have left. (They wait with
// the patience of run_all(), as for files.)
static void open_saver(Run *run) {
    Model *m = &run->model;
    int64_t last = comm_max_i64(m->comm, run->place.local_rank);
    for (int64_t turn = 0; turn <= last; turn++) {
        if (turn == run->place.local_rank) run->saver = saver_open(&m->config, &m->arena, &m->exec, run->log);
        comm_barrier(m->comm);
    }
    if (run->folder) saver_watch(run->saver, run->folder);
}

// The training loop.
static bool train(Run *run, Error *err) {
    Model *m = &run->model;
    const Config *c = &m->config;
    const int64_t begun = run->done.step;
    const char *reason = NULL;
    if (c->out[0]) open_saver(run);
    error_saved(c->out, begun);
    bool ok = m->exec.ranks == 1 || !run->saver || saver_share(run->saver, &m->shards, err);
    ok = together(run, ok, err);
    comm_patience(m->comm, 0);
    if (ok && begun > 0) ok = make_up(run, due(begun, c->val_every), due(begun, hellaswag_every(c)), err);
    int64_t accumulation = config_accumulation(c, m->exec.ranks);
    run->next = (int32_t *)xmalloc((size_t)(2 * accumulation * config_micro_tokens(c)) * sizeof(int32_t));
    for (int64_t i = 0; ok && i < accumulation; i++) read_ahead(run, run->done.sequences, i);
    while (ok && run->done.step < run->steps && !(reason = end_early(run))) {
        double begin = now_ms();
        m->deadline_ms = run->done.step > begun ? deadline(run) : 0; // one step at least
        float lr = schedule_lr(c, run->done.step, run->steps);
        int64_t before = run->done.tokens;
        ok = can_go_on(run, err);
        bool marked = ok && run->done.step + 1 == c->profile;
        if (marked) m->ops->profile(&m->exec, true);
        if (ok) train_step(run);
        if (marked) m->ops->profile(&m->exec, false);
        if (!ok || run->done.tokens == before) continue;
        int64_t step = run->done.step;
        bool last = step == run->steps, save = run->save_asked || last || due(step, c->save_every);
        if (run->place.ranks == 1 && signals_take_save()) save = true;
        log_step(run->log, step, m->host.loss_sum, m->host.grad_norm, lr, now_ms() - begin, run->done.tokens,
                 run->done.tokens - before, m->host.skipped);
        if (due(step, c->health_every)) log_health(run);
        if (due(step, c->health_products)) log_products(run);
        if (last || due(step, c->val_every)) log_sets(run, false);
        ok = check_skips(run, err);
        if (ok && run->saver && save) saver_save(run->saver, &run->done); // before what may fail or take long
        if (ok && (last || due(step, c->val_every))) ok = validate(run, err);
        if (ok && (last || due(step, hellaswag_every(c)))) test_hellaswag(run);
        if (ok && c->sample_tokens > 0 && (last || due(step, c->sample_every))) {
            log_show_step(run->log);
            ok = together(run, show_samples(run, err), err);
        }
        if (run->saver) saver_poll(run->saver, &run->obstacle);
        if (ok) ok = comm_check(m->comm, err);
        run->longest_ms = fmax(run->longest_ms, now_ms() - begin);
    }
    free(run->next);
    if (!ok) {
        rescue(run, begun, err);
        return false;
    }
    log_sets(run, true);
    if (!reason && stop_at_once(m)) reason = end_early(run); // during the last validation
    if (reason) return stop(run, reason, begun, err);
    if (run->saver) saver_save_last(run->saver, &run->done);
    return finish_saving(run, err);
}

// Opens the vocabulary; training goes on without one.
static bool open_tokenizer(Run *run, const Config *c, Error *err) {
    Error ignored;
    const bool with_model = c->shape_files[0] && (c->model_from_files || !config_trains(c)); // not of a run's own
    if (c->tokenizer == TOKENIZER_BYTES || (c->shape.vocab == 257 && !c->tokenizer_file[0])) {
        run->tokenizer = tokenizer_bytes();
        if (with_model && c->shape.vocab != 257)
            return error_set(
                err, EXIT_USER,
                "--tokenizer bytes: it has 257 tokens, and the model's vocabulary %d; name the vocabulary that "
                "the model was trained with",
                c->shape.vocab);
    } else if (c->tokenizer_file[0]) {
        run->tokenizer = tokenizer_open(c->tokenizer_file, err);
        return run->tokenizer && config_check_tokenizer(c, tokenizer_vocab(run->tokenizer), err);
    } else if (with_model) {
        run->tokenizer = tokenizer_open(c->shape_files, &ignored); // the vocabulary that lies with the model
    }
    return true;
}

static bool open_data(Run *run, const Config *c, Error *err) {
    int B = c->micro_batch, T = c->seq_len, vocab = c->shape.vocab;
    const Exec *ex = &run->model.exec;
    if (config_trains(c)) {
        run->train =
            data_open_sets(c->train, config_weights(c), B, T, ex->rank, ex->ranks, c->seed, c->shuffle, vocab, err);
        if (!run->train) return false;
    }
    if (c->val[0]) {
        run->val = data_open(c->val, B, T, 0, 1, c->seed, false, vocab, err);
        if (!run->val) return false;
    }
    if (c->hellaswag[0]) {
        run->hellaswag = hellaswag_open(c->hellaswag, T, vocab, err);
        if (!run->hellaswag) return false;
    }
    return true;
}

#define LEAST_WITHOUT_BYTES 1024 // tokens of a vocabulary that is not one of bytes

static void note_bytes(DataLoader *loader) {
    const char *bytes, *other;
    if (loader && data_mixes_bytes(loader, &bytes, &other))
        fprintf(stderr,
                "note: the tokens of %s look like bytes, those of %s do not: were they made with the same tokenizer?\n",
                bytes, other);
    else if (loader && data_begins_with_bytes(loader))
        fprintf(stderr, "note: %s: the tokens look like bytes; those of prepare_bytes want --tokenizer bytes\n",
                data_set(loader, 0, 0).name);
}

// What looks like a mistake in the choice of files.
static void note_data(Run *run) {
    const Config *c = &run->model.config;
    const char *shared = run->train && run->val ? data_shared_file(run->train, run->val) : NULL;
    if (c->tokenizer != TOKENIZER_BYTES && c->shape.vocab >= LEAST_WITHOUT_BYTES) {
        note_bytes(run->train);
        note_bytes(run->val);
    }
    if (shared)
        fprintf(stderr, "note: %s is in --train and --val: the validation loss is of text that is trained on\n",
                shared);
}

// Whether a checkpoint was trained on the data that --train names; if not, that has to be meant.
static bool same_data(Run *run, const char *folder, Error *err) {
    char now[sizeof run->done.data];
    uint64_t fingerprint = data_fingerprint(run->train);
    if (run->done.data_fingerprint == fingerprint) return true;
    data_describe(run->train, now, sizeof now);
    if (!run->model.config.allow_other_data)
        return error_set(
            err, EXIT_DATA,
            "%s was trained on other data (%s; fingerprint %016llx) than --train names now (%s; "
            "fingerprint %016llx): name the same files in the same order and with the same weights, or go on with "
            "these by --allow-other-data",
            folder, run->done.data[0] ? run->done.data : "not described",
            (unsigned long long)run->done.data_fingerprint, now, (unsigned long long)fingerprint);
    if (run->place.rank == 0) fprintf(stderr, "note: %s was trained on other data than --train names now\n", folder);
    return true;
}

// The checkpoint to resume from, "" if there is none. Rank 0 looks at every byte, and tells the others the step.
static bool find_checkpoint(Run *run, char *folder, size_t size, Error *err) {
    const Config *c = &run->model.config;
    bool first = run->place.rank == 0;
    if (!together(run, !first || checkpoint_find(c->out, c->resume_step, folder, size, err), err)) return false;
    int64_t step = comm_max_i64(run->model.comm, first && folder[0] ? checkpoint_step(folder) : -1);
    return step < 0 || checkpoint_folder(c->out, step, folder, size, err);
}

// The parameters' values and where the run stands: from a checkpoint, from given weights, or fresh.
static bool start_or_resume(Run *run, Error *err) {
    Model *m = &run->model;
    const Config *c = &m->config;
    char folder[PATH_MAX_LENGTH] = "";
    if (c->resume && !find_checkpoint(run, folder, sizeof folder, err)) return false;
    // with --quiet too: who resumes means days that are done
    if (c->resume && !folder[0] && run->train && m->exec.rank == 0)
        fprintf(stderr, "note: --resume: no checkpoint in %s, starting from the beginning\n", c->out);
    if (folder[0]) {
        if (!together(run, checkpoint_load(folder, &m->arena, &m->exec, &run->done, err), err)) return false;
        if (run->train && !same_data(run, folder, err)) return false;
        m->host = run->done.state;
        state_upload(m);
        if (!c->quiet && m->exec.rank == 0) fprintf(stderr, "resuming from %s\n", folder);
        if (c->settings_recorded && c->recorded_step != run->done.step && m->exec.rank == 0)
            fprintf(stderr,
                    "note: settings that no flag names are those of step %lld, whose checkpoint could not be used\n",
                    (long long)c->recorded_step);
    } else if (c->resume && !run->train) {
        return error_set(err, EXIT_DATA, "--resume: there is no checkpoint in %s; is --out the run's folder?", c->out);
    } else if (c->model_from_files) {
        if (!checkpoint_load_weights(c->model, &m->arena, &m->exec, err)) return false;
    } else {
        parameters_init(&m->arena, &m->exec, c->seed);
    }
    if (!c->quiet && m->exec.rank == 0 && !(run->train && folder[0])) note_data(run);
    if (run->train) {
        run->done.data_fingerprint = data_fingerprint(run->train);
        data_describe(run->train, run->done.data, sizeof run->done.data);
    }
    if (c->skip_loss_z > 0 || c->skip_grad_z > 0) m->guard = &run->done.guard;
    shards_weights_loaded(&m->shards);
    return true;
}

static void report(Run *run) {
    Model *m = &run->model;
    const Report page = {&m->config, &m->exec,       &m->arena,  run->train,
                         run->val,   run->hellaswag, run->steps, run->done.step};
    const bool results = m->config.json || (m->config.prompt[0] && !run->train); // has standard output for itself
    if (!m->config.quiet && m->exec.rank == 0) report_start(&page, results ? stderr : stdout);
}

static bool is_common(Run *run, int64_t mine) {
    int64_t least = -comm_max_i64(run->model.comm, -mine);
    return comm_max_i64(run->model.comm, mine) == least;
}

// Each process has chosen the recipe by the files and the GPUs that it sees, and what else --resume takes by the files;
// those of other machines may differ.
static bool same_settings(Run *run, Error *err) {
    const Config *c = &run->model.config;
    const bool recipe = is_common(run, recipe_fingerprint(c)), course = is_common(run, course_fingerprint(c));
    if (recipe && course) return true;
    run->agreed = true;
    if (!recipe)
        return error_set(
            err, EXIT_USER,
            "--recipe: the processes have not the same, by what they see of GPUs and checkpoints; name one "
            "(--recipe bf16 where a GPU has no FP8)");
    if (c->resume)
        return error_set(err, EXIT_USER,
                         "--resume: the processes go on with different settings, by what they see of checkpoints in "
                         "%s; all must see the same folder",
                         c->out);
    return error_set(err, EXIT_USER,
                     "the processes have different flags of model, batch or optimizer; start all with the same");
}

// What another course than this run's has left in --out is set aside, or deleted with --overwrite.
static bool leave_old_course(Run *run, Error *err) {
    const Config *c = &run->model.config;
    if (!log_set_aside(c, run->done.step + 1, err)) return false;
    bool leaves = run->done.step > 0 && run->done.step < run->steps;
    if (leaves && !checkpoint_set_aside(c->out, run->done.step, c->resume_step < 0, err)) return false;
    return out_clear(c, err);
}

static void log_settings(const Run *run) {
    JsonText text;
    settings_text(&text, &run->model.config, run->model.exec.ranks);
    log_object(run->log, run->done.step, "settings", text.text);
    json_text_free(&text);
}

// Whether the disk of --out has room for a checkpoint of all processes; a note where it has none for all of them.
static bool has_room(Run *run, Error *err) {
    Model *m = &run->model;
    const Config *c = &m->config;
    char note[PATH_MAX_LENGTH + 256];
    OutRoom room;
    int64_t bytes = comm_sum_i64(m->comm, saver_bytes(&m->arena, &m->exec));
    if (m->exec.rank > 0 || !out_room(c, &room)) return true;
    if (!out_fits(c, room, run->done.step, run->steps, (double)bytes, note, sizeof note, err)) return false;
    if (note[0] && !c->quiet) fprintf(stderr, "note: %s\n", note);
    return true;
}

static bool run_all(Run *run, const Config *config, Error *err) {
    Model *m = &run->model;
    bool created = model_create(m, config, &run->place, err);
    if (!m->comm || !together(run, created, err)) return false;
    if (!same_settings(run, err)) return false;
    comm_patience(m->comm, LOADING_PATIENCE);
    if (!together(run, open_tokenizer(run, config, err), err)) return false;
    if (!together(run, open_data(run, config, err), err)) return false;
    if (!together(run, start_or_resume(run, err), err)) return false;
    comm_patience(m->comm, 0);
    const Config *c = &m->config;
    int64_t step_tokens = config_accumulation(c, m->exec.ranks) * config_micro_tokens(c) * m->exec.ranks;
    run->steps = c->steps;
    if (run->train && c->steps < 0) run->steps = data_sequences(run->train) * c->seq_len / step_tokens;
    if (run->train && c->steps < 0 && run->steps == 0) {
        run->agreed = true; // they count the same tokens
        return error_set(err, EXIT_DATA, "--train: %lld token%s fewer than the %lld of one step; lower --batch-tokens",
                         (long long)data_tokens(run->train), data_tokens(run->train) == 1 ? " is" : "s are",
                         (long long)step_tokens);
    }
    int32_t ids[MOST_PROMPT_TOKENS]; // a prompt that cannot be used is found now, not at the end
    bool usable = !c->prompt[0] || c->sample_tokens == 0 || prompt_tokens(run, ids, err) > 0;
    if (usable && run->train && c->resume_step >= 0 && run->done.step >= run->steps)
        usable = error_set(err, EXIT_USER, "--resume=%lld: --steps %lld are done by then; ask for more of them",
                           (long long)c->resume_step, (long long)run->steps);
    if (usable && run->train && c->profile > run->steps) // one that is past may be: the same command resumes the run
        usable = error_set(err, EXIT_USER, "--profile %lld: the run ends with step %lld; name one of its steps",
                           (long long)c->profile, (long long)run->steps);
    if (!together(run, usable, err)) return false;
    if (run->train && run->done.step > 0 && c->steps < 0 && !c->quiet && m->exec.rank == 0)
        fprintf(stderr, "note: --steps: without it the run goes on to step %lld, one pass over the data\n",
                (long long)run->steps);
    if (!run->tokenizer && !c->eval_only && c->sample_tokens > 0 && !c->quiet && m->exec.rank == 0)
        fprintf(stderr, "note: no vocabulary file (--tokenizer FILE), so samples print token ids\n");
    if (run->train && c->schedule != SCHEDULE_CONSTANT && c->lr_final == 1.0f && !c->quiet && m->exec.rank == 0)
        fprintf(stderr, "note: --schedule %s: --lr-final 1 keeps the rate constant; 0 lets it fall\n",
                schedule_name(c->schedule));
    report(run);
    if (c->eval_only && run->val) {
        double loss;
        int batches = data_batches(run->val, c->val_batches);
        if (!together(run, evaluate(m, run->val, batches, &loss, err), err)) return false;
        if (m->exec.rank == 0)
            printf(c->json ? "{\"step\":%lld,\"val_loss\":%.9g}\n" : "step %lld  val loss %.6f\n",
                   (long long)evaluated_step(run), loss);
    }
    if (c->eval_only && run->hellaswag) {
        int examples = hellaswag_examples(run->hellaswag);
        double share = (double)evaluate_hellaswag(m, run->hellaswag) / examples;
        if (m->exec.rank == 0)
            printf(c->json ? "{\"step\":%lld,\"hellaswag\":%.9g}\n" : "step %lld  HellaSwag %.6f of %d\n",
                   (long long)evaluated_step(run), share, examples);
    }
    if (!run->train) return !c->prompt[0] || together(run, show_samples(run, err), err);
    if (c->out[0] && run->done.step < run->steps && !together(run, has_room(run, err), err)) return false;
    // until here nothing in --out has been touched: who ends the run now finds the old one as it was
    int64_t number = comm_max_i64(m->comm, signals_stop());
    if (number && m->exec.rank == 0)
        fprintf(stderr, "ended by %s before the first step: nothing was changed%s%s\n", signals_name((int)number),
                c->out[0] ? " in " : "", c->out);
    if (number) return true;
    comm_patience(m->comm, LOADING_PATIENCE); // rank 0 may have a large old run to delete; train() ends it
    if (!together(run, !c->out[0] || m->exec.rank > 0 || leave_old_course(run, err), err)) return false;
    int64_t total = run->steps > run->done.step ? run->steps : run->done.step;
    run->log = log_open(c, m->exec.rank, total, run->done.step + 1, m->ops->peak_flops(&m->exec) * m->exec.ranks,
                        model_parameters(&c->shape), err);
    if (!together(run, run->log != NULL, err)) return false;
    log_resume(run->log, run->done.state.skipped);
    if (run->done.step == 0 || run->done.other_settings) log_settings(run);
    if (run->done.step < run->steps) return train(run, err);
    log_text(run->log, "nothing to do: the run stands at step %lld, and %lld are asked for; more come by --steps",
             (long long)run->done.step, (long long)run->steps);
    comm_patience(m->comm, 0);
    return validate(run, err) && make_up(run, false, true, err);
}

int main(int argc, char **argv) {
    static Config config;
    static Run run;
    static OutFolder folder;
    run.start_ms = now_ms();
    Error err = {EXIT_DONE, ""};
    bool exit_now = false;
    CommPlace *place = &run.place;
    run.agreed = true; // what the flags lead to is the same everywhere
    bool ok = config_parse(&config, argc, argv, &exit_now, &err);
    Error why;
    bool found = comm_discover(&config, place, ok ? &err : &why);
    if (ok && !exit_now) {
        ok = found && out_check(&config, &err);
        if (ok && config.shape_files[0]) ok = model_shape_from_files(config.shape_files, &config.shape, &err);
#ifdef COAT_CUDA
        if (ok && !config.plan && config.device != DEVICE_CPU) {
            config.no_gpu = !cuda_present();
            cuda_find_fp8(place->local_rank, place->local_ranks, config.gpu_without_fp8, sizeof config.gpu_without_fp8);
        }
#endif
        if (ok) ok = config_check(&config, config.plan ? config.gpus : place->ranks, &err);
        if (ok && place->rank == 0) fputs(config.notes, stderr);
        if (ok && config.plan) {
            ok = plan_print(&config, stdout, &err);
        } else if (ok) {
            config.threads = shards_threads(&config, place->local_ranks);
            bool trains = config_trains(&config);
            bool writes = trains && config.out[0] && place->rank == 0;
            if (trains) signals_open();
            ok = !writes || out_prepare(&config, &folder, &err);
            if (ok && writes) run.folder = &folder;
            run.agreed = false;
            ok = ok && run_all(&run, &config, &err);
            if (!ok && !run.agreed && place->ranks > 1) {
                fprintf(stderr, "error: rank %d: %s\n", place->rank, err.text);
                comm_abort(run.model.comm, err.code);
            }
            saver_close(run.saver);
            log_close(run.log);
            data_close(run.train);
            data_close(run.val);
            hellaswag_close(run.hellaswag);
            tokenizer_close(run.tokenizer);
            model_destroy(&run.model);
            if (writes) out_close(&folder);
        }
    }
    if (ok && (fflush(stdout) != 0 || ferror(stdout)))
        ok = error_set(&err, EXIT_DATA,
                       "standard output could not be written: its reader has ended, or the disk is full");
    char who[32] = "";
    if (run.others_well) snprintf(who, sizeof who, "rank %d: ", run.speaker);
    if (!ok && (!run.agreed || run.place.rank == run.speaker)) fprintf(stderr, "error: %s%s\n", who, err.text);
    return ok ? EXIT_DONE : (int)err.code;
}
#endif
