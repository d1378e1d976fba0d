// Implements the operations of ops.h on a device that computes nothing and records which memory each operation reads
// and writes: all memory that the CPU or the GPU backend accesses.
#pragma once
#include "dev/test/order_tensors.h"

// --- device functions that record accesses: upload, download, zero ------------------------------------------------

static bool order_open(Exec *exec, const Config *config, Error *err) {
    return true;
}
static void *order_allocate(Exec *exec, size_t bytes, Error *err) {
    return order.base;
}
static void order_release(Exec *exec, void *memory) {}
static void order_nothing(Exec *exec) {}
static void order_range_push(Exec *exec, const char *name) {}

// Records an upload of `bytes` bytes. An upload of tokens begins a new pass.
static void order_upload(Exec *exec, void *device, const void *host, size_t bytes) {
    begin("upload");
    if (offset_of(device) == order.arena->layout[TOKENS][VALUE].data_offset) order.pass++;
    if (bytes) write_memory(device, bytes);
}

// Records that the host reads results of earlier operations. The host's wait does not order the communication stream.
static void order_download(Exec *exec, void *host, const void *device, size_t bytes) {
    begin("download");
    if (bytes) read_memory(device, bytes);
}

static void order_zero(Exec *exec, void *device, size_t bytes) {
    begin("zero");
    if (bytes) write_as(device, bytes, ZEROS, order.pass);
}

// Returns false, so that no CUDA graph is replayed and every pass is recorded. Sets order.recording, because a
// micro-batch that could be replayed must not communicate.
static bool order_replay_begin(Exec *exec, int id) {
    order.recording = true;
    return false;
}
static void order_replay_end(Exec *exec, int id) {
    order.recording = false;
}

// Returns qkv without the columns of v if bench_traffic counts bytes, because the GPU accesses v only to clip it.
static Tensor without_values(Tensor qkv, const QkRope *heads) {
    if (count_access && !(heads->clip > 0))
        qkv.cols = (int64_t)(heads->shape.heads + heads->shape.kv_heads) * heads->shape.head_dim;
    return qkv;
}

// --- operations of the forward pass -------------------------------------------------------------------------------

static void order_embed_forward(Exec *exec, Tensor r, Tensor tokens, Tensor positions, Tensor wte, Tensor wpe, int T) {
    begin("embed_forward");
    reads(positions);
    wpe.rows = T;
    reads(tokens);
    reads(wte);
    reads(wpe);
    writes(r);
}

static void order_residual_norm_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y,
                                        Tensor y_bias) {
    begin("residual_norm_forward");
    const bool moved = y.data || !same_memory(r_out.data, r_in.data);
    const bool saves = !same_memory(norm.x.data, r_out.data) && (y.data || !same_memory(norm.x.data, r_in.data));
    reads(r_in);
    reads(y);
    if (y.data) reads_data(y_bias);
    if (moved) writes(r_out);
    if (saves) writes(norm.x);
    if (saves && norm.x.granularity == SCALE_GROUP) may_raise(exec->state);
    writes_data(norm.mean);
    writes_data(norm.rstd);
    reads_data(norm.weight);
    reads_data(norm.bias);
    reads(r_out.data ? r_out : r_in);
    if (saves) reads(norm.x);
    if (codes(n)) {
        quantizes(exec, n);
    } else {
        writes(n);
        writes_maxima(n);
    }
}

static void order_postnorm_residual_forward(Exec *exec, Tensor n, Norm norm, Tensor r_out, Tensor r_in, Tensor y) {
    const bool moved = y.data || !same_memory(r_out.data, r_in.data),
               wanted = n.data && !same_memory(n.data, r_out.data);
    if (!moved && !wanted) return;
    begin("postnorm_residual_forward");
    reads(r_in);
    reads(y);
    if (y.data) {
        writes(norm.x);
        if (norm.x.granularity == SCALE_GROUP) may_raise(exec->state);
        writes_data(norm.mean);
        writes_data(norm.rstd);
        reads_data(norm.weight);
        reads_data(norm.bias);
        reads(norm.x);
    }
    if (moved) writes(r_out);
    reads(r_out);
    if (codes(n))
        quantizes(exec, n);
    else if (wanted)
        writes(n);
}

static void order_linear_forward(Exec *exec, Tensor y, Tensor x, Weight w, Tensor bias) {
    begin("linear_forward");
    reads_data(x);
    // A matmul does not read row scales, because its output is stored without them.
    if (x.granularity != SCALE_ROW) reads_scale(x);
    reads(codes(x) ? w.codes : w.value);
    reads_data(bias);
    writes_data(y);
}

static void order_qk_norm_rope_forward(Exec *exec, Tensor out, Tensor qkv, QkRope heads) {
    if (same_memory(out.data, qkv.data) && !qk_norm_rope_active(&heads)) return;
    begin("qk_norm_rope_forward");
    if (same_memory(out.data, qkv.data)) out = qkv = without_values(qkv, &heads);
    reads(heads.positions);
    reads(qkv);
    reads(heads.rope_table);
    reads_data(heads.q_weight);
    reads_data(heads.k_weight);
    writes(out);
}

static void order_attention_forward(Exec *exec, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor positions,
                                    AttentionShape shape) {
    begin("attention_forward");
    reads(positions);
    reads(q);
    order.kept = k.rows > q.rows; // true while reading rows of earlier passes of the sample (KV cache)
    reads(tensor_rows(k, 0, k.rows - q.rows));
    reads(tensor_rows(v, 0, v.rows - q.rows));
    order.kept = false;
    reads(tensor_rows(k, k.rows - q.rows, q.rows));
    reads(tensor_rows(v, v.rows - q.rows, q.rows));
    writes(o);
    writes(lse);
}

static void order_quantize_forward(Exec *exec, Tensor q, Tensor x) {
    if (!q.data || (same_memory(q.data, x.data) && !q.amax)) return;
    begin("quantize_forward");
    reads(x);
    if (same_memory(q.data, x.data))
        writes_maxima(q);
    else
        quantizes(exec, q);
}

static void order_activation_forward(Exec *exec, Tensor g, Tensor h, Tensor y, Tensor bias, bool from_saved,
                                     ActivationKind kind) {
    const bool complete = same_memory(h.data, y.data) && !bias.data;
    if (complete && !g.data) return;
    begin("activation_forward");
    reads(y);
    reads_data(bias);
    if (!complete) writes(h);
    if (!complete && h.granularity == SCALE_GROUP) may_raise(exec->state);
    reads(h);
    if (codes(g))
        quantizes(exec, g);
    else
        writes(g);
}

// Records the loss and the transposed FP8 gradient. The transpose is a second operation, which reads the FP8 gradient
// and may overwrite the logits.
static void order_loss_forward_backward(Exec *exec, Tensor dlogits, Tensor dlogits_t, Tensor losses, Tensor best,
                                        Tensor logits, Tensor targets, int64_t first, int vocab, StepState *state) {
    begin("loss_forward_backward");
    read_memory(&state->loss_scale, sizeof state->loss_scale);
    read_memory(&state->seed, sizeof state->seed);
    read_memory(&state->t, sizeof state->t);
    reads(logits);
    reads(targets);
    writes(losses);
    writes(best);
    writes(dlogits);
    if (codes(dlogits)) {
        begin("loss_forward_backward");
        reads(dlogits);
        writes_transposed(dlogits_t, dlogits);
    }
    may_raise(state);
}

static void order_loss_sum(Exec *exec, Tensor losses, StepState *state) {
    begin("loss_sum");
    read_memory(&state->loss_scale, sizeof state->loss_scale);
    reads(losses);
    read_memory(&state->loss_sum, sizeof state->loss_sum);
    write_memory(&state->loss_sum, sizeof state->loss_sum);
}

// --- operations of vision towers ------------------------------------------------------------------------------------

static void order_patches_forward(Exec *exec, Tensor out, Tensor pixels, Tensor table, int side, int patch, int T) {
    begin("patches_forward");
    reads(pixels);
    reads(table);
    writes(out);
}

static void order_image_embed_forward(Exec *exec, Tensor r, Tensor y, Tensor class_row, Tensor wpe, int T) {
    begin("image_embed_forward");
    reads(y);
    reads(class_row);
    reads(wpe);
    writes(r);
}

static void order_rows_gather(Exec *exec, Tensor out, Tensor in, Tensor index, bool keep) {
    begin("rows_gather");
    reads(index);
    reads(in);
    if (keep) reads(out); // records a read, because rows of `out` with index -1 keep their contents
    writes(out);
}

// --- operations of the backward pass ------------------------------------------------------------------------------

static void order_embed_backward(Exec *exec, Tensor dwte, Tensor dwpe, Tensor g, Tensor tokens, Tensor positions, int T,
                                 bool accumulate) {
    begin("embed_backward");
    reads(positions);
    reads(g);
    reads(tokens);
    sums(dwte, true); // adds to the weight gradient that the output head has written to dwte
    sums(dwpe, accumulate);
}

static void order_norm_recompute(Exec *exec, Tensor n_t, Tensor n, Norm norm) {
    if (!n_t.data || same_memory(n_t.data, n.data)) return;
    begin("norm_recompute");
    if (n.data && (format_is_fp8(n.format) || !format_is_fp8(n_t.format))) {
        reads(n);
    } else {
        reads_norm(norm);
        reads_data(norm.bias);
    }
    writes_transposed(n_t, n);
}

static void order_norm_backward(Exec *exec, Tensor g, Tensor dweight, Tensor dbias, Tensor dn, Norm norm, bool add,
                                bool accumulate) {
    begin("norm_backward");
    reads(dn);
    reads_norm(norm);
    sums(g, add);
    writes_maxima(g);
    sums(dweight, accumulate);
    sums(dbias, accumulate);
}

static void order_residual_backward(Exec *exec, Tensor g, Tensor dn) {
    begin("residual_backward");
    reads(dn);
    sums(g, true);
}

static void order_grad_quantize(Exec *exec, Tensor dy_q, Tensor dy_qt, Tensor dbias, Tensor dy, bool accumulate) {
    begin("grad_quantize");
    reads(dy);
    sums(dbias, accumulate);
    if (!codes(dy_q)) {
        if (!same_memory(dy_q.data, dy.data)) writes(dy_q);
        if (!same_memory(dy_qt.data, dy_q.data)) writes(dy_qt);
        return;
    }
    if (dy.amax) reads_maxima(dy);
    quantizes(exec, dy_q);
    writes_transposed(dy_qt, dy_q);
}

static void order_linear_backward_data(Exec *exec, Tensor dx, Tensor dy, Weight w) {
    begin("linear_backward_data");
    const bool cached = order.arena->config->recipe.cache_transposed;
    if (codes(dy) && !cached) {
        reads_data(w.codes);
        writes_data(w.codes_t);
    }
    reads_data(dy);
    if (dy.granularity != SCALE_ROW) reads_scale(dy);
    reads(codes(dy) ? w.codes_t : w.value);
    writes_data(dx);
}

static void order_linear_backward_weight(Exec *exec, Tensor dw, Tensor dy, Tensor x, bool accumulate) {
    begin("linear_backward_weight");
    reads(dy);
    reads(x);
    sums(dw, accumulate);
}

static void order_quantize_recompute(Exec *exec, Tensor q_t, Tensor q, Tensor x) {
    if (same_memory(q_t.data, x.data) || (!format_is_fp8(q_t.format) && same_memory(q_t.data, q.data))) return;
    begin("quantize_recompute");
    reads(x);
    writes_transposed(q_t, q);
}

static void order_activation_recompute(Exec *exec, Tensor g_t, Tensor g, Tensor h, ActivationKind kind) {
    if (!g_t.data || same_memory(g_t.data, g.data)) return;
    begin("activation_recompute");
    reads(g.data ? g : h);
    writes_transposed(g_t, g);
}

static void order_activation_bound(Exec *exec, Tensor dh_q, Tensor dy, Weight w, Tensor h, ActivationKind kind) {
    begin("activation_bound");
    reads(dy);
    reads_scale(h);
    reads(w.codes_t);
    access_scale(write_memory, dh_q);
    may_raise(exec->state);
}

static void order_activation_backward_recompute(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor g_t,
                                                Tensor g, Tensor dg, Tensor h, bool accumulate, ActivationKind kind) {
    begin("activation_backward_recompute");
    reads(dg);
    reads(h);
    sums(dbias, accumulate);
    reads_scale(dh_q);
    writes_data(dh_q);
    reads(dh_q);
    writes_transposed(dh_qt, dh_q);
    writes_transposed(g_t, g);
}

static void order_activation_backward(Exec *exec, Tensor dh_q, Tensor dh_qt, Tensor dbias, Tensor dg, Tensor h,
                                      bool accumulate, ActivationKind kind) {
    begin("activation_backward");
    reads(dg);
    reads(h);
    sums(dbias, accumulate);
    if (!codes(dh_q)) {
        writes(dh_q);
        if (!same_memory(dh_qt.data, dh_q.data)) writes(dh_qt);
        return;
    }
    quantizes(exec, dh_q);
    reads(dh_q);
    writes_transposed(dh_qt, dh_q);
}

static void order_attention_backward(Exec *exec, Tensor dq, Tensor dk, Tensor dv, Tensor d_o, Tensor o, Tensor lse,
                                     Tensor q, Tensor k, Tensor v, Tensor positions, Tensor rope_table,
                                     AttentionShape shape) {
    begin("attention_backward");
    reads(positions);
    reads(rope_table);
    const Tensor read[] = {d_o, o, lse, q, k, v}, written[] = {dq, dk, dv};
    for (int i = 0; i < 6; i++) reads(read[i]);
    for (int i = 0; i < 3; i++) writes(written[i]);
    writes_maxima(dq);
}

static void order_qk_norm_rope_backward(Exec *exec, Tensor dqkv, Tensor dq_weight, Tensor dk_weight, Tensor qkv,
                                        QkRope heads, bool accumulate) {
    if (!heads.rope_table.data && !heads.q_weight.data && !(heads.clip > 0)) return;
    begin("qk_norm_rope_backward");
    reads(heads.positions);
    reads(heads.rope_table);
    reads_data(heads.q_weight);
    reads_data(heads.k_weight);
    if (heads.q_weight.data || heads.clip > 0) reads(qkv);
    reads(dqkv);
    writes(without_values(dqkv, &heads));
    writes_maxima(dqkv);
    sums(dq_weight, accumulate);
    sums(dk_weight, accumulate);
}

// --- operations of the optimizer update ---------------------------------------------------------------------------

static void order_gradients_add(Exec *exec, const Tensor total[], const Tensor parts[], int count) {
    begin("gradients_add");
    for (int i = 0; i < count; i++) takes_sum(total[i], parts[i]);
}

static void order_grad_norm_root(Exec *exec, StepState *state) {
    begin("grad_norm_root");
    read_memory(&state->grad_sq, sizeof state->grad_sq);
    write_memory(&state->grad_norm, sizeof state->grad_norm);
    may_raise(state);
}

static void order_grad_norm(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    begin_update("grad_norm");
    for (int i = 0; i < count; i++) reads_sum(exec, parameters[i].grad);
    write_memory(&state->grad_sq, sizeof state->grad_sq);
    write_memory(&state->grad_norm, sizeof state->grad_norm);
    may_raise(state);
}

static void order_adamw_update(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    begin_update("adamw_update");
    read_memory(state, sizeof *state);
    write_memory(state, sizeof *state);
    for (int i = 0; i < count; i++) {
        const Parameter *p = &parameters[i];
        const Tensor changed[] = {p->weight.value, p->m, p->v, p->master};
        reads_sum(exec, p->grad);
        for (int t = 0; t < 4; t++) reads(changed[t]);
        order.weight_made = order.updates + 1;
        for (int t = 0; t < 4; t++) writes(changed[t]);
        if (p->weight.maximum) write_memory(p->weight.maximum, sizeof *p->weight.maximum);
    }
    order.updates++;
}

static void order_muon_momentum(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    begin_update("muon_momentum");
    read_memory(state, sizeof *state);
    for (int i = 0; i < count; i++) {
        reads_sum(exec, parameters[i].grad);
        reads(parameters[i].m);
        writes(parameters[i].m);
        writes(parameters[i].update);
    }
    may_raise(state);
}

// Records a read of t. If optimizer states are sharded, reports the fault "old" unless communication wrote t last.
static void reads_exchanged(Tensor t) {
    reads(t);
    if (order.arena->zero == 0 || count_access) return;
    const Unit *u = &order.unit[offset_of(t.data) / UNIT];
    if (u->writer != COMMUNICATION)
        report(&order.old, "old: %s reads %s before the processes have exchanged it", this_event().text,
               label_name(u->content).text);
}

static void order_muon_orthogonalize(Exec *exec, Tensor x, int count, Tensor y, Tensor gram, Tensor polynomial,
                                     float scale, StepState *state) {
    begin_update("muon_orthogonalize");
    read_memory(state, sizeof *state);
    const Tensor scratch[] = {y, gram, polynomial, x};
    reads_exchanged(x);
    for (int i = 0; i < 4; i++) writes(scratch[i]);
    for (int i = 0; i < 4; i++) reads(scratch[i]);
}

static void order_muon_apply(Exec *exec, const Parameter *parameters, int count, StepState *state) {
    begin_update("muon_apply");
    read_memory(state, sizeof *state);
    for (int i = 0; i < count; i++) {
        const Parameter *p = &parameters[i];
        reads_exchanged(p->update);
        order.updates--; // adamw_update, which runs first, has counted this update
        reads(p->weight.value);
        reads(p->master);
        order.weight_made = ++order.updates;
        writes(p->weight.value);
        writes(p->master);
        if (p->weight.maximum) write_memory(p->weight.maximum, sizeof *p->weight.maximum);
    }
}

// Records the quantization of weights. The amax of a complete weight is already stored. The amax of a sharded weight
// has been reduced over the ranks.
static void order_weights_quantize(Exec *exec, const Parameter *parameters, int count) {
    begin_update("weights_quantize");
    for (int i = 0; i < count; i++) {
        const Weight w = parameters[i].weight;
        if (!w.codes.data) continue;
        if (w.codes.amax) read_memory(w.codes.amax, sizeof *w.codes.amax);
        order.oldest = order.updates;
        reads_data(w.value);
        order.weight_made = order.oldest;
        writes_data(w.codes);
        if (w.codes.scale) write_memory(w.codes.scale, sizeof(float));
        writes_data(w.codes_t);
    }
    may_raise(exec->state);
}

static void order_weights_amax(Exec *exec, const Parameter *parameters, int count) {
    begin_update("weights_amax");
    for (int i = 0; i < count; i++) {
        const Weight w = parameters[i].weight;
        if (!w.codes.data) continue;
        reads_data(w.value);
        write_memory(w.codes.amax, sizeof *w.codes.amax);
    }
}

static void order_health(Exec *exec, const Tensor tensors[], int count, Health out[]) {
    begin_update("health");
    memset(out, 0, (size_t)count * sizeof *out);
    for (int i = 0; i < count; i++) {
        reads_data(tensors[i]);
        reads_scale(tensors[i]);
    }
}

static void order_codes_count(Exec *exec, Tensor codes, CodeCounts *counts) {
    begin("codes_count");
    reads_data(codes);
    read_memory(counts, sizeof *counts);
    write_memory(counts, sizeof *counts);
}

static void order_inner_products(Exec *exec, Tensor a, Tensor b, InnerProducts *out) {
    begin("inner_products");
    reads_data(a);
    reads_data(b);
    write_memory(out, sizeof *out);
}

static void order_outliers(Exec *exec, Tensor x, Tensor v, Outliers *out) {
    begin("outliers");
    reads(x);
    reads(v);
    write_memory(out, sizeof *out);
}

static const Ops order_ops = {
    .name = "order",
    .device = DEVICE_CPU,
    .open = order_open,
    .close = order_nothing,
    .allocate = order_allocate,
    .release = order_release,
    .upload = order_upload,
    .download = order_download,
    .zero = order_zero,
    .synchronize = order_nothing,
    .replay_begin = order_replay_begin,
    .replay_end = order_replay_end,
    .range_push = order_range_push,
    .range_pop = order_nothing,
#define OPERATION(name, parameters) .name = order_##name,
#include "coat/operations.h"
#undef OPERATION
};
