// Contains the table of tensors: names, shapes, lifetimes and the rule of every tensor. Replaces symbolic extents with
// numbers, and decides which tensors this model and this run have. tensor_layouts.c derives the layout of each tensor.
#include "config/shapes.h"
#include "config/vision.h"
#include "ops.h"
#include "tensor_table.h"

// --- table of all tensors ------------------------------------------------------------------------------------------

// clang-format off
const TableRow tensor_table[TENSOR_COUNT] = {
    // A parameter's initializers without a field name are: name, rows, cols.
    [WTE] =     {{"wte", DIM_VP, DIM_C, .init = INIT_NORMAL}, .part = PART_TOKENS},
    [WPE] =     {{"wpe", DIM_POS, DIM_C, .init = INIT_POSITIONS},                            .when = WITH_POSITIONS},
    [LN1W] =    {{"ln1w", DIM_1, DIM_C, .per_layer = true, .init = INIT_ONE},                .when = WITH_NORM_WEIGHTS},
    [LN1B] =    {{"ln1b", DIM_1, DIM_C, .per_layer = true},                                  .when = WITH_NORM_BIASES},
    [QKVW] =    {{"qkvw", DIM_QKV, DIM_C, .per_layer = true, .init = INIT_NORMAL},           .input = N1, .pieces = {DIM_ATT, DIM_KV, DIM_KV}},
    [QKVB] =    {{"qkvb", DIM_1, DIM_QKV, .per_layer = true},                                .when = WITH_QKV_BIASES, .pieces = {DIM_ATT, DIM_KV, DIM_KV}},
    [PROJW] =   {{"projw", DIM_C, DIM_ATT, .per_layer = true, .init = INIT_NORMAL_RESIDUAL}, .input = OQ},
    [PROJB] =   {{"projb", DIM_1, DIM_C, .per_layer = true},                                 .when = WITH_BIASES},
    [LN2W] =    {{"ln2w", DIM_1, DIM_C, .per_layer = true, .init = INIT_ONE},                .when = WITH_NORM_WEIGHTS},
    [LN2B] =    {{"ln2b", DIM_1, DIM_C, .per_layer = true},                                  .when = WITH_NORM_BIASES},
    [FCW] =     {{"fcw", DIM_H, DIM_C, .per_layer = true, .init = INIT_NORMAL},              .input = N2, .pieces = {DIM_F, DIM_F}}, // SwiGLU
    [FCB] =     {{"fcb", DIM_1, DIM_H, .per_layer = true},                                   .when = WITH_BIASES},
    [FCPROJW] = {{"fcprojw", DIM_C, DIM_F, .per_layer = true, .init = INIT_NORMAL_RESIDUAL}, .input = G},
    [FCPROJB] = {{"fcprojb", DIM_1, DIM_C, .per_layer = true},                               .when = WITH_BIASES},
    [LNFW] =    {{"lnfw", DIM_1, DIM_C, .init = INIT_ONE},                                   .when = WITH_NORM_WEIGHTS, .part = PART_TOKENS},
    [LNFB] =    {{"lnfb", DIM_1, DIM_C},                                                     .when = WITH_NORM_BIASES, .part = PART_TOKENS},
    [HEADW] =   {{"headw", DIM_VP, DIM_C, .init = INIT_NORMAL},                              .when = WITH_OWN_HEAD, .part = PART_TOKENS},
    [QNORMW] =  {{"qnormw", DIM_1, DIM_QNORM, .per_layer = true, .init = INIT_ONE},          .when = WITH_QK_NORM},
    [KNORMW] =  {{"knormw", DIM_1, DIM_KNORM, .per_layer = true, .init = INIT_ONE},          .when = WITH_QK_NORM},
    [CLS] =     {{"cls", DIM_1, DIM_C, .init = INIT_NORMAL},                                 .when = WITH_CLASS_ROW, .part = PART_IMAGES},
    [PATCHW] =  {{"patchw", DIM_C, DIM_PATCH, .init = INIT_FAN_IN},                          .part = PART_IMAGES},
    [PATCHB] =  {{"patchb", DIM_1, DIM_C},                                                   .when = WITH_PATCH_BIAS, .part = PART_IMAGES},
    [LNPREW] =  {{"lnprew", DIM_1, DIM_C, .init = INIT_ONE},                                 .when = WITH_CLASS_ROW, .part = PART_IMAGES},
    [LNPREB] =  {{"lnpreb", DIM_1, DIM_C},                                                   .when = WITH_CLASS_ROW, .part = PART_IMAGES},
    [LNPROJW] = {{"lnprojw", DIM_1, DIM_MERGED, .init = INIT_ONE},                           .when = WITH_PROJECTOR_NORM, .part = PART_IMAGES},
    [LNPROJB] = {{"lnprojb", DIM_1, DIM_MERGED},                                             .when = WITH_PROJECTOR_NORM, .part = PART_IMAGES},
    [PROJ1W] =  {{"proj1w", DIM_OUT, DIM_MERGED, .init = INIT_FAN_IN},                       .part = PART_IMAGES},
    [PROJ1B] =  {{"proj1b", DIM_1, DIM_OUT},                                                 .part = PART_IMAGES},
    [PROJ2W] =  {{"proj2w", DIM_OUT, DIM_OUT, .init = INIT_FAN_IN},                          .part = PART_IMAGES},
    [PROJ2B] =  {{"proj2b", DIM_1, DIM_OUT},                                                 .part = PART_IMAGES},

    // An activation's initializers without a field name are: name, rows, cols, rule, first stage, last stage.
    [TOKENS] =              {{"tokens", DIM_M, DIM_1},                       RULE_RESIDENT,      STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_I32, .part = PART_TOKENS},
    [TARGETS] =             {{"targets", DIM_M, DIM_1},                      RULE_RESIDENT,      STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_I32, .part = PART_TOKENS},
    [POSITIONS] =           {{"positions", DIM_M, DIM_1},                    RULE_RESIDENT,      STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_I32, .when = WITH_DOCUMENT_MASK, .part = PART_TOKENS},
    [STATE] =               {{"state", DIM_1, DIM_STATE},                    RULE_RESIDENT,      STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_BYTES, .part = PART_TOKENS},
    [ROPE_TABLE] =          {{"rotations", DIM_T, DIM_D},                    RULE_RESIDENT,      STAGE_EMBED,         STAGE_BWD_EMBED,     .when = WITH_ROPE, .stored = AS_FP32, .part = PART_TOKENS},
    [RESID] =               {{"resid", DIM_M, DIM_C},                        RULE_SCRATCH,       STAGE_EMBED,         STAGE_NORMF,         .when = WITH_RESID},
    [RESID_IN] =            {{"resid_in", DIM_M, DIM_C, .per_layer = true},  RULE_BLOCK_IN,      STAGE_EMBED,         STAGE_NORMF,         .source = X_IN, .input = N1},
    [RESID_MID] =           {{"resid_mid", DIM_M, DIM_C, .per_layer = true}, RULE_RESIDUAL,      STAGE_EMBED,         STAGE_NORMF,         .source = X_MID, .input = N2},
    [RESID_FINAL] =         {{"resid_final", DIM_M, DIM_C},                  RULE_ALIAS,         STAGE_EMBED,         STAGE_NORMF,         .source = X_FINAL, .part = PART_TOKENS},
    [X_IN] =                {{"x_in", DIM_M, DIM_C, .per_layer = true},      RULE_GROUPS,        STAGE_NORM1,         STAGE_BWD_NORM1},
    [MEAN1] =               {{"mean1", DIM_M, DIM_1, .per_layer = true},     RULE_SAVED,         STAGE_NORM1,         STAGE_BWD_NORM1,     .when = WITH_MEANS, .stored = AS_FP32},
    [RSTD1] =               {{"rstd1", DIM_M, DIM_1, .per_layer = true},     RULE_SAVED,         STAGE_NORM1,         STAGE_BWD_NORM1,     .stored = AS_FP32},
    [N1] =                  {{"n1", DIM_M, DIM_C, .per_layer = true},        RULE_NORM_OUT,      STAGE_NORM1,         STAGE_QKV,           .amax = true},
    [QKV] =                 {{"qkv", DIM_M, DIM_QKV, .per_layer = true},     RULE_SAVED,         STAGE_QKV,           STAGE_BWD_ATTENTION},
    [QKV_ROPE] =            {{"heads", DIM_M, DIM_QKV},                      RULE_QKV_ROPE,      STAGE_QKV,           STAGE_ATTENTION,     .source = QKV},
    [O] =                   {{"o", DIM_M, DIM_ATT, .per_layer = true},       RULE_SAVED,         STAGE_ATTENTION,     STAGE_BWD_ATTENTION},
    [LSE] =                 {{"lse", DIM_BH, DIM_T, .per_layer = true},      RULE_SAVED,         STAGE_ATTENTION,     STAGE_BWD_ATTENTION, .stored = AS_FP32},
    [OQ] =                  {{"oq", DIM_M, DIM_ATT, .per_layer = true},      RULE_OPERAND,       STAGE_ATTENTION,     STAGE_PROJ,          .source = O, .amax = true, .scales = ROWS_BY_TOKEN},
    [Y_PROJ] =              {{"y_proj", DIM_M, DIM_C, .per_layer = true},    RULE_ALIAS,         STAGE_PROJ,          STAGE_NORM2,         .source = Y, .matmul_of = OQ},
    [Y] =                   {{"y", DIM_M, DIM_C},                            RULE_SCRATCH,       STAGE_NORM1,         STAGE_NORMF,         .matmul_of = G},
    [X_MID] =               {{"x_mid", DIM_M, DIM_C, .per_layer = true},     RULE_GROUPS,        STAGE_NORM2,         STAGE_BWD_NORM2},
    [MEAN2] =               {{"mean2", DIM_M, DIM_1, .per_layer = true},     RULE_SAVED,         STAGE_NORM2,         STAGE_BWD_NORM2,     .when = WITH_MEANS, .stored = AS_FP32},
    [RSTD2] =               {{"rstd2", DIM_M, DIM_1, .per_layer = true},     RULE_SAVED,         STAGE_NORM2,         STAGE_BWD_NORM2,     .stored = AS_FP32},
    [N2] =                  {{"n2", DIM_M, DIM_C, .per_layer = true},        RULE_NORM_OUT,      STAGE_NORM2,         STAGE_FC,            .amax = true, .scales = ROWS_BY_TOKEN_IN_COAT},
    [H] =                   {{"h", DIM_M, DIM_H, .per_layer = true},         RULE_GROUPS,        STAGE_FC,            STAGE_BWD_ACT},
    [Y_FC] =                {{"y_fc", DIM_M, DIM_H, .per_layer = true},      RULE_FC_OUT,        STAGE_FC,            STAGE_ACT,           .source = H, .matmul_of = N2},
    [G] =                   {{"g", DIM_M, DIM_F, .per_layer = true},         RULE_ACT_OUT,       STAGE_ACT,           STAGE_FCPROJ,        .amax = true, .scales = ROWS_BY_TOKEN},
    [X_FINAL] =             {{"x_final", DIM_M, DIM_C},                      RULE_SAVED,         STAGE_NORMF,         STAGE_BWD_NORMF, .part = PART_TOKENS},
    [MEANF] =               {{"meanf", DIM_M, DIM_1},                        RULE_SAVED,         STAGE_NORMF,         STAGE_BWD_NORMF,     .when = WITH_MEANS, .stored = AS_FP32, .part = PART_TOKENS},
    [RSTDF] =               {{"rstdf", DIM_M, DIM_1},                        RULE_SAVED,         STAGE_NORMF,         STAGE_BWD_NORMF,     .stored = AS_FP32, .part = PART_TOKENS},
    [NF] =                  {{"nf", DIM_M, DIM_C},                           RULE_OPERAND,       STAGE_NORMF,         STAGE_BWD_HEAD,      .amax = true, .head = true, .part = PART_TOKENS},
    [LOGITS] =              {{"logits", DIM_CHUNK, DIM_VP},                  RULE_LOGITS,        STAGE_HEAD,          STAGE_BWD_HEAD, .part = PART_TOKENS},
    [DLOGITS_Q] =           {{"dlogits_q", DIM_CHUNK, DIM_VP},               RULE_OPERAND,       STAGE_HEAD,          STAGE_BWD_HEAD,      .source = LOGITS, .head = true, .gradient = true, .part = PART_TOKENS},
    [DLOGITS_QT] =          {{"dlogits_qt", DIM_CHUNK, DIM_VP},              RULE_OPERAND,       STAGE_BWD_HEAD,      STAGE_BWD_HEAD,      .source = LOGITS, .transpose_of = DLOGITS_Q, .head = true, .gradient = true, .part = PART_TOKENS},
    [LOSSES] =              {{"losses", DIM_M, DIM_1},                       RULE_RESIDENT,      STAGE_HEAD,          STAGE_HEAD,          .stored = AS_FP32, .part = PART_TOKENS},
    [BEST] =                {{"best", DIM_M, DIM_1},                         RULE_RESIDENT,      STAGE_HEAD,          STAGE_HEAD,          .stored = AS_FP32, .when = WITH_IMAGES, .part = PART_TOKENS},
    [DRESID] =              {{"dresid", DIM_M, DIM_C},                       RULE_SCRATCH,       STAGE_BWD_NORMF,     STAGE_BWD_EMBED,     .amax = true},
    [DSUBLAYER] =           {{"dbranch", DIM_M, DIM_C},                      RULE_SUBLAYER_GRAD, STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      .source = DRESID, .amax = true},
    [DRESID_Q] =            {{"dresid_q", DIM_M, DIM_C, .per_layer = true},  RULE_OPERAND,       STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      .source = DSUBLAYER, .gradient = true},
    [DRESID_QT] =           {{"dresid_qt", DIM_M, DIM_C, .per_layer = true}, RULE_OPERAND,       STAGE_BWD_FCPROJ,    STAGE_BWD_PROJ,      .source = DSUBLAYER, .transpose_of = DRESID_Q, .gradient = true},
    [DN] =                  {{"dn", DIM_M, DIM_C},                           RULE_SCRATCH,       STAGE_HEAD,          STAGE_BWD_NORM1},
    [DN2] =                 {{"dn2", DIM_M, DIM_C, .per_layer = true},       RULE_ALIAS,         STAGE_BWD_FC,        STAGE_BWD_NORM2,     .source = DN, .matmul_of = DH_Q},
    [DO] =                  {{"do", DIM_M, DIM_ATT},                         RULE_SCRATCH,       STAGE_BWD_PROJ,      STAGE_BWD_ATTENTION},
    [DG] =                  {{"dg", DIM_M, DIM_F},                           RULE_SCRATCH,       STAGE_BWD_FCPROJ,    STAGE_BWD_FC},
    [DH_Q] =                {{"dh_q", DIM_M, DIM_H, .per_layer = true},      RULE_OPERAND,       STAGE_BWD_ACT,       STAGE_BWD_FC,        .source = DG, .amax = true, .scales = ROWS_BY_TOKEN_IN_COAT, .gradient = true},
    [DH_QT] =               {{"dh_qt", DIM_M, DIM_H, .per_layer = true},     RULE_OPERAND,       STAGE_BWD_ACT,       STAGE_BWD_FC,        .source = DG, .transpose_of = DH_Q, .gradient = true},
    [QKV_ROPE_RECOMPUTED] = {{"heads_again", DIM_M, DIM_QKV},                RULE_QKV_ROPE,      STAGE_BWD_ATTENTION, STAGE_BWD_ATTENTION, .source = QKV},
    [DQKV] =                {{"dqkv", DIM_M, DIM_QKV},                       RULE_SCRATCH,       STAGE_BWD_ATTENTION, STAGE_BWD_QKV,       .amax = true},
    [DQKV_Q] =              {{"dqkv_q", DIM_M, DIM_QKV, .per_layer = true},  RULE_OPERAND,       STAGE_BWD_QKV,       STAGE_BWD_QKV,       .source = DQKV, .gradient = true},
    [DQKV_QT] =             {{"dqkv_qt", DIM_M, DIM_QKV, .per_layer = true}, RULE_OPERAND,       STAGE_BWD_QKV,       STAGE_BWD_QKV,       .source = DQKV, .transpose_of = DQKV_Q, .gradient = true},
    [N1_T] =                {{"n1_t", DIM_M, DIM_C, .per_layer = true},      RULE_NORM_OUT,      STAGE_BWD_QKV,       STAGE_BWD_QKV,       .source = N1, .transpose_of = N1},
    [N2_T] =                {{"n2_t", DIM_M, DIM_C, .per_layer = true},      RULE_NORM_OUT,      STAGE_BWD_FC,        STAGE_BWD_FC,        .source = N2, .transpose_of = N2},
    [G_T] =                 {{"g_t", DIM_M, DIM_F, .per_layer = true},       RULE_ACT_OUT,       STAGE_BWD_FCPROJ,    STAGE_BWD_FCPROJ,    .source = G, .transpose_of = G},
    [O_T] =                 {{"o_t", DIM_M, DIM_ATT, .per_layer = true},     RULE_OPERAND,       STAGE_BWD_PROJ,      STAGE_BWD_PROJ,      .source = O, .transpose_of = OQ},
    [NF_T] =                {{"nf_t", DIM_M, DIM_C},                         RULE_OPERAND,       STAGE_HEAD,          STAGE_BWD_HEAD,      .source = NF, .transpose_of = NF, .head = true, .part = PART_TOKENS},
    [CODE_COUNTS] =         {{"code_counts", DIM_L, DIM_COUNTS},             RULE_RESIDENT,      STAGE_NORM1,         STAGE_BWD_QKV,       .stored = AS_BYTES, .when = WITH_COUNTS, .part = PART_TOKENS},
    [QKVW_REFERENCE] =      {{"qkvw_reference", DIM_QKV, DIM_C},             RULE_SCRATCH,       STAGE_BWD_NORM1,     STAGE_BWD_NORM1,     .stored = AS_GRADS, .when = WITH_COMPARISONS, .part = PART_TOKENS},
    [INNER_PRODUCTS] =      {{"inner_products", DIM_L, DIM_INNER},           RULE_RESIDENT,      STAGE_BWD_NORM1,     STAGE_BWD_NORM1,     .stored = AS_BYTES, .when = WITH_COMPARISONS, .part = PART_TOKENS},
    [OUTLIERS] =            {{"outliers", DIM_L, DIM_OUTLIERS},              RULE_RESIDENT,      STAGE_ACT,           STAGE_ACT,           .stored = AS_BYTES, .when = WITH_HEALTH, .part = PART_TOKENS},
    [IMAGE_ROWS] =          {{"image_rows", DIM_M, DIM_1},                   RULE_RESIDENT,      STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_I32, .when = WITH_IMAGES, .part = PART_TOKENS},
    [PIXELS] =              {{"pixels", DIM_IMAGES, DIM_PIXELS},             RULE_RESIDENT,      STAGE_EMBED,         STAGE_EMBED,         .stored = AS_BYTES, .part = PART_IMAGES},
    [PIXEL_VALUES] =        {{"pixel_values", DIM_RGB, DIM_BYTES},           RULE_RESIDENT,      STAGE_EMBED,         STAGE_EMBED,         .stored = AS_FP32, .part = PART_IMAGES},
    [SELECT] =              {{"select", DIM_SELECTED, DIM_1},                RULE_RESIDENT,      STAGE_NORMF,         STAGE_NORMF,         .stored = AS_I32, .part = PART_IMAGES},
    [SELECT_BACK] =         {{"select_back", DIM_M, DIM_1},                  RULE_RESIDENT,      STAGE_BWD_NORMF,     STAGE_BWD_NORMF,     .stored = AS_I32, .part = PART_IMAGES},
    [FEATURE_ROWS] =        {{"feature_rows", DIM_FEATURES, DIM_1},          RULE_RESIDENT,      STAGE_HEAD,          STAGE_BWD_HEAD,      .stored = AS_I32, .part = PART_IMAGES},
    [PATCHES] =             {{"patches", DIM_M, DIM_PATCH},                  RULE_SAVED,         STAGE_EMBED,         STAGE_BWD_EMBED,     .part = PART_IMAGES},
    [X_PRE] =               {{"x_pre", DIM_M, DIM_C},                        RULE_SAVED,         STAGE_EMBED,         STAGE_BWD_EMBED,     .when = WITH_CLASS_ROW, .part = PART_IMAGES},
    [MEANP] =               {{"meanp", DIM_M, DIM_1},                        RULE_SAVED,         STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_FP32, .when = WITH_CLASS_ROW, .part = PART_IMAGES},
    [RSTDP] =               {{"rstdp", DIM_M, DIM_1},                        RULE_SAVED,         STAGE_EMBED,         STAGE_BWD_EMBED,     .stored = AS_FP32, .when = WITH_CLASS_ROW, .part = PART_IMAGES},
    [TOWER_OUT] =           {{"tower_out", DIM_M, DIM_C},                    RULE_SCRATCH,       STAGE_NORMF,         STAGE_HEAD,          .part = PART_IMAGES},
    [MERGED] =              {{"merged", DIM_FEATURES, DIM_MERGED},           RULE_SAVED,         STAGE_HEAD,          STAGE_BWD_HEAD,      .part = PART_IMAGES},
    [MEANPROJ] =            {{"meanproj", DIM_FEATURES, DIM_1},              RULE_SAVED,         STAGE_HEAD,          STAGE_BWD_HEAD,      .stored = AS_FP32, .when = WITH_PROJECTOR_NORM, .part = PART_IMAGES},
    [RSTDPROJ] =            {{"rstdproj", DIM_FEATURES, DIM_1},              RULE_SAVED,         STAGE_HEAD,          STAGE_BWD_HEAD,      .stored = AS_FP32, .when = WITH_PROJECTOR_NORM, .part = PART_IMAGES},
    [PROJ_IN] =             {{"proj_in", DIM_FEATURES, DIM_MERGED},          RULE_SAVED,         STAGE_HEAD,          STAGE_BWD_HEAD,      .when = WITH_PROJECTOR_NORM, .part = PART_IMAGES},
    [PROJ_H] =              {{"proj_h", DIM_FEATURES, DIM_OUT},              RULE_SAVED,         STAGE_HEAD,          STAGE_BWD_HEAD,      .part = PART_IMAGES},
    [PROJ_G] =              {{"proj_g", DIM_FEATURES, DIM_OUT},              RULE_SAVED,         STAGE_HEAD,          STAGE_BWD_HEAD,      .part = PART_IMAGES},
    [FEATURES] =            {{"features", DIM_FEATURES, DIM_OUT},            RULE_RESIDENT,      STAGE_HEAD,          STAGE_HEAD,          .part = PART_IMAGES},
    [DFEATURES] =           {{"dfeatures", DIM_FEATURES, DIM_OUT},           RULE_RESIDENT,      STAGE_BWD_HEAD,      STAGE_BWD_HEAD,      .part = PART_IMAGES},
    [DPROJ] =               {{"dproj", DIM_FEATURES, DIM_OUT},               RULE_SCRATCH,       STAGE_BWD_HEAD,      STAGE_BWD_HEAD,      .part = PART_IMAGES},
    [DPROJ_IN] =            {{"dproj_in", DIM_FEATURES, DIM_MERGED},         RULE_SCRATCH,       STAGE_BWD_HEAD,      STAGE_BWD_NORMF,     .part = PART_IMAGES},
    [DMERGED] =             {{"dmerged", DIM_FEATURES, DIM_MERGED},          RULE_SCRATCH,       STAGE_BWD_HEAD,      STAGE_BWD_NORMF,     .when = WITH_PROJECTOR_NORM, .part = PART_IMAGES},
    [MUON_X] =              {{"muon_x", DIM_1, DIM_UPDATE},                  RULE_SCRATCH,       STAGE_UPDATE,        STAGE_UPDATE,        .when = WITH_MUON, .part = PART_TOKENS},
    [MUON_Y] =              {{"muon_y", DIM_1, DIM_UPDATE},                  RULE_SCRATCH,       STAGE_UPDATE,        STAGE_UPDATE,        .when = WITH_MUON, .part = PART_TOKENS},
    [MUON_A] =              {{"muon_a", DIM_1, DIM_GRAM},                    RULE_SCRATCH,       STAGE_UPDATE,        STAGE_UPDATE,        .when = WITH_MUON, .part = PART_TOKENS},
    [MUON_B] =              {{"muon_b", DIM_1, DIM_GRAM},                    RULE_SCRATCH,       STAGE_UPDATE,        STAGE_UPDATE,        .when = WITH_MUON, .part = PART_TOKENS},
};
// clang-format on

const TensorRow *tensor_row(TensorId id) {
    return &tensor_table[id].row;
}

int tensor_rank(TensorId id) {
    return tensor_table[id].row.rows == DIM_1 ? 1 : 2;
}

TensorId tensor_input(TensorId id) {
    return tensor_table[id].input;
}

bool tensor_uses_muon(TensorId id, const Config *config) {
    return config->optimizer == OPTIMIZER_MUON && tensor_table[id].input && !config->shape.tower;
}

int tensor_muon_batch(TensorId id, const Config *config) {
    const ModelShape *s = &config->shape;
    const int64_t elements = shape_extent(tensor_table[id].row.rows, s) * shape_extent(tensor_table[id].row.cols, s);
    const int64_t most = MUON_BATCH_ELEMENTS / elements;
    return most < 1 ? 1 : most < s->layers ? (int)most : s->layers;
}

int tensor_pieces(TensorId id, const ModelShape *shape, int64_t extents[MAX_PIECES]) {
    const TableRow *row = &tensor_table[id];
    const int64_t total = shape_extent(row->row.rows == DIM_1 ? row->row.cols : row->row.rows, shape);
    int64_t sum = 0;
    int count = 0;
    for (; count < MAX_PIECES && sum < total && row->pieces[count]; count++)
        sum += extents[count] = shape_extent(row->pieces[count], shape);
    if (count > 0) return count;
    extents[0] = total;
    return 1;
}

const char *category_name(Category c) {
    static const char *const names[CATEGORY_COUNT] = {"weights",       "fp8_weights", "gradients", "moments",
                                                      "master",        "saved",       "scratch",   "logits",
                                                      "communication", "workspace",   "vision"};
    return names[c];
}

const char *role_suffix(Role r) {
    static const char *const names[ROLE_COUNT] = {"",   ".codes",  ".codes_t",  ".grad",      ".m",
                                                  ".v", ".master", ".gathered", ".unreduced", ".plain"};
    return names[r];
}

// --- extents: a tensor's numbers of rows and columns ---------------------------------------------------------------

#define STATE_BYTES 256        // bytes reserved for StepState
#define LOGITS_BYTES (1 << 30) // maximum bytes of a chunk of logits, unless --logits-chunk is given

int64_t default_logits_chunk(int64_t tokens, int64_t vocab_padded) {
    int64_t chunk = tokens;
    while (chunk > 16 && chunk * vocab_padded * (int64_t)format_bytes(FMT_BF16) > LOGITS_BYTES) chunk = (chunk + 1) / 2;
    return chunk > 16 ? (chunk + 15) / 16 * 16 : chunk;
}

// Returns the number of tokens whose logits are in memory at a time: --logits-chunk or, by default,
// default_logits_chunk().
static int64_t logits_chunk(const Config *c) {
    const int64_t tokens = config_micro_tokens(c);
    if (config_samples_only(c)) return config_sample_logits(c);
    if (c->logits_chunk > 0) return c->logits_chunk < tokens ? c->logits_chunk : tokens;
    return default_logits_chunk(tokens, c->shape.vocab_padded);
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
    case DIM_PIXELS: return 3 * (int64_t)s->vision.image_size * s->vision.image_size;
    case DIM_PATCH: return 3 * (int64_t)s->vision.patch_size * s->vision.patch_size;
    case DIM_RGB: return 3;
    case DIM_BYTES: return 256;
    case DIM_MERGED: return (int64_t)vision_merged(&s->vision) * s->vision.channels;
    case DIM_OUT: return s->vision.features;
    default: return 1;
    }
}

// Returns the size, in elements, of a buffer that is large enough for every tensor's Muon update. DIM_UPDATE: the
// matrices of the layers that Muon updates together (tensor_muon_batch()). DIM_GRAM: the Gram matrices that are
// computed at the same time.
static int64_t largest_update(Dim dim, const Config *c) {
    int64_t largest = 0, rows[MAX_PIECES];
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        if (!tensor_uses_muon((TensorId)id, c)) continue;
        const TensorRow *row = &tensor_table[id].row;
        const int64_t batch = tensor_muon_batch((TensorId)id, c), cols = shape_extent(row->cols, &c->shape);
        const int pieces = tensor_pieces((TensorId)id, &c->shape, rows);
        const int64_t n = rows[0] < cols ? rows[0] : cols; // the first piece is the largest
        const int64_t grams = parts_are_equal(rows, pieces) ? batch * pieces : 1;
        const int64_t size = dim == DIM_UPDATE ? batch * shape_extent(row->rows, &c->shape) * cols : grams * n * n;
        if (size > largest) largest = size;
    }
    return largest;
}

int64_t tensor_extent(Dim dim, const Config *c) {
    switch (dim) {
    case DIM_UPDATE:
    case DIM_GRAM: return largest_update(dim, c);
    case DIM_M: return config_micro_tokens(c);
    case DIM_BH: return (int64_t)c->micro_batch * c->shape.heads;
    case DIM_T: return c->seq_len;
    case DIM_CHUNK: return logits_chunk(c);
    case DIM_STATE: return STATE_BYTES;
    case DIM_COUNTS: return (int64_t)(2 * COUNTED_TENSORS * sizeof(CodeCounts));
    case DIM_INNER: return (int64_t)sizeof(InnerProducts);
    case DIM_OUTLIERS: return (int64_t)sizeof(Outliers);
    case DIM_IMAGES: return c->micro_batch;
    case DIM_FEATURES: return (int64_t)c->micro_batch * vision_rows(&c->shape.vision);
    case DIM_SELECTED: return tensor_extent(DIM_FEATURES, c) * vision_merged(&c->shape.vision);
    default: return shape_extent(dim, &c->shape);
    }
}

int64_t tensor_used_rows(TensorId id, int64_t rows, const ModelShape *shape) {
    return tensor_table[id].row.rows == DIM_VP ? shape->vocab : rows;
}

// --- existence: which tensors a model and a run have ---------------------------------------------------------------

bool model_has_tensor(const TableRow *row, const ModelShape *shape) {
    if (row->part == (shape->tower ? PART_TOKENS : PART_IMAGES)) return false;
    switch (row->when) {
    case WITH_NORM_WEIGHTS: return shape->norm != NORM_PLAIN;
    case WITH_NORM_BIASES: return shape->norm == NORM_LAYER && shape->biases;
    case WITH_BIASES: return shape->biases;
    case WITH_QKV_BIASES: return shape->biases || shape->qkv_biases;
    case WITH_POSITIONS: return shape->position_kind == POSITIONS_LEARNED;
    case WITH_OWN_HEAD: return !shape->tied_head;
    case WITH_QK_NORM: return shape->qk_norm != QK_NORM_NONE;
    case WITH_MEANS: return shape->norm != NORM_RMS;
    case WITH_ROPE: return shape->position_kind == POSITIONS_ROTARY;
    case WITH_IMAGES: return shape->vision.kind != VISION_NONE;
    case WITH_CLASS_ROW: return shape->vision.kind == VISION_CLIP;
    case WITH_PATCH_BIAS: return shape->vision.kind == VISION_SIGLIP;
    case WITH_PROJECTOR_NORM: return shape->vision.projector == PROJECTOR_DOWNSAMPLE;
    default: return true;
    }
}

bool run_has_tensor(const TableRow *row, const Config *c) {
    if (!model_has_tensor(row, &c->shape)) return false;
    const Recipe *r = &c->recipe;
    const bool fp8 = blocks_in_fp8(r), trains = !config_forward_only(c);
    switch (row->when) {
    case WITH_DOCUMENT_MASK: return c->documents == DOCUMENTS_MASKED;
    case WITH_RESID: return needs_resid(c);
    case WITH_COUNTS: return trains && c->health_every > 0 && (fp8 || head_in_fp8(c));
    case WITH_HEALTH: return trains && c->health_every > 0;
    case WITH_MUON: return config_trains_with_muon(c);
    case WITH_COMPARISONS: return trains && c->health_matmuls > 0 && fp8;
    default: return true;
    }
}

int64_t part_parameters(const ModelShape *shape, int parts) {
    int64_t total = 0;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TensorRow *row = &tensor_table[id].row;
        if (!model_has_tensor(&tensor_table[id], shape) || !(parts & tensor_part((TensorId)id, shape))) continue;
        int64_t rows = tensor_used_rows((TensorId)id, shape_extent(row->rows, shape), shape);
        total += rows * shape_extent(row->cols, shape) * (row->per_layer ? shape->layers : 1);
    }
    return total;
}
