#include "tensors_table.h"

// clang-format off
const TableRow tensor_table[TENSOR_COUNT] = {
    // parameter   name, kind                                                                  rule            rows     cols
    [WTE] =     {{"wte", .init = INIT_NORMAL, .decay = true},                                  RULE_PARAMETER, DIM_VP,  DIM_C},
    [WPE] =     {{"wpe", .init = INIT_NORMAL, .decay = true},                                  RULE_PARAMETER, DIM_POS, DIM_C,   .small = true, .when = WITH_POSITIONS},
    [LN1W] =    {{"ln1w", .per_layer = true, .init = INIT_ONE},                                RULE_PARAMETER, DIM_1,   DIM_C,   .when = WITH_NORM_WEIGHTS},
    [LN1B] =    {{"ln1b", .per_layer = true},                                                  RULE_PARAMETER, DIM_1,   DIM_C,   .when = WITH_NORM_BIASES},
    [QKVW] =    {{"qkvw", .per_layer = true, .init = INIT_NORMAL, .decay = true},              RULE_PARAMETER, DIM_QKV, DIM_C,   .in_block = true, .input = N1},
    [QKVB] =    {{"qkvb", .per_layer = true},                                                  RULE_PARAMETER, DIM_1,   DIM_QKV, .when = WITH_QKV_BIASES},
    [PROJW] =   {{"projw", .per_layer = true, .init = INIT_NORMAL_RESIDUAL, .decay = true},    RULE_PARAMETER, DIM_C,   DIM_ATT, .in_block = true, .input = OQ},
    [PROJB] =   {{"projb", .per_layer = true},                                                 RULE_PARAMETER, DIM_1,   DIM_C,   .when = WITH_BIASES},
    [LN2W] =    {{"ln2w", .per_layer = true, .init = INIT_ONE},                                RULE_PARAMETER, DIM_1,   DIM_C,   .when = WITH_NORM_WEIGHTS},
    [LN2B] =    {{"ln2b", .per_layer = true},                                                  RULE_PARAMETER, DIM_1,   DIM_C,   .when = WITH_NORM_BIASES},
    [FCW] =     {{"fcw", .per_layer = true, .init = INIT_NORMAL, .decay = true},               RULE_PARAMETER, DIM_H,   DIM_C,   .in_block = true, .input = N2},
    [FCB] =     {{"fcb", .per_layer = true},                                                   RULE_PARAMETER, DIM_1,   DIM_H,   .when = WITH_BIASES},
    [FCPROJW] = {{"fcprojw", .per_layer = true, .init = INIT_NORMAL_RESIDUAL, .decay = true},  RULE_PARAMETER, DIM_C,   DIM_F,   .in_block = true, .input = G},
    [FCPROJB] = {{"fcprojb", .per_layer = true},                                               RULE_PARAMETER, DIM_1,   DIM_C,   .when = WITH_BIASES},
    [LNFW] =    {{"lnfw", .init = INIT_ONE},                                                   RULE_PARAMETER, DIM_1,   DIM_C,   .when = WITH_NORM_WEIGHTS},
    [LNFB] =    {{"lnfb"},                                                                     RULE_PARAMETER, DIM_1,   DIM_C,   .when = WITH_NORM_BIASES},
    [HEADW] =   {{"headw", .init = INIT_NORMAL, .decay = true},                                RULE_PARAMETER, DIM_VP,  DIM_C, .when = WITH_OWN_HEAD},
    [QNORMW] =  {{"qnormw", .per_layer = true, .init = INIT_ONE},                              RULE_PARAMETER, DIM_1,   DIM_QNORM, .when = WITH_QK_NORM},
    [KNORMW] =  {{"knormw", .per_layer = true, .init = INIT_ONE},                              RULE_PARAMETER, DIM_1,   DIM_KNORM, .when = WITH_QK_NORM},

    // activation      name                                  rule              rows       cols        first used           last used
    [TOKENS] =         {{"tokens"},                          RULE_RESIDENT,    DIM_M,     DIM_1,      STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_I32},
    [TARGETS] =        {{"targets"},                         RULE_RESIDENT,    DIM_M,     DIM_1,      STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_I32},
    [POSITIONS] =      {{"positions"},                       RULE_RESIDENT,    DIM_M,     DIM_1,      STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_I32, .when = WITH_DOCUMENT_MASK},
    [STATE] =          {{"state"},                           RULE_RESIDENT,    DIM_1,     DIM_STATE,  STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_BYTES},
    [ROTATIONS] =      {{"rotations"},                       RULE_RESIDENT,    DIM_T,     DIM_D,      STAGE_EMBED,         STAGE_BWD_EMBED,     .when = WITH_ROTATIONS, .stored = AS_FP32},
    [RESID] =          {{"resid"},                           RULE_SCRATCH,     DIM_M,     DIM_C,      STAGE_EMBED,         STAGE_NORMF,         .when = WITH_CARRIED},
    [RESID_IN] =       {{"resid_in", .per_layer = true},     RULE_BLOCK_IN,    DIM_M,     DIM_C,      STAGE_EMBED,         STAGE_NORMF,         .source = X_IN, .input = N1},
    [RESID_MID] =      {{"resid_mid", .per_layer = true},    RULE_RESIDUAL,    DIM_M,     DIM_C,      STAGE_EMBED,         STAGE_NORMF,         .source = X_MID, .input = N2},
    [RESID_FINAL] =    {{"resid_final"},                     RULE_ALIAS,       DIM_M,     DIM_C,      STAGE_EMBED,         STAGE_NORMF,         .source = X_FINAL},
    [X_IN] =           {{"x_in", .per_layer = true},         RULE_GROUPS,      DIM_M,     DIM_C,      STAGE_NORM1,         STAGE_BWD_NORM1},
    [MEAN1] =          {{"mean1", .per_layer = true},        RULE_SAVED,       DIM_M,     DIM_1,      STAGE_NORM1,         STAGE_BWD_NORM1,     .when = WITH_MEANS, .stored = AS_FP32},
    [RSTD1] =          {{"rstd1", .per_layer = true},        RULE_SAVED,       DIM_M,     DIM_1,      STAGE_NORM1,         STAGE_BWD_NORM1,     .stored = AS_FP32},
    [N1] =             {{"n1", .per_layer = true},           RULE_NORM_OUT,    DIM_M,     DIM_C,      STAGE_NORM1,         STAGE_QKV,           .maxima = true},
    [QKV] =            {{"qkv", .per_layer = true},          RULE_SAVED,       DIM_M,     DIM_QKV,    STAGE_QKV,           STAGE_BWD_ATTENTION},
    [HEADS] =          {{"heads"},                           RULE_HEADS,       DIM_M,     DIM_QKV,    STAGE_QKV,           STAGE_ATTENTION,     .source = QKV},
    [O] =              {{"o", .per_layer = true},            RULE_SAVED,       DIM_M,     DIM_ATT,    STAGE_ATTENTION,     STAGE_BWD_PROJ},
    [LSE] =            {{"lse", .per_layer = true},          RULE_SAVED,       DIM_BH,    DIM_T,      STAGE_ATTENTION,     STAGE_BWD_ATTENTION, .stored = AS_FP32},
    [OQ] =             {{"oq", .per_layer = true},           RULE_OPERAND,     DIM_M,     DIM_ATT,    STAGE_ATTENTION,     STAGE_PROJ,          .source = O, .maxima = true, .scales = ROWS_BY_TOKEN},
    [Y_PROJ] =         {{"y_proj", .per_layer = true},       RULE_ALIAS,       DIM_M,     DIM_C,      STAGE_PROJ,          STAGE_NORM2,         .source = Y, .matmul_of = OQ},
    [Y] =              {{"y"},                               RULE_SCRATCH,     DIM_M,     DIM_C,      STAGE_NORM1,         STAGE_NORMF,         .matmul_of = G},
    [X_MID] =          {{"x_mid", .per_layer = true},        RULE_GROUPS,      DIM_M,     DIM_C,      STAGE_NORM2,         STAGE_BWD_NORM2},
    [MEAN2] =          {{"mean2", .per_layer = true},        RULE_SAVED,       DIM_M,     DIM_1,      STAGE_NORM2,         STAGE_BWD_NORM2,     .when = WITH_MEANS, .stored = AS_FP32},
    [RSTD2] =          {{"rstd2", .per_layer = true},        RULE_SAVED,       DIM_M,     DIM_1,      STAGE_NORM2,         STAGE_BWD_NORM2,     .stored = AS_FP32},
    [N2] =             {{"n2", .per_layer = true},           RULE_NORM_OUT,    DIM_M,     DIM_C,      STAGE_NORM2,         STAGE_FC,            .maxima = true, .scales = ROWS_BY_TOKEN_IN_COAT},
    [H] =              {{"h", .per_layer = true},            RULE_GROUPS,      DIM_M,     DIM_H,      STAGE_FC,            STAGE_BWD_ACT},
    [Y_FC] =           {{"y_fc", .per_layer = true},         RULE_HIDDEN_OUT,  DIM_M,     DIM_H,      STAGE_FC,            STAGE_ACT,           .source = H, .matmul_of = N2},
    [G] =              {{"g", .per_layer = true},            RULE_ACT_OUT,     DIM_M,     DIM_F,      STAGE_ACT,           STAGE_FCPROJ,        .maxima = true, .scales = ROWS_BY_TOKEN},
    [X_FINAL] =        {{"x_final"},                         RULE_SAVED,       DIM_M,     DIM_C,      STAGE_NORMF,         STAGE_BWD_NORMF},
    [MEANF] =          {{"meanf"},                           RULE_SAVED,       DIM_M,     DIM_1,      STAGE_NORMF,         STAGE_BWD_NORMF,     .when = WITH_MEANS, .stored = AS_FP32},
    [RSTDF] =          {{"rstdf"},                           RULE_SAVED,       DIM_M,     DIM_1,      STAGE_NORMF,         STAGE_BWD_NORMF,     .stored = AS_FP32},
    [NF] =             {{"nf"},                              RULE_OPERAND,     DIM_M,     DIM_C,      STAGE_NORMF,         STAGE_BWD_HEAD,      .maxima = true, .head = true},
    [LOGITS] =         {{"logits"},                          RULE_LOGITS,      DIM_CHUNK, DIM_VP,     STAGE_HEAD,          STAGE_BWD_HEAD},
    [DLOGITS_Q] =      {{"dlogits_q"},                       RULE_OPERAND,     DIM_CHUNK, DIM_VP,     STAGE_HEAD,          STAGE_BWD_HEAD,      .source = LOGITS, .head = true, .gradient = true},
    [DLOGITS_QT] =     {{"dlogits_qt"},                      RULE_OPERAND,     DIM_CHUNK, DIM_VP,     STAGE_BWD_HEAD,      STAGE_BWD_HEAD,      .source = LOGITS, .transpose_of = DLOGITS_Q, .head = true, .gradient = true},
    [LOSSES] =         {{"losses"},                          RULE_RESIDENT,    DIM_M,     DIM_1,      STAGE_HEAD,          STAGE_HEAD,          .stored = AS_FP32},
    [DRESID] =         {{"dresid"},                          RULE_SCRATCH,     DIM_M,     DIM_C,      STAGE_BWD_NORMF,     STAGE_BWD_EMBED,     .maxima = true},
    [DBRANCH] =        {{"dbranch"},                         RULE_BRANCH_GRAD, DIM_M,     DIM_C,      STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      .source = DRESID, .maxima = true},
    [DRESID_Q] =       {{"dresid_q", .per_layer = true},     RULE_OPERAND,     DIM_M,     DIM_C,      STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      .source = DBRANCH, .gradient = true},
    [DRESID_QT] =      {{"dresid_qt", .per_layer = true},    RULE_OPERAND,     DIM_M,     DIM_C,      STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      .source = DBRANCH, .transpose_of = DRESID_Q, .gradient = true},
    [DN] =             {{"dn"},                              RULE_SCRATCH,     DIM_M,     DIM_C,      STAGE_HEAD,          STAGE_BWD_NORM1},
    [DN2] =            {{"dn2", .per_layer = true},          RULE_ALIAS,       DIM_M,     DIM_C,      STAGE_BWD_FC,        STAGE_BWD_NORM2,     .source = DN, .matmul_of = DH_Q},
    [DO] =             {{"do"},                              RULE_SCRATCH,     DIM_M,     DIM_ATT,    STAGE_BWD_PROJ,      STAGE_BWD_ATTENTION},
    [DG] =             {{"dg"},                              RULE_SCRATCH,     DIM_M,     DIM_F,      STAGE_BWD_FCPROJ,    STAGE_BWD_FC},
    [DH_Q] =           {{"dh_q", .per_layer = true},         RULE_OPERAND,     DIM_M,     DIM_H,      STAGE_BWD_ACT,       STAGE_BWD_FC,        .source = DG, .maxima = true, .scales = ROWS_BY_TOKEN_IN_COAT, .gradient = true},
    [DH_QT] =          {{"dh_qt", .per_layer = true},        RULE_OPERAND,     DIM_M,     DIM_H,      STAGE_BWD_ACT,       STAGE_BWD_FC,        .source = DG, .transpose_of = DH_Q, .gradient = true},
    [HEADS_AGAIN] =    {{"heads_again"},                     RULE_HEADS,       DIM_M,     DIM_QKV,    STAGE_BWD_ATTENTION, STAGE_BWD_ATTENTION, .source = QKV},
    [DQKV] =           {{"dqkv"},                            RULE_SCRATCH,     DIM_M,     DIM_QKV,    STAGE_BWD_ATTENTION, STAGE_BWD_QKV,       .maxima = true},
    [DQKV_Q] =         {{"dqkv_q", .per_layer = true},       RULE_OPERAND,     DIM_M,     DIM_QKV,    STAGE_BWD_QKV,       STAGE_BWD_QKV,       .source = DQKV, .gradient = true},
    [DQKV_QT] =        {{"dqkv_qt", .per_layer = true},      RULE_OPERAND,     DIM_M,     DIM_QKV,    STAGE_BWD_QKV,       STAGE_BWD_QKV,       .source = DQKV, .transpose_of = DQKV_Q, .gradient = true},
    [N1_T] =           {{"n1_t", .per_layer = true},         RULE_NORM_OUT,    DIM_M,     DIM_C,      STAGE_BWD_QKV,       STAGE_BWD_QKV,       .source = N1, .transpose_of = N1},
    [N2_T] =           {{"n2_t", .per_layer = true},         RULE_NORM_OUT,    DIM_M,     DIM_C,      STAGE_BWD_FC,        STAGE_BWD_FC,        .source = N2, .transpose_of = N2},
    [G_T] =            {{"g_t", .per_layer = true},          RULE_ACT_OUT,     DIM_M,     DIM_F,      STAGE_BWD_FCPROJ,    STAGE_BWD_FCPROJ,    .source = G, .transpose_of = G},
    [O_T] =            {{"o_t", .per_layer = true},          RULE_OPERAND,     DIM_M,     DIM_ATT,    STAGE_BWD_PROJ,      STAGE_BWD_PROJ,      .source = O, .transpose_of = OQ},
    [NF_T] =           {{"nf_t"},                            RULE_OPERAND,     DIM_M,     DIM_C,      STAGE_HEAD,          STAGE_BWD_HEAD,      .source = NF, .transpose_of = NF, .head = true},
    [CODE_COUNTS] =    {{"code_counts"},                     RULE_RESIDENT,    DIM_L,     DIM_COUNTS, STAGE_HEAD,          STAGE_BWD_QKV,       .stored = AS_BYTES, .when = WITH_COUNTS},
    [QKVW_REFERENCE] = {{"qkvw_reference"},                  RULE_SCRATCH,     DIM_QKV,   DIM_C,      STAGE_BWD_NORM1,     STAGE_BWD_NORM1,     .stored = AS_GRADS, .when = WITH_COMPARISONS, .keeps = DQKV},
    [INNER_PRODUCTS] = {{"inner_products"},                  RULE_RESIDENT,    DIM_L,     DIM_INNER,  STAGE_BWD_NORM1,     STAGE_BWD_NORM1,     .stored = AS_BYTES, .when = WITH_COMPARISONS},
};
// clang-format on

const TensorRow *tensor_row(TensorId id) {
    return &tensor_table[id].row;
}

int tensor_rank(TensorId id) {
    return tensor_table[id].rows == DIM_1 ? 1 : 2;
}

TensorId tensor_input(TensorId id) {
    return tensor_table[id].input;
}

int64_t tensor_used_rows(TensorId id, int64_t rows, const ModelShape *shape) {
    return tensor_table[id].rows == DIM_VP ? shape->vocab : rows;
}

bool table_row_exists(const TableRow *row, const ModelShape *shape) {
    switch (row->when) {
    case ALWAYS: return true;
    case WITH_NORM_WEIGHTS: return shape->norm != NORM_PLAIN;
    case WITH_NORM_BIASES: return shape->norm == NORM_LAYER && shape->biases;
    case WITH_BIASES: return shape->biases;
    case WITH_QKV_BIASES: return shape->biases || shape->qkv_biases;
    case WITH_POSITIONS: return shape->position_kind == POSITIONS_LEARNED;
    case WITH_OWN_HEAD: return !shape->tied_head;
    case WITH_QK_NORM: return shape->qk_norm != QK_NORM_NONE;
    case WITH_MEANS: return shape->norm != NORM_RMS;
    case WITH_ROTATIONS: return shape->position_kind == POSITIONS_ROTARY;
    case WITH_DOCUMENT_MASK:
    case WITH_CARRIED:
    case WITH_COUNTS:
    case WITH_COMPARISONS: break; // by the run
    }
    return true;
}

const char *category_name(Category c) {
    static const char *const names[CATEGORY_COUNT] = {"weights",       "fp8_weights", "gradients", "moments",
                                                      "master",        "saved",       "scratch",   "logits",
                                                      "communication", "workspace"};
    return names[c];
}

const char *role_suffix(Role r) {
    static const char *const names[ROLE_COUNT] = {"",   ".codes",  ".codes_t",  ".grad",      ".m",
                                                  ".v", ".master", ".gathered", ".unreduced", ".plain"};
    return names[r];
}

int64_t model_parameters(const ModelShape *shape) {
    int64_t total = 0;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TableRow *row = &tensor_table[id];
        if (!table_row_exists(row, shape)) continue;
        int64_t rows = tensor_used_rows((TensorId)id, shape_extent(row->rows, shape), shape);
        total += rows * shape_extent(row->cols, shape) * (row->row.per_layer ? shape->layers : 1);
    }
    return total;
}
