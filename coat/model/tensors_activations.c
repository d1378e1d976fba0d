// What an activation's row of the table becomes under a configuration: saved, scratch or another's memory, in
// which format and with which scales.
#include "config/shapes.h"
#include "tensors_table.h"

static bool blocks_in_fp8(const Recipe *r) {
    return r->linear == LINEAR_FP8 && r->precision != PRECISION_FP32;
}

static bool head_in_fp8(const Recipe *r) {
    return r->head != HEAD_BF16 && r->precision != PRECISION_FP32;
}

// Whether the matmul that reads the row does so in FP8: all of the blocks, of the head not always the logits.
static bool read_in_fp8(const TableRow *row, const Recipe *r) {
    if (!row->head) return blocks_in_fp8(r);
    return head_in_fp8(r) && (r->head == HEAD_FP8 || row->gradient || row->transpose_of);
}

static bool saves_groups(const Recipe *r) {
    return r->saved == SAVED_COAT && r->precision != PRECISION_FP32;
}

// Whether no saved tensor holds the residual stream.
static bool carries_residual(const Config *c) {
    return c->shape.norm_place == NORM_AFTER ? blocks_in_fp8(&c->recipe) : saves_groups(&c->recipe);
}

bool activation_exists(const TableRow *row, const Config *c) {
    const Recipe *r = &c->recipe;
    const bool fp8 = blocks_in_fp8(r), trains = !config_forward_only(c);
    switch (row->when) {
    case WITH_DOCUMENT_MASK: return c->documents == DOCUMENTS_MASKED;
    case WITH_CARRIED: return carries_residual(c);
    case WITH_COUNTS: return trains && c->health_every > 0 && (fp8 || head_in_fp8(r));
    case WITH_COMPARISONS: return trains && c->health_products > 0 && fp8;
    default: return table_row_exists(row, &c->shape);
    }
}

// Memory that is shared with what is alive in other stages, or the source's.
static void scratch_or_source(TensorLayout *t, const TableRow *row, bool scratch) {
    if (!scratch) {
        t->alias = (int)row->source;
        return;
    }
    t->category = row->cols == DIM_VP ? CATEGORY_LOGITS : CATEGORY_SCRATCH;
    t->per_layer = t->saved = false;
}

// The codes of a matmul's operand: one scale, which may follow from maxima of the rows, or one per row. It is kept per
// layer even where the codes are not, since backward makes the same codes again.
static void make_codes(TensorLayout *t, const TableRow *row, const Recipe *r) {
    const bool rows = row->scales == ROWS_BY_TOKEN || (row->scales == ROWS_BY_TOKEN_IN_COAT && saves_groups(r));
    t->transposed = row->transpose_of != 0;
    if (row->gradient)
        t->format = row->head || t->transposed ? FMT_E5M2 : recipe_gradient_format(r);
    else
        t->format = FMT_E4M3;
    t->granularity = rows && !recipe_is_paper(r) ? SCALE_ROW : SCALE_TENSOR;
    t->has_amax = row->maxima && t->granularity == SCALE_TENSOR;
}

void activation_resolve(const TableRow *row, const Config *c, TensorLayout *t) {
    const Recipe *r = &c->recipe;
    const bool fp8 = blocks_in_fp8(r), coat = saves_groups(r), after = c->shape.norm_place == NORM_AFTER;
    const bool codes = read_in_fp8(row, r), transposed = row->transpose_of != 0;
    const Format formats[] = {
        t->format, [AS_FP32] = FMT_FP32, [AS_I32] = FMT_I32, [AS_BYTES] = FMT_U8, [AS_GRADS] = r->grads};
    t->format = formats[row->stored];
    t->saved = true;
    switch (row->rule) {
    case RULE_PARAMETER:
    case RULE_SAVED: break;
    case RULE_RESIDENT:
        t->category = CATEGORY_SCRATCH;
        t->per_layer = t->per_layer && config_repeats_blocks(c);
        break;
    case RULE_GROUPS:
        if (!coat) break;
        t->format = FMT_E4M3;
        t->granularity = SCALE_GROUP;
        t->group = r->group_size;
        break;
    case RULE_LOGITS:
        if (head_in_fp8(r)) t->last = STAGE_HEAD; // the gradient does not take their place
        // fall through
    case RULE_SCRATCH:
        scratch_or_source(t, row, true);
        t->has_amax = fp8 && row->maxima;
        break;
    case RULE_ALIAS: scratch_or_source(t, row, false); break;
    case RULE_HEADS: scratch_or_source(t, row, shape_changes_heads(&c->shape)); break;
    case RULE_HIDDEN_OUT: scratch_or_source(t, row, coat); break;
    case RULE_BRANCH_GRAD:
        scratch_or_source(t, row, after);
        t->has_amax = after && fp8;
        break;
    case RULE_BLOCK_IN:
        if (config_repeats_blocks(c) && (coat || after)) break;
        // fall through
    case RULE_RESIDUAL: t->alias = carries_residual(c) ? RESID : after ? (int)row->input : (int)row->source; break;
    case RULE_OPERAND: {
        const bool fits = row->source && tensor_extent(tensor_table[row->source].cols, c) == t->cols;
        if (codes) make_codes(t, row, r);
        scratch_or_source(t, row, codes || !fits);
        if (row->head && !codes && head_in_fp8(r))
            t->has_amax = row->maxima; // for the scale of the codes that backward makes
        if (!codes && !fits && transposed) t->alias = (int)row->transpose_of;
        break;
    }
    case RULE_NORM_OUT:
    case RULE_ACT_OUT: {
        const bool again = row->rule == RULE_NORM_OUT ? config_recomputes_norms(c) : r->recompute >= 1;
        if (codes) make_codes(t, row, r);
        if (again || transposed) scratch_or_source(t, row, again || codes);
        if (row->rule == RULE_ACT_OUT && transposed && config_bounds_activation(c))
            t->last = STAGE_BWD_ACT; // made beside dh
        break;
    }
    }
}
