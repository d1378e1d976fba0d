// THE table of tensors: every parameter and activation of the model, in one place. The memory plan, the one
// allocation, the start-up report and the contents of a checkpoint all derive from it.
#pragma once
#include "config/config.h"
#include "numerics/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// clang-format off
// Names: x is the input of a norm, n its result, y the result of a matmul, h and g the input and the result of the
// activation function, o that of attention; D.. is the gradient of the loss by .. .
//   RESID        the residual stream, carried from block to block; _IN before a block, _MID between its halves, _FINAL
//                behind the last: the same, or what the norms keep
//   X_IN, X_MID  what the two norms of a block keep of their input for backward: in BF16, or in E4M3 by group (COAT)
//   Y_PROJ, Y    what proj and fcproj make, which the norm behind them adds to the stream; Y_FC of fc
//   H            Y_FC with its bias, as it is kept; the same memory where that is in BF16
//   HEADS        q, k, v as attention reads them, normed and rotated; HEADS_AGAIN in backward
//   DBRANCH      of what a half of a block adds: DRESID, or behind a norm of its own (OLMo 2)
//   DN, DN2      of n1 and of n2
//   .._Q, .._QT  FP8 codes, and those of the transposed tensor
//   .._T         a matmul's input, transposed, for its weight gradient
// Parameters first, in the order in which they are initialised, updated and saved. Their number seeds random numbers: a
// new one comes last.
typedef enum {
    WTE, WPE,
    LN1W, LN1B, QKVW, QKVB, PROJW, PROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB,
    LNFW, LNFB,
    HEADW, QNORMW, KNORMW,
    PARAMETER_COUNT,
    // input
    TOKENS = PARAMETER_COUNT, TARGETS, POSITIONS, STATE, ROTATIONS,
    // forward
    RESID, RESID_IN, RESID_MID, RESID_FINAL,
    X_IN, MEAN1, RSTD1, N1, QKV, HEADS, O, LSE, OQ, Y_PROJ, Y,
    X_MID, MEAN2, RSTD2, N2, H, Y_FC, G,
    X_FINAL, MEANF, RSTDF, NF,
    LOGITS, DLOGITS_Q, DLOGITS_QT, LOSSES,
    // backward
    DRESID, DBRANCH, DRESID_Q, DRESID_QT, DN, DN2, DO, DG, DH_Q, DH_QT, HEADS_AGAIN, DQKV, DQKV_Q, DQKV_QT,
    N1_T, N2_T, G_T, O_T, NF_T,
    // FP8 health
    CODE_COUNTS, QKVW_REFERENCE, INNER_PRODUCTS,
    TENSOR_COUNT
} TensorId;

// Gradients whose codes are counted (health.h), each where matmuls read it: two of DRESID_Q.
typedef enum { GRADIENT_DRESID_FCPROJ, GRADIENT_DRESID_PROJ, GRADIENT_DH, GRADIENT_DQKV, GRADIENT_DLOGITS, GRADIENT_COUNT } QuantizedGradient;

// A parameter has several tensors; an activation its VALUE. Where processes share what belongs to a layer, two
// more hold whole layers for a while, in LAYER_SLOTS slots that take turns: GATHERED the weights as matmuls read them
// (ZeRO 3), UNREDUCED this process's gradients before they are summed (ZeRO 2 and 3); its part of them then holds the
// sum, until that is added to GRAD. PLAIN is what an activation's VALUE is in the forward pass of the first blocks,
// where matmuls in BF16 (--bf16-blocks) make it another.
typedef enum { VALUE, CODES, CODES_T, GRAD, MOMENT_M, MOMENT_V, MASTER, GATHERED, UNREDUCED, PLAIN, ROLE_COUNT } Role;
#define LAYER_SLOTS 2

typedef enum {
    CATEGORY_WEIGHTS, CATEGORY_FP8_WEIGHTS, CATEGORY_GRADIENTS, CATEGORY_MOMENTS, CATEGORY_MASTER,
    CATEGORY_SAVED, CATEGORY_SCRATCH, CATEGORY_LOGITS, CATEGORY_COMMUNICATION, CATEGORY_WORKSPACE,
    CATEGORY_COUNT
} Category;

// The steps of one micro-batch, as far as lifetimes need them. A scratch tensor that is used in stages
// [first, last] shares memory with those whose stages do not overlap. Stages inside the layer loops come
// back for every layer, those of the head for every chunk of logits: what crosses from one to the next spans the loop.
typedef enum {
    STAGE_EMBED, STAGE_NORM1, STAGE_QKV, STAGE_ATTENTION, STAGE_PROJ, STAGE_NORM2, STAGE_FC, STAGE_ACT,
    STAGE_FCPROJ, STAGE_NORMF, STAGE_HEAD, STAGE_BWD_HEAD, STAGE_BWD_NORMF, STAGE_BWD_FCPROJ, STAGE_BWD_ACT, STAGE_BWD_FC,
    STAGE_BWD_NORM2, STAGE_BWD_PROJ, STAGE_BWD_ATTENTION, STAGE_BWD_QKV, STAGE_BWD_NORM1, STAGE_BWD_EMBED,
    STAGE_COUNT
} Stage;
// clang-format on

// The blocks that a tensor's memory serves: scratch of those with FP8 matmuls and of those
// without is never alive together.
typedef enum { BLOCKS_ALL, BLOCKS_FP8, BLOCKS_PLAIN } Blocks;

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_NORMAL_RESIDUAL } Init; // weights.h says what is drawn

// What a row says, independent of any configuration.
typedef struct {
    const char *name; // "qkvw"
    bool per_layer;
    Init init;
    bool decay; // weight decay applies
} TensorRow;

const TensorRow *tensor_row(TensorId id);
int tensor_rank(TensorId id);       // of a parameter in files: 2, or 1 where it has one row
TensorId tensor_input(TensorId id); // of a block's matrix: the activation that its matmul reads in forward passes
// Rows of a parameter that has `rows`, without the vocabulary's padding.
int64_t tensor_used_rows(TensorId id, int64_t rows, const ModelShape *shape);
const char *category_name(Category c); // as in --plan=json: "weights", "fp8_weights", ...
const char *role_suffix(Role r);       // "", ".codes", ".codes_t", ".grad", ".m", ".v", ".master", ...

// One tensor under one configuration: its format, its shape, where in the arena it lies.
typedef struct {
    bool exists;
    int alias;        // TensorId whose memory this is, or -1. Of PLAIN its own id: VALUE's, without scales and maxima
    int scale_source; // TensorId whose scale this shares (a transposed copy, or a matmul of such codes), or -1
    Category category;
    Format format;
    Granularity granularity;
    int group;
    bool transposed, per_layer, per_layer_scale; // per_layer_scale: the scale outlives scratch data
    bool saved;                                  // survives from forward to backward
    bool has_amax;
    int64_t rows, cols;     // of one layer
    int layers;             // 1 where not per layer
    Stage first, last;      // scratch only
    Blocks blocks;          // likewise
    int64_t shard_elements; // of one rank's share, of one layer: whole groups of 128, the last ranks' share may be less
    int64_t held_elements;  // that there is memory for: all, all with the last share padded, or one share
    bool sharded;           // it is one share
    size_t data_bytes, scale_bytes, exponent_bytes, amax_bytes;     // of one layer
    size_t data_offset, scale_offset, exponent_offset, amax_offset; // of layer 0, in the arena
    size_t data_stride, scale_stride, exponent_stride, amax_stride; // from layer to layer
} TensorLayout;

// Whether it has memory that is not another tensor's.
static inline bool layout_owns_memory(const TensorLayout *t) {
    return t->exists && t->alias < 0;
}

// Fills formats, shapes and byte counts of all tensors; offsets are the arena's work. `ranks` processes share
// the states as `config->zero` says.
void tensors_resolve(const Config *config, int ranks, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]);

// The first of the patterns of --moments-fp32, of *length characters, that is no parameter's; NULL: there is none.
const char *moments_unmatched(const char *patterns, size_t *length);

// The weight of the output head: the token embedding, or the model's own.
static inline TensorId head_weight(const ModelShape *shape) {
    return shape->tied_head ? WTE : HEADW;
}

// Number of parameters (padding rows of the vocabulary not counted).
int64_t model_parameters(const ModelShape *shape);

// Elements that each of `ranks` processes has of a tensor that is cut into shares: whole groups of 128, so that the
// last processes may have fewer or none.
int64_t tensor_share(int64_t elements, int ranks);

// The ZeRO stage that counts: with one process there is nothing to share.
static inline int config_zero(const Config *config, int ranks) {
    return ranks > 1 ? config->zero : 0;
}

#ifdef __cplusplus
}
#endif
