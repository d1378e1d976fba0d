// Resolves the rows of the table of tensors to tensor layouts for a configuration. Sections of this file:
//   parameters   chooses formats of weights, gradients, moments and master weights, and their shards (ZeRO)
//   activations  chooses memory (saved, scratch, or another tensor's), format and scales
//   scales       decides which tensors share a scale
//   BF16 blocks  adds a second layout for activations that differ in the first blocks (--bf16-blocks)
//   lifetimes    stores one layer instead of all in evaluations, in samples, with --recompute 3 and in a frozen tower
//   bytes        computes the sizes of data, scales and amaxes
// tensors_resolve() calls the sections in this order. arena.c then assigns an address to every tensor that owns memory.
#include "config/shapes.h"
#include "numerics/moments.h"
#include "tensor_table.h"

// --- parameters: layout of weights, gradients and optimizer states -------------------------------------------------

static const TensorLayout no_layout = {.alias = -1, .scale_source = -1};

static Format unscaled_format(const Recipe *r) {
    return r->precision == PRECISION_FP32 ? FMT_FP32 : FMT_BF16;
}

static TensorLayout layout_of(const TableRow *row, const Config *c, Category category, Format format) {
    TensorLayout t = no_layout;
    t.exists = true;
    t.category = category;
    t.format = format;
    t.rows = tensor_extent(row->row.rows, c);
    t.cols = tensor_extent(row->row.cols, c);
    t.per_layer = t.per_layer_scale = row->row.per_layer;
    t.layers = row->row.per_layer ? c->shape.layers : 1;
    t.first = row->first;
    t.last = row->last;
    t.shard_elements = t.local_elements = t.rows * t.cols;
    return t;
}

// True if the pattern of `length` characters equals the name, or is a prefix of the name followed by *.
static bool name_matches(const char *pattern, size_t length, const char *name) {
    const char *star = (const char *)memchr(pattern, '*', length);
    size_t prefix = star ? (size_t)(star - pattern) : length;
    return strncmp(pattern, name, prefix) == 0 && (star || name[prefix] == '\0');
}

const char *moments_unmatched(const char *patterns, size_t *length) {
    for (const char *p = patterns; *p; p += *length + (p[*length] == ',')) {
        bool found = false;
        *length = strcspn(p, ",");
        for (int id = 0; id < PARAMETER_COUNT && !found; id++)
            found = name_matches(p, *length, tensor_table[id].row.name);
        if (!found) return p;
    }
    return NULL;
}

// True if a parameter's moments are FP32 whatever --moments says: for norms, biases and position embeddings, which are
// small, and for parameters that --moments-fp32 names.
static bool moments_are_fp32(const TensorRow *row, const Recipe *r) {
    if (row->rows == DIM_1 || row->rows == DIM_POS) return true;
    for (const char *p = r->moments_fp32; *p;) {
        size_t length = strcspn(p, ",");
        if (name_matches(p, length, row->name)) return true;
        p += length + (p[length] == ',');
    }
    return false;
}

static TensorLayout moment_layout(const TableRow *row, const Config *c, bool muon) {
    const MomentsKind kind = moments_are_fp32(&row->row, &c->recipe) ? MOMENTS_FP32 : c->recipe.moments;
    const bool grouped = kind == MOMENTS_FP8 || kind == MOMENTS_COAT;
    const Format codes = muon && c->recipe.momentum_codes == MOMENTUM_I8 ? FMT_I8 : FMT_E4M3;
    const Format format = grouped ? codes : kind == MOMENTS_BF16 ? FMT_BF16 : FMT_FP32;
    TensorLayout t = layout_of(row, c, CATEGORY_MOMENTS, format);
    if (grouped) t.granularity = SCALE_EXPAND;
    if (grouped) t.group = MOMENT_GROUP;
    return t;
}

int64_t tensor_shard_elements(int64_t elements, int ranks) {
    int64_t per_rank = (elements + ranks - 1) / ranks;
    return ranks == 1 ? elements : (per_rank + MOMENT_GROUP - 1) / MOMENT_GROUP * MOMENT_GROUP;
}

static void store_shard(TensorLayout *t) {
    t->local_elements = t->shard_elements;
    t->sharded = true;
}

// Makes each process store the entire tensor, padded to shards of equal size, so that collectives can work in place.
static void store_padded(TensorLayout *t, int ranks) {
    t->local_elements = t->shard_elements * ranks;
}

// Returns the layout of a double buffer with two slots. Each slot stores one layer of the tensor `of`, complete instead
// of sharded.
static TensorLayout layer_slots(const TensorLayout *of, int ranks) {
    TensorLayout t = *of;
    t.category = CATEGORY_COMMUNICATION;
    t.saved = true; // keeps the slots out of the memory that scratch tensors share
    if (t.layers > LAYER_SLOTS) t.layers = LAYER_SLOTS;
    store_padded(&t, ranks);
    return t;
}

// Shards a parameter's tensors by ZeRO stage. Stage 1: moments and master weights. 2: also the layers' gradients. 3:
// also the blocks' weight matrices. Embeddings are not sharded, because a pass reads embeddings at its beginning and at
// its end, and adds to their gradients until its end. Norms and biases are not sharded because they are small.
static void shard_parameter(const TableRow *row, const Config *c, int ranks, TensorLayout out[ROLE_COUNT]) {
    const int zero = config_zero(c, ranks);
    for (int role = VALUE; role <= MASTER; role++)
        out[role].shard_elements = tensor_shard_elements(out[role].shard_elements, ranks);
    if (zero == 0) return;
    for (int role = MOMENT_M; role <= MASTER; role++) store_shard(&out[role]);
    if (zero >= 2 && row->row.per_layer) {
        // A frozen matrix has no gradient, but with ZeRO 3, saving a checkpoint gathers the complete matrix into
        // UNREDUCED.
        if (out[GRAD].exists || (zero == 3 && row->input))
            out[UNREDUCED] = layer_slots(out[GRAD].exists ? &out[GRAD] : &out[VALUE], ranks);
        store_shard(&out[GRAD]);
    } else {
        store_padded(&out[GRAD], ranks);
    }
    if (zero < 3 || !row->input) {
        store_padded(&out[VALUE], ranks);
        return;
    }
    // true: GATHERED needs room for FP8 values only, because no matmul reads the BF16 values
    const bool codes_only = out[CODES].exists && config_bf16_blocks(c) == 0;
    out[GATHERED] = layer_slots(codes_only ? &out[CODES] : &out[VALUE], ranks);
    out[GATHERED].granularity = SCALE_NONE; // because the scale is stored with CODES
    store_shard(&out[VALUE]);
    store_shard(&out[CODES]);
    out[CODES_T].per_layer = false; // FP8 weights are transposed from GATHERED one layer at a time
}

int tensor_part(TensorId id, const ModelShape *shape) {
    if (!shape->tower) return PART_LANGUAGE;
    return id >= LNPROJW && id <= PROJ2B ? PART_PROJECTOR : PART_VISION;
}

// With ZeRO, enlarges MUON_X and MUON_Y to one shard per process, because the processes exchange shards of matrices.
static void resolve_exchange(const Config *c, int ranks, TensorLayout *x, TensorLayout *y) {
    if (!x->exists || config_zero(c, ranks) == 0) return;
    x->shard_elements = tensor_shard_elements(x->shard_elements, ranks);
    store_padded(x, ranks);
    *y = *x;
}

static void resolve_parameter(TensorId id, const Config *c, int ranks, TensorLayout out[ROLE_COUNT]) {
    const TableRow *row = &tensor_table[id];
    const Recipe *r = &c->recipe;
    const Format unscaled = unscaled_format(r);
    const bool in_block = row->input != 0;
    if (!model_has_tensor(row, &c->shape)) return;
    out[VALUE] = layout_of(row, c, CATEGORY_WEIGHTS, unscaled);
    const bool trained = !(c->freeze & tensor_part(id, &c->shape));
    // --grads sets the format of the gradients of the blocks' matrices. Other gradients are FP32 because they are small
    // or, like the tied embedding's, sums of many terms.
    if (trained)
        out[GRAD] = layout_of(row, c, CATEGORY_GRADIENTS, in_block && unscaled == FMT_BF16 ? r->grads : FMT_FP32);
    const bool muon = tensor_uses_muon(id, c);
    if (trained) out[MOMENT_M] = moment_layout(row, c, muon);
    if (trained && !muon) out[MOMENT_V] = out[MOMENT_M];
    if (trained && unscaled == FMT_BF16 && r->master != MASTER_NONE)
        out[MASTER] = layout_of(row, c, CATEGORY_MASTER, r->master == MASTER_FP32 ? FMT_FP32 : FMT_U16);
    if (in_block ? blocks_in_fp8(r) : id == head_weight(&c->shape) && head_in_fp8(c)) {
        out[CODES] = layout_of(row, c, CATEGORY_FP8_WEIGHTS, FMT_E4M3);
        out[CODES].granularity = SCALE_TENSOR;
        out[CODES_T] = out[CODES];
        out[CODES_T].transposed = true;
        out[CODES_T].scale_source = (int)id;
        if (!r->cache_transposed) out[CODES_T].per_layer = false; // weights are transposed one layer at a time
    }
    shard_parameter(row, c, ranks, out);
}

// --- activations: format and memory of each activation -------------------------------------------------------------

// True if the matmuls that read this operand are FP8. With --head fp8-backward, the head's backward matmuls are FP8,
// but not the head's forward matmul.
static bool read_as_fp8(const TableRow *row, const Config *c) {
    if (!row->head) return blocks_in_fp8(&c->recipe);
    return head_in_fp8(c) && (c->recipe.head == HEAD_FP8 || row->gradient || row->transpose_of);
}

static void scratch_or_source(TensorLayout *t, const TableRow *row, bool scratch) {
    if (!scratch) {
        t->alias = (int)row->source;
        return;
    }
    t->category = row->row.cols == DIM_VP ? CATEGORY_LOGITS : CATEGORY_SCRATCH;
    // per_layer_scale stays true, because backward recomputes a layer's FP8 values with the layer's scale.
    t->per_layer = t->saved = false;
}

// Gives an operand an FP8 format. An operand with one scale per tensor also gets row amaxes, from which the scale is
// computed.
static void use_fp8(TensorLayout *t, const TableRow *row, const Recipe *r) {
    const bool rows = row->scales == ROWS_BY_TOKEN || (row->scales == ROWS_BY_TOKEN_IN_COAT && saves_groups(r));
    t->transposed = row->transpose_of != 0;
    t->format = FMT_E4M3;
    if (row->gradient) t->format = row->head || t->transposed ? FMT_E5M2 : recipe_gradient_format(r);
    t->granularity = rows && !recipe_is_paper(r) ? SCALE_ROW : SCALE_TENSOR;
    t->has_amax = row->amax && t->granularity == SCALE_TENSOR;
}

static TensorLayout resolve_activation(TensorId id, const Config *c) {
    const TableRow *row = &tensor_table[id];
    const Recipe *r = &c->recipe;
    const bool coat = saves_groups(r), post = c->shape.norm_place == NORM_POST;
    const bool fp8 = read_as_fp8(row, c), transpose = row->transpose_of != 0;
    const Format formats[] = {
        unscaled_format(r), [AS_FP32] = FMT_FP32, [AS_I32] = FMT_I32, [AS_BYTES] = FMT_U8, [AS_GRADS] = r->grads};
    if (!run_has_tensor(row, c)) return no_layout;
    TensorLayout t = layout_of(row, c, CATEGORY_SAVED, formats[row->stored]);
    t.saved = true;
    switch (row->rule) {
    case RULE_SAVED: break;
    case RULE_RESIDENT: t.category = CATEGORY_SCRATCH; break;
    case RULE_GROUPS:
        if (!coat) break;
        t.format = FMT_E4M3;
        t.granularity = SCALE_GROUP;
        t.group = r->group_size;
        break;
    case RULE_LOGITS:
        if (head_in_fp8(c)) t.last = STAGE_HEAD;
        // fall through
    case RULE_SCRATCH:
        scratch_or_source(&t, row, true);
        t.has_amax = fp8 && row->amax;
        break;
    case RULE_ALIAS: scratch_or_source(&t, row, false); break;
    case RULE_QKV_ROPE: scratch_or_source(&t, row, shape_changes_qkv(&c->shape)); break;
    case RULE_FC_OUT: scratch_or_source(&t, row, coat); break;
    case RULE_SUBLAYER_GRAD:
        scratch_or_source(&t, row, post);
        t.has_amax = fp8 && post;
        break;
    case RULE_BLOCK_IN:
        if (config_recomputes_blocks(c) && (coat || post)) break;
        // fall through
    case RULE_RESIDUAL: t.alias = needs_resid(c) ? RESID : post ? (int)row->input : (int)row->source; break;
    case RULE_OPERAND: {
        // true if the tensor fits in the memory of `source`; with SwiGLU, DH_Q (2 F wide) does not fit in DG's (F wide)
        const bool fits = row->source && tensor_extent(tensor_table[row->source].row.cols, c) == t.cols;
        if (fp8) use_fp8(&t, row, r);
        scratch_or_source(&t, row, fp8 || !fits);
        if (!fp8 && !fits && transpose) t.alias = (int)row->transpose_of;
        if (!fp8 && row->head && head_in_fp8(c)) t.has_amax = row->amax; // amaxes for the FP8 values of wgrad
        break;
    }
    case RULE_NORM_OUT:
    case RULE_ACT_OUT: {
        const bool recompute = row->rule == RULE_NORM_OUT ? config_recomputes_norms(c) : r->recompute >= 1;
        if (fp8) use_fp8(&t, row, r);
        if (recompute || transpose) scratch_or_source(&t, row, recompute || fp8);
        if (row->rule == RULE_ACT_OUT && transpose && config_bounds_activation(c))
            t.last = STAGE_BWD_ACT; // because the operation that computes dh also recomputes g, so both are alive
        break;
    }
    }
    return t;
}

// --- scales: which tensor's scale an activation uses ---------------------------------------------------------------

// Sets the tensor whose scale an activation uses. A matmul ignores scales per token of its operand, so the matmul's
// output has the operand's scales. A transpose has the scale of the original tensor, unless their formats or
// granularities differ.
static void inherit_scale(TensorId id, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    const TableRow *row = &tensor_table[id];
    TensorLayout *t = &layout[id][VALUE];
    const TensorLayout *operand = &layout[row->matmul_of][VALUE], *codes = &layout[row->transpose_of][VALUE];
    if (row->matmul_of && operand->granularity == SCALE_ROW) {
        t->granularity = SCALE_ROW;
        t->scale_source = (int)row->matmul_of;
    }
    if (row->transpose_of && codes->granularity == t->granularity && codes->format == t->format)
        t->scale_source = (int)row->transpose_of;
}

// --- BF16 blocks: activations that differ in the first blocks (--bf16-blocks) --------------------------------------

// True if an activation's layout may differ between blocks with BF16 and with FP8 forward matmuls. These are operands
// that attention computes, operands that norms compute and backward recomputes, and the outputs of the matmuls that
// read these operands.
static bool may_differ_in_bf16_blocks(TensorId id, const Config *c) {
    const TableRow *row = &tensor_table[id];
    if (row->last >= STAGE_NORMF) return false;
    switch (row->rule) {
    case RULE_OPERAND: return true;
    case RULE_NORM_OUT: return config_recomputes_norms(c);
    case RULE_ALIAS:
    case RULE_FC_OUT: return row->matmul_of && may_differ_in_bf16_blocks(row->matmul_of, c);
    default: return false;
    }
}

// Adds PLAIN, an activation's layout in the first `blocks` blocks. bf16: the configuration with BF16 matmuls.
//   If PLAIN equals VALUE, does not add PLAIN.
//   If PLAIN differs from VALUE only in scales and amaxes, PLAIN uses VALUE's memory.
//   Otherwise both have memory, and PLAIN stores row amaxes, from which backward computes the scale of FP8 values.
static void resolve_bf16_blocks(TensorId id, const Config *bf16, int blocks, TensorLayout layout[ROLE_COUNT]) {
    TensorLayout *value = &layout[VALUE], plain = resolve_activation(id, bf16);
    const bool in_place = plain.alias == value->alias && plain.format == value->format &&
                          plain.transposed == value->transposed && plain.saved == value->saved;
    const bool equal = in_place && plain.granularity == value->granularity && plain.has_amax == value->has_amax;
    if (!plain.exists || !value->exists || equal) return;
    if (!in_place) {
        value->blocks = BLOCKS_FP8;
        plain.blocks = BLOCKS_PLAIN;
        plain.layers = blocks;
        plain.has_amax = !config_forward_only(bf16);
    } else if (plain.alias < 0) {
        plain.alias = (int)id;
    }
    layout[PLAIN] = plain;
}

// --- lifetimes of activations --------------------------------------------------------------------------------------

// Makes all layers share one layer's memory.
static void store_one_layer(TensorLayout *t) {
    t->per_layer = t->per_layer_scale = false;
    t->layers = 1;
}

// Resolves lifetimes without training: removes gradients, optimizer states and backward's tensors, and stores one
// layer's activations. A sample stores the QKV of all layers as its KV cache, and clips, normalizes and rotates q, k, v
// in place.
static void resolve_forward_only(bool samples, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    static const Role trained[] = {GRAD, MOMENT_M, MOMENT_V, MASTER, UNREDUCED};
    for (int id = 0; id < PARAMETER_COUNT; id++)
        for (size_t i = 0; i < sizeof trained / sizeof *trained; i++) layout[id][trained[i]] = no_layout;
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
        TensorLayout *value = &layout[id][VALUE];
        if (samples && id == QKV) continue;
        store_one_layer(value);
        store_one_layer(&layout[id][PLAIN]);
        if (value->alias < 0 && (value->first > STAGE_BWD_HEAD || (samples && id == QKV_ROPE))) value->exists = false;
    }
}

// Resolves lifetimes if backward recomputes blocks (--recompute 3): saves activations of one layer only, except for the
// residual stream at the beginning of each block. The residual stream's gradient is alive from the first stage, because
// backward repeats forward's stages while the gradient is in use.
static void resolve_recomputed_blocks(TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    int block_in = RESID_IN;
    while (layout[block_in][VALUE].alias >= 0) block_in = layout[block_in][VALUE].alias;
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
        if (id == block_in || !layout[id][VALUE].saved) continue;
        store_one_layer(&layout[id][VALUE]);
        store_one_layer(&layout[id][PLAIN]);
    }
    layout[DRESID][VALUE].first = STAGE_EMBED;
}

// Resolves lifetimes of a frozen vision tower: stores the activations of one layer only, and removes the tensors of the
// tower's backward, but not of the projector's.
static void resolve_frozen_tower(TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
        TensorLayout *t = &layout[id][VALUE];
        if (t->saved && t->layers > 1) store_one_layer(t);
        if (t->alias < 0 && (t->first > STAGE_BWD_HEAD || id == DN)) t->exists = false;
    }
}

// --- bytes: sizes of data, scales and amaxes -----------------------------------------------------------------------

#define SCALE_ALIGNED 16 // bytes of a per-tensor scale: one FP32, aligned to 16 bytes for cuBLASLt

static void set_bytes(TensorLayout *t) {
    const int64_t n = t->local_elements;
    if (t->exists && t->has_amax) t->amax_bytes = (size_t)t->rows * sizeof(uint32_t);
    if (!layout_owns_memory(t)) return;
    t->data_bytes = (size_t)n * format_bytes(t->format);
    switch (t->granularity) {
    case SCALE_NONE: break;
    case SCALE_TENSOR: t->scale_bytes = t->scale_source < 0 ? SCALE_ALIGNED : 0; break;
    case SCALE_ROW: t->scale_bytes = t->scale_source < 0 ? (size_t)t->rows * sizeof(float) : 0; break;
    case SCALE_GROUP:
        t->scale_bytes = (size_t)(t->rows * ((t->cols + t->group - 1) / t->group)) * format_bytes(FMT_BF16);
        break;
    case SCALE_EXPAND:
        t->exponent_bytes = (size_t)((n + t->group - 1) / t->group);
        t->scale_bytes = t->exponent_bytes * sizeof(float);
        break;
    }
}

// With --recompute 3, enlarges QKV, which training stores for one layer only, by a sample's KV cache. In this enlarged
// memory, consecutive layers are a sample's rows apart, so that samples can store all layers.
static void add_kv_cache(const Config *c, TensorLayout *qkv) {
    const int length = config_sample_rows(config_sample_length(c), c->seq_len);
    const int64_t sample = (int64_t)config_sample_sequences(c) * length;
    const int64_t rows = sample < qkv->rows ? sample : qkv->rows;
    qkv->data_stride = align_up((size_t)(rows * qkv->cols) * format_bytes(qkv->format));
    qkv->data_bytes += qkv->data_stride * (size_t)(c->shape.layers - 1);
}

void tensors_resolve(const Config *config, int ranks, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    const int bf16_blocks = config_bf16_blocks(config);
    Config *bf16 = (Config *)xmalloc(sizeof *bf16);
    *bf16 = *config;
    bf16->recipe.linear = LINEAR_BF16;
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int role = 0; role < ROLE_COUNT; role++) layout[id][role] = no_layout;
    for (int id = 0; id < PARAMETER_COUNT; id++) resolve_parameter((TensorId)id, config, ranks, layout[id]);
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++)
        layout[id][VALUE] = resolve_activation((TensorId)id, config);
    resolve_exchange(config, ranks, &layout[MUON_X][VALUE], &layout[MUON_Y][VALUE]);
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) inherit_scale((TensorId)id, layout);
    for (int id = PARAMETER_COUNT; bf16_blocks > 0 && id < TENSOR_COUNT; id++)
        if (may_differ_in_bf16_blocks((TensorId)id, config))
            resolve_bf16_blocks((TensorId)id, bf16, bf16_blocks, layout[id]);
    free(bf16);
    if (layout[QKVW_REFERENCE][VALUE].exists) layout[DQKV][VALUE].last = layout[QKVW_REFERENCE][VALUE].last;
    if (config_forward_only(config)) resolve_forward_only(config_samples_only(config), layout);
    if (config_recomputes_blocks(config)) resolve_recomputed_blocks(layout);
    if (config->shape.tower && config->freeze & PART_VISION) resolve_frozen_tower(layout);
    for (int id = 0; id < TENSOR_COUNT; id++)
        for (int role = 0; role < ROLE_COUNT; role++) set_bytes(&layout[id][role]);
    if (config_recomputes_blocks(config) && config->sample_tokens > 0) add_kv_cache(config, &layout[QKV][VALUE]);
}
