// Declares the table of tensors, which lists every parameter and activation of the model. The memory plan, the run's
// allocation, the start-up report and the contents of a checkpoint derive from the table. tensors.c contains the table,
// tensor_layouts.c the rules that turn a row into a TensorLayout for a configuration. arena.c assigns the addresses.
#pragma once
#include "config/config.h"
#include "numerics/tensor.h"

C_LINKAGE_BEGIN

// clang-format off
// Names of tensors: x is the input of a norm, n its output, y the output of a matmul, h and g the input and output of
// the activation function, o the output of attention. Prefix D: the gradient of the loss with respect to a tensor.
//   RESID        residual stream. RESID_IN: before a block, RESID_MID: between its sublayers, RESID_FINAL: after the
//                last block. These three use the memory of RESID, or of a tensor that is saved for backward and has the
//                same values. RESID_IN has separate memory if --recompute 3 needs it (RULE_BLOCK_IN)
//   X_IN, X_MID  inputs of a block's two norms, saved for backward: BF16, or E4M3 with a scale per group (COAT)
//   Y_PROJ, Y    outputs of the matmuls proj and fcproj, which the next norm's operation adds to the residual stream
//   Y_FC, H      output of the matmul fc without the bias, and with the bias (saved for backward)
//   QKV_ROPE     q, k and v as attention reads them, after clipping, QK-norm and RoPE; _RECOMPUTED: in backward
//   DSUBLAYER    gradient of a sublayer's output: DRESID with pre-norm, a separate tensor with post-norm (OLMo 2)
//   DN, DN2      gradients of N1 and N2
//   .._Q, .._QT  FP8 values of a gradient, and FP8 values of the gradient's transpose
//   .._T         input of a matmul, transposed, as wgrad reads it
// Vision-language models:
//   FEATURES     the projector's output, which replaces the embeddings of image tokens. IMAGE_ROWS: row of FEATURES for
//                each token; FEATURE_ROWS: token for each row of FEATURES
//   TOWER_OUT    residual stream after the tower's last block. MERGED: rows of TOWER_OUT that the projector reads;
//                SELECT: indices of these rows; SELECT_BACK: row of MERGED for each row of TOWER_OUT
//   BEST         1 if a token's target has the largest logit, else 0; evaluation writes it
//   X_PRE        input of the norm before the tower's first block (CLIP). PROJ_IN: input of the first projector matmul
// Muon (muon.h):
//   MUON_X       Nesterov momentum of matrices; Newton-Schulz iterations replace each piece's momentum by its update
//   MUON_Y       result of every other iteration; with ZeRO, also this process's shards of the matrices and of the
//                updates that the processes exchange. MUON_A: Gram matrix of a piece; MUON_B: polynomial of MUON_A
// Parameters come first, in the order in which they are initialized, updated and saved. Add a new parameter after all
// other parameters, because a parameter's number in this enum seeds its random initial values.
typedef enum {
    WTE, WPE,
    LN1W, LN1B, QKVW, QKVB, PROJW, PROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB,
    LNFW, LNFB,
    HEADW, QNORMW, KNORMW,
    // vision tower and projector
    CLS, PATCHW, PATCHB, LNPREW, LNPREB, LNPROJW, LNPROJB, PROJ1W, PROJ1B, PROJ2W, PROJ2B,
    PARAMETER_COUNT,
    // input tensors
    TOKENS = PARAMETER_COUNT, TARGETS, POSITIONS, STATE, ROPE_TABLE,
    // tensors of the forward pass
    RESID, RESID_IN, RESID_MID, RESID_FINAL,
    X_IN, MEAN1, RSTD1, N1, QKV, QKV_ROPE, O, LSE, OQ, Y_PROJ, Y,
    X_MID, MEAN2, RSTD2, N2, H, Y_FC, G,
    X_FINAL, MEANF, RSTDF, NF,
    LOGITS, DLOGITS_Q, DLOGITS_QT, LOSSES, BEST,
    // tensors of the backward pass
    DRESID, DSUBLAYER, DRESID_Q, DRESID_QT, DN, DN2, DO, DG, DH_Q, DH_QT, QKV_ROPE_RECOMPUTED, DQKV, DQKV_Q, DQKV_QT,
    N1_T, N2_T, G_T, O_T, NF_T,
    // tensors of FP8 health statistics
    CODE_COUNTS, QKVW_REFERENCE, INNER_PRODUCTS, OUTLIERS,
    // tensors of images
    IMAGE_ROWS,
    PIXELS, PIXEL_VALUES, SELECT, SELECT_BACK, FEATURE_ROWS,
    PATCHES, X_PRE, MEANP, RSTDP, TOWER_OUT,
    MERGED, MEANPROJ, RSTDPROJ, PROJ_IN, PROJ_H, PROJ_G, FEATURES,
    DFEATURES, DPROJ, DPROJ_IN, DMERGED,
    // scratch tensors of Muon's update
    MUON_X, MUON_Y, MUON_A, MUON_B,
    TENSOR_COUNT
} TensorId;

// Quantized tensors whose FP8 values are counted for the log (health.h): norm outputs, and gradients, one per pair of
// dgrad and wgrad. DRESID_Q is counted twice, because fcproj's backward and proj's backward quantize the gradient
// separately.
typedef enum {
    GRADIENT_DRESID_FCPROJ, GRADIENT_DRESID_PROJ, GRADIENT_DH, GRADIENT_DQKV, GRADIENT_DLOGITS,
    NORM_N1, NORM_N2, NORM_NF,
    COUNTED_TENSORS
} CountedTensor;

// Role of a tensor within its row of the table. An activation has a VALUE and, if the first blocks (--bf16-blocks)
// store the activation differently, a PLAIN for these blocks. A parameter can have all roles except PLAIN:
//   CODES, CODES_T  FP8 values of the weight, and of its transpose
//   MOMENT_M, _V    AdamW's first and second moment. A matrix that Muon updates has only MOMENT_M, the momentum
//   GATHERED        ZeRO 3: the weights of entire layers, gathered from all processes for the matmuls
//   UNREDUCED       ZeRO 2 and 3: this process's gradients of entire layers, before they are summed over the processes
// GATHERED and UNREDUCED are double buffers: layer l uses slot l % LAYER_SLOTS.
typedef enum { VALUE, CODES, CODES_T, GRAD, MOMENT_M, MOMENT_V, MASTER, GATHERED, UNREDUCED, PLAIN, ROLE_COUNT } Role;
#define LAYER_SLOTS 2

typedef enum {
    CATEGORY_WEIGHTS, CATEGORY_FP8_WEIGHTS, CATEGORY_GRADIENTS, CATEGORY_MOMENTS, CATEGORY_MASTER,
    CATEGORY_SAVED, CATEGORY_SCRATCH, CATEGORY_LOGITS, CATEGORY_COMMUNICATION, CATEGORY_WORKSPACE,
    CATEGORY_VISION, // all memory of the vision tower and the projector
    CATEGORY_COUNT
} Category;

// The stages of a micro-batch's computation, in order, and STAGE_UPDATE, the optimizer's update after the last
// micro-batch. A scratch tensor is alive from its first to its last stage, and shares memory with tensors of other
// stages. The stages between EMBED and NORMF, and between BWD_NORMF and BWD_EMBED, repeat for every layer; HEAD and
// BWD_HEAD repeat for every chunk of logits. A tensor that passes data to the next repetition must therefore be alive
// in all stages of the loop.
typedef enum {
    STAGE_EMBED, STAGE_NORM1, STAGE_QKV, STAGE_ATTENTION, STAGE_PROJ, STAGE_NORM2, STAGE_FC, STAGE_ACT,
    STAGE_FCPROJ, STAGE_NORMF, STAGE_HEAD, STAGE_BWD_HEAD, STAGE_BWD_NORMF, STAGE_BWD_FCPROJ, STAGE_BWD_ACT, STAGE_BWD_FC,
    STAGE_BWD_NORM2, STAGE_BWD_PROJ, STAGE_BWD_ATTENTION, STAGE_BWD_QKV, STAGE_BWD_NORM1, STAGE_BWD_EMBED, STAGE_UPDATE,
    STAGE_COUNT
} Stage;
// clang-format on

// Symbolic numbers of rows or columns of tensors, whose values depend on the configuration.
typedef enum {
    DIM_1,
    DIM_C,        // number of channels
    DIM_QKV,      // columns of q, k and v together: (heads + 2 kv_heads) * head_dim
    DIM_ATT,      // columns of attention's output: heads * head_dim
    DIM_KV,       // columns of k, and of v: kv_heads * head_dim
    DIM_D,        // width of a head: head_dim
    DIM_QNORM,    // width of q's norm: head_dim, or heads * head_dim
    DIM_KNORM,    // width of k's norm: head_dim, or kv_heads * head_dim
    DIM_F,        // width of the MLP
    DIM_H,        // width of the activation function's input: F, or 2 F with SwiGLU
    DIM_VP,       // size of the padded vocabulary
    DIM_POS,      // number of positions of the model
    DIM_M,        // number of tokens of a micro-batch
    DIM_BH,       // number of sequences of a micro-batch, times heads
    DIM_T,        // number of tokens of a sequence
    DIM_CHUNK,    // number of tokens whose logits are in memory at a time
    DIM_STATE,    // bytes reserved for StepState
    DIM_L,        // number of layers
    DIM_COUNTS,   // bytes of the CodeCounts of all counted tensors of a layer (CountedTensor) and of their transposes
    DIM_INNER,    // bytes of the InnerProducts struct
    DIM_OUTLIERS, // bytes of the Outliers struct
    DIM_UPDATE,   // largest number of elements of the matrices that Muon updates together
    DIM_GRAM,     // largest number of elements of the Gram matrices that Muon computes together
    // images
    DIM_IMAGES,   // number of images of a micro-batch
    DIM_PIXELS,   // bytes of an image: 3 * side * side
    DIM_PATCH,    // number of values of an image patch: 3 * side * side
    DIM_RGB,      // 3
    DIM_BYTES,    // 256
    DIM_FEATURES, // number of rows of the projector's output
    DIM_SELECTED, // number of rows of the vision tower's output that the projector reads
    DIM_MERGED,   // columns of the projector's input
    DIM_OUT       // columns of the projector's output
} Dim;

// Distribution of a parameter's initial values, which parameters_init() draws.
// INIT_FAN_IN: normal with deviation 1 / sqrt(columns)
// INIT_POSITIONS: normal with deviation 1 in a vision tower, because small position embeddings are slow to learn;
//                 otherwise INIT_NORMAL
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_NORMAL_RESIDUAL, INIT_FAN_IN, INIT_POSITIONS } Init;

// Name, symbolic shape and initial values of a row of the table of tensors.
typedef struct {
    const char *name; // name such as "qkvw"
    Dim rows, cols;   // extents of one layer
    bool per_layer;
    Init init; // initial values of a parameter
} TensorRow;

// Blocks that use a tensor: all, only those with FP8 forward matmuls, or only those with BF16 forward matmuls (PLAIN).
// Blocks run one after another, so FP8 and BF16 blocks can share scratch memory.
typedef enum { BLOCKS_ALL, BLOCKS_FP8, BLOCKS_PLAIN } Blocks;

// A tensor's format, shape and place in the arena, for one configuration.
typedef struct {
    bool exists;
    // TensorId of the tensor whose memory this tensor uses; -1: separate memory. If the alias of a PLAIN layout is the
    // tensor's own id, PLAIN uses the memory of the tensor's VALUE, without scales and amaxes
    int alias;
    int scale_source; // TensorId of the tensor whose scale this tensor uses; -1: own scale, or none
    Category category;
    Format format;
    Granularity granularity;
    int group;
    bool transposed, per_layer;
    bool per_layer_scale; // true: each layer has its own scale, even if the layers share one scratch tensor
    // true: separate memory, not shared with tensors of other stages. True for activations that are saved for backward
    // or outlive the micro-batch (RULE_RESIDENT), and for double buffers; false for the other roles of parameters
    bool saved;
    bool has_amax;      // true: has one amax per row
    int64_t rows, cols; // extents of one layer
    int layers;         // number of layers; 1 if not per_layer
    Stage first, last;  // stages in which a scratch tensor is alive
    Blocks blocks;      // blocks that use a scratch tensor
    // elements in one rank's shard of a layer (tensor_shard_elements()); the last ranks' shards may be smaller or empty
    int64_t shard_elements;
    // elements of a layer for which this process has memory: all, all plus padding to equal shards, or one shard
    int64_t local_elements;
    bool sharded;                                               // true: each process stores only its shard
    size_t data_bytes, scale_bytes, exponent_bytes, amax_bytes; // sizes in bytes for one layer
    // offsets of layer 0 in bytes from the arena's base
    size_t data_offset, scale_offset, exponent_offset, amax_offset;
    size_t data_stride, scale_stride, exponent_stride, amax_stride; // distances in bytes between two layers
} TensorLayout;

// True if the tensor exists and does not use the memory of another tensor.
static inline bool layout_owns_memory(const TensorLayout *t) {
    return t->exists && t->alias < 0;
}

// Fills `layout` with the format, shape, lifetime and size of every tensor. The offsets stay 0; arena_plan() sets them.
// With several ranks, config->zero determines which tensors are sharded.
void tensors_resolve(const Config *config, int ranks, TensorLayout layout[TENSOR_COUNT][ROLE_COUNT]);

const TensorRow *tensor_row(TensorId id);
// Returns the part of a vision-language model that a parameter belongs to: PART_VISION, PART_PROJECTOR or
// PART_LANGUAGE.
int tensor_part(TensorId id, const ModelShape *shape);
int tensor_rank(TensorId id); // number of dimensions of a parameter in files: 1 if it has a single row, otherwise 2
// True if Muon updates the parameter when it is trained: a weight matrix of a language model's blocks, with --optimizer
// muon. Ignores --freeze.
bool tensor_uses_muon(TensorId id, const Config *config);
// Returns the number of layers whose matrices `id` Muon updates together without ZeRO: the largest number of layers
// whose matrices have at most MUON_BATCH_ELEMENTS elements together, but at least 1.
int tensor_muon_batch(TensorId id, const Config *config);
#define MUON_BATCH_ELEMENTS (1 << 24)
// Sets extents[] to the numbers of rows (of columns if the parameter has one row) of a parameter's pieces: q, k and v,
// or SwiGLU's gate and up. Returns the number of pieces, 1 for any other parameter.
enum { MAX_PIECES = 3 };
int tensor_pieces(TensorId id, const ModelShape *shape, int64_t extents[MAX_PIECES]);
// True if all pieces of a parameter have the same shape. Compares only the first and the last piece, because k and v
// always have the same shape.
static inline bool parts_are_equal(const int64_t extents[], int pieces) {
    return extents[0] == extents[pieces - 1];
}
TensorId tensor_input(TensorId id); // activation that the forward matmul of weight matrix `id` reads
// Returns the number of rows without padding: shape->vocab if the rows are the padded vocabulary, otherwise `rows`.
int64_t tensor_used_rows(TensorId id, int64_t rows, const ModelShape *shape);
// Returns the default of --logits-chunk for a micro-batch of `tokens` tokens: all tokens, halved until their logits fit
// in 1 GiB, and rounded up to a multiple of 16 if there are more than 16.
int64_t default_logits_chunk(int64_t tokens, int64_t vocab_padded);
// Returns the value of `dim` if it depends only on the model's shape; otherwise 1.
int64_t shape_extent(Dim dim, const ModelShape *shape);
const char *category_name(Category c); // returns the category's name in --plan=json, such as "weights"
const char *role_suffix(Role r);       // returns the suffix of tensor names in --plan=json: "" for VALUE, ".codes" ...

// Returns the first name pattern of --moments-fp32 that matches no parameter, and sets *length; NULL if all match.
const char *moments_unmatched(const char *patterns, size_t *length);

// Returns the id of the output head's weight: the token embedding if the head is tied.
static inline TensorId head_weight(const ModelShape *shape) {
    return shape->tied_head ? WTE : HEADW;
}

// Return the number of parameter elements, excluding the vocabulary's padding rows. part_parameters() counts the parts
// whose bits PART_VISION, ... are set in `parts`; model_parameters() counts the entire model.
int64_t part_parameters(const ModelShape *shape, int parts);
static inline int64_t model_parameters(const ModelShape *shape) {
    return part_parameters(shape, PART_VISION | PART_PROJECTOR | PART_LANGUAGE);
}

// Returns the number of elements in one rank's shard of a tensor: elements / ranks, rounded up to a multiple of 128 if
// there are several ranks. Because of the rounding, the last ranks' shards may be smaller or empty.
int64_t tensor_shard_elements(int64_t elements, int ranks);

// Returns the ZeRO stage that is used: config->zero, or 0 with one process.
static inline int config_zero(const Config *config, int ranks) {
    return ranks > 1 ? config->zero : 0;
}

C_LINKAGE_END
