// What an activation's row of the table becomes under a configuration: saved, scratch or another's memory, in which format
// and with which scales.
#include "shapes.h"
#include "tensors_table.h"

// Its memory is shared with what is alive in other stages.
static void make_scratch(TensorLayout *t) {
    t->category = CATEGORY_SCRATCH;
    t->per_layer = false;
    t->saved = false;
}

static void make_alias(TensorLayout *t, TensorId source) {
    t->alias = (int)source;
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
static void make_copy(TensorLayout *t, bool made, TensorId source, bool fp8, bool transposed, Format code) {
    if (!made) {
        make_alias(t, source);
        return;
    }
    make_operand(t, fp8, transposed, code);
    make_scratch(t);
}

// The scales of a product's operand: one per row, or one, which follows from maxima of the rows.
static void scale_operand(TensorLayout *t, const TableRow *row, bool by_row, bool coat) {
    if (!format_is_fp8(t->format)) return;
    bool rows = by_row && (row->scales == ROWS_BY_TOKEN || (row->scales == ROWS_BY_TOKEN_IN_COAT && coat));
    if (rows) t->granularity = SCALE_ROW;
    t->has_amax = row->maxima && !rows;
}

void tensor_resolve_activation(TensorId id, const Config *c, TensorLayout *t) {
    const TableRow *row = &tensor_table[id];
    const Recipe *r = &c->recipe;
    bool full = r->precision == PRECISION_FP32;
    bool fp8 = r->linear == LINEAR_FP8 && !full, coat = r->saved == SAVED_COAT && !full;
    bool fp8_head = r->head == LINEAR_FP8 && !full;
    bool by_row = fp8 && r->scaling == SCALING_TOKEN;
    bool compares = fp8 && c->health_products > 0 && !config_forward_only(c);
    const bool after = c->shape.norm_place == NORM_AFTER;
    bool rebuild_act = r->recompute >= 1, rebuild_norm = config_rebuilds_norms(c);
    t->saved = true;
    switch (row->rule) {
    case RULE_PARAMETER: break;
    case RULE_POSITIONS: t->exists = c->documents == DOCUMENTS_APART; // fall through
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
    case RULE_ROTATIONS:
        t->category = CATEGORY_SCRATCH;
        t->format = FMT_FP32;
        break;
    case RULE_HEADS:
        if (!shape_changes_heads(&c->shape)) {
            make_alias(t, row->source);
            break;
        }
        make_scratch(t);
        break;
    case RULE_SCRATCH:
        make_scratch(t);
        t->has_amax = fp8 && row->maxima;
        break;
    case RULE_ALIAS:
    case RULE_PRODUCT_OUT: make_alias(t, row->source); break;
    case RULE_LOGITS:
        make_scratch(t);
        t->category = CATEGORY_LOGITS;
        if (fp8_head) t->last = STAGE_HEAD; // the gradient does not take their place
        break;
    case RULE_LOGITS_GRAD:
    case RULE_LOGITS_GRAD_T:
        make_copy(t, fp8_head, row->source, true, row->rule == RULE_LOGITS_GRAD_T, FMT_E5M2);
        if (fp8_head) t->category = CATEGORY_LOGITS;
        break;
    case RULE_HEAD_IN:
        make_operand(t, fp8_head, false, FMT_E4M3);
        t->has_amax = fp8_head && row->maxima;
        make_scratch(t);
        break;
    case RULE_HEAD_IN_T: make_copy(t, fp8_head, row->source, true, true, FMT_E4M3); break;
    case RULE_CARRIED:
        t->exists = after ? fp8 : coat;
        make_scratch(t);
        break;
    case RULE_RESIDUAL:
        if (id == RESID_IN && config_repeats_blocks(c) && (coat || after)) break; // what each block began with is kept
        if (after)
            make_alias(t, fp8 ? RESID : row->input);
        else
            make_alias(t, coat ? RESID : row->source);
        break;
    case RULE_BRANCH_GRAD:
        if (!after) {
            make_alias(t, row->source);
            break;
        }
        make_scratch(t);
        t->has_amax = fp8;
        break;
    case RULE_CENTRE:
    case RULE_CENTRED_BIAS:
        t->exists = config_centred_blocks(c) > 0;
        t->category = CATEGORY_SCRATCH;
        t->per_layer = config_repeats_blocks(c); // they are not made again
        if (row->rule == RULE_CENTRE) t->format = FMT_FP32;
        break;
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
        break;
    case RULE_NORM_OUT:
    case RULE_ACT_OUT:
        make_operand(t, fp8, false, FMT_E4M3);
        scale_operand(t, row, by_row, coat);
        t->saved = !(row->rule == RULE_NORM_OUT ? rebuild_norm : rebuild_act);
        if (!t->saved) make_scratch(t);
        break;
    case RULE_ATT_OUT_Q:
        make_copy(t, fp8, row->source, true, false, FMT_E4M3);
        scale_operand(t, row, by_row, coat);
        break;
    case RULE_NORM_OUT_T:
    case RULE_ACT_OUT_T: {
        bool rebuilt = row->rule == RULE_NORM_OUT_T ? rebuild_norm : rebuild_act;
        make_copy(t, fp8 || rebuilt, row->source, fp8, true, FMT_E4M3);
        if (id == G_T && config_bounds_activation(c)) t->last = STAGE_BWD_ACT; // made beside dh
        break;
    }
    case RULE_ATT_OUT_T: make_copy(t, fp8, row->source, true, true, FMT_E4M3); break;
    case RULE_HIDDEN_GRAD_Q:
    case RULE_HIDDEN_GRAD_QT:
        if (!fp8 && c->shape.activation == ACT_SWIGLU) {
            if (row->rule == RULE_HIDDEN_GRAD_QT) make_alias(t, row->transpose_of);
            make_scratch(t);
            break;
        }
        make_copy(t, fp8, row->source, true, row->rule == RULE_HIDDEN_GRAD_QT,
                  row->rule == RULE_HIDDEN_GRAD_QT ? r->gradient_codes_weights : r->gradient_codes_data);
        scale_operand(t, row, by_row, coat);
        break;
    case RULE_GRAD_Q:
    case RULE_GRAD_QT:
        make_copy(t, fp8, row->source, true, row->rule == RULE_GRAD_QT,
                  row->rule == RULE_GRAD_QT ? r->gradient_codes_weights : r->gradient_codes_data);
        scale_operand(t, row, by_row, coat);
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
        break;
    case RULE_INNER_PRODUCTS:
        t->exists = compares;
        t->category = CATEGORY_SCRATCH;
        t->format = FMT_U8;
        break;
    }
}
