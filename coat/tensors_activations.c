// What an activation's row of the table becomes under a configuration: saved, scratch or another's memory, in which format
// and with which scales.
#include "tensors_table.h"

static void make_scratch(TensorLayout *t) {
    t->category = CATEGORY_SCRATCH;
    t->per_layer = false;
}

int tensor_scale_source(TensorId id, Granularity granularity) {
    if (granularity == SCALE_ROW) {
        switch (id) {
        case Y_PROJ: return OQ;
        case Y: return G;
        case Y_FC: return N2;
        case DN2: return DH_Q;
        default: return -1;
        }
    }
    switch (id) {
    case N1_T: return N1;
    case N2_T: return N2;
    case G_T: return G;
    case O_T: return OQ;
    case DRESID_QT: return DRESID_Q;
    case DH_QT: return DH_Q;
    case DQKV_QT: return DQKV_Q;
    case DLOGITS_QT: return DLOGITS_Q;
    case NF_T: return NF;
    default: return -1;
    }
}

static void make_alias(TensorLayout *t, int source) {
    t->alias = source;
}

// An input of a product: E4M3 with one scale where products are FP8. The scale is kept per layer even where the
// codes are not, since backward makes the same codes again.
static void make_operand(TensorLayout *t, bool fp8, bool transposed, Format code) {
    if (!fp8) return;
    t->format = code;
    t->granularity = SCALE_TENSOR;
    t->transposed = transposed;
}

// A product's operand that is made on the way, in FP8 or (a transpose that is no copy) plain; not `made`: it is
// `source`.
static void make_copy(TensorLayout *t, bool made, int source, bool fp8, bool transposed, Format code) {
    if (!made) {
        make_alias(t, source);
        return;
    }
    make_operand(t, fp8, transposed, code);
    make_scratch(t);
    t->saved = false;
}

// Maxima of rows lie with a tensor that is quantised after the operation that makes it (DRESID: each norm_backward
// writes them anew; DQKV: attention_backward), else with the codes, where the quantising operation itself leaves them
// between its passes.
static bool codes_have_amax(TensorId id) {
    switch (id) {
    case N1:
    case N2:
    case NF:
    case G:
    case OQ:
    case DH_Q: return true;
    default: return false;
    }
}

// With --scaling token, codes that are made a row at a time have a scale per row, which is known with the row, where
// the result of their product is read by a kernel that can multiply by it: those of the attention and of the activation
// function, read by residual additions; and in --saved coat the feed-forward layer's input, and its output's gradient.
// (Attention, which reads qkv, and norms and activations of plain tensors cannot. Gradients that are transposed as they
// are quantised have one scale per format, for which their producers leave the maxima.)
static bool scales_by_row(TensorId id, bool coat) {
    return id == OQ || id == G || (coat && (id == N2 || id == DH_Q));
}

// The scales of a product's operand: one per row, or one, which follows from maxima of the rows.
static void scale_operand(TensorLayout *t, TensorId id, bool by_row, bool coat) {
    if (!format_is_fp8(t->format)) return;
    bool rows = by_row && scales_by_row(id, coat);
    if (rows) t->granularity = SCALE_ROW;
    t->has_amax = codes_have_amax(id) && !rows;
}

void tensor_resolve_activation(TensorId id, const Config *c, TensorLayout *t) {
    const TableRow *row = &tensor_table[id];
    const Recipe *r = &c->recipe;
    bool full = r->precision == PRECISION_FP32;
    bool fp8 = r->linear == LINEAR_FP8 && !full, coat = r->saved == SAVED_COAT && !full;
    bool fp8_head = r->head == LINEAR_FP8 && !full;
    bool by_row = fp8 && r->scaling == SCALING_TOKEN;
    bool compares = fp8 && c->health_products > 0 && !config_forward_only(c);
    bool rebuild_act = r->recompute >= 1, rebuild_norm = r->recompute >= (coat ? 1 : 2);
    t->saved = true;
    switch (row->rule) {
    case RULE_PARAMETER: break;
    case RULE_INPUT:
        t->category = CATEGORY_SCRATCH;
        t->format = FMT_I32;
        break;
    case RULE_STATE:
        t->category = CATEGORY_SCRATCH;
        t->format = FMT_U8;
        break;
    case RULE_LOSSES:
        t->category = CATEGORY_SCRATCH;
        t->format = FMT_FP32;
        break;
    case RULE_SAVED:
    case RULE_LAST_INPUT: break;
    case RULE_STATISTIC: t->format = FMT_FP32; break;
    case RULE_SCRATCH:
        make_scratch(t);
        t->saved = false;
        t->has_amax = fp8 && (id == DRESID || id == DQKV);
        if (id == Y && by_row) t->granularity = SCALE_ROW;
        if (id == DQKV && compares) t->last = STAGE_BWD_NORM1; // the product is made again from it
        break;
    case RULE_PRODUCT_OUT:
        make_alias(t, row->source);
        if (id == DN2 ? by_row && coat : by_row) t->granularity = SCALE_ROW;
        break;
    case RULE_LOGITS:
        make_scratch(t);
        t->category = CATEGORY_LOGITS;
        t->saved = false;
        if (fp8_head) t->last = STAGE_HEAD; // the gradient does not take their place
        break;
    case RULE_LOGITS_GRAD:
    case RULE_LOGITS_GRAD_T:
        make_copy(t, fp8_head, row->source, true, row->rule == RULE_LOGITS_GRAD_T, FMT_E5M2);
        if (fp8_head) t->category = CATEGORY_LOGITS;
        break;
    case RULE_HEAD_IN:
        make_operand(t, fp8_head, false, FMT_E4M3);
        t->has_amax = fp8_head && codes_have_amax(id);
        t->saved = false;
        make_scratch(t);
        break;
    case RULE_HEAD_IN_T: make_copy(t, fp8_head, row->source, true, true, FMT_E4M3); break;
    case RULE_CARRIED:
        t->exists = coat;
        make_scratch(t);
        t->saved = false;
        break;
    case RULE_RESIDUAL: make_alias(t, coat && id != RESID_FINAL ? RESID : row->source); break;
    case RULE_NORM_INPUT:
    case RULE_HIDDEN:
        if (coat) {
            t->format = FMT_E4M3;
            t->granularity = SCALE_GROUP;
            t->group = r->group_size;
        }
        break;
    case RULE_HIDDEN_OUT:
        if (coat)
            make_scratch(t);
        else
            make_alias(t, row->source);
        if (coat && by_row) t->granularity = SCALE_ROW;
        break;
    case RULE_NORM_OUT:
    case RULE_ACT_OUT:
        make_operand(t, fp8, false, FMT_E4M3);
        scale_operand(t, id, by_row, coat);
        t->saved = !(row->rule == RULE_NORM_OUT ? rebuild_norm : rebuild_act);
        if (!t->saved) make_scratch(t);
        break;
    case RULE_ATT_OUT_Q:
        make_copy(t, fp8, row->source, true, false, FMT_E4M3);
        scale_operand(t, id, by_row, coat);
        break;
    case RULE_NORM_OUT_T:
    case RULE_ACT_OUT_T: {
        bool rebuilt = row->rule == RULE_NORM_OUT_T ? rebuild_norm : rebuild_act;
        make_copy(t, fp8 || rebuilt, row->source, fp8, true, FMT_E4M3);
        break;
    }
    case RULE_ATT_OUT_T: make_copy(t, fp8, row->source, true, true, FMT_E4M3); break;
    case RULE_GRAD_Q:
    case RULE_GRAD_QT:
        make_copy(t, fp8, row->source, true, row->rule == RULE_GRAD_QT,
                  row->rule == RULE_GRAD_QT ? r->gradient_codes_weights : r->gradient_codes_data);
        scale_operand(t, id, by_row, coat);
        break;
    case RULE_CODE_COUNTS:
        t->exists = (fp8 || fp8_head) && c->health_every > 0 && !config_forward_only(c);
        t->category = CATEGORY_SCRATCH;
        t->format = FMT_U8;
        break;
    case RULE_REFERENCE:
        t->exists = compares;
        t->format = r->grads;
        make_scratch(t);
        t->saved = false;
        break;
    case RULE_INNER_PRODUCTS:
        t->exists = compares;
        t->category = CATEGORY_SCRATCH;
        t->format = FMT_U8;
        break;
    }
}
