#include "tensors.h"

#include "config.h"

// Symbolic extents of a row; resolved by the configuration.
typedef enum {
    DIM_1,
    DIM_C,     // channels
    DIM_QKV,   // (heads + 2 kv_heads) * head_dim
    DIM_ATT,   // heads * head_dim
    DIM_F,     // feed-forward width
    DIM_VP,    // padded vocabulary
    DIM_POS,   // positions
    DIM_M,     // tokens of a micro-batch
    DIM_BH,    // sequences * heads
    DIM_T,     // tokens of a sequence
    DIM_CHUNK, // tokens whose logits exist at a time
    DIM_STATE  // bytes of StepState, generously
} Dim;

// How a row's format and storage follow from the recipe. "plain" is BF16, or FP32 with --precision fp32.
typedef enum {
    RULE_PARAMETER,
    RULE_INPUT,      // I32, resident
    RULE_STATE,      // bytes, resident
    RULE_SAVED,      // plain, saved from forward to backward in every recipe
    RULE_STATISTIC,  // FP32, saved
    RULE_SCRATCH,    // plain, alive between its stages only
    RULE_LOSSES,     // FP32, resident
    RULE_LOGITS,     // plain scratch, counted in a category of its own
    RULE_CARRIED,    // the residual stream where no saved tensor holds it (--saved coat)
    RULE_RESIDUAL,   // the residual stream at one point: the norm's saved input, or the carried buffer
    RULE_NORM_INPUT, // saved: plain, or E4M3 per group (--saved coat)
    RULE_LAST_INPUT, // the final norm's input: plain in every recipe
    RULE_HIDDEN,     // h: saved, plain or E4M3 per group
    RULE_HIDDEN_OUT, // the product that becomes h: h itself where that is plain, else scratch
    RULE_NORM_OUT,   // input of a product: plain or E4M3 per tensor; saved unless it is rebuilt
    RULE_ACT_OUT,
    RULE_ATT_OUT_Q,  // the attention's output as the product reads it: itself, or E4M3 per tensor
    RULE_NORM_OUT_T, // the same three as the weight gradient reads them
    RULE_ACT_OUT_T,
    RULE_ATT_OUT_T,
    RULE_GRAD_Q, // a gradient as the products read it: itself, or E5M2 per tensor
    RULE_GRAD_QT
} Rule;

typedef struct {
    TensorRow row;
    Rule rule;
    Dim rows, cols;
    Stage first, last;
    int source; // the tensor that an alias rule falls back to; -1 = none
} TableRow;

// clang-format off
#define PARAM(name, hf, transposed, layer, init, product, decay, rows, cols) \
    {{name, hf, transposed, layer, init, product, decay}, RULE_PARAMETER, rows, cols, STAGE_EMBED, STAGE_BWD_EMBED, -1}
#define ACT(name, layer, rule, rows, cols, first, last, source) \
    {{name, NULL, false, layer, INIT_ZERO, false, false}, rule, rows, cols, first, last, source}

static const TableRow table[TENSOR_COUNT] = {
    //    name       Hugging Face                             transposed layer  init              product decay rows     cols
    PARAM("wte",     "transformer.wte.weight",                false, false, INIT_NORMAL,          false, true,  DIM_VP,  DIM_C),
    PARAM("wpe",     "transformer.wpe.weight",                false, false, INIT_NORMAL,          false, true,  DIM_POS, DIM_C),
    PARAM("ln1w",    "transformer.h.%d.ln_1.weight",          false, true,  INIT_ONE,             false, false, DIM_1,   DIM_C),
    PARAM("ln1b",    "transformer.h.%d.ln_1.bias",            false, true,  INIT_ZERO,            false, false, DIM_1,   DIM_C),
    PARAM("qkvw",    "transformer.h.%d.attn.c_attn.weight",   true,  true,  INIT_NORMAL,          true,  true,  DIM_QKV, DIM_C),
    PARAM("qkvb",    "transformer.h.%d.attn.c_attn.bias",     false, true,  INIT_ZERO,            false, false, DIM_1,   DIM_QKV),
    PARAM("projw",   "transformer.h.%d.attn.c_proj.weight",   true,  true,  INIT_NORMAL_RESIDUAL, true,  true,  DIM_C,   DIM_ATT),
    PARAM("projb",   "transformer.h.%d.attn.c_proj.bias",     false, true,  INIT_ZERO,            false, false, DIM_1,   DIM_C),
    PARAM("ln2w",    "transformer.h.%d.ln_2.weight",          false, true,  INIT_ONE,             false, false, DIM_1,   DIM_C),
    PARAM("ln2b",    "transformer.h.%d.ln_2.bias",            false, true,  INIT_ZERO,            false, false, DIM_1,   DIM_C),
    PARAM("fcw",     "transformer.h.%d.mlp.c_fc.weight",      true,  true,  INIT_NORMAL,          true,  true,  DIM_F,   DIM_C),
    PARAM("fcb",     "transformer.h.%d.mlp.c_fc.bias",        false, true,  INIT_ZERO,            false, false, DIM_1,   DIM_F),
    PARAM("fcprojw", "transformer.h.%d.mlp.c_proj.weight",    true,  true,  INIT_NORMAL_RESIDUAL, true,  true,  DIM_C,   DIM_F),
    PARAM("fcprojb", "transformer.h.%d.mlp.c_proj.bias",      false, true,  INIT_ZERO,            false, false, DIM_1,   DIM_C),
    PARAM("lnfw",    "transformer.ln_f.weight",               false, false, INIT_ONE,             false, false, DIM_1,   DIM_C),
    PARAM("lnfb",    "transformer.ln_f.bias",                 false, false, INIT_ZERO,            false, false, DIM_1,   DIM_C),

    //  name          layer  rule             rows       cols     first used           last used            source
    ACT("tokens",     false, RULE_INPUT,      DIM_M,     DIM_1,   STAGE_EMBED,         STAGE_BWD_EMBED,     -1),
    ACT("targets",    false, RULE_INPUT,      DIM_M,     DIM_1,   STAGE_EMBED,         STAGE_BWD_EMBED,     -1),
    ACT("state",      false, RULE_STATE,      DIM_1,     DIM_STATE, STAGE_EMBED,       STAGE_BWD_EMBED,     -1),

    ACT("resid",      false, RULE_CARRIED,    DIM_M,     DIM_C,   STAGE_EMBED,         STAGE_NORMF,         -1),
    ACT("resid_in",   true,  RULE_RESIDUAL,   DIM_M,     DIM_C,   STAGE_EMBED,         STAGE_NORMF,         X_IN),
    ACT("resid_mid",  true,  RULE_RESIDUAL,   DIM_M,     DIM_C,   STAGE_EMBED,         STAGE_NORMF,         X_MID),
    ACT("resid_final", false, RULE_RESIDUAL,  DIM_M,     DIM_C,   STAGE_EMBED,         STAGE_NORMF,         X_FINAL),

    ACT("x_in",       true,  RULE_NORM_INPUT, DIM_M,     DIM_C,   STAGE_NORM1,         STAGE_BWD_NORM1,     -1),
    ACT("mean1",      true,  RULE_STATISTIC,  DIM_M,     DIM_1,   STAGE_NORM1,         STAGE_BWD_NORM1,     -1),
    ACT("rstd1",      true,  RULE_STATISTIC,  DIM_M,     DIM_1,   STAGE_NORM1,         STAGE_BWD_NORM1,     -1),
    ACT("n1",         true,  RULE_NORM_OUT,   DIM_M,     DIM_C,   STAGE_NORM1,         STAGE_QKV,           -1),
    ACT("qkv",        true,  RULE_SAVED,      DIM_M,     DIM_QKV, STAGE_QKV,           STAGE_BWD_ATTENTION, -1),
    ACT("o",          true,  RULE_SAVED,      DIM_M,     DIM_ATT, STAGE_ATTENTION,     STAGE_BWD_PROJ,      -1),
    ACT("lse",        true,  RULE_STATISTIC,  DIM_BH,    DIM_T,   STAGE_ATTENTION,     STAGE_BWD_ATTENTION, -1),
    ACT("oq",         true,  RULE_ATT_OUT_Q,  DIM_M,     DIM_ATT, STAGE_ATTENTION,     STAGE_PROJ,          O),
    ACT("y",          false, RULE_SCRATCH,    DIM_M,     DIM_C,   STAGE_NORM1,         STAGE_NORMF,         -1),
    ACT("x_mid",      true,  RULE_NORM_INPUT, DIM_M,     DIM_C,   STAGE_NORM2,         STAGE_BWD_NORM2,     -1),
    ACT("mean2",      true,  RULE_STATISTIC,  DIM_M,     DIM_1,   STAGE_NORM2,         STAGE_BWD_NORM2,     -1),
    ACT("rstd2",      true,  RULE_STATISTIC,  DIM_M,     DIM_1,   STAGE_NORM2,         STAGE_BWD_NORM2,     -1),
    ACT("n2",         true,  RULE_NORM_OUT,   DIM_M,     DIM_C,   STAGE_NORM2,         STAGE_FC,            -1),
    ACT("h",          true,  RULE_HIDDEN,     DIM_M,     DIM_F,   STAGE_FC,            STAGE_BWD_ACT,       -1),
    ACT("y_fc",       true,  RULE_HIDDEN_OUT, DIM_M,     DIM_F,   STAGE_FC,            STAGE_ACT,           H),
    ACT("g",          true,  RULE_ACT_OUT,    DIM_M,     DIM_F,   STAGE_ACT,           STAGE_FCPROJ,        -1),
    ACT("x_final",    false, RULE_LAST_INPUT, DIM_M,     DIM_C,   STAGE_NORMF,         STAGE_BWD_NORMF,     -1),
    ACT("meanf",      false, RULE_STATISTIC,  DIM_M,     DIM_1,   STAGE_NORMF,         STAGE_BWD_NORMF,     -1),
    ACT("rstdf",      false, RULE_STATISTIC,  DIM_M,     DIM_1,   STAGE_NORMF,         STAGE_BWD_NORMF,     -1),
    ACT("nf",         false, RULE_SCRATCH,    DIM_M,     DIM_C,   STAGE_NORMF,         STAGE_HEAD,          -1),
    ACT("logits",     false, RULE_LOGITS,     DIM_CHUNK, DIM_VP,  STAGE_HEAD,          STAGE_HEAD,          -1),
    ACT("losses",     false, RULE_LOSSES,     DIM_M,     DIM_1,   STAGE_HEAD,          STAGE_HEAD,          -1),

    ACT("dresid",     false, RULE_SCRATCH,    DIM_M,     DIM_C,   STAGE_BWD_NORMF,     STAGE_BWD_EMBED,     -1),
    ACT("dresid_q",   false, RULE_GRAD_Q,     DIM_M,     DIM_C,   STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      DRESID),
    ACT("dresid_qt",  false, RULE_GRAD_QT,    DIM_M,     DIM_C,   STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      DRESID),
    ACT("dn",         false, RULE_SCRATCH,    DIM_M,     DIM_C,   STAGE_HEAD,          STAGE_BWD_NORM1,     -1),
    ACT("do",         false, RULE_SCRATCH,    DIM_M,     DIM_ATT, STAGE_BWD_PROJ,      STAGE_BWD_ATTENTION, -1),
    ACT("dg",         false, RULE_SCRATCH,    DIM_M,     DIM_F,   STAGE_BWD_FCPROJ,    STAGE_BWD_FC,        -1),
    ACT("dh_q",       false, RULE_GRAD_Q,     DIM_M,     DIM_F,   STAGE_BWD_ACT,       STAGE_BWD_FC,        DG),
    ACT("dh_qt",      false, RULE_GRAD_QT,    DIM_M,     DIM_F,   STAGE_BWD_ACT,       STAGE_BWD_FC,        DG),
    ACT("dqkv",       false, RULE_SCRATCH,    DIM_M,     DIM_QKV, STAGE_BWD_ATTENTION, STAGE_BWD_QKV,       -1),
    ACT("dqkv_q",     false, RULE_GRAD_Q,     DIM_M,     DIM_QKV, STAGE_BWD_QKV,       STAGE_BWD_QKV,       DQKV),
    ACT("dqkv_qt",    false, RULE_GRAD_QT,    DIM_M,     DIM_QKV, STAGE_BWD_QKV,       STAGE_BWD_QKV,       DQKV),
    ACT("n1_t",       true,  RULE_NORM_OUT_T, DIM_M,     DIM_C,   STAGE_BWD_QKV,       STAGE_BWD_QKV,       N1),
    ACT("n2_t",       true,  RULE_NORM_OUT_T, DIM_M,     DIM_C,   STAGE_BWD_FC,        STAGE_BWD_FC,        N2),
    ACT("g_t",        true,  RULE_ACT_OUT_T,  DIM_M,     DIM_F,   STAGE_BWD_FCPROJ,    STAGE_BWD_FCPROJ,    G),
    ACT("o_t",        true,  RULE_ATT_OUT_T,  DIM_M,     DIM_ATT, STAGE_BWD_PROJ,      STAGE_BWD_PROJ,      O),
};
#undef PARAM
#undef ACT
// clang-format on

#define SCALE_ALIGNED 16       // a per-tensor scale: one FP32 in 16 bytes, as the libraries demand
#define MOMENT_GROUP 128       // elements per group of the 8-bit moments (COAT section 2)
#define STATE_BYTES 256        // room for StepState
#define LOGITS_BYTES (1 << 30) // the logits chunk is chosen to stay under this

const TensorRow *tensor_row(TensorId id) {
    return &table[id].row;
}

const char *category_name(Category c) {
    static const char *const names[CATEGORY_COUNT] = {"weights",       "fp8_weights", "gradients", "moments",
                                                      "master",        "saved",       "scratch",   "logits",
                                                      "communication", "workspace"};
    return names[c];
}

const char *role_suffix(Role r) {
    static const char *const names[ROLE_COUNT] = {"", ".codes", ".codes_t", ".grad", ".m", ".v", ".master"};
    return names[r];
}

// Tokens per chunk of the logits: the whole micro-batch if its logits are small, else the largest share of it
// (halving, so that all chunks are equal where the batch allows) under LOGITS_BYTES.
static int64_t logits_chunk(const Config *c) {
    int64_t tokens = config_micro_tokens(c);
    if (c->logits_chunk > 0) return c->logits_chunk < tokens ? c->logits_chunk : tokens;
    int64_t chunk = tokens;
    while (chunk > 16 && chunk * c->shape.vocab_padded * (int64_t)format_bytes(FMT_BF16) > LOGITS_BYTES)
        chunk = (chunk + 1) / 2;
    return chunk > 16 ? (chunk + 15) / 16 * 16 : chunk;
}

static int64_t extent(Dim dim, const Config *c) {
    const ModelShape *s = &c->shape;
    switch (dim) {
    case DIM_1: return 1;
    case DIM_C: return s->channels;
    case DIM_QKV: return (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim;
    case DIM_ATT: return (int64_t)s->heads * s->head_dim;
    case DIM_F: return s->ffn;
    case DIM_VP: return s->vocab_padded;
    case DIM_POS: return s->positions;
    case DIM_M: return config_micro_tokens(c);
    case DIM_BH: return (int64_t)c->micro_batch * s->heads;
    case DIM_T: return c->seq_len;
    case DIM_CHUNK: return logits_chunk(c);
    case DIM_STATE: return STATE_BYTES;
    }
    return 0;
}

// Elements that one of `ranks` processes holds of a tensor cut into shards of whole groups of 128.
static int64_t shard_elements(int64_t elements, int ranks) {
    int64_t per_rank = (elements + ranks - 1) / ranks;
    return ranks == 1 ? elements : (per_rank + MOMENT_GROUP - 1) / MOMENT_GROUP * MOMENT_GROUP;
}

static Format plain_format(const Recipe *r) {
    return r->precision == PRECISION_FP32 ? FMT_FP32 : FMT_BF16;
}

// Byte counts of a layout whose format and shape are set.
static void layout_bytes(TensorLayout *t) {
    int64_t n = t->shard_elements;
    t->data_bytes = (size_t)n * format_bytes(t->format);
    switch (t->granularity) {
    case SCALE_NONE: break;
    case SCALE_TENSOR: t->scale_bytes = t->scale_source < 0 ? SCALE_ALIGNED : 0; break;
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
    t.rows = extent(row->rows, c);
    t.cols = extent(row->cols, c);
    t.per_layer = t.per_layer_scale = row->row.per_layer;
    t.layers = row->row.per_layer ? c->shape.layers : 1;
    t.first = row->first;
    t.last = row->last;
    t.shard_elements = t.rows * t.cols;
    return t;
}

// Moments of one parameter: 8-bit for the two-dimensional ones (positions, norms and biases are small and keep
// FP32), unless exempted by name.
static bool moments_exempt(const Recipe *r, const TableRow *row, TensorId id) {
    if (r->moments == MOMENTS_FP32) return true;
    if (!row->row.decay || id == WPE) return true;
    for (const char *p = r->moments_fp32; *p;) {
        size_t length = strcspn(p, ",");
        const char *star = (const char *)memchr(p, '*', length);
        size_t prefix = star ? (size_t)(star - p) : length;
        if (strncmp(p, row->row.name, prefix) == 0 && (star || row->row.name[prefix] == '\0')) return true;
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

static void resolve_parameter(TensorId id, const Config *c, int ranks, TensorLayout out[ROLE_COUNT]) {
    const TableRow *row = &table[id];
    const Recipe *r = &c->recipe;
    Format plain = plain_format(r);
    out[VALUE] = layout_of(row, c, CATEGORY_WEIGHTS, plain);
    // Gradients of the blocks' products are stored as the flag says; all others are small or, as the tied
    // embedding's, summed from two sides over many chunks, and stay FP32.
    out[GRAD] = layout_of(row, c, CATEGORY_GRADIENTS, row->row.product && plain == FMT_BF16 ? r->grads : FMT_FP32);
    out[MOMENT_M] = layout_of(row, c, CATEGORY_MOMENTS, FMT_FP32);
    out[MOMENT_V] = out[MOMENT_M];
    bool exempt = moments_exempt(r, row, id);
    resolve_moment(&out[MOMENT_M], r, exempt, FMT_E4M3);
    resolve_moment(&out[MOMENT_V], r, exempt, r->second_moment);
    if (plain == FMT_BF16 && r->master != MASTER_NONE)
        out[MASTER] = layout_of(row, c, CATEGORY_MASTER, r->master == MASTER_FP32 ? FMT_FP32 : FMT_U16);
    if (row->row.product && r->linear == LINEAR_FP8 && plain == FMT_BF16) {
        out[CODES] = layout_of(row, c, CATEGORY_FP8_WEIGHTS, FMT_E4M3);
        out[CODES].granularity = SCALE_TENSOR;
        out[CODES_T] = out[CODES];
        out[CODES_T].transposed = true;
        // The transpose shares its scale with the codes; made on demand it needs room for one layer only.
        if (!r->cache_transposed) out[CODES_T].per_layer = false;
    }
    if (c->zero >= 1) {
        static const Role states[] = {MOMENT_M, MOMENT_V, MASTER};
        for (int i = 0; i < 3; i++)
            out[states[i]].shard_elements = shard_elements(out[states[i]].shard_elements, ranks);
    }
    if (c->zero >= 2) out[GRAD].shard_elements = shard_elements(out[GRAD].shard_elements, ranks);
    if (c->zero >= 3) {
        out[VALUE].shard_elements = shard_elements(out[VALUE].shard_elements, ranks);
        out[CODES].shard_elements = shard_elements(out[CODES].shard_elements, ranks);
        out[CODES_T].shard_elements = shard_elements(out[CODES_T].shard_elements, ranks);
    }
}

static void make_scratch(TensorLayout *t) {
    t->category = CATEGORY_SCRATCH;
    t->per_layer = false;
}

// The tensor whose scale a transposed copy shares.
static int scale_source(TensorId id) {
    switch (id) {
    case N1_T: return N1;
    case N2_T: return N2;
    case G_T: return G;
    case O_T: return OQ;
    case DRESID_QT: return DRESID_Q;
    case DH_QT: return DH_Q;
    case DQKV_QT: return DQKV_Q;
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

// Maxima of rows lie with a tensor that is quantised after the operation that makes it (DRESID: each norm_backward
// writes them anew), else with the codes, where the quantising operation itself leaves them between its passes. The
// producer of DQKV, attention, is a library's and emits none.
static bool codes_have_amax(TensorId id) {
    switch (id) {
    case N1:
    case N2:
    case G:
    case OQ:
    case DH_Q:
    case DQKV_Q: return true;
    default: return false;
    }
}

static void resolve_activation(TensorId id, const Config *c, TensorLayout *t) {
    const TableRow *row = &table[id];
    const Recipe *r = &c->recipe;
    bool full = r->precision == PRECISION_FP32;
    bool fp8 = r->linear == LINEAR_FP8 && !full, coat = r->saved == SAVED_COAT && !full;
    bool rebuild_act = r->recompute >= 1, rebuild_norm = r->recompute >= (coat ? 1 : 2);
    *t = layout_of(row, c, CATEGORY_SAVED, plain_format(r));
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
        t->has_amax = fp8 && id == DRESID;
        break;
    case RULE_LOGITS:
        make_scratch(t);
        t->category = CATEGORY_LOGITS;
        t->saved = false;
        break;
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
        break;
    case RULE_NORM_OUT:
    case RULE_ACT_OUT:
        make_operand(t, fp8, false, FMT_E4M3);
        t->has_amax = fp8 && codes_have_amax(id);
        t->saved = !(row->rule == RULE_NORM_OUT ? rebuild_norm : rebuild_act);
        if (!t->saved) make_scratch(t);
        break;
    case RULE_ATT_OUT_Q:
        if (!fp8) {
            make_alias(t, row->source);
            break;
        }
        make_operand(t, true, false, FMT_E4M3);
        t->has_amax = codes_have_amax(id);
        t->saved = false;
        make_scratch(t);
        break;
    case RULE_NORM_OUT_T:
    case RULE_ACT_OUT_T: {
        bool rebuilt = row->rule == RULE_NORM_OUT_T ? rebuild_norm : rebuild_act;
        if (!fp8 && !rebuilt) {
            make_alias(t, row->source);
            break;
        }
        make_operand(t, fp8, true, FMT_E4M3);
        t->saved = false;
        make_scratch(t);
        break;
    }
    case RULE_ATT_OUT_T:
        if (!fp8) {
            make_alias(t, row->source);
            break;
        }
        make_operand(t, true, true, FMT_E4M3);
        t->saved = false;
        make_scratch(t);
        break;
    case RULE_GRAD_Q:
    case RULE_GRAD_QT:
        if (!fp8) {
            make_alias(t, row->source);
            break;
        }
        make_operand(t, true, row->rule == RULE_GRAD_QT, FMT_E5M2);
        t->has_amax = codes_have_amax(id);
        t->saved = false;
        make_scratch(t);
        break;
    }
}

void tensors_resolve(const Config *config, int ranks, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    memset(layout, 0, sizeof(TensorLayout) * TENSOR_COUNT * ROLE_COUNT);
    for (int id = 0; id < TENSOR_COUNT; id++) {
        for (int role = 0; role < ROLE_COUNT; role++) layout[id][role].alias = layout[id][role].scale_source = -1;
        if (id < PARAMETER_COUNT)
            resolve_parameter((TensorId)id, config, ranks, layout[id]);
        else
            resolve_activation((TensorId)id, config, &layout[id][VALUE]);
        layout[id][VALUE].scale_source = scale_source((TensorId)id);
        layout[id][CODES_T].scale_source = layout[id][CODES_T].exists ? id : -1;
        for (int role = 0; role < ROLE_COUNT; role++)
            if (layout[id][role].exists && layout[id][role].alias < 0) layout_bytes(&layout[id][role]);
    }
}

int64_t model_parameters(const ModelShape *shape) {
    Config c;
    memset(&c, 0, sizeof c);
    c.shape = *shape;
    int64_t total = 0;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TableRow *row = &table[id];
        int64_t rows = row->rows == DIM_VP ? shape->vocab : extent(row->rows, &c);
        total += rows * extent(row->cols, &c) * (row->row.per_layer ? shape->layers : 1);
    }
    return total;
}
