// Contains the table of tensors, and resolves its rows to tensor layouts for a configuration. Sections of this file:
//   table        lists names, shapes, lifetimes and the rule of every tensor
//   extents      replaces symbolic extents with numbers
//   existence    decides which tensors this model and this run have
//   parameters   chooses formats of weights, gradients, moments and master weights, and their shards (ZeRO)
//   activations  chooses memory (saved, scratch, or another tensor's), format and scales
//   scales       decides which tensors share a scale
//   BF16 blocks  adds a second layout for activations that differ in the first blocks (--bf16-blocks)
//   lifetimes    stores one layer instead of all in evaluations, in samples and with --recompute 3
//   bytes        computes the sizes of data, scales and amaxes
// tensors_resolve() calls the sections in this order. arena.c then assigns an address to every tensor that owns memory.
#include "tensors.h"

#include "config/shapes.h"
#include "config/vision.h"
#include "ops.h"

// --- table of all tensors ------------------------------------------------------------------------------------------

// Rules for where an activation is stored, and in which format. "Unscaled" means BF16, or FP32 with --precision fp32.
// "Scratch" means memory that is shared with tensors of other stages.
typedef enum {
    RULE_SAVED,    // saved for backward in separate memory, in every recipe
    RULE_RESIDENT, // stored in separate memory that outlives the micro-batch
    RULE_GROUPS,   // saved for backward: unscaled, or E4M3 with a scale per group (--saved coat)
    RULE_SCRATCH,
    RULE_ALIAS,         // stored in the memory of the tensor `source`
    RULE_LOGITS,        // logits: scratch, alive in fewer stages if their gradient has separate memory
    RULE_QKV_ROPE,      // q, k, v after RoPE: in QKV's memory; scratch if clipping or QK-norm changes them
    RULE_FC_OUT,        // fc matmul's output: in H's memory if H is unscaled, else scratch
    RULE_SUBLAYER_GRAD, // gradient of a sublayer's output: in DRESID's memory; scratch with post-norm
    // residual stream: stored in the norm's saved input or, with post-norm, in the next matmul's saved input, if that
    // tensor is unscaled; otherwise in RESID
    RULE_RESIDUAL,
    // residual stream before a block: RULE_RESIDUAL, or saved if --recompute 3 needs it and X_IN does not contain it
    RULE_BLOCK_IN,
    // operand of a matmul: scratch if it is FP8 or if `source` has a different width, else in the memory of `source`
    RULE_OPERAND,
    RULE_NORM_OUT, // matmul operand that a norm computes: saved, or scratch if backward recomputes it
    RULE_ACT_OUT   // matmul operand that the activation function computes: saved, or scratch if backward recomputes it
} Rule;

// Format of a tensor that is not FP8. AS_UNSCALED: BF16 or FP32. AS_GRADS: the format of --grads.
typedef enum { AS_UNSCALED, AS_FP32, AS_I32, AS_BYTES, AS_GRADS } Stored;

// Conditions on the model or the run under which a tensor exists.
typedef enum {
    ALWAYS,
    // conditions on the model
    WITH_NORM_WEIGHTS,
    WITH_NORM_BIASES,
    WITH_BIASES,
    WITH_QKV_BIASES,
    WITH_POSITIONS,
    WITH_OWN_HEAD,
    WITH_QK_NORM,
    WITH_MEANS,
    WITH_ROPE,
    WITH_IMAGES,     // vision-language models
    WITH_CLASS_ROW,  // CLIP
    WITH_PATCH_BIAS, // SigLIP
    WITH_PROJECTOR_NORM,
    // conditions on the run, for activations only
    WITH_DOCUMENT_MASK, // exists if documents in a sequence cannot attend to each other
    WITH_RESID,         // exists if no saved tensor contains the unscaled residual stream
    WITH_COUNTS,        // exists if FP8 health counts the values of FP8 gradients
    WITH_HEALTH,        // exists if training logs its health
    WITH_COMPARISONS,   // exists if FP8 health compares an FP8 wgrad with a BF16 wgrad
    WITH_MUON           // exists if Muon updates the blocks' matrices
} When;

// Granularity of an FP8 operand's scales. Scales per token (SCALE_ROW) need a kernel that multiplies the matmul's
// output by them. The choice depends on the kernel that reads this output:
//   ROWS_BY_TOKEN: per token, because a residual addition reads it
//   ROWS_BY_TOKEN_IN_COAT: per token with --saved coat; the activation function or the MLP norm's backward reads it
//   ONE_SCALE: per tensor; other kernels, such as attention, read it. Also gradients that one pass quantizes and
//       transposes: they have one scale for dgrad's format and one for wgrad's (E5M2)
typedef enum { ONE_SCALE, ROWS_BY_TOKEN, ROWS_BY_TOKEN_IN_COAT } RowScales;

// Models that a tensor is part of. A vision-language model has two: the language model (PART_TOKENS), and the vision
// tower with the projector (PART_IMAGES). PART_BLOCKS: tensors of the blocks, which are part of both models.
typedef enum { PART_BLOCKS, PART_TOKENS, PART_IMAGES } Part;

// A row of the table of tensors. In its TensorId fields, 0 means "none", because no row refers to tensor 0 (WTE).
typedef struct {
    TensorRow row;
    // fields of an activation
    Rule rule;
    Stage first, last; // stages that first and last use the tensor
    Stored stored;
    TensorId source;       // tensor whose memory this one may use
    TensorId transpose_of; // tensor whose FP8 transpose this one is
    TensorId matmul_of;    // for a matmul's output: the operand whose scales per token it may have
    bool head;             // true: operand of the output head's matmuls
    bool gradient;         // true: operand that is a gradient
    // true: the tensor has row amaxes, from which a per-tensor scale is computed: a gradient's when it is quantized, an
    // FP8 operand's in the second pass of the operation that writes it
    bool amax;
    RowScales scales;
    // fields of activations and parameters
    Part part;
    When when;
    // for a block's weight matrix: the activation that its forward matmul reads; for the residual stream with
    // post-norm: the next matmul's input, which has the same values and so can share memory
    TensorId input;
    Dim pieces[MAX_PIECES]; // numbers of rows (of columns if there is one row) of a parameter's pieces; none: one piece
} TableRow;

// clang-format off
static const TableRow table[TENSOR_COUNT] = {
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
    return &table[id].row;
}

int tensor_rank(TensorId id) {
    return table[id].row.rows == DIM_1 ? 1 : 2;
}

TensorId tensor_input(TensorId id) {
    return table[id].input;
}

bool tensor_uses_muon(TensorId id, const Config *config) {
    return config->optimizer == OPTIMIZER_MUON && table[id].input && !config->shape.tower;
}

int tensor_muon_batch(TensorId id, const Config *config) {
    const ModelShape *s = &config->shape;
    const int64_t elements = shape_extent(table[id].row.rows, s) * shape_extent(table[id].row.cols, s);
    const int64_t most = MUON_BATCH_ELEMENTS / elements;
    return most < 1 ? 1 : most < s->layers ? (int)most : s->layers;
}

int tensor_pieces(TensorId id, const ModelShape *shape, int64_t extents[MAX_PIECES]) {
    const TableRow *row = &table[id];
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

// Returns the number of tokens whose logits are in memory at a time: --logits-chunk or, by default, all tokens of the
// micro-batch, halved until their logits fit in LOGITS_BYTES.
static int64_t logits_chunk(const Config *c) {
    int64_t tokens = config_micro_tokens(c), chunk = tokens;
    if (config_samples_only(c)) return config_sample_logits(c);
    if (c->logits_chunk > 0) return c->logits_chunk < tokens ? c->logits_chunk : tokens;
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
    case DIM_PIXELS: return 3 * (int64_t)s->vision.image_size * s->vision.image_size;
    case DIM_PATCH: return 3 * (int64_t)s->vision.patch_size * s->vision.patch_size;
    case DIM_RGB: return 3;
    case DIM_BYTES: return 256;
    case DIM_MERGED: return (int64_t)vision_merged(&s->vision) * s->vision.channels;
    case DIM_OUT: return s->vision.features;
    default: return 1;
    }
}

// Returns the maximum over all tensors of the number of elements that Muon updates together (DIM_UPDATE), or of
// elements of the Gram matrices of their pieces (DIM_GRAM).
static int64_t largest_update(Dim dim, const Config *c) {
    int64_t largest = 0, rows[MAX_PIECES];
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        if (!tensor_uses_muon((TensorId)id, c)) continue;
        const TensorRow *row = &table[id].row;
        const int64_t batch = tensor_muon_batch((TensorId)id, c), cols = shape_extent(row->cols, &c->shape);
        const int pieces = tensor_pieces((TensorId)id, &c->shape, rows);
        const int64_t n = rows[0] < cols ? rows[0] : cols; // the first piece is the largest
        const int64_t grams = parts_are_equal(rows, pieces) ? batch * pieces : 1;
        const int64_t size = dim == DIM_UPDATE ? batch * shape_extent(row->rows, &c->shape) * cols : grams * n * n;
        if (size > largest) largest = size;
    }
    return largest;
}

static int64_t extent(Dim dim, const Config *c) {
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
    case DIM_SELECTED: return extent(DIM_FEATURES, c) * vision_merged(&c->shape.vision);
    default: return shape_extent(dim, &c->shape);
    }
}

int64_t tensor_used_rows(TensorId id, int64_t rows, const ModelShape *shape) {
    return table[id].row.rows == DIM_VP ? shape->vocab : rows;
}

// --- existence: which tensors a model and a run have ---------------------------------------------------------------

static bool blocks_in_fp8(const Recipe *r) {
    return r->linear == LINEAR_FP8 && r->precision != PRECISION_FP32;
}

static bool head_in_fp8(const Recipe *r) {
    return r->head != HEAD_BF16 && r->precision != PRECISION_FP32;
}

static bool saves_groups(const Recipe *r) {
    return r->saved == SAVED_COAT && r->precision != PRECISION_FP32;
}

// True if no saved tensor contains the unscaled residual stream, so that blocks pass it on in the tensor RESID.
static bool needs_resid(const Config *c) {
    return c->shape.norm_place == NORM_POST ? blocks_in_fp8(&c->recipe) : saves_groups(&c->recipe);
}

// True if the model has the tensor in some run. run_has() also checks the conditions on the run.
static bool model_has(const TableRow *row, const ModelShape *shape) {
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

static bool run_has(const TableRow *row, const Config *c) {
    if (!model_has(row, &c->shape)) return false;
    const Recipe *r = &c->recipe;
    const bool fp8 = blocks_in_fp8(r), trains = !config_forward_only(c);
    switch (row->when) {
    case WITH_DOCUMENT_MASK: return c->documents == DOCUMENTS_MASKED;
    case WITH_RESID: return needs_resid(c);
    case WITH_COUNTS: return trains && c->health_every > 0 && (fp8 || head_in_fp8(r));
    case WITH_HEALTH: return trains && c->health_every > 0;
    case WITH_MUON: return config_trains_with_muon(c);
    case WITH_COMPARISONS: return trains && c->health_matmuls > 0 && fp8;
    default: return true;
    }
}

int64_t part_parameters(const ModelShape *shape, int parts) {
    int64_t total = 0;
    for (int id = 0; id < PARAMETER_COUNT; id++) {
        const TensorRow *row = &table[id].row;
        if (!model_has(&table[id], shape) || !(parts & tensor_part((TensorId)id, shape))) continue;
        int64_t rows = tensor_used_rows((TensorId)id, shape_extent(row->rows, shape), shape);
        total += rows * shape_extent(row->cols, shape) * (row->per_layer ? shape->layers : 1);
    }
    return total;
}

// --- parameters: layout of weights, gradients and optimizer states -------------------------------------------------

// number of elements per group of the 8-bit moments (COAT: optimizer states); divides the size of shards
#define MOMENT_GROUP 128

static const TensorLayout no_layout = {.alias = -1, .scale_source = -1};

static Format unscaled_format(const Recipe *r) {
    return r->precision == PRECISION_FP32 ? FMT_FP32 : FMT_BF16;
}

static TensorLayout layout_of(const TableRow *row, const Config *c, Category category, Format format) {
    TensorLayout t = no_layout;
    t.exists = true;
    t.category = category;
    t.format = format;
    t.rows = extent(row->row.rows, c);
    t.cols = extent(row->row.cols, c);
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
        for (int id = 0; id < PARAMETER_COUNT && !found; id++) found = name_matches(p, *length, table[id].row.name);
        if (!found) return p;
    }
    return NULL;
}

// True if a parameter's moments are FP32: for norms, biases and position embeddings, which are small, and for
// parameters that --moments-fp32 names.
static bool moments_exempt(const TensorRow *row, const Recipe *r) {
    if (row->rows == DIM_1 || row->rows == DIM_POS) return true;
    for (const char *p = r->moments_fp32; *p;) {
        size_t length = strcspn(p, ",");
        if (name_matches(p, length, row->name)) return true;
        p += length + (p[length] == ',');
    }
    return false;
}

static TensorLayout moment_layout(const TableRow *row, const Config *c, bool muon) {
    const MomentsKind kind = moments_exempt(&row->row, &c->recipe) ? MOMENTS_FP32 : c->recipe.moments;
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

// Returns the layout of a double buffer whose two slots each store one complete layer of the sharded tensor `of`.
static TensorLayout layer_slots(const TensorLayout *of, int ranks) {
    TensorLayout t = *of;
    t.category = CATEGORY_COMMUNICATION;
    t.saved = true;
    if (t.layers > LAYER_SLOTS) t.layers = LAYER_SLOTS;
    store_padded(&t, ranks);
    return t;
}

// Shards a parameter's tensors by ZeRO stage. Stage 1: moments and master weights. 2: also the layers' gradients. 3:
// also the blocks' weight matrices. Embeddings are not sharded because a pass reads them at its beginning and its end
// and sums their gradients throughout. Norms and biases are not sharded because they are small.
static void shard_parameter(const TableRow *row, const Config *c, int ranks, TensorLayout out[ROLE_COUNT]) {
    const int zero = config_zero(c, ranks);
    for (int role = VALUE; role <= MASTER; role++)
        out[role].shard_elements = tensor_shard_elements(out[role].shard_elements, ranks);
    if (zero == 0) return;
    for (int role = MOMENT_M; role <= MASTER; role++) store_shard(&out[role]);
    if (zero >= 2 && row->row.per_layer) {
        // A frozen matrix has no gradient, but with ZeRO 3 UNREDUCED is also the buffer to gather it for a checkpoint.
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
    const bool codes_only = out[CODES].exists && config_bf16_blocks(c) == 0; // no matmul reads the BF16 values
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
    const TableRow *row = &table[id];
    const Recipe *r = &c->recipe;
    const Format unscaled = unscaled_format(r);
    const bool in_block = row->input != 0;
    if (!model_has(row, &c->shape)) return;
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
    if (in_block ? blocks_in_fp8(r) : id == head_weight(&c->shape) && head_in_fp8(r)) {
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

// True if the matmuls that read this operand are FP8. With --head fp8-backward, of the head's matmuls only the backward
// ones are FP8.
static bool read_as_fp8(const TableRow *row, const Recipe *r) {
    if (!row->head) return blocks_in_fp8(r);
    return head_in_fp8(r) && (r->head == HEAD_FP8 || row->gradient || row->transpose_of);
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

// Gives an operand an FP8 format. An operand with one scale also gets row amaxes, from which the scale is computed.
static void use_fp8(TensorLayout *t, const TableRow *row, const Recipe *r) {
    const bool rows = row->scales == ROWS_BY_TOKEN || (row->scales == ROWS_BY_TOKEN_IN_COAT && saves_groups(r));
    t->transposed = row->transpose_of != 0;
    t->format = FMT_E4M3;
    if (row->gradient) t->format = row->head || t->transposed ? FMT_E5M2 : recipe_gradient_format(r);
    t->granularity = rows && !recipe_is_paper(r) ? SCALE_ROW : SCALE_TENSOR;
    t->has_amax = row->amax && t->granularity == SCALE_TENSOR;
}

static TensorLayout resolve_activation(TensorId id, const Config *c) {
    const TableRow *row = &table[id];
    const Recipe *r = &c->recipe;
    const bool coat = saves_groups(r), post = c->shape.norm_place == NORM_POST;
    const bool fp8 = read_as_fp8(row, r), transpose = row->transpose_of != 0;
    const Format formats[] = {
        unscaled_format(r), [AS_FP32] = FMT_FP32, [AS_I32] = FMT_I32, [AS_BYTES] = FMT_U8, [AS_GRADS] = r->grads};
    if (!run_has(row, c)) return no_layout;
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
        if (head_in_fp8(r)) t.last = STAGE_HEAD;
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
        const bool fits = row->source && extent(table[row->source].row.cols, c) == t.cols;
        if (fp8) use_fp8(&t, row, r);
        scratch_or_source(&t, row, fp8 || !fits);
        if (!fp8 && !fits && transpose) t.alias = (int)row->transpose_of;
        if (!fp8 && row->head && head_in_fp8(r)) t.has_amax = row->amax; // amaxes for the FP8 values of wgrad
        break;
    }
    case RULE_NORM_OUT:
    case RULE_ACT_OUT: {
        const bool recompute = row->rule == RULE_NORM_OUT ? config_recomputes_norms(c) : r->recompute >= 1;
        if (fp8) use_fp8(&t, row, r);
        if (recompute || transpose) scratch_or_source(&t, row, recompute || fp8);
        if (row->rule == RULE_ACT_OUT && transpose && config_bounds_activation(c))
            t.last = STAGE_BWD_ACT; // because the operation that computes dh also recomputes g
        break;
    }
    }
    return t;
}

// --- scales: which tensor's scale an activation uses ---------------------------------------------------------------

// Sets the tensor whose scale an activation uses. The output of a matmul that ignores its operand's scales per token
// has the operand's scales. A transpose has the scale of the original tensor, unless their formats or granularities
// differ.
static void inherit_scale(TensorId id, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]) {
    const TableRow *row = &table[id];
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
    const TableRow *row = &table[id];
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
// residual stream at the beginning of each block. The residual stream's gradient is alive while backward repeats
// forward.
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

// With --recompute 3, enlarges QKV, which training stores for one layer only, by a sample's KV cache. Consecutive
// layers are then a sample's rows apart, so that samples can store all layers.
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
