// What the table of tensors becomes under a configuration: formats, shapes, lifetimes, bytes. Of activations, what
// their rules say is in tensors_activations.c.
#include "config/shapes.h"
#include "ops.h"
#include "tensors_table.h"

#define SCALE_ALIGNED 16       // a per-tensor scale: one FP32 in 16 bytes, as the libraries demand
#define MOMENT_GROUP 128       // elements per group of the 8-bit moments (COAT: optimizer states)
#define STATE_BYTES 256        // room for StepState
#define LOGITS_BYTES (1 << 30) // the logits chunk is chosen to stay under this

// Tokens per chunk of the logits: the whole micro-batch if its logits are small, else the largest share of it
// (halving, so that all chunks are equal where the batch allows) under LOGITS_BYTES.
static int64_t logits_chunk(const Config *c) {
    int64_t tokens = config_micro_tokens(c);
    if (config_samples_only(c)) return config_sample_logits(c);
    if (c->logits_chunk > 0) return c->logits_chunk < tokens ? c->logits_chunk : tokens;
    int64_t chunk = tokens;
    while (chunk > 16 && chunk * c->shape.vocab_padded * (int64_t)format_bytes(FMT_BF16) > LOGITS_BYTES)
        chunk = (chunk + 1) / 2;
    return chunk > 16 ? (chunk + 15) / 16 * 16 : chunk;
}

int64_t shape_extent(Dim dim, const ModelShape *s) {
    switch (dim) {
    case DIM_C: return s->channels;
    case DIM_QKV: return shape_qkv_width(s);
    case DIM_ATT: return (int64_t)s->heads * s->head_dim;
    case DIM_KV: return (int64_t)s->kv_heads * s->head_dim;
    case DIM_D: return s->head_dim;
    case DIM_QNORM: return (int64_t)(s->qk_norm == QK_NORM_ROW ? s->heads : 1) * s->head_dim;
    case DIM_KNORM: return (int64_t)(s->qk_norm == QK_NORM_ROW ? s->kv_heads : 1) * s->head_dim;
    case DIM_F: return s->ffn;
    case DIM_H: return shape_hidden_width(s);
    case DIM_VP: return s->vocab_padded;
    case DIM_POS: return s->positions;
    case DIM_L: return s->layers;
    default: return 1;
    }
}

int64_t tensor_extent(Dim dim, const Config *c) {
    switch (dim) {
    case DIM_M: return config_micro_tokens(c);
    case DIM_BH: return (int64_t)c->micro_batch * c->shape.heads;
    case DIM_T: return c->seq_len;
    case DIM_CHUNK: return logits_chunk(c);
    case DIM_STATE: return STATE_BYTES;
    case DIM_COUNTS: return (int64_t)(2 * GRADIENT_COUNT * sizeof(CodeCounts));
    case DIM_INNER: return (int64_t)sizeof(InnerProducts);
    default: return shape_extent(dim, &c->shape);
    }
}

int64_t tensor_share(int64_t elements, int ranks) {
    int64_t per_rank = (elements + ranks - 1) / ranks;
    return ranks == 1 ? elements : (per_rank + MOMENT_GROUP - 1) / MOMENT_GROUP * MOMENT_GROUP;
}

static Format plain_format(const Recipe *r) {
    return r->precision == PRECISION_FP32 ? FMT_FP32 : FMT_BF16;
}

// Byte counts of a layout whose format and shape are set.
static void layout_bytes(TensorLayout *t) {
    int64_t n = t->held_elements;
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
    if (t->has_amax) t->amax_bytes = (size_t)t->rows * sizeof(uint32_t);
}

static TensorLayout layout_of(const TableRow *row, const Config *c, Category category, Format format) {
    TensorLayout t = {0};
    t.exists = true;
    t.alias = t.scale_source = -1;
    t.category = category;
    t.format = format;
    t.rows = tensor_extent(row->rows, c);
    t.cols = tensor_extent(row->cols, c);
    t.per_layer = t.per_layer_scale = row->row.per_layer;
    t.layers = row->row.per_layer ? c->shape.layers : 1;
    t.first = row->first;
    t.last = row->last;
    t.shard_elements = t.held_elements = t.rows * t.cols;
    return t;
}

// Whether a pattern is the name, or its beginning with a * behind.
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

// Moments of one parameter: 8-bit for the two-dimensional ones (positions, norms and biases are small and keep
// FP32), unless exempted by name.
static bool moments_exempt(const Recipe *r, const TableRow *row) {
    if (r->moments == MOMENTS_FP32 || row->small || row->rows == DIM_1) return true;
    for (const char *p = r->moments_fp32; *p;) {
        size_t length = strcspn(p, ",");
        if (name_matches(p, length, row->row.name)) return true;
        p += length + (p[length] == ',');
    }
    return false;
}

static void resolve_moment(TensorLayout *t, const Recipe *r, bool exempt, Format fp8) {
    if (exempt) {
        t->format = FMT_FP32;
    } else if (r->moments == MOMENTS_BF16) {
        t->format = FMT_BF16;
    } else {
        t->format = fp8;
        t->granularity = SCALE_EXPAND;
        t->group = MOMENT_GROUP;
    }
}

static void keep_shard(TensorLayout *t) {
    t->held_elements = t->shard_elements;
    t->sharded = true;
}

// Whole, with room for all shares in equal length, so that they can be communicated in place.
static void keep_padded(TensorLayout *t, int ranks) {
    t->held_elements = t->shard_elements * ranks;
}

// Room for whole layers that take turns.
static TensorLayout layer_slots(const TensorLayout *of, int ranks) {
    TensorLayout t = *of;
    t.sharded = false;
    t.category = CATEGORY_COMMUNICATION;
    t.saved = true;
    if (t.layers > LAYER_SLOTS) t.layers = LAYER_SLOTS;
    keep_padded(&t, ranks);
    return t;
}

// What processes share, by ZeRO stage. 1: the optimizer's states. 2: the blocks' gradients, too. 3: the blocks'
// matrices, too. The embeddings are needed at both ends of every pass and their gradients are summed over the whole of
// it, and norms and biases are small: they and the embeddings' gradients stay whole.
static void share_parameter(const TableRow *row, const Config *c, int ranks, TensorLayout out[ROLE_COUNT]) {
    int zero = config_zero(c, ranks);
    for (int role = VALUE; role <= MASTER; role++)
        out[role].shard_elements = tensor_share(out[role].shard_elements, ranks);
    if (zero == 0) return;
    for (int role = MOMENT_M; role <= MASTER; role++) keep_shard(&out[role]);
    bool share_grad = zero >= 2 && row->row.per_layer, share_value = zero >= 3 && row->in_block;
    if (share_grad) {
        out[UNREDUCED] = layer_slots(&out[GRAD], ranks);
        keep_shard(&out[GRAD]);
    } else {
        keep_padded(&out[GRAD], ranks);
    }
    if (!share_value) {
        keep_padded(&out[VALUE], ranks);
        return;
    }
    // the first blocks' matmuls may read values where the others' read codes
    const bool codes_alone = out[CODES].exists && config_bf16_blocks(c) == 0;
    out[GATHERED] = layer_slots(codes_alone ? &out[CODES] : &out[VALUE], ranks);
    out[GATHERED].granularity = SCALE_NONE; // the scale lies with the shard's codes
    keep_shard(&out[VALUE]);
    keep_shard(&out[CODES]);
    out[CODES_T].per_layer = false; // the transpose is made from what was gathered, for one layer at a time
}

static void resolve_parameter(TensorId id, const Config *c, int ranks, TensorLayout out[ROLE_COUNT]) {
    const TableRow *row = &tensor_table[id];
    const Recipe *r = &c->recipe;
    Format plain = plain_format(r);
    bool of_block = row->in_block, of_head = id == head_weight(&c->shape);
    if (!table_row_exists(row, &c->shape)) return;
    out[VALUE] = layout_of(row, c, CATEGORY_WEIGHTS, plain);
    // Gradients of the blocks' matmuls are stored as the flag says; all others are small or, as the tied
    // embedding's, summed from two sides over many chunks, and stay FP32.
    out[GRAD] = layout_of(row, c, CATEGORY_GRADIENTS, of_block && plain == FMT_BF16 ? r->grads : FMT_FP32);
    out[MOMENT_M] = layout_of(row, c, CATEGORY_MOMENTS, FMT_FP32);
    out[MOMENT_V] = out[MOMENT_M];
    bool exempt = moments_exempt(r, row);
    resolve_moment(&out[MOMENT_M], r, exempt, FMT_E4M3);
    resolve_moment(&out[MOMENT_V], r, exempt, FMT_E4M3);
    if (plain == FMT_BF16 && r->master != MASTER_NONE)
        out[MASTER] = layout_of(row, c, CATEGORY_MASTER, r->master == MASTER_FP32 ? FMT_FP32 : FMT_U16);
    bool fp8 = (of_block && r->linear == LINEAR_FP8) || (of_head && r->head != HEAD_BF16);
    if (fp8 && plain == FMT_BF16) {
        out[CODES] = layout_of(row, c, CATEGORY_FP8_WEIGHTS, FMT_E4M3);
        out[CODES].granularity = SCALE_TENSOR;
        out[CODES_T] = out[CODES];
        out[CODES_T].transposed = true;
        // The transpose shares its scale with the codes; made on demand it needs room for one layer only.
        if (!r->cache_transposed) out[CODES_T].per_layer = false;
    }
    share_parameter(row, c, ranks, out);
}

static void resolve_activation(TensorId id, const Config *c, TensorLayout *t) {
    const TableRow *row = &tensor_table[id];
    if (!activation_exists(row, c)) return;
    *t = layout_of(row, c, CATEGORY_SAVED, plain_format(&c->recipe));
    activation_resolve(row, c, t);
}

// Each layer overwrites what the one before it left.
static void keep_one_layer(TensorLayout *t) {
    t->per_layer = t->per_layer_scale = false;
    t->layers = 1;
}

// Where nothing is trained: no gradients, no states, no scratch of the blocks' backward; what would be kept for it is
// that of one layer, which each layer overwrites. A sample continues from every layer's keys and values, which lie
// where their matmul has left them.
static void keep_forward(bool samples, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    static const Role trained[] = {GRAD, MOMENT_M, MOMENT_V, MASTER, UNREDUCED};
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        for (size_t i = 0; i < sizeof trained / sizeof *trained; i++) {
            const TensorLayout none = {.alias = -1, .scale_source = -1};
            layout[id][trained[i]] = none;
        }
    }
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
        if (samples && id == QKV) continue;
        if (samples && id == HEADS && layout[id][VALUE].alias < 0) layout[id][VALUE].exists = false;
        TensorLayout *both[] = {&layout[id][VALUE], &layout[id][PLAIN]};
        for (int i = 0; i < 2; i++) {
            keep_one_layer(both[i]);
            if (both[i]->first > STAGE_BWD_HEAD && both[i]->alias < 0) both[i]->exists = false;
        }
    }
}

// Where backward makes blocks again, what forward keeps for it is one block's, but for the stream that each began with.
// The gradient of the stream is alive meanwhile.
static void keep_streams(TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    int stream = RESID_IN;
    while (layout[stream][VALUE].alias >= 0) stream = layout[stream][VALUE].alias;
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++) {
        if (id == stream || tensor_table[id].rule == RULE_RESIDENT || !layout[id][VALUE].saved) continue;
        keep_one_layer(&layout[id][VALUE]);
        keep_one_layer(&layout[id][PLAIN]);
    }
    layout[DRESID][VALUE].first = STAGE_EMBED;
}

// There a sample between two steps continues from every layer's keys and values: layers overlap
// but for as many rows as it has.
static void overlap_layers(const Config *c, TensorLayout *qkv) {
    const int length = config_sample_rows(config_sample_length(c), c->seq_len);
    const int64_t sample = (int64_t)config_sample_sequences(c) * length;
    const int64_t rows = sample < qkv->rows ? sample : qkv->rows;
    qkv->data_stride = align_up((size_t)(rows * qkv->cols) * format_bytes(qkv->format));
    qkv->data_bytes += qkv->data_stride * (size_t)(c->shape.layers - 1);
}

// Whose scale a tensor has, once the granularities of what is quantised are known. Of codes per row, or in another
// format, a transpose has a scale of its own.
static void share_scale(TensorId id, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    const TableRow *row = &tensor_table[id];
    TensorLayout *value = &layout[id][VALUE];
    const TensorLayout *codes = &layout[row->transpose_of][VALUE];
    if (row->matmul_of && layout[row->matmul_of][VALUE].granularity == SCALE_ROW) {
        value->granularity = SCALE_ROW;
        value->scale_source = (int)row->matmul_of;
    }
    if (row->transpose_of && codes->granularity == value->granularity && codes->format == value->format)
        value->scale_source = (int)row->transpose_of;
    layout[id][CODES_T].scale_source = layout[id][CODES_T].exists ? (int)id : -1;
}

// Whether a tensor of the forward pass is another one in blocks whose matmuls stay in BF16: what a norm or attention
// leaves, where backward makes its codes from what was kept, and the matmul of it.
static bool plain_in_first_blocks(TensorId id, const Config *c) {
    const TableRow *row = &tensor_table[id];
    if (row->last >= STAGE_NORMF) return false; // no block's, or its backward's
    switch (row->rule) {
    case RULE_OPERAND: return true;
    case RULE_NORM_OUT: return config_recomputes_norms(c);
    case RULE_ALIAS:
    case RULE_HIDDEN_OUT: return row->matmul_of && plain_in_first_blocks(row->matmul_of, c);
    default: return false;
    }
}

// What an activation is in the first `blocks` blocks, where it is resolved as PLAIN for matmuls in BF16 already. Where
// it is the same as VALUE it goes; where only scales and maxima differ it has VALUE's memory. The maxima of the rows of
// an operand are kept for the scale of the codes that backward makes of it.
static void resolve_first_blocks(TensorId id, int blocks, bool trains, TensorLayout layout[ROLE_COUNT]) {
    TensorLayout *value = &layout[VALUE], *plain = &layout[PLAIN];
    const bool in_place = plain->alias == value->alias && plain->format == value->format &&
                          plain->transposed == value->transposed && plain->saved == value->saved;
    const bool same = in_place && plain->granularity == value->granularity && plain->has_amax == value->has_amax;
    if (!plain->exists || !value->exists || same) {
        const TensorLayout none = {.alias = -1, .scale_source = -1};
        *plain = none;
        return;
    }
    if (in_place) {
        if (plain->alias < 0) plain->alias = (int)id;
        return;
    }
    value->blocks = BLOCKS_FP8;
    plain->blocks = BLOCKS_PLAIN;
    plain->layers = blocks;
    plain->has_amax = trains;
    if (trains) plain->amax_bytes = (size_t)plain->rows * sizeof(uint32_t);
}

void tensors_resolve(const Config *config, int ranks, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    const int blocks = config_bf16_blocks(config);
    Config *plain = (Config *)xmalloc(sizeof *plain); // of the first blocks
    *plain = *config;
    plain->recipe.linear = LINEAR_BF16;
    memset(layout, 0, sizeof(TensorLayout) * TENSOR_COUNT * ROLE_COUNT);
    for (int id = 0; id < TENSOR_COUNT; id++) {
        for (int role = 0; role < ROLE_COUNT; role++) layout[id][role].alias = layout[id][role].scale_source = -1;
        if (id < PARAMETER_COUNT)
            resolve_parameter((TensorId)id, config, ranks, layout[id]);
        else
            resolve_activation((TensorId)id, config, &layout[id][VALUE]);
        if (blocks > 0 && plain_in_first_blocks((TensorId)id, config))
            resolve_activation((TensorId)id, plain, &layout[id][PLAIN]);
    }
    free(plain);
    for (int id = PARAMETER_COUNT; id < TENSOR_COUNT; id++)
        if (tensor_table[id].keeps && layout[id][VALUE].exists)
            layout[tensor_table[id].keeps][VALUE].last = layout[id][VALUE].last;
    if (config_forward_only(config))
        keep_forward(config_samples_only(config), layout);
    else if (config_repeats_blocks(config))
        keep_streams(layout);
    for (int id = 0; id < TENSOR_COUNT; id++) {
        share_scale((TensorId)id, layout);
        if (id >= PARAMETER_COUNT && blocks > 0)
            resolve_first_blocks((TensorId)id, blocks, !config_forward_only(config), layout[id]);
        for (int role = 0; role < ROLE_COUNT; role++)
            if (layout_owns_memory(&layout[id][role])) layout_bytes(&layout[id][role]);
    }
    if (config_repeats_blocks(config) && config->sample_tokens > 0) overlap_layers(config, &layout[QKV][VALUE]);
}
