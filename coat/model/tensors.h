// The table of tensors: every parameter and activation of the model. The memory plan, the run's one allocation, the
// start-up report and the contents of a checkpoint derive from it. tensors.c holds the table and the rules that turn a
// row into a TensorLayout under a configuration; arena.c gives the layouts their addresses.
#pragma once
#include "config/config.h"
#include "numerics/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

// clang-format off
// x is the input of a norm, n its output, y the output of a matmul, h and g the input and output of the activation
// function, o the output of attention. D.. is the gradient of the loss with respect to .. .
//   RESID        residual stream. RESID_IN: before a block, RESID_MID: between its sublayers, RESID_FINAL: after the
//                last block; each of these is RESID, or a tensor that is saved for backward and has the same values
//   X_IN, X_MID  inputs of a block's two norms, saved for backward: BF16, or E4M3 with a scale per group (COAT)
//   Y_PROJ, Y    outputs of the matmuls proj and fcproj, which the next norm's operation adds to the residual stream
//   Y_FC, H      output of the matmul fc; the same plus the bias, saved for backward
//   QKV_ROPE     q, k and v as attention reads them, after clipping, QK-norm and RoPE; _RECOMPUTED: in backward
//   DSUBLAYER    gradient of a sublayer's output: DRESID with pre-norm, a tensor of its own with post-norm (OLMo 2)
//   DN, DN2      gradients of N1 and N2
//   .._Q, .._QT  FP8 values, and FP8 values of the transpose
//   .._T         input of a matmul, transposed, as wgrad reads it
// Parameters come first, in the order in which they are initialized, updated and saved. The number of a parameter seeds
// its random initial values, so a new parameter must be the last one.
typedef enum {
    WTE, WPE,
    LN1W, LN1B, QKVW, QKVB, PROJW, PROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB,
    LNFW, LNFB,
    HEADW, QNORMW, KNORMW,
    PARAMETER_COUNT,
    // input
    TOKENS = PARAMETER_COUNT, TARGETS, POSITIONS, STATE, ROPE_TABLE,
    // forward
    RESID, RESID_IN, RESID_MID, RESID_FINAL,
    X_IN, MEAN1, RSTD1, N1, QKV, QKV_ROPE, O, LSE, OQ, Y_PROJ, Y,
    X_MID, MEAN2, RSTD2, N2, H, Y_FC, G,
    X_FINAL, MEANF, RSTDF, NF,
    LOGITS, DLOGITS_Q, DLOGITS_QT, LOSSES,
    // backward
    DRESID, DSUBLAYER, DRESID_Q, DRESID_QT, DN, DN2, DO, DG, DH_Q, DH_QT, QKV_ROPE_RECOMPUTED, DQKV, DQKV_Q, DQKV_QT,
    N1_T, N2_T, G_T, O_T, NF_T,
    // FP8 health
    CODE_COUNTS, QKVW_REFERENCE, INNER_PRODUCTS,
    TENSOR_COUNT
} TensorId;

// Gradients whose FP8 values are counted (health.h), one per matmul that reads them. Two matmuls read DRESID_Q.
typedef enum { GRADIENT_DRESID_FCPROJ, GRADIENT_DRESID_PROJ, GRADIENT_DH, GRADIENT_DQKV, GRADIENT_DLOGITS, GRADIENT_COUNT } QuantizedGradient;

// The tensors of one row of the table. An activation has VALUE and, if it is stored differently in the first blocks,
// whose forward matmuls are BF16 (--bf16-blocks), PLAIN for those. A parameter has all others but PLAIN:
//   CODES, CODES_T  its FP8 values, and those of its transpose
//   MOMENT_M, _V    AdamW's first and second moment
//   GATHERED        ZeRO 3: the weights of whole layers, gathered from all processes for the matmuls
//   UNREDUCED       ZeRO 2 and 3: this process's gradients of whole layers, before they are summed over the processes
// GATHERED and UNREDUCED are double buffers: layer l uses slot l % LAYER_SLOTS.
typedef enum { VALUE, CODES, CODES_T, GRAD, MOMENT_M, MOMENT_V, MASTER, GATHERED, UNREDUCED, PLAIN, ROLE_COUNT } Role;
#define LAYER_SLOTS 2

typedef enum {
    CATEGORY_WEIGHTS, CATEGORY_FP8_WEIGHTS, CATEGORY_GRADIENTS, CATEGORY_MOMENTS, CATEGORY_MASTER,
    CATEGORY_SAVED, CATEGORY_SCRATCH, CATEGORY_LOGITS, CATEGORY_COMMUNICATION, CATEGORY_WORKSPACE,
    CATEGORY_COUNT
} Category;

// The stages of a micro-batch, in order. A scratch tensor is alive from its first to its last stage and shares memory
// with scratch tensors that are not alive in these stages. The stages between EMBED and NORMF, and between BWD_NORMF
// and BWD_EMBED, repeat for every layer; HEAD and BWD_HEAD repeat for every chunk of logits. A tensor that passes data
// to the next repetition must therefore be alive in all stages of the loop.
typedef enum {
    STAGE_EMBED, STAGE_NORM1, STAGE_QKV, STAGE_ATTENTION, STAGE_PROJ, STAGE_NORM2, STAGE_FC, STAGE_ACT,
    STAGE_FCPROJ, STAGE_NORMF, STAGE_HEAD, STAGE_BWD_HEAD, STAGE_BWD_NORMF, STAGE_BWD_FCPROJ, STAGE_BWD_ACT, STAGE_BWD_FC,
    STAGE_BWD_NORM2, STAGE_BWD_PROJ, STAGE_BWD_ATTENTION, STAGE_BWD_QKV, STAGE_BWD_NORM1, STAGE_BWD_EMBED,
    STAGE_COUNT
} Stage;
// clang-format on

// Extents of tensors as symbols. A configuration gives them their values.
typedef enum {
    DIM_1,
    DIM_C,      // channels
    DIM_QKV,    // q, k and v together: (heads + 2 kv_heads) * head_dim
    DIM_ATT,    // heads * head_dim
    DIM_KV,     // kv_heads * head_dim
    DIM_D,      // head_dim
    DIM_QNORM,  // weights of the norm of q: head_dim, or heads * head_dim
    DIM_KNORM,  // weights of the norm of k: head_dim, or kv_heads * head_dim
    DIM_F,      // width of the MLP
    DIM_H,      // width of the activation function's input: F, or 2 F for gate and up
    DIM_VP,     // padded vocabulary
    DIM_POS,    // positions of the model
    DIM_M,      // tokens of a micro-batch
    DIM_BH,     // sequences of a micro-batch * heads
    DIM_T,      // tokens of a sequence
    DIM_CHUNK,  // tokens whose logits exist at a time
    DIM_STATE,  // bytes reserved for StepState
    DIM_L,      // layers
    DIM_COUNTS, // bytes of a layer's CodeCounts: all gradients, each with its transpose
    DIM_INNER   // bytes of InnerProducts
} Dim;

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_NORMAL_RESIDUAL } Init; // see parameters_init()

// The part of a table row that does not depend on the configuration.
typedef struct {
    const char *name; // "qkvw"
    Dim rows, cols;   // of one layer
    bool per_layer;
    Init init; // of a parameter
} TensorRow;

// The blocks that use a tensor's memory. Blocks with FP8 and with BF16 forward matmuls do not run at the same time, so
// their scratch can share memory.
typedef enum { BLOCKS_ALL, BLOCKS_FP8, BLOCKS_PLAIN } Blocks;

// One tensor under one configuration: format, shape, and place in the arena.
typedef struct {
    bool exists;
    int alias;        // TensorId whose memory this tensor uses; -1: its own. A PLAIN tensor with its own id uses the
                      // memory of its VALUE, without scales and amax
    int scale_source; // TensorId whose scale this tensor uses, as a transpose or a matmul's output may; -1: none
    Category category;
    Format format;
    Granularity granularity;
    int group;
    bool transposed, per_layer;
    bool per_layer_scale;   // each layer has its own scale, even if the layers share data_bytes of scratch
    bool saved;             // survives from forward to backward
    bool has_amax;          // one amax per row
    int64_t rows, cols;     // of one layer
    int layers;             // 1 if not per_layer
    Stage first, last;      // life of a scratch tensor
    Blocks blocks;          // of a scratch tensor
    int64_t shard_elements; // elements of one rank's shard of a layer, a multiple of 128; the last ranks may have fewer
    int64_t local_elements; // elements of a layer that this process stores: all, all padded to whole shards, or a shard
    bool sharded;           // stores only the shard
    size_t data_bytes, scale_bytes, exponent_bytes, amax_bytes;     // of one layer
    size_t data_offset, scale_offset, exponent_offset, amax_offset; // of layer 0, from the arena's base
    size_t data_stride, scale_stride, exponent_stride, amax_stride; // from one layer to the next
} TensorLayout;

// True if the tensor exists and does not use another tensor's memory.
static inline bool layout_owns_memory(const TensorLayout *t) {
    return t->exists && t->alias < 0;
}

// Fills layout with the format, shape, lifetime and size of every tensor. The offsets stay 0; arena_plan() sets them.
// With several ranks, config->zero decides what is sharded.
void tensors_resolve(const Config *config, int ranks, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]);

const TensorRow *tensor_row(TensorId id);
int tensor_rank(TensorId id);       // dimensions of a parameter in files: 1 if it has a single row, otherwise 2
TensorId tensor_input(TensorId id); // the activation that the forward matmul of a block's weight matrix reads
// Returns `rows`, or the number of tokens if they are those of the padded vocabulary.
int64_t tensor_used_rows(TensorId id, int64_t rows, const ModelShape *shape);
// Returns the value of an extent that depends only on the model; 1 for all others.
int64_t shape_extent(Dim dim, const ModelShape *shape);
const char *category_name(Category c); // "weights", as in --plan=json
const char *role_suffix(Role r);       // "" for VALUE, ".codes" ..., as in --plan=json

// Returns the first pattern of the list --moments-fp32 that matches no parameter, and its length; NULL if all match.
const char *moments_unmatched(const char *patterns, size_t *length);

// Returns the weight of the output head: the token embedding if they are tied.
static inline TensorId head_weight(const ModelShape *shape) {
    return shape->tied_head ? WTE : HEADW;
}

// Returns the number of parameters of a model, without padding of the vocabulary.
int64_t model_parameters(const ModelShape *shape);

// Returns the elements of one rank's shard of a tensor, rounded up to a multiple of 128. The last ranks may have fewer.
int64_t tensor_shard_elements(int64_t elements, int ranks);

// Returns the ZeRO stage in effect: 0 with one process.
static inline int config_zero(const Config *config, int ranks) {
    return ranks > 1 ? config->zero : 0;
}

#ifdef __cplusplus
}
#endif
