#include "tensors_table.h"

// clang-format off
#define PARAM(name, hf, transposed, layer, init, product, decay, rows, cols) \
    {{name, hf, transposed, layer, init, product, decay}, RULE_PARAMETER, rows, cols, STAGE_EMBED, STAGE_BWD_EMBED, -1}
#define ACT(name, layer, rule, rows, cols, first, last, source) \
    {{name, NULL, false, layer, INIT_ZERO, false, false}, rule, rows, cols, first, last, source}

const TableRow tensor_table[TENSOR_COUNT] = {
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
    ACT("y_proj",     true,  RULE_PRODUCT_OUT, DIM_M,    DIM_C,   STAGE_PROJ,          STAGE_NORM2,         Y),
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
    ACT("nf",         false, RULE_HEAD_IN,    DIM_M,     DIM_C,   STAGE_NORMF,         STAGE_BWD_HEAD,      -1),
    ACT("logits",     false, RULE_LOGITS,     DIM_CHUNK, DIM_VP,  STAGE_HEAD,          STAGE_BWD_HEAD,      -1),
    ACT("dlogits_q",  false, RULE_LOGITS_GRAD,   DIM_CHUNK, DIM_VP, STAGE_HEAD,        STAGE_BWD_HEAD,      LOGITS),
    ACT("dlogits_qt", false, RULE_LOGITS_GRAD_T, DIM_CHUNK, DIM_VP, STAGE_BWD_HEAD,    STAGE_BWD_HEAD,      LOGITS),
    ACT("losses",     false, RULE_LOSSES,     DIM_M,     DIM_1,   STAGE_HEAD,          STAGE_HEAD,          -1),

    ACT("dresid",     false, RULE_SCRATCH,    DIM_M,     DIM_C,   STAGE_BWD_NORMF,     STAGE_BWD_EMBED,     -1),
    ACT("dresid_q",   true,  RULE_GRAD_Q,     DIM_M,     DIM_C,   STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      DRESID),
    ACT("dresid_qt",  true,  RULE_GRAD_QT,    DIM_M,     DIM_C,   STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      DRESID),
    ACT("dn",         false, RULE_SCRATCH,    DIM_M,     DIM_C,   STAGE_HEAD,          STAGE_BWD_NORM1,     -1),
    ACT("dn2",        true,  RULE_PRODUCT_OUT, DIM_M,    DIM_C,   STAGE_BWD_FC,        STAGE_BWD_NORM2,     DN),
    ACT("do",         false, RULE_SCRATCH,    DIM_M,     DIM_ATT, STAGE_BWD_PROJ,      STAGE_BWD_ATTENTION, -1),
    ACT("dg",         false, RULE_SCRATCH,    DIM_M,     DIM_F,   STAGE_BWD_FCPROJ,    STAGE_BWD_FC,        -1),
    ACT("dh_q",       true,  RULE_GRAD_Q,     DIM_M,     DIM_F,   STAGE_BWD_ACT,       STAGE_BWD_FC,        DG),
    ACT("dh_qt",      true,  RULE_GRAD_QT,    DIM_M,     DIM_F,   STAGE_BWD_ACT,       STAGE_BWD_FC,        DG),
    ACT("dqkv",       false, RULE_SCRATCH,    DIM_M,     DIM_QKV, STAGE_BWD_ATTENTION, STAGE_BWD_QKV,       -1),
    ACT("dqkv_q",     true,  RULE_GRAD_Q,     DIM_M,     DIM_QKV, STAGE_BWD_QKV,       STAGE_BWD_QKV,       DQKV),
    ACT("dqkv_qt",    true,  RULE_GRAD_QT,    DIM_M,     DIM_QKV, STAGE_BWD_QKV,       STAGE_BWD_QKV,       DQKV),
    ACT("n1_t",       true,  RULE_NORM_OUT_T, DIM_M,     DIM_C,   STAGE_BWD_QKV,       STAGE_BWD_QKV,       N1),
    ACT("n2_t",       true,  RULE_NORM_OUT_T, DIM_M,     DIM_C,   STAGE_BWD_FC,        STAGE_BWD_FC,        N2),
    ACT("g_t",        true,  RULE_ACT_OUT_T,  DIM_M,     DIM_F,   STAGE_BWD_FCPROJ,    STAGE_BWD_FCPROJ,    G),
    ACT("o_t",        true,  RULE_ATT_OUT_T,  DIM_M,     DIM_ATT, STAGE_BWD_PROJ,      STAGE_BWD_PROJ,      O),
    ACT("nf_t",       false, RULE_HEAD_IN_T,  DIM_M,     DIM_C,   STAGE_HEAD,          STAGE_BWD_HEAD,      NF),
    ACT("code_counts", false, RULE_CODE_COUNTS, DIM_L,   DIM_COUNTS, STAGE_HEAD,       STAGE_BWD_QKV,       -1),
    ACT("qkvw_reference", false, RULE_REFERENCE, DIM_QKV, DIM_C,  STAGE_BWD_NORM1,     STAGE_BWD_NORM1,     -1),
    ACT("inner_products", false, RULE_INNER_PRODUCTS, DIM_L, DIM_INNER, STAGE_BWD_NORM1, STAGE_BWD_NORM1,   -1),
};
#undef PARAM
#undef ACT
// clang-format on

const TensorRow *tensor_row(TensorId id) {
    return &tensor_table[id].row;
}

const char *category_name(Category c) {
    static const char *const names[CATEGORY_COUNT] = {"weights",       "fp8_weights", "gradients", "moments",
                                                      "master",        "saved",       "scratch",   "logits",
                                                      "communication", "workspace"};
    return names[c];
}

const char *role_suffix(Role r) {
    static const char *const names[ROLE_COUNT] = {"",   ".codes",  ".codes_t",  ".grad",     ".m",
                                                  ".v", ".master", ".gathered", ".unreduced"};
    return names[r];
}

int64_t model_parameters(const ModelShape *shape) {
    Config c;
    memset(&c, 0, sizeof c);
    c.shape = *shape;
    int64_t total = 0;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TableRow *row = &tensor_table[id];
        int64_t rows = row->rows == DIM_VP ? shape->vocab : tensor_extent(row->rows, &c);
        total += rows * tensor_extent(row->cols, &c) * (row->row.per_layer ? shape->layers : 1);
    }
    return total;
}
